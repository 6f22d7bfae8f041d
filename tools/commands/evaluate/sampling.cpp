// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/sampling.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>

#include <algorithm>
#include <limits>

#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::commands {
namespace {

using kernels::FloatType;

/// Bits: signed, of the logits' width. infinity: the bits of +inf. Bits of floats >= 0 are ordered as the floats are;
/// those below 0 are with all but the sign turned over.
template <class Bits>
std::optional<LargestLogit> largest_bits(const LogitsRow& logits, Bits infinity) {
  constexpr auto kMagnitude = std::numeric_limits<Bits>::max();
  const auto* bits = static_cast<const Bits*>(logits.data);
  Bits most = std::numeric_limits<Bits>::min(), farthest = 0;
  for (std::int64_t i = 0; i < logits.n; ++i) {
    const auto sign = static_cast<Bits>(bits[i] >> std::numeric_limits<Bits>::digits);  // 0 or -1
    most = std::max(most, static_cast<Bits>(bits[i] ^ (sign & kMagnitude)));
    farthest = std::max(farthest, static_cast<Bits>(bits[i] & kMagnitude));
  }
  if (farthest >= infinity) return std::nullopt;
  const auto negative = static_cast<Bits>(most >> std::numeric_limits<Bits>::digits);
  const auto largest = static_cast<Bits>(most ^ (negative & kMagnitude));
  // -0 is as large as 0, but below it in bits.
  const auto is_largest = [&](Bits x) { return x == largest || (largest == 0 && (x & kMagnitude) == 0); };
  const auto index = std::find_if(bits, bits + logits.n, is_largest) - bits;
  return LargestLogit{index, kernels::load_element(logits.data, logits.type, index)};
}

}  // namespace

std::optional<LargestLogit> largest_of(const LogitsRow& logits) {
  switch (logits.type) {
    case FloatType::BF16:
      return largest_bits<std::int16_t>(logits, 0x7F80);
    case FloatType::F16:
      return largest_bits<std::int16_t>(logits, 0x7C00);
    case FloatType::F32:
      return largest_bits<std::int32_t>(logits, 0x7F800000);
  }
  return std::nullopt;
}

std::int64_t TokenDraw::draw(const LogitsRow& logits, float largest, std::mt19937_64& generator) {
  if (!weights_.defined() || weights_.numel() != logits.n) weights_ = at::empty({logits.n}, at::kDouble);
  auto* w = weights_.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < logits.n; ++i)
    w[i] = (static_cast<double>(kernels::load_element(logits.data, logits.type, i)) - largest) / temperature_;
  at::exp_(weights_);
  double sum = 0;
  for (std::int64_t i = 0; i < logits.n; ++i) sum += w[i];
  double rest = static_cast<double>(generator() >> 11) * 0x1p-53 * sum;
  std::int64_t last = 0;  // the last possible token takes what rounding leaves
  for (std::int64_t i = 0; i < logits.n; ++i) {
    if (w[i] <= 0) continue;
    last = i;
    rest -= w[i];
    if (rest < 0) break;
  }
  return last;
}

}  // namespace fp8::commands
