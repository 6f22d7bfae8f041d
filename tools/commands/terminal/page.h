// SPDX-License-Identifier: Apache-2.0
// What a command is called and takes, as a table: help, completions and man pages are made of it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fp8::commands {

/// Where an option stands in the help. --help shows the first kind, --help-all each.
enum class Shelf : std::uint8_t { common, advanced, processes };

/// What a shell may offer as the value.
enum class Value : std::uint8_t { none, file, word, text };

struct OptionRow {
  std::vector<std::string> names = {};  ///< {"-u", "--experts"}, or {"PATH"} of a positional argument
  std::string type = {};                ///< "PATH", "N"; of a choice its words, bars between; "" for a flag
  std::string fallback = {};            ///< what holds without it, "" where nothing does
  std::string help = {};                ///< one sentence or more, no line breaks
  std::vector<std::string> words = {};  ///< what a choice takes
  Value value = Value::none;            ///< none: a flag
  Shelf shelf = Shelf::common;
  bool required = false, repeated = false, positional = false;

  const std::string& long_name() const { return names.back(); }
};

struct CommandPage {
  std::string name;     ///< "quantize", "measurements merge"; "" for the program as a whole
  std::string summary;  ///< one line
  std::string example;  ///< a command line
  std::vector<OptionRow> options = {};
  std::vector<CommandPage> children = {};  ///< of the program and of a group of commands
};

}  // namespace fp8::commands
