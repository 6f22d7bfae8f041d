// SPDX-License-Identifier: Apache-2.0
// The state of a region: the dispatch key AutocastHPU (LibTorch's enabled flag), LibTorch's dtype, and, while an op
// runs that has cast its arguments and excluded the key, what the region around it asks for.
#include "fp8/runtime/autocast/autocast.h"

#include <ATen/autocast_mode.h>

#include <utility>

#include "fp8/runtime/device/device.h"

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

}  // namespace fp8::runtime::autocast
