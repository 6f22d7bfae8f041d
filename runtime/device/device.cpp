// SPDX-License-Identifier: Apache-2.0
// Kind, count and current device; the guard that ATen's DeviceGuard and autograd's worker threads use.
#include "fp8/runtime/device/device.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cos_cpu_dispatch.h>
#include <ATen/ops/empty_cpu_dispatch.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <memory>

#include "fp8/runtime/device/pending.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/leaf/pending_work.h"

namespace fp8::runtime {
namespace {

thread_local c10::DeviceIndex g_current = 0;
thread_local int g_kind_override = -1;

[[maybe_unused]] const io::FlagOwner g_kind_flag("FP8_HPU_DEVICE", []() -> std::optional<io::FlagSetting> {
  if (g_kind_override < 0) return std::nullopt;
  const std::string kind = name_of(static_cast<DeviceKind>(g_kind_override));
  return io::FlagSetting{io::lower(kind), io::FlagSource::call, "DeviceKindScope"};
});

void check_index(c10::Device device) {
  TORCH_CHECK(device.is_hpu() && device.index() < device_count(), "Invalid device id: ", device,
              ", the machine emulates ", device_count(), " hpu");
}

using Clock = std::chrono::steady_clock;

/// An event: when the device came to it.
class Moment {
 public:
  void record() {
    at_ = std::make_shared<std::atomic<Clock::rep>>(kNotYet);
    run_in_order([at = at_] { *at = Clock::now().time_since_epoch().count(); });
  }
  /// Waits for the work before it.
  void wait() const {
    if (*at_ == kNotYet) finish_work();
  }
  Clock::time_point time() const {
    wait();
    const Clock::rep at = *at_;
    TORCH_CHECK(at != kNotYet, "[hpu] an event was not reached, for a call before it failed");
    return Clock::time_point(Clock::duration(at));
  }

 private:
  static constexpr Clock::rep kNotYet = std::numeric_limits<Clock::rep>::min();
  std::shared_ptr<std::atomic<Clock::rep>> at_;
};

/// Work is done when a call returns (in lazy mode, when somebody waits for it), so one default stream serves all.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kHPU; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return {c10::kHPU, g_current}; }
  void setDevice(c10::Device device) const override {
    check_index(device);
    if (device.index() >= 0) g_current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) g_current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::DEFAULT, stream.device());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return static_cast<c10::DeviceIndex>(device_count());
    } catch (const c10::Error&) {
      return 0;  // a bad FP8_HPU_DEVICES is reported by the first call that may throw
    }
  }
  /// The dtypes that it makes tensors of.
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    check_index(device);
    c10::DeviceCapability taken;
    auto& bits = taken.capability_data.capability_bits;
    bits = 0;
    for (const DtypePair& pair : kDtypes)
      if (takes(pair.type, DtypeUse::tensors)) bits |= std::uint64_t{1} << static_cast<unsigned>(pair.type);
    return taken;
  }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Moment;
    static_cast<Moment*>(*event)->record();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Moment*>(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "[hpu] elapsed_time: expected two events that were recorded");
    const auto between = static_cast<const Moment*>(second)->time() - static_cast<const Moment*>(first)->time();
    return std::chrono::duration<double, std::milli>(between).count();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { finish_work(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) static_cast<const Moment*>(event)->wait();
  }
  void synchronizeDevice(const c10::DeviceIndex) const override { finish_work(); }
};

/// Two libraries that own the HPU key would answer each other's calls. Never destroyed, as everything that is
/// registered.
[[maybe_unused]] const bool g_guard_registered = [] {
  if (!may_register(reinterpret_cast<const void*>(&check_index))) return false;
  new c10::impl::DeviceGuardImplRegistrar(c10::kHPU, new Guard);
  return true;
}();

}  // namespace

int device_count() {
  static const int count = (require_registered(), settle_host_math(), count_from_environment());
  return count;
}

c10::DeviceIndex current_device() { return g_current; }

