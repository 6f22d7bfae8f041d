// SPDX-License-Identifier: Apache-2.0
// The dispatch key below autograd at which recordings (recorder.h) and lazy mode (lazy/lazy_mode.h) hear calls.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fp8::runtime {

inline constexpr auto kHeardKey = c10::DispatchKey::Fake;

/// True on a thread whose calls are heard, outside of what such a call runs.
inline bool is_heard() {
  return c10::impl::tls_is_dispatch_key_included(kHeardKey) && !c10::impl::tls_is_dispatch_key_excluded(kHeardKey);
}

/// Operators that call others and have no kernel of the device: those are heard.
bool is_composite(const c10::OperatorHandle& op);

/// keys: those below the heard one. Takes the arguments off the stack and puts the results there.
using HeardCall = void (*)(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// `call` gets what is heard while nothing is recorded; nullptr: it runs. Throws c10::Error where another library took
/// the key.
void set_heard_call(HeardCall call);

}  // namespace fp8::runtime
