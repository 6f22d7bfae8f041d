// SPDX-License-Identifier: Apache-2.0
// Functions in Highway's portable vectors, one copy per level, that sources of this folder ask for: each *_in_force()
// gives those of the level in force. highway/levels.h has the choice.
#pragma once
#include <atomic>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/optim.h"

namespace fp8::kernels {

/// The one check of sizes that every kernel makes: what passes it can be indexed in 64 bits. Throws
/// std::invalid_argument unless 0 <= rows, cols; row_stride >= cols where there are two rows; fewer than 2^60 elements.
inline void check_matrix(const char* what, std::int64_t rows, std::int64_t cols, std::int64_t row_stride) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  if (rows < 0 || cols < 0)
    io::fail<std::invalid_argument>("{}: found a matrix of {} x {}, sizes must not be negative", what, rows, cols);
  if (rows > 1 && row_stride < cols)
    io::fail<std::invalid_argument>("{}: row_stride is {}, must be at least cols = {}", what, row_stride, cols);
  const std::int64_t pitch = rows > 1 && row_stride > cols ? row_stride : cols;
  if (rows > 0 && pitch > kMost / rows)
    io::fail<std::invalid_argument>("{}: found a matrix of {} x {} elements, allowed are 2^60", what, rows, pitch);
}

// amax.cpp. Magnitudes are compared as integers: bits of |x| sort like |x|, with infinity above every number and NaN
// above infinity, so one unsigned maximum finds the amax and says whether anything was not finite.

struct AmaxKernels {
  /// max of the magnitude bits of x[n], 32-bit or 16-bit elements.
  std::uint32_t (*of_32)(const std::uint32_t* x, std::int64_t n);
  std::uint16_t (*of_16)(const std::uint16_t* x, std::int64_t n);
  /// best[i] = max(best[i], magnitude bits of x[i]).
  void (*into_32)(const std::uint32_t* x, std::int64_t n, std::uint32_t* best);
  void (*into_16)(const std::uint16_t* x, std::int64_t n, std::uint16_t* best);
  /// best[g] = max of the magnitude bits of x[g * width, min(n, (g + 1) * width)), width >= 1.
  void (*groups_32)(const std::uint32_t* x, std::int64_t n, std::int64_t width, std::uint32_t* best);
  void (*groups_16)(const std::uint16_t* x, std::int64_t n, std::int64_t width, std::uint16_t* best);
};

const AmaxKernels& amax_kernels_in_force();

/// Magnitude bits of a 16-bit element -> those of the same number as f32.
inline std::uint32_t widen_bits(std::uint16_t bits, FloatType type) {
  return type == FloatType::BF16 ? static_cast<std::uint32_t>(bits) << 16 : bits_of(f16_to_f32(bits));
}

/// f32 magnitude bits of the amax of x[n].
inline std::uint32_t amax_of_run(const AmaxKernels& kernels, const void* x, FloatType type, std::int64_t n) {
  if (type == FloatType::F32) return kernels.of_32(static_cast<const std::uint32_t*>(x), n);
  return widen_bits(kernels.of_16(static_cast<const std::uint16_t*>(x), n), type);
}

/// Bits -> value; every NaN becomes the one quiet NaN.
inline float amax_value(std::uint32_t bits) { return float_of(bits > 0x7F800000u ? 0x7FC00000u : bits); }

