// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/convert/half_precision.h"

#include <ATen/autocast_mode.h>

namespace fp8::te {

CpuAutocastGuard::CpuAutocastGuard()
    : enabled_(at::autocast::is_autocast_enabled(at::kCPU)), dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
}

CpuAutocastGuard::~CpuAutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();  // casts of weights that a step will change
  at::autocast::set_autocast_enabled(at::kCPU, enabled_);
  at::autocast::set_autocast_dtype(at::kCPU, dtype_);
}

HalfPrecisionContext::HalfPrecisionContext(bool bf16, HalfPrecisionBackend backend) {
  if (!bf16) return;
  if (backend == HalfPrecisionBackend::cpu_amp)
    cpu_.emplace();
  else
    hpu_.emplace(at::kBFloat16);
}

}  // namespace fp8::te
