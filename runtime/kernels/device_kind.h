// SPDX-License-Identifier: Apache-2.0
// The accelerator that is emulated, as far as its formats and dtypes go. No torch here: runtime/device/device.h has
// what a thread may choose instead, runtime/device/device.h asks the table for LibTorch's dtypes, `fp8 doctor
// --device` prints it. Uses of a dtype:
//
//   tensors    a tensor on the device may be of it
//   mm         matrix products multiply it
//   conv       so do convolutions
//   autocast   a region may be of it (a region casts f32, bf16 and f16 alone, whatever it is of)
//
// Tensors of the first eleven but uint8, and products of integers, are as lightning-habana's tests have them for each
// generation; convolutions of integers are what the host does.
//
// mm and conv know no scales: float8 codes are multiplied as the numbers that they are by themselves. Products of what
// was quantized are those of converted weights and of the hpu:: operators.
#pragma once

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

/// The first generation has neither fp8 nor fp16.
enum class DeviceKind : std::uint8_t { gaudi, gaudi2, gaudi3 };
constexpr auto names_of(DeviceKind) { return names_up_to<DeviceKind::gaudi3>("GAUDI", "GAUDI2", "GAUDI3"); }

/// FP8_HPU_DEVICE: gaudi, gaudi2, gaudi3 (default). Throws std::invalid_argument naming the variable, what was found
/// and what is allowed.
DeviceKind kind_from_environment();

/// The E4M3 dialect of a kind that has fp8: gaudi3 writes ocp's numbers.
constexpr Dialect dialect_of(DeviceKind kind) { return kind == DeviceKind::gaudi2 ? Dialect::gaudi2 : Dialect::gaudi3; }

/// The error about a kind without.
inline constexpr char kNoFp8[] = "fp8 is not supported on GAUDI, allowed: gaudi2, gaudi3 (FP8_HPU_DEVICE)";

enum class DtypeUse : std::uint8_t { tensors = 1, mm = 2, conv = 4, autocast = 8 };
constexpr auto names_of(DtypeUse) {
  using enum DtypeUse;
  return std::to_array<EnumName<DtypeUse>>({{tensors, "tensors"}, {mm, "mm"}, {conv, "conv"}, {autocast, "autocast"}});
}

enum class Dtype : std::uint8_t {
  float32,
  bfloat16,
  float16,
  float8_e4m3fn,
  float8_e5m2,
  int8,
  uint8,
  int16,
  int32,
  int64,
  boolean,
  float64,
  complex32,
  complex64,
  complex128,
  uint16,
  uint32,
  uint64,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  float8_e8m0fnu,
  float4_e2m1fn_x2
};

struct DtypeRow {
  Dtype value;
  const char* name;             ///< Python's
  DeviceKind since;             ///< the first generation that has it
  std::uint8_t uses;            ///< of DtypeUse, on that and later ones
  bool emulation_only = false;  ///< the vendor lists it for none: here it is there since the host has it
};
constexpr auto names_of(Dtype) {
  using enum Dtype;
  using enum DeviceKind;
  constexpr std::uint8_t tensors = 1, mm = 2, conv = 4, autocast = 8;
  return std::to_array<DtypeRow>({{float32, "float32", gaudi, tensors | mm | conv},
                                  {bfloat16, "bfloat16", gaudi, tensors | mm | conv | autocast},
                                  {float16, "float16", gaudi2, tensors | mm | conv | autocast},
                                  {float8_e4m3fn, "float8_e4m3fn", gaudi2, tensors | mm},
                                  {float8_e5m2, "float8_e5m2", gaudi2, tensors | mm},
                                  {int8, "int8", gaudi, tensors | mm | conv},
                                  {uint8, "uint8", gaudi, tensors | mm | conv},
                                  {int16, "int16", gaudi, tensors | mm | conv},
                                  {int32, "int32", gaudi, tensors | mm | conv},
                                  {int64, "int64", gaudi, tensors | mm | conv},
                                  {boolean, "bool", gaudi, tensors},
                                  {float64, "float64", gaudi, tensors | mm | conv, true},
                                  {complex32, "complex32", gaudi2, tensors | conv, true},
                                  {complex64, "complex64", gaudi, tensors | mm | conv, true},
                                  {complex128, "complex128", gaudi, tensors | mm | conv, true},
                                  {uint16, "uint16", gaudi, tensors, true},
                                  {uint32, "uint32", gaudi, tensors, true},
                                  {uint64, "uint64", gaudi, tensors, true},
                                  {float8_e4m3fnuz, "float8_e4m3fnuz", gaudi2, tensors | mm, true},
                                  {float8_e5m2fnuz, "float8_e5m2fnuz", gaudi2, tensors | mm, true},
                                  {float8_e8m0fnu, "float8_e8m0fnu", gaudi2, tensors, true},
                                  {float4_e2m1fn_x2, "float4_e2m1fn_x2", gaudi2, tensors, true}});
}

constexpr DtypeRow row_of(Dtype dtype) { return enum_names<Dtype>[static_cast<std::size_t>(dtype)]; }

constexpr bool takes(DeviceKind kind, Dtype dtype, DtypeUse use) {
  const DtypeRow row = row_of(dtype);
  return kind >= row.since && (row.uses & static_cast<std::uint8_t>(use)) != 0;
}

/// True for a kind that computes in fp8.
constexpr bool has_fp8(DeviceKind kind) { return takes(kind, Dtype::float8_e4m3fn, DtypeUse::tensors); }

}  // namespace fp8::kernels
