// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/attention/attention_ops.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {
namespace {

using at::OptionalIntArrayRef;
using at::Tensor;
using c10::string_view;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;
using TwoTensors = std::tuple<Tensor, Tensor>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;
using FourTensors = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using SixTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <class Signature>
c10::TypedOperatorHandle<Signature> handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

/// Function::apply takes a missing tensor as nullopt, not as an undefined one.
OptionalTensor given(const OptionalTensor& t) { return t.has_value() && t->defined() ? t : std::nullopt; }

bool needs_gradient(std::initializer_list<Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.requires_grad(); });
}

// --- the operators, typed
FourTensors sdpa_recomp_fwd(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& mask,
                            const FusedSdpaOptions& o, bool requires_backward) {
  static const auto op =
      handle<FourTensors(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, double, double, bool, bool,
                         string_view, const OptionalTensor&, string_view)>("hpu::sdpa_recomp_fwd");
  return op.call(q, k, v, mask, o.dropout_p, *o.scale, o.is_causal, requires_backward, o.softmax_mode, o.valid_seq_len,
                 o.seq_padding_type);
}

ThreeTensors sdpa_fwd(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& mask,
                      const FusedSdpaOptions& o) {
  static const auto op =
      handle<ThreeTensors(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, double, double, bool,
                          string_view, const OptionalTensor&, string_view)>("hpu::sdpa_fwd");
  return op.call(q, k, v, mask, o.dropout_p, *o.scale, o.is_causal, o.softmax_mode, o.valid_seq_len,
                 o.seq_padding_type);
}

ThreeTensors sdpa_recomp_bwd(const Tensor& grad, const variable_list& saved, const OptionalTensor& mask,
                             const FusedSdpaOptions& o) {  // saved: q, k, v, out, m, linv, seed
  static const auto op = handle<ThreeTensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                             const OptionalTensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                                             bool, double, double, string_view, const Tensor&)>("hpu::sdpa_recomp_bwd");
  return op.call(grad, saved[0], saved[1], saved[2], mask, saved[4], saved[5], saved[6], o.is_causal, o.dropout_p,
                 *o.scale, o.softmax_mode, saved[3]);
}

ThreeTensors sdpa_bwd(const Tensor& grad, const variable_list& saved, const FusedSdpaOptions& o) {
  static const auto op =  // saved: q, k, v, out, P, dm
      handle<ThreeTensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const OptionalTensor&, bool, double, double, const Tensor&)>("hpu::sdpa_bwd");
  return op.call(grad, saved[0], saved[1], saved[2], saved[4], saved[5], o.is_causal, o.dropout_p, *o.scale, saved[3]);
}

Tensor rotary(const char* name, const Tensor& x, const Tensor& sin, const Tensor& cos, const OptionalTensor& ids,
              int64_t offset, int64_t mode) {
  return handle<Tensor(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, int64_t, int64_t)>(name)
      .call(x, sin, cos, ids, offset, mode);
}

TwoTensors rms_norm(bool fast, const Tensor& x, const Tensor& gamma, double eps) {
  using Op = TwoTensors(const Tensor&, const Tensor&, double);
  static const auto plain = handle<Op>("hpu::rms_norm"), quick = handle<Op>("hpu::rms_norm_fast");
  return (fast ? quick : plain).call(x, gamma, eps);
}

// --- gradients
struct SdpaState : torch::CustomClassHolder {
  FusedSdpaOptions options;
};

struct FusedSdpaFunction : torch::autograd::Function<FusedSdpaFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalTensor& mask, const c10::intrusive_ptr<SdpaState>& state) {
    const FusedSdpaOptions& o = state->options;
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    variable_list saved;
    Tensor out;
    if (o.recompute) {
      auto [result, m, linv, seed] = sdpa_recomp_fwd(q, k, v, mask, o, true);
      out = result;
      saved = {q, k, v, out, m, linv, seed};
    } else {
      auto [result, p, dm] = sdpa_fwd(q, k, v, mask, o);
      out = result;
      saved = {q, k, v, out, p, dm};
    }
    if (mask.has_value()) saved.push_back(*mask);
    context->save_for_backward(saved);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto state = c10::static_intrusive_pointer_cast<SdpaState>(context->saved_data["state"].toCapsule());
    const FusedSdpaOptions& o = state->options;
    ThreeTensors result;
    {
      const at::NoGradGuard no_grad;
      const auto saved = context->get_saved_variables();
      const std::size_t own = o.recompute ? 7 : 6;
      const OptionalTensor mask = saved.size() > own ? OptionalTensor(saved[own]) : std::nullopt;
      const Tensor grad = gradients[0].to(saved[0].scalar_type());
      result = o.recompute ? sdpa_recomp_bwd(grad, saved, mask, o) : sdpa_bwd(grad, saved, o);
    }
    const char* name = "fused_sdpa";
    const auto once = [&](const Tensor& g) { return once_differentiable(g, name, {}, gradients); };
    return {once(std::get<0>(result)), once(std::get<1>(result)), once(std::get<2>(result)), Tensor(), Tensor()};
  }
};

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& gamma, double eps, bool fast) {
    auto [y, inverse] = rms_norm(fast, x, gamma, eps);
    context->saved_data["fast"] = fast;
    context->save_for_backward({x, gamma, inverse});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    TwoTensors result;
    {
      const at::NoGradGuard no_grad;
      using Op = TwoTensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool, int64_t);
      static const auto plain = handle<Op>("hpu::rms_norm_backward"), quick = handle<Op>("hpu::rms_norm_fast_backward");
      const auto saved = context->get_saved_variables();
      auto [dx, dgamma] = (context->saved_data["fast"].toBool() ? quick : plain)
                              .call(gradients[0], saved[0], saved[1], saved[2], true, 0);
      result = {dx.to(saved[0].scalar_type()), dgamma.to(saved[1].scalar_type())};
    }
    const auto once = [&](const Tensor& g) { return once_differentiable(g, "fused_rms_norm", {}, gradients); };
    return {once(std::get<0>(result)), once(std::get<1>(result)), Tensor(), Tensor()};
  }
};

struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& sin, const Tensor& cos,
                        const OptionalTensor& ids, int64_t offset, int64_t mode) {
    context->saved_data["offset"] = offset;
    context->saved_data["mode"] = mode;
    variable_list saved = {sin, cos};
    if (ids.has_value()) saved.push_back(*ids);
    context->save_for_backward(saved);
    return rotary("hpu::rotary_pos_embedding", x, sin, cos, ids, offset, mode);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Tensor dx;
    {
      const at::NoGradGuard no_grad;
      const auto saved = context->get_saved_variables();
      const OptionalTensor ids = saved.size() > 2 ? OptionalTensor(saved[2]) : std::nullopt;
      dx = rotary("hpu::rotary_pos_embedding_backward", gradients[0], saved[0], saved[1], ids,
                  context->saved_data["offset"].toInt(), context->saved_data["mode"].toInt());
    }
    return {once_differentiable(dx, "apply_rotary_pos_emb", {}, gradients),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

// --- grouped queries: [B, H, L, D] with G heads in k becomes [B, G, H/G, L, D], k and v [B, G, 1, S, D]
struct Grouped {
  Tensor q, k, v;
  OptionalTensor mask;
  bool grouped = false;
};

Grouped grouped(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& mask) {
  Grouped g{q, k, v, given(mask)};
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4) return g;
  const std::int64_t heads = q.size(1), groups = k.size(1);
  if (heads == groups || groups == 1) return g;
  TORCH_CHECK(groups > 0 && heads % groups == 0,
              "[fused_sdpa] expected heads of q to be a multiple of those of k, got ", heads, " and ", groups);
  g.grouped = true;
  g.q = q.unflatten(1, {groups, heads / groups});
  g.k = k.unsqueeze(2);
  g.v = v.unsqueeze(2);
  if (g.mask.has_value() && g.mask->dim() == 4) {
    g.mask = g.mask->size(1) == heads ? g.mask->unflatten(1, {groups, heads / groups}) : g.mask->unsqueeze(1);
  } else if (g.mask.has_value() && g.mask->dim() == 3 && g.mask->size(0) == heads) {
    g.mask = g.mask->unflatten(0, {groups, heads / groups});
  }
  return g;
}

/// The rules of the vendor's FusedSDPA, in its words.
void check_options(const FusedSdpaOptions& o, bool requires_backward) {
  TORCH_CHECK(!given(o.valid_seq_len).has_value() || (o.is_causal && !requires_backward && !given(o.mask).has_value()),
              "Valid sequence length is supported only in inference with is_causal(triangular) mask case");
  TORCH_CHECK(!(o.recompute && requires_backward && o.softmax_mode == "fast") || o.is_causal,
              "Optimized softmax mode is supported in recompute training mode only in causal(triangular) mask case");
}

FusedSdpaOptions completed(const FusedSdpaOptions& options, const Tensor& q) {
  FusedSdpaOptions o = options;
  const auto lower = [](std::string& word) {
    for (char& c : word) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  lower(o.softmax_mode);
  lower(o.seq_padding_type);
  const std::int64_t depth = q.dim() > 0 ? q.size(-1) : 0;
  if (!o.scale.has_value()) o.scale = depth > 0 ? 1.0 / std::sqrt(static_cast<double>(depth)) : 1.0;
  return o;
}

}  // namespace

Tensor call_softmax_fp8(const Tensor& x, int64_t dim, const OptionalTensor& input_scale,
                        const OptionalTensor& output_scale, const OptionalTensor& inv_attn_heads,
                        const OptionalTensor& fused_add) {
  static const auto op = handle<Tensor(const Tensor&, int64_t, const OptionalTensor&, const OptionalTensor&,
                                       const OptionalTensor&, const OptionalTensor&)>("hpu::softmax_fp8");
  return op.call(x, dim, input_scale, output_scale, inv_attn_heads, fused_add);
}

Tensor call_sum_fp8(const Tensor& x, OptionalIntArrayRef dim, bool keepdim, std::optional<at::ScalarType> out_dtype) {
  static const auto op =
      handle<Tensor(const Tensor&, OptionalIntArrayRef, bool, std::optional<at::ScalarType>)>("hpu::sum_fp8");
  return op.call(x, dim, keepdim, out_dtype);
}

Tensor fused_sdpa(const Tensor& q, const Tensor& k, const Tensor& v, const FusedSdpaOptions& options) {
  const bool backward = needs_gradient({q, k, v});
  const FusedSdpaOptions o = completed(options, q);
  check_options(o, backward);
  const Grouped g = grouped(q, k, v, o.mask);
  Tensor out;
  if (backward) {
    auto state = c10::make_intrusive<SdpaState>();
    state->options = o;
    state->options.mask.reset();  // it is saved beside the other tensors
    out = FusedSdpaFunction::apply(g.q, g.k, g.v, g.mask, state);
  } else {
    out = o.recompute ? std::get<0>(sdpa_recomp_fwd(g.q, g.k, g.v, g.mask, o, false))
                      : std::get<0>(sdpa_fwd(g.q, g.k, g.v, g.mask, o));
  }
  return g.grouped ? out.flatten(1, 2) : out;
}

Fp8SdpaOutput fp8_fused_sdpa(const Tensor& q, const Tensor& k, const Tensor& v, const FusedSdpaOptions& options,
                             const Fp8SdpaScales& s, bool is_amax_s, bool is_amax_o) {
  TORCH_CHECK(!needs_gradient({q, k, v}), "[fp8_fused_sdpa] has no gradient: detach q, k and v, or call fused_sdpa");
  const FusedSdpaOptions o = completed(options, q);
  check_options(o, false);
  const Grouped g = grouped(q, k, v, o.mask);
  Fp8SdpaOutput r;
  if (o.recompute) {
    static const auto op =
        handle<SixTensors(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, double, double, bool,
                          bool, string_view, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                          const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool, bool,
                          const OptionalTensor&, string_view)>("hpu::fp8_sdpa_recomp_fwd");
    auto [out, m, linv, seed, amax_s, amax_o] =
        op.call(g.q, g.k, g.v, g.mask, o.dropout_p, *o.scale, o.is_causal, false, o.softmax_mode, s.d_q, s.d_k, s.d_v,
                s.q_s, s.q_o, s.d_s, is_amax_s, is_amax_o, o.valid_seq_len, o.seq_padding_type);
    r = {out, amax_s, amax_o};
  } else {
    static const auto op = handle<FourTensors(
        const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, double, double, bool, string_view,
        const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
        const OptionalTensor&, const OptionalTensor&, bool, const OptionalTensor&, string_view)>("hpu::fp8_sdpa_fwd");
    TORCH_CHECK(!is_amax_o, "[fp8_fused_sdpa] expected recompute beside is_amax_o: hpu::fp8_sdpa_fwd has no amax_o");
    auto [out, p, dm, amax_s] =
        op.call(g.q, g.k, g.v, g.mask, o.dropout_p, *o.scale, o.is_causal, o.softmax_mode, s.d_q, s.d_k, s.d_v, s.q_s,
                s.q_o, s.d_s, is_amax_s, o.valid_seq_len, o.seq_padding_type);
    r = {out, amax_s, Tensor()};
  }
  if (g.grouped) r.out = r.out.flatten(1, 2);
  return r;
}

Tensor fused_rms_norm(const Tensor& x, const Tensor& gamma, double eps, bool fast_math) {
  if (needs_gradient({x, gamma})) return RmsNormFunction::apply(x, gamma, eps, fast_math);
  return std::get<0>(rms_norm(fast_math, x, gamma, eps));
}

Tensor apply_rotary_pos_emb(const Tensor& x, const Tensor& cos, const Tensor& sin, const OptionalTensor& position_ids,
                            int64_t offset, RotaryMode mode) {
  const auto code = static_cast<int64_t>(mode);
  if (needs_gradient({x}))
    return RotaryFunction::apply(x, sin.detach(), cos.detach(), given(position_ids), offset, code);
  return rotary("hpu::rotary_pos_embedding", x, sin, cos, position_ids, offset, code);
}

}  // namespace fp8::runtime::ops
