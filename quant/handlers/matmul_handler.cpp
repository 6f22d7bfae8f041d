// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/matmul_handler.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/matmul.h>

#include "fp8/quant/handlers/straight_through.h"
#include "fp8/runtime/fp8_tensor/product.h"

namespace fp8::quant {

using runtime::Fp8Tensor;

at::Tensor product_of_codes(const Fp8Tensor& a, const Fp8Tensor& b, at::ScalarType out_dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (a.layout.one() && b.layout.one()) return runtime::matmul(a, false, b, false, out_dtype);
  // Scales that the product has no place for (per batch and column): they multiply the f32 product. 1-D operands have
  // one scale.
  at::Tensor y = runtime::matmul(Fp8Tensor{a.codes}, false, Fp8Tensor{b.codes}, false, at::kFloat);
  for (const Fp8Tensor* x : {&a, &b}) y = x->layout.one() ? y.mul(x->scale_inv) : y.mul(x->grid.to(y.device()));
  return y.to(out_dtype);
}

at::Tensor Fp8MatmulHandler::product(const at::Tensor& a, const at::Tensor& b) const {
  const at::ScalarType compute = compute_dtype(a);
  return product_of_codes(input(0).cast(a), input(1).cast(b), compute);
}

at::Tensor Fp8MatmulHandler::matmul(const runtime::MatmulCall& call) {
  if (scheme().compute != Compute::fp8) {
    const at::ScalarType compute = compute_dtype(call.a);
    return at::matmul(input(0).through_fp8(call.a.to(compute)), input(1).through_fp8(call.b.to(compute)));
  }
  StraightThrough op;
  op.forward = [this](const Tensors& in) { return product(in[0], in[1]); };
  op.values = [a = input(0), b = input(1)](const Tensors& in) {
    return Tensors{runtime::dequantize(a.cast(in[0]), in[0].scalar_type()),
                   runtime::dequantize(b.cast(in[1]), in[1].scalar_type())};
  };
  op.differentiable = [](const Tensors& in) { return at::matmul(in[0], in[1]); };
  return straight_through(op, {call.a, call.b});
}

}  // namespace fp8::quant
