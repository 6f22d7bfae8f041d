// SPDX-License-Identifier: Apache-2.0
// aten::histc of integers, which the CPU has no kernel for.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fp8::runtime {

/// aten::histc and histc.out. An integer tensor is counted exactly, as a device does: element v falls into bin floor((v
/// - min) * bins / (max - min)), v = max into the last, what lies outside into none; min = max: the tensor's own (where
/// they are equal too: min - 1 and max + 1). The counts have its dtype. c10::Error: bins < 1, min > max, bounds that
/// are no whole numbers, more elements in a bin than the dtype counts. Nothing else is taken (BeforeFallback).
bool histc_of_integers(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace fp8::runtime