/// The maximum over what several threads found.
class AmaxBits {
 public:
  void add(std::uint32_t bits) {
    std::uint32_t seen = bits_.load(std::memory_order_relaxed);
    while (bits > seen && !bits_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }
  std::uint32_t bits() const { return bits_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint32_t> bits_{0};
};

// highway/attention_simd.cpp: the products of one head with a chunk of keys. T is f32 or the bits of bf16; f16 is
// widened to f32 before.

inline constexpr std::int64_t kAttentionChunk = 256;  // keys; rows of scores are so far apart

template <class T>
struct AttentionChunk {
  std::int64_t rows = 0, keys = 0, width = 0;  ///< keys <= kAttentionChunk
  const float* q = nullptr;                    ///< [rows, width]
  const T* k = nullptr;                        ///< [keys, width], rows k_stride apart
  std::int64_t k_stride = 0;
  const T* v = nullptr;
  std::int64_t v_stride = 0;
  float* scores = nullptr;  ///< [rows, kAttentionChunk]; what lies behind `keys` of them may be written
  float* out = nullptr;     ///< [rows, width]
};

template <class T>
struct AttentionKernels {
  void (*scores)(const AttentionChunk<T>& chunk);  ///< scores = q k^T
  void (*round)(float* x, std::int64_t n);         ///< to T
  void (*values)(const AttentionChunk<T>& chunk);  ///< out = scores v
  void (*widen)(const std::uint16_t* f16, float* to, std::int64_t n);
};

template <class T>
const AttentionKernels<T>& attention_kernels_in_force();

// gemv.cpp: rows of the weight against the activations, which stay bf16: as f32, those of more than 2048 columns would
// not stay in the first cache beside the weight that passes through it.

inline constexpr std::int64_t kGemvBlock = 32;

struct GemvRange {
  const std::uint16_t* a = nullptr;  ///< [m][k], rows a_stride apart
  std::int64_t a_stride = 0;
  int m = 0;  ///< 1 or 2
  std::int64_t k = 0;
  const std::uint16_t* w = nullptr;  ///< row `first` of the weight
  std::int64_t w_stride = 0;
  std::int64_t rows = 0;
  float* sums = nullptr;  ///< [m][rows], sums_stride apart
  std::int64_t sums_stride = 0;
  /// True reads rows of four places alternately: an Emerald Rapids then reads 1.3 to 1.6 times as fast, a Zen 4 at half
  /// its speed. The bits are the same.
  bool streams = false;
};

using GemvKernel = void (*)(const GemvRange& range);

// highway/optim_simd.cpp: loops over f32 arrays that are in cache. optim.cpp knows tensors, types and threads.

struct OptimKernels {
  /// y = a * y
  void (*scale)(float* y, std::int64_t n, float a);
  /// y = a * y + b * x
  void (*scale_add)(float* y, const float* x, std::int64_t n, float a, float b);
  /// v = a * v + (b * g) * g
  void (*scale_add_square)(float* v, const float* g, std::int64_t n, float a, float b);
  /// The three lines of AdamFactors: [w and g are bf16][m and v are bf16]. Converting in registers instead of by chunks
  /// keeps memory and arithmetic busy at the same time.
  void (*adam[2][2])(void* w, const void* g, void* m, void* v, std::int64_t n, const AdamFactors& f);
  /// step = (m / correction1) / (sqrt(v / correction2) + eps) + weight_decay * w
  void (*lamb)(float* step, const float* m, const float* v, const float* w, std::int64_t n, const LambTensor& f);
  /// Sum of squares in f64: element i goes to sum i % 16; those are added pairwise.
  double (*sum_of_squares)(const float* x, std::int64_t n);
  /// bf16 <-> f32, to nearest even.
  void (*widen)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*narrow)(const float* x, std::uint16_t* y, std::int64_t n);
};

const OptimKernels& optim_kernels_in_force();

// pointwise.cpp. Arrays are of T, f32 or the bits of bf16.

/// One operation in its forms; each returns true where no result is NaN. b: [n], or one number.
template <class T>
struct PointwiseKernel {
  bool (*arrays)(const T* a, const T* b, T* y, std::int64_t n);
  bool (*number)(const T* a, float b, T* y, std::int64_t n);
  bool (*check_arrays)(const T* a, const T* b, T* y, std::int64_t n);  ///< the same, and nothing is written
  bool (*check_number)(const T* a, float b, T* y, std::int64_t n);
};

/// One row for each Pointwise.
template <class T>
struct PointwiseKernels {
  PointwiseKernel<T> of[7];
};

/// Between f32 and bf16; narrow returns true where nothing is NaN.
struct ConvertKernels {
  void (*widen)(const std::uint16_t* x, float* y, std::int64_t n);
  bool (*narrow)(const float* x, std::uint16_t* y, std::int64_t n);
};

// transpose.cpp, and the casts that write transposed codes: squares of bytes, each of whose rows and columns is a cache
// line.

inline constexpr std::int64_t kTransposeTile = 64;

/// `tiles` squares below each other, whose transposes lie beside each other.
struct TransposeRun {
  const std::uint8_t* in = nullptr;  ///< rows in_stride apart
  std::int64_t in_stride = 0;
  std::uint8_t* out = nullptr;  ///< rows out_stride apart
  std::int64_t out_stride = 0;
  std::int64_t tiles = 0;
  bool stream = false;  ///< store around the caches: each row of each square of `out` begins on a cache line
};

using TransposeKernel = void (*)(const TransposeRun& run);

TransposeKernel transpose_kernel_in_force();

/// True if the transpose of `rows` rows, dense at `out`, is to be stored around the caches (TransposeRun::stream): a
/// large one whose rows are whole lines.
bool streams_transpose(const std::uint8_t* out, std::int64_t rows, std::int64_t cols);

/// rows x cols bytes at run.in, of any sizes; run.tiles is not used. On the calling thread, without checks.
void transpose_block(TransposeKernel kernel, TransposeRun run, std::int64_t rows, std::int64_t cols);

}  // namespace fp8::kernels
