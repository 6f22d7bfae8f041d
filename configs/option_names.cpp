// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/option_names.h"

namespace fp8::configs {
namespace {

thread_local int command_lines = 0;  // CommandLineNames alive on this thread

}  // namespace

CommandLineNames::CommandLineNames() { ++command_lines; }
CommandLineNames::~CommandLineNames() { --command_lines; }

std::string option_name(std::string_view api, std::string_view command_line) {
  return std::string(command_lines > 0 ? command_line : api);
}

}  // namespace fp8::configs
