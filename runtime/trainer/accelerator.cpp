// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/accelerator.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <stdexcept>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::trainer {
namespace {

static_assert(kMostDevices == runtime::kMaxDevices);

int checked_count(std::optional<int> count, const std::string& found) {
  if (!count.has_value() || *count < 1 || *count > kMostDevices)
    throw std::invalid_argument("[HPUAccelerator] devices: found " + found + ", allowed: 1 to " +
                                std::to_string(kMostDevices) + ", \"auto\", or nothing");
  return *count;
}

Availability with_second_generation(at::ScalarType type, const char* name) {
  if (runtime::takes(type, runtime::DtypeUse::tensors)) return {};
  return {false, runtime::second_generation_required(name)};
}

c10::Device checked_device(c10::Device device) {
  if (!device.is_hpu()) throw std::invalid_argument("Device should be HPU, got " + device.str() + " instead.");
  return device.has_index() ? device : c10::Device(c10::kHPU, runtime::current_device());
}

}  // namespace

bool HPUAccelerator::is_available() {
  try {
    return auto_device_count() > 0;
  } catch (const c10::Error&) {
    return false;
  }
}

int HPUAccelerator::auto_device_count() { return runtime::device_count(); }

std::optional<int> HPUAccelerator::parse_devices(const Devices& devices) {
  if (std::holds_alternative<std::vector<int>>(devices))
    throw std::invalid_argument("`devices` for `HPUAccelerator` must be int, string or None.");
  if (const int* count = std::get_if<int>(&devices)) return checked_count(*count, std::to_string(*count));
  const auto* text = std::get_if<std::string>(&devices);
  if (text == nullptr) return std::nullopt;
  if (*text == "auto") return auto_device_count();
  return checked_count(io::parse_integer(*text, 1, kMostDevices), io::in_quotes(*text));
}

std::vector<c10::Device> HPUAccelerator::get_parallel_devices(int devices) {
  checked_count(devices, std::to_string(devices));
  return std::vector<c10::Device>(static_cast<std::size_t>(devices), c10::Device(c10::kHPU));
}

std::string HPUAccelerator::get_device_name() { return name_of(runtime::device_kind()); }

Availability HPUAccelerator::is_fp8_available() { return with_second_generation(at::kFloat8_e4m3fn, "FP8"); }
Availability HPUAccelerator::is_fp16_available() { return with_second_generation(at::kHalf, "FP16"); }

std::map<std::string, std::uint64_t> HPUAccelerator::get_device_stats(c10::Device device) {
  std::map<std::string, std::uint64_t> stats;
  for (const auto& [name, value] : runtime::by_name(runtime::memory_stats(checked_device(device).index())))
    stats[name] = static_cast<std::uint64_t>(value);
  return stats;
}

void HPUAccelerator::setup_device(c10::Device device) {
  runtime::init();
  c10::impl::getDeviceGuardImpl(c10::kHPU)->setDevice(checked_device(device));
}

AcceleratorKind resolve_accelerator(AcceleratorKind kind) {
  if (kind == AcceleratorKind::cpu) return kind;
  if (HPUAccelerator::is_available()) return AcceleratorKind::hpu;
  if (kind == AcceleratorKind::hpu)
    throw std::invalid_argument("[trainer] accelerator: found hpu, where there is none, allowed: auto, cpu");
  return AcceleratorKind::cpu;
}

c10::Device device_of(AcceleratorKind kind) {
  return c10::Device(resolve_accelerator(kind) == AcceleratorKind::hpu ? c10::kHPU : c10::kCPU);
}

}  // namespace fp8::trainer
