// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/tape/recorder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/tape/heard.h"

namespace fp8::runtime {
namespace {

constexpr auto kKey = kHeardKey;
using Kind = TapeSlot::Kind;

std::atomic<Recorder*> g_recorder = nullptr;
std::atomic<HeardCall> g_call = nullptr;  // without a recorder

/// Lazy mode, which rests while something is recorded.
struct Rest {
  void (*finish)(Access) = nullptr;
  bool was_heard = false;
} g_rest;

bool is_on_hpu(const at::Tensor& t) { return t.defined() && t.device().type() == c10::kHPU; }

/// What an operator does that decides how a call of it is recorded.
struct Traits {
  bool writes = false, random = false, sizes_of_values = false, changes_geometry = false;

  explicit Traits(const c10::OperatorHandle& op) {
    for (const auto& argument : op.schema().arguments())
      writes |= argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    random = op.hasTag(at::Tag::nondeterministic_seeded);
    sizes_of_values = op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
    changes_geometry = op.hasTag(at::Tag::inplace_view);
  }
};

/// What a call may write, and the memory that it had before.
struct Written {
  at::Tensor tensor;
  c10::Storage memory;
  std::size_t bytes;
};

void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  Recorder* recorder = g_recorder.load(std::memory_order_acquire);
  const HeardCall other = recorder == nullptr ? g_call.load(std::memory_order_acquire) : nullptr;
  if (other != nullptr) return other(op, below, stack);
  if (recorder == nullptr || is_composite(op)) return op.redispatchBoxed(below, stack);
  recorder->call(op, below, stack);
}

/// For the life of the process. False where another library took the key: nothing can be recorded.
bool listens_at_key() {
  static const bool registered = [] {
    auto& dispatcher = c10::Dispatcher::singleton();
    if (dispatcher.hasBackendFallbackForDispatchKey(kKey)) return false;
    static auto& handle = *new c10::RegistrationHandleRAII(dispatcher.registerFallback(
        kKey, c10::KernelFunction::makeFromBoxedFunction<&on_call>(), "fp8: recording of tapes"));
    (void)handle;
    return true;
  }();
  return registered;
}

at::Tensor random_state() {
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.unsafeGetGeneratorImpl()->mutex_);
  return generator.get_state();
}

std::string in_module(const std::string& name, std::string_view module) {
  return module.empty() ? name : name + " in module '" + std::string(module) + "'";
}

}  // namespace

bool is_composite(const c10::OperatorHandle& op) {
  return !op.hasKernelForDispatchKey(c10::DispatchKey::HPU) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

void set_heard_call(HeardCall call) {
  TORCH_CHECK(call == nullptr || listens_at_key(),
              "[lazy] another library of this process hears all operations at the "
              "dispatch key ",
              kKey, ", which lazy mode needs");
  g_call.store(call, std::memory_order_release);
}

bool is_recording() { return Recorder::current() != nullptr; }

bool Recorder::is_any_on() { return g_recorder.load(std::memory_order_acquire) != nullptr; }

Recorder* Recorder::current() {
  Recorder* recorder = g_recorder.load(std::memory_order_acquire);
  return recorder != nullptr && is_heard() ? recorder : nullptr;
}

Recorder::Recorder() {
  require_registered();
  TORCH_CHECK(listens_at_key(), "[graph] another library of this process hears all operations at the dispatch key ",
              kKey, ", which recording needs");
  resume();
}

Recorder::~Recorder() { pause(); }

void Recorder::resume() {
  const bool was_heard = c10::impl::tls_is_dispatch_key_included(kKey);
  TORCH_CHECK(was_heard || detail::g_finish_work.load() == nullptr,
              "[graph] a capture on another thread than that of lazy mode: end lazy mode first");
  finish_work();
  Recorder* none = nullptr;
  TORCH_CHECK(g_recorder.compare_exchange_strong(none, this), "[graph] another capture of this process has not ended");
  g_rest = {detail::g_finish_work.exchange(nullptr), was_heard};
  set_alias_listener([] {
    if (Recorder* recorder = current())
      recorder->refuse(in_module("memory of the device is read outside of an operation", ModuleScope::current()));
  });
  LeafListener& leaves = *this;
  listening_ = std::make_unique<Listening>(leaves);
  random_state_ = random_state();
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

void Recorder::pause() {
  if (listening_ == nullptr) return;
  c10::impl::tls_set_dispatch_key_included(kKey, g_rest.was_heard);
  detail::g_finish_work = g_rest.finish;
  listening_.reset();
  set_alias_listener(nullptr);
  g_recorder.store(nullptr, std::memory_order_release);
}

void Recorder::refuse(const std::string& reason) {
  if (refusal_.empty()) refusal_ = reason;
}

void Recorder::leaf_begins(const LeafRecord& leaf) {
  if (is_heard())
    refuse(in_module(std::string(leaf.op), leaf.module) + ": runs by a way of its own, which no capture repeats");
}

std::int32_t Recorder::slot_of(const at::Tensor& tensor, Kind kind) {
  auto* memory = storage_impl_of(tensor);
  const auto [found, is_new] = by_memory_.try_emplace(memory, static_cast<std::int32_t>(tape_.slots.size()));
  if (!is_new) return found->second;
  TapeSlot slot;
  slot.kind = kind;
  slot.bytes = memory->nbytes();
  if (kind == Kind::outside && !tensor.is_inference()) slot.version = tensor.unsafeGetTensorImpl()->version_counter();
  tape_.slots.push_back(std::move(slot));
  varies_.push_back(kind != Kind::made);
  seen_.push_back({c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl()), memory->nbytes()});
  on_slot_.emplace_back();
  return found->second;
}

std::int32_t Recorder::window_on(std::int32_t slot, const at::Tensor& tensor) {
  auto& known = on_slot_[static_cast<std::size_t>(slot)];
  for (const auto index : known) {
    const TapeWindow& w = tape_.windows[static_cast<std::size_t>(index)];
    if (w.dtype == tensor.dtype() && w.offset == tensor.storage_offset() && w.keys == tensor.key_set() &&
        tensor.sizes() == w.sizes && tensor.strides() == w.strides)
      return index;
  }
  TapeWindow window;
  window.slot = slot, window.dtype = tensor.dtype(), window.keys = tensor.key_set();
  window.sizes = at::DimVector(tensor.sizes()), window.strides = at::DimVector(tensor.strides());
  window.offset = tensor.storage_offset();
  known.push_back(static_cast<std::int32_t>(tape_.windows.size()));
  tape_.windows.push_back(std::move(window));
  return known.back();
}

std::int32_t Recorder::given(const at::Tensor& tensor) { return window_on(slot_of(tensor, Kind::given), tensor); }

std::int32_t Recorder::window_of(const at::Tensor& tensor) {
  const auto slot = slot_of(tensor, Kind::outside);
  const bool outside = tape_.slots[static_cast<std::size_t>(slot)].kind == Kind::outside;
  if (outside && outside_known_.insert(tensor.unsafeGetTensorImpl()).second)
    outside_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), storage_impl_of(tensor),
                        tensor.requires_grad()});
  if (outside && !at::GradMode::is_enabled()) {
    const at::TensorBase& owner = tensor.is_view() ? tensor._base() : tensor;
    if (owner.requires_grad()) read_without_gradients_.insert(owner.unsafeGetTensorImpl());
  }
  return window_on(slot, tensor);
}

