// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/tensor_memory.h"

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::measure {

float amax_of(const at::Tensor& t) {
  at::Tensor host = runtime::cpu_alias(t.detach());
  if (!runtime::ops::is_high_precision(host.scalar_type())) host = host.to(at::kFloat);
  // A permuted tensor is read as it lies in memory.
  if (!host.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) host = host.contiguous();
  return kernels::amax(host.const_data_ptr(), runtime::ops::float_type_of(host.scalar_type()), host.numel());
}

TensorMemory::Entry& TensorMemory::find(const at::Tensor& t, bool read) {
  const auto look = [&] { return Entry{read ? amax_of(t) : 0.0f, {}}; };
  // Inference tensors have no version to tell whether they were written to since; a weak pointer to a watched weight
  // would keep its tag, and with it the calibration, for ever.
  if (t.is_inference() || runtime::find_tag(t) != nullptr) return uncached_ = look();
  const auto version = static_cast<std::uint32_t>(t._version());
  for (Slot& slot : slots_) {
    if (slot.tensor._unsafe_get_target() == t.unsafeGetTensorImpl() && slot.version == version) return slot.entry;
  }
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  slot.entry = look();
  slot.tensor = WeakTensor(t.getIntrusivePtr());
  slot.version = version;
  return slot.entry;
}

void TensorMemory::clear() {
  for (Slot& slot : slots_) slot = Slot();
  uncached_ = Entry();
}

}  // namespace fp8::measure
