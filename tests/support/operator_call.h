// SPDX-License-Identifier: Apache-2.0
// Calls fp8:: operators as Python does (boxed, by name, missing arguments take their defaults) and from TorchScript
// text.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/torch.h>

#include <fstream>

#include "fp8/runtime/io/json/json.h"

namespace fp8::test {

/// The result of fp8::name(args...); None where it has none.
inline c10::IValue call_fp8(const std::string& name, torch::jit::Stack args) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("fp8::" + name).c_str(), "");
  op.schema().checkAndNormalizeInputs(args);
  op.callBoxed(args);
  return args.empty() ? c10::IValue() : args.front();
}

inline io::Json json_of(const c10::IValue& text) { return io::parse_json(text.toStringRef(), "result"); }

using Tensors = std::vector<at::Tensor>;
using Words = std::vector<std::string>;

/// In the text of a function `fp8.name(...)` is the operator fp8::name.
struct Fp8Resolver final : torch::jit::Resolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(const std::string& name, torch::jit::GraphFunction& m,
                                                         const torch::jit::SourceRange& loc) override {
    if (name == "fp8") return std::make_shared<torch::jit::BuiltinModule>("fp8");
    return torch::jit::nativeResolver()->resolveValue(name, m, loc);
  }
  c10::TypePtr resolveType(const std::string&, const torch::jit::SourceRange&) override { return nullptr; }
};

/// The function `f` of a TorchScript text.
inline torch::jit::Function& compile(torch::jit::CompilationUnit& unit, const std::string& text) {
  unit.define(std::nullopt, text, std::make_shared<Fp8Resolver>(), nullptr);
  return unit.get_function(c10::QualifiedName("f"));
}

// Registered operators against the vendor's schemas, vendor_schemas.txt.

/// Each of the `count` operators of a section of the file is registered with exactly the schema that stands there, and
/// has kernels for HPU and Meta.
inline void expect_schemas(const std::string& section, int count) {
  std::ifstream file(FP8_SOURCE_DIR "/tests/support/vendor_schemas.txt");
  int found = 0;
  bool inside = false;
  for (std::string text; std::getline(file, text);) {
    if (text.starts_with("[")) inside = text == "[" + section + "]";
    if (!inside || !text.starts_with("hpu::")) continue;
    ++found;
    SCOPED_TRACE(text);
    const c10::FunctionSchema vendor = torch::jit::parseSchema(text);
    const auto op = c10::Dispatcher::singleton().findSchema(vendor.operator_name());
    ASSERT_TRUE(op.has_value());
    EXPECT_EQ(op->schema(), vendor) << op->schema();
    EXPECT_TRUE(op->hasKernelForDispatchKey(c10::DispatchKey::HPU));
    EXPECT_TRUE(op->hasKernelForDispatchKey(c10::DispatchKey::Meta));
  }
  EXPECT_EQ(found, count) << section;
}

}  // namespace fp8::test
