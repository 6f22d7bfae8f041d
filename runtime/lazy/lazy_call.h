// SPDX-License-Identifier: Apache-2.0
// Functions of ours as calls of lazy mode (lazy_mode.h). They reach kernels without the dispatcher, and read what the
// host has (scales, histories, the steps of an optimizer) when they run: behind all that was called before.
//
//   if (queues_calls()) return queue_call("te::forward", {x, w}, {{{m, n}, at::kBFloat16}}, f)[0];
//   return f({x, w})[0];
//
// Who changes what they read, or reads what they change, calls finish_work() first.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "fp8/runtime/leaf/pending_work.h"

namespace fp8::runtime {

/// Contiguous, of memory of its own.
struct PromisedResult {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
};

/// True where this thread's calls wait: in lazy mode, outside of captures and of what a call runs.
inline bool queues_calls() { return detail::g_finish_work.load(std::memory_order_acquire) != nullptr && is_heard(); }

using LaterFunction = std::function<std::vector<at::Tensor>(at::TensorList)>;

/// f(operands), later; its results, which are compared with the promises when it has run (nullopt: undefined). f gets
/// tensors of its own on the operands' memory, whose versions nobody else counts: the caller counts the writes. It runs
/// at once where an operand is not on hpu, is no ordinary tensor, or where somebody has a CPU tensor on the memory of
/// what it writes.
std::vector<at::Tensor> queue_call(const char* name, at::TensorList operands,
                                   const std::vector<std::optional<PromisedResult>>& results, LaterFunction f,
                                   at::TensorList written = {});

}  // namespace fp8::runtime
