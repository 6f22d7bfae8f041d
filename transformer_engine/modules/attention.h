// SPDX-License-Identifier: Apache-2.0
// Scaled dot product attention, in high precision or in fp8.
//
//   S = scale q k^T        P = softmax(S)        o = P v             fp8 tensors of a forward pass: q, k, v, P
//   dP = do v^T            dS = P (dP - sum(P dP))                   of a backward pass: do, dS
//   dq = scale dS k        dk = scale dS^T q     dv = P^T do
//
// FusedAttention has the Gaudi dialect's arguments: inside an enabled fp8_autocast region it runs in fp8, elsewhere it
// is fused_sdpa(). DotProductAttention has those of NVIDIA's Transformer Engine: it is torch's
// scaled_dot_product_attention, bit for bit, unless fp8_dpa is set and an enabled region is in force; then it is a
// FusedAttention.
#pragma once
#include <torch/nn/pimpl.h>

#include "fp8/transformer_engine/modules/fp8_module.h"

namespace fp8::te {

struct FusedAttentionOptions {
  std::optional<double> scale = {};  ///< default 1 / sqrt(depth)
  double attention_dropout = 0.0;    ///< while the module is in training mode
  bool enable_recompute = false;     ///< keep the rows' statistics for the backward pass, not P
  std::string name = "fused_attention";
};

class FusedAttentionImpl : public Fp8Cloneable<FusedAttentionImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit FusedAttentionImpl(FusedAttentionOptions options = {});
  void reset() override;

  /// q: [B, H, L, D], k: [B, G, S, D], v: [B, G, S, Dv] of one dtype (f32, bf16, f16), H a multiple of G; or 3-D
  /// without heads. Result: [B, H, L, Dv] in the dtype of the autocast region in force, else of q. attention_mask: bool
  /// (true: seen) or added to S; broadcasts to [B, H, L, S]. is_causal: query i sees keys 0 to i. softmax_mode: "none",
  /// "fast". In fp8: fp8_attention.h.
  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& attention_mask = {}, bool is_causal = false,
                     const std::string& softmax_mode = "none");

  std::vector<std::shared_ptr<Fp8State>> fp8_states() const override { return {state_}; }
  void pretty_print(std::ostream& stream) const override;

  const FusedAttentionOptions& options() const { return options_; }
  /// Scales and histories of another owner (4 forward tensors, 2 backward ones) from now on.
  void use(std::shared_ptr<Fp8State> state) { state_ = std::move(state); }

 private:
  FusedAttentionOptions options_;
  std::shared_ptr<Fp8State> state_;
};
TORCH_MODULE(FusedAttention);

/// The ends of the sequences of a batch. cu_seqlens: [sequences + 1] of dtype Int or Long, 0 and then the sums of the
/// first 1, 2, ... lengths.
struct SequenceLengths {
  at::Tensor cu_seqlens_q = {}, cu_seqlens_kv = {};  ///< the second: default the first
  /// "thd": the row where each sequence begins (its end: the begin of the next), for batches with rows between
  /// sequences that belong to none. Default: one after the other.
  at::Tensor cu_seqlens_q_padded = {}, cu_seqlens_kv_padded = {};
  std::optional<std::int64_t> max_seqlen_q = {}, max_seqlen_kv = {};  ///< if set, no sequence may be longer
};

struct DotProductAttentionOptions {
  std::int64_t num_attention_heads = 0, kv_channels = 0;  ///< kv_channels: depth of one head
  std::int64_t num_gqa_groups = 0;                        ///< heads of k and v; 0: num_attention_heads
  double attention_dropout = 0.0;                         ///< while the module is in training mode
  std::string qkv_format = "sbhd";  ///< [length, batch, heads, depth], or "bshd", or packed "thd": [rows, heads, depth]
  /// "no_mask", "causal" (query i sees keys 0 to i), "causal_bottom_right" (the last query sees all keys), "padding",
  /// "padding_causal", "padding_causal_bottom_right", "arbitrary". "thd" takes the three of padding.
  std::string attn_mask_type = "causal";
  /// Query i sees keys i + d - first to i + d + second; -1: no limit. d is 0 for masks that are causal from the top
  /// left, else the sequence's keys less its queries, padding not counted.
  std::pair<std::int64_t, std::int64_t> window_size = {-1, -1};
  std::optional<double> softmax_scale = {};  ///< default 1 / sqrt(kv_channels)
  bool fp8_dpa = false;                      ///< in fp8 inside an enabled region; not with "thd"
  std::string name = "attention";
};

class DotProductAttentionImpl : public torch::nn::Cloneable<DotProductAttentionImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit DotProductAttentionImpl(DotProductAttentionOptions options);
  void reset() override;

  /// q: [L, B, H, D], k, v: [S, B, G, D] ("sbhd"; "bshd" has B first). Result: [L, B, H * D] ("bshd": [B, L, H * D]).
  /// attention_mask: bool, **true where a key is masked out**; padding masks: [B, 1, 1, S], padding behind the keys
  /// (with L = S it stands for the queries too, else all of them count); arbitrary: broadcasts to [B, H, L, S]; none
  /// with the other types. Padding masks may be given as `sequences` instead.
  ///
  /// "thd": q: [rows, H, D], k, v: [rows, G, D], and `sequences`; no mask. Result: [rows, H * D]: each sequence's
  /// attention by itself, as torch's scaled_dot_product_attention gives it; zero in rows of no sequence and in queries
  /// that see no key.
  ///
  /// Throws c10::Error naming the argument.
  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& attention_mask = {}, const SequenceLengths& sequences = {});

  void pretty_print(std::ostream& stream) const override;
  const DotProductAttentionOptions& options() const { return options_; }

  FusedAttention fused_attention{nullptr};  ///< with fp8_dpa

 private:
  at::Tensor one_sequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  at::Tensor packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const SequenceLengths& sequences) const;

  DotProductAttentionOptions options_;
};
TORCH_MODULE(DotProductAttention);

/// Of packed rows ("thd"), as the queries' lengths say: each row's place in its sequence, Long [rows] on the CPU (0 for
/// rows of none), and the longest sequence. Throw c10::Error naming the argument.
at::Tensor packed_positions(const SequenceLengths& sequences, std::int64_t rows);
std::int64_t packed_longest(const SequenceLengths& sequences, std::int64_t rows);

/// Throw c10::Error "[module] argument: found "x", allowed: ...".
void check_attn_mask_type(const char* module, const char* argument, const std::string& type);
void check_qkv_format(const char* module, const char* argument, const std::string& format);
/// thd: mask types that it takes, no attention in fp8.
void check_packed(const char* module, const std::string& format, const std::string& mask_type, bool fp8_dpa);

}  // namespace fp8::te
