// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/sdpa.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/dispatch/call_alias.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/unboxed.h"
#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

at::Tensor alias_with_grad(const at::Tensor& t) {
  at::Tensor alias = cpu_alias(t);
  if (t.requires_grad() && !alias.is_inference()) alias.set_requires_grad(true);
  return alias;
}

constexpr std::int64_t kLeastKeys = 64;  // below, a call's overhead takes the time, not its kernel

using Flash = at::_ops::_scaled_dot_product_flash_attention_for_cpu;

/// The arguments of _scaled_dot_product_flash_attention_for_cpu.
struct FlashCall {
  at::Tensor q, k, v;
  bool plain;  ///< no dropout, not causal
  at::Tensor mask;
  std::optional<double> scale;
};

/// [B, H, L, E] of the call's dtype on its device, in rows that our kernels read, and of no gradient.
bool has_heads(const at::Tensor& t, const at::Tensor& q) {
  return t.dim() == 4 && t.scalar_type() == q.scalar_type() && t.device() == q.device() &&
         t.device().type() == c10::kHPU && t.layout() == at::kStrided && !t.is_neg() &&
         (t.stride(3) == 1 || t.size(3) == 1) && !(t.requires_grad() && at::GradMode::is_enabled());
}

bool is_for_few_rows(const FlashCall& call) {
  if (!call.plain) return false;
  for (const at::Tensor* t : {&call.q, &call.k, &call.v})
    if (!has_heads(*t, call.q)) return false;
  const std::int64_t rows = call.q.size(2), keys = call.k.size(2), width = call.q.size(3);
  if (!takes_few_rows(call.q.scalar_type(), rows, keys, width)) return false;
  const std::int64_t key_sizes[] = {call.q.size(0), call.q.size(1), keys, width};
  if (call.k.sizes() != at::IntArrayRef(key_sizes) || call.v.sizes() != at::IntArrayRef(key_sizes)) return false;
  if (!call.mask.defined()) return true;
  const std::int64_t mask_sizes[] = {call.q.size(0), call.q.size(1), rows, keys};
  return has_heads(call.mask, call.q) && call.mask.size(3) == keys &&
         at::is_expandable_to(call.mask.sizes(), at::IntArrayRef(mask_sizes));
}

/// Output [B, H, L, E], in memory as q, and logsumexp [B, H, L], in memory [B, L, H]: as PyTorch has them.
std::tuple<at::Tensor, at::Tensor> few_rows_attention(const FlashCall& call) {
  const std::int64_t b = call.q.size(0), h = call.q.size(1), l = call.q.size(2), e = call.q.size(3);
  const at::Tensor y = at::empty_like(call.q), lse = at::empty({b, l, h}, y.options().dtype(at::kFloat));
  const at::Tensor q = cpu_alias(call.q), k = cpu_alias(call.k), v = cpu_alias(call.v),
                   mask = call.mask.defined() ? cpu_alias(call.mask) : at::Tensor();
  kernels::AttentionArgs args;
  const auto type = call.q.scalar_type();
  args.type = type == at::kFloat  ? kernels::FloatType::F32
              : type == at::kHalf ? kernels::FloatType::F16
                                  : kernels::FloatType::BF16;
  args.batch = b, args.heads = h, args.rows = l, args.keys = call.k.size(2), args.width = e;
  args.q = heads_of(call.q, q), args.k = heads_of(call.k, k), args.v = heads_of(call.v, v);
  if (mask.defined()) args.mask = heads_of(call.mask, mask);
  args.scale = static_cast<float>(call.scale.value_or(1 / std::sqrt(static_cast<double>(e))));
  args.y = {cpu_alias(y).mutable_data_ptr(), y.stride(0), y.stride(1), y.stride(2)};
  args.logsumexp = {static_cast<float*>(cpu_alias(lse).mutable_data_ptr()), l * h, 1, h};
  kernels::attention(args);
  return {y, lse.transpose(1, 2)};
}

}  // namespace

int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  const auto mask = attn_mask.has_value() && attn_mask->defined()
                        ? std::optional<at::Tensor>(alias_with_grad(*attn_mask))
                        : std::nullopt;
  if (!query.requires_grad() && !key.requires_grad() && !value.requires_grad()) {
    CallAlias q(query), k(key), v(value);
    return at::_fused_sdp_choice(q.get(), k.get(), v.get(), mask, dropout_p, is_causal, scale, enable_gqa);
  }
  return at::_fused_sdp_choice(alias_with_grad(query), alias_with_grad(key), alias_with_grad(value), mask, dropout_p,
                               is_causal, scale, enable_gqa);
}

bool takes_few_rows(at::ScalarType dtype, std::int64_t rows, std::int64_t keys, std::int64_t width) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kFloat) return false;
  return rows <= kernels::kMostAttentionRows && keys >= kLeastKeys && width > 0 &&
         width <= kernels::kMostAttentionWidth && width % (dtype == at::kFloat ? 4 : 8) == 0;
}

kernels::HeadsOf<const void> heads_of(const at::Tensor& t, const at::Tensor& alias) {
  const auto stride = [&](std::int64_t dim) { return t.size(dim) == 1 ? 0 : t.stride(dim); };
  return {alias.const_data_ptr(), stride(0), stride(1), stride(2)};
}

std::tuple<at::Tensor, at::Tensor> flash_attention(c10::DispatchKeySet keys, const at::Tensor& query,
                                                   const at::Tensor& key, const at::Tensor& value, double dropout_p,
                                                   bool is_causal, const std::optional<at::Tensor>& attn_mask,
                                                   std::optional<double> scale) {
  at::Tensor mask = attn_mask.value_or(at::Tensor());
  if (mask.defined() && mask.dim() == 2) mask = mask.unsqueeze(0).unsqueeze(0);
  const FlashCall call{query, key, value, dropout_p == 0 && !is_causal, mask, scale};
  if (!is_for_few_rows(call))
    return Unboxed<Flash, CpuFallback>::call(keys, query, key, value, dropout_p, is_causal, attn_mask, scale);
  LeafScope leaf(Flash::name, query, key, value);
  auto results = few_rows_attention(call);
  leaf.gives(std::get<0>(results));
  return results;
}

}  // namespace fp8::runtime
