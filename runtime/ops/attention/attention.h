// SPDX-License-Identifier: Apache-2.0
// The arithmetic below every sdpa operator, on matrices that are all fp8 codes or all of one high-precision dtype:
//
//   S  = (q . k^T) * score_factor + mask        -inf where a key is not visible (causal, valid_seq_len, bool mask)
//   P  = e^(S - max) / sum                      a row without a visible key gives zeros
//   O  = dropped(P) . v * value_factor          fp8: P is cast first, code = RNE(clamp(f32(P * p_scale)))
//
//   dP = dropped(dO . v^T * grad_factor)        dS = P (dP - sum over keys of P dP)
//   dQ = dS . k * dq_factor      dK = dS^T . q * dk_factor      dV = dropped(P)^T . dO * dv_factor
//
// Products are exact (but f32's own), sums f32, one rounding at the end. Work is done in blocks of query rows against
// all visible keys, so nothing of size L x S is held but what the caller asked for. The bits depend on neither the
// threads nor the blocks; those of fp8 forwards on the SIMD level, as kernels::gemm's do. Dropout of element e of P
// (counted through heads, rows, keys) is a function of (seed, e) alone.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "fp8/runtime/kernels/format.h"

namespace fp8::runtime::ops {

/// Batch dimensions of q, k and v broadcast; a head is one element of the result.
struct Heads {
  std::vector<std::int64_t> batch;
  std::int64_t count = 1, queries = 0, keys = 0, depth = 0, value_depth = 0;
  std::vector<std::int64_t> q, k, v;    ///< which matrix of each tensor a head reads
  std::int64_t heads_per_sequence = 1;  ///< heads that share an entry of valid_seq_len (one per index of dimension 0)