DeviceKind device_kind() {
  static const DeviceKind from_environment = (require_registered(), kind_from_environment());
  return g_kind_override >= 0 ? static_cast<DeviceKind>(g_kind_override) : from_environment;
}

kernels::Dialect device_dialect(const char* op) {
  const DeviceKind kind = device_kind();
  TORCH_CHECK(kernels::has_fp8(kind), "[", op, "] ", kernels::kNoFp8);
  return kernels::dialect_of(kind);
}

DeviceKindScope::DeviceKindScope(DeviceKind kind) : previous_(g_kind_override) {
  g_kind_override = static_cast<int>(kind);
}
DeviceKindScope::~DeviceKindScope() { g_kind_override = previous_; }

void init() { require_registered(); }

namespace {

/// The value, refused where it is not allowed; empty where it is not set.
std::string_view checked(const char* name) {
  const std::string problem = io::environment_problem(name);
  TORCH_CHECK(problem.empty(), problem);
  const char* value = io::environment_value(name);
  return value != nullptr ? value : "";
}

}  // namespace

DeviceKind kind_from_environment() {
  checked("FP8_HPU_DEVICE");
  return kernels::kind_from_environment();
}

int count_from_environment() {
  const auto text = checked("FP8_HPU_DEVICES");
  if (text.empty()) return 1;
  const auto count = io::parse_integer(text, 1, kMaxDevices);
  TORCH_INTERNAL_ASSERT(count.has_value(), "FP8_HPU_DEVICES: the table of variables allows more than kMaxDevices");
  return *count;
}

std::int64_t memory_limit_from_environment() {
  const auto text = checked("FP8_HPU_MEMORY");
  if (text.empty()) return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return io::parse_bytes(text).value();
}

bool moves_host_operands() { return checked("FP8_HPU_MOVE_HOST_OPERANDS") == "1"; }

bool stochastic_rounding_flushes() { return checked("PT_HPU_STOCHASTIC_ROUNDING_MODE") == "0"; }

std::optional<bool> forced_stochastic_gradients() {
  const auto text = checked("PT_TE_FORCE_SR_BWD");
  return text.empty() ? std::nullopt : std::optional(text == "1" || text == "true");
}

void settle_host_math() {
  // Past the dispatcher: the first question may come while a mode, a trace or a static initialiser runs.
  [[maybe_unused]] static const bool settled = [] {
    at::Tensor one = at::cpu::empty({1}, at::TensorOptions(at::kFloat));
    *one.mutable_data_ptr<float>() = 1;
    at::cpu::cos(one);
    return true;
  }();
}

bool takes(c10::ScalarType type, DtypeUse use) { return takes(device_kind(), type, use); }

std::string allowed_dtypes(DtypeUse use) {
  std::vector<std::string> names;
  for (const DtypePair& pair : kDtypes)
    if (!kernels::row_of(pair.row).emulation_only && takes(pair.type, use))
      names.emplace_back(c10::toString(pair.type));
  return io::joined(names);
}

std::string second_generation_required(const char* what) {
  return std::string(what) + " not supported on Gaudi, Gaudi2 or higher required";
}

void capabilities::check_of_kind(c10::ScalarType type, DtypeUse use, const char* op) {
  const DeviceKind kind = device_kind();
  if (takes(kind, type, use)) return;
  const char* what = use == DtypeUse::tensors ? " tensors" : "";
  TORCH_CHECK_NOT_IMPLEMENTED(!takes(DeviceKind::gaudi2, type, use), "[", op, "] ",
                              second_generation_required((c10::toString(type) + std::string(what)).c_str()),
                              " (FP8_HPU_DEVICE); allowed on ", name_of(kind), ": ", allowed_dtypes(use));
  TORCH_CHECK_NOT_IMPLEMENTED(false, "[", op, "] ", c10::toString(type), what, " not supported on ", name_of(kind),
                              ", allowed: ", allowed_dtypes(use));
}

}  // namespace fp8::runtime
