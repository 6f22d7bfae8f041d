// SPDX-License-Identifier: Apache-2.0
// Lightning's HPUAccelerator: what programs ask of the device before they train on it.
//
//   if (!te::HPUAccelerator::is_available()) ...
//   const int devices = te::HPUAccelerator::parse_devices(words).value_or(te::HPUAccelerator::auto_device_count());
//   te::require_ranks(devices, num_nodes);                                     registry.h
//   te::HPUAccelerator::setup_device(te::HPUAccelerator::get_parallel_devices(devices)[0]);
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fp8/runtime/trainer/registry.h"

namespace fp8::trainer {

/// "yes" and why not.
struct Availability {
  bool available = true;
  std::string reason;
};

/// `devices` of a Trainer: nothing, a number, a text ("2", "auto"), or a list of indices, as other accelerators take.
using Devices = std::variant<std::monostate, int, std::string, std::vector<int>>;

/// Functions of the class, as the vendor's are; all may be called from any thread.
class HPUAccelerator {
 public:
  /// Returns true if there is a device. False where the environment says nothing that can be meant (FP8_HPU_DEVICES=x).
  static bool is_available();
  /// FP8_HPU_DEVICES (default 1), never invented. Throws c10::Error naming the variable where it is not allowed.
  static int auto_device_count();
  /// Devices of each machine, each of them a process' own: 1 to 16. Nothing: none were asked for, which is "auto" to a
  /// Trainer; "auto": auto_device_count(). Throws std::invalid_argument, for a list with the vendor's text.
  static std::optional<int> parse_devices(const Devices& devices);
  /// `devices` times hpu: each process calls its own by that. Throws std::invalid_argument for less than 1 or more
  /// than 16.
  static std::vector<c10::Device> get_parallel_devices(int devices);
  /// GAUDI, GAUDI2 or GAUDI3 (FP8_HPU_DEVICE, or this thread's DeviceKindScope).
  static std::string get_device_name();
  /// False whatever PT_HPU_LAZY_MODE says: operations run when they are called.
  static bool is_lazy() { return false; }
  /// The first generation has neither; the reasons are the vendor's.
  static Availability is_fp8_available();
  static Availability is_fp16_available();
  /// The ten numbers of memory_stats() by name: Limit, InUse, MaxInUse, NumAllocs, NumFrees, ActiveAllocs,
  /// MaxAllocSize, TotalSystemAllocs, TotalSystemFrees, TotalActiveAllocs. Throws as setup_device().
  static std::map<std::string, std::uint64_t> get_device_stats(c10::Device device = c10::Device(c10::kHPU));
  /// Makes it this thread's current device. Throws std::invalid_argument for a device that is no hpu, in the vendor's
  /// words, and c10::Error "Invalid device id" for an index that does not exist.
  static void setup_device(c10::Device device);
};

/// hpu or cpu. Throws std::invalid_argument for hpu where there is none.
AcceleratorKind resolve_accelerator(AcceleratorKind kind);
/// The device of an accelerator: kHPU or kCPU.
c10::Device device_of(AcceleratorKind kind);

}  // namespace fp8::trainer
