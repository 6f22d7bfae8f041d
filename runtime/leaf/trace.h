// SPDX-License-Identifier: Apache-2.0
// FP8_TRACE=1: every leaf is a line on stderr, in order, with the module that it serves:
//
//   fp8 trace: hpu::cast_to_fp8_v2 [8, 256, 192] Float | model.layers.0.self_attn.q_proj
//
// Ops that were handed to a handler do not run and are not listed; what the handler runs instead is.
#pragma once
#include <string>

#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {

/// The line of a leaf, without its end.
std::string trace_line(const LeafRecord& leaf);

}  // namespace fp8::runtime
