// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/attention/attention.h"

namespace fp8::runtime::ops {
namespace {

/// fp8 (either format each) or one high-precision dtype for all; scales only beside fp8.
void check_dtypes(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const SdpaScales& scales) {
  const bool fp8 = is_fp8(q.scalar_type());
  const bool fit = fp8 ? is_fp8(k.scalar_type()) && is_fp8(v.scalar_type())
                       : is_high_precision(q.scalar_type()) && k.scalar_type() == q.scalar_type() &&
                             v.scalar_type() == q.scalar_type();
  TORCH_CHECK(fit, "[", op, "] expected q, k and v all of float8 or all of one dtype of Float, BFloat16, Half, got ",
              q.scalar_type(), ", ", k.scalar_type(), " and ", v.scalar_type());
  TORCH_CHECK(k.device() == q.device() && v.device() == q.device(), "[", op,
              "] expected q, k and v on one device, got ", q.device(), ", ", k.device(), " and ", v.device());
  const std::pair<const char*, const Scale&> all[] = {
      {"d_scale_q", scales.d_q}, {"d_scale_k", scales.d_k},   {"d_scale_v", scales.d_v},
      {"d_scale_s", scales.d_s}, {"d_scale_do", scales.d_do}, {"d_scale_ds", scales.d_ds},
      {"q_scale_s", scales.q_s}, {"q_scale_o", scales.q_o},   {"q_scale_ds", scales.q_ds}};
  for (const auto& [name, scale] : all) {
    TORCH_CHECK(scale.values.size() <= 1, "[", op, "] expected ", name, " of one element, got ", scale.values.size());
    TORCH_CHECK(scale.none() || fp8, "[", op, "] expected q, k and v of dtype float8 beside ", name, ", got ",
                q.scalar_type());
  }
}

double value_or(const Scale& scale, double otherwise) { return scale.none() ? otherwise : scale.values[0]; }
/// 1 / q_scale where no d_scale is given.
double undo(const Scale& d_scale, const Scale& q_scale) { return value_or(d_scale, 1 / value_or(q_scale, 1)); }

std::int64_t dropout_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return static_cast<std::int32_t>(generator.get<at::CPUGeneratorImpl>()->random() & 0x7FFFFFFF);
}

/// The source of the dropout's seed when none is given.
enum class Seed { drawn, required, unused };

std::int64_t seed_of(const char* op, double p, const std::optional<at::Tensor>& seed, Seed use) {
  if (!(p > 0) || use == Seed::unused) return 0;
  if (!seed.has_value() || !seed->defined()) {
    TORCH_CHECK(use == Seed::drawn, "[", op, "] expected a seed for dropout, got none");
    return dropout_seed();
  }
  const auto type = seed->scalar_type();
  TORCH_CHECK(seed->numel() == 1 && (type == at::kInt || type == at::kLong), "[", op,
              "] expected a seed of one Int or Long element, got ", seed->sizes(), " of ", type);
  const at::Tensor host = cpu_alias(seed->detach());
  return type == at::kInt ? *host.const_data_ptr<std::int32_t>() : *host.const_data_ptr<std::int64_t>();
}

at::Tensor dense(const at::Tensor& t) {
  const at::Tensor values = t.detach();
  if (values.is_contiguous()) return values;
  const auto type = values.scalar_type();
  return is_fp8(type) ? values.view(at::kByte).contiguous().view(type) : values.contiguous();
}

kernels::Dialect dialect_for(const char* op, const at::Tensor& q) {
  return is_fp8(q.scalar_type()) ? device_dialect(op) : kernels::Dialect::ocp;
}

AttentionInputs inputs_of(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const SdpaOptions& o, const SdpaScales& scales, Seed use, std::int64_t* seed) {
  const Heads heads = heads_of(op, q, k, v);
  *seed = seed_of(op, o.p, o.seed, use);
  return AttentionInputs{heads,
                         dense(q),
                         dense(k),
                         dense(v),
                         Visibility(op, heads, o.is_causal, o.valid_seq_len, o.seq_padding_type),
                         MaskReader(op, heads, o.mask),
                         Dropout(op, o.p, *seed),
                         static_cast<float>(o.scale * value_or(scales.d_q, 1) * value_or(scales.d_k, 1)),
                         reading()};
}

ForwardOptions forward_options(const char* op, const AttentionInputs& in, const SdpaScales& scales) {
  ForwardOptions options;
  options.dialect = dialect_for(op, in.q);
  options.p_scale = static_cast<float>(value_or(scales.q_s, 1));
  options.o_scale = static_cast<float>(value_or(scales.q_o, 1));
  options.value_factor =
      static_cast<float>(value_or(scales.d_v, 1) * undo(scales.d_s, scales.q_s) * in.dropout.scale());
  return options;
}

at::ScalarType out_dtype(const at::Tensor& q, const SdpaScales& scales) {
  return is_fp8(q.scalar_type()) && scales.q_o.none() ? at::kBFloat16 : q.scalar_type();
}

at::Tensor zero_one(const at::Tensor& like, at::ScalarType dtype) {
  return at::zeros({1}, like.options().dtype(dtype));
}

void check_p(const char* op, double p) {
  TORCH_CHECK(p >= 0 && p <= 1, "[", op, "] expected a dropout probability from 0 to 1, got ", p);
}

}  // namespace

