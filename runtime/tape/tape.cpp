// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/tape/tape.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy_ops.h>

#include <algorithm>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/tape/heard.h"

namespace fp8::runtime {
namespace {

using Kind = TapeSlot::Kind;

at::Tensor tensor_on(const c10::Storage& memory, const TapeWindow& window, std::int64_t offset) {
  auto impl =
      c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(memory), window.keys, window.dtype);
  impl->set_sizes_and_strides(window.sizes, window.strides, offset);
  return at::Tensor(std::move(impl));
}

}  // namespace

void add_replayed(c10::Error& error, const std::string& name, const std::string& module) {
  error.add_context("replayed: " + name + (module.empty() ? "" : " of module '" + module + "'"));
}

TapeFrame::TapeFrame(const Tape& tape)
    : tape_(&tape),
      tensors_(tape.windows.size()),
      given_(tape.slots.size()),
      host_(static_cast<std::size_t>(tape.host_objects)) {}

void TapeFrame::give(std::int32_t window, const at::Tensor& tensor) {
  const TapeWindow& like = tape_->windows[static_cast<std::size_t>(window)];
  Given& given = given_[static_cast<std::size_t>(like.slot)];
  given.memory = tensor.storage();
  given.shift = (tensor.storage_offset() - like.offset) * static_cast<std::int64_t>(like.dtype.itemsize());
  given.version = tensor.unsafeGetTensorImpl()->version_counter();
}

at::Tensor TapeFrame::make(const TapeWindow& w) const {
  const auto slot = static_cast<std::size_t>(w.slot);
  const std::int32_t made = tape_->slots[slot].made_as;
  if (made >= 0) {
    const at::Tensor& whole = tensors_[static_cast<std::size_t>(made)];
    TORCH_INTERNAL_ASSERT(whole.defined(), "a slot's memory was read before it was made");
    at::Tensor tensor = tensor_on(whole.storage(), w, w.offset);
    tensor.unsafeGetTensorImpl()->set_version_counter(whole.unsafeGetTensorImpl()->version_counter());
    return tensor;
  }
  const Given& given = given_[slot];
  TORCH_INTERNAL_ASSERT(given.memory.unsafeGetStorageImpl() != nullptr, "a slot's memory was read before it was given");
  at::Tensor tensor =
      tensor_on(given.memory, w, w.offset + given.shift / static_cast<std::int64_t>(w.dtype.itemsize()));
  if (given.version.enabled()) tensor.unsafeGetTensorImpl()->set_version_counter(given.version);
  return tensor;
}

const at::Tensor& TapeFrame::at(std::int32_t window) {
  const auto index = static_cast<std::size_t>(window);
  const TapeWindow& w = tape_->windows[index];
  if (w.fixed.defined()) return w.fixed;
  at::Tensor& tensor = tensors_[index];
  if (!tensor.defined()) tensor = make(w);
  return tensor;
}

std::optional<std::uint32_t> TapeFrame::version(std::int32_t window) {
  const c10::VariableVersion& version = at(window).unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? std::optional(version.current_version()) : std::nullopt;
}

void TapeFrame::keep_only(at::ArrayRef<std::int32_t> kept) {
  std::vector<bool> stays(given_.size(), false);
  for (const auto window : kept) stays[static_cast<std::size_t>(tape_->slot_of(window))] = true;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!stays[static_cast<std::size_t>(tape_->windows[i].slot)]) tensors_[i].reset();
  for (std::size_t i = 0; i < given_.size(); ++i)
    if (!stays[i]) given_[i] = {};
}

void Tape::finish(at::ArrayRef<std::int32_t> kept) {
  for (TapeNode& node : nodes) {
    node.tensors.clear(), node.has_lists = false;
    auto operand = node.operands.begin();
    for (std::size_t i = 0; i < node.arguments.size(); ++i) {
      const bool is_tensor = node.arguments[i].isTensor();
      for_each_tensor(node.arguments[i], [&](const at::Tensor&) {
        const std::int32_t window = *operand++;
        if (is_tensor && window >= 0) node.tensors.emplace_back(i, window);
        node.has_lists |= !is_tensor && window >= 0;
      });
    }
    for (const auto& result : node.results)
      slots[static_cast<std::size_t>(slot_of(result.window))].made_as = result.window;
  }
  find_lifetimes(kept);
  for (TapeWindow& window : windows) {
    const TapeSlot& slot = slots[static_cast<std::size_t>(window.slot)];
    if (slot.kind != Kind::outside && !slot.held) continue;
    window.fixed = tensor_on(slot.memory, window, window.offset);
    if (slot.version.enabled()) window.fixed.unsafeGetTensorImpl()->set_version_counter(slot.version);
  }
}

