// SPDX-License-Identifier: Apache-2.0
// The amax of tensors looked at a moment ago: q, k and v read one x, and what softmax gives is what the next product
// takes. A tensor that meets several watched modules is looked at once.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <any>
#include <array>
#include <cstdint>

namespace fp8::measure {

/// max |t|, on the CPU's view of the memory; NaN if any is NaN, 0 for no elements.
float amax_of(const at::Tensor& t);

class TensorMemory {
 public:
  struct Entry {
    float amax = 0;
    std::any memo;  ///< what observers found out about the tensor
  };

  /// The entry of `t`, made if it is not among the last few, or was written to since. Valid until the next call.
  /// read: false leaves amax 0, nothing is read.
  Entry& find(const at::Tensor& t, bool read);
  void clear();

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Slot {
    /// Weak, so that the tensor and its graph can go. It keeps the address from being given to another tensor, so the
    /// same address is the same tensor.
    WeakTensor tensor{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    std::uint32_t version = 0;
    Entry entry;
  };
  std::array<Slot, 4> slots_;
  std::size_t next_ = 0;
  Entry uncached_;
};

}  // namespace fp8::measure
