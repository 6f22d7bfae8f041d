// SPDX-License-Identifier: Apache-2.0
// f32 throughout, in transformers' order of operations: the last bit of a frequency turns far positions visibly.
#include "fp8/tools/models/decoder/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace fp8::models {
namespace {

constexpr std::int64_t kTableRows = 256;

/// theta^(2i/d): the wavelengths / 2 pi.
at::Tensor powers(double theta, std::int64_t dims) {
  return at::pow(at::Scalar(theta), at::arange(0, dims, 2, at::kFloat) / static_cast<double>(dims));
}

at::Tensor llama3(const at::Tensor& frequencies, const RopeSpec& rope) {
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double low = original / rope.low_freq_factor, high = original / rope.high_freq_factor;
  const auto wavelength = 2 * std::numbers::pi / frequencies;
  auto scaled = at::where(wavelength > low, frequencies / rope.factor, frequencies);
  const auto smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const auto smoothed = (1 - smooth) * scaled / rope.factor + smooth * scaled;
  const auto medium = wavelength.ge(high).logical_and(wavelength.le(low));
  return at::where(medium, smoothed, scaled);
}

at::Tensor yarn(const RopeSpec& rope) {
  const auto dims = static_cast<double>(rope.dims);
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const auto element_that_turns = [&](double times) {
    return dims * std::log(original / (times * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = element_that_turns(rope.beta_fast), high = element_that_turns(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  const auto ramp = ((at::arange(rope.dims / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const auto wide = powers(rope.theta, rope.dims), kept = 1 - ramp;
  return (rope.factor * wide).reciprocal() * (1 - kept) + wide.reciprocal() * kept;
}

}  // namespace

at::Tensor rotary_frequencies(const RopeSpec& rope, std::int64_t positions) {
  using Kind = RopeSpec::Kind;
  const std::int64_t original = rope.original_max_position_embeddings;
  switch (rope.kind) {
    case Kind::none:
      break;
    case Kind::linear:
      return powers(rope.theta, rope.dims).reciprocal() / rope.factor;
    case Kind::dynamic: {
      if (positions <= original) break;
      const double stretched =
          rope.factor * static_cast<double>(positions) / static_cast<double>(original) - (rope.factor - 1);
      const auto dims = static_cast<double>(rope.dims);
      return powers(rope.theta * std::pow(stretched, dims / (dims - 2)), rope.dims).reciprocal();
    }
    case Kind::llama3:
      return llama3(powers(rope.theta, rope.dims).reciprocal(), rope);
    case Kind::yarn:
      return yarn(rope);
    case Kind::longrope: {
      const auto by = at::tensor(positions > original ? rope.long_factor : rope.short_factor, at::kFloat);
      return (by * powers(rope.theta, rope.dims)).reciprocal();
    }
  }
  return powers(rope.theta, rope.dims).reciprocal();
}

RotaryEmbeddingImpl::RotaryEmbeddingImpl(std::string type, std::vector<RopeSpec> ropes)
    : torch::nn::Module(std::move(type)), ropes_(std::move(ropes)), tables_(ropes_.size()) {
  for (const auto& rope : ropes_) frequencies_.push_back(rotary_frequencies(rope, 1));
}

/// Made on the host, where the angles are the same for every device, then moved.
RotaryAngles RotaryEmbeddingImpl::angles_of(std::size_t i, const at::Tensor& positions, std::int64_t in_use,
                                            bool longer, const at::Tensor& like) const {
  const RopeSpec& rope = ropes_[i];
  const auto frequencies = longer ? rotary_frequencies(rope, in_use) : frequencies_[i];
  const auto angles = positions.unsqueeze(-1) * frequencies;
  const auto both = at::cat({angles, angles}, -1).unsqueeze(1);
  auto cos = both.cos(), sin = both.sin();
  const double factor = longer && rope.long_attention_factor > 0 ? rope.long_attention_factor : rope.attention_factor;
  if (factor != 1) cos = cos * factor, sin = sin * factor;
  return {cos.to(like.options()), sin.to(like.options())};
}

std::shared_ptr<const RotaryEmbeddingImpl::Table> RotaryEmbeddingImpl::table_of(std::size_t i, std::int64_t position,
                                                                                bool longer, const at::Tensor& like) {
  const std::int64_t first = position / kTableRows * kTableRows;
  const bool inference = c10::InferenceMode::is_enabled();  // what is made there can't be part of a training step
  std::shared_ptr<const Table> table;
  {
    const std::lock_guard lock(mutex_);
    table = tables_[i];
  }
  if (table != nullptr && table->first == first && table->longer == longer && table->inference == inference &&
      table->angles.cos.scalar_type() == like.scalar_type() && table->angles.cos.device() == like.device())
    return table;
  const auto positions = at::arange(first, first + kTableRows, at::kFloat).unsqueeze(0);
  auto made = std::make_shared<Table>(
      Table{first, longer, inference, angles_of(i, positions, first + kTableRows, longer, like)});
  const std::lock_guard lock(mutex_);
  return tables_[i] = std::move(made);
}

std::vector<RotaryAngles> RotaryEmbeddingImpl::forward(const at::Tensor& positions, std::int64_t in_use,
                                                       const at::Tensor& like) {
  std::vector<RotaryAngles> all;
  for (std::size_t i = 0; i < ropes_.size(); ++i) {
    const auto& rope = ropes_[i];
    const bool longer = (rope.kind == RopeSpec::Kind::dynamic || rope.kind == RopeSpec::Kind::longrope) &&
                        in_use > rope.original_max_position_embeddings;
    if (positions.numel() == 1 && !(longer && rope.kind == RopeSpec::Kind::dynamic)) {
      const auto position = static_cast<std::int64_t>(positions.item<float>());
      if (position >= 0) {
        const auto table = table_of(i, position, longer, like);
        const std::int64_t row = position - table->first;
        all.push_back({table->angles.cos.narrow(2, row, 1), table->angles.sin.narrow(2, row, 1)});
        continue;
      }
    }
    all.push_back(angles_of(i, positions, in_use, longer, like));
  }
  return all;
}

}  // namespace fp8::models
