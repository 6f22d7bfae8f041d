// SPDX-License-Identifier: Apache-2.0
// Attention by its formula in f64 on the CPU, for the tests of the attention modules.
#pragma once
#include <torch/torch.h>

#include <cmath>

#include "support/f64.h"

namespace fp8::test {

/// softmax(scale q k^T) v in f64 on the CPU, with k and v repeated for groups of heads. visible: undefined or bool.
inline at::Tensor formula(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& visible = {}) {
  const std::int64_t repeat = q.size(1) / k.size(1);
  at::Tensor s =
      torch::matmul(q, k.repeat_interleave(repeat, 1).transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
  if (visible.defined()) s = s.masked_fill(visible.logical_not(), -INFINITY);
  return torch::matmul(torch::softmax(s, -1), v.repeat_interleave(repeat, 1));
}

inline at::Tensor f64_leaf(const at::Tensor& t) { return f64(t).requires_grad_(true); }

}  // namespace fp8::test
