// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/lazy/lazy_mode.h"

#include <c10/util/ScopeExit.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/pending.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/lazy/lazy_work.h"
#include "fp8/runtime/tape/heard.h"
#include "fp8/runtime/tape/recorder.h"

namespace fp8::runtime {
namespace {

constexpr std::size_t kMostKnown = 65536;
constexpr std::int64_t kOften = 32;  // so many calls are worth a worker that sleeps

struct Lazy {
  std::mutex mutex;  // of all below
  std::unordered_map<const c10::FunctionSchema*, HeardOp> ops;
  CallKey key;
  KnownCalls known;
  LazyWork work;
  Circumstances at;  ///< of the open batch
  LazyOptions options;
  std::int64_t most_queued = LazyOptions{}.max_queued;  ///< of the environment
  LazyCounts counts;
  std::atomic<bool> has_work = false;
  std::atomic<bool> on = false;  ///< in some thread

  bool uses_worker() const { return options.worker && kernels::num_threads() > 1; }
  void submit() {
    work.submit(uses_worker());
    has_work = work.has_work();
  }
};

Lazy& lazy() {
  static Lazy& lazy = *new Lazy;  // not destroyed: threads may outlive main()
  return lazy;
}

void finish_lazily(Access access) {
  Lazy& l = lazy();
  if (LazyWork::is_running() || !l.has_work.load(std::memory_order_acquire)) return;
  if (access == Access::lookup && is_heard()) return;
  const std::lock_guard lock(l.mutex);
  if (!l.has_work) return;
  ++l.counts.waits;
  const auto over = c10::make_scope_exit([&] { l.has_work.store(false, std::memory_order_release); });
  l.work.finish();
}

void run_unheard(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard within(kHeardKey);
  op.redispatchBoxed(keys, stack);
}

/// True if no other tensor has the memory of any: so no call that waits does.
bool are_alone(at::ArrayRef<c10::IValue> arguments) {
  bool alone = true;
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const at::Tensor& t) {
      if (!t.defined() || !t.is_hpu()) return;
      alone = alone && t.has_storage() && t.storage().use_count() == 1 && pending_of(storage_impl_of(t)) == nullptr;
    });
  return alone;
}

void run_now(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  // A batch on its way to the device, random numbers for a fresh tensor. Kernels of others may know more tensors.
  if (op.schema().name().starts_with("aten::") && are_alone(arguments)) {
    const LazyWork::Running as_part_of_it;
    return run_unheard(op, keys, stack);
  }
  finish_lazily(Access::memory);
  run_unheard(op, keys, stack);
}

/// Runs it after all before it, and remembers how its results look.
void learn(const HeardOp& heard, const CallKey& key, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
           torch::jit::Stack* stack) {
  finish_lazily(Access::memory);
  const std::size_t count = op.schema().arguments().size(), first = stack->size() - count;
  const CallLesson lesson(torch::jit::last(*stack, count));
  run_unheard(op, keys, stack);
  KnownCall call = lesson.learn(heard, at::ArrayRef<c10::IValue>(*stack).slice(first));
  Lazy& l = lazy();
  const std::lock_guard lock(l.mutex);
  if (l.known.size() >= kMostKnown && !l.work.has_work()) l.known.forget();
  ++(call.way == KnownCall::Way::now ? l.counts.now : l.counts.learned);
  l.known.keep(key, std::move(call));
}

/// A tensor that only the queue has: with the sizes that t has now, whatever becomes of them.
/// ours: with a version of its own, for a kernel that counts its writes when it runs.
at::Tensor operand_of(const at::Tensor& t, bool ours) {
  if (!t.defined()) return t;
  if (!t.is_hpu() && t.dim() == 0) {
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) return t;
    const c10::impl::ExcludeDispatchKeyGuard within(kHeardKey);
    return t.detach().clone();  // the host may write it
  }
  const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(ours ? c10::VariableVersion(0) : impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

/// The results of the call, as they will be, instead of its arguments.
void promise(const KnownCall& known, LazyNode& node, torch::jit::Stack* stack, std::size_t count) {
  c10::SmallVector<at::Tensor, 4> arguments;  // where one of them is a result
  if (known.made < known.results.size())
    for (const c10::IValue& value : torch::jit::last(*stack, count))
      for_each_tensor(value, [&](const at::Tensor& t) {
        if (t.defined() && t.is_hpu()) arguments.push_back(t);
      });
  torch::jit::drop(*stack, count);
  auto like = known.results.begin();
  const auto next = [&] {
    const KnownResult& result = *like++;
    switch (result.kind) {
      case KnownResult::Kind::argument: return arguments[result.argument];
      case KnownResult::Kind::made: return promised(result, node);
      default: return at::Tensor();
    }
  };
  for (const int length : known.lists) {
    if (length < 0) {
      stack->emplace_back(next());
      continue;
    }
    c10::List<at::Tensor> list;
    for (int i = 0; i < length; ++i) list.push_back(next());
    stack->emplace_back(std::move(list));
  }
}

void add(Lazy& l, LazyNode&& node, const Circumstances& at) {
  if (l.work.queued() > 0 && l.at != at) l.submit();
  l.at = at;
  l.work.add(std::move(node), at);
  l.has_work.store(true, std::memory_order_release);
  ++l.counts.queued;
  const auto queued = static_cast<std::int64_t>(l.work.queued());
  if (queued >= std::min(l.options.max_queued, l.most_queued) ||
      (queued % kOften == 0 && l.uses_worker() && l.work.worker().is_idle()))
    l.submit();
}

/// The tensors of the arguments that it writes.
std::vector<at::Tensor> written_by(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  std::vector<at::Tensor> written;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = op.schema().arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for_each_tensor(arguments[i], [&](const at::Tensor& t) {
      if (t.defined()) written.push_back(t);
    });
  }
  return written;
}

