// SPDX-License-Identifier: Apache-2.0
#include "fp8/recipes/inc_scale.h"

#include <algorithm>
#include <sstream>

#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::recipes {
namespace {

// Explicit mantissa bits, exponent of the smallest normal, largest finite value.
struct FloatLayout {
  int mantissa_bits, min_exponent;
  double max;
};

constexpr FloatLayout layout_of(FloatType type) {
  switch (type) {
    case FloatType::BF16: return {7, -126, 0x1.FEp127};
    case FloatType::F16: return {10, -14, 65504.0};
    case FloatType::F32: break;
  }
  return {23, -126, 0x1.FFFFFEp127};
}

// {largest exponent, smallest exponent, step} of the hardware's set.
struct HwSet {
  int max_exponent, min_exponent, step;
};

constexpr HwSet hw_set(Dialect dialect) { return dialect == Dialect::gaudi2 ? HwSet{4, -8, 4} : HwSet{7, -55, 1}; }

// log2 as hp sees it: f32 first, because that is what the operation returns before it is stored.
float log2_in(float x, FloatType hp) { return round_to(static_cast<float>(std::log2(static_cast<double>(x))), hp); }

float power_of_two(float exponent, FloatType hp) {
  // Outside of [-200, 200] every type has run into 0 or infinity; the clamp keeps the conversion to int defined.
  const int e = static_cast<int>(std::clamp(exponent, -200.0f, 200.0f));
  const double value = std::ldexp(1.0, e);
  if (value > layout_of(hp).max) return std::numeric_limits<float>::infinity();
  return round_to(static_cast<float>(value), hp);
}

float round_pow2(float raw, FloatType hp) { return power_of_two(std::ceil(log2_in(raw, hp)), hp); }

float round_hw_aligned(float raw, const IncTarget& target) {
  const HwSet set = hw_set(target.dialect);
  const float pow2 = round_pow2(raw, target.hp);
  const float step = static_cast<float>(set.step);
  const float multiple = std::ceil(round_to(log2_in(pow2, target.hp) / step, target.hp));
  const float aligned = power_of_two(round_to(multiple * step, target.hp), target.hp);
  const float smallest = round_to(std::ldexp(1.0f, set.min_exponent), target.hp);
  const float largest = round_to(std::ldexp(1.0f, set.max_exponent), target.hp);
  return std::min(std::max(aligned, smallest), largest);
}

[[noreturn]] void reject(std::string_view name, const std::string& what) {
  io::fail<std::invalid_argument>("{}: {}", name, what);
}

std::string text(float value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// The line "raw" of inc_scale.h, unchecked. rounded: amax in hp.
float raw_of(float rounded, Granularity granularity, float backoff, const IncTarget& target) {
  const double full_scale = static_cast<double>(fp8_max(target.format, target.dialect)) * backoff;
  const float raw = round_to(rounded / static_cast<float>(full_scale), target.hp);
  return granularity == Granularity::tensor ? raw : std::max(raw, round_to(0x1p-126f, target.hp));
}

void check_amax(float amax, std::string_view name) {
  if (!std::isfinite(amax) || amax < 0.0f) reject(name, "amax is " + text(amax) + ", allowed: a finite value >= 0");
}

float raw_scale(float amax, const ScaleMethod& method, const IncTarget& target, std::string_view name) {
  if (!(method.backoff > 0.0f && method.backoff <= 1.0f))
    reject(name, "backoff is " + text(method.backoff) + ", allowed: above 0, up to 1");
  check_amax(amax, name);
  const float rounded = round_to(amax, target.hp);
  if (!std::isfinite(rounded))
    reject(name, "amax is " + text(amax) + ", allowed: values that " + name_of(target.hp) + " (hp_dtype) can hold");
  const float raw = raw_of(rounded, method.granularity, method.backoff, target);
  if (!std::isfinite(raw)) reject(name, "amax " + text(amax) + " with backoff " + text(method.backoff) + " overflows");
  return raw;
}

float custom_scale_inv(float amax, const ScaleMethod& method, const IncTarget& target, std::string_view name) {
  if (method.custom == nullptr) reject(name, "a CUSTOM scale method has no function");
  check_amax(amax, name);
  const float found = (*method.custom)(amax, target);
  const float scale_inv = round_to(found, target.hp);
  if (scale_inv > 0.0f && std::isfinite(scale_inv) && std::isfinite(inc_scale(scale_inv, target.hp))) return scale_inv;
  reject(name, "the scale method of your own made scale_inv " + text(found) + " of amax " + text(amax) +
                   ", allowed: a value > 0 that is finite in " + name_of(target.hp) + " and has a finite reciprocal");
}

}  // namespace

float round_to(float x, FloatType hp) { return kernels::round_to(hp, x); }

// The two deliberate differences of inc_scale.h. 1 / x is finite in hp exactly for x above 2^-128 (f16: 2^-16).
float usable_scale_inv(float scale_inv, Rounding rounding, FloatType hp) {
  if (scale_inv == 0.0f) return 1.0f;
  const float limit = hp == FloatType::F16 ? 0x1p-16f : 0x1p-128f;
  if (scale_inv > limit) return scale_inv;
  if (rounding != Rounding::IDENTITY) return 2.0f * limit;
  const FloatLayout layout = layout_of(hp);
  return limit + std::ldexp(1.0f, layout.min_exponent - layout.mantissa_bits);
}

std::vector<float> hw_scale_set(Dialect dialect) {
  const HwSet set = hw_set(dialect);
  std::vector<float> scales;
  for (int e = set.max_exponent; e >= set.min_exponent; e -= set.step) scales.push_back(std::ldexp(1.0f, e));
  return scales;
}

float round_scale(float raw, Rounding rounding, const IncTarget& target) {
  switch (rounding) {
    case Rounding::IDENTITY: return raw;
    case Rounding::POW2: return round_pow2(raw, target.hp);
    case Rounding::HW_ALIGNED: return round_hw_aligned(raw, target);
    case Rounding::HW_ALIGNED_FIXED: return round_to(hw_scale_set(target.dialect).front(), target.hp);
    case Rounding::SCALE_UNIT: break;
  }
  return 1.0f;
}

float inc_scale_inv(float amax, const ScaleMethod& method, const IncTarget& target, std::string_view name) {
  switch (method.value) {
    case ScaleValue::DUMMY_SCALES: return 1.0f;
    case ScaleValue::FIXED_VALUE: return round_scale(1.0f, method.rounding, target);
    case ScaleValue::OPT: reject(name, "scale value OPT is a search over the weight's values, not a function of amax");
    case ScaleValue::CUSTOM: return custom_scale_inv(amax, method, target, name);
    case ScaleValue::MAXABS: break;
  }
  const float raw = raw_scale(amax, method, target, name);
  return usable_scale_inv(round_scale(raw, method.rounding, target), method.rounding, target.hp);
}

Eigen::ArrayXf inc_scale_inv(const Eigen::ArrayXf& amax, const ScaleMethod& method, const IncTarget& target,
                             std::string_view name) {
  Eigen::ArrayXf result(amax.size());
  for (Eigen::Index i = 0; i < amax.size(); ++i) {
    if (std::isfinite(amax[i]) && amax[i] >= 0.0f) {
      result[i] = inc_scale_inv(amax[i], method, target, name);
    } else {  // the message names the channel
      result[i] = inc_scale_inv(amax[i], method, target, std::string(name) + "[" + std::to_string(i) + "]");
    }
  }
  return result;
}

// POW2 of every bf16 >= 0, because two logarithms per token are slower than the token's cast.
static float round_pow2_bf16(float raw) {
  static const std::vector<float> table = [] {
    std::vector<float> result(0x7F80);  // up to the largest finite value
    for (std::size_t bits = 0; bits < result.size(); ++bits) {
      const float x = kernels::bf16_to_f32(static_cast<std::uint16_t>(bits));
      result[bits] = usable_scale_inv(round_pow2(x, FloatType::BF16), Rounding::POW2, FloatType::BF16);
    }
    return result;
  }();
  return table[kernels::f32_to_bf16(raw)];
}

void inc_dynamic_scale_inv(const float* amax, std::int64_t n, const ScaleMethod& method, const IncTarget& target,
                           float* out) {
  constexpr float kBackoff = 0.5f;
  constexpr std::string_view kName = "dynamic quantization";
  if (method.value == ScaleValue::OPT) reject(kName, "scale value OPT is for weights, allowed: MAXABS, FIXED_VALUE");
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(amax[i])) {
      out[i] = amax[i];
    } else if (method.value != ScaleValue::MAXABS) {
      out[i] = inc_scale_inv(amax[i], method, target, kName);
    } else {
      const float raw = raw_of(round_to(amax[i], target.hp), method.granularity, kBackoff, target);
      if (!std::isfinite(raw)) {
        out[i] = raw;
      } else if (method.rounding == Rounding::POW2 && target.hp == FloatType::BF16) {
        out[i] = round_pow2_bf16(raw);
      } else {
        out[i] = usable_scale_inv(round_scale(raw, method.rounding, target), method.rounding, target.hp);
      }
    }
  }
}

float inc_scale(float scale_inv, FloatType hp) { return round_to(1.0f / scale_inv, hp); }

Eigen::ArrayXf inc_scale(const Eigen::ArrayXf& scale_inv, FloatType hp) {
  Eigen::ArrayXf result(scale_inv.size());
  for (Eigen::Index i = 0; i < scale_inv.size(); ++i) result[i] = inc_scale(scale_inv[i], hp);
  return result;
}

}  // namespace fp8::recipes
