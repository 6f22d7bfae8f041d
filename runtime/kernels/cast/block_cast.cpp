// SPDX-License-Identifier: Apache-2.0
// Blocks, threads and scales around the maxima of a run (simd_kernels.h) and the casts of a run (cast_kernels.h).
//
//   band   layout.rows rows: a row of the grid
//   unit   a band x some of its blocks: what one thread works on, twice over memory that is in its cache by then
//
// Blocks narrower than kWide columns share one cast per row: their scales are spread to one per element first, so that
// a run is long however small the block is.
#include <algorithm>
#include <limits>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/cast/cast_kernels.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kWide = 512;         // columns from which a block is a run of its own
constexpr std::int64_t kPiece = 2048;       // columns of a unit of narrow blocks, at most
constexpr std::int64_t kGrain = 64 * 1024;  // elements per range of units

/// CastArgs after all checks, with blocks no larger than the matrix.
struct Problem : CastArgs {
  float limit;  ///< saturation()
  bool amax_only;

  explicit Problem(const CastArgs& args, bool without_cast = false)
      : CastArgs(args), limit(args.saturation()), amax_only(without_cast) {}
  std::int64_t grid_cols() const { return blocks_of(cols, layout.cols); }
  const void* element(std::int64_t row, std::int64_t col) const {
    return static_cast<const char*>(x) + (row * row_stride + col) * size_of(type);
  }
};

void check(const char* what, const Problem& p, const void* scales) {
  check_matrix(what, p.rows, p.cols, p.row_stride);
  check_blocks(what, p.layout);
  if (p.rows > 0 && p.cols > 0 && (p.x == nullptr || (p.codes == nullptr && !p.amax_only) || scales == nullptr))
    io::fail<std::invalid_argument>("{}: x, codes and the scales must not be null for a non-empty matrix", what);
  check_cast_max(what, p.format, p.limit);
}

float largest_of(FloatType type) {
  if (type == FloatType::F16) return 65504.0f;
  return type == FloatType::BF16 ? float_of(0x7F7F0000u) : std::numeric_limits<float>::max();
}

/// Scale rules: (place in the grid, magnitude bits of the amax) -> the multiplier, having stored what goes out.
struct FloatRule {
  static constexpr bool kNeedsAmax = true;
  FloatType type;
  float max, epsilon;
  bool power_of_two;
  float* scale_inv;
  float operator()(std::int64_t at, std::uint32_t amax_bits) const {
    const float scale = block_scale(amax_value(amax_bits), type, max, epsilon, power_of_two);
    scale_inv[at] = 1.0f / scale;
    return scale;
  }
};

struct InverseRule {
  static constexpr bool kNeedsAmax = true;
  float max;
  bool power_of_two;
  float* scale_inv;
  float operator()(std::int64_t at, std::uint32_t amax_bits) const {
    scale_inv[at] = block_scale_inv(amax_value(amax_bits), max, power_of_two);
    return std::isfinite(scale_inv[at]) ? 1.0f / scale_inv[at] : 1.0f;
  }
};

struct GivenRule {
  static constexpr bool kNeedsAmax = false;
  const float* scale;
  float operator()(std::int64_t at, std::uint32_t) const { return scale[at]; }
};

struct AmaxRule {
  static constexpr bool kNeedsAmax = true;
  float* amax;
  float operator()(std::int64_t at, std::uint32_t amax_bits) const {
    amax[at] = amax_value(amax_bits);
    return 1.0f;
  }
};

struct MxRule {
  static constexpr bool kNeedsAmax = true;
  float max;
  std::uint8_t* e8m0;
  float operator()(std::int64_t at, std::uint32_t amax_bits) const {
    const std::uint8_t e = e8m0_from_amax(amax_value(amax_bits), max);
    e8m0[at] = e;
    return e == 0xFF ? e8m0_value(e) : e8m0_value(static_cast<std::uint8_t>(254 - e));
  }
};

class Caster {
 public:
  explicit Caster(const Problem& p)
      : p_(p), cast_(cast_kernel_in_force(p.type, p.format)), amax_(amax_kernels_in_force()) {}

