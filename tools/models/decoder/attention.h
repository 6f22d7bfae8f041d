// SPDX-License-Identifier: Apache-2.0
// Self-attention of decoder layers, whatever a family makes of it (description.h):
//
//   s = scale q k^T  (+ slopes * positions, cap tanh(s / cap));   y = out(softmax(s over what a row sees) v)
//
// The pieces that hold no weight are modules too, named as optimum-habana's, so that they can be measured and run in
// fp8:
//   both   k_cache, v_cache     fused   fused_scaled_dot_product_attention     eager   matmul_qk, softmax, matmul_av
// Latent attention (DeepSeek-V2, arXiv:2405.04434) keeps c and the one turned key part of all heads, and nothing else:
//
//   k_h = [W_k,h c, k_rope], v_h = W_v,h c    W_k and W_v: rows of kv_b_proj
//   few rows over many columns: s_h = [W_k,h' q_h, q_rope] [c, k_rope],  y_h = W_v,h (softmax(s_h) c)
//
// k_cache holds [c, k_rope]; v_cache nothing: its scale, that engines ask for, is of c.
// Soft caps and sinks, which no fused operation computes, are eager whatever is asked for.
#pragma once

#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/models/decoder/decoder_math.h"

namespace fp8::models {

// DeBERTa's disentangled attention (arXiv:2006.03654): scores also say how a query and a key agree with the distance
// between them, for which a table [2 S, H], one for all layers, has rows:
//
//   s_ij = scale (q_i k_j + q_i pk_r + pq_r k_j),   pk = key(table), pq = query(table), r = row(i - j)
//   row(d) = clamp(bucket(d) + S, 0, 2 S - 1)
//   bucket(d): d up to h = buckets / 2, then sign(d) (h + ceil(ln(|d| / h) / ln((reach - 1) / h) (h - 1)))
//
// key and query are the projections that k and q come from, or the layer's own. The products are nodes, matmul_c2p and
// matmul_p2c, beside the three of attention. Shapes: batch B, heads A, length L, head_dim D.

/// The distances that the layers of one forward share.
struct Distances {
  at::Tensor table;  ///< its rows from the first to the last that is asked for, [1, R, H], in the compute dtype
  at::Tensor rows;   ///< of `table`, for query i and key j: [L, L] int64
};

/// Of the table of 2 S: [length, length] int64 on the CPU.
at::Tensor distance_rows(const DistanceSpec& spec, std::int64_t length);

class DisentangledScores {
 public:
  DisentangledScores() = default;
  /// Registers the nodes and own projections below `attention`, whose q and k come from `query` and `key`.
  DisentangledScores(const DecoderConfig& config, torch::nn::Module& attention, torch::nn::Linear query,
                     torch::nn::Linear key);
  explicit operator bool() const { return c2p_ || p2c_; }
  /// q, k [B, A, L, D] -> what their product gets before it is scaled, [B, A, L, L].
  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const Distances& distances);

 private:
  torch::nn::Linear query_{nullptr}, key_{nullptr};
  runtime::Matmul c2p_{nullptr}, p2c_{nullptr};  // content to position, position to content; null: not added
};

/// Which columns of the keys the rows of one forward see, for layers of one kind.
struct Sight {
  std::int64_t first = 0;  ///< columns in front of it are seen by no row
  /// bool [L, columns - first] or [B, 1, L, columns - first], or what scores get, [1 or B, A, L, columns - first], -inf
  /// where a row does not see; undefined: `causal` says it.
  at::Tensor mask = {};
  /// bool [L + columns - first - 1], of rows that all see as far: what row i sees of column j is band[L - 1 - i + j].
  /// A mask would grow with both, and again where it gets the scores' dtype. Undefined: `mask` or `causal` says it.
  at::Tensor band = {};
  bool causal = false;  ///< row i of L sees columns 0..i; else all

  /// `mask`, of the band where there is one.
  at::Tensor seen(std::int64_t rows) const;
};

/// The inputs of a layer's attention from the forward that it is in.
struct LayerInputs {
  const RotaryAngles* angles = nullptr;  ///< null: no rotary embedding
  Sight sight;
  at::Tensor query_scale;  ///< [L, 1] or undefined
  KVCache* cache = nullptr;
  const Distances* distances = nullptr;  ///< null: scores get none
  at::Tensor source = {};  ///< hidden states of what forward_cross() looks at, [B, S, H]; undefined: the cache knows it
};

class DecoderAttentionImpl : public torch::nn::Module {
 public:
  DecoderAttentionImpl(const DecoderConfig& config, std::size_t layer);
  /// x [B, L, H] -> [B, L, H].
  at::Tensor forward(const at::Tensor& x, const LayerInputs& inputs);
  /// forward() with the queries of x and the keys and values of a source text.
  at::Tensor forward_cross(const at::Tensor& x, const LayerInputs& inputs);

  /// The cast that forward() makes of an x like this one.
  runtime::NextCast input_cast(const at::Tensor& like) const;

  runtime::KVCache k_cache{nullptr}, v_cache{nullptr};

