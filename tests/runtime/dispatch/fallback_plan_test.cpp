// SPDX-License-Identifier: Apache-2.0
// FallbackPlan beside what schemas say: of some operators by hand, of all of aten by the values that an argument takes.
#include <ATen/core/dispatch/Dispatcher.h>

#include <set>
#include <string>

#include "fp8/runtime/dispatch/fallback.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using runtime::FallbackPlan;

FallbackPlan plan_of(const char* name, const char* overload = "") {
  return FallbackPlan(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema());
}

/// "0w 1h 2": written, on the host.
std::string operands_of(const FallbackPlan& plan) {
  std::string text;
  for (const auto& operand : plan.operands) {
    text += (text.empty() ? "" : " ") + std::to_string(operand.index) + (operand.written ? "w" : "") +
            (operand.on_host ? "h" : "");
  }
  return text;
}

TEST(FallbackPlan, TensorsListsPlacesAndWhatIsWritten) {
  EXPECT_EQ(operands_of(plan_of("aten::add", "Tensor")), "0 1");
  EXPECT_EQ(operands_of(plan_of("aten::add", "out")), "0 1 3w");
  EXPECT_EQ(operands_of(plan_of("aten::index_put_")), "0w 1h 2");
  EXPECT_EQ(operands_of(plan_of("aten::_foreach_add_", "List")), "0w 1");
  EXPECT_EQ(operands_of(plan_of("aten::bernoulli")), "0 1");  // a generator
  EXPECT_EQ(operands_of(plan_of("aten::_pack_padded_sequence")), "0 1h");
  EXPECT_EQ(operands_of(plan_of("aten::native_layer_norm")), "0 2 3");  // not the shape
  EXPECT_EQ(operands_of(plan_of("aten::_to_copy")), "0 3");
}

TEST(FallbackPlan, CountsNumbersAndResultsOnTheHost) {
  const FallbackPlan fill = plan_of("aten::masked_fill_", "Scalar");
  EXPECT_EQ(fill.arguments, 3);
  EXPECT_EQ(fill.results, 1);
  EXPECT_EQ(fill.number, 2);
  EXPECT_EQ(fill.host_result, FallbackPlan::kNone);
  const FallbackPlan full = plan_of("aten::full_like");
  EXPECT_EQ(full.number, 1);
  const FallbackPlan packed = plan_of("aten::_pack_padded_sequence");
  EXPECT_EQ(packed.results, 2);
  EXPECT_EQ(packed.host_result, 1);
  EXPECT_EQ(plan_of("aten::add", "Tensor").number, FallbackPlan::kNone);
}

/// What a schema's text says of an argument: "Tensor(a!)[] self", "Device? device" are operands, "int[]? dim" is not.
bool names_an_operand(const c10::Argument& argument) {
  const std::string type = argument.type()->str();
  return type.find("Tensor") != std::string::npos || type.find("Device") != std::string::npos ||
         type.find("Generator") != std::string::npos;
}

TEST(FallbackPlan, MissesNoTensorOfAnyOperator) {
  int operators = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() || !name.name.starts_with("aten::")) continue;
    const auto& arguments = op->schema().arguments();
    const FallbackPlan plan(op->schema());
    std::set<std::size_t> visited, written;
    for (const auto& operand : plan.operands) {
      visited.insert(operand.index);
      if (operand.written) written.insert(operand.index);
    }
    ASSERT_EQ(plan.arguments, arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      EXPECT_TRUE(visited.contains(i) || !names_an_operand(arguments[i])) << op->schema() << " argument " << i;
      const bool is_written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
      EXPECT_EQ(written.contains(i), is_written) << op->schema() << " argument " << i;
    }
    ++operators;
  }
  EXPECT_GT(operators, 2000);
}

}  // namespace
}  // namespace fp8::test
