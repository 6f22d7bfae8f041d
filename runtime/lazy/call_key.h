// SPDX-License-Identifier: Apache-2.0
// What decides how the result of a call looks, as words that are compared: the operator, all arguments, and what of
// the thread and the process operators look at. Of a tensor not its elements: sizes, strides, dtype, whether it begins
// where its memory does, and which arguments share memory.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "fp8/runtime/device/device.h"

namespace fp8::runtime {

/// Of a tensor on the device that is not conj, neg, named, sparse, a subclass of Python's, ...
inline constexpr c10::DispatchKeySet kOrdinaryKeys =
    c10::DispatchKeySet(c10::DispatchKey::HPU) | c10::DispatchKeySet(c10::DispatchKey::AutogradHPU) |
    c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) | c10::DispatchKeySet(c10::DispatchKey::AutocastHPU);

/// Of the thread that calls, and the process.
struct Circumstances {
  c10::DeviceIndex device = 0;
  DeviceKind kind = {};
  int threads = 1;
  bool grad = true, inference = false, deterministic = false;
  at::ScalarType dtype = at::kFloat;

  static Circumstances present();
  bool operator==(const Circumstances&) const = default;
};

class CallKey {
 public:
  /// Forgets the call before. False where a result can't be foreseen: an argument is of another kind (a generator, a
  /// storage, a tensor on the host of one dimension or more, a sparse or tagged one, fp8 codes), or there are many.
  bool set(const c10::FunctionSchema& op, at::ArrayRef<c10::IValue> arguments, const Circumstances& circumstances);

  at::ArrayRef<std::uint64_t> words() const { return words_; }
  std::size_t hash() const;
  /// The arguments' tensors on the device, in their order, valid as long as those.
  at::ArrayRef<const c10::TensorImpl*> tensors() const { return tensors_; }

 private:
  void add(std::uint64_t word) { words_.push_back(word); }
  bool add(const c10::IValue& value);
  bool add(const c10::TensorImpl& tensor);
  bool add_device(const c10::TensorImpl& tensor);

  c10::SmallVector<std::uint64_t, 96> words_;
  c10::SmallVector<const c10::TensorImpl*, 8> tensors_;
};

}  // namespace fp8::runtime
