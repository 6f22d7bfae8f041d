// SPDX-License-Identifier: Apache-2.0
// What modules of Transformer Engine's names compute beside their products, as operators made of ATen's: modules in
// Python (tools/python/fp8/te) have the bits of those here. Autocast is in force inside of them, as it is in a module.

#include "fp8/runtime/device/registration.h"
#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"

namespace fp8::te {
namespace {

/// Operators of ours run with autocast off, and modules do not.
struct AsInModules {
  const runtime::autocast::OutsideOp outside{runtime::autocast::region_dtype().has_value()};
};

/// Without a bias RMSNorm. module: in messages.
at::Tensor normalized(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, double eps,
                      bool zero_centered_gamma, const std::string& module) {
  TORCH_CHECK_VALUE(x.dim() > 0 && x.sym_size(-1) == weight.sym_numel(), module, ": input: found sizes ", x.sym_sizes(),
                    ", allowed: [..., ", weight.sym_numel(), "]");
  const AsInModules as;
  const auto kind = bias.has_value() ? Normalization::LayerNorm : Normalization::RMSNorm;
  return normalize(kind, x, weight, bias.value_or(at::Tensor()), eps, zero_centered_gamma);
}

at::Tensor activated(const at::Tensor& x, const std::string& activation) {
  const AsInModules as;
  return activate(activation, x);
}

at::Tensor turned(const at::Tensor& x, const at::Tensor& angles, const std::string& qkv_format,
                  const std::optional<at::Tensor>& cu_seqlens, const std::optional<at::Tensor>& padded) {
  TORCH_CHECK_VALUE(x.dim() >= 3, "[fp8::rotated] x: found sizes ", x.sizes(), ", allowed: heads of ", qkv_format);
  const AsInModules as;
  const SequenceLengths sequences{.cu_seqlens_q = cu_seqlens.value_or(at::Tensor()),
                                  .cu_seqlens_q_padded = padded.value_or(at::Tensor())};
  return rotated(x, angles_of_rows("[te::MultiheadAttention]", angles, qkv_format, x.size(qkv_format == "bshd" ? 1 : 0),
                                   x.size(-1), sequences));
}

/// Heads of q, k and v from the results of one product for all three, of one for q and one for k and v, or of one each.
/// interleaved: rows of a product's weight are [groups, heads of a group, depth], else all of q, then of k, then of v.
std::vector<at::Tensor> heads_of(at::TensorList projected, std::int64_t heads, std::int64_t groups, std::int64_t depth,
                                 bool interleaved) {
  constexpr std::size_t kThree = 3;
  const std::int64_t of_others = interleaved ? 1 : groups;
  const std::vector<std::int64_t> shares{interleaved ? heads / groups : heads, of_others, of_others};
  TORCH_CHECK_VALUE(!projected.empty() && projected.size() <= kThree, "[fp8::heads] projected: found ",
                    projected.size(), ", allowed: 1 to 3");
  std::vector<at::Tensor> found;
  for (const at::Tensor& t : projected) {
    const std::size_t count = &t == &projected.back() ? kThree - found.size() : 1;
    const at::Tensor rows = t.unflatten(
        -1, interleaved ? std::vector<std::int64_t>{groups, -1, depth} : std::vector<std::int64_t>{-1, depth});
    for (const at::Tensor& part : rows.split_with_sizes(at::IntArrayRef(shares).slice(found.size(), count), -2))
      found.push_back(interleaved ? part.flatten(-3, -2) : part);
  }
  return found;
}

using OwnState = std::optional<c10::intrusive_ptr<State>>;
using Window = c10::IntArrayRef;

/// heads, groups: of q and of k, v.
DotProductAttention attention_module(std::int64_t heads, std::int64_t groups, std::int64_t depth,
                                     const std::string& qkv_format, const std::string& attn_mask_type, double dropout,
                                     std::optional<double> scale, Window window, bool fp8_dpa) {
  TORCH_CHECK_VALUE(window.size() == 2, "[te::DotProductAttention] window_size: found ", window, ", allowed: two");
  return DotProductAttention(DotProductAttentionOptions{.num_attention_heads = heads,
                                                        .kv_channels = depth,
                                                        .num_gqa_groups = groups,
                                                        .attention_dropout = dropout,
                                                        .qkv_format = qkv_format,
                                                        .attn_mask_type = attn_mask_type,
                                                        .window_size = {window[0], window[1]},
                                                        .softmax_scale = scale,
                                                        .fp8_dpa = fp8_dpa});
}

/// Throws c10::ValueError for arguments that no attention takes.
void check_attention(std::int64_t heads, std::int64_t groups, std::int64_t depth, const std::string& qkv_format,
                     const std::string& attn_mask_type, double dropout, std::optional<double> scale, Window window,
                     bool fp8_dpa) {
  attention_module(heads, groups, depth, qkv_format, attn_mask_type, dropout, scale, window, fp8_dpa);
}

at::Tensor dot_product_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const std::optional<at::Tensor>& mask, std::int64_t heads, std::int64_t groups,
                                 std::int64_t depth, const std::string& qkv_format, const std::string& attn_mask_type,
                                 double dropout, std::optional<double> scale, Window window,
                                 const std::optional<at::Tensor>& cu_seqlens_q,
                                 const std::optional<at::Tensor>& cu_seqlens_kv,
                                 const std::optional<at::Tensor>& cu_seqlens_q_padded,
                                 const std::optional<at::Tensor>& cu_seqlens_kv_padded,
                                 std::optional<std::int64_t> max_seqlen_q, std::optional<std::int64_t> max_seqlen_kv,
                                 bool training, const OwnState& state) {
  const AsInModules as;
  auto module =
      attention_module(heads, groups, depth, qkv_format, attn_mask_type, dropout, scale, window, state.has_value());
  if (state.has_value()) module->fused_attention->use((*state)->for_product(true));
  module->train(training);
  const at::Tensor none;
  return module->forward(q, k, v, mask.value_or(none),
                         {.cu_seqlens_q = cu_seqlens_q.value_or(none),
                          .cu_seqlens_kv = cu_seqlens_kv.value_or(none),
                          .cu_seqlens_q_padded = cu_seqlens_q_padded.value_or(none),
                          .cu_seqlens_kv_padded = cu_seqlens_kv_padded.value_or(none),
                          .max_seqlen_q = max_seqlen_q,
                          .max_seqlen_kv = max_seqlen_kv});
}

at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& mask, bool is_causal, const std::string& softmax_mode,
                           double dropout, std::optional<double> scale, bool enable_recompute, bool training,
                           const c10::intrusive_ptr<State>& state) {
  const AsInModules as;
  FusedAttention module(FusedAttentionOptions{
      .scale = scale, .attention_dropout = dropout, .enable_recompute = enable_recompute, .name = state->name()});
  module->use(state->for_product(true));
  module->train(training);
  return module->forward(q, k, v, mask.value_or(at::Tensor()), is_causal, softmax_mode);
}