void Recorder::add_operands(TapeNode& node, torch::jit::Stack& arguments) {
  node.arguments = std::move(arguments);
  for (c10::IValue& value : node.arguments)
    replace_tensors(value, [&](const at::Tensor& t) {
      if (!is_on_hpu(t)) {
        const bool known = !t.defined() || !t.has_storage() || t.unsafeGetTensorImpl()->is_wrapped_number() ||
                           made_on_host_.contains(storage_impl_of(t));
        if (!known && host_operand_.empty()) host_operand_ = in_module(node.name, node.module);
        node.operands.push_back(-1);
        return t;
      }
      if (t.layout() != at::kStrided || t.is_quantized())
        refuse(in_module(node.name, node.module) + ": found layout " + c10::str(t.layout()));
      node.operands.push_back(window_of(t));
      return at::Tensor();
    });
}

void Recorder::check_random(const std::string& what, const at::Tensor& state, const torch::jit::Stack& arguments) {
  const NotRecorded reading;
  if (!random_state_.equal(state))
    refuse(what + ": the state of the random numbers was set, or the host drew some, since the capture's last ones");
  for (const c10::IValue& value : arguments)
    if (value.isGenerator() && cpu_generator(value.toGenerator()) != at::detail::getDefaultCPUGenerator())
      refuse(what + ": draws from a generator of its own");
}

bool Recorder::reads_what_varies(const torch::jit::Stack& arguments) const {
  bool any = false;
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const at::Tensor& t) {
      if (!is_on_hpu(t)) return;
      const auto found = by_memory_.find(storage_impl_of(t));
      any = any || found == by_memory_.end() || varies_[static_cast<std::size_t>(found->second)];
    });
  return any;
}

void Recorder::mark_written(TapeNode& node, const at::Tensor& tensor, bool varies) {
  const auto slot = by_memory_.at(storage_impl_of(tensor));
  if (varies) varies_[static_cast<std::size_t>(slot)] = true;
  node.written.push_back(slot);
}

void Recorder::add_results(TapeNode& node, at::ArrayRef<c10::IValue> results, bool varies) {
  const auto add = [&](const at::Tensor& t, std::size_t result, std::int32_t list) {
    if (!is_on_hpu(t) || by_memory_.contains(storage_impl_of(t))) return;
    const auto slot = slot_of(t, Kind::made);
    varies_[static_cast<std::size_t>(slot)] = varies;
    node.results.push_back({static_cast<std::int32_t>(result), list, window_on(slot, t)});
  };
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].isTensor()) add(results[i].toTensor(), i, -1);
    if (!results[i].isTensorList()) continue;
    const auto list = results[i].toTensorVector();
    for (std::size_t j = 0; j < list.size(); ++j) add(list[j], i, static_cast<std::int32_t>(j));
  }
}

