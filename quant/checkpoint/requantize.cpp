// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/requantize.h"

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::quant {
namespace {

/// code' of each code: value * over / times, two f32 operations, then the cast to a dialect with that maximum.
std::array<std::uint8_t, 256> rescaled_codes(float times, float over, float max) {
  std::array<float, 256> values;
  const float* value = kernels::decode_table(kernels::Format::E4M3);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value[i] * over / times;
  std::array<std::uint8_t, 256> codes;
  kernels::cast_to_fp8(kernels::dense_cast(values.data(), 1, 256, codes.data(), kernels::Format::E4M3, max));
  return codes;
}

using kernels::FloatType;

float load(FloatType, const float* x, std::int64_t i) { return x[i]; }
float load(FloatType type, const std::uint16_t* x, std::int64_t i) {
  return type == FloatType::BF16 ? kernels::bf16_to_f32(x[i]) : kernels::f16_to_f32(x[i]);
}

template <FloatType kFrom, FloatType kTo>
bool cast_loop(const void* x, std::int64_t n, void* y) {
  using In = std::conditional_t<kFrom == FloatType::F32, float, std::uint16_t>;
  bool fits = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = load(kFrom, static_cast<const In*>(x), i);
    if constexpr (kTo == FloatType::F32) {
      static_cast<float*>(y)[i] = value;
    } else {
      constexpr std::uint16_t kInfinity = kTo == FloatType::BF16 ? 0x7F80 : 0x7C00;
      const std::uint16_t half = kTo == FloatType::BF16 ? kernels::f32_to_bf16(value) : kernels::f32_to_f16(value);
      fits = fits && ((half & 0x7FFF) != kInfinity || !std::isfinite(value));
      static_cast<std::uint16_t*>(y)[i] = half;
    }
  }
  return fits;
}

template <FloatType kFrom>
bool cast_from(const void* x, std::int64_t n, FloatType to, void* y) {
  switch (to) {
    case FloatType::F32: return cast_loop<kFrom, FloatType::F32>(x, n, y);
    case FloatType::BF16: return cast_loop<kFrom, FloatType::BF16>(x, n, y);
    case FloatType::F16: break;
  }
  return cast_loop<kFrom, FloatType::F16>(x, n, y);
}

}  // namespace

void Rescaling::apply(std::uint8_t* codes, std::int64_t n) const {
  if (identity()) return;
  for (std::int64_t i = 0; i < n; ++i) codes[i] = code[codes[i]];
}

float Rescaling::scale_inv(float value, const std::string& what) const {
  if (identity()) return value;
  const float scaled = value * times / over;
  if (!std::isfinite(scaled) || scaled <= 0)
    io::fail<std::invalid_argument>("{}: scale {} leaves the range of f32 when rescaled", what, value);
  return scaled;
}

Rescaling rescaling(recipes::Format format, recipes::Dialect from, recipes::Dialect to, std::optional<Rescale> how) {
  Rescaling out;
  for (std::size_t i = 0; i < out.code.size(); ++i) out.code[i] = static_cast<std::uint8_t>(i);
  const float a = kernels::fp8_max(format, from), b = kernels::fp8_max(format, to);
  if (a == b || (a < b && !how.has_value())) return out;
  const bool two = how == Rescale::two;
  if (two && a < b)
    throw io::OptionError<std::invalid_argument>(
        io::option("rescale", "Rescale::two", "2") + ": twice the codes of " + std::string(kernels::name_of(from)) +
        " leave the range of " + kernels::name_of(to) + ", allowed: " + io::option("range", "Rescale::range") +
        ", or none, which keeps codes and scales");
  out.times = two ? 2.0f : a;
  out.over = two ? 1.0f : b;
  out.code = rescaled_codes(out.times, out.over, b);
  return out;
}

bool refines(const Scheme& from, const Scheme& to, std::int64_t rows, std::int64_t cols) {
  const auto grid = scale_grid(from, rows, cols);
  const kernels::ScaleLayout a = from.layout(), b = to.layout();
  return (grid.rows <= 1 || (b.rows != 0 && a.rows % b.rows == 0)) &&
         (grid.cols <= 1 || (b.cols != 0 && a.cols % b.cols == 0));
}

std::vector<float> spread_scales(const std::vector<float>& scale_inv, const Scheme& from, const Scheme& to,
                                 std::int64_t rows, std::int64_t cols) {
  const auto grid = scale_grid(to, rows, cols);
  const kernels::ScaleLayout old = from.layout(), made = to.layout();
  io::ensure(static_cast<std::int64_t>(scale_inv.size()) == scale_grid(from, rows, cols).size() &&
                 refines(from, to, rows, cols),
             "a scale per block, and blocks that each lie in one of the old ones");
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(grid.size()));
  for (std::int64_t r = 0; r < grid.rows; ++r)
    for (std::int64_t c = 0; c < grid.cols; ++c)
      out.push_back(scale_inv[static_cast<std::size_t>(old.in_grid(r * made.rows, c * made.cols, cols))]);
  return out;
}

bool is_power_of_two(float value) {
  int exponent = 0;
  return std::isfinite(value) && value >= 0x1p-127f && std::frexp(value, &exponent) == 0.5f;
}

void Deviation::add(const float* a, const float* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (a[i] != b[i]) equal = false;  // a NaN on either side too
    const double value = std::abs(static_cast<double>(a[i])),
                 difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= largest))
      largest = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    largest_value = std::max(largest_value, value);
    squares += difference * difference;
    value_squares += value * value;
  }
}

bool cast_floats(const void* x, FloatType from, std::int64_t n, FloatType to, void* y) {
  switch (from) {
    case FloatType::F32: return cast_from<FloatType::F32>(x, n, to, y);
    case FloatType::BF16: return cast_from<FloatType::BF16>(x, n, to, y);
    case FloatType::F16: break;
  }
  return cast_from<FloatType::F16>(x, n, to, y);
}

double Deviation::max_error() const {
  return largest == 0 ? 0 : largest_value == 0 ? std::numeric_limits<double>::infinity() : largest / largest_value;
}

double Deviation::rms_error() const {
  if (squares == 0) return 0;
  return value_squares == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(squares / value_squares);
}

}  // namespace fp8::quant
