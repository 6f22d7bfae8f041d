// SPDX-License-Identifier: Apache-2.0
// Matrices, scales, threads and levels around the casts of one run (cast_kernels.h). Work is cut by element index,
// never by thread: every element's code depends on its own value, scale and index only.
#include "fp8/runtime/kernels/cast.h"

#include <algorithm>
#include <limits>

#include "fp8/runtime/kernels/cast/cast_kernels.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kGrain = 64 * 1024;  // elements per range: some 5 us of work, and a multiple of every vector
constexpr std::int64_t kTwicePiece = 4096;  // elements: 16 KiB of f32 stay in L1 from the first cast to the second
constexpr std::int64_t kStripCols = 16384, kStripMin = 2048;  // columns of a strip: at most, and worth one

void check(const CastArgs& args, const char* what, const std::uint8_t* codes) {
  check_matrix(what, args.rows, args.cols, args.row_stride);
  if (args.rows > 0 && args.cols > 0 && (args.x == nullptr || codes == nullptr))
    io::fail<std::invalid_argument>("{}: x and codes must not be null for a non-empty matrix", what);
  check_cast_max(what, args.format, args.saturation());
}

float smallest(Format format) { return format == Format::E4M3 ? 0x1p-9f : 0x1p-16f; }

void check_scaled(const CastArgs& args, const char* what) {
  check(args, what, args.codes != nullptr ? args.codes : args.transposed);
  if (args.scales != nullptr) check_along_rows(what, args.layout);
}

/// A cast with given scales after all checks.
class Caster {
 public:
  /// `first`: index of element (0, 0) for stochastic rounding. `stream`: store around the caches.
  Caster(const CastArgs& args, std::int64_t first, bool stream)
      : args_(args),
        layout_(args.scales != nullptr ? args.layout : ScaleLayout::per_tensor()),
        scale_(args.vendor ? round_to(args.type, args.scale) : args.scale),
        max_(args.saturation()),
        kernel_(cast_kernel_in_force(args.type, args.format)),
        first_(first),
        stream_(stream) {
    const bool one_run = args_.rows <= 1 || (args_.row_stride == args_.cols && layout_.one());
    if (one_run) {  // few long runs instead of many short ones
      args_.cols *= args_.rows;
      args_.rows = args_.cols > 0 ? 1 : 0;
    }
  }

  std::int64_t size() const { return args_.rows * args_.cols; }

  /// Casts elements [begin, end) of the dense matrix; returns the bits of their amax.
  std::uint32_t cast(std::int64_t begin, std::int64_t end) const { return cast_to(begin, end, args_.codes + begin); }
  /// As cast(), to codes[0] and on.
  std::uint32_t cast_to(std::int64_t begin, std::int64_t end, std::uint8_t* codes) const {
    std::uint32_t amax = 0;
    while (begin < end) {
      const std::int64_t row = begin / args_.cols, col = begin % args_.cols;
      const std::int64_t n = std::min(end - begin, args_.cols - col);
      amax = std::max(amax, cast_run(row, col, n, codes));
      begin += n, codes += n;
    }
    return amax;
  }

 private:
  std::uint32_t cast_run(std::int64_t row, std::int64_t col, std::int64_t n, std::uint8_t* codes) const {
    const std::int64_t at = row * args_.cols + col;
    CastSpan span{};
    span.x = static_cast<const char*>(args_.x) + (row * args_.row_stride + col) * size_of(args_.type);
    span.n = n;
    span.codes = codes;
    span.scales = args_.scales != nullptr ? args_.scales + layout_.at(row, col, args_.cols) : &scale_;
    span.max = max_;
    span.per_element = layout_.cols != 0;
    span.round_product = args_.vendor;
    span.stochastic = args_.stochastic.has_value();
    span.flush_below = args_.flush_subnormal ? smallest(args_.format) : 0.0f;
    span.stream = stream_;
    return cast_span_at(kernel_, args_.type, span, args_.stochastic.value_or(0), first_ + at);
  }

  CastArgs args_;
  ScaleLayout layout_;
  float scale_, max_;
  CastKernel kernel_;
  std::int64_t first_;
  bool stream_;
};

std::uint32_t cast_in_parallel(const Caster& caster) {
  AmaxBits amax;
  parallel_for(caster.size(), kGrain, [&](std::int64_t begin, std::int64_t end) { amax.add(caster.cast(begin, end)); });
  return amax.bits();
}

/// The place of a strip in the matrix.
struct Strip {
  std::int64_t row, rows, col, cols;
};