 private:
  struct Heads {
    at::Tensor q, k, v;  ///< [B, A, L, D], [B, K, L, D], [B, K, L, D of v]
  };
  void add_projections(const DecoderConfig& config);
  void add_latent_projections(const DecoderConfig& config);
  void add_head_norms(const DecoderConfig& config);
  void add_nodes(const DecoderConfig& config);
  Heads project(const at::Tensor& x);
  at::Tensor forward_latent(const at::Tensor& x, const LayerInputs& inputs);
  at::Tensor expanded(const at::Tensor& q, const at::Tensor& latent, const Sight& sight);
  at::Tensor absorbed(const at::Tensor& q, const at::Tensor& latent, const Sight& sight);
  at::Tensor latent_weight();
  at::Tensor split(const at::Tensor& y) const;
  at::Tensor normed(const at::Tensor& heads, Norm& norm, torch::nn::ModuleList& norms) const;
  at::Tensor rotated(const at::Tensor& heads, const RotaryAngles& angles) const;
  at::Tensor over_codes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const LayerInputs& inputs);
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sight& sight,
                    std::int64_t group);
  bool shares_heads(std::int64_t batch, std::int64_t group, const Sight& sight, const LayerInputs& inputs) const;
  at::Tensor attend_band(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& band);
  at::Tensor attend_shared(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sight& sight);
  at::Tensor eager(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask, bool causal,
                   std::int64_t group);
  at::Tensor with_slopes(const at::Tensor& q, const at::Tensor& k, const Sight& sight, std::int64_t group) const;

  AttentionSpec spec_;
  std::int64_t heads_, kv_heads_;
  double scale_;
  std::size_t layer_;
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, qkv_{nullptr}, out_{nullptr};
  torch::nn::Linear q_a_{nullptr}, kv_a_{nullptr}, kv_b_{nullptr};  // latent
  Norm q_a_norm_{nullptr}, kv_a_norm_{nullptr};
  std::weak_ptr<const void> latent_handler_;  // whose codes latent_values_ are the values of
  at::Tensor latent_values_;
  Norm q_norm_{nullptr}, k_norm_{nullptr};
  torch::nn::ModuleList q_norms_{nullptr}, k_norms_{nullptr};  // HeadNorm::modules
  at::Tensor sinks_;                                           // [A]
  at::Tensor slopes_;                                          // [A], f32
  DisentangledScores disentangled_;
  runtime::ModuleFusedSDPA fused_{nullptr};
  runtime::Matmul matmul_qk_{nullptr}, matmul_av_{nullptr};
  runtime::Softmax softmax_{nullptr};
};
TORCH_MODULE(DecoderAttention);

// The tokens that those of one forward may see, of themselves and of a cache.
//
//   row i sees column j   where j <= i, j >= start of its sequence, i - j < window, and both are in one chunk
//
// Rows and columns are places in the cache; positions count from a sequence's start.

/// The rows of one forward.
struct Rows {
  std::int64_t first = 0, count = 0;      ///< of the cache's columns
  std::vector<std::int64_t> starts = {};  ///< of each sequence; empty: all 0
  bool causal = true;                     ///< else a row sees columns after it too, in a window as far as before it

  /// Positions [1 or B, count], f32 on the CPU.
  at::Tensor positions() const;
  /// The largest position + 1.
  std::int64_t in_use() const;
};

/// Of layers of one kind. device: of the mask.
Sight sight_of(const Rows& rows, const LayerKind& kind, at::Device device);

// T5's biases of scores by distance (arXiv:1910.10683): a table [buckets, heads], which bucket a key is in says how far
// it is in front of the query.
//
//   n buckets (of an encoder: half of them; the other half are for keys behind the query), e = n / 2, distance d
//   d < e: bucket d;   else: e + floor(ln(d / e) / ln(reach / e) (n - e)), at most n - 1

/// Of the queries at positions [first, first + rows) and the keys at [0, first + rows): [rows, columns] int64 on the
/// CPU. both_ways: as in an encoder.
at::Tensor distance_buckets(const BucketSpec& spec, std::int64_t first, std::int64_t rows, bool both_ways);

/// bias [rows, columns, A] -> [1 or B, A, rows, columns], -inf where `sight`, which begins in column 0, does not see.
at::Tensor seen_bias(const at::Tensor& bias, const Sight& sight);

// Slopes of attention with linear biases (ALiBi, arXiv:2108.12409).

/// [heads], f32 on the CPU: 2^(-max (i + 1) / heads) for a power of two. Of n heads between powers p < n < 2p: those of
/// p, then every second of 2p's.
at::Tensor alibi_slopes(std::int64_t heads, double max);

// DeBERTa-v2's convolution beside the first layer, over the K tokens around each (zeros beyond the ends):
//
//   h = norm(y + act(conv(x)))     x: what the layer took, y: what it gave
//
// It has no place in fp8: conv.weight [H, H / groups, K] stays in high precision.

class ConvolutionImpl : public torch::nn::Module {
 public:
  explicit ConvolutionImpl(const DecoderConfig& config);
  /// x, y [B, L, H] -> [B, L, H].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y);

 private:
  ConvolutionSpec spec_;
  at::Tensor weight_, bias_;  // [H, H / groups, K], [H]
  Norm norm_{nullptr};
};
TORCH_MODULE(Convolution);

}  // namespace fp8::models
