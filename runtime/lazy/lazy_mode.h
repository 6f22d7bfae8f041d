// SPDX-License-Identifier: Apache-2.0
// Lazy mode: a call on the device gives its results at once, and runs later, with others and in their order.
//
//   set_lazy_mode(true);
//   y = x.mm(w).relu_();     each ran before with such arguments: y has sizes, and memory that comes later (pending.h)
//   y.item()                 both run, then the value is read
//
//                 known?                         now: all before it runs first, then it does
//   heard call  --- yes ->  placeholders, a node of the queue
//              `--- no ---> all before it runs first, then it does, and how its results look is remembered
//
//   submit_work(), max_queued calls, other circumstances    the queue goes to the worker, the caller goes on
//   finish_work()                                           the caller waits
//
// Results are compared with what was promised. Who reaches memory without the dispatcher waits by itself (cpu_alias(),
// OpScope, and block_of() where no calls are heard), on any thread. A bare address does not wait: RunsAtOnce. What a
// call throws later comes out of the next call that waits, with the name of the operation and of its module; calls
// behind it are dropped, and their results have no memory.
#pragma once
#include <cstdint>

#include "fp8/runtime/leaf/pending_work.h"

namespace fp8::runtime {

/// For this thread and the threads of autograd that it sends work to; of another thread's calls each waits for what is
/// queued. Returns what it was. Off: waits first. Throws c10::Error where another thread is in lazy mode, or records.
bool set_lazy_mode(bool on);
/// Of this thread.
bool is_lazy_mode();

/// What is queued runs from now on; the caller does not wait where there is a worker.
void submit_work();

/// submit_work(), or finish_work() where somebody wants the step done.
void end_lazy_step(bool sync);

struct LazyOptions {
  std::int64_t max_queued = 65536;  ///< calls, then the queue goes to the worker; PT_HPU_MAX_COMPOUND_OP_SIZE, if less
  bool worker = true;               ///< a thread runs the queue; false (and where there is one core): who waits does
};
void set_lazy_options(const LazyOptions& options);

struct LazyCounts {
  std::int64_t queued = 0;   ///< calls that ran later
  std::int64_t learned = 0;  ///< ran at once, and their results are known now
  std::int64_t now = 0;      ///< ran at once, as they always will
  std::int64_t waits = 0;    ///< how often somebody waited for calls
};
LazyCounts lazy_counts();

}  // namespace fp8::runtime
