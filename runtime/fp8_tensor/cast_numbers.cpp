// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/cast_numbers.h"

#include <algorithm>
#include <cstdint>

#include "fp8/runtime/fp8_tensor/cast.h"

namespace fp8::runtime {

void note_cast(LeafScope& leaf, const at::Tensor& x, const at::Tensor& codes, kernels::Dialect dialect) {
  if (!leaves_heard() || !leaf.wants_numbers() || codes.numel() == 0) return;
  const bool narrow = codes.scalar_type() == at::kFloat8_e4m3fn;
  const float max = kernels::fp8_max(narrow ? kernels::Format::E4M3 : kernels::Format::E5M2, dialect);
  const std::uint8_t largest = narrow ? c10::Float8_e4m3fn(max).x : c10::Float8_e5m2(max).x;
  const std::uint8_t infinite = narrow ? largest : std::uint8_t{0x7c};
  const auto* first = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  const auto count = std::count_if(first, first + codes.numel(), [=](std::uint8_t code) {
    const auto magnitude = static_cast<std::uint8_t>(code & 0x7f);
    return magnitude == largest || magnitude == infinite;
  });
  leaf.note("amax", amax_of(x));
  leaf.note("saturated", static_cast<double>(count) / static_cast<double>(codes.numel()));
}

}  // namespace fp8::runtime
