// SPDX-License-Identifier: Apache-2.0
// The table of kernels/capabilities.h for LibTorch's dtypes and the present thread's device: asked wherever a tensor
// comes to be, by products and by autocast.
#pragma once
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "fp8/runtime/kernels/capabilities.h"

namespace fp8::runtime {

using kernels::DtypeUse;

struct DtypePair {
  c10::ScalarType type;
  kernels::Dtype row;
};
/// Those that are in the table, in its order. No device has others (quantized ones, bits).
inline constexpr DtypePair kDtypes[] = {{c10::ScalarType::Float, kernels::Dtype::float32},
                                        {c10::ScalarType::BFloat16, kernels::Dtype::bfloat16},
                                        {c10::ScalarType::Half, kernels::Dtype::float16},
                                        {c10::ScalarType::Float8_e4m3fn, kernels::Dtype::float8_e4m3fn},
                                        {c10::ScalarType::Float8_e5m2, kernels::Dtype::float8_e5m2},
                                        {c10::ScalarType::Char, kernels::Dtype::int8},
                                        {c10::ScalarType::Byte, kernels::Dtype::uint8},
                                        {c10::ScalarType::Short, kernels::Dtype::int16},
                                        {c10::ScalarType::Int, kernels::Dtype::int32},
                                        {c10::ScalarType::Long, kernels::Dtype::int64},
                                        {c10::ScalarType::Bool, kernels::Dtype::boolean},
                                        {c10::ScalarType::Double, kernels::Dtype::float64},
                                        {c10::ScalarType::ComplexHalf, kernels::Dtype::complex32},
                                        {c10::ScalarType::ComplexFloat, kernels::Dtype::complex64},
                                        {c10::ScalarType::ComplexDouble, kernels::Dtype::complex128},
                                        {c10::ScalarType::UInt16, kernels::Dtype::uint16},
                                        {c10::ScalarType::UInt32, kernels::Dtype::uint32},
                                        {c10::ScalarType::UInt64, kernels::Dtype::uint64},
                                        {c10::ScalarType::Float8_e4m3fnuz, kernels::Dtype::float8_e4m3fnuz},
                                        {c10::ScalarType::Float8_e5m2fnuz, kernels::Dtype::float8_e5m2fnuz},
                                        {c10::ScalarType::Float8_e8m0fnu, kernels::Dtype::float8_e8m0fnu},
                                        {c10::ScalarType::Float4_e2m1fn_x2, kernels::Dtype::float4_e2m1fn_x2}};

/// Whether a device of that kind takes it.
constexpr bool takes(kernels::DeviceKind kind, c10::ScalarType type, DtypeUse use) {
  for (const DtypePair& pair : kDtypes)
    if (pair.type == type) return kernels::takes(kind, pair.row, use);
  return false;
}

/// Whether the device that this thread sees (device_kind()) takes it.
bool takes(c10::ScalarType type, DtypeUse use);
/// "Float, BFloat16": what it takes, but for what only the emulation has.
std::string allowed_dtypes(DtypeUse use);
/// "FP8 not supported on Gaudi, Gaudi2 or higher required": the vendor's words for what the second generation brought.
std::string second_generation_required(const char* what);

namespace capabilities {

/// For each dtype, the uses that every kind has of it: no question about the present one is needed.
inline constexpr auto kEverywhere = [] {
  std::array<std::uint8_t, static_cast<std::size_t>(c10::ScalarType::NumOptions)> uses{};
  for (const DtypePair& pair : kDtypes)
    for (const auto& use : enum_names<DtypeUse>)
      if (kernels::takes(kernels::DeviceKind::gaudi, pair.row, use.value))
        uses[static_cast<std::size_t>(pair.type)] |= static_cast<std::uint8_t>(use.value);
  return uses;
}();

[[gnu::cold]] void check_of_kind(c10::ScalarType type, DtypeUse use, const char* op);

}  // namespace capabilities

/// Throws c10::NotImplementedError naming op, dtype, device and what it takes, unless the device takes it.
/// op: "hpu" where a tensor is made.
inline void check_takes(c10::ScalarType type, DtypeUse use, const char* op) {
  const auto everywhere = capabilities::kEverywhere[static_cast<std::size_t>(type)];
  if ((everywhere & static_cast<std::uint8_t>(use)) == 0) capabilities::check_of_kind(type, use, op);
}

}  // namespace fp8::runtime
