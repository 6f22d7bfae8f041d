// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/own_ops.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "fp8/runtime/dispatch/unboxed.h"
#include "fp8/runtime/leaf/pending_work.h"

namespace fp8::runtime {
namespace {

constexpr std::int64_t kLeastElements = std::int64_t{1} << 19;  // below, the weight may stay in a cache

bool is_plain(const at::Tensor& t, std::int64_t dim) {
  return t.defined() && t.device().type() == c10::kHPU && t.scalar_type() == at::kBFloat16 && t.dim() == dim &&
         t.layout() == at::kStrided && !t.is_neg();
}

/// Rows of contiguous elements that do not overlap.
bool has_rows(const at::Tensor& t) { return t.stride(1) == 1 && (t.size(0) == 1 || t.stride(0) >= t.size(1)); }

const std::uint16_t* bits_of(const at::Tensor& alias) {
  return static_cast<const std::uint16_t*>(alias.const_data_ptr());
}

}  // namespace

std::optional<at::Tensor> few_rows_product(const at::Tensor& input, const at::Tensor& weight_t,
                                           const std::optional<at::Tensor>& bias) {
  if (!is_plain(input, 2) || !is_plain(weight_t, 2) || weight_t.numel() < kLeastElements) return std::nullopt;
  const std::int64_t m = input.size(0), k = input.size(1), n = weight_t.size(1);
  if (m < 1 || m > kernels::kMostGemvRows || weight_t.size(0) != k || weight_t.stride(0) != 1 ||
      weight_t.stride(1) < k || !has_rows(input) || weight_t.device() != input.device())
    return std::nullopt;
  if (bias.has_value() &&
      (!is_plain(*bias, 1) || bias->size(0) != n || bias->stride(0) != 1 || bias->device() != input.device()))
    return std::nullopt;
  LeafScope leaf("aten::mm", input, weight_t, bias);
  at::Tensor y = at::empty({m, n}, input.options());
  const at::Tensor a = cpu_alias(input), w = cpu_alias(weight_t),
                   b = bias.has_value() ? cpu_alias(*bias) : at::Tensor();
  kernels::GemvArgs args;
  args.m = m, args.n = n, args.k = k;
  args.a = bits_of(a), args.a_stride = m == 1 ? k : input.stride(0);
  args.w = bits_of(w), args.w_stride = weight_t.stride(1);
  args.bias = b.defined() ? bits_of(b) : nullptr;
  args.y = static_cast<std::uint16_t*>(cpu_alias(y).mutable_data_ptr()), args.y_stride = n;
  kernels::gemv(args);
  leaf.gives(y);
  return y;
}

std::vector<at::Tensor> few_rows_products(const at::Tensor& x, at::ArrayRef<at::Tensor> weights) {
  if (x.dim() < 2 || !is_plain(x, x.dim()) || !x.is_contiguous() || x.numel() == 0) return {};
  const std::int64_t k = x.size(-1), m = x.numel() / k;
  if (m > kernels::kMostGemvRows) return {};
  for (const at::Tensor& w : weights)
    if (!is_plain(w, 2) || w.numel() < kLeastElements || w.size(1) != k || !has_rows(w) || w.device() != x.device())
      return {};
  std::vector<at::Tensor> results, aliases = {cpu_alias(x)};
  std::vector<kernels::GemvArgs> products(weights.size());
  auto sizes = x.sizes().vec();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sizes.back() = weights[i].size(0);
    results.push_back(at::empty(sizes, x.options()));
    auto& args = products[i];
    args.m = m, args.n = sizes.back(), args.k = k;
    args.a = bits_of(aliases.front()), args.a_stride = k;
    args.w = bits_of(aliases.emplace_back(cpu_alias(weights[i]))), args.w_stride = weights[i].stride(0);
    auto& y = aliases.emplace_back(cpu_alias(results.back()));
    args.y = static_cast<std::uint16_t*>(y.mutable_data_ptr()), args.y_stride = args.n;
  }
  kernels::gemv_together(products);
  return results;
}

bool call_few_rows(bool adds, torch::jit::Stack& stack) {
  std::optional<at::Tensor> y;
  if (adds) {  // (self, mat1, mat2, beta, alpha)
    const auto arguments = torch::jit::last(stack, 5);
    if (!arguments[3].toScalar().equal(1) || !arguments[4].toScalar().equal(1)) return false;
    y = few_rows_product(arguments[1].toTensor(), arguments[2].toTensor(), arguments[0].toTensor());
  } else {
    const auto arguments = torch::jit::last(stack, 2);
    y = few_rows_product(arguments[0].toTensor(), arguments[1].toTensor(), std::nullopt);
  }
  if (!y.has_value()) return false;
  torch::jit::drop(stack, adds ? 5 : 2);
  stack.emplace_back(*std::move(y));
  return true;
}

namespace {

/// The demands of the CPU's kernel on the last two dimensions.
bool fits(const at::Tensor& t) {
  const std::int64_t rows = t.size(-2), columns = t.size(-1), unit = 16 / t.element_size();
  const std::int64_t outer = t.stride(-2), inner = t.stride(-1);
  if (outer == 1 && inner >= std::max<std::int64_t>(1, rows)) return inner % unit == 0;
  return inner == 1 && outer >= std::max<std::int64_t>(1, columns) && outer % unit == 0;
}

/// fp8 is left to the fallback: codes have no layout that makes them values.
bool is_operand(const at::Tensor& t) {
  const auto type = t.scalar_type();
  return (t.dim() == 2 || t.dim() == 3) && t.numel() > 0 &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

/// The values of t in rows that are a multiple of 16 bytes apart.
at::Tensor fitted(const at::Tensor& t) {
  if (fits(t)) return t;
  const std::int64_t unit = 16 / t.element_size();
  auto sizes = t.sizes().vec();
  sizes.back() = (sizes.back() + unit - 1) / unit * unit;
  return at::empty(sizes, t.options()).narrow(-1, 0, t.size(-1)).copy_(t);
}

}  // namespace

bool fit_grouped_mm(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const std::size_t i : {0, 1}) {
    c10::IValue& operand = torch::jit::peek(*stack, i, op.schema().arguments().size());
    if (operand.isTensor() && is_operand(operand.toTensor())) operand = fitted(operand.toTensor());
  }
  return false;
}