void queue(Lazy& l, const KnownCall& known, const HeardOp& heard, const c10::OperatorHandle& op,
           c10::DispatchKeySet keys, const Circumstances& at, torch::jit::Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  LazyNode node{op, keys, torch::jit::Stack(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end()), &known};
  if (heard.ours && heard.writes)
    for (const at::Tensor& t : written_by(op, node.arguments)) t.unsafeGetTensorImpl()->bump_version();
  for (c10::IValue& value : node.arguments)
    replace_tensors(value, [&](const at::Tensor& t) { return operand_of(t, heard.ours); });
  promise(known, node, stack, count);
  add(l, std::move(node), at);
}

void queue_work(std::function<void()> work) {
  Lazy& l = lazy();
  if (!is_heard()) {
    finish_lazily(Access::memory);
    return work();
  }
  std::unique_lock lock(l.mutex);
  if (!l.has_work) {
    lock.unlock();
    return work();
  }
  if (l.work.queued() == 0) l.at = Circumstances::present();
  LazyNode node;
  node.work = std::move(work);
  l.work.add(std::move(node), l.at);
}

/// True if someone reads the memory of an operand as a CPU tensor, and is no call on its way.
bool is_aliased(Lazy& l, at::ArrayRef<const c10::TensorImpl*> operands) {
  const auto any = [&] {
    return std::ranges::any_of(operands, [](const c10::TensorImpl* t) {
      const auto* memory = t->unsafe_storage().unsafeGetStorageImpl();
      return pending_of(memory) == nullptr && block_of(memory)->has_alias();
    });
  };
  if (!any()) return false;
  l.work.worker().wait();
  return any();
}

bool has_mask(at::ArrayRef<const c10::TensorImpl*> operands) {
  return std::ranges::any_of(operands.slice(1), [](const c10::TensorImpl* t) {
    return t->dtype() == caffe2::TypeMeta::Make<bool>() || t->dtype() == caffe2::TypeMeta::Make<std::uint8_t>();
  });
}

/// A copy from pinned memory, which the caller leaves as it is until it waits: copy_(to, from, non_blocking = true).
bool is_asynchronous_copy(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  if (op.schema().name() != "aten::copy_" || !arguments[2].toBool()) return false;
  const at::Tensor& from = arguments[1].toTensor();
  return from.is_cpu() && from.dim() > 0 && from.layout() == at::kStrided && !from.is_neg() && !from.is_conj() &&
         is_pinned(from.const_data_ptr());
}

/// True for a step of tensors on the device, which its kernel would not refuse for where they are.
bool may_be_later(Lazy& l, const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  bool ordinary = true;
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const at::Tensor& t) {
      if (!t.defined() || (t.is_cpu() && t.dim() == 0)) return;
      const bool here = t.is_hpu() && t.layout() == at::kStrided && kOrdinaryKeys.has_all(t.key_set());
      const PendingMemory* pending = here ? pending_of(storage_impl_of(t)) : nullptr;
      ordinary = ordinary && here && (pending == nullptr || pending->failure.empty());
    });
  if (!ordinary) return false;
  std::vector<const c10::TensorImpl*> written;
  for (const at::Tensor& t : written_by(op, arguments)) written.push_back(t.unsafeGetTensorImpl());
  return !is_aliased(l, written);
}

