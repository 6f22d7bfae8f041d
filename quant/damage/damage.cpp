// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/damage/damage.h"

#include <tuple>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::quant {
namespace {

constexpr std::int64_t kBlock = 1 << 20;  ///< elements cast at a time: codes and values of it stay small
constexpr std::int64_t kGrain = 1 << 14;  ///< elements of one partial sum

int octave_of(float magnitude) {
  const int exponent = std::ilogb(magnitude);  // of an infinity INT_MAX: the last octave
  return std::clamp(exponent, CastDamage::kFirstExponent, CastDamage::kFirstExponent + CastDamage::kOctaves - 1) -
         CastDamage::kFirstExponent;
}

/// The largest values that the scales leave room for: one, or one per block of a grid.
struct Limits {
  std::vector<float> values;
  std::int64_t cols = 1;  ///< of the matrix
  kernels::ScaleLayout layout;
  float at(std::int64_t i) const {
    if (values.size() == 1) return values[0];
    return values[static_cast<std::size_t>(layout.in_grid(i / cols, i % cols, cols))];
  }
};

/// Elements [begin, end) of a block. decoded: null when nothing was cast.
void add_range(const void* x, recipes::FloatType type, std::int64_t begin, std::int64_t end, const float* decoded,
               const Limits& limits, CastDamage& out) {
  for (std::int64_t i = begin; i < end; ++i) {
    const float value = kernels::load_element(x, type, i), magnitude = std::abs(value);
    out.amax = std::isnan(magnitude) || magnitude > out.amax ? magnitude : out.amax;
    if (magnitude == 0) {
      ++out.zeros;
      continue;
    }
    if (!std::isnan(value)) ++out.octaves[static_cast<std::size_t>(octave_of(magnitude))];
    if (decoded == nullptr) continue;
    const double error = static_cast<double>(value) - static_cast<double>(decoded[i]);
    out.signal += static_cast<double>(value) * static_cast<double>(value);
    out.noise += error * error;
    out.underflow += decoded[i] == 0.0f ? 1 : 0;
    out.saturated += magnitude > limits.at(i) ? 1 : 0;
  }
  out.count += end - begin;
}

CastDamage sum_ranges(const void* x, recipes::FloatType type, std::int64_t n, const float* decoded,
                      const Limits& limits) {
  std::vector<CastDamage> parts(static_cast<std::size_t>((n + kGrain - 1) / kGrain));
  kernels::parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += kGrain)
      add_range(x, type, at, std::min(end, at + kGrain), decoded, limits, parts[static_cast<std::size_t>(at / kGrain)]);
  });
  CastDamage out;
  for (const auto& part : parts) out.merge(part);
  return out;
}

Limits limits_of(const WeightScales& scales, const Scheme& scheme, std::int64_t cols) {
  Limits limits{{}, std::max<std::int64_t>(cols, 1), {}};
  // Stacked experts have a tensor's scale spread over its rows: a grid of rows all the same.
  limits.layout = scheme.has_blocks() ? scheme.layout() : kernels::ScaleLayout::per_row();
  for (float s : scales.scale_inv) limits.values.push_back(s * scheme.fp8_max() * (1.0f + 0x1p-8f));
  return limits;
}

/// One block of whole rows.
CastDamage block_damage(const void* x, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                        const WeightScales* scales, const Scheme& scheme) {
  const std::int64_t n = rows * cols;
  std::vector<std::uint8_t> codes;
  std::vector<float> decoded;
  Limits limits{{}, std::max<std::int64_t>(cols, 1), {}};
  if (scales != nullptr) {
    codes.resize(static_cast<std::size_t>(n));
    decoded.resize(codes.size());
    cast_weight_rows(x, type, rows, cols, 0, *scales, scheme, codes.data());
    decode_weight_rows(codes.data(), rows, cols, 0, scales->scale_inv.data(),
                       static_cast<std::int64_t>(scales->scale_inv.size()), scheme, decoded.data(),
                       recipes::FloatType::F32);
    limits = limits_of(*scales, scheme, cols);
  }
  return sum_ranges(x, type, n, scales != nullptr ? decoded.data() : nullptr, limits);
}

/// Calls body(data, first_row, rows) over blocks of whole rows, each but the last a multiple of `band` rows.
template <class Body>
void for_blocks(const void* x, recipes::FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t band,
                Body body) {
  const std::int64_t size = type == recipes::FloatType::F32 ? 4 : 2;
  const std::int64_t bands = std::max<std::int64_t>(1, kBlock / std::max<std::int64_t>(cols, 1) / band),
                     step = std::min(rows, bands * band);
  for (std::int64_t row = 0; row < rows && cols > 0; row += step)
    body(static_cast<const char*>(x) + row * cols * size, row, std::min(step, rows - row));
}

}  // namespace

