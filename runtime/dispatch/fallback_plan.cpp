// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/fallback_plan.h"

#include <ATen/core/jit_type.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace fp8::runtime {
namespace {

/// Ops of whose contract one argument on the CPU is part, beside hpu ones.
struct HostArgument {
  std::string_view op;
  std::size_t argument;
};
constexpr HostArgument kHostArguments[] = {{"aten::index", 1},
                                           {"aten::_unsafe_index", 1},
                                           {"aten::index_put", 1},
                                           {"aten::index_put_", 1},
                                           {"aten::_unsafe_index_put", 1},
                                           {"aten::_index_put_impl_", 1},
                                           {"aten::_pack_padded_sequence", 1},
                                           {"aten::_pad_packed_sequence", 1}};

bool may_be_on_host(std::string_view op, std::size_t argument) {
  for (const HostArgument& known : kHostArguments) {
    if (known.op == op && known.argument == argument) return true;
  }
  return false;
}

/// False for a type whose values hold neither tensor nor place, whatever they are.
bool may_hold_operand(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
      return may_hold_operand(*type.containedType(0));
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::MemoryFormatType:
      return false;
    default:
      return true;
  }
}

}  // namespace

FallbackPlan::FallbackPlan(const c10::FunctionSchema& schema)
    : arguments(static_cast<std::uint16_t>(schema.arguments().size())),
      results(static_cast<std::uint16_t>(schema.returns().size())) {
  const std::string& name = schema.name();
  if (name == "aten::_pack_padded_sequence") host_result = 1;
  for (std::uint16_t i = 0; i < arguments; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.name() == "value" || argument.name() == "fill_value") number = i;
    if (!may_hold_operand(*argument.real_type())) continue;
    const c10::AliasInfo* info = argument.alias_info();
    operands.push_back({i, info != nullptr && info->isWrite(), may_be_on_host(name, i)});
  }
}

}  // namespace fp8::runtime
