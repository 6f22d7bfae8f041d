// SPDX-License-Identifier: Apache-2.0
// DeBERTa's disentangled attention (arXiv:2006.03654): scores also say how a query and a key agree with the distance
// between them, for which a table [2 S, H], one for all layers, has rows:
//
//   s_ij = scale (q_i k_j + q_i pk_r + pq_r k_j),   pk = key(table), pq = query(table), r = row(i - j)
//   row(d) = clamp(bucket(d) + S, 0, 2 S - 1)
//   bucket(d): d up to h = buckets / 2, then sign(d) (h + ceil(ln(|d| / h) / ln((reach - 1) / h) (h - 1)))
//
// key and query are the projections that k and q come from, or the layer's own. The products are nodes, matmul_c2p and
// matmul_p2c, beside the three of attention. Shapes: batch B, heads A, length L, head_dim D.
#pragma once
#include <torch/nn/modules/linear.h>

#include "fp8/runtime/modules/op_modules.h"
#include "fp8/tools/models/decoder/decoder_math.h"

namespace fp8::models {

/// What the layers of one forward share.
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
