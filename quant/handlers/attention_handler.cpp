// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/attention_handler.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "fp8/quant/handlers/straight_through.h"
#include "fp8/runtime/ops/attention/attention_ops.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {

namespace ops = runtime::ops;

at::Tensor Fp8AttentionHandler::fused(const runtime::AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const runtime::DeviceKindScope kind(kind_of(scheme().dialect));
  const runtime::Fp8Tensor qc = input(0).cast(q), kc = input(1).cast(k), vc = input(2).cast(v);
  ops::FusedSdpaOptions options;
  options.mask = call.mask;
  options.is_causal = call.is_causal;
  options.scale = call.scale;
  options.softmax_mode = call.softmax_mode;
  options.valid_seq_len = call.valid_seq_len;
  options.seq_padding_type = call.seq_padding_type;
  const auto one = [](float value) { return at::full({1}, value, at::kFloat); };
  ops::Fp8SdpaScales scales;
  scales.d_q = one(qc.scale_inv);
  scales.d_k = one(kc.scale_inv);
  scales.d_v = one(vc.scale_inv);
  scales.d_s = one(input(3).scale_inv());
  scales.q_s = one(scale_for(scheme(), input(3).scale_inv(), "P"));
  if (scheme().output_scale_inv.empty())
    return ops::fp8_fused_sdpa(qc.codes, kc.codes, vc.codes, options, scales).out.to(compute_dtype(q));
  scales.q_o = one(scale_for(scheme(), output(0).scale_inv(), "o"));
  const at::Tensor o = ops::fp8_fused_sdpa(qc.codes, kc.codes, vc.codes, options, scales).out;
  return runtime::dequantize(output(0).with_scale(o), compute_dtype(q));
}

at::Tensor Fp8AttentionHandler::attention(const runtime::AttentionCall& call) {
  TORCH_CHECK(call.dropout_p == 0.0, "[ModuleFusedSDPA] expected dropout_p 0 in a converted module, found ",
              call.dropout_p);
  const auto plain = [mask = call.mask, causal = call.is_causal, scale = call.scale, gqa = call.enable_gqa,
                      valid = call.valid_seq_len](const Tensors& in) {
    TORCH_CHECK(!valid.has_value(),
                "[ModuleFusedSDPA] expected a mask instead of valid_seq_len where gradients or quantize-dequantize are "
                "asked for");
    return at::scaled_dot_product_attention(in[0], in[1], in[2], mask, 0.0, causal, scale, gqa);
  };
  if (scheme().compute != Compute::fp8) {
    const at::ScalarType compute = compute_dtype(call.q);
    return plain({input(0).through_fp8(call.q.to(compute)), input(1).through_fp8(call.k.to(compute)),
                  input(2).through_fp8(call.v.to(compute))});
  }
  StraightThrough op;
  op.forward = [&](const Tensors& in) { return fused(call, in[0], in[1], in[2]); };
  op.values = [q = input(0), k = input(1), v = input(2)](const Tensors& in) {
    const auto type = in[0].scalar_type();
    return Tensors{runtime::dequantize(q.cast(in[0]), type), runtime::dequantize(k.cast(in[1]), type),
                   runtime::dequantize(v.cast(in[2]), type)};
  };
  op.differentiable = plain;
  return straight_through(op, {call.q, call.k, call.v});
}

}  // namespace fp8::quant