/// The matrix in strips as high as a tile of the transpose, whose codes stay in the second cache until they are
/// transposed: whole rows, which are cast as one run, unless they are very long or the threads want more pieces.
class Strips {
 public:
  Strips(std::int64_t rows, std::int64_t cols) : rows_(rows), cols_(cols) {
    const std::int64_t down = pieces(rows, kTransposeTile), wanted = num_threads() > 1 ? 4 * num_threads() : 1;
    const std::int64_t for_threads = std::min(pieces(wanted, std::max<std::int64_t>(1, down)), cols / kStripMin);
    const std::int64_t across = std::max({pieces(cols, kStripCols), for_threads, std::int64_t{1}});
    width_ = pieces(pieces(cols, across), kTransposeTile) * kTransposeTile;
    across_ = width_ == 0 ? 0 : pieces(cols, width_);
    count_ = down * across_;
  }
  std::int64_t count() const { return count_; }
  std::int64_t grain() const {
    return std::max<std::int64_t>(1, kGrain / std::max(kTransposeTile, kTransposeTile * width_));
  }
  /// Between rows of codes that lie by themselves: for parts of rows no power of two, or they would share few sets of a
  /// cache.
  std::int64_t stride() const { return across_ == 1 ? cols_ : width_ + kTransposeTile; }
  Strip operator[](std::int64_t i) const {
    const std::int64_t row = i / across_ * kTransposeTile, col = i % across_ * width_;
    return {row, std::min(kTransposeTile, rows_ - row), col, std::min(width_, cols_ - col)};
  }

 private:
  static std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

  std::int64_t rows_, cols_, width_, across_, count_;
};

/// One of the casts that are made strip by strip.
class StripCaster {
 public:
  StripCaster(const CastArgs& args, const Strips& strips)
      : args_(args),
        caster_(args, 0, false),
        stride_(args.codes != nullptr ? args.cols : strips.stride()),
        kernel_(transpose_kernel_in_force()),
        stream_(args.transposed != nullptr && streams_transpose(args.transposed, args.rows, args.cols)) {}

  /// Rows [r, end) of the strip; codes that don't stay go to `scratch`. Returns the bits of their amax.
  std::uint32_t cast(const Strip& s, std::int64_t r, std::int64_t end, std::uint8_t* scratch) const {
    const std::int64_t first = (s.row + r) * args_.cols + s.col, n = s.cols;
    std::uint8_t* codes = codes_of(s, scratch) + r * stride_;
    if (n == args_.cols) return caster_.cast_to(first, first + (end - r) * n, codes);
    std::uint32_t amax = 0;
    for (std::int64_t i = 0; i < end - r; ++i)
      amax = std::max(amax, caster_.cast_to(first + i * args_.cols, first + i * args_.cols + n, codes + i * stride_));
    return amax;
  }
  void transpose(const Strip& s, std::uint8_t* scratch) const {
    if (args_.transposed == nullptr) return;
    TransposeRun run;
    run.in = codes_of(s, scratch), run.in_stride = stride_;
    run.out = args_.transposed + s.col * args_.rows + s.row, run.out_stride = args_.rows;
    run.stream = stream_;
    transpose_block(kernel_, run, s.rows, s.cols);
  }

 private:
  std::uint8_t* codes_of(const Strip& s, std::uint8_t* scratch) const {
    return args_.codes != nullptr ? args_.codes + s.row * args_.cols + s.col : scratch;
  }

  CastArgs args_;
  Caster caster_;
  std::int64_t stride_;
  TransposeKernel kernel_;
  bool stream_;
};

/// One or two casts of one x, of which some are wanted transposed; returns the bits of the amax.
std::uint32_t cast_strips(std::span<const CastArgs> casts) {
  const Strips strips(casts.front().rows, casts.front().cols);
  const StripCaster both[] = {{casts.front(), strips}, {casts.back(), strips}};
  const auto casters = std::span(both).first(casts.size());
  const std::int64_t room_of_one = kTransposeTile * strips.stride();
  AmaxBits amax;
  parallel_for(strips.count(), strips.grain(), [&](std::int64_t begin, std::int64_t end) {
    thread_local Scratch scratch;
    std::uint8_t* room = scratch.get(static_cast<std::int64_t>(casters.size()) * room_of_one);
    for (std::int64_t i = begin; i < end; ++i) {
      const Strip strip = strips[i];
      const std::int64_t together = casters.size() == 1 ? strip.rows : 1;
      for (std::int64_t r = 0; r < strip.rows; r += together)
        for (std::size_t c = 0; c < casters.size(); ++c)
          amax.add(casters[c].cast(strip, r, r + together, room + static_cast<std::int64_t>(c) * room_of_one));
      for (std::size_t c = 0; c < casters.size(); ++c)
        casters[c].transpose(strip, room + static_cast<std::int64_t>(c) * room_of_one);
    }
  });
  return amax.bits();
}

