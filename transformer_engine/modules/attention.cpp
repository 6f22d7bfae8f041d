// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <ostream>

#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/ops/attention/attention_ops.h"
#include "fp8/transformer_engine/products/fp8_attention.h"
#include "fp8/transformer_engine/region/recomputation.h"

namespace fp8::te {
namespace {

constexpr const char* kMaskTypes[] = {"no_mask",  "causal",         "causal_bottom_right",
                                      "padding",  "padding_causal", "padding_causal_bottom_right",
                                      "arbitrary"};

constexpr const char* kDot = "te::DotProductAttention";

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// The rows of each sequence's queries, or keys.
struct Rows {
  std::vector<std::int64_t> begin, length;
};

/// The values of a tensor of sums. Throws unless it is [n + 1] (n < 0: any) of integers that begin with 0 and never
/// fall.
std::vector<std::int64_t> sums_of(const char* argument, const at::Tensor& t, std::int64_t n) {
  TORCH_CHECK_VALUE(t.dim() == 1 && t.size(0) >= 1 && (n < 0 || t.size(0) == n + 1) &&
                        (t.scalar_type() == at::kInt || t.scalar_type() == at::kLong),
                    "[", kDot, "] ", argument, ": found sizes ", t.sizes(), " of dtype ", t.scalar_type(),
                    ", allowed: [", n < 0 ? std::string("sequences + 1") : std::to_string(n + 1),
                    "] of dtype Int or Long");
  const at::Tensor values = t.detach().cpu().to(at::kLong).contiguous();
  const auto* v = values.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> sums(v, v + values.numel());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : sums[i - 1];
    TORCH_CHECK_VALUE(i == 0 ? sums[0] == 0 : sums[i] >= least, "[", kDot, "] ", argument, ": found ", sums[i], " at ",
                      i, ", allowed: ", i == 0 ? "0" : std::to_string(least) + " or more, as sums never fall");
  }
  return sums;
}

/// which: "q" or "kv". rows: of the packed tensor.
Rows packed_rows(const std::string& which, const at::Tensor& cu_seqlens, const at::Tensor& padded,
                 std::optional<std::int64_t> longest, std::int64_t n, std::int64_t rows) {
  const std::string name = "cu_seqlens_" + which, padded_name = name + "_padded";
  const auto sums = sums_of(name.c_str(), cu_seqlens, n);
  const auto begins =
      padded.defined() ? sums_of(padded_name.c_str(), padded, static_cast<std::int64_t>(sums.size()) - 1) : sums;
  TORCH_CHECK_VALUE(padded.defined() ? begins.back() <= rows : sums.back() == rows, "[", kDot, "] ",
                    padded.defined() ? padded_name : name, ": found ", begins.back(),
                    " at the end, allowed: ", padded.defined() ? "up to " : "", "the ", rows, " rows of ",
                    which == "q" ? "the query" : "key and value");
  Rows result;
  for (std::size_t i = 0; i + 1 < sums.size(); ++i) {
    const std::int64_t length = sums[i + 1] - sums[i];
    TORCH_CHECK_VALUE(length <= begins[i + 1] - begins[i], "[", kDot, "] ", name, ": found a sequence of ", length,
                      " at ", i, ", allowed by ", padded_name, ": up to ", begins[i + 1] - begins[i]);
    TORCH_CHECK_VALUE(!longest.has_value() || length <= *longest, "[", kDot, "] max_seqlen_", which, ": found ",
                      *longest, ", allowed: at least the longest sequence, which has ", length);
    result.begin.push_back(begins[i]);
    result.length.push_back(length);
  }
  return result;
}

Rows query_rows(const SequenceLengths& s, std::int64_t rows) {
  TORCH_CHECK_VALUE(
      s.cu_seqlens_q.defined(), "[", kDot,
      "] cu_seqlens_q: found none, allowed with qkv_format \"thd\": [sequences + 1] of dtype Int or Long");
  return packed_rows("q", s.cu_seqlens_q, s.cu_seqlens_q_padded, s.max_seqlen_q, -1, rows);
}

/// [rows, heads, depth] -> for each sequence [1, heads, length, depth]. One split: its gradient is one concatenation.
std::vector<at::Tensor> cut(const at::Tensor& t, const Rows& rows) {
  std::vector<std::int64_t> sizes;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < rows.begin.size(); ++i) {
    sizes.push_back(rows.begin[i] - row);
    sizes.push_back(rows.length[i]);
    row = rows.begin[i] + rows.length[i];
  }
  sizes.push_back(t.size(0) - row);
  const auto all = t.split_with_sizes(sizes, 0);
  std::vector<at::Tensor> parts;
  for (std::size_t i = 1; i < all.size(); i += 2) parts.push_back(all[i].unsqueeze(0).transpose(1, 2));
  return parts;
}