  std::vector<std::int64_t> sizes(std::int64_t rows, std::int64_t cols) const;  ///< batch + [rows, cols]
};

/// q: [..., L, D], k: [..., S, D], v: [..., S, Dv], at least 3-D, of one rank. Throws "[op] expected ...".
Heads heads_of(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Which keys a query may see.
class Visibility {
 public:
  /// valid_seq_len: int32 or int64, one length in [0, S] per sequence; its keys lie at the end ("left" padding) or at
  /// the start ("right").
  Visibility(const char* op, const Heads& heads, bool is_causal, const std::optional<at::Tensor>& valid_seq_len,
             std::string_view seq_padding_type);
  /// Keys [first, second) of row `row`.
  std::pair<std::int64_t, std::int64_t> keys(std::int64_t head, std::int64_t row) const;
  /// The union over rows [row, row + rows), cut outward to multiples of `grain`.
  std::pair<std::int64_t, std::int64_t> keys(std::int64_t head, std::int64_t row, std::int64_t rows,
                                             std::int64_t grain) const;

 private:
  std::int64_t keys_, heads_per_sequence_;
  bool is_causal_, left_ = false;
  std::vector<std::int64_t> valid_;
};

/// A mask that broadcasts to batch + [L, S]: bool (true: visible) or f32, bf16, f16 (added).
class MaskReader {
 public:
  MaskReader(const char* op, const Heads& heads, const std::optional<at::Tensor>& mask);
  /// Applies keys [first, first + n) of a row to n scores.
  void apply(std::int64_t head, std::int64_t row, std::int64_t first, std::int64_t n, float* scores) const;

 private:
  at::Tensor mask_;
  std::vector<std::int64_t> head_offset_;
  std::int64_t row_stride_ = 0, col_stride_ = 0;
};

/// Which elements of P survive: those whose 24 random bits, a function of (seed, element), are at least p * 2^24.
class Dropout {
 public:
  Dropout(const char* op, double p, std::int64_t seed);
  bool active() const { return active_; }
  bool keep(std::uint64_t element) const;
  double scale() const { return scale_; }  ///< 1 / (1 - p), 0 for p = 1

 private:
  bool active_ = false;
  std::uint64_t key_ = 0, threshold_ = 0;
  double scale_ = 1;
};

/// The inputs of forward and backward. q, k, v: contiguous, on hpu.
struct AttentionInputs {
  Heads heads;
  at::Tensor q, k, v;
  Visibility visible;
  MaskReader mask;
  Dropout dropout;
  float score_factor;
  kernels::Dialect dialect = kernels::Dialect::ocp;  ///< whose reading of E4M3 codes
};

struct ForwardOptions {
  float p_scale = 1;                                 ///< fp8: multiplier of P into codes
  float value_factor = 1;                            ///< of P . v, the dropout's scale included
  float o_scale = 1;                                 ///< fp8 outputs: multiplier of O into codes
  kernels::Dialect dialect = kernels::Dialect::ocp;  ///< of the casts
};

/// Undefined tensors are not asked for. out: batch + [L, Dv]; p: batch + [L, S], before dropout (fp8: the codes); dm:
/// int8, as p, 1 where kept; m, linv: batch + [L, 1], P = e^(S - m) * linv also after their rounding; amax_s, amax_o:
/// f32, one element, of P and O unscaled and unrounded.
struct ForwardOutputs {
  at::Tensor out, p, dm, m, linv, amax_s, amax_o;
};
void attention_forward(const AttentionInputs& inputs, const ForwardOptions& options, const ForwardOutputs& outputs);

struct BackwardOptions {
  at::Tensor grad;     ///< batch + [L, Dv], contiguous, high precision or fp8
  at::Tensor p;        ///< as forward gave it; or undefined, then recomputed from m and linv
  at::Tensor m, linv;  ///< batch + [L, 1]
  at::Tensor dm;       ///< as forward gave it; undefined: the inputs' dropout decides
  float p_factor = 1;  ///< of a given p: its dequantization multiplier
  std::optional<kernels::Format> p_format, ds_format;  ///< cast a recomputed P (for dV), and dS
  float p_scale = 1, ds_scale = 1;                     ///< multipliers of those casts
  float grad_factor = 1, dq_factor = 1, dk_factor = 1, dv_factor = 1;
  kernels::Dialect dialect = kernels::Dialect::ocp;
};

/// Gradients in the shapes of q, k and v (summed over what was broadcast), of any high-precision dtype; amax_ds may be
/// undefined.
struct BackwardOutputs {
  at::Tensor dq, dk, dv, amax_ds;
};
void attention_backward(const AttentionInputs& inputs, const BackwardOptions& options, const BackwardOutputs& outputs);

// Shared by attention_forward.cpp and attention_backward.cpp: conversions of rows, and the scores of a block of
// queries.

/// Elements [first, first + n) of a contiguous tensor (fp8: the codes' values as `dialect` reads them) as f32:
/// `scratch`, or the memory itself.
const float* as_f32(const at::Tensor& t, std::int64_t first, std::int64_t n, std::vector<float>& scratch,
                    kernels::Dialect dialect = kernels::Dialect::ocp);

/// f32 -> f32, bf16 or f16 at elements [first, first + n) of a contiguous tensor, RNE.
void store_f32(const float* x, std::int64_t n, const at::Tensor& t, std::int64_t first);

/// A pointer to element `first` of a contiguous tensor, to write or to read.
std::uint8_t* bytes_at(const at::Tensor& t, std::int64_t first);
const std::uint8_t* const_bytes_at(const at::Tensor& t, std::int64_t first);

/// The largest of magnitudes found by several threads; NaN wins.
class SharedAmax {
 public:
  void add(float amax);
  float value() const { return std::bit_cast<float>(bits_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<std::uint32_t> bits_{0};
};

/// Scores of rows [row, row + rows) against keys [first, last), rows `last - first` apart; scratch of its own, so one
/// per thread. Keeps K in f32 while consecutive calls share it.
class ScoreBlock {
 public:
  explicit ScoreBlock(const AttentionInputs& inputs) : in_(inputs) {}
  void compute(std::int64_t head, std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t last,
               float* scores);

 private:
  const AttentionInputs& in_;
  std::int64_t k_index_ = -1;
  std::vector<float> q_, k_;
  const float* k_rows_ = nullptr;
};

/// Rows of queries worked on together: 64, fewer where S is so long that their scores would pass 4 MiB.
std::int64_t block_rows(std::int64_t keys);

}  // namespace fp8::runtime::ops