Fp8SdpaResult sdpa_forward(const char* op, Run run, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const SdpaOptions& o, const SdpaScales& scales, bool is_amax_s) {
  check_dtypes(op, q, k, v, scales);
  check_p(op, o.p);
  const Heads heads = heads_of(op, q, k, v);
  std::optional<LeafScope> leaf;  // before the zeros that stand for what is not wanted
  if (run != Run::meta) leaf.emplace(op, q, k, v);
  const auto options = q.options();
  const auto p_sizes = heads.sizes(heads.queries, heads.keys);
  const at::Tensor out = at::empty(heads.sizes(heads.queries, heads.value_depth), options.dtype(out_dtype(q, scales))),
                   p = at::empty(p_sizes, options),
                   dm = o.p > 0 ? at::empty(p_sizes, options.dtype(at::kChar)) : zero_one(q, at::kChar),
                   amax_s = zero_one(q, at::kFloat);
  if (run == Run::meta) return {out, p, dm, amax_s};
  std::int64_t seed = 0;
  const AttentionInputs in = inputs_of(op, q, k, v, o, scales, Seed::drawn, &seed);
  const at::Tensor none;
  attention_forward(in, forward_options(op, in, scales),
                    {.out = out, .p = p, .dm = o.p > 0 ? dm : none, .amax_s = is_amax_s ? amax_s : none});
  leaf->gives(out, p, dm, amax_s);
  return {out, p, dm, amax_s};
}

Fp8SdpaRecompResult sdpa_recomp_forward(const char* op, Run run, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const SdpaOptions& o, const SdpaScales& scales,
                                        bool requires_backward, bool is_amax_s, bool is_amax_o) {
  check_dtypes(op, q, k, v, scales);
  check_p(op, o.p);
  const Heads heads = heads_of(op, q, k, v);
  std::optional<LeafScope> leaf;  // before the zeros that stand for what is not wanted
  if (run != Run::meta) leaf.emplace(op, q, k, v);
  const auto options = q.options();
  const bool fp8 = is_fp8(q.scalar_type());
  const auto m_type = fp8 ? at::kBFloat16 : q.scalar_type();
  const bool narrow = fp8 || (o.softmax_mode == "fast" && q.scalar_type() == at::kBFloat16);
  const auto linv_type = narrow ? at::kBFloat16 : at::kFloat;
  const auto stats = heads.sizes(heads.queries, 1);
  const at::Tensor out = at::empty(heads.sizes(heads.queries, heads.value_depth), options.dtype(out_dtype(q, scales))),
                   m = requires_backward ? at::empty(stats, options.dtype(m_type)) : zero_one(q, m_type),
                   linv = requires_backward ? at::empty(stats, options.dtype(linv_type)) : zero_one(q, linv_type),
                   seed_out = zero_one(q, at::kInt), amax_s = zero_one(q, at::kFloat), amax_o = zero_one(q, at::kFloat);
  if (run == Run::meta) return {out, m, linv, seed_out, amax_s, amax_o};
  std::int64_t seed = 0;
  const AttentionInputs in = inputs_of(op, q, k, v, o, scales, Seed::drawn, &seed);
  if (requires_backward) *seed_out.mutable_data_ptr<std::int32_t>() = static_cast<std::int32_t>(seed);
  const at::Tensor none;
  attention_forward(in, forward_options(op, in, scales),
                    {.out = out,
                     .m = requires_backward ? m : none,
                     .linv = requires_backward ? linv : none,
                     .amax_s = is_amax_s ? amax_s : none,
                     .amax_o = is_amax_o ? amax_o : none});
  leaf->gives(out, m, linv, seed_out, amax_s, amax_o);
  return {out, m, linv, seed_out, amax_s, amax_o};
}