/// Keys inside of the window around each query's diagonal, bool [..., L, S]; undefined: all. shift: d of window_size, a
/// number or [B, 1, 1, 1].
at::Tensor inside_window(std::int64_t queries, std::int64_t keys, const at::Tensor& shift, std::int64_t before,
                         std::int64_t after) {
  if (before < 0 && after < 0) return {};
  const at::Tensor distance =
      at::arange(keys, shift.options()).unsqueeze(0) - at::arange(queries, shift.options()).unsqueeze(1) - shift;
  if (before < 0) return distance.le(after);
  const at::Tensor inside = distance.ge(-before);
  return after < 0 ? inside : inside.logical_and(distance.le(after));
}

at::Tensor number(std::int64_t value, at::Device device) {
  return at::scalar_tensor(value, at::TensorOptions().dtype(at::kLong).device(device));
}

bool from_top_left(const std::string& type) { return type == "causal" || type == "padding_causal"; }

at::Tensor heads_first(const at::Tensor& t, bool batch_first) {
  return batch_first ? t.transpose(1, 2) : t.permute({1, 2, 0, 3});
}

/// scores: [B, H, L, S].
void check_mask(const DotProductAttentionOptions& o, const at::Tensor& mask, const SequenceLengths& sequences,
                at::IntArrayRef scores) {
  const std::string& type = o.attn_mask_type;
  const bool padding = has(type, "padding"), arbitrary = type == "arbitrary",
             lengths = sequences.cu_seqlens_q.defined();
  TORCH_CHECK_VALUE(!lengths || padding, "[", kDot, "] cu_seqlens_q: found one, allowed with attn_mask_type \"", type,
                    "\": none");
  TORCH_CHECK_VALUE(!sequences.cu_seqlens_q_padded.defined() && !sequences.cu_seqlens_kv_padded.defined(), "[", kDot,
                    "] cu_seqlens_q_padded, cu_seqlens_kv_padded: found one, allowed with qkv_format \"", o.qkv_format,
                    "\": none");
  TORCH_CHECK_VALUE(!lengths || !mask.defined(), "[", kDot,
                    "] attention_mask: found one beside cu_seqlens_q, allowed: one of the two");
  TORCH_CHECK_VALUE(lengths || mask.defined() == (padding || arbitrary), "[", kDot, "] attention_mask: found ",
                    mask.defined() ? "one" : "none", ", allowed with attn_mask_type \"", type, "\": ",
                    padding     ? "a mask of dtype Bool, or cu_seqlens_q"
                    : arbitrary ? "a mask of dtype Bool"
                                : "none");
  if (!mask.defined()) return;
  const at::IntArrayRef sizes = mask.sizes();
  const std::vector<std::int64_t> whole =
      padding ? std::vector<std::int64_t>{scores[0], 1, 1, scores[3]} : scores.vec();
  bool fits = sizes.size() == 4;
  for (std::size_t i = 0; fits && i < 4; ++i) fits = sizes[i] == whole[i] || (arbitrary && sizes[i] == 1);
  TORCH_CHECK_VALUE(mask.scalar_type() == at::kBool && fits, "[", kDot, "] attention_mask: found sizes ", sizes,
                    " of dtype ", mask.scalar_type(), ", allowed with attn_mask_type \"", type, "\": sizes ",
                    at::IntArrayRef(whole), arbitrary ? " (or 1)" : "", " of dtype Bool (true: masked out)");
}

