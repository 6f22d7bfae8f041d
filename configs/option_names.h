// SPDX-License-Identifier: Apache-2.0
// What messages call an option: the member's name where the library is called, "--include" where the command line is.
// No torch here.
#pragma once
#include <string>
#include <string_view>

namespace fp8::configs {

/// While one lives, messages made on this thread name the command line's options.
class CommandLineNames {
 public:
  CommandLineNames();
  ~CommandLineNames();
  CommandLineNames(const CommandLineNames&) = delete;
  CommandLineNames& operator=(const CommandLineNames&) = delete;
};

/// One of the two. option_name("'include'", "--include")
std::string option_name(std::string_view api, std::string_view command_line);

}  // namespace fp8::configs