void Recorder::call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const Traits traits(op);
  const std::size_t first = stack->size() - schema.arguments().size();
  torch::jit::Stack arguments(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  bool reads_device = false;
  std::vector<Written> written;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    for_each_tensor(arguments[i], [&](const at::Tensor& t) {
      if (!is_on_hpu(t)) return;
      reads_device = true;
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite() && t.has_storage())
        written.push_back({t, t.storage(), t.storage().nbytes()});
    });
  TapeNode node;
  node.name = schema.name();
  node.module = std::string(ModuleScope::current());
  const std::string what = in_module(node.name, node.module);
  if (traits.random) check_random(what, random_state(), arguments);
  {
    c10::impl::ExcludeDispatchKeyGuard within(kKey);
    op.redispatchBoxed(keys, stack);
    if (traits.random) random_state_ = random_state();
  }
  bool gives_device = false, gives_host = schema.returns().empty();
  const at::ArrayRef<c10::IValue> results = at::ArrayRef<c10::IValue>(*stack).slice(first);
  for (const c10::IValue& value : results) {
    if (!value.isTensor() && !value.isTensorList()) gives_host = true;
    for_each_tensor(value, [&](const at::Tensor& t) {
      if (!t.defined()) return;
      (is_on_hpu(t) ? gives_device : gives_host) = true;
      if (t.is_cpu() && t.has_storage() && made_on_host_.insert(storage_impl_of(t)).second)
        host_memory_.emplace_back(t.storage().getWeakStorageImpl());
    });
  }
  for (const Written& w : written)
    if (storage_impl_of(w.tensor) != w.memory.unsafeGetStorageImpl() || w.memory.nbytes() != w.bytes)
      refuse(what + ": gives a tensor other memory");
  if (!reads_device && !gives_device) {
    if (traits.random) refuse(what + ": a random number of the host");
    return;
  }
  const bool varies = traits.random || reads_what_varies(arguments);
  if (reads_device && varies && (traits.sizes_of_values || (gives_host && !results.empty())))
    return refuse(what + ": the host reads a value of the device");
  add_operands(node, arguments);
  add_results(node, results, varies);
  if (traits.changes_geometry || (!traits.writes && node.results.empty())) return;  // it looks at memory otherwise
  for (const Written& w : written) mark_written(node, w.tensor, varies);
  node.run = [op, keys](torch::jit::Stack& s) { op.redispatchBoxed(keys, &s); };
  tape_.nodes.push_back(std::move(node));
}

void Recorder::call(const char* name, const std::function<void(torch::jit::Stack&)>& run, torch::jit::Stack& stack) {
  TapeNode node;
  node.name = name;
  node.module = std::string(ModuleScope::current());
  torch::jit::Stack arguments = stack;
  {
    c10::impl::ExcludeDispatchKeyGuard within(kKey);
    const at::Tensor before = random_state();
    run(stack);
    if (at::Tensor after = random_state(); !after.equal(before)) {
      check_random(in_module(node.name, node.module), before, {});
      random_state_ = std::move(after);
    }
  }
  add_operands(node, arguments);
  for (const auto window : node.operands)  // it may write them
    if (window >= 0) varies_[static_cast<std::size_t>(tape_.slot_of(window))] = true;
  add_results(node, stack, /*varies=*/true);
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    if (!node.arguments[i].isCapsule()) continue;
    const auto known =
        std::ranges::find_if(host_objects_, [&](const c10::IValue& v) { return v.is(node.arguments[i]); });
    if (known == host_objects_.end()) continue;
    node.host_operands.emplace_back(i, known - host_objects_.begin());
    node.arguments[i] = c10::IValue();
  }
  for (std::size_t i = 0; i < stack.size(); ++i) {
    if (!stack[i].isCapsule()) continue;
    node.host_results.emplace_back(i, tape_.host_objects++);
    host_objects_.push_back(stack[i]);
  }
  node.run = run;
  tape_.nodes.push_back(std::move(node));
}

void Recorder::settle(bool hold) {
  for (std::size_t i = 0; i < tape_.slots.size(); ++i) {
    TapeSlot& slot = tape_.slots[i];
    auto memory = seen_[i].memory.lock();
    if (slot.kind == Kind::outside) {
      if (memory == nullptr)
        refuse("memory of " + std::to_string(slot.bytes) + " bytes that the capture did not see made");
      slot.memory = c10::Storage(memory);
    } else if (slot.kind == Kind::made && hold && memory != nullptr) {
      slot.memory = c10::Storage(memory), slot.held = true;
    }
  }
  std::erase_if(outside_, [](const Outside& o) { return o.tensor.expired(); });
}

Tape Recorder::end(bool hold) {
  pause();
  settle(hold);
  return std::move(tape_);
}

}  // namespace fp8::runtime