namespace {

std::int64_t whole(const c10::Scalar& bound, const char* name) {
  const double value = bound.toDouble();
  TORCH_CHECK(bound.isIntegral(false) || value == static_cast<double>(static_cast<std::int64_t>(value)),
              "[aten::histc] expected a whole ", name, " for a tensor of integers, got ", value);
  return bound.isIntegral(false) ? bound.toLong() : static_cast<std::int64_t>(value);
}

/// The greatest count that `type` holds.
std::int64_t most_of(at::ScalarType type) {
  switch (type) {
    case at::kByte: return std::numeric_limits<std::uint8_t>::max();
    case at::kChar: return std::numeric_limits<std::int8_t>::max();
    case at::kShort: return std::numeric_limits<std::int16_t>::max();
    case at::kInt: return std::numeric_limits<std::int32_t>::max();
    default: return std::numeric_limits<std::int64_t>::max();
  }
}

/// values: int64 on the CPU, contiguous. The counts, likewise.
at::Tensor count(const at::Tensor& values, std::int64_t bins, std::int64_t low, std::int64_t high) {
  const std::int64_t* v = values.const_data_ptr<std::int64_t>();
  const std::int64_t n = values.numel();
  if (low == high && n > 0) {
    const auto [least, most] = std::minmax_element(v, v + n);
    low = *least, high = *most;
  }
  __int128 first = low, last = high;
  if (first == last) --first, ++last;
  at::Tensor counts = at::zeros({bins}, at::kLong);
  std::int64_t* bin = counts.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < n; ++i) {
    if (v[i] < first || v[i] > last) continue;
    const auto place = static_cast<std::int64_t>((v[i] - first) * bins / (last - first));
    ++bin[std::min(place, bins - 1)];
  }
  return counts;
}

}  // namespace

bool histc_of_integers(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t arguments = op.schema().arguments().size();
  const at::Tensor self = torch::jit::peek(*stack, 0, arguments).toTensor();
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return false;
  const LeafScope leaf(op.schema(), torch::jit::last(*stack, arguments));
  const std::int64_t bins = torch::jit::peek(*stack, 1, arguments).toInt();
  const auto low = whole(torch::jit::peek(*stack, 2, arguments).toScalar(), "min");
  const auto high = whole(torch::jit::peek(*stack, 3, arguments).toScalar(), "max");
  TORCH_CHECK(bins >= 1, "[aten::histc] expected bins of 1 or more, got ", bins);
  TORCH_CHECK(low <= high, "[aten::histc] expected min <= max, got ", low, " and ", high);
  const at::Tensor counts = count(cpu_alias(self).to(at::kLong).contiguous(), bins, low, high);
  const std::int64_t most = counts.max().item<std::int64_t>();
  TORCH_CHECK(most <= most_of(self.scalar_type()), "[aten::histc] a bin holds ", most, " elements, more than ",
              self.scalar_type(), " counts; expected a wider dtype");
  at::Tensor out =
      arguments > 4 ? torch::jit::peek(*stack, 4, arguments).toTensor() : at::empty({bins}, self.options());
  if (arguments > 4) {
    TORCH_CHECK(out.scalar_type() == self.scalar_type(), "[aten::histc] expected out of ", self.scalar_type(), ", got ",
                out.scalar_type());
    out.resize_({bins});
  }
  out.copy_(counts);
  torch::jit::drop(*stack, arguments);
  stack->emplace_back(std::move(out));
  return true;
}

namespace {

at::Tensor alias_with_grad(const at::Tensor& t) {
  at::Tensor alias = cpu_alias(t);
  if (t.requires_grad() && !alias.is_inference()) alias.set_requires_grad(true);
  return alias;
}

/// On the host, of these sizes and without memory. torch's tracing has a tensor of sizes alone (FakeTensor), and they
/// may be symbols.
at::Tensor shape_with_grad(const at::Tensor& t) {
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kCPU), nullptr, false);
  at::Tensor shape =
      at::detail::make_tensor<c10::TensorImpl>(std::move(none), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  shape.unsafeGetTensorImpl()->set_sizes_and_strides(t.sym_sizes(), t.sym_strides());
  return shape.set_requires_grad(t.requires_grad());
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
  const c10::impl::ExcludeDispatchKeyGuard unheard(c10::DispatchKey::Fake);  // by recordings: it reads no values
  // In lazy mode operands may have no memory yet, and the choice reads none.
  if (query.key_set().has(c10::DispatchKey::Python) || detail::g_finish_work.load() != nullptr) {
    const c10::impl::ExcludeDispatchKeyGuard untraced(c10::python_ks);
    const auto mask =
        attn_mask.has_value() && attn_mask->defined() ? std::optional(shape_with_grad(*attn_mask)) : std::nullopt;
    return at::_fused_sdp_choice(shape_with_grad(query), shape_with_grad(key), shape_with_grad(value), mask, dropout_p,
                                 is_causal, scale, enable_gqa);
  }
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
