// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/attention.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <limits>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/dispatch/own_ops.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/dtypes.h"
#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

/// Codes [B, H, S, E] on q's device whose rows have no gaps.
bool is_read_in_place(const Fp8Tensor& x, const at::Tensor& q) {
  const at::Tensor& c = x.codes;
  return c.device() == q.device() && c.dim() == 4 && c.stride(3) == 1 && (c.size(2) == 1 || c.stride(2) == c.size(3));
}

bool is_for_few_rows(const at::Tensor& q, const Fp8Tensor& k, const Fp8Tensor& v) {
  return q.device().type() == c10::kHPU && q.dim() == 4 && q.stride(3) == 1 && !q.is_neg() && is_read_in_place(k, q) &&
         is_read_in_place(v, q) && k.codes.sizes() == v.codes.sizes() && q.size(0) == k.codes.size(0) &&
         q.size(1) == k.codes.size(1) && q.size(3) == k.codes.size(3) &&
         takes_few_rows(q.scalar_type(), q.size(2), k.codes.size(2), q.size(3));
}

kernels::AttentionCodes codes_of(const Fp8Tensor& x) {
  return {.format = format_of(x.codes.scalar_type()), .scale_inv = x.scale_inv, .dialect = x.dialect};
}

/// What scores get, in q's dtype, as PyTorch makes it of what is seen.
at::Tensor added(const at::Tensor& mask, const at::Tensor& q) {
  if (!mask.defined() || mask.scalar_type() != at::kBool) return mask;
  const at::Tensor zero = at::zeros({}, q.options());
  return at::where(mask, zero, zero - std::numeric_limits<double>::infinity());
}

at::Tensor of_few_rows(const at::Tensor& q, const Fp8Tensor& k, const Fp8Tensor& v, const at::Tensor& mask,
                       double scale) {
  OpScope leaf("fp8::attention", q, k.codes, v.codes);
  const at::Tensor y = at::empty_like(q);
  at::Tensor seen;
  if (mask.defined()) seen = mask.to(q.scalar_type()).expand({q.size(0), q.size(1), q.size(2), k.codes.size(2)});
  const at::Tensor own_q = cpu_alias(q), own_k = cpu_alias(k.codes), own_v = cpu_alias(v.codes),
                   own_mask = seen.defined() ? cpu_alias(seen) : at::Tensor();
  kernels::AttentionArgs args;
  args.type = float_type_of(q.scalar_type());
  args.batch = q.size(0), args.heads = q.size(1), args.rows = q.size(2), args.width = q.size(3);
  args.keys = k.codes.size(2);
  args.q = heads_of(q, own_q), args.k = heads_of(k.codes, own_k), args.v = heads_of(v.codes, own_v);
  args.k.row = args.v.row = args.width;
  args.k_codes = codes_of(k), args.v_codes = codes_of(v);
  if (seen.defined()) args.mask = heads_of(seen, own_mask);
  args.scale = static_cast<float>(scale);
  args.y = {cpu_alias(y).mutable_data_ptr(), y.stride(0), y.stride(1), y.stride(2)};
  kernels::attention(args);
  leaf.gives(y);
  return y;
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const Fp8Tensor& k, const Fp8Tensor& v, const at::Tensor& mask,
                     double scale) {
  TORCH_CHECK(k.layout.one() && v.layout.one(), "[attention] expected keys and values with one scale each");
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor scores = added(mask, q);
  const bool last_is_dense = !scores.defined() || scores.dim() == 0 || scores.stride(-1) == 1 || scores.size(-1) == 1;
  if (last_is_dense && is_for_few_rows(q, k, v)) return of_few_rows(q, k, v, scores, scale);
  const std::optional<at::Tensor> given = scores.defined() ? std::optional(scores) : std::nullopt;
  return at::scaled_dot_product_attention(q, dequantize(k, q.scalar_type()), dequantize(v, q.scalar_type()), given, 0.0,
                                          /*is_causal=*/false, scale);
}

}  // namespace fp8::runtime
