// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/gemm/gemm_v1.h"

#include "fp8/runtime/ops/gemm/gemm.h"

namespace fp8::runtime::ops {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor addend(const at::Tensor& d, bool accumulate) {
  return accumulate && d.defined() ? OptionalTensor(d) : std::nullopt;
}

void check_out(const at::Tensor& out, at::IntArrayRef sizes, at::ScalarType dtype) {
  TORCH_CHECK(out.scalar_type() == dtype && out.sizes() == sizes, "[fp8_gemm] expected out of dtype ", dtype,
              " and sizes ", sizes, ", got ", out.scalar_type(), " and ", out.sizes());
}

}  // namespace

at::Tensor& fp8_gemm_v1_meta(const at::Tensor& a, bool trans_a, const at::Tensor& b, bool trans_b, const at::Tensor& d,
                             at::ScalarType out_dtype, const OptionalTensor&, const OptionalTensor&,
                             const OptionalTensor& bias, bool accumulate, at::Tensor& out) {
  const GemmOptions options{trans_a, trans_b, out_dtype, {}, {}, accumulate};
  const at::Tensor y = fp8_gemm_meta(a, b, addend(d, accumulate), bias, options);
  check_out(out, y.sizes(), out_dtype);
  return out;
}

at::Tensor& fp8_gemm_v1(const at::Tensor& a, bool trans_a, const at::Tensor& b, bool trans_b, const at::Tensor& d,
                        at::ScalarType out_dtype, const OptionalTensor& a_scale_inv, const OptionalTensor& b_scale_inv,
                        const OptionalTensor& bias, bool accumulate, at::Tensor& out) {
  const GemmOptions options{
      trans_a,   trans_b, out_dtype, scale_of(a_scale_inv, std::nullopt), scale_of(b_scale_inv, std::nullopt),
      accumulate};
  const at::Tensor y = fp8_gemm(a, b, addend(d, accumulate), bias, options);
  check_out(out, y.sizes(), out_dtype);
  return out.copy_(y);
}

}  // namespace fp8::runtime::ops