struct RowScale {
  float scale, scale_inv;
};

RowScale row_scale(float amax, float max) {
  if (amax == 0.0f) return {1.0f, 1.0f};
  float scale_inv = amax / max;
  // Below the smallest normal number the reciprocal would be inexact or infinite, and 0 * inf a NaN.
  if (scale_inv < std::numeric_limits<float>::min()) scale_inv = std::numeric_limits<float>::min();
  return {1.0f / scale_inv, scale_inv};
}

}  // namespace

CastKernel cast_kernel_in_force(FloatType type, Format format) {
  const CastKernels* table = &kCastScalar;
#if defined(__x86_64__)
  switch (simd_level()) {
    case SimdLevel::scalar: break;
    case SimdLevel::avx2: table = &kCastAvx2; break;
    case SimdLevel::avx512: table = &kCastAvx512; break;
    case SimdLevel::avx512bf16:
    case SimdLevel::amx: table = &kCastAvx512Vbmi; break;
  }
#endif
  return table->of[static_cast<int>(type)][static_cast<int>(format)];
}

std::uint32_t cast_span_at(CastKernel kernel, FloatType type, CastSpan span, std::uint64_t seed, std::int64_t index) {
  if (!span.stochastic) return kernel(span);
  std::uint32_t amax = 0;
  for (std::int64_t left = span.n; left > 0; left -= span.n) {
    const std::uint64_t key = mix(splitmix64(seed, 0) ^ static_cast<std::uint64_t>(index >> 32));
    span.key0 = static_cast<std::uint32_t>(key);
    span.key1 = static_cast<std::uint32_t>(key >> 32);
    span.index = static_cast<std::uint32_t>(index);
    span.n = std::min(left, (std::int64_t{1} << 32) - (index & 0xFFFFFFFF));
    amax = std::max(amax, kernel(span));
    span.x = static_cast<const char*>(span.x) + span.n * size_of(type);
    span.codes += span.n;
    if (span.per_element) span.scales += span.n;
    index += span.n;
  }
  return amax;
}

void check_cast_max(const char* what, Format format, float max) {
  const float limit = fp8_max(format, Dialect::ocp);
  const std::uint32_t fraction = format == Format::E4M3 ? 0xFFFFFu : 0x1FFFFFu;
  if (!(max >= 0x1p-6f && max <= limit) || (bits_of(max) & fraction) != 0)
    io::fail<std::invalid_argument>("{}: max is {}, allowed are the values of {} from 2^-6 to {}", what, max,
                                    name_of(format), limit);
}

void check_blocks(const char* what, const ScaleLayout& layout) {
  if (!layout.has_blocks())
    io::fail<std::invalid_argument>("{}: found blocks of {} x {}, sizes must be at least 1", what, layout.rows,
                                    layout.cols);
}

void check_along_rows(const char* what, const ScaleLayout& layout) {
  if (!layout.along_rows())
    io::fail<std::invalid_argument>("{}: found scales over {} x {} elements, allowed are 0 and 1", what, layout.rows,
                                    layout.cols);
}

void cast_to_fp8(const CastArgs& args) {
  check_scaled(args, "cast_to_fp8");
  const std::int64_t n = args.rows * args.cols;
  // Codes that the last cache doesn't hold either are stored around it: that spares more than the strips do.
  const bool strips = args.transposed != nullptr && (args.codes == nullptr || n <= 2 * streaming_bytes());
  const std::uint32_t amax =
      strips ? cast_strips({&args, 1}) : cast_in_parallel(Caster(args, 0, n > streaming_bytes()));
  if (args.transposed != nullptr && !strips) transpose_bytes(args.codes, args.rows, args.cols, args.transposed);
  if (args.amax != nullptr) *args.amax = amax_value(amax);
}

