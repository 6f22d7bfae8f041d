// SPDX-License-Identifier: Apache-2.0
// aten::_grouped_mm of operands that the CPU's kernel refuses: rows that are no multiple of 16 bytes, expanded
// gradients.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fp8::runtime {

/// Such an operand is copied into rows that fit. Takes no call (BeforeFallback).
bool fit_grouped_mm(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace fp8::runtime
