// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/lazy/lazy_work.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/pending.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/tape/heard.h"

namespace fp8::runtime {
namespace {

constexpr std::size_t kMostSubmitted = 64;

thread_local bool t_running = false;

/// Circumstances of calls, on whatever thread.
class Within {
 public:
  /// stays: the number of threads, since this one has no other work.
  Within(const Circumstances& at, bool stays) : device_(c10::Device(c10::kHPU, at.device)) {
    const int threads = at::get_num_threads();
    if (threads != at.threads) {
      at::set_num_threads(at.threads);
      if (!stays) threads_before_ = threads;
    }
    if (device_kind() != at.kind) kind_.emplace(at.kind);
    if (c10::InferenceMode::is_enabled() != at.inference) inference_.emplace(at.inference);
    grad_.emplace(at.grad);
  }
  ~Within() {
    if (threads_before_ > 0) at::set_num_threads(threads_before_);
  }
  Within& operator=(Within&&) = delete;

 private:
  const c10::DeviceGuard device_;
  std::optional<DeviceKindScope> kind_;
  std::optional<c10::InferenceMode> inference_;
  std::optional<at::AutoGradMode> grad_;
  int threads_before_ = 0;
  c10::impl::ExcludeDispatchKeyGuard unheard_{kHeardKey};
  c10::impl::ExcludeDispatchKeyGuard below_{kAboveAliases};
};

std::string call_and_module(const LazyNode& node, const std::string& module) {
  return (node.op                ? node.op->schema().name()
          : node.name != nullptr ? node.name
                                 : "work of the host") +
         (module.empty() ? "" : " in module '" + module + "'");
}

}  // namespace

bool LazyWork::is_running() { return t_running; }
LazyWork::Running::Running() : before_(std::exchange(t_running, true)) {}
LazyWork::Running::~Running() { t_running = before_; }

void LazyWork::add(LazyNode&& node, const Circumstances& at) {
  if (open_ == nullptr) open_ = std::make_unique<Batch>(Batch{at, std::exchange(room_, {}), {}});
  const std::string_view module = ModuleScope::current(), phase = PhaseScope::current();
  auto& places = open_->places;
  if (places.empty() || places.back().module != module || places.back().phase != phase)
    places.push_back({std::string(module), phase.data()});
  node.place = places.size() - 1;
  open_->nodes.push_back(std::move(node));
}

void LazyWork::submit(bool to_worker) {
  if (submitted_.size() > kMostSubmitted) worker_.wait();
  if (worker_.is_idle() && failure_.empty()) (void)settle_all();
  if (open_ == nullptr) return;
  Batch& batch = *submitted_.emplace_back(std::move(open_));
  if (to_worker) return worker_.push([this, &batch] { run(batch, /*on_worker=*/true); });
  worker_.wait();
  run(batch, /*on_worker=*/false);
}

void LazyWork::finish() {
  submit(/*to_worker=*/false);
  worker_.wait();
  if (const auto error = settle_all()) std::rethrow_exception(error);
}

void LazyWork::run(Batch& batch, bool on_worker) {
  if (!failure_.empty()) {
    batch.failure = failure_;
    return;
  }
  const Running running;
  const LazyNode* current = nullptr;
  const auto fail = [&](const std::string& text) {
    batch.error = std::current_exception();
    batch.failure = failure_ = text;
  };
  const auto over = c10::make_scope_exit([this] { first_.reset(); });
  try {
    const Within within(batch.at, /*stays=*/on_worker);
    for (LazyNode& node : batch.nodes) {
      current = &node;
      run(node, batch.places[node.place]);
    }
  } catch (c10::Error& error) {
    if (current != nullptr)
      error.add_context("called in lazy mode: " + call_and_module(*current, batch.places[current->place].module));
    fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    const std::string where = current == nullptr ? "" : call_and_module(*current, batch.places[current->place].module);
    fail(std::string(error.what()) + " (called in lazy mode: " + where + ")");
    batch.error = std::make_exception_ptr(c10::Error(batch.failure, nullptr));
  }
}

void LazyWork::run(LazyNode& node, const Place& place) {
  if (node.work) return node.work();
  std::optional<ModuleScope> module;
  std::optional<PhaseScope> phase;
  if (leaves_heard()) [[unlikely]] {
    module.emplace(place.module);
    phase.emplace(place.phase);
  }
  torch::jit::Stack stack = std::move(node.arguments);
  for (const c10::IValue& value : stack)
    for_each_tensor(value, [](const at::Tensor& t) {
      if (!t.defined() || !t.is_hpu()) return;
      const PendingMemory* pending = pending_of(storage_impl_of(t));
      if (pending == nullptr) return;
      TORCH_INTERNAL_ASSERT(pending->made.unsafeGetStorageImpl() != nullptr, "an operand that was not made");
      t.unsafeGetTensorImpl()->set_storage_keep_dtype(pending->made);
    });
  if (node.call) {
    share_first(node, stack);
    std::exchange(node.call, nullptr)(stack);
  } else {
    node.op->redispatchBoxed(node.keys, &stack);
  }
  keep_promise(node, stack);
}

/// Of calls in a row (q, k and v) whose first argument is one tensor it is one: what a cast of it gave is kept by it.
void LazyWork::share_first(const LazyNode& node, torch::jit::Stack& stack) {
  if (!node.first.has_value()) return;
  const at::Tensor& own = stack.front().toTensor();
  const bool same = first_.has_value() && first_->first == *node.first &&
                    storage_impl_of(first_->second) == storage_impl_of(own) && first_->second.sizes() == own.sizes();
  if (same)
    stack.front() = first_->second;
  else
    first_.emplace(*node.first, own);
}

void LazyWork::keep_promise(LazyNode& node, const torch::jit::Stack& results) {
  auto promised = node.known->results.begin();
  auto memory = node.made.begin();
  for (const c10::IValue& value : results)
    for_each_tensor(value, [&](const at::Tensor& t) {
      const KnownResult* like = promised == node.known->results.end() ? nullptr : &*promised++;
      if (like != nullptr && like->kind != KnownResult::Kind::made) return;
      TORCH_CHECK(like != nullptr && t.defined() && t.sizes() == like->sizes && t.strides() == like->strides &&
                      t.scalar_type() == like->dtype && t.storage_offset() == 0 && t.storage().nbytes() == like->bytes,
                  "[lazy] its result has sizes ", t.sizes(), " and strides ", t.strides(),
                  ", where an earlier call with such arguments had others: its sizes depend on values. Expected such "
                  "an operation outside of lazy mode");
      if (const auto placeholder = (memory++)->lock()) pending_of(placeholder.get())->made = t.storage();
    });
  TORCH_CHECK(promised == node.known->results.end(), "[lazy] it gave fewer results than an earlier call with such ",
              "arguments. Expected such an operation outside of lazy mode");
}

at::Tensor promised(const KnownResult& like, LazyNode& node) {
  const c10::Storage memory = pending_storage(like.bytes, like.device);
  node.made.emplace_back(memory.getWeakStorageImpl());
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(memory), c10::DispatchKeySet(c10::DispatchKey::HPU), c10::scalarTypeToTypeMeta(like.dtype));
  result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes, like.strides);
  return result;
}

std::exception_ptr LazyWork::settle_all() {
  std::exception_ptr first;
  for (const auto& batch : submitted_) {
    if (first == nullptr) first = batch->error;
    for (const LazyNode& node : batch->nodes)
      for (const auto& memory : node.made) {
        const auto placeholder = memory.lock();
        PendingMemory* pending = pending_of(placeholder.get());
        if (pending == nullptr) continue;
        if (pending->made.unsafeGetStorageImpl() != nullptr)
          settle(*placeholder);
        else
          pending->failure = batch->failure;
      }
  }
  if (!submitted_.empty()) {
    room_ = std::move(submitted_.front()->nodes);
    room_.clear();
  }
  submitted_.clear();
  failure_.clear();
  return first;
}

}  // namespace fp8::runtime