void cast_to_fp8_twice(const CastArgs& first, const CastArgs& second) {
  check_scaled(first, "cast_to_fp8_twice");
  check_scaled(second, "cast_to_fp8_twice");
  if (first.x != second.x || first.type != second.type || first.rows != second.rows || first.cols != second.cols ||
      first.row_stride != second.row_stride)
    throw std::invalid_argument("cast_to_fp8_twice: x, type, rows, cols and row_stride must be the same in both");
  const auto tell = [&](std::uint32_t amax) {
    for (float* out : {first.amax, second.amax}) {
      if (out != nullptr) *out = amax_value(amax);
    }
  };
  if (first.transposed != nullptr || second.transposed != nullptr) {
    const CastArgs both[] = {first, second};
    return tell(cast_strips(both));
  }
  const bool stream = 2 * first.rows * first.cols > streaming_bytes();
  const Caster a(first, 0, stream), b(second, 0, stream);
  AmaxBits amax;
  parallel_for(first.rows * first.cols, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += kTwicePiece) {
      const std::int64_t piece_end = std::min(end, at + kTwicePiece);
      amax.add(a.cast(at, piece_end));
      b.cast(at, piece_end);
    }
  });
  tell(amax.bits());
}

void cast_rows_dynamic(const CastArgs& args, float* scale_inv) {
  check(args, "cast_rows_dynamic", args.codes);
  if (args.rows > 0 && scale_inv == nullptr)
    throw std::invalid_argument("cast_rows_dynamic: scale_inv must not be null");
  const AmaxKernels& amax_kernels = amax_kernels_in_force();
  const CastKernel kernel = cast_kernel_in_force(args.type, args.format);
  const float max = args.saturation(), flush_below = args.flush_subnormal ? smallest(args.format) : 0.0f;
  const bool stream = args.rows * args.cols > streaming_bytes();
  const auto x_of = [&](std::int64_t r) {
    return static_cast<const char*>(args.x) + r * args.row_stride * size_of(args.type);
  };
  const auto cast_part = [&](std::int64_t r, std::int64_t col, std::int64_t n, const RowScale& scale) {
    CastSpan span{};
    span.x = x_of(r) + col * size_of(args.type), span.n = n;
    span.codes = args.codes + r * args.cols + col;
    span.scales = &scale.scale, span.max = max;
    span.stochastic = args.stochastic.has_value(), span.flush_below = flush_below;
    span.stream = stream;
    cast_span_at(kernel, args.type, span, args.stochastic.value_or(0), r * args.cols + col);
  };
  // Rows that are many or short: a row per thread, cast while it is in that core's cache. Few long rows: all threads on
  // each.
  if (args.rows >= 4 * std::int64_t{num_threads()} || args.cols <= kGrain) {
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, args.cols));
    parallel_each(args.rows, grain, [&](std::int64_t r) {
      const RowScale s = row_scale(amax_value(amax_of_run(amax_kernels, x_of(r), args.type, args.cols)), max);
      scale_inv[r] = s.scale_inv;
      cast_part(r, 0, args.cols, s);
    });
    return;
  }
  for (std::int64_t r = 0; r < args.rows; ++r) {
    const RowScale s = row_scale(amax(x_of(r), args.type, args.cols), max);
    scale_inv[r] = s.scale_inv;
    parallel_for(args.cols, kGrain, [&](std::int64_t begin, std::int64_t end) { cast_part(r, begin, end - begin, s); });
  }
}

void cast_row(const CastArgs& args, FloatType type, const void* y, std::int64_t row, std::int64_t n) {
  CastSpan span{};
  RowScale own{args.vendor ? round_to(type, args.scale) : args.scale, 1.0f};
  span.max = args.saturation();
  span.scales = &own.scale;
  if (args.grid != nullptr) {
    own = row_scale(amax_value(amax_of_run(amax_kernels_in_force(), y, type, n)), span.max);
    args.grid[row] = own.scale_inv;
  } else {
    span.round_product = args.vendor;
    if (args.scales != nullptr) span.scales = args.scales + args.layout.at(row, 0, n);
  }
  span.x = y, span.n = n;
  span.codes = args.codes + row * n;
  cast_kernel_in_force(type, args.format)(span);
}

void cast(const CastArgs& args) {
  if (!args.layout.has_blocks())
    return args.rule == ScaleRule::given ? cast_to_fp8(args) : cast_rows_dynamic(args, args.grid);
  return args.rule == ScaleRule::e8m0 ? cast_mx(args) : cast_blocks(args);
}

bool CastSpec::same_codes(const CastSpec& o) const {
  return format == o.format && saturation() == o.saturation() && layout == o.layout && rule == o.rule &&
         scale == o.scale && scale_inv == o.scale_inv && scales == o.scales && power_of_two == o.power_of_two &&
         amax_epsilon == o.amax_epsilon && vendor == o.vendor && stochastic == o.stochastic &&
         flush_subnormal == o.flush_subnormal;
}

}  // namespace fp8::kernels
