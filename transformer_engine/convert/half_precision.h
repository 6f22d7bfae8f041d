// SPDX-License-Identifier: Apache-2.0
// transformers' `bf16` and `half_precision_backend`: which device's operations a region casts to bf16.
//
//   hpu_amp   autocast on hpu, with the device's lists (runtime/autocast)
//   cpu_amp   autocast on the CPU, with LibTorch's: for a model that trains there; operations on hpu are left alone
#pragma once
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::te {

using fp8::name_of;

enum class HalfPrecisionBackend : std::uint8_t { hpu_amp, cpu_amp };
constexpr auto names_of(HalfPrecisionBackend) {
  using enum HalfPrecisionBackend;
  return std::to_array<EnumName<HalfPrecisionBackend>>({{hpu_amp, "hpu_amp"}, {cpu_amp, "cpu_amp"}});
}

/// A region of LibTorch's bf16 autocast on the CPU; the state before it comes back at its end. What was cast is kept
/// until the outermost region ends, as in torch.autocast.
class CpuAutocastGuard {
 public:
  CpuAutocastGuard();
  ~CpuAutocastGuard();
  CpuAutocastGuard(const CpuAutocastGuard&) = delete;
  CpuAutocastGuard& operator=(const CpuAutocastGuard&) = delete;

 private:
  bool enabled_;
  at::ScalarType dtype_;
};

/// The region of one step: { const HalfPrecisionContext region(arguments.bf16, backend); loss = step(batch); }
/// bf16 = false: none.
class HalfPrecisionContext {
 public:
  explicit HalfPrecisionContext(bool bf16, HalfPrecisionBackend backend = HalfPrecisionBackend::hpu_amp);

 private:
  std::optional<runtime::autocast::AutocastGuard> hpu_;
  std::optional<CpuAutocastGuard> cpu_;
};

}  // namespace fp8::te