[[maybe_unused]] const bool g_state_is_known = register_state();

}  // namespace

FP8_LIBRARY_FRAGMENT(fp8, m) {
  constexpr auto kEffect = c10::AliasAnalysisKind::CONSERVATIVE;  // TorchScript neither moves it nor leaves it out
  m.def(
      "normalized(Tensor x, Tensor weight, Tensor? bias, float eps, bool zero_centered_gamma=False, str "
      "module=\"[fp8::normalized]\") -> Tensor",
      &normalized);
  m.def("activated(Tensor x, str activation) -> Tensor", &activated);
  m.def("rotary_angles(int dim, int positions, float base, Device device) -> Tensor", &rotary_position_embedding);
  m.def(
      "rotated(Tensor x, Tensor angles, str qkv_format, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_q_padded=None) "
      "-> Tensor",
      &turned);
  m.def("heads(Tensor[] projected, int heads, int groups, int depth, bool interleaved) -> Tensor[]", &heads_of);
  m.def(
      "check_attention(int heads, int groups, int depth, str qkv_format, str attn_mask_type, float dropout=0, float? "
      "scale=None, int[2] window_size=-1, bool fp8_dpa=False) -> ()",
      &check_attention);
  m.def(
      torch::schema("dot_product_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, int heads, int groups, int "
                    "depth, str qkv_format, str attn_mask_type, float dropout=0, float? scale=None, int[2] "
                    "window_size=-1, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_kv=None, Tensor? "
                    "cu_seqlens_q_padded=None, Tensor? cu_seqlens_kv_padded=None, int? max_seqlen_q=None, int? "
                    "max_seqlen_kv=None, bool training=True, __torch__.torch.classes.fp8.State? state=None) -> Tensor",
                    kEffect),
      &dot_product_attention);
  m.def(torch::schema("fused_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool is_causal, str softmax_mode, "
                      "float dropout, float? scale, bool enable_recompute, bool training, "
                      "__torch__.torch.classes.fp8.State state) -> Tensor",
                      kEffect),
        &fused_attention);
}

}  // namespace fp8::te
