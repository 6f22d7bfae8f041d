// SPDX-License-Identifier: Apache-2.0
// What shells need to complete command lines of fp8: scripts with all commands, options and choices in them.
#pragma once
#include <cstdint>
#include <string>

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/tools/commands/terminal/page.h"

namespace fp8::commands {

enum class Shell : std::uint8_t { bash, zsh, fish };
constexpr auto names_of(Shell) {
  using enum Shell;
  return std::to_array<EnumName<Shell>>({{bash, "bash"}, {zsh, "zsh"}, {fish, "fish"}});
}
using fp8::name_of;

/// A script to source, or to put where the shell looks (share/bash-completion/completions/fp8,
/// share/zsh/site-functions/_fp8, share/fish/vendor_completions.d/fp8.fish). program: the page of fp8 with
/// its commands.
std::string completion_script(const CommandPage& program, Shell shell);

}  // namespace fp8::commands