void lazy_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  // The second: it ended within an InferenceMode, whose end gives the thread its key back.
  if (!keys.has(c10::DispatchKey::HPU) || detail::g_finish_work.load() == nullptr)
    return op.redispatchBoxed(keys, stack);
  Lazy& l = lazy();
  std::unique_lock lock(l.mutex);
  const HeardOp& heard = l.ops.try_emplace(&op.schema(), op).first->second;
  using Way = HeardOp::Way;
  if (heard.way == Way::learns) {
    const auto at = Circumstances::present();
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    static const KnownCall copy{KnownCall::Way::later, {KnownResult{KnownResult::Kind::argument, 0}}, {-1}};
    if (is_asynchronous_copy(op, arguments) && l.key.set(op.schema(), arguments.slice(0, 1), at) &&
        !is_aliased(l, l.key.tensors()))
      return queue(l, copy, heard, op, keys, at, stack);
    if (l.key.set(op.schema(), arguments, at) && !(heard.takes_masks && has_mask(l.key.tensors()))) {
      const KnownCall* known = l.known.find(l.key);
      if (known == nullptr) {
        const CallKey key = l.key;
        lock.unlock();
        return learn(heard, key, op, keys, stack);
      }
      if (known->way == KnownCall::Way::later && !(heard.writes && is_aliased(l, l.key.tensors())))
        return queue(l, *known, heard, op, keys, at, stack);
      const bool looks = known->way == KnownCall::Way::looks;
      lock.unlock();
      return looks ? run_unheard(op, keys, stack) : run_now(op, keys, stack);
    }
  }
  if (heard.way == Way::step && may_be_later(l, op, torch::jit::last(*stack, op.schema().arguments().size()))) {
    static const KnownCall step{KnownCall::Way::later};
    return queue(l, step, heard, op, keys, Circumstances::present(), stack);
  }
  if (heard.way != Way::inside && heard.way != Way::looks) ++l.counts.now;
  lock.unlock();
  if (heard.way == Way::inside) return op.redispatchBoxed(keys, stack);
  heard.way == Way::looks ? run_unheard(op, keys, stack) : run_now(op, keys, stack);
}

/// A child of fork() has no worker. At exit a worker would run while the process is taken apart.
void settle_with_the_process() {
  static const bool done = [] {
    pthread_atfork(
        [] {
          Lazy& l = lazy();
          l.mutex.lock();
          l.work.worker().wait();
        },
        [] { lazy().mutex.unlock(); },
        [] {
          lazy().work.worker().forget_thread();
          lazy().mutex.unlock();
        });
    std::atexit([] { lazy().work.worker().wait(); });
    return true;
  }();
  (void)done;
}

std::int64_t most_queued_of_environment() {
  const char* value = io::environment_value("PT_HPU_MAX_COMPOUND_OP_SIZE");
  if (value == nullptr || !io::environment_problem("PT_HPU_MAX_COMPOUND_OP_SIZE").empty())
    return LazyOptions{}.max_queued;
  return std::clamp<std::int64_t>(std::strtoll(value, nullptr, 0), 1, LazyOptions{}.max_queued);
}

}  // namespace

bool is_lazy_mode() {
  return detail::g_finish_work.load() != nullptr && c10::impl::tls_is_dispatch_key_included(kHeardKey);
}

bool set_lazy_mode(bool on) {
  TORCH_CHECK(!Recorder::is_any_on(), "[lazy] found a capture that has not ended, expected none");
  const bool was_on = is_lazy_mode();
  if (on == was_on) return was_on;
  Lazy& l = lazy();
  if (on) {
    require_registered();
    set_heard_call(&lazy_call);
    TORCH_CHECK(!l.on.exchange(true), "[lazy] found lazy mode on another thread, expected one thread in it");
    settle_with_the_process();
    l.most_queued = most_queued_of_environment();
    detail::g_finish_work = &finish_lazily;
    detail::g_run_in_order = &queue_work;
    detail::g_leave_lazy_mode = [] { set_lazy_mode(false); };
  } else {
    const auto over = c10::make_scope_exit([&] {
      detail::g_finish_work = nullptr;
      detail::g_run_in_order = nullptr;
      c10::impl::tls_set_dispatch_key_included(kHeardKey, false);
      l.on = false;
    });
    end_lazy_step(/*sync=*/true);
    return was_on;
  }
  c10::impl::tls_set_dispatch_key_included(kHeardKey, true);
  return was_on;
}

bool detail::is_written_unseen(at::ArrayRef<const c10::TensorImpl*> written) {
  Lazy& l = lazy();
  const std::lock_guard lock(l.mutex);
  return !is_aliased(l, written);
}

void detail::queue_node(LazyNode node) {
  const auto at = Circumstances::present();
  Lazy& l = lazy();
  const std::lock_guard lock(l.mutex);
  add(l, std::move(node), at);
}

void submit_work() {
  Lazy& l = lazy();
  if (LazyWork::is_running()) return;
  const std::lock_guard lock(l.mutex);
  l.submit();
}

void end_lazy_step(bool sync) {
  if (!is_lazy_mode() || LazyWork::is_running()) return;
  submit_work();
  if (sync) finish_work();
}

void set_lazy_options(const LazyOptions& options) {
  TORCH_CHECK(options.max_queued >= 1, "[lazy] max_queued: found ", options.max_queued, ", allowed: 1 or more");
  finish_work();
  const std::lock_guard lock(lazy().mutex);
  lazy().options = options;
}

LazyCounts lazy_counts() {
  const std::lock_guard lock(lazy().mutex);
  return lazy().counts;
}

namespace {

/// For the thread that loads the library.
[[maybe_unused]] const bool g_of_environment = [] {
  const char* value = io::environment_value("PT_HPU_LAZY_MODE");
  if (value == nullptr || (std::string_view(value) != "1" && std::string_view(value) != "0x1")) return false;
  if (may_register(reinterpret_cast<const void*>(&lazy_call))) set_lazy_mode(true);
  return true;
}();

}  // namespace

}  // namespace fp8::runtime
