// SPDX-License-Identifier: Apache-2.0
// Samples side by side.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fp8::data {

using Sample = std::vector<at::Tensor>;
using Collate = std::function<std::vector<at::Tensor>(const std::vector<Sample>&)>;

/// Tensors [A] of B samples as [B, A], contiguous on the CPU, in pinned memory if asked for. Throws
/// std::invalid_argument where samples differ in number, dtype or sizes of their tensors, or lie on a device;
/// `name_of(i)` is what the message calls sample i.
std::vector<at::Tensor> stack_samples(const std::vector<Sample>& samples, bool pinned,
                                      const std::function<std::string(std::size_t)>& name_of);

}  // namespace fp8::data
