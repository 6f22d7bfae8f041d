// SPDX-License-Identifier: Apache-2.0
// y[M, N] = (A[M, K] . W[N, K]^T) * a_scale_inv * w_scale_inv + bias, W in fp8.
//
// Files of a product, in gemm/:
//
//   gemm.cpp               checks; the cut into chunks of rows, groups of channels, ranges of k; calls all that follows
//   gemm_operands.*        rows of A -> tiles in the order that the level reads (XLayout); scales folded into values,
//                          panels of row-major weights, gaudi2's infinite and NaN codes
//   gemm_kernels.h         what gemm.cpp asks of a level: plan(m), pack_lines, multiply, multiply_row_major, finish
//   gemm_{scalar,avx2,avx512,avx512bf16*,amx}.cpp       the levels
//   gemm_avx512.h          both AVX-512 levels as templates, over gemm_avx512_tiles.h: sums of R rows x NB blocks in
//                          registers; gemm_lookup.h: codes -> bf16; software_tiles.*: level amx
//   pack.cpp, cast/transpose.cpp       W row-major <-> packed, [K, N] -> [N, K]
//
//   gemm  ->  for each chunk: pack_activations, then units of work on all threads
//   unit  ->  for each range of k: (pack_lines of a row-major W,) multiply into acc;  then finish: scales, bias, y
//
//   lines   W as multiply reads it: 64 codes, 16 channels x 4 k, in the packed order below; a block is 16 channels
//   tiles   A: GemmPlan::tile_rows rows each, k by k
//   acc     f32 sums, [row][block][lane]
//   panel   with GemmPlan::panel, one range of two blocks decoded once for all tiles: vectors [line][step][block]
//
// It is called by fp8_tensor/gemm.cpp and product.cpp (all products of Fp8Tensors), ops/moe, ops/gemm/conv.cpp and
// ops/attention.
//
// Numbers, the same on every level:
//   y = round( f32(f32(f32(sum * f32(a_scale_inv * w_scale_inv)) + bias) + y_old) )     bias and y_old only where given
// so scales that are powers of two are exact. Products are exact and summed in f32:
//   |error of sum| <= 2K * 2^-24 * sum over k of |a w|
// A level sums in one fixed order of k. An output's bits depend on its row of A, its row of W and the level (and
// whether A is BF16/fp8 or F32/F16): not on M or N, nor on the other rows, the layout, the threads or how the work was
// cut. Scales per block (GemmArgs::blocks) are taken range by range of k, g ascending, on every level (but for
// power_of_two_scales, see there):
//   total = f32(total + f32(sum_g * f32(a_scale_inv[m, g] * w_scale_inv[block of n, g])))
//   y = round( f32(f32(total + bias) + y_old) )
// (a level with two running sums per output scales both and adds them at the end).
//
// Level amx multiplies BF16 and fp8 activations by tiles unless a group has other than a multiple of 32 columns, all
// else as avx512bf16 does. Its order, for each 32 k from 0 on (zeros behind K), with even and odd the fused
// multiply-adds of the even and the odd k:
//   sum = f32(sum + f32(even + odd))
//
// With power_of_two_scales and groups of a multiple of 32 columns (or one), sums of levels avx512bf16 and amx go on
// over all groups, of values that have their scales in them but for the largest of their row of A (block of W), which
// scales y as a_scale_inv[m] (w_scale_inv[n]) does without groups:
//   value of the code * (its scale / the largest), exactly; 0 where that quotient is below 2^-96
// Infinite and NaN codes stay; an infinite scale counts as 2^128 here, a NaN as larger still. So it is with fp8
// activations, and with BF16 ones unless they have scales.
//
// NaN and infinity go where arithmetic takes them, on every level. With levels avx512bf16 and amx, BF16 activations
// smaller than 2^-126 count as 0 (their products flush them), as do products and sums that small; fp8 values never get
// there without a scale in them.
//
// Packed layout (a byte permutation of W, same size; N a multiple of 16, K of 4, zero padded otherwise):
//   byte(n, k) = (n/16)*16*K + (k/4)*64 + ((n%16)/4)*16 + ((k%4)/2)*8 + (n%4)*2 + (k%2)
#pragma once
#include <span>

#include "fp8/runtime/kernels/cast.h"

namespace fp8::kernels {

enum class Layout : std::uint8_t { row_major, packed };

struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;  ///< [m, k], elements contiguous within a row
  /// Activations: high precision as they are (F32 and F16 are multiplied in f32, unrounded), or fp8 codes.
  Storage a_type = Storage::F32;
  std::int64_t a_stride = 0;        ///< elements between rows of a, >= k
  const std::uint8_t* w = nullptr;  ///< [n, k] codes, row-major dense or packed
  Format w_format = Format::E4M3;
  Layout w_layout = Layout::row_major;
  /// Dequantization multipliers; nullptr means 1. Strides 0 (one value) or 1 (per row of a / per output channel).
  const float* a_scale_inv = nullptr;
  std::int64_t a_scale_stride = 0;
  const float* w_scale_inv = nullptr;
  std::int64_t w_scale_stride = 0;
  /// Blocks of w that share a scale: cols, a multiple of 4 (the last group of columns may be shorter), make the groups
  /// of k that a has, too. cols 0: one scale or one per row, and nothing else of it is read. Else a_scale_inv is [m,
  /// groups] or nullptr, w_scale_inv [ceil((blocks.first_row + n) / blocks.rows), groups], both dense; first_row lies
  /// in the first block.
  ScaleLayout blocks = {1, 0};
  /// All scales are powers of two from 2^-127 to 2^127, 0, infinite or NaN: no more of them may be read.
  bool power_of_two_scales = false;
  const void* bias = nullptr;  ///< [n] or nullptr, unscaled
  FloatType bias_type = FloatType::F32;
  void* y = nullptr;  ///< [m, n]
  FloatType y_type = FloatType::F32;
  std::int64_t y_stride = 0;  ///< elements between rows of y, >= n
  bool accumulate = false;    ///< add to what y holds (in f32, before the one rounding)
  /// Whose reading of E4M3 codes, of a and of w (cast.h): with gaudi2 an output that meets a code from 0x78 on is
  /// infinity or NaN.
  Dialect dialect = Dialect::ocp;
};

