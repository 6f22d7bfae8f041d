// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing as operators, for whoever runs a part of a model twice: what te::checkpoint() does around
// its two runs.
//
//   forward    run = fp8::checkpoint_begin()   y = part(x)         fp8::checkpoint_end(run)
//   backward   fp8::checkpoint_again(run)      part(x) once more   fp8::checkpoint_end(run)   as often as backward runs
//              fp8::checkpoint_free(run)
//
// The second run finds the fp8 and autocast regions and the scales of the first, on whatever thread; amaxes are
// recorded once. The first may keep gradients on or off. As context_fn of torch.utils.checkpoint(use_reentrant=False):
// tests/package/operators.py.
#pragma once
#include <cstdint>

namespace fp8::te {

/// Begins a first run on this thread. Runs nest. Random numbers are the caller's.
std::int64_t checkpoint_begin();
/// Begins a second run on this thread. Throws c10::Error for a number of no run, and one whose run is going on.
void checkpoint_again(std::int64_t run);
/// Ends the run that is going on. Throws c10::Error on another thread than its own, and while a run inside is going on.
void checkpoint_end(std::int64_t run);
/// Forgets it. Throws c10::Error while it is going on.
void checkpoint_free(std::int64_t run);

}  // namespace fp8::te
