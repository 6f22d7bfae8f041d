// SPDX-License-Identifier: Apache-2.0
// The state of a region: the dispatch key AutocastHPU (LibTorch's enabled flag), LibTorch's dtype, and, while an op
// runs that has cast its arguments and excluded the key, what the region around it asks for.
#include "fp8/runtime/autocast/autocast.h"

#include <ATen/autocast_mode.h>

#include <memory>
#include <mutex>
#include <set>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/registration.h"

namespace fp8::runtime::autocast {
namespace {

/// Set inside ops only. Backward needs none: there the engine restores LibTorch's part, and no op is around.
thread_local std::optional<at::ScalarType> t_around;

void check_dtype(at::ScalarType dtype) {
  if (takes(dtype, DtypeUse::autocast)) return;
  const bool came_later = takes(kernels::DeviceKind::gaudi2, dtype, DtypeUse::autocast);
  TORCH_CHECK(false, "autocast on hpu: found dtype ", dtype, ", allowed: ", allowed_dtypes(DtypeUse::autocast),
              came_later ? " (" + second_generation_required(c10::toString(dtype)) + ")" : "");
}

}  // namespace

bool is_autocast_hpu_enabled() { return at::autocast::is_autocast_enabled(at::kHPU); }
at::ScalarType autocast_hpu_dtype() { return at::autocast::get_autocast_dtype(at::kHPU); }
void set_autocast_hpu_enabled(bool enabled) { at::autocast::set_autocast_enabled(at::kHPU, enabled); }
void set_autocast_hpu_dtype(at::ScalarType dtype) {
  check_dtype(dtype);
  at::autocast::set_autocast_dtype(at::kHPU, dtype);
}

AutocastGuard::AutocastGuard(at::ScalarType dtype, bool enabled)
    : enabled_(is_autocast_hpu_enabled()), dtype_(autocast_hpu_dtype()) {
  if (enabled) set_autocast_hpu_dtype(dtype);
  around_ = std::exchange(t_around, std::nullopt);
  set_autocast_hpu_enabled(enabled);
}

AutocastGuard::~AutocastGuard() {
  set_autocast_hpu_enabled(enabled_);
  at::autocast::set_autocast_dtype(at::kHPU, dtype_);
  t_around = around_;
}

std::optional<at::ScalarType> region_dtype() { return is_autocast_hpu_enabled() ? autocast_hpu_dtype() : t_around; }

InsideOp::InsideOp(std::optional<at::ScalarType> dtype)
    : enabled_(is_autocast_hpu_enabled()), around_(std::exchange(t_around, dtype)) {
  if (enabled_) set_autocast_hpu_enabled(false);
}

InsideOp::~InsideOp() {
  if (enabled_) set_autocast_hpu_enabled(true);
  t_around = around_;
}

OutsideOp::OutsideOp(bool was_enabled) : enabled_(is_autocast_hpu_enabled()) {
  if (was_enabled != enabled_) set_autocast_hpu_enabled(was_enabled);
}

OutsideOp::~OutsideOp() { set_autocast_hpu_enabled(enabled_); }

namespace {

// Our own operators (hpu::, fp8::, quantized_decomposed::) choose their dtypes themselves: each runs with autocast off
// inside, so that ATen calls in its kernel give the dtypes it was written for.

/// The kernel of our own ops.
void run_inside(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const InsideOp inside;
  op.redispatchBoxed(below_autocast(keys), stack);
}

/// Our own ops that have no kernel yet. The dispatcher tells of each as it is defined, also of those before; it holds
/// its lock then, so that a kernel can't be added at once. Kept for the life of the process.
class OwnOps {
 public:
  OwnOps() { listening_ = c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>(*this)); }

  void add_kernels() {
    std::vector<c10::OperatorName> fresh;
    {
      const std::lock_guard lock(mutex_);
      fresh.swap(fresh_);
    }
    for (const auto& op : fresh)
      add_kernel(op, c10::DispatchKey::AutocastHPU, c10::BoxedKernel::makeFromFunction<&run_inside>());
  }

 private:
  struct Listener : c10::OpRegistrationListener {
    explicit Listener(OwnOps& ops) : own(ops) {}
    void onOperatorRegistered(const c10::OperatorHandle& op) override { own.add(op.operator_name()); }
    void onOperatorDeregistered(const c10::OperatorHandle&) override {}
    OwnOps& own;
  };

  static bool is_own(const c10::OperatorName& op) {
    const std::string_view space = std::string_view(op.name).substr(0, op.name.find("::"));
    return space == "hpu" || space == "fp8" || space == "quantized_decomposed";
  }

  void add(const c10::OperatorName& op) {
    if (!is_own(op)) return;
    const std::lock_guard lock(mutex_);
    if (seen_.emplace(op.name, op.overload_name).second) fresh_.push_back(op);
  }

  std::mutex mutex_;
  std::set<std::pair<std::string, std::string>> seen_;  ///< an op that is defined again has its kernel still
  std::vector<c10::OperatorName> fresh_;
  c10::RegistrationHandleRAII listening_{[] {}};
};

[[maybe_unused]] const bool g_kept_out = [] {
  if (!may_register(reinterpret_cast<const void*>(&run_inside))) return false;
  after_definitions([] {
    static OwnOps& own = *new OwnOps;
    own.add_kernels();
  });
  return true;
}();

}  // namespace

}  // namespace fp8::runtime::autocast
