// SPDX-License-Identifier: Apache-2.0
// The one check that the operands of a call lie on one device. The fallback, the hpu:: operators (ops/common) and the
// calls that meet a tagged weight (intercept/) all ask it, so FP8_HPU_MOVE_HOST_OPERANDS relaxes it in one place.
//
//   hpu:0 beside hpu:1         refused
//   cpu beside hpu             refused, as the device does; 0-dim tensors are numbers, and an op may name arguments
//                              that are read on the host (indices, lengths, scales)
//   ... with the flag at 1     moved to the device, with one warning; what the call would write stays refused, and
//                              what needs a gradient, unless the call is taken above autograd (of a tagged weight,
//                              of transformer_engine)
#pragma once
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fp8::runtime {

/// The operands of one call, seen one after the other.
class OperandDevices {
 public:
  /// op: "aten::add"; must outlive this.
  explicit OperandDevices(const std::string& op) : op_(op) {}

  /// True for a host operand, of one dimension or more, that settle() decides about. Throws where two hpu devices meet.
  bool see(const at::Tensor& t) {
    if (!t.defined()) return false;
    const at::Device device = t.device();
    if (device.type() == c10::kHPU) {
      see_device(device.index());
      return false;
    }
    if (!device.is_cpu() || t.dim() == 0) return false;
    host_ = true;
    return true;
  }
  void see_device(c10::DeviceIndex index) {
    if (device_ != index) meet(index);
  }

  /// Host operands beside hpu ones.
  bool mixed() const { return host_ && device_ >= 0; }
  /// The call's use of host operands: where one is a result, or needs a gradient that autograd (above us) already
  /// expects on the host, none can be moved.
  enum class Host : std::uint8_t { is_read, is_written, needs_gradient };
  /// With mixed(): returns where host operands are to be moved (the first time in a process with a warning), else
  /// throws.
  void settle(Host host) const;
  at::Tensor moved(const at::Tensor& t) const { return t.to(at::Device(c10::kHPU, device_)); }

  c10::DeviceIndex device() const { return device_; }  ///< -1: no hpu operand was seen

 private:
  void meet(c10::DeviceIndex index);

  const std::string& op_;
  c10::DeviceIndex device_ = -1;
  bool host_ = false;
};

/// The whole check for a call whose arguments are on a stack: the last `count` values are op's. Those to be moved are
/// replaced.
void settle_devices(const c10::FunctionSchema& op, torch::jit::Stack& stack, std::size_t count);
/// settle_devices() for operands of a library call that is made above autograd: what is moved has its way back for
/// gradients.
void settle_devices(std::string_view op, std::initializer_list<at::Tensor*> operands);

// The tensors of a boxed argument, in lists, lists of lists and optionals too.

/// Of what a list or an optional holds, or of the type itself.
inline c10::TypeKind innermost_kind(const c10::Type& type) {
  const auto kind = type.kind();
  const bool holds = kind == c10::TypeKind::ListType || kind == c10::TypeKind::OptionalType;
  return holds ? innermost_kind(*type.containedType(0)) : kind;
}

/// Tensor?[]; TorchScript's lists have a type object of their own, which isOptionalTensorList() takes for another type.
inline bool is_optional_tensor_list(const c10::IValue& value) {
  if (!value.isList() || value.isTensorList()) return value.isOptionalTensorList();
  const auto optional = value.toList().elementType()->cast<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::TensorType;
}

/// Tensor[][], as c10d's operators take; also lists of lists of anything else, which hold no tensor.
inline bool is_list_of_lists(const c10::IValue& value) {
  return value.isList() && value.toList().elementType()->kind() == c10::TypeKind::ListType;
}

/// f(tensor) for each tensor of an argument, in lists too.
template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, f);
  }
}

/// f(tensor) in the place of each tensor of an argument; lists are replaced, the caller's is not ours to edit. False
/// for an argument that holds none.
template <typename F>
bool replace_tensors(c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    value = f(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(f(t));
    value = std::move(list);
  } else if (is_optional_tensor_list(value)) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& t : value.toListRef())
      list.push_back(t.isTensor() ? std::optional<at::Tensor>(f(t.toTensor())) : std::nullopt);
    value = std::move(list);
  } else if (is_list_of_lists(value)) {
    c10::impl::GenericList lists(value.toList().elementType());
    bool any = false;
    for (c10::IValue inner : value.toListRef()) {
      any = replace_tensors(inner, f) || any;
      lists.push_back(std::move(inner));
    }
    if (any) value = std::move(lists);
    return any;
  } else {
    return false;
  }
  return true;
}

}  // namespace fp8::runtime