void Tape::find_lifetimes(at::ArrayRef<std::int32_t> kept) {
  std::vector<std::int64_t> last(slots.size(), -1);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].last.clear(), nodes[i].gone.clear();
    const auto uses = [&](std::int32_t window) {
      if (window >= 0) last[static_cast<std::size_t>(slot_of(window))] = static_cast<std::int64_t>(i);
    };
    for (const auto window : nodes[i].operands) uses(window);
    for (const auto& result : nodes[i].results) uses(result.window);
  }
  for (const auto window : kept) last[static_cast<std::size_t>(slot_of(window))] = -1;
  for (std::size_t slot = 0; slot < slots.size(); ++slot)
    if (slots[slot].kind == Kind::given && last[slot] >= 0)
      nodes[static_cast<std::size_t>(last[slot])].last.push_back(static_cast<std::int32_t>(slot));
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const TapeSlot& slot = slots[static_cast<std::size_t>(windows[i].slot)];
    const auto at = last[static_cast<std::size_t>(windows[i].slot)];
    if (at >= 0 && slot.kind != Kind::outside && !slot.held)
      nodes[static_cast<std::size_t>(at)].gone.push_back(static_cast<std::int32_t>(i));
  }
}

void Tape::take(TapeFrame& frame, std::int32_t index, at::Tensor made) const {
  const TapeWindow& window = windows[static_cast<std::size_t>(index)];
  TORCH_CHECK(made.sizes() == window.sizes && made.strides() == window.strides &&
                  made.storage_offset() == window.offset && made.dtype() == window.dtype,
              "its result has sizes ", made.sizes(), ", strides ", made.strides(), " and dtype ", made.dtype(),
              ", when it was recorded ", window.sizes, ", ", window.strides, " and ", window.dtype);
  if (window.fixed.defined())
    at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::HPU), const_cast<at::Tensor&>(window.fixed), made,
                                false);
  else
    frame.tensors_[static_cast<std::size_t>(index)] = std::move(made);
}

void Tape::take(TapeFrame& frame, const TapeNode& node, torch::jit::Stack& stack) const {
  for (const auto& result : node.results) {
    c10::IValue& value = stack[static_cast<std::size_t>(result.result)];
    if (result.list < 0)
      take(frame, result.window, std::move(value).toTensor());
    else
      take(frame, result.window, value.toTensorList().get(static_cast<std::size_t>(result.list)));
  }
}

void Tape::set_arguments(TapeFrame& frame, const TapeNode& node, torch::jit::Stack& stack) const {
  stack.assign(node.arguments.begin(), node.arguments.end());
  if (!node.has_lists) {
    for (const auto& [argument, window] : node.tensors) stack[static_cast<std::size_t>(argument)] = frame.at(window);
  } else {
    auto operand = node.operands.begin();
    for (c10::IValue& value : stack)
      replace_tensors(value, [&](const at::Tensor& as_it_stands) {
        const auto window = *operand++;
        return window < 0 ? as_it_stands : frame.at(window);
      });
  }
  for (const auto& [argument, object] : node.host_operands)
    stack[static_cast<std::size_t>(argument)] = frame.host_[static_cast<std::size_t>(object)];
}

void Tape::count_writes(TapeFrame& frame, const TapeNode& node) const {
  for (const auto index : node.written) {
    const TapeSlot& slot = slots[static_cast<std::size_t>(index)];
    const c10::VariableVersion& version = slot.version.enabled() ? slot.version
                                          : slot.made_as >= 0
                                              ? frame.at(slot.made_as).unsafeGetTensorImpl()->version_counter()
                                              : frame.given_[static_cast<std::size_t>(index)].version;
    if (version.enabled()) const_cast<c10::VariableVersion&>(version).bump();
  }
}

void Tape::run(TapeFrame& frame, const TapeNode& node, torch::jit::Stack& stack) const {
  set_arguments(frame, node, stack);
  node.run(stack);
  for (const auto& [result, object] : node.host_results)
    frame.host_[static_cast<std::size_t>(object)] = stack[static_cast<std::size_t>(result)];
  take(frame, node, stack);
  if (!node.written.empty()) count_writes(frame, node);
  for (const auto window : node.gone) frame.tensors_[static_cast<std::size_t>(window)].reset();
  for (const auto slot : node.last) frame.given_[static_cast<std::size_t>(slot)] = {};
}

void Tape::run(TapeFrame& frame, std::size_t first, std::size_t end) const {
  std::optional<c10::impl::ExcludeDispatchKeyGuard> at_once;  // in lazy mode, too
  if (detail::g_finish_work.load() != nullptr) {
    finish_work();
    at_once.emplace(kHeardKey);
  }
  c10::impl::ExcludeDispatchKeyGuard below(kAboveAliases);
  torch::jit::Stack stack;
  for (std::size_t i = first; i < end; ++i) {
    const TapeNode& node = nodes[i];
    try {
      run(frame, node, stack);
    } catch (c10::Error& error) {
      add_replayed(error, node.name, node.module);
      throw;
    }
  }
}

}  // namespace fp8::runtime