void CastDamage::merge(const CastDamage& o) {
  amax = std::isnan(amax) || std::isnan(o.amax) ? std::numeric_limits<float>::quiet_NaN() : std::max(amax, o.amax);
  count += o.count, zeros += o.zeros, saturated += o.saturated, underflow += o.underflow;
  signal += o.signal, noise += o.noise;
  for (std::size_t i = 0; i < octaves.size(); ++i) octaves[i] += o.octaves[i];
}

double CastDamage::sqnr_db() const {
  return noise == 0 ? std::numeric_limits<double>::infinity() : 10.0 * std::log10(signal / noise);
}

double expected_rounding(recipes::Format format) {
  // An error spread evenly over one step u has RMS u / sqrt(12); magnitudes with density 1 / (f ln 2) have mean square
  // 3 / (2 ln 2).
  const double step = format == recipes::Format::E4M3 ? 1.0 / 8 : 1.0 / 4;
  return step * std::sqrt(std::log(2.0) / 18.0);
}

double combined_sqnr_db(double weight_db, double input_db) {
  return -10.0 * std::log10(std::pow(10.0, -weight_db / 10) + std::pow(10.0, -input_db / 10));
}

CastDamage weight_damage(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                         const WeightScales& scales, const Scheme& scheme) {
  CastDamage out;
  const std::int64_t band = scheme.has_blocks() ? std::min(scheme.block.rows, std::max<std::int64_t>(rows, 1)) : 1;
  for_blocks(w, type, rows, cols, band, [&](const void* data, std::int64_t first, std::int64_t n) {
    const WeightScales part = scales.of_rows(first, n, scheme, cols);
    out.merge(block_damage(data, type, n, cols, &part, scheme));
  });
  return out;
}

CastDamage input_damage(const void* x, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                        const Scheme& scheme) {
  CastDamage out;
  Scheme rule =
      scheme;  // an activation's scales lie over it as those of a weight per channel, or of one in blocks of one row
  rule.weights = scheme.activations == ActivationScaling::dynamic_group ? Granularity::block : Granularity::channel;
  rule.block.rows = 1;
  rule.power_of_two = scheme.is_mx();
  for_blocks(x, type, rows, cols, 1, [&](const void* data, std::int64_t, std::int64_t n) {
    if (scheme.activations == ActivationScaling::none)
      return out.merge(block_damage(data, type, n, cols, nullptr, scheme));
    WeightScales scales{{scheme.input_scale}, {scheme.input_scale_inv}};
    if (scheme.activations == ActivationScaling::dynamic_group) {
      scales = weight_scales(block_amax(data, type, n, cols, rule), rule, "activation");
    } else if (!scheme.is_static()) {
      std::vector<float> amax(static_cast<std::size_t>(n));
      kernels::amax_rows(data, type, n, cols, cols, amax.data());
      scales = weight_scales(amax, rule, "activation");
    }
    out.merge(block_damage(data, type, n, cols, &scales, rule));
  });
  return out;
}

CastDamage compare_cast(const void* x, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                        const float* decoded, const WeightScales* scales, const Scheme* scheme) {
  const Limits none{{std::numeric_limits<float>::infinity()}, std::max<std::int64_t>(cols, 1), {}};
  return sum_ranges(x, type, rows * cols, decoded, scales == nullptr ? none : limits_of(*scales, *scheme, cols));
}

ModuleDamage ModuleDamage::of(std::string name, std::string type, const Scheme& scheme,
                              const std::vector<float>& weight_scale_inv) {
  ModuleDamage out;
  out.name = std::move(name);
  out.type = std::move(type);
  out.scheme = scheme.describe();
  if (!weight_scale_inv.empty()) out.weight_scale_inv = *std::ranges::max_element(weight_scale_inv);
  if (scheme.is_static()) out.input_scale_inv = scheme.input_scale_inv;
  out.fp8_max = scheme.fp8_max();
  out.fp8_min = kernels::decode_table(scheme.format)[1];
  return out;
}

double ModuleDamage::sqnr_db() const {
  const double infinite = std::numeric_limits<double>::infinity();
  return combined_sqnr_db(weight.sqnr_db(), input.has_value() ? input->sqnr_db() : infinite);
}

void sort_by_damage(std::vector<ModuleDamage>& modules) {
  std::vector<std::tuple<double, double, std::string_view, std::size_t>> order;  // they are large: moved once
  for (std::size_t i = 0; i < modules.size(); ++i)
    order.emplace_back(modules[i].sqnr_db(), -modules[i].weight.saturation_share(), modules[i].name, i);
  std::ranges::sort(order);
  std::vector<ModuleDamage> sorted;
  sorted.reserve(modules.size());
  for (const auto& [db, saturation, name, i] : order) sorted.push_back(std::move(modules[i]));
  modules = std::move(sorted);
}

}  // namespace fp8::quant
