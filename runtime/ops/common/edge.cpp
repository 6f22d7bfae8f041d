// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/common/edge.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "fp8/runtime/device/block.h"

namespace fp8::runtime::ops {
namespace {

thread_local int g_codes_with_scale = 0;

/// Multipliers are read on the host, as numbers: the library's own lie there.
bool read_on_host(const c10::Argument& argument) { return argument.name().find("scale") != std::string::npos; }

}  // namespace

CodesWithScale::CodesWithScale() { ++g_codes_with_scale; }
CodesWithScale::~CodesWithScale() { --g_codes_with_scale; }

void EdgeCheck::check_codes(const at::Tensor& t) const {
  const Block* block = block_of(t);
  if (block != nullptr && block->tag && g_codes_with_scale == 0) block->tag->check_access(op_, t);
}

std::uint64_t EdgeCheck::settle(const c10::FunctionSchema& schema) const {
  std::uint64_t move = 0;
  bool written = false;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if ((host_ >> i & 1) == 0 || read_on_host(argument)) continue;
    move |= std::uint64_t{1} << i;
    written = written || (argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
  if (move != 0) devices_.settle(written ? OperandDevices::Host::is_written : OperandDevices::Host::is_read);
  return move;
}

const c10::FunctionSchema& schema_of(const std::string& op) {
  const std::size_t dot = op.find('.');
  const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(op.substr(0, dot).c_str(), overload.c_str()).schema();
}

}  // namespace fp8::runtime::ops
