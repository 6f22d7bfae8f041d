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

#include <bit>
#include <tuple>

#include "fp8/runtime/ops/common/edge.h"

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
  at::Tensor out = {}, p = {}, dm = {}, m = {}, linv = {}, amax_s = {}, amax_o = {};
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

// Shared by both passes of attention (attention_passes.cpp): conversions of rows, and the scores of a block of
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

/// The offset of each index of `sizes` with these strides; the last dimension runs fastest.
std::vector<std::int64_t> offsets_of(at::IntArrayRef sizes, at::IntArrayRef strides);

/// Rows of queries worked on together: 64, fewer where S is so long that their scores would pass 4 MiB.
std::int64_t block_rows(std::int64_t keys);

// sdpa.cpp: hpu::sdpa_*, fp8_sdpa_*: what their arguments mean, their checks and their results.
//
//   d_scale_*  dequantization multipliers    q_scale_*  multipliers into fp8    s = softmax, o = output, do, ds = grads
//   P is cast with q_scale_s (default 1) and undone with d_scale_s (default 1 / q_scale_s); dS likewise, in grad's
//   format (E5M2 where grad is in high precision). fp8 q: out has q's dtype if q_scale_o is given, else bf16; P has q's
//   dtype.
//   amax_*: f32, shape {1}, of the unscaled values; 0 where not asked for.
//
// Scales belong to fp8 operands: beside high-precision q, k, v they are refused by name. softmax_mode "fast" changes no
// number here, only linv's dtype (as the vendor's). mask and is_causal may be given together: both apply. fwd_out is
// what the forward gave; the sum over keys of P dP is taken as it stands, so only its sizes are read.

/// The arguments that every forward has.
struct SdpaOptions {
  const std::optional<at::Tensor>& mask;
  double p = 0;      ///< dropout
  double scale = 1;  ///< of q . k^T
  bool is_causal = false;
  std::string_view softmax_mode;
  const std::optional<at::Tensor>& valid_seq_len;  ///< int32 or int64 [batch], of the keys
  std::string_view seq_padding_type;               ///< left | right
  std::optional<at::Tensor> seed;                  ///< one int32 or int64; without it one is drawn when p > 0
};

/// One element each, or none. With none of them an operand's multiplier is 1.
struct SdpaScales {
  Scale d_q, d_k, d_v, d_s, d_do, d_ds;
  Scale q_s, q_o, q_ds;
};

/// Tensors only, no arithmetic: sizes and dtypes of the results, for meta tensors too.
enum class Run { meta, real };

using SdpaResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;                    // out, P, dm
using SdpaRecompResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // out, m, linv, seed
using Fp8SdpaResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;     // out, P, dm, amax_s
using Fp8SdpaRecompResult =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // ..., seed, amax_s, amax_o
using SdpaGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;                    // dq, dk, dv
using Fp8SdpaGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;     // ..., amax_ds

/// q: [..., L, D], k: [..., S, D], v: [..., S, Dv] of one rank >= 3, batch dimensions broadcast. dm: int8, {1} when p
/// is 0.
Fp8SdpaResult sdpa_forward(const char* op, Run run, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const SdpaOptions& options, const SdpaScales& scales, bool is_amax_s);

/// m, linv: [..., L, 1], seed: int32 {1}; {1} each (and 0) unless requires_backward.
Fp8SdpaRecompResult sdpa_recomp_forward(const char* op, Run run, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const SdpaOptions& options, const SdpaScales& scales,
                                        bool requires_backward, bool is_amax_s, bool is_amax_o);

/// The results of a forward that its backward needs: P and dm, or m, linv, seed and the mask.
struct SdpaSaved {
  at::Tensor p, m, linv;
  std::optional<at::Tensor> dm, seed, mask;
};

/// grad, fwd_out: [..., L, Dv]. Gradients in `dtype`; amax_ds {1}.
Fp8SdpaGradients sdpa_backward(const char* op, Run run, const at::Tensor& grad, const at::Tensor& q,
                               const at::Tensor& k, const at::Tensor& v, const SdpaSaved& saved, bool is_causal,
                               double p, double scale, const SdpaScales& scales, bool is_amax_ds,
                               const at::Tensor& fwd_out, at::ScalarType dtype);

