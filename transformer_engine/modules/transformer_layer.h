// SPDX-License-Identifier: Apache-2.0
// One layer of a transformer, its products in fp8 inside an enabled fp8_autocast region.
//
//   encoder   h = x + drop(attention(norm(x)))                          y = h + drop(mlp(norm(h)))
//   decoder   between the two: h = h + drop(cross_attention(norm(h), encoder_output))
//   parallel_attention_mlp                                              y = x + drop(attention(norm(x)) + mlp(norm(x)))
//   apply_residual_connection_post_layernorm: norm(x) takes the place of x in every sum
//   output_layernorm: y = norm(y), and none before the self attention
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include "fp8/transformer_engine/modules/layer_norm_mlp.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"

namespace fp8::te {

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