/// The lengths [B, 1, 1, 1] that cu_seqlens says, each at most `most`.
at::Tensor lengths_of(const std::string& which, const at::Tensor& cu_seqlens, std::int64_t batch, std::int64_t most,
                      std::optional<std::int64_t> longest, at::Device device) {
  const std::string name = "cu_seqlens_" + which;
  const auto sums = sums_of(name.c_str(), cu_seqlens, batch);
  const at::Tensor lengths = at::empty({batch, 1, 1, 1}, at::kLong);
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t length = sums[static_cast<std::size_t>(i) + 1] - sums[static_cast<std::size_t>(i)];
    TORCH_CHECK_VALUE(length <= std::min(most, longest.value_or(most)), "[", kDot, "] ", name, ": found a sequence of ",
                      length, " at ", i, ", allowed: up to ", std::min(most, longest.value_or(most)));
    lengths.mutable_data_ptr<std::int64_t>()[i] = length;
  }
  return lengths.to(device);
}

/// The keys that each query sees, bool, broadcasting to the scores [B, H, L, S]; undefined where is_causal or nothing
/// says it all.
at::Tensor visible_keys(const DotProductAttentionOptions& o, const at::Tensor& mask, const SequenceLengths& sequences,
                        at::IntArrayRef scores, at::Device device, bool* is_causal) {
  check_mask(o, mask, sequences, scores);
  const std::string& type = o.attn_mask_type;
  const std::int64_t queries = scores[2], keys = scores[3], before = o.window_size.first,
                     after = has(type, "causal") ? 0 : o.window_size.second;
  at::Tensor visible, shift = number(from_top_left(type) ? 0 : keys - queries, device);
  if (sequences.cu_seqlens_q.defined()) {
    const at::Tensor& of_keys = sequences.cu_seqlens_kv.defined() ? sequences.cu_seqlens_kv : sequences.cu_seqlens_q;
    const at::Tensor q_lengths =
                         lengths_of("q", sequences.cu_seqlens_q, scores[0], queries, sequences.max_seqlen_q, device),
                     k_lengths = lengths_of("kv", of_keys, scores[0], keys, sequences.max_seqlen_kv, device);
    visible = at::arange(keys, shift.options()).lt(k_lengths);
    if (!from_top_left(type)) shift = k_lengths - q_lengths;
  } else if (mask.defined()) {
    visible = mask.logical_not();
    if (has(type, "padding") && !from_top_left(type) && queries != keys) shift = visible.sum(-1, true) - queries;
  }
  if (before < 0 && (type == "causal" || (type == "causal_bottom_right" && queries == keys))) {
    *is_causal = true;
    return {};
  }
  const at::Tensor inside = inside_window(queries, keys, shift, before, after);
  if (!inside.defined()) return visible;
  return visible.defined() ? visible.logical_and(inside) : inside;
}

}  // namespace

void check_attn_mask_type(const char* module, const char* argument, const std::string& type) {
  const auto quoted = [](const char* known) { return "\"" + std::string(known) + "\""; };
  TORCH_CHECK_VALUE(std::ranges::find(kMaskTypes, type) != std::end(kMaskTypes), "[", module, "] ", argument,
                    ": found \"", type, "\", allowed: ", io::joined(kMaskTypes | std::views::transform(quoted)));
}

void check_qkv_format(const char* module, const char* argument, const std::string& format) {
  TORCH_CHECK_VALUE(format == "sbhd" || format == "bshd" || format == "thd", "[", module, "] ", argument, ": found \"",
                    format, "\", allowed: \"sbhd\", \"bshd\", \"thd\"");
}

