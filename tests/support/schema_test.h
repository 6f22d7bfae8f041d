// SPDX-License-Identifier: Apache-2.0
// Registered operators against the vendor's schemas, vendor_schemas.txt.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <fstream>
#include <string>

namespace fp8::test {

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