  /// One wide block: rows [row, row_end), columns [col, col + n), place `at` in the grid.
  template <class Rule>
  void wide(const Rule& rule, std::int64_t row, std::int64_t row_end, std::int64_t col, std::int64_t n,
            std::int64_t at) const {
    std::uint32_t bits = 0;
    for (std::int64_t r = row; Rule::kNeedsAmax && r < row_end; ++r) {
      bits = std::max(bits, amax_of_run(amax_, p_.element(r, col), p_.type, n));
    }
    const float scale = rule(at, bits);
    for (std::int64_t r = row; r < row_end; ++r) cast(r, col, n, &scale, false);
  }

  /// Narrow blocks side by side: n <= kPiece columns from `col` on, the first of them at place `at`.
  template <class Rule>
  void narrow(const Rule& rule, std::int64_t row, std::int64_t row_end, std::int64_t col, std::int64_t n,
              std::int64_t at) const {
    std::uint32_t bits[kPiece];
    if constexpr (Rule::kNeedsAmax) {
      maxima(row, row_end, col, n, bits);
    } else {
      std::fill(bits, bits + blocks_of(n, p_.layout.cols), 0u);
    }
    float scales[kPiece];
    for (std::int64_t c = 0, block = 0; c < n; c += p_.layout.cols, ++block) {
      std::fill(scales + c, scales + std::min(n, c + p_.layout.cols), rule(at + block, bits[block]));
    }
    for (std::int64_t r = row; r < row_end; ++r) cast(r, col, n, scales, true);
  }

 private:
  /// bits[b] = magnitude bits of the amax of the b-th narrow block.
  void maxima(std::int64_t row, std::int64_t row_end, std::int64_t col, std::int64_t n, std::uint32_t* bits) const {
    if (row_end - row == 1 && p_.type == FloatType::F32) {
      amax_.groups_32(static_cast<const std::uint32_t*>(p_.element(row, col)), n, p_.layout.cols, bits);
    } else if (row_end - row == 1) {
      row_maxima(row, col, n, bits);
    } else if (p_.type == FloatType::F32) {
      column_maxima(amax_.into_32, row, row_end, col, n, bits);
    } else {
      column_maxima(amax_.into_16, row, row_end, col, n, bits);
    }
  }

  /// Maxima of 16-bit elements along a row.
  void row_maxima(std::int64_t row, std::int64_t col, std::int64_t n, std::uint32_t* bits) const {
    std::uint16_t best[kPiece];
    amax_.groups_16(static_cast<const std::uint16_t*>(p_.element(row, col)), n, p_.layout.cols, best);
    for (std::int64_t block = 0; block * p_.layout.cols < n; ++block) bits[block] = widen_bits(best[block], p_.type);
  }

  /// Maxima down the columns by vectors of columns, then across each block's.
  template <class T>
  void column_maxima(void (*into)(const T*, std::int64_t, T*), std::int64_t row, std::int64_t row_end, std::int64_t col,
                     std::int64_t n, std::uint32_t* bits) const {
    T best[kPiece] = {};
    for (std::int64_t r = row; r < row_end; ++r) into(static_cast<const T*>(p_.element(r, col)), n, best);
    for (std::int64_t c = 0; c < n; c += p_.layout.cols) {
      const T block = *std::max_element(best + c, best + std::min(n, c + p_.layout.cols));
      *bits++ = sizeof(T) == 4 ? block : widen_bits(static_cast<std::uint16_t>(block), p_.type);
    }
  }

  void cast(std::int64_t row, std::int64_t col, std::int64_t n, const float* scales, bool per_element) const {
    if (p_.amax_only) return;
    CastSpan span{};
    span.x = p_.element(row, col);
    span.n = n;
    span.codes = p_.codes + row * p_.cols + col;
    span.scales = scales;
    span.max = p_.limit;
    span.per_element = per_element;
    span.stochastic = p_.stochastic.has_value();
    cast_span_at(cast_, p_.type, span, p_.stochastic.value_or(0), row * p_.cols + col);
  }

  const Problem& p_;
  CastKernel cast_;
  const AmaxKernels& amax_;
};

