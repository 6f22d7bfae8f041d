// SPDX-License-Identifier: Apache-2.0
// The table of a command's name and options: help, completions and man pages are made of it.
#pragma once
#include <cstdint>
#include <utility>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::commands {

/// The section of the help that an option stands in. --help shows the first kind, --help-all each.
enum class Shelf : std::uint8_t { common, advanced, processes };

/// The kind of value that a shell may offer.
enum class Value : std::uint8_t { none, file, word, text };

struct OptionRow {
  std::vector<std::string> names = {};  ///< {"-u", "--experts"}, or {"PATH"} of a positional argument
  std::string type = {};                ///< "PATH", "N"; of a choice its words, bars between; "" for a flag
  std::string fallback = {};            ///< the default, "" if there is none
  std::string help = {};                ///< one sentence or more, no line breaks
  std::vector<std::string> words = {};  ///< the words of a choice
  Value value = Value::none;            ///< none: a flag
  Shelf shelf = Shelf::common;
  bool required = false, repeated = false, positional = false;

  const std::string& long_name() const { return names.back(); }
};

struct CommandPage {
  std::string name;     ///< "quantize", "measurements merge"; "" for the program as a whole
  std::string summary;  ///< one line
  std::string example;  ///< a command line, or several: a line each
  std::vector<OptionRow> options = {};
  std::vector<CommandPage> children = {};                        ///< of the program and of a group of commands
  std::vector<std::vector<std::string>> alternatives = {};       ///< groups of options of which one is required
  std::vector<std::pair<std::string, std::string>> topics = {};  ///< of the program: what else `fp8 help` explains
};

// --help: a command on one screen, its lines no longer than the terminal's.

/// `text` in lines of at most `width` columns, the second and later ones behind `indent` spaces; a word that is longer
/// has a line of its own. start: columns that stand before the first. No newline at the end.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent, std::size_t start = 0);

/// The page of a command, or of the program or a group with its commands. all: advanced options too, and those for
/// several processes; else a line says how many there are.
std::string help_text(const CommandPage& page, std::size_t width, bool all);

/// "fp8 quantize MODEL -o OUT (--preset NAME | --dynamic) [OPTION]...", with what is required and what is to choose.
std::string usage_line(const CommandPage& page);

/// A word and what it means, "  word   meaning", which goes on below itself; a newline at the end.
std::string definition(const std::string& word, const std::string& meaning, std::size_t width);

struct ExitCode {
  const char* code;  ///< "130, 143"
  const char* meaning;
};
/// What the program's exit codes mean, in the order of the codes.
inline constexpr ExitCode kExitCodes[] = {
    {"0", "All was done."},
    {"1", "A failure: one line on standard error says which."},
    {"2", "The command line cannot mean anything."},
    {"130, 143", "Interrupted (Ctrl-C), or ended by SIGTERM; nothing half-written is left behind."},
};

/// "fp8 measurements merge".
std::string full_name(const CommandPage& page);

// Manual pages of section 1, in the language of man(7).

/// "fp8-measurements-merge": the name of the page; its file is this and ".1".
std::string man_name(const CommandPage& page);

/// roff of one page; the program's own has the table of commands. version: "0.1.0".
std::string man_page(const CommandPage& page, const std::string& version);

// Completion of fp8's command lines: scripts for shells, with all commands, options and choices in them.

enum class Shell : std::uint8_t { bash, zsh, fish };
FP8_ENUM_NAMES(Shell, {bash, "bash"}, {zsh, "zsh"}, {fish, "fish"});
using fp8::name_of;

/// A script to source, or to put where the shell looks (share/bash-completion/completions/fp8,
/// share/zsh/site-functions/_fp8, share/fish/vendor_completions.d/fp8.fish). program: the page of fp8 with
/// its commands.
std::string completion_script(const CommandPage& program, Shell shell);

}  // namespace fp8::commands
