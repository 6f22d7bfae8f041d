// SPDX-License-Identifier: Apache-2.0
// Multi-head attention with its projections, which run in fp8 inside an enabled fp8_autocast region; the attention
// itself with fp8_dpa.
//
//   self    q, k, v = heads(x Wq^T + bq), heads(x Wk^T + bk), heads(x Wv^T + bv)      x: norm(hidden_states)
//                                                                                        with input_layernorm
//   cross   q from x, k and v from encoder_output
//   y = concat(attention(q, k, v)) Wo^T + bo
//
// With fuse_qkv_params one weight holds all three (cross: k and v). Its rows, for H heads in G groups of depth D:
// [G, H / G + 2, D] with qkv_weight_interleaved, else [H, D], [G, D], [G, D] one after the other.
// Without, each has its own weight and its own fp8 scales.
#pragma once

#include "fp8/transformer_engine/modules/attention.h"
#include "fp8/transformer_engine/modules/layer_norm.h"

namespace fp8::te {

struct MultiheadAttentionOptions {
  std::int64_t hidden_size = 0, num_attention_heads = 0;
  std::int64_t kv_channels = 0;     ///< depth of a head; 0: hidden_size / num_attention_heads
  std::int64_t num_gqa_groups = 0;  ///< heads of k and v; 0: num_attention_heads
  double attention_dropout = 0.1, layernorm_epsilon = 1e-5;
  std::string attn_mask_type = "causal";  ///< of DotProductAttention, as the next one
  std::pair<std::int64_t, std::int64_t> window_size = {-1, -1};
  std::string attention_type = "self";  ///< or "cross"
  bool input_layernorm = false;
  std::string normalization = "LayerNorm";  ///< or "RMSNorm"
  bool zero_centered_gamma = false;
  bool return_layernorm_output = false;  ///< forward_all() gives norm(hidden_states); needs input_layernorm
  bool bias = true;                      ///< of all projections
  bool return_bias = false;              ///< y comes without bo; forward_all() gives it
  bool fuse_qkv_params = false;
  bool qkv_weight_interleaved = true;
  /// hidden_states is [length, batch, hidden_size], with "bshd" [batch, length, hidden_size], with "thd" [rows,
  /// hidden_size].
  std::string qkv_format = "sbhd";
  bool fp8_dpa = false;
  at::ScalarType params_dtype = at::kFloat;  ///< f32, bf16 or f16
  InitMethod init_method = nullptr, output_layer_init_method = nullptr;
  at::Device device = at::Device(at::kHPU, 0);
  bool minimize_memory = false;
  std::string name = "self_attention";
  ParallelOptions parallel = {};
  bool fuse_wgrad_accumulation = false, delay_wgrad_compute = false;  ///< not built: refused
};

class MultiheadAttentionImpl : public torch::nn::Cloneable<MultiheadAttentionImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit MultiheadAttentionImpl(MultiheadAttentionOptions options);
  void reset() override;

  /// hidden_states: see qkv_format; attention_mask: see DotProductAttention; encoder_output: with attention_type
  /// "cross" alone, in the same format. rotary_pos_emb: angles [positions, 1, 1, R] by which q and k are turned (see
  /// rotary_position_embedding()), at least as many positions as the input has ("thd": as its longest sequence, each of
  /// which begins at position 0) and R <= depth, even; with attention_type "self" alone. sequences: with "thd" and
  /// padding masks, see DotProductAttention. Result: the sizes of hidden_states.
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& attention_mask = {},
                     const at::Tensor& encoder_output = {}, std::optional<bool> is_first_microbatch = std::nullopt,
                     const at::Tensor& rotary_pos_emb = {}, const SequenceLengths& sequences = {}) {
    return forward_all(hidden_states, attention_mask, encoder_output, is_first_microbatch, rotary_pos_emb, sequences).y;
  }
  ModuleOutputs forward_all(const at::Tensor& hidden_states, const at::Tensor& attention_mask = {},
                            const at::Tensor& encoder_output = {},
                            std::optional<bool> is_first_microbatch = std::nullopt,
                            const at::Tensor& rotary_pos_emb = {}, const SequenceLengths& sequences = {});

  void pretty_print(std::ostream& stream) const override;
  const MultiheadAttentionOptions& options() const { return options_; }

  LayerNormLinear layernorm_qkv{nullptr}, layernorm_query{nullptr};  ///< fused projections behind the norm: self, cross
  AnyNorm layernorm;                                                 ///< with separate projections
  Linear qkv{nullptr}, query_layer{nullptr}, key_layer{nullptr}, value_layer{nullptr}, key_value{nullptr};
  DotProductAttention core_attention{nullptr};
  Linear proj{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())}, {2, torch::nn::AnyValue(at::Tensor())},
                           {3, torch::nn::AnyValue(std::optional<bool>())}, {4, torch::nn::AnyValue(at::Tensor())},
                           {5, torch::nn::AnyValue(SequenceLengths())})

 private:
  struct Projected {
    at::Tensor q, k, v, normal;
  };
  Projected project(const at::Tensor& x, const at::Tensor& encoder_output, std::optional<bool> first);
  Projected project_fused_self(const at::Tensor& x, std::optional<bool> first);
  std::pair<at::Tensor, at::Tensor> project_fused_kv(const at::Tensor& x, std::optional<bool> first);
  Linear add_linear(const std::string& name, std::int64_t in, std::int64_t out);
  LayerNormLinear add_norm_linear(const std::string& name, std::int64_t out);

  MultiheadAttentionOptions options_;
};
TORCH_MODULE(MultiheadAttention);

