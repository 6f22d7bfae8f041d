// SPDX-License-Identifier: Apache-2.0
// The tensors of a boxed argument, in lists, lists of lists and optionals too.
#pragma once
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <optional>
#include <utility>

namespace fp8::runtime {

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