namespace {

/// A saved tensor of batch + [L, cols].
void check_saved(const char* op, const char* name, const at::Tensor& t, const std::vector<std::int64_t>& sizes) {
  TORCH_CHECK(t.sizes() == at::IntArrayRef(sizes), "[", op, "] expected ", name, " of sizes ", at::IntArrayRef(sizes),
              ", got ", t.sizes());
}

void check_backward(const char* op, const Heads& h, const at::Tensor& grad, const at::Tensor& q, const SdpaSaved& saved,
                    double p, const SdpaScales& scales, const at::Tensor& fwd_out) {
  const auto out_sizes = h.sizes(h.queries, h.value_depth), p_sizes = h.sizes(h.queries, h.keys),
             stat_sizes = h.sizes(h.queries, 1);
  check_saved(op, "grad", grad, out_sizes);
  check_saved(op, "fwd_out", fwd_out, out_sizes);
  const auto ok = [](const at::Tensor& t) { return is_high_precision(t.scalar_type()) || is_fp8(t.scalar_type()); };
  TORCH_CHECK(grad.device() == q.device(), "[", op, "] expected grad on ", q.device(), ", got ", grad.device());
  TORCH_CHECK(ok(grad), "[", op, "] expected grad of dtype Float, BFloat16, Half or float8, got ", grad.scalar_type());
  TORCH_CHECK(scales.d_do.none() || is_fp8(grad.scalar_type()), "[", op,
              "] expected grad of dtype float8 beside d_scale_do, got ", grad.scalar_type());
  if (saved.p.defined()) {
    check_saved(op, "P", saved.p, p_sizes);
    TORCH_CHECK(ok(saved.p), "[", op, "] expected P of dtype Float, BFloat16, Half or float8, got ",
                saved.p.scalar_type());
    if (!(p > 0)) return;
    TORCH_CHECK(saved.dm.has_value() && saved.dm->defined(), "[", op, "] expected dm for dropout, got none");
    check_saved(op, "dm", *saved.dm, p_sizes);
    TORCH_CHECK(saved.dm->scalar_type() == at::kChar, "[", op, "] expected dm of dtype Char, got ",
                saved.dm->scalar_type());
    return;
  }
  check_saved(op, "m", saved.m, stat_sizes);
  check_saved(op, "linv", saved.linv, stat_sizes);
  TORCH_CHECK(is_high_precision(saved.m.scalar_type()) && is_high_precision(saved.linv.scalar_type()), "[", op,
              "] expected m and linv of dtype Float, BFloat16 or Half, got ", saved.m.scalar_type(), " and ",
              saved.linv.scalar_type());
}

/// The casts and multipliers of a backward.
BackwardOptions backward_options(const char* op, const AttentionInputs& in, const at::Tensor& grad,
                                 const SdpaSaved& saved, double scale, const SdpaScales& s) {
  BackwardOptions b;
  b.grad = dense(grad);
  const bool fp8 = is_fp8(in.q.scalar_type());
  const double d_do = value_or(s.d_do, 1), d_s = undo(s.d_s, s.q_s), keep = in.dropout.scale();
  const bool recompute = !saved.p.defined(), codes_given = !recompute && is_fp8(saved.p.scalar_type());
  if (recompute) {
    b.m = dense(saved.m);
    b.linv = dense(saved.linv);
  } else {
    b.p = dense(saved.p);
    if (in.dropout.active()) b.dm = dense(*saved.dm);
    b.p_factor = codes_given ? static_cast<float>(d_s) : 1.0f;
  }
  const bool cast_p = fp8 && (recompute || (!codes_given && !s.q_s.none()));
  if (cast_p) b.p_format = format_of(in.q.scalar_type());
  if (fp8) b.ds_format = is_fp8(grad.scalar_type()) ? format_of(grad.scalar_type()) : kernels::Format::E5M2;
  b.p_scale = static_cast<float>(value_or(s.q_s, 1));
  b.ds_scale = static_cast<float>(value_or(s.q_ds, 1));
  const double d_ds = fp8 ? undo(s.d_ds, s.q_ds) : 1;
  b.grad_factor = static_cast<float>(d_do * value_or(s.d_v, 1) * keep);
  b.dq_factor = static_cast<float>(d_ds * value_or(s.d_k, 1) * scale);
  b.dk_factor = static_cast<float>(d_ds * value_or(s.d_q, 1) * scale);
  b.dv_factor = static_cast<float>((cast_p ? d_s : 1) * d_do * keep);
  b.dialect = dialect_for(op, in.q);
  return b;
}

}  // namespace

Fp8SdpaGradients sdpa_backward(const char* op, Run run, const at::Tensor& grad, const at::Tensor& q,
                               const at::Tensor& k, const at::Tensor& v, const SdpaSaved& saved, bool is_causal,
                               double p, double scale, const SdpaScales& scales, bool is_amax_ds,
                               const at::Tensor& fwd_out, at::ScalarType dtype) {
  check_dtypes(op, q, k, v, scales);
  check_p(op, p);
  check_backward(op, heads_of(op, q, k, v), grad, q, saved, p, scales, fwd_out);
  std::optional<LeafScope> leaf;
  if (run != Run::meta) leaf.emplace(op, grad, q, k, v, saved.p, saved.m, saved.linv);
  const at::Tensor dq = at::empty(q.sizes(), q.options().dtype(dtype)),
                   dk = at::empty(k.sizes(), k.options().dtype(dtype)),
                   dv = at::empty(v.sizes(), v.options().dtype(dtype)), amax_ds = zero_one(q, at::kFloat);
  if (run == Run::meta) return {dq, dk, dv, amax_ds};
  const std::optional<at::Tensor> none;
  const Seed use = saved.p.defined() ? Seed::unused : Seed::required;  // beside P, dm decides
  std::int64_t unused = 0;
  const AttentionInputs in =
      inputs_of(op, q, k, v, {saved.mask, p, scale, is_causal, "", none, "", saved.seed}, scales, use, &unused);
  BackwardOutputs outputs{dq, dk, dv, is_amax_ds ? amax_ds : at::Tensor()};
  attention_backward(in, backward_options(op, in, grad, saved, scale, scales), outputs);
  leaf->gives(dq, dk, dv, amax_ds);
  return {dq, dk, dv, amax_ds};
}

}  // namespace fp8::runtime::ops
