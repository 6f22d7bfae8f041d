// SPDX-License-Identifier: Apache-2.0
// The device's lane in LibTorch's profilers: a process "hpu 0 (emulated GAUDI3)" with an event of category "hpu_op" for
// each leaf, in the trace and in the tables of whoever profiles with ActivityType::HPU: HPUProfiler, and in Python
//
//   torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.HPU])
//
// args: module, phase, backward, dtypes and sizes of inputs and outputs, bytes, flops, stream; an arrow comes from the
// op that ran the leaf. More on request, as words of ExperimentalConfig's custom_profiler_config:
//
//   "fp8:modules"   ModuleScopes as events "[pl][module]Type: path"
//   "fp8:numbers"   amax and saturated share of casts to fp8
//   "fp8:memory"    a counter of the bytes in use
//
// Loading the library is enough; nothing listens while nobody profiles.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "fp8/runtime/profile/leaf_log.h"

namespace fp8::runtime {

/// "fp8:modules fp8:memory": the words of `options`.
std::string lane_words(const LeafLogOptions& options);

/// A number of its own in the trace that is being recorded.
void add_to_trace(const std::string& key, std::int64_t value);

/// Without what Kineto's JSON can't hold: it turns each backslash into a slash, so that no character may need one.
std::string trace_text(std::string value);

/// What the lane records, or recorded last; null before.
std::shared_ptr<const LeafLog> last_leaf_log();

}  // namespace fp8::runtime
