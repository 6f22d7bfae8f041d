// SPDX-License-Identifier: Apache-2.0
// The emulated hpu: how many, which kind, which is current.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "fp8/runtime/kernels/device_kind.h"

namespace fp8::runtime {

using fp8::name_of;
using kernels::DeviceKind;

inline constexpr int kMaxDevices = 16;

/// FP8_HPU_DEVICES, default 1; never invented.
int device_count();

/// The calling thread's current hpu (set by c10::DeviceGuard).
c10::DeviceIndex current_device();

/// FP8_HPU_DEVICE=gaudi|gaudi2|gaudi3 (default gaudi3), or the innermost DeviceKindScope of this thread.
DeviceKind device_kind();

/// The E4M3 dialect of the hpu:: operators: gaudi2 on Gaudi2, else gaudi3 (= ocp numbers). Throws on the first
/// generation.
kernels::Dialect device_dialect(const char* op);

/// Emulates another kind on this thread while it lives: a checkpoint made for Gaudi2 runs with 240 whatever the
/// environment says.
class DeviceKindScope {
 public:
  explicit DeviceKindScope(DeviceKind kind);
  ~DeviceKindScope();
  DeviceKindScope& operator=(DeviceKindScope&&) = delete;

 private:
  int previous_;
};

/// Makes sure the library is loaded and registered (for programs whose linker drops unused libraries). Throws if
/// another hpu backend owns the device.
void init();

// The environment variables that decide what the device is and how it rounds. Each reader throws c10::Error naming the
// variable, what was found and what is allowed; unset and empty mean the default.

/// FP8_HPU_DEVICE: gaudi, gaudi2, gaudi3 (default).
DeviceKind kind_from_environment();
/// FP8_HPU_DEVICES: 1 (default) to kMaxDevices.
int count_from_environment();
/// FP8_HPU_MEMORY: bytes per device, K, M or G may follow; default: the machine's memory.
std::int64_t memory_limit_from_environment();
/// PT_HPU_STOCHASTIC_ROUNDING_MODE: 1 (default) rounds stochastically below the smallest number too, 0 flushes there.
bool stochastic_rounding_flushes();
/// PT_TE_FORCE_SR_BWD: 1, 0, true, false; nothing: the recipe decides.
std::optional<bool> forced_stochastic_gradients();

/// FP8_HPU_MOVE_HOST_OPERANDS: 1, or 0 (the default). Asked at each call with operands on both sides.
bool moves_host_operands();

/// Lets the host's vector math (cos, sin, exp, ... of ATen's CPU kernels) find out what the CPU is, on one thread.
///
/// MKL's vector functions find it out in the first call of the process, and note it in two steps without a lock: the
/// number of the CPU, then the number of the code for it (mkl_vml_serv_cpu_detect in LibTorch 2.13). A second thread
/// that reads between them takes the code of another CPU, and its half of the first tensor has other last bits: a
/// rotation's angles differ between two runs of one program. Cheap after the first call; threads may call it at once.
void settle_host_math();

// The table of kernels/device_kind.h for LibTorch's dtypes and the present thread's device: asked wherever a tensor
// comes to be, by products and by autocast.

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

/// True if a device of that kind takes it.
constexpr bool takes(kernels::DeviceKind kind, c10::ScalarType type, DtypeUse use) {
  for (const DtypePair& pair : kDtypes)
    if (pair.type == type) return kernels::takes(kind, pair.row, use);
  return false;
}

/// True if the device that this thread sees (device_kind()) takes it.
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