/// Angles for rotary_pos_emb, f32 [positions, 1, 1, dim] of even dim: (position * base^(-2 i / dim)) for i < dim / 2,
/// twice. Element i of a head is turned against element i + dim / 2. Throws c10::Error naming the argument.
at::Tensor rotary_position_embedding(std::int64_t dim, std::int64_t positions, double base = 10000.0,
                                     at::Device device = at::Device(at::kHPU, 0));
/// Of rotary_pos_emb those of each of the rows of q and k, as rotated() takes them: [rows, 1, 1, R], of "bshd" [1,
/// rows, 1, R], of "thd" [rows, 1, R], each sequence from position 0. Throws c10::Error, which begins with `where`.
at::Tensor angles_of_rows(const std::string& where, const at::Tensor& angles, const std::string& qkv_format,
                          std::int64_t rows, std::int64_t depth, const SequenceLengths& sequences);
/// x: [..., depth], angles: [..., R] broadcasting to it; the first R of depth are turned: x cos + [-x2, x1] sin of the
/// halves x1, x2.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& angles);

// One layer of a transformer, its products in fp8 inside an enabled fp8_autocast region.
//
//   encoder   h = x + drop(attention(norm(x)))                          y = h + drop(mlp(norm(h)))
//   decoder   between the two: h = h + drop(cross_attention(norm(h), encoder_output))
//   parallel_attention_mlp                                              y = x + drop(attention(norm(x)) + mlp(norm(x)))
//   apply_residual_connection_post_layernorm: norm(x) takes the place of x in every sum
//   output_layernorm: y = norm(y), and none before the self attention

struct TransformerLayerOptions {
  std::int64_t hidden_size = 0, ffn_hidden_size = 0, num_attention_heads = 0;
  std::int64_t num_gqa_groups = 0, kv_channels = 0;  ///< as in MultiheadAttention
  double layernorm_epsilon = 1e-5, hidden_dropout = 0.1, attention_dropout = 0.1;
  std::string self_attn_mask_type = "causal",
              enc_dec_attn_mask_type = "no_mask";  ///< of DotProductAttention, as the windows
  std::pair<std::int64_t, std::int64_t> window_size = {-1, -1}, enc_dec_window_size = {-1, -1};
  std::string layer_type = "encoder";  ///< or "decoder": with cross attention to encoder_output
  bool apply_residual_connection_post_layernorm = false, output_layernorm = false;
  bool parallel_attention_mlp = false;  ///< with layer_type "encoder" and neither of the two above
  bool fuse_qkv_params = false, qkv_weight_interleaved = true;
  std::string normalization = "LayerNorm";  ///< or "RMSNorm"
  bool zero_centered_gamma = false;
  std::string activation = "gelu";  ///< of LayerNormMLP
  bool bias = true;
  /// hidden_states is [length, batch, hidden_size], with "bshd" [batch, length, hidden_size], with "thd" [rows,
  /// hidden_size].
  std::string attn_input_format = "sbhd";
  bool fp8_dpa = false;
  bool checkpoint_mlp = false;               ///< LayerNormMLP's `checkpoint`
  at::ScalarType params_dtype = at::kFloat;  ///< f32, bf16 or f16
  InitMethod init_method = nullptr, output_layer_init_method = nullptr;
  at::Device device = at::Device(at::kHPU, 0);
  bool minimize_memory = false;
  std::string name = "layer";
  ParallelOptions parallel = {};
  bool fuse_wgrad_accumulation = false, delay_wgrad_compute = false;  ///< not built: refused
};

class TransformerLayerImpl : public torch::nn::Cloneable<TransformerLayerImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit TransformerLayerImpl(TransformerLayerOptions options);
  void reset() override;

  /// hidden_states: see attn_input_format. attention_mask, enc_dec_attn_mask: bool, true where a key is masked out (see
  /// DotProductAttention). encoder_output: with layer_type "decoder" alone. rotary_pos_emb: of the self attention (see
  /// MultiheadAttention). sequences: with "thd" and padding masks; those of keys and values are the cross attention's.
  /// Result: the sizes of hidden_states.
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& attention_mask = {},
                     const at::Tensor& encoder_output = {}, const at::Tensor& enc_dec_attn_mask = {},
                     std::optional<bool> is_first_microbatch = std::nullopt, const at::Tensor& rotary_pos_emb = {},
                     const SequenceLengths& sequences = {});

  void pretty_print(std::ostream& stream) const override;
  const TransformerLayerOptions& options() const { return options_; }

  MultiheadAttention self_attention{nullptr}, inter_attention{nullptr};
  LayerNormMLP layernorm_mlp{nullptr};
  AnyNorm layernorm;  ///< with output_layernorm

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())}, {2, torch::nn::AnyValue(at::Tensor())},
                           {3, torch::nn::AnyValue(at::Tensor())}, {4, torch::nn::AnyValue(std::optional<bool>())},
                           {5, torch::nn::AnyValue(at::Tensor())}, {6, torch::nn::AnyValue(SequenceLengths())})

 private:
  MultiheadAttention add_attention(const std::string& name, bool cross);
  at::Tensor add_residual(const at::Tensor& x, const at::Tensor& residual);

  TransformerLayerOptions options_;
};
TORCH_MODULE(TransformerLayer);

}  // namespace fp8::te
