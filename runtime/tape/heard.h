// SPDX-License-Identifier: Apache-2.0
// The calls that recordings (recorder.h) and lazy mode (lazy/lazy_mode.h) hear, at kHeardKey.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include "fp8/runtime/leaf/pending_work.h"

namespace fp8::runtime {

/// Operators that call others and have no kernel of the device: those are heard.
bool is_composite(const c10::OperatorHandle& op);

/// keys: those below the heard one. Takes the arguments off the stack and puts the results there.
using HeardCall = void (*)(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// `call` gets what is heard while nothing is recorded; nullptr: it runs. Throws c10::Error where another library took
/// the key.
void set_heard_call(HeardCall call);

}  // namespace fp8::runtime
