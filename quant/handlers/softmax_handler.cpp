// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/softmax_handler.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/softmax.h>

#include "fp8/quant/handlers/straight_through.h"
#include "fp8/runtime/ops/attention/attention_ops.h"

namespace fp8::quant {

at::Tensor Fp8SoftmaxHandler::in_fp8(const at::Tensor& x) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const runtime::DeviceKindScope kind(kind_of(scheme().dialect));
  const auto one = [](float value) { return at::full({1}, value, at::kFloat); };
  const float s = output(0).scale_inv();
  const at::Tensor codes = runtime::ops::call_softmax_fp8(x, -1, one(1.0f), one(scale_for(scheme(), s, "P")));
  return runtime::dequantize(output(0).with_scale(codes), x.scalar_type());
}

at::Tensor Fp8SoftmaxHandler::softmax(const runtime::SoftmaxCall& call) {
  // The operator takes bf16 over the last dimension to E4M3; anything else is softmax, then the cast.
  const bool last = call.dim == -1 || call.dim == call.x.dim() - 1;
  if (!last || call.x.scalar_type() != at::kBFloat16 || scheme().format != recipes::Format::E4M3 ||
      scheme().compute != Compute::fp8) {
    return output(0).through_fp8(call.original());
  }
  StraightThrough op;
  op.forward = [this](const Tensors& in) { return in_fp8(in[0]); };
  op.differentiable = [](const Tensors& in) { return at::softmax(in[0], -1); };
  return straight_through(op, {call.x});
}

}  // namespace fp8::quant
