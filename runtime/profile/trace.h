// SPDX-License-Identifier: Apache-2.0
// FP8_TRACE=1: every op that runs on the device is a line on stderr, in order, with the module whose weight it serves:
//
//   fp8 trace: hpu::cast_to_fp8_v2 [8, 256, 192] f32 | model.layers.0.self_attn.q_proj
//
// Ops that were handed to a handler do not run and are not listed; what the handler runs instead is.
#pragma once
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <initializer_list>
#include <string>

namespace fp8::runtime {

/// FP8_TRACE is set and not "0"; asked once.
bool trace_enabled();

/// One line, if tracing. inputs: the tensors worth showing.
void trace_op(const char* op, std::initializer_list<at::Tensor> inputs);
void trace_op(const std::string& op, at::ArrayRef<c10::IValue> arguments);

/// A computation of ours that no dispatcher sees: a line, if tracing, and an event for profilers, as long as it lives.
class OpScope {
 public:
  OpScope(const char* op, std::initializer_list<at::Tensor> inputs);
  explicit OpScope(const char* op);  ///< the event alone, of an op that writes its own line
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  at::RecordFunction event_;
};

/// The module that this thread's ops serve while it lives.
class ModuleScope {
 public:
  explicit ModuleScope(const std::string& module);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  const std::string* previous_;
};

}  // namespace fp8::runtime
