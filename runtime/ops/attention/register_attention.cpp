// SPDX-License-Identifier: Apache-2.0
// The attention family: schemas, and the vendor's argument forms, translated: one table for HPU and Meta. Names,
// argument order and defaults are the vendor's (bridge 1.19; fp8_sdpa_recomp_bwd a later one), down to softmax_modem
// and is_amax_0. The names with _dropout and _non_dropout are the same op; those with _dropout_seed take the seed
// first.

#include "fp8/runtime/ops/attention/attention.h"
#include "fp8/runtime/ops/cast/cast.h"

namespace fp8::runtime::ops {
namespace {

using at::Tensor;
using std::string_view;
using OptionalTensor = std::optional<Tensor>;

// --- softmax_fp8: scales as tensors or floats
/// The vendor takes f32 tensors only.
Scale softmax_scale(const OptionalTensor& scale) {
  if (!scale.has_value() || !scale->defined()) return {};
  TORCH_CHECK(scale->scalar_type() == at::kFloat, "Input scale must be of dtype: ", at::kFloat);
  if (scale->is_meta()) return Scale{{1.0f}, {}};
  return scale_of(scale, std::nullopt);
}
Scale softmax_scale(double scale) { return scale_of(scale, std::nullopt); }

template <Run run, typename ScaleArgument, typename HeadsArgument>
Tensor softmax(const Tensor& input, int64_t dim, ScaleArgument input_scale, ScaleArgument output_scale,
               HeadsArgument inv_attn_heads, const OptionalTensor& fused_add) {
  const SoftmaxScales scales{softmax_scale(input_scale), softmax_scale(output_scale), softmax_scale(inv_attn_heads)};
  return (run == Run::meta ? softmax_fp8_meta : softmax_fp8)(input, dim, scales, fused_add);
}

// --- sdpa: scales as tensors (an empty one is none) or floats (0 is none)
Scale sdpa_scale(const OptionalTensor& scale) {
  if (!scale.has_value() || !scale->defined() || scale->numel() == 0) return {};
  if (scale->is_meta()) return Scale{std::vector<float>(static_cast<std::size_t>(scale->numel()), 1.0f), {}};
  return scale_of(scale, std::nullopt);
}
Scale sdpa_scale(double scale) { return scale == 0 ? Scale{} : scale_of(scale, std::nullopt); }

template <typename ScaleArgument>
SdpaScales forward_scales(ScaleArgument d_q, ScaleArgument d_k, ScaleArgument d_v, ScaleArgument q_s, ScaleArgument q_o,
                          ScaleArgument d_s) {
  SdpaScales s;
  s.d_q = sdpa_scale(d_q);
  s.d_k = sdpa_scale(d_k);
  s.d_v = sdpa_scale(d_v);
  s.q_s = sdpa_scale(q_s);
  s.q_o = sdpa_scale(q_o);
  s.d_s = sdpa_scale(d_s);
  return s;
}

template <Run run>
SdpaResult fwd(const OptionalTensor& seed, const Tensor& q, const Tensor& k, const Tensor& v,
               const OptionalTensor& mask, double p, double scale, bool is_causal, string_view softmax_mode,
               const OptionalTensor& valid_seq_len, string_view padding) {
  auto [out, probabilities, dm, unused] =
      sdpa_forward("hpu::sdpa_fwd", run, q, k, v,
                   {mask, p, scale, is_causal, softmax_mode, valid_seq_len, padding, seed}, {}, false);
  return {out, probabilities, dm};
}

template <Run run>
SdpaRecompResult recomp(const OptionalTensor& seed, const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalTensor& mask, double p, double scale, bool is_causal, bool requires_backward,
                        string_view softmax_mode, const OptionalTensor& valid_seq_len, string_view padding) {
  auto [out, m, linv, seed_out, amax_s, amax_o] = sdpa_recomp_forward(
      "hpu::sdpa_recomp_fwd", run, q, k, v, {mask, p, scale, is_causal, softmax_mode, valid_seq_len, padding, seed}, {},
      requires_backward, false, false);
  return {out, m, linv, seed_out};
}

template <Run run>
SdpaGradients bwd(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& probabilities,
                  const OptionalTensor& dm, bool is_causal, double p, double scale, const Tensor& fwd_out) {
  auto [dq, dk, dv, unused] = sdpa_backward("hpu::sdpa_bwd", run, grad, q, k, v, {probabilities, {}, {}, dm, {}, {}},
                                            is_causal, p, scale, {}, false, fwd_out, q.scalar_type());
  return {dq, dk, dv};
}
template <Run run>
SdpaGradients recomp_bwd(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                         const OptionalTensor& mask, const Tensor& m, const Tensor& linv, const OptionalTensor& seed,
                         bool is_causal, double p, double scale, string_view, const Tensor& fwd_out) {
  auto [dq, dk, dv, unused] = sdpa_backward("hpu::sdpa_recomp_bwd", run, grad, q, k, v, {{}, m, linv, {}, seed, mask},
                                            is_causal, p, scale, {}, false, fwd_out, q.scalar_type());
  return {dq, dk, dv};
}

// --- fp8 attention
#define FP8_SDPA_SCALES \
  ScaleArgument d_q, ScaleArgument d_k, ScaleArgument d_v, ScaleArgument q_s, ScaleArgument q_o, ScaleArgument d_s

template <Run run, typename ScaleArgument>
Fp8SdpaResult fp8_fwd(const OptionalTensor& seed, const Tensor& q, const Tensor& k, const Tensor& v,
                      const OptionalTensor& mask, double p, double scale, bool is_causal, string_view softmax_mode,
                      FP8_SDPA_SCALES, bool is_amax_s, const OptionalTensor& valid_seq_len, string_view padding) {
  return sdpa_forward("hpu::fp8_sdpa_fwd", run, q, k, v,
                      {mask, p, scale, is_causal, softmax_mode, valid_seq_len, padding, seed},
                      forward_scales<ScaleArgument>(d_q, d_k, d_v, q_s, q_o, d_s), is_amax_s);
}

template <Run run, typename ScaleArgument>
Fp8SdpaRecompResult fp8_recomp(const OptionalTensor& seed, const Tensor& q, const Tensor& k, const Tensor& v,
                               const OptionalTensor& mask, double p, double scale, bool is_causal,
                               bool requires_backward, string_view softmax_mode, FP8_SDPA_SCALES, bool is_amax_s,
                               bool is_amax_o, const OptionalTensor& valid_seq_len, string_view padding) {
  return sdpa_recomp_forward(
      "hpu::fp8_sdpa_recomp_fwd", run, q, k, v, {mask, p, scale, is_causal, softmax_mode, valid_seq_len, padding, seed},
      forward_scales<ScaleArgument>(d_q, d_k, d_v, q_s, q_o, d_s), requires_backward, is_amax_s, is_amax_o);
}
#undef FP8_SDPA_SCALES

SdpaScales backward_scales(const OptionalTensor& d_q, const OptionalTensor& d_k, const OptionalTensor& d_v,
                           const OptionalTensor& d_s, const OptionalTensor& d_do, const OptionalTensor& d_ds,
                           const OptionalTensor& q_s, const OptionalTensor& q_ds) {
  SdpaScales s = forward_scales<const OptionalTensor&>(d_q, d_k, d_v, q_s, std::nullopt, d_s);
  s.d_do = sdpa_scale(d_do);
  s.d_ds = sdpa_scale(d_ds);
  s.q_ds = sdpa_scale(q_ds);
  return s;
}

template <Run run>
Fp8SdpaGradients fp8_bwd(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& probabilities, const OptionalTensor& dm, bool is_causal, double p, double scale,
                         const OptionalTensor& d_q, const OptionalTensor& d_k, const OptionalTensor& d_v,
                         const OptionalTensor& d_s, const OptionalTensor& d_do, const OptionalTensor& d_ds,
                         const OptionalTensor& q_s, const OptionalTensor& q_ds, bool is_amax_ds,
                         const Tensor& fwd_out) {
  return sdpa_backward("hpu::fp8_sdpa_bwd", run, grad, q, k, v, {probabilities, {}, {}, dm, {}, {}}, is_causal, p,
                       scale, backward_scales(d_q, d_k, d_v, d_s, d_do, d_ds, q_s, q_ds), is_amax_ds, fwd_out,
                       at::kBFloat16);
}
template <Run run>
Fp8SdpaGradients fp8_recomp_bwd(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                const OptionalTensor& mask, const Tensor& m, const Tensor& linv,
                                const OptionalTensor& seed, bool is_causal, double p, double scale, string_view,
                                const OptionalTensor& d_q, const OptionalTensor& d_k, const OptionalTensor& d_v,
                                const OptionalTensor& d_s, const OptionalTensor& d_do, const OptionalTensor& d_ds,
                                const OptionalTensor& q_s, const OptionalTensor& q_ds, bool is_amax_ds,
                                const Tensor& fwd_out) {
  return sdpa_backward("hpu::fp8_sdpa_recomp_bwd", run, grad, q, k, v, {{}, m, linv, {}, seed, mask}, is_causal, p,
                       scale, backward_scales(d_q, d_k, d_v, d_s, d_do, d_ds, q_s, q_ds), is_amax_ds, fwd_out,
                       at::kBFloat16);
}

// --- position embedding
template <Run run, bool backward>
Tensor rotary(const Tensor& input, const Tensor& sin, const Tensor& cos, const OptionalTensor& position_ids,
              int64_t offset, int64_t mode) {
  if constexpr (run == Run::meta) return rotary_pos_embedding_meta(input, sin, cos, position_ids, offset, mode);
  return rotary_pos_embedding(input, sin, cos, position_ids, offset, mode, backward);
}

using T = const OptionalTensor&;

/// Two forms of a function of (seed or none, arguments): with the seed as the first argument, and without one.
template <auto function>
struct Forms;
template <class R, class... A, R (*function)(const OptionalTensor&, A...)>
struct Forms<function> {
  static R plain(A... arguments) { return function({}, arguments...); }
  static R seed(const Tensor& seed, A... arguments) { return function(seed, arguments...); }
};

/// Library: an Edge, or torch's own.
template <Run run, class Library>
void register_all(Library& m) {
  m.impl("softmax_fp8", &softmax<run, T, T>);
  m.impl("softmax_fp8.Scalar_scales", &softmax<run, double, T>);
  m.impl("softmax_fp8.Scalar", &softmax<run, double, double>);
  for (const char* form : {"", "_dropout", "_non_dropout"}) {
    const std::string tail = form;
    m.impl(("sdpa_fwd" + tail).c_str(), &Forms<&fwd<run>>::plain);
    m.impl(("sdpa_recomp_fwd" + tail).c_str(), &Forms<&recomp<run>>::plain);
    m.impl(("fp8_sdpa_fwd" + tail).c_str(), &Forms<&fp8_fwd<run, T>>::plain);
    m.impl(("fp8_sdpa_recomp_fwd" + tail).c_str(), &Forms<&fp8_recomp<run, T>>::plain);
    m.impl(("fp8_sdpa_recomp_fwd" + tail + ".scalar").c_str(), &Forms<&fp8_recomp<run, double>>::plain);
  }
  m.impl("sdpa_fwd_dropout_seed", &Forms<&fwd<run>>::seed);
  m.impl("sdpa_recomp_fwd_dropout_seed", &Forms<&recomp<run>>::seed);
  m.impl("fp8_sdpa_fwd_dropout_seed", &Forms<&fp8_fwd<run, T>>::seed);
  m.impl("fp8_sdpa_recomp_fwd_dropout_seed", &Forms<&fp8_recomp<run, T>>::seed);
  m.impl("fp8_sdpa_recomp_fwd_dropout_seed.scalar", &Forms<&fp8_recomp<run, double>>::seed);
  m.impl("sdpa_bwd", &bwd<run>);
  m.impl("sdpa_recomp_bwd", &recomp_bwd<run>);
  m.impl("fp8_sdpa_bwd", &fp8_bwd<run>);
  m.impl("fp8_sdpa_recomp_bwd", &fp8_recomp_bwd<run>);
  m.impl("rotary_pos_embedding", &rotary<run, false>);
  m.impl("rotary_pos_embedding_backward", &rotary<run, true>);
  for (const char* name : {"rms_norm", "rms_norm_fast"}) {
    m.impl(name, run == Run::meta ? &rms_norm_meta : &rms_norm);
    m.impl((std::string(name) + "_backward").c_str(), run == Run::meta ? &rms_norm_backward_meta : &rms_norm_backward);
  }
}

/// hpu::[fp8_]sdpa_[recomp_]fwd<form>[.scalar]. The forms differ in the seed, which comes first; those in fp8 have
/// scales, as tensors or floats, and the amax of what they round.
std::string sdpa_schema(bool recomp, bool fp8, const std::string& form, bool scalar) {
  const bool seed = form == "_dropout_seed";
  std::string schema = std::string(fp8 ? "fp8_" : "") + "sdpa_" + (recomp ? "recomp_" : "") + "fwd" + form +
                       (scalar ? ".scalar(" : "(") + (seed ? "Tensor seed, " : "") +
                       "Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool is_causal, ";
  if (recomp) schema += "bool requires_backward, ";
  schema += recomp && !fp8 && form == "_non_dropout" ? "str softmax_modem, " : "str softmax_mode, ";
  if (fp8) {
    for (const char* name : {"d_scale_q", "d_scale_k", "d_scale_v", "q_scale_s", "q_scale_o", "d_scale_s"})
      schema += std::string(scalar ? "float " : "Tensor? ") + name + ", ";
    schema += "bool is_amax_s, ";
    if (recomp) schema += seed ? "bool is_amax_o, " : "bool is_amax_0, ";
  }
  schema += "Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor";
  const int more = recomp ? (fp8 ? 3 : 1) : (fp8 ? 1 : 0);
  for (int i = 0; i < more; ++i) schema += ", Tensor";
  return schema + ")";
}

}  // namespace

FP8_LIBRARY_FRAGMENT(hpu, m) {
  // --- softmax
  define(m, R"(
    softmax_fp8(Tensor input, int dim, Tensor? input_scale=None, Tensor? output_scale=None, Tensor?
        inv_attn_heads=None, Tensor? fused_add=None) -> Tensor;
    softmax_fp8.Scalar_scales(Tensor input, int dim, float input_scale, float output_scale, Tensor?
        inv_attn_heads=None, Tensor? fused_add=None) -> Tensor;
    softmax_fp8.Scalar(Tensor input, int dim, float input_scale, float output_scale, float inv_attn_heads, Tensor?
        fused_add=None) -> Tensor;)");

  // --- attention
  for (const bool recomp : {false, true}) {
    for (const bool fp8 : {false, true}) {
      for (const char* form : {"", "_dropout", "_non_dropout", "_dropout_seed"}) {
        m.def(sdpa_schema(recomp, fp8, form, /*scalar=*/false).c_str());
        if (recomp && fp8) m.def(sdpa_schema(recomp, fp8, form, /*scalar=*/true).c_str());
      }
    }
  }
  define(m, R"(
    sdpa_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor P, Tensor? dm, bool is_causal, float p, float scale,
        Tensor fwd_out) -> (Tensor, Tensor, Tensor);
    sdpa_recomp_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, Tensor m, Tensor linv, Tensor?
        seed, bool is_causal, float p, float scale, str softmax_mode, Tensor fwd_out) -> (Tensor, Tensor, Tensor);
    fp8_sdpa_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor P, Tensor? dm, bool is_causal, float p, float
        scale, Tensor? d_scale_q, Tensor? d_scale_k, Tensor? d_scale_v, Tensor? d_scale_s, Tensor? d_scale_do, Tensor?
        d_scale_ds, Tensor? q_scale_s, Tensor? q_scale_ds, bool is_amax_ds, Tensor fwd_out) -> (Tensor, Tensor,
        Tensor, Tensor);
    fp8_sdpa_recomp_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, Tensor m, Tensor linv,
        Tensor? seed, bool is_causal, float p, float scale, str softmax_mode, Tensor? d_scale_q, Tensor? d_scale_k,
        Tensor? d_scale_v, Tensor? d_scale_s, Tensor? d_scale_do, Tensor? d_scale_ds, Tensor? q_scale_s, Tensor?
        q_scale_ds, bool is_amax_ds, Tensor fwd_out) -> (Tensor, Tensor, Tensor, Tensor);)");

  // --- position embedding and normalization
  define(m, R"(
    rotary_pos_embedding(Tensor input, Tensor sin, Tensor cos, Tensor? position_ids, int offset, int mode) -> Tensor;
    rotary_pos_embedding_backward(Tensor grad_in, Tensor sin, Tensor cos, Tensor? position_ids, int offset, int mode)
        -> Tensor;
    rms_norm(Tensor data_in, Tensor gamma, float epsilon) -> (Tensor, Tensor);
    rms_norm_backward(Tensor grad_in, Tensor data_in, Tensor gamma, Tensor inverse_rms, bool use_stages, int bwd_mode)
        -> (Tensor, Tensor);
    rms_norm_fast(Tensor data_in, Tensor gamma, float epsilon) -> (Tensor, Tensor);
    rms_norm_fast_backward(Tensor grad_in, Tensor data_in, Tensor gamma, Tensor inverse_rms, bool use_stages, int
        bwd_mode) -> (Tensor, Tensor);)");
}

FP8_LIBRARY_IMPL(hpu, HPU, m) {
  Edge edge(m, "hpu");
  register_all<Run::real>(edge);
}
FP8_LIBRARY_IMPL(hpu, Meta, m) { register_all<Run::meta>(m); }

}  // namespace fp8::runtime::ops
