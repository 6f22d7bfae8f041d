// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/multihead_attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include <ostream>

namespace fp8::te {
namespace {

constexpr const char* kName = "te::MultiheadAttention";

void complete(MultiheadAttentionOptions& o) {
  check_size(kName, "hidden_size", o.hidden_size);
  check_size(kName, "num_attention_heads", o.num_attention_heads);
  if (o.kv_channels != 0) check_size(kName, "kv_channels", o.kv_channels);  // 0: hidden_size / num_attention_heads
  if (o.kv_channels == 0) {
    TORCH_CHECK(o.hidden_size % o.num_attention_heads == 0, "[", kName, "] num_attention_heads: found ",
                o.num_attention_heads, ", allowed without kv_channels: divisors of hidden_size = ", o.hidden_size);
    o.kv_channels = o.hidden_size / o.num_attention_heads;
  }
  if (o.num_gqa_groups == 0) o.num_gqa_groups = o.num_attention_heads;
  TORCH_CHECK(o.num_gqa_groups >= 1 && o.num_attention_heads % o.num_gqa_groups == 0, "[", kName,
              "] num_gqa_groups: found ", o.num_gqa_groups,
              ", allowed: divisors of num_attention_heads = ", o.num_attention_heads);
  TORCH_CHECK(o.attention_type == "self" || o.attention_type == "cross", "[", kName, "] attention_type: found \"",
              o.attention_type, "\", allowed: \"self\", \"cross\"");
  TORCH_CHECK(o.input_layernorm || !o.return_layernorm_output, "[", kName,
              "] return_layernorm_output: found true, allowed without input_layernorm: false");
  check_qkv_format(kName, "qkv_format", o.qkv_format);
  check_attn_mask_type(kName, "attn_mask_type", o.attn_mask_type);
  check_packed(kName, o.qkv_format, o.attn_mask_type, o.fp8_dpa);
  check_eps(kName, o.layernorm_epsilon);
  check_params_dtype(kName, o.params_dtype);
  check_parallel(kName, o.parallel);
  refuse_wgrad_options(kName, o.fuse_wgrad_accumulation, o.delay_wgrad_compute);
}

constexpr const char* kLayer = "te::TransformerLayer";

void check(const TransformerLayerOptions& o) {
  check_size(kLayer, "hidden_size", o.hidden_size);
  check_size(kLayer, "ffn_hidden_size", o.ffn_hidden_size);
  check_size(kLayer, "num_attention_heads", o.num_attention_heads);
  TORCH_CHECK(o.layer_type == "encoder" || o.layer_type == "decoder", "[", kLayer, "] layer_type: found \"",
              o.layer_type, "\", allowed: \"encoder\", \"decoder\"");
  TORCH_CHECK(o.hidden_dropout >= 0 && o.hidden_dropout <= 1, "[", kLayer, "] hidden_dropout: found ", o.hidden_dropout,
              ", allowed: 0 to 1");
  check_attn_mask_type(kLayer, "self_attn_mask_type", o.self_attn_mask_type);
  check_attn_mask_type(kLayer, "enc_dec_attn_mask_type", o.enc_dec_attn_mask_type);
  check_qkv_format(kLayer, "attn_input_format", o.attn_input_format);
  check_packed(kLayer, o.attn_input_format, o.self_attn_mask_type, o.fp8_dpa);
  TORCH_CHECK(!o.parallel_attention_mlp ||
                  (o.layer_type == "encoder" && !o.apply_residual_connection_post_layernorm && !o.output_layernorm),
              "[", kLayer,
              "] parallel_attention_mlp: found true, allowed with layer_type \"encoder\" and neither "
              "apply_residual_connection_post_layernorm nor output_layernorm");
  check_parallel(kLayer, o.parallel);
  refuse_wgrad_options(kLayer, o.fuse_wgrad_accumulation, o.delay_wgrad_compute);
}

}  // namespace

at::Tensor angles_of_rows(const std::string& where, const at::Tensor& angles, const std::string& qkv_format,
                          std::int64_t rows, std::int64_t depth, const SequenceLengths& sequences) {
  const bool thd = qkv_format == "thd";
  const std::int64_t length = thd ? packed_longest(sequences, rows) : rows;
  const bool fits = angles.dim() == 4 && angles.size(0) >= length && angles.size(1) == 1 && angles.size(2) == 1 &&
                    angles.size(3) >= 2 && angles.size(3) <= depth && angles.size(3) % 2 == 0;
  TORCH_CHECK_VALUE(fits && angles.is_floating_point(), where, ": rotary_pos_emb: found sizes ", angles.sizes(),
                    " of dtype ", angles.scalar_type(), ", allowed: [", length, " or more, 1, 1, an even number up to ",
                    depth, "] of a floating-point dtype");
  if (thd) return angles.index_select(0, packed_positions(sequences, rows).to(angles.device())).squeeze(1);
  const at::Tensor used = angles.narrow(0, 0, rows);
  return qkv_format == "bshd" ? used.transpose(0, 1) : used;
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& angles) {
  const std::int64_t rotary = angles.size(-1);
  const at::Tensor part = x.narrow(-1, 0, rotary);
  const auto halves = part.chunk(2, -1);
  const at::Tensor y =
      part * angles.cos().to(x.scalar_type()) + at::cat({-halves[1], halves[0]}, -1) * angles.sin().to(x.scalar_type());
  return rotary == x.size(-1) ? y : at::cat({y, x.narrow(-1, rotary, x.size(-1) - rotary)}, -1);
}

at::Tensor rotary_position_embedding(std::int64_t dim, std::int64_t positions, double base, at::Device device) {
  TORCH_CHECK(dim >= 2 && dim % 2 == 0, "[te::rotary_position_embedding] dim: found ", dim,
              ", allowed: even numbers >= 2");
  TORCH_CHECK(positions >= 1, "[te::rotary_position_embedding] positions: found ", positions,
              ", allowed: integers >= 1");
  TORCH_CHECK(std::isfinite(base) && base > 0, "[te::rotary_position_embedding] base: found ", base,
              ", allowed: finite numbers > 0");
  const auto f32 = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor inverse = at::pow(base, -at::arange(0, dim, 2, f32) / static_cast<double>(dim));
  const at::Tensor angles = at::outer(at::arange(positions, f32), inverse);
  return at::cat({angles, angles}, -1).unsqueeze(1).unsqueeze(1);
}

MultiheadAttentionImpl::MultiheadAttentionImpl(MultiheadAttentionOptions options) : options_(std::move(options)) {
  complete(options_);
  reset();
}

Linear MultiheadAttentionImpl::add_linear(const std::string& name, std::int64_t in, std::int64_t out) {
  const auto& o = options_;
  const bool last = name == "proj";
  auto linear = with_options_of(
      o,
      LinearOptions{
          .in_features = in, .out_features = out, .return_bias = last && o.return_bias, .name = o.name + "." + name});
  if (last) linear.init_method = o.output_layer_init_method;
  return register_module(name, Linear(linear));
}

LayerNormLinear MultiheadAttentionImpl::add_norm_linear(const std::string& name, std::int64_t out) {
  const auto& o = options_;
  return register_module(name, LayerNormLinear(with_options_of(
                                   o, LayerNormLinearOptions{.in_features = o.hidden_size,
                                                             .out_features = out,
                                                             .eps = o.layernorm_epsilon,
                                                             .return_layernorm_output = o.return_layernorm_output,
                                                             .name = o.name + "." + name})));
}

void MultiheadAttentionImpl::reset() {
  const auto& o = options_;
  const Normalization kind = normalization_of(kName, o.normalization);
  const std::int64_t q_out = o.num_attention_heads * o.kv_channels, kv_out = o.num_gqa_groups * o.kv_channels;
  const bool self = o.attention_type == "self";
  if (o.fuse_qkv_params && self) {
    if (o.input_layernorm) {
      layernorm_qkv = add_norm_linear("layernorm_qkv", q_out + 2 * kv_out);
    } else {
      qkv = add_linear("qkv", o.hidden_size, q_out + 2 * kv_out);
    }
  } else {
    if (o.input_layernorm && self) {
      layernorm = AnyNorm(kind, norm_options(o, o.hidden_size, o.layernorm_epsilon));
      register_module("layernorm", layernorm.module());
    }
    if (o.input_layernorm && !self) {
      layernorm_query = add_norm_linear("layernorm_query", q_out);
    } else {
      query_layer = add_linear("query_layer", o.hidden_size, q_out);
    }
    if (o.fuse_qkv_params) {
      key_value = add_linear("key_value", o.hidden_size, 2 * kv_out);
    } else {
      key_layer = add_linear("key_layer", o.hidden_size, kv_out);
      value_layer = add_linear("value_layer", o.hidden_size, kv_out);
    }
  }
  core_attention = register_module(
      "core_attention", DotProductAttention(DotProductAttentionOptions{.num_attention_heads = o.num_attention_heads,
                                                                       .kv_channels = o.kv_channels,
                                                                       .num_gqa_groups = o.num_gqa_groups,
                                                                       .attention_dropout = o.attention_dropout,
                                                                       .qkv_format = o.qkv_format,
                                                                       .attn_mask_type = o.attn_mask_type,
                                                                       .window_size = o.window_size,
                                                                       .fp8_dpa = o.fp8_dpa,
                                                                       .name = o.name + ".core_attention"}));
  proj = add_linear("proj", q_out, o.hidden_size);
}

MultiheadAttentionImpl::Projected MultiheadAttentionImpl::project_fused_self(const at::Tensor& x,
                                                                             std::optional<bool> first) {
  const auto& o = options_;
  const std::int64_t groups = o.num_gqa_groups, per_group = o.num_attention_heads / groups, depth = o.kv_channels;
  Projected p;
  at::Tensor all;
  if (layernorm_qkv) {
    const ModuleOutputs out = layernorm_qkv->forward_all(x, first);
    all = out.y;
    p.normal = out.layernorm_output;
  } else {
    all = qkv->forward(x, first);
  }
  if (o.qkv_weight_interleaved) {
    all = all.unflatten(-1, {groups, per_group + 2, depth});
    p.q = all.narrow(-2, 0, per_group).flatten(-3, -2);
    p.k = all.select(-2, per_group);
    p.v = all.select(-2, per_group + 1);
  } else {
    all = all.unflatten(-1, {(per_group + 2) * groups, depth});
    p.q = all.narrow(-2, 0, o.num_attention_heads);
    p.k = all.narrow(-2, o.num_attention_heads, groups);
    p.v = all.narrow(-2, o.num_attention_heads + groups, groups);
  }
  return p;
}

std::pair<at::Tensor, at::Tensor> MultiheadAttentionImpl::project_fused_kv(const at::Tensor& x,
                                                                           std::optional<bool> first) {
  const std::int64_t groups = options_.num_gqa_groups, depth = options_.kv_channels;
  const at::Tensor both = key_value->forward(x, first);
  if (options_.qkv_weight_interleaved) {
    const at::Tensor pairs = both.unflatten(-1, {groups, 2, depth});
    return {pairs.select(-2, 0), pairs.select(-2, 1)};
  }
  const at::Tensor rows = both.unflatten(-1, {2 * groups, depth});
  return {rows.narrow(-2, 0, groups), rows.narrow(-2, groups, groups)};
}

MultiheadAttentionImpl::Projected MultiheadAttentionImpl::project(const at::Tensor& x, const at::Tensor& encoder_output,
                                                                  std::optional<bool> first) {
  if (layernorm_qkv || qkv) return project_fused_self(x, first);
  const std::int64_t heads = options_.num_attention_heads, groups = options_.num_gqa_groups,
                     depth = options_.kv_channels;
  Projected p;
  at::Tensor source = x, q;
  if (layernorm_query) {
    const ModuleOutputs out = layernorm_query->forward_all(x, first);
    q = out.y;
    p.normal = out.layernorm_output;
  } else {
    if (layernorm.module()) {
      source = layernorm(x);
      if (options_.return_layernorm_output) p.normal = source;
    }
    q = query_layer->forward(source, first);
  }
  p.q = q.unflatten(-1, {heads, depth});
  if (encoder_output.defined()) source = encoder_output;
  if (key_value) {
    std::tie(p.k, p.v) = project_fused_kv(source, first);
    return p;
  }
  p.k = key_layer->forward(source, first).unflatten(-1, {groups, depth});
  p.v = value_layer->forward(source, first).unflatten(-1, {groups, depth});
  return p;
}

ModuleOutputs MultiheadAttentionImpl::forward_all(const at::Tensor& hidden_states, const at::Tensor& attention_mask,
                                                  const at::Tensor& encoder_output,
                                                  std::optional<bool> is_first_microbatch,
                                                  const at::Tensor& rotary_pos_emb, const SequenceLengths& sequences) {
  const bool batch_first = options_.qkv_format == "bshd", thd = options_.qkv_format == "thd";
  const auto check = [&](const char* what, const at::Tensor& t) {
    TORCH_CHECK(t.dim() == (thd ? 2 : 3) && t.size(-1) == options_.hidden_size, "[", kName, "] '", options_.name,
                "': ", what, ": found sizes ", t.sizes(), ", allowed: ",
                thd           ? "[rows, "
                : batch_first ? "[batch, length, "
                              : "[length, batch, ",
                options_.hidden_size, "]");
  };
  check("hidden_states", hidden_states);
  const bool cross = options_.attention_type == "cross";
  TORCH_CHECK(encoder_output.defined() == cross, "[", kName, "] '", options_.name, "': encoder_output: found ",
              encoder_output.defined() ? "one" : "none", ", allowed with attention_type \"", options_.attention_type,
              "\": ", cross ? "one" : "none");
  if (cross) check("encoder_output", encoder_output);
  at::Tensor angles;
  if (rotary_pos_emb.defined()) {
    const std::string where = "[" + std::string(kName) + "] '" + options_.name + "'";
    TORCH_CHECK(!cross, where, ": rotary_pos_emb: found one, allowed with attention_type \"cross\": none");
    angles = angles_of_rows(where, rotary_pos_emb, options_.qkv_format, hidden_states.size(batch_first ? 1 : 0),
                            options_.kv_channels, sequences);
  }
  Projected p = project(hidden_states, encoder_output, is_first_microbatch);
  if (angles.defined()) {
    p.q = rotated(p.q, angles);
    p.k = rotated(p.k, angles);
  }
  const at::Tensor context = core_attention->forward(p.q, p.k, p.v, attention_mask, sequences);
  ModuleOutputs out;
  std::tie(out.y, out.bias) = proj->forward_with_bias(context, is_first_microbatch);
  out.layernorm_output = p.normal;
  return out;
}

void MultiheadAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::MultiheadAttention(hidden_size=" << options_.hidden_size
         << ", num_attention_heads=" << options_.num_attention_heads << ", num_gqa_groups=" << options_.num_gqa_groups
         << ", attention_type=" << options_.attention_type << ")";
}

TransformerLayerImpl::TransformerLayerImpl(TransformerLayerOptions options) : options_(std::move(options)) {
  check(options_);
  reset();
}

MultiheadAttention TransformerLayerImpl::add_attention(const std::string& name, bool cross) {
  const auto& o = options_;
  const bool normalized = cross || !o.output_layernorm;
  const auto a = with_options_of(
      o, MultiheadAttentionOptions{.hidden_size = o.hidden_size,
                                   .num_attention_heads = o.num_attention_heads,
                                   .kv_channels = o.kv_channels,
                                   .num_gqa_groups = o.num_gqa_groups,
                                   .attention_dropout = o.attention_dropout,
                                   .layernorm_epsilon = o.layernorm_epsilon,
                                   .attn_mask_type = cross ? o.enc_dec_attn_mask_type : o.self_attn_mask_type,
                                   .window_size = cross ? o.enc_dec_window_size : o.window_size,
                                   .attention_type = cross ? "cross" : "self",
                                   .input_layernorm = normalized,
                                   .return_layernorm_output = normalized && o.apply_residual_connection_post_layernorm,
                                   .fuse_qkv_params = o.fuse_qkv_params,
                                   .qkv_weight_interleaved = o.qkv_weight_interleaved,
                                   .qkv_format = o.attn_input_format,
                                   .fp8_dpa = o.fp8_dpa,
                                   .name = o.name + "." + name});
  return register_module(name, MultiheadAttention(a));
}

void TransformerLayerImpl::reset() {
  const auto& o = options_;
  self_attention = add_attention("self_attention", false);
  if (o.layer_type == "decoder") inter_attention = add_attention("inter_attention", true);
  layernorm_mlp = register_module(
      "layernorm_mlp", LayerNormMLP(with_options_of(
                           o, LayerNormMLPOptions{.hidden_size = o.hidden_size,
                                                  .ffn_hidden_size = o.ffn_hidden_size,
                                                  .eps = o.layernorm_epsilon,
                                                  .activation = o.activation,
                                                  .return_layernorm_output = o.apply_residual_connection_post_layernorm,
                                                  .checkpoint = o.checkpoint_mlp,
                                                  .name = o.name + ".layernorm_mlp"})));
  if (!o.output_layernorm) return;
  layernorm = AnyNorm(normalization_of(kLayer, o.normalization), norm_options(o, o.hidden_size, o.layernorm_epsilon));
  register_module("layernorm", layernorm.module());
}

at::Tensor TransformerLayerImpl::add_residual(const at::Tensor& x, const at::Tensor& residual) {
  return residual + (is_training() && options_.hidden_dropout > 0 ? at::dropout(x, options_.hidden_dropout, true) : x);
}

at::Tensor TransformerLayerImpl::forward(const at::Tensor& hidden_states, const at::Tensor& attention_mask,
                                         const at::Tensor& encoder_output, const at::Tensor& enc_dec_attn_mask,
                                         std::optional<bool> is_first_microbatch, const at::Tensor& rotary_pos_emb,
                                         const SequenceLengths& sequences) {
  TORCH_CHECK(encoder_output.defined() == static_cast<bool>(inter_attention), "[", kLayer, "] '", options_.name,
              "': encoder_output: found ", encoder_output.defined() ? "one" : "none", ", allowed with layer_type \"",
              options_.layer_type, "\": ", inter_attention ? "one" : "none");
  TORCH_CHECK(inter_attention || !enc_dec_attn_mask.defined(), "[", kLayer, "] '", options_.name,
              "': enc_dec_attn_mask: found one, allowed with layer_type \"encoder\": none");
  const auto or_normal = [](const ModuleOutputs& out, const at::Tensor& x) {
    return out.layernorm_output.defined() ? out.layernorm_output : x;
  };
  const bool padding = options_.self_attn_mask_type.find("padding") == 0,
             cross_padding = options_.enc_dec_attn_mask_type.find("padding") == 0;
  TORCH_CHECK(padding || (inter_attention && cross_padding) || !sequences.cu_seqlens_q.defined(), "[", kLayer, "] '",
              options_.name, "': cu_seqlens_q: found one, allowed with self_attn_mask_type \"",
              options_.self_attn_mask_type, "\": none");
  SequenceLengths own;  // of the self attention, whose keys are the queries' rows
  if (padding && !attention_mask.defined()) {
    own = sequences;
    if (inter_attention) {
      own.cu_seqlens_kv = own.cu_seqlens_kv_padded = at::Tensor();
      own.max_seqlen_kv = sequences.max_seqlen_q;
    }
  }
  const ModuleOutputs attention =
      self_attention->forward_all(hidden_states, attention_mask, {}, is_first_microbatch, rotary_pos_emb, own);
  if (options_.parallel_attention_mlp)
    return add_residual(attention.y + layernorm_mlp->forward(hidden_states, is_first_microbatch), hidden_states);
  at::Tensor h = add_residual(attention.y, or_normal(attention, hidden_states));
  if (inter_attention) {
    const bool of_lengths = cross_padding && !enc_dec_attn_mask.defined();
    const ModuleOutputs cross = inter_attention->forward_all(h, enc_dec_attn_mask, encoder_output, is_first_microbatch,
                                                             {}, of_lengths ? sequences : SequenceLengths());
    h = add_residual(cross.y, or_normal(cross, h));
  }
  const ModuleOutputs mlp = layernorm_mlp->forward_all(h, is_first_microbatch);
  const at::Tensor y = add_residual(mlp.y, or_normal(mlp, h));
  return layernorm.module() ? layernorm(y) : y;
}

void TransformerLayerImpl::pretty_print(std::ostream& stream) const {
  stream << "fp8::te::TransformerLayer(hidden_size=" << options_.hidden_size
         << ", ffn_hidden_size=" << options_.ffn_hidden_size << ", num_attention_heads=" << options_.num_attention_heads
         << ", layer_type=" << options_.layer_type << ")";
}

}  // namespace fp8::te
