// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/trace.h"

#include <ATen/core/Tensor.h>

#include <cstdio>
#include <sstream>
#include <string_view>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::runtime {
namespace {

thread_local const std::string* g_module = nullptr;

void append(std::ostringstream& line, const at::Tensor& t) {
  if (t.defined()) line << " " << t.sizes() << " " << t.scalar_type();
}

void print(const std::ostringstream& line) {
  const std::string text = "fp8 trace: " + line.str() + (g_module != nullptr ? " | " + *g_module : "") + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

bool trace_enabled() {
  static const bool enabled = [] {
    const char* value = io::environment_value("FP8_TRACE");
    return value != nullptr && std::string_view(value) != "0";
  }();
  return enabled;
}

void trace_op(const char* op, std::initializer_list<at::Tensor> inputs) {
  if (!trace_enabled()) return;
  std::ostringstream line;
  line << op;
  for (const auto& t : inputs) append(line, t);
  print(line);
}

void trace_op(const std::string& op, at::ArrayRef<c10::IValue> arguments) {
  if (!trace_enabled()) return;
  std::ostringstream line;
  line << op;
  for (const auto& value : arguments) {
    if (value.isTensor()) append(line, value.toTensor());
  }
  print(line);
}

OpScope::OpScope(const char* op) : event_(at::RecordScope::FUNCTION) {
  if (event_.isActive()) event_.before(op);
}

OpScope::OpScope(const char* op, std::initializer_list<at::Tensor> inputs) : OpScope(op) { trace_op(op, inputs); }

ModuleScope::ModuleScope(const std::string& module) : previous_(g_module) { g_module = &module; }
ModuleScope::~ModuleScope() { g_module = previous_; }

}  // namespace fp8::runtime
