// SPDX-License-Identifier: Apache-2.0
// Results are compared as doubles on the CPU.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

namespace fp8::test {

inline at::Tensor f64(const at::Tensor& t) { return t.detach().cpu().to(at::kDouble); }

/// Frobenius norm of the difference over that of `want`.
inline double relative_error(const at::Tensor& y, const at::Tensor& want) {
  const at::Tensor exact = f64(want);
  return ((f64(y) - exact).norm() / exact.norm()).item<double>();
}

}  // namespace fp8::test

namespace fp8 {
using test::f64;
using test::relative_error;
}  // namespace fp8
