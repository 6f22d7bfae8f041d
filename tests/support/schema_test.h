// SPDX-License-Identifier: Apache-2.0
// Registered operators against the vendor's schema texts.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

namespace fp8::test {

/// `text` is a whole schema; its operator must be registered with exactly it, and have kernels for HPU and Meta.
inline void expect_schema(const char* text) {
  const c10::FunctionSchema vendor = torch::jit::parseSchema(text);
  const auto op = c10::Dispatcher::singleton().findSchema(vendor.operator_name());
  ASSERT_TRUE(op.has_value()) << text;
  EXPECT_EQ(op->schema(), vendor) << op->schema();
  EXPECT_TRUE(op->hasKernelForDispatchKey(c10::DispatchKey::HPU)) << text;
  EXPECT_TRUE(op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) << text;
}

}  // namespace fp8::test