// norm_rotary_softmax.cpp: hpu::rms_norm, rms_norm_fast and their backwards.
//
//   r = 1 / sqrt(mean(x^2) + epsilon)       y = x * r * gamma                over the last dimension, of size N
//   dx = r * (g - x r * mean(g * x r))      dgamma = sum over rows of dy * x r        g = dy * gamma
//
// f32, sums in f64, one rounding. Results have x's dtype when all inputs share it, else f32. The fast forms give the
// same numbers; use_stages and bwd_mode (0 or 1) choose kernels on the device and nothing here.

/// data_in: [..., N], gamma: [N]; f32, bf16 or f16 each. Returns {y, r [..., 1]}.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& data_in, const at::Tensor& gamma, double epsilon);
std::tuple<at::Tensor, at::Tensor> rms_norm_meta(const at::Tensor& data_in, const at::Tensor& gamma, double epsilon);

/// grad_in: [..., N] (dy), inverse_rms: [..., 1]. Returns {dx, dgamma}.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_in, const at::Tensor& data_in,
                                                     const at::Tensor& gamma, const at::Tensor& inverse_rms,
                                                     bool use_stages, int64_t bwd_mode);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor& grad_in, const at::Tensor& data_in,
                                                          const at::Tensor& gamma, const at::Tensor& inverse_rms,
                                                          bool use_stages, int64_t bwd_mode);

// hpu::rotary_pos_embedding and its backward. Note the order: sin before cos.
//
//   mode 0, BLOCKWISE   y = x * cos + rotate(x) * sin    rotate(x) = [-x2, x1], x1, x2 the halves of the last dimension
//   mode 1, PAIRWISE                                     rotate(x) = [-x1, x0, -x3, x2, ...]
//   backward            dx = dy * cos + rotate^T(dy * sin)
//
// f32 products and sum, one rounding to x's dtype.

/// input: [..., D], D even, f32, bf16 or f16. sin, cos: high precision, of equal sizes; columns [offset, offset + D) of
/// their last dimension are used (offset != 0 for BLOCKWISE only).
///  - without position_ids they broadcast to input (last dimension aside);
///  - with position_ids, int32 or int64 [B, T] (or [1, T], [T]) for an input [B, H, T, D] or [B, T, D], they are tables
///    [..., positions, D], leading sizes 1, and row position_ids[b, t] is used.
/// backward = true: input is the gradient of the output.
at::Tensor rotary_pos_embedding(const at::Tensor& input, const at::Tensor& sin, const at::Tensor& cos,
                                const std::optional<at::Tensor>& position_ids, int64_t offset, int64_t mode,
                                bool backward);
at::Tensor rotary_pos_embedding_meta(const at::Tensor& input, const at::Tensor& sin, const at::Tensor& cos,
                                     const std::optional<at::Tensor>& position_ids, int64_t offset, int64_t mode);

// hpu::softmax_fp8.
//
//   y = softmax(x * inv_attn_heads * input_scale + fused_add) * output_scale      over the last dimension
//
// f32 inside, one rounding: to bf16 without scales, else to E4M3 as the device saturates. A row of -inf gives zeros.

/// One element each, or none; both of input and output or none of them.
struct SoftmaxScales {
  Scale input, output, inv_attn_heads;
};

/// input: bf16, or E4M3 with scales. fused_add: bf16, of input's rank, first and last size equal to input's, the others
/// equal or 1; only with scales.
at::Tensor softmax_fp8(const at::Tensor& input, int64_t dim, const SoftmaxScales& scales,
                       const std::optional<at::Tensor>& fused_add);
at::Tensor softmax_fp8_meta(const at::Tensor& input, int64_t dim, const SoftmaxScales& scales,
                            const std::optional<at::Tensor>& fused_add);

}  // namespace fp8::runtime::ops
