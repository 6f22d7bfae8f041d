// SPDX-License-Identifier: Apache-2.0
// Work of the device that was called and has not run yet (lazy/lazy_mode.h). Whoever reaches memory without the
// dispatcher asks for its end first. Where there is no lazy mode that is one load.
#pragma once
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <optional>

namespace fp8::runtime {

/// The dispatch key below autograd at which recordings and lazy mode hear calls (tape/heard.h).
inline constexpr auto kHeardKey = c10::DispatchKey::Fake;

/// True on a thread whose calls are heard, outside of what such a call runs.
inline bool is_heard() {
  return c10::impl::tls_is_dispatch_key_included(kHeardKey) && !c10::impl::tls_is_dispatch_key_excluded(kHeardKey);
}

/// Why work is to end.
enum class Access {
  memory,  ///< elements are about to be read or written
  lookup,  ///< where memory lies, its tag: enough for a call in lazy mode, which asks for elements later
};

namespace detail {
/// Null: all work has run.
extern std::atomic<void (*)(Access)> g_finish_work;
/// Null: no thread has been in lazy mode.
extern std::atomic<void (*)()> g_leave_lazy_mode;
}  // namespace detail

/// Returns when all that was called has run, unless it is part of that work itself. Throws what a call threw.
inline void finish_work(Access access = Access::memory) {
  if (const auto finish = detail::g_finish_work.load(std::memory_order_acquire)) [[unlikely]]
    finish(access);
}

/// set_lazy_mode(false), for code that knows nothing of lazy mode.
inline void leave_lazy_mode() {
  if (const auto leave = detail::g_leave_lazy_mode.load(std::memory_order_acquire)) leave();
}

/// While it lives, calls of this thread run when they are called: for code that reads addresses.
class RunsAtOnce {
 public:
  RunsAtOnce() {
    if (detail::g_finish_work.load(std::memory_order_acquire) == nullptr) [[likely]]
      return;
    finish_work();
    unheard_.emplace(kHeardKey);
  }
  RunsAtOnce& operator=(RunsAtOnce&&) = delete;
  explicit operator bool() const { return unheard_.has_value(); }

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> unheard_;
};

}  // namespace fp8::runtime