void check_packed(const char* module, const std::string& format, const std::string& mask_type, bool fp8_dpa) {
  if (format != "thd") return;
  TORCH_CHECK_VALUE(has(mask_type, "padding"), "[", module, "] attn_mask_type: found \"", mask_type,
                    "\", allowed with \"thd\": \"padding\", \"padding_causal\", \"padding_causal_bottom_right\"");
  TORCH_CHECK_VALUE(!fp8_dpa, "[", module, "] fp8_dpa: found true, allowed with \"thd\": false");
}

DotProductAttentionImpl::DotProductAttentionImpl(DotProductAttentionOptions options) : options_(std::move(options)) {
  auto& o = options_;
  TORCH_CHECK_VALUE(o.num_attention_heads >= 1 && o.kv_channels >= 1, "[", kDot,
                    "] num_attention_heads, kv_channels: found ", o.num_attention_heads, ", ", o.kv_channels,
                    ", allowed: integers >= 1");
  if (o.num_gqa_groups == 0) o.num_gqa_groups = o.num_attention_heads;
  TORCH_CHECK_VALUE(o.num_gqa_groups >= 1 && o.num_attention_heads % o.num_gqa_groups == 0, "[", kDot,
                    "] num_gqa_groups: found ", o.num_gqa_groups,
                    ", allowed: divisors of num_attention_heads = ", o.num_attention_heads);
  TORCH_CHECK_VALUE(o.attention_dropout >= 0 && o.attention_dropout <= 1, "[", kDot, "] attention_dropout: found ",
                    o.attention_dropout, ", allowed: 0 to 1");
  TORCH_CHECK_VALUE(!o.softmax_scale.has_value() || std::isfinite(*o.softmax_scale), "[", kDot,
                    "] softmax_scale: found ", *o.softmax_scale, ", allowed: finite numbers");
  check_qkv_format(kDot, "qkv_format", o.qkv_format);
  check_attn_mask_type(kDot, "attn_mask_type", o.attn_mask_type);
  check_packed(kDot, o.qkv_format, o.attn_mask_type, o.fp8_dpa);
  TORCH_CHECK_VALUE(o.window_size.first >= -1 && o.window_size.second >= -1, "[", kDot, "] window_size: found (",
                    o.window_size.first, ", ", o.window_size.second, "), allowed: integers >= -1 (-1: no limit)");
  reset();
}

void DotProductAttentionImpl::reset() {
  if (!options_.fp8_dpa) return;
  fused_attention = register_module(
      "fused_attention", FusedAttention(FusedAttentionOptions{.scale = options_.softmax_scale,
                                                              .attention_dropout = options_.attention_dropout,
                                                              .enable_recompute = true,
                                                              .name = options_.name}));
}

at::Tensor packed_positions(const SequenceLengths& sequences, std::int64_t rows) {
  const Rows r = query_rows(sequences, rows);
  const at::Tensor positions = at::zeros({rows}, at::kLong);
  auto* p = positions.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < r.begin.size(); ++i)
    for (std::int64_t j = 0; j < r.length[i]; ++j) p[r.begin[i] + j] = j;
  return positions;
}

std::int64_t packed_longest(const SequenceLengths& sequences, std::int64_t rows) {
  const Rows r = query_rows(sequences, rows);
  return r.length.empty() ? 0 : *std::ranges::max_element(r.length);
}

/// q: [1, H, L, D], k, v: [1, G, S, D], all of one sequence: what is left of its mask type is causal or not.
at::Tensor DotProductAttentionImpl::one_sequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
  const auto& o = options_;
  const std::int64_t queries = q.size(2), keys = k.size(2), before = o.window_size.first;
  const bool causal = has(o.attn_mask_type, "causal");
  const std::int64_t d = from_top_left(o.attn_mask_type) ? 0 : keys - queries,
                     after = causal ? 0 : o.window_size.second;
  const bool plain = causal && before < 0 && d == 0;
  std::optional<at::Tensor> mask;
  if (!plain && (before >= 0 || after >= 0)) mask = inside_window(queries, keys, number(d, q.device()), before, after);
  return at::scaled_dot_product_attention(q, k, v, mask, is_training() ? o.attention_dropout : 0.0, plain,
                                          o.softmax_scale, o.num_gqa_groups != o.num_attention_heads);
}

