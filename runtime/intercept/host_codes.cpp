// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/intercept/host_codes.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <set>
#include <string>
#include <vector>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/intercept/weight_copy.h"

namespace fp8::runtime {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

/// What needs no values beside views and composites, which come here again in parts.
const std::set<std::string>& allowed() {
  static const std::set<std::string> names = {"aten::copy_",
                                              "aten::clone",
                                              "aten::_to_copy",
                                              "aten::copy",
                                              "aten::empty_like",
                                              "aten::_copy_from",
                                              "aten::lift",
                                              "aten::lift_fresh",
                                              "aten::is_pinned",
                                              "aten::set_",
                                              "aten::_copy_from_and_resize",
                                              "aten::_has_same_storage_numel"};
  return names;  // not new_empty: Python's deepcopy would copy the storage past us
}

/// Python's tolist() reads the memory after these.
bool reads_memory(const std::string& name) { return name == "aten::resolve_neg" || name == "aten::resolve_conj"; }

bool goes_on(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  if (reads_memory(name)) return false;
  return allowed().count(name) != 0 || returns_view(op.schema()) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

void refuse_codes(const std::string& op, const at::Tensor& t) {
  if (!t.defined() || !is_guarded(t) || !c10::isFloat8Type(t.scalar_type())) return;
  if (const auto tag = tag_in_memory(t)) tag->check_access(op, t);
  TORCH_CHECK(tag_in_memory(t), "[", op,
              "] the tensor is a part of a host copy of a converted weight whose memory was exchanged: its codes have "
              "no known scale");
}

void refuse_codes(const std::string& op, const c10::IValue& value) {
  if (value.isTensor()) return refuse_codes(op, value.toTensor());
  if (!value.isList()) return;
  for (const c10::IValue& t : value.toListRef()) {
    if (t.isTensor()) refuse_codes(op, t.toTensor());
  }
}

void host_codes_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto arguments = at::ArrayRef<c10::IValue>(*stack).slice(stack->size() - schema.arguments().size());
  if (!goes_on(op)) {
    for (const auto& argument : arguments) refuse_codes(schema.name(), argument);
  }
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const bool copies = schema.name() == "aten::copy_", exchanges = schema.name() == "aten::set_";
  const at::Tensor to = copies || exchanges ? arguments[0].toTensor() : at::Tensor();
  const at::Tensor from =
      (copies || exchanges) && arguments.size() > 1 && arguments[1].isTensor() ? arguments[1].toTensor() : at::Tensor();
  const bool on_host = from.defined() && to.is_cpu() && from.is_cpu();  // else hpu's own kernel looks
  if (on_host && copies) check_weight_copy(to, from);
  if (on_host && exchanges) {
    if (const auto tag = tag_in_memory(to)) {
      check_weight_replace(*tag, to, from);
      weight_replaced(*tag, from);
    }
  }
  op.redispatchBoxed(below, stack);
  if (on_host && copies) weight_copied(to, from);
}

FP8_LIBRARY_IMPL(_, DeferredInit, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&host_codes_kernel>()); }

}  // namespace

void guard_host_codes(const at::Tensor& cpu) {
  auto* impl = cpu.unsafeGetTensorImpl();
  if (is_guarded(cpu)) return;
  auto marked = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(impl->storage()),
                                                     impl->key_set() | c10::DispatchKeySet(kKey), impl->dtype());
  marked->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
  impl->shallow_copy_from(marked);
}

bool is_guarded(const at::Tensor& t) { return t.key_set().has(kKey); }

}  // namespace fp8::runtime