template <class Rule>
void run(Problem p, const Rule& rule) {
  if (p.rows == 0 || p.cols == 0) return;
  p.layout.rows = std::min(p.layout.rows, p.rows);  // a larger block is the same, and sizes stay below 2^60
  p.layout.cols = std::min(p.layout.cols, p.cols);
  const bool wide = p.layout.cols >= kWide;
  const std::int64_t blocks_per_unit = wide ? 1 : kPiece / p.layout.cols;
  const std::int64_t unit_cols = blocks_per_unit * p.layout.cols, units_across = blocks_of(p.cols, unit_cols);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / p.layout.rows / std::min(unit_cols, p.cols));
  const Caster caster(p);
  parallel_each(blocks_of(p.rows, p.layout.rows) * units_across, grain, [&](std::int64_t unit) {
    const std::int64_t band = unit / units_across, across = unit % units_across;
    const std::int64_t row = band * p.layout.rows, row_end = std::min(p.rows, row + p.layout.rows);
    const std::int64_t col = across * unit_cols, n = std::min(unit_cols, p.cols - col);
    const std::int64_t at = band * p.grid_cols() + across * blocks_per_unit;
    if (wide) {
      caster.wide(rule, row, row_end, col, n, at);
    } else {
      caster.narrow(rule, row, row_end, col, n, at);
    }
  });
}

}  // namespace

float block_scale(float amax, FloatType type, float max, float amax_epsilon, bool power_of_two) {
  if (amax < amax_epsilon) amax = amax_epsilon;
  if (!(amax > 0.0f) || std::isinf(amax)) return 1.0f;
  float scale = std::max(max / amax, std::numeric_limits<float>::min());  // lets the power of two be read from the bits
  if (std::isinf(scale)) scale = largest_of(type);
  return power_of_two ? float_of(bits_of(scale) & 0x7F800000u) : scale;
}

float block_scale_inv(float amax, float max, bool power_of_two) {
  if (amax == 0.0f) return 1.0f;
  const float inv = amax / max;
  if (!std::isfinite(inv)) return inv;
  const std::uint32_t bits = bits_of(std::max(inv, std::numeric_limits<float>::min()));
  return float_of(power_of_two ? (bits + 0x7FFFFFu) & 0x7F800000u : bits);
}

std::uint8_t e8m0_from_amax(float amax, float max) {
  const float value = amax * (1.0f / max);
  if (std::isnan(value)) return 0xFF;
  if (std::isinf(value)) return 0xFE;
  const std::uint32_t bits = bits_of(value), exponent = bits >> 23, mantissa = bits & 0x7FFFFFu;
  if (exponent == 0) return mantissa <= 0x400000u ? 0 : 1;  // 2^-127 is the smallest that E8M0 has
  return static_cast<std::uint8_t>(exponent + (mantissa != 0 && exponent != 0xFE ? 1 : 0));
}

float e8m0_value(std::uint8_t e) {
  if (e == 0xFF) return std::numeric_limits<float>::quiet_NaN();
  return float_of(e == 0 ? 0x00400000u : static_cast<std::uint32_t>(e) << 23);
}

void cast_blocks(const CastArgs& a) {
  const Problem p(a);
  check("cast_blocks", p, a.rule == ScaleRule::given ? a.scales : a.grid);
  if (!(a.amax_epsilon >= 0.0f) || std::isinf(a.amax_epsilon))
    io::fail<std::invalid_argument>("cast_blocks: amax_epsilon is {}, must be finite and not negative", a.amax_epsilon);
  if (a.rule == ScaleRule::given) return run(p, GivenRule{a.scales});
  if (a.rule == ScaleRule::amax_over_max) return run(p, InverseRule{p.limit, a.power_of_two, a.grid});
  run(p, FloatRule{a.type, p.limit, a.amax_epsilon, a.power_of_two, a.grid});
}

void amax_blocks(const CastArgs& a) {
  const Problem p(a, true);
  check("amax_blocks", p, a.grid);
  run(p, AmaxRule{a.grid});
}

void cast_mx(const CastArgs& a) {
  const Problem p(a);
  check("cast_mx", p, a.e8m0);
  if (a.layout.rows * a.layout.cols != kMxBlock || std::max(a.layout.rows, a.layout.cols) != kMxBlock)
    io::fail<std::invalid_argument>("cast_mx: found blocks of {} x {}, allowed: 1 x 32, 32 x 1", a.layout.rows,
                                    a.layout.cols);
  run(p, MxRule{p.limit, a.e8m0});
}

}  // namespace fp8::kernels
