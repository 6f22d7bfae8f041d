// SPDX-License-Identifier: Apache-2.0
// What observers must find, by ATen.
#pragma once
#include <ATen/ATen.h>

#include "fp8/measure/files/measurement_file.h"

namespace fp8::measure {

/// The largest magnitude; of no elements 0.
inline float largest(const at::Tensor& t) {
  return t.numel() == 0 ? 0.0f : t.detach().cpu().to(at::kFloat).abs().max().item<float>();
}

/// amax of each slice along dim.
inline Amax along(const at::Tensor& t, std::int64_t dim) {
  const at::Tensor a = t.detach().cpu().to(at::kFloat).abs().movedim(dim, 0).flatten(1).amax(1).contiguous();
  return {a.data_ptr<float>(), a.data_ptr<float>() + a.numel()};
}

}  // namespace fp8::measure
