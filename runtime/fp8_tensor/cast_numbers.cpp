// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/cast_numbers.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "fp8/runtime/fp8_tensor/cast.h"

namespace fp8::runtime {

namespace {

double saturated(const at::Tensor& codes, kernels::Dialect dialect) {
  const bool narrow = codes.scalar_type() == at::kFloat8_e4m3fn;
  const float max = kernels::fp8_max(narrow ? kernels::Format::E4M3 : kernels::Format::E5M2, dialect);
  const std::uint8_t largest = narrow ? c10::Float8_e4m3fn(max).x : c10::Float8_e5m2(max).x;
  const std::uint8_t infinite = narrow ? largest : std::uint8_t{0x7c};
  const auto* first = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  const auto count = std::count_if(first, first + codes.numel(), [=](std::uint8_t code) {
    const auto magnitude = static_cast<std::uint8_t>(code & 0x7f);
    return magnitude == largest || magnitude == infinite;
  });
  return static_cast<double>(count) / static_cast<double>(codes.numel());
}

}  // namespace

void note_cast(LeafScope& leaf, const at::Tensor& x, std::initializer_list<CastResult> results) {
  if (!leaves_heard() || !leaf.wants_numbers() || x.numel() == 0) return;
  constexpr std::array<const char*, 2> kNames = {"saturated", "saturated_2"};
  TORCH_INTERNAL_ASSERT(results.size() <= kNames.size());
  leaf.note("amax", amax_of(x));
  const char* const* name = kNames.begin();
  for (const auto& [codes, dialect] : results) leaf.note(*name++, saturated(codes, dialect));
}

}  // namespace fp8::runtime
