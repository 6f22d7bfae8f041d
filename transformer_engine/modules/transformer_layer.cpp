// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/transformer_layer.h"

#include <ATen/ops/dropout.h>

#include <ostream>

namespace fp8::te {
namespace {

constexpr const char* kName = "te::TransformerLayer";

void check(const TransformerLayerOptions& o) {
  check_size(kName, "hidden_size", o.hidden_size);
  check_size(kName, "ffn_hidden_size", o.ffn_hidden_size);
  check_size(kName, "num_attention_heads", o.num_attention_heads);
  TORCH_CHECK(o.layer_type == "encoder" || o.layer_type == "decoder", "[", kName, "] layer_type: found \"",
              o.layer_type, "\", allowed: \"encoder\", \"decoder\"");
  TORCH_CHECK(o.hidden_dropout >= 0 && o.hidden_dropout <= 1, "[", kName, "] hidden_dropout: found ", o.hidden_dropout,
              ", allowed: 0 to 1");
  check_attn_mask_type(kName, "self_attn_mask_type", o.self_attn_mask_type);
  check_attn_mask_type(kName, "enc_dec_attn_mask_type", o.enc_dec_attn_mask_type);
  check_qkv_format(kName, "attn_input_format", o.attn_input_format);
  check_packed(kName, o.attn_input_format, o.self_attn_mask_type, o.fp8_dpa);
  TORCH_CHECK(!o.parallel_attention_mlp ||
                  (o.layer_type == "encoder" && !o.apply_residual_connection_post_layernorm && !o.output_layernorm),
              "[", kName,
              "] parallel_attention_mlp: found true, allowed with layer_type \"encoder\" and neither "
              "apply_residual_connection_post_layernorm nor "
              "output_layernorm");
  check_parallel(kName, o.parallel);
  refuse_wgrad_options(kName, o.fuse_wgrad_accumulation, o.delay_wgrad_compute);
}

}  // namespace

TransformerLayerImpl::TransformerLayerImpl(TransformerLayerOptions options) : options_(std::move(options)) {
  check(options_);
  reset();
}

MultiheadAttention TransformerLayerImpl::add_attention(const std::string& name, bool cross) {
  const auto& o = options_;
  MultiheadAttentionOptions a;
  a.hidden_size = o.hidden_size;
  a.num_attention_heads = o.num_attention_heads;
  a.kv_channels = o.kv_channels;
  a.num_gqa_groups = o.num_gqa_groups;
  a.attention_dropout = o.attention_dropout;
  a.layernorm_epsilon = o.layernorm_epsilon;
  a.attn_mask_type = cross ? o.enc_dec_attn_mask_type : o.self_attn_mask_type;
  a.window_size = cross ? o.enc_dec_window_size : o.window_size;
  a.attention_type = cross ? "cross" : "self";
  a.input_layernorm = cross || !o.output_layernorm;
  a.normalization = o.normalization;
  a.zero_centered_gamma = o.zero_centered_gamma;
  a.return_layernorm_output = a.input_layernorm && o.apply_residual_connection_post_layernorm;
  a.bias = o.bias;
  a.fuse_qkv_params = o.fuse_qkv_params;
  a.qkv_weight_interleaved = o.qkv_weight_interleaved;
  a.qkv_format = o.attn_input_format;
  a.fp8_dpa = o.fp8_dpa;
  a.params_dtype = o.params_dtype;
  a.init_method = o.init_method;
  a.output_layer_init_method = o.output_layer_init_method;
  a.device = o.device;
  a.minimize_memory = o.minimize_memory;
  a.name = o.name + "." + name;
  return register_module(name, MultiheadAttention(a));
}

void TransformerLayerImpl::reset() {
  const auto& o = options_;
  self_attention = add_attention("self_attention", false);
  if (o.layer_type == "decoder") inter_attention = add_attention("inter_attention", true);
  LayerNormMLPOptions m;
  m.hidden_size = o.hidden_size;
  m.ffn_hidden_size = o.ffn_hidden_size;
  m.eps = o.layernorm_epsilon;
  m.normalization = o.normalization;
  m.activation = o.activation;
  m.zero_centered_gamma = o.zero_centered_gamma;
  m.bias = o.bias;
  m.return_layernorm_output = o.apply_residual_connection_post_layernorm;
  m.checkpoint = o.checkpoint_mlp;
  m.params_dtype = o.params_dtype;
  m.init_method = o.init_method;
  m.output_layer_init_method = o.output_layer_init_method;
  m.device = o.device;
  m.minimize_memory = o.minimize_memory;
  m.name = o.name + ".layernorm_mlp";
  layernorm_mlp = register_module("layernorm_mlp", LayerNormMLP(m));
  if (!o.output_layernorm) return;
  layernorm = AnyNorm(normalization_of(kName, o.normalization), {.normalized_shape = o.hidden_size,
                                                                 .eps = o.layernorm_epsilon,
                                                                 .zero_centered_gamma = o.zero_centered_gamma,
                                                                 .params_dtype = o.params_dtype,
                                                                 .device = o.device});
  register_module("layernorm", layernorm.module());
}

at::Tensor TransformerLayerImpl::add_residual(const at::Tensor& x, const at::Tensor& residual) {
  return residual + (is_training() && options_.hidden_dropout > 0 ? at::dropout(x, options_.hidden_dropout, true) : x);
}

at::Tensor TransformerLayerImpl::forward(const at::Tensor& hidden_states, const at::Tensor& attention_mask,
                                         const at::Tensor& encoder_output, const at::Tensor& enc_dec_attn_mask,
                                         std::optional<bool> is_first_microbatch, const at::Tensor& rotary_pos_emb,
                                         const SequenceLengths& sequences) {
  TORCH_CHECK(encoder_output.defined() == static_cast<bool>(inter_attention), "[", kName, "] '", options_.name,
              "': encoder_output: found ", encoder_output.defined() ? "one" : "none", ", allowed with layer_type \"",
              options_.layer_type, "\": ", inter_attention ? "one" : "none");
  TORCH_CHECK(inter_attention || !enc_dec_attn_mask.defined(), "[", kName, "] '", options_.name,
              "': enc_dec_attn_mask: found one, allowed with layer_type \"encoder\": none");
  const auto or_normal = [](const ModuleOutputs& out, const at::Tensor& x) {
    return out.layernorm_output.defined() ? out.layernorm_output : x;
  };
  const bool padding = options_.self_attn_mask_type.find("padding") == 0,
             cross_padding = options_.enc_dec_attn_mask_type.find("padding") == 0;
  TORCH_CHECK(padding || (inter_attention && cross_padding) || !sequences.cu_seqlens_q.defined(), "[", kName, "] '",
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
