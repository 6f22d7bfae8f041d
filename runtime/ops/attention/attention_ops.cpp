// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/attention/attention_ops.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {
namespace {

using at::OptionalIntArrayRef;
using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;
using TwoTensors = std::tuple<Tensor, Tensor>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;
using FourTensors = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using SixTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

/// Function::apply takes a missing tensor as nullopt, not as an undefined one.
OptionalTensor given(const OptionalTensor& t) { return t.has_value() && t->defined() ? t : std::nullopt; }

bool needs_gradient(std::initializer_list<Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.requires_grad(); });
}

// --- the operators, typed
FourTensors sdpa_recomp_fwd(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& mask,
                            const FusedSdpaOptions& o, bool requires_backward) {
  return call_op<"hpu::sdpa_recomp_fwd", FourTensors>(q, k, v, mask, o.dropout_p, *o.scale, o.is_causal,
                                                      requires_backward, o.softmax_mode, o.valid_seq_len,
                                                      o.seq_padding_type);
}

ThreeTensors sdpa_fwd(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& mask,
                      const FusedSdpaOptions& o) {
  return call_op<"hpu::sdpa_fwd", ThreeTensors>(q, k, v, mask, o.dropout_p, *o.scale, o.is_causal, o.softmax_mode,
                                                o.valid_seq_len, o.seq_padding_type);
}

/// saved: q, k, v, out, m, linv, seed.
ThreeTensors sdpa_recomp_bwd(const Tensor& grad, const variable_list& saved, const OptionalTensor& mask,
                             const FusedSdpaOptions& o) {
  return call_op<"hpu::sdpa_recomp_bwd", ThreeTensors>(grad, saved[0], saved[1], saved[2], mask, saved[4], saved[5],
                                                       OptionalTensor(saved[6]), o.is_causal, o.dropout_p, *o.scale,
                                                       o.softmax_mode, saved[3]);
}

/// saved: q, k, v, out, P, dm.
ThreeTensors sdpa_bwd(const Tensor& grad, const variable_list& saved, const FusedSdpaOptions& o) {
  return call_op<"hpu::sdpa_bwd", ThreeTensors>(grad, saved[0], saved[1], saved[2], saved[4], OptionalTensor(saved[5]),
                                                o.is_causal, o.dropout_p, *o.scale, saved[3]);
}

TwoTensors rms_norm(bool fast, const Tensor& x, const Tensor& gamma, double eps) {
  return fast ? call_op<"hpu::rms_norm_fast", TwoTensors>(x, gamma, eps)
              : call_op<"hpu::rms_norm", TwoTensors>(x, gamma, eps);
}

TwoTensors rms_norm_backward(bool fast, const Tensor& grad, const variable_list& saved) {
  const auto call = [&]<OpName name>() {
    return call_op<name, TwoTensors>(grad, saved[0], saved[1], saved[2], true, int64_t{0});
  };
  return fast ? call.operator()<"hpu::rms_norm_fast_backward">() : call.operator()<"hpu::rms_norm_backward">();
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
      const auto saved = context->get_saved_variables();
      auto [dx, dgamma] = rms_norm_backward(context->saved_data["fast"].toBool(), gradients[0], saved);
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
    return call_op<"hpu::rotary_pos_embedding", Tensor>(x, sin, cos, ids, offset, mode);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Tensor dx;
    {
      const at::NoGradGuard no_grad;
      const auto saved = context->get_saved_variables();
      const OptionalTensor ids = saved.size() > 2 ? OptionalTensor(saved[2]) : std::nullopt;
      dx = call_op<"hpu::rotary_pos_embedding_backward", Tensor>(gradients[0], saved[0], saved[1], ids,
                                                                 context->saved_data["offset"].toInt(),
                                                                 context->saved_data["mode"].toInt());
    }
    variable_list result(6);
    result[0] = once_differentiable(dx, "apply_rotary_pos_emb", {}, gradients);
    return result;
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
  o.softmax_mode = io::lower(std::move(o.softmax_mode));
  o.seq_padding_type = io::lower(std::move(o.seq_padding_type));
  const std::int64_t depth = q.dim() > 0 ? q.size(-1) : 0;
  if (!o.scale.has_value()) o.scale = depth > 0 ? 1.0 / std::sqrt(static_cast<double>(depth)) : 1.0;
  return o;
}

}  // namespace

Tensor call_softmax_fp8(const Tensor& x, int64_t dim, const OptionalTensor& input_scale,
                        const OptionalTensor& output_scale, const OptionalTensor& inv_attn_heads,
                        const OptionalTensor& fused_add) {
  return call_op<"hpu::softmax_fp8", Tensor>(x, dim, input_scale, output_scale, inv_attn_heads, fused_add);
}

Tensor call_sum_fp8(const Tensor& x, OptionalIntArrayRef dim, bool keepdim, std::optional<at::ScalarType> out_dtype) {
  return call_op<"hpu::sum_fp8", Tensor>(x, dim, keepdim, out_dtype);
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
    auto [out, m, linv, seed, amax_s, amax_o] = call_op<"hpu::fp8_sdpa_recomp_fwd", SixTensors>(
        g.q, g.k, g.v, g.mask, o.dropout_p, *o.scale, o.is_causal, false, o.softmax_mode, s.d_q, s.d_k, s.d_v, s.q_s,
        s.q_o, s.d_s, is_amax_s, is_amax_o, o.valid_seq_len, o.seq_padding_type);
    r = {out, amax_s, amax_o};
  } else {
    TORCH_CHECK(!is_amax_o, "[fp8_fused_sdpa] expected recompute beside is_amax_o: hpu::fp8_sdpa_fwd has no amax_o");
    auto [out, p, dm, amax_s] = call_op<"hpu::fp8_sdpa_fwd", FourTensors>(
        g.q, g.k, g.v, g.mask, o.dropout_p, *o.scale, o.is_causal, o.softmax_mode, s.d_q, s.d_k, s.d_v, s.q_s, s.q_o,
        s.d_s, is_amax_s, o.valid_seq_len, o.seq_padding_type);
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
  return call_op<"hpu::rotary_pos_embedding", Tensor>(x, sin, cos, position_ids, offset, code);
}

}  // namespace fp8::runtime::ops