/// Runs on the threads of the pool with the SIMD level in force. m, n, k >= 0; with k = 0 the sum is 0. Allocates
/// nothing that grows with n: a row-major weight is packed piece by piece, so both layouts give the same bits at nearly
/// the same speed. Scratch per calling thread: packed activations of at most 512 rows (8 MiB, or 16 rows where those
/// are longer), 8 MiB of a row-major weight (or 16 rows of it) and, with blocks, 256 bytes per group. Throws
/// std::invalid_argument naming the field for negative sizes, strides that are too small, missing pointers.
void gemm(const GemmArgs& args);
/// Several products of the same activations (m, k, a, a_type, a_stride and blocks.cols are the first's, else
/// std::invalid_argument; with blocks power_of_two_scales, and where that is set a_scale_inv, too), whose y do not
/// overlap: the same bits, but a is packed once, and all threads work on all.
void gemm_together(std::span<const GemmArgs> products);

/// Bytes of the packed form of an [n, k] weight: n rounded up to 16 times k rounded up to 4. std::invalid_argument when
/// a size is negative or the product does not fit 64 bits (so do the four below).
std::int64_t packed_bytes(std::int64_t n, std::int64_t k);
/// [n, k] dense row-major codes -> packed (packed_bytes long; the padding becomes 0), and back.
void pack_weight(const std::uint8_t* row_major, std::int64_t n, std::int64_t k, std::uint8_t* packed);
void unpack_weight(const std::uint8_t* packed, std::int64_t n, std::int64_t k, std::uint8_t* row_major);
/// Both in place. n: a multiple of 16, k: of 4, else std::invalid_argument. Scratch: 64 * k bytes a thread;
/// where it can't be had (std::bad_alloc), nothing has changed.
void pack_weight_in_place(std::uint8_t* codes, std::int64_t n, std::int64_t k);
void unpack_weight_in_place(std::uint8_t* codes, std::int64_t n, std::int64_t k);

/// out[c, r] = in[r, c] for bytes (an fp8 operand that arrives as [K, N]): in [rows, cols], rows in_stride >= cols
/// apart (0 means cols), out [cols, rows] dense. On the threads of the pool.
void transpose_bytes(const std::uint8_t* in, std::int64_t rows, std::int64_t cols, std::uint8_t* out,
                     std::int64_t in_stride = 0);

// y[m, n] = round_bf16( f32(sum over k of a[m, k] * w[n, k]) + bias[n] ), all bf16: products of one or two rows with a
// large weight, which take as long as reading the weight does (the head of a language model, for one token).
//
// Numbers, the same on every level: products are exact, and 32 sums run in f32 with fused multiply-adds, sum j over
// k = j, j + 32, j + 64 ... in that order. They are added as
//   s[i] = sum[2i] + sum[2i + 1]  (16),   then s[i] += s[i + 8], s[i + 4], s[i + 2], s[i + 1]
// so an output's bits depend on its row of a and its row of w alone. |error of sum| <= (k/32 + 6) * 2^-24 * sum |a w|.

inline constexpr std::int64_t kMostGemvRows = 2;  // of three the products, no longer the reading, take the time

struct GemvArgs {
  std::int64_t m = 0, n = 0, k = 0;  ///< m <= kMostGemvRows
  const std::uint16_t* a = nullptr;  ///< [m, k] bits of bf16, rows a_stride >= k elements apart
  std::int64_t a_stride = 0;
  const std::uint16_t* w = nullptr;  ///< [n, k], rows w_stride >= k elements apart
  std::int64_t w_stride = 0;
  const std::uint16_t* bias = nullptr;  ///< [n] or nullptr
  std::uint16_t* y = nullptr;           ///< [m, n], rows y_stride >= n elements apart
  std::int64_t y_stride = 0;
};

/// Runs on the threads of the pool with the SIMD level in force, and reads w once. Scratch per calling thread:
/// 2 * m * k bytes, where a's rows do not begin on cache lines. Throws std::invalid_argument naming what is wrong with
/// sizes, strides and pointers.
void gemv(const GemvArgs& args);
/// Several products of the same a (m, k, a and a_stride are the first's, else std::invalid_argument), whose y do not
/// overlap: the same bits, and all threads work on all.
void gemv_together(std::span<const GemvArgs> products);

}  // namespace fp8::kernels