at::Tensor DotProductAttentionImpl::packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           const SequenceLengths& sequences) const {
  TORCH_CHECK_VALUE(k.sizes() == v.sizes(), "[", kDot, "] key, value: found sizes ", k.sizes(), " and ", v.sizes(),
                    ", allowed: equal sizes");
  const SequenceLengths& s = sequences;
  const Rows q_rows = query_rows(s, q.size(0));
  const auto n = static_cast<std::int64_t>(q_rows.begin.size());
  const bool own = s.cu_seqlens_kv.defined();
  const Rows k_rows =
      packed_rows("kv", own ? s.cu_seqlens_kv : s.cu_seqlens_q,
                  own || s.cu_seqlens_kv_padded.defined() ? s.cu_seqlens_kv_padded : s.cu_seqlens_q_padded,
                  s.max_seqlen_kv, n, k.size(0));
  const auto qs = cut(q, q_rows), ks = cut(k, k_rows), vs = cut(v, k_rows);
  const std::int64_t width = q.size(1) * v.size(2);
  std::vector<at::Tensor> parts;
  std::int64_t row = 0;
  // like: of sdpa's dtype, which an autocast region may have changed.
  const auto zeros_up_to = [&](std::int64_t end, const at::Tensor& like) {
    if (end > row) parts.push_back(like.new_zeros({end - row, width}));
  };
  at::Tensor y = q;
  for (std::size_t i = 0; i < qs.size(); ++i) {
    y = one_sequence(qs[i], ks[i], vs[i]).squeeze(0).transpose(0, 1).flatten(1, 2);
    zeros_up_to(q_rows.begin[i], y);
    parts.push_back(y);
    row = q_rows.begin[i] + q_rows.length[i];
  }
  zeros_up_to(q.size(0), y);
  return parts.empty() ? q.flatten(1, 2) : at::cat(parts, 0);
}

at::Tensor DotProductAttentionImpl::forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                            const at::Tensor& mask, const SequenceLengths& sequences) {
  at::Tensor q = query, k = key, v = value, attention_mask = mask;
  runtime::settle_devices(kDot, {&q, &k, &v, &attention_mask});
  const auto& o = options_;
  const bool thd = o.qkv_format == "thd", batch_first = o.qkv_format == "bshd";
  const auto check = [&](const char* what, const at::Tensor& t, std::int64_t heads) {
    const int dims = thd ? 3 : 4;
    TORCH_CHECK_VALUE(t.dim() == dims && t.size(dims - 2) == heads && t.size(dims - 1) == o.kv_channels, "[", kDot,
                      "] ", what, ": found sizes ", t.sizes(), ", allowed: ",
                      thd           ? "[rows, "
                      : batch_first ? "[batch, length, "
                                    : "[length, batch, ",
                      heads, ", ", o.kv_channels, "]");
  };
  check("query", q, o.num_attention_heads);
  check("key", k, o.num_gqa_groups);
  check("value", v, o.num_gqa_groups);
  if (thd) {
    TORCH_CHECK_VALUE(!attention_mask.defined(), "[", kDot,
                      "] attention_mask: found one, allowed with qkv_format \"thd\": none");
    return packed(q, k, v, sequences);
  }
  const int batch = batch_first ? 0 : 1, length = 1 - batch;
  TORCH_CHECK_VALUE(k.sizes() == v.sizes() && k.size(batch) == q.size(batch), "[", kDot, "] key, value: found sizes ",
                    k.sizes(), " and ", v.sizes(), ", allowed: equal sizes with the query's batch of ", q.size(batch));
  bool is_causal = false;
  const at::Tensor visible =
      visible_keys(o, attention_mask, sequences, {q.size(batch), o.num_attention_heads, q.size(length), k.size(length)},
                   q.device(), &is_causal);
  const at::Tensor qh = heads_first(q, batch_first), kh = heads_first(k, batch_first), vh = heads_first(v, batch_first);
  std::optional<ProductRun> run;  // first: it knows the region of a recomputation by others
  if (fused_attention) run.emplace(*fused_attention->fp8_states()[0]);
  const at::Tensor out =  // [B, H, L, D]
      fused_attention && is_fp8_enabled()
          ? fused_attention->forward(qh, kh, vh, visible, is_causal)
          : at::scaled_dot_product_attention(qh, kh, vh,
                                             visible.defined() ? std::optional<at::Tensor>(visible) : std::nullopt,
                                             is_training() ? o.attention_dropout : 0.0, is_causal, o.softmax_scale,
                                             o.num_gqa_groups != o.num_attention_heads);
  return (batch_first ? out.transpose(1, 2) : out.permute({2, 0, 1, 3})).flatten(2, 3);
}

void DotProductAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::DotProductAttention(num_attention_heads=" << options_.num_attention_heads
         << ", kv_channels=" << options_.kv_channels << ", num_gqa_groups=" << options_.num_gqa_groups
         << ", qkv_format=" << options_.qkv_format << ", attn_mask_type=" << options_.attn_mask_type
         << (options_.fp8_dpa ? ", fp8_dpa=true" : "") << ")";
}

// FusedAttention of attention.h.

FusedAttentionImpl::FusedAttentionImpl(FusedAttentionOptions options) : options_(std::move(options)) {
  TORCH_CHECK_VALUE(options_.attention_dropout >= 0 && options_.attention_dropout <= 1,
                    "[te::FusedAttention] attention_dropout: found ", options_.attention_dropout, ", allowed: 0 to 1");
  TORCH_CHECK_VALUE(!options_.scale.has_value() || std::isfinite(*options_.scale), "[te::FusedAttention] scale: found ",
                    *options_.scale, ", allowed: finite numbers");
  reset();
}

void FusedAttentionImpl::reset() { state_ = std::make_shared<Fp8State>(options_.name, 4, 2); }

at::Tensor FusedAttentionImpl::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const at::Tensor& attention_mask, bool is_causal,
                                       const std::string& softmax_mode) {
  TORCH_CHECK_VALUE(softmax_mode == "none" || softmax_mode == "None" || softmax_mode == "fast",
                    "[te::FusedAttention] softmax_mode: found \"", softmax_mode, "\", allowed: \"none\", \"fast\"");
  TORCH_CHECK_VALUE(q.defined() && k.defined() && v.defined(), "[te::FusedAttention] '", options_.name, "': ",
                    !q.defined()   ? "q"
                    : !k.defined() ? "k"
                                   : "v",
                    ": found none, allowed: [batch, heads, length, depth]");
  const double p = is_training() ? options_.attention_dropout : 0.0;
  const ProductRun run(*state_);
  if (!is_fp8_enabled() || state_->keeps_high_precision()) {
    record_attention(q, k, v, state_);
    runtime::ops::FusedSdpaOptions o;
    if (attention_mask.defined()) o.mask = attention_mask;
    o.dropout_p = p;
    o.is_causal = is_causal;
    o.scale = options_.scale;
    o.softmax_mode = softmax_mode;
    o.recompute = options_.enable_recompute;
    return runtime::ops::fused_sdpa(q, k, v, o);
  }
  const std::int64_t depth = q.dim() > 0 ? q.size(-1) : 0;
  Fp8AttentionOptions o;
  o.p = p;
  o.scale = options_.scale.value_or(depth > 0 ? 1.0 / std::sqrt(static_cast<double>(depth)) : 1.0);
  o.is_causal = is_causal;
  o.recompute = options_.enable_recompute;
  o.softmax_mode = softmax_mode;
  o.training = is_training();
  return fp8_attention(q, k, v, attention_mask, state_, o);
}

void FusedAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::FusedAttention(attention_dropout=" << options_.attention_dropout
         << ", enable_recompute=" << (options_.enable_recompute ? "true" : "false") << ")";
}

}  // namespace fp8::te
