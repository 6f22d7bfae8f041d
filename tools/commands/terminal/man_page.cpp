// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/man_page.h"

#include <algorithm>
#include <string_view>

#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/commands/terminal/help_text.h"

namespace fp8::commands {
namespace {

/// Text as roff prints it: hyphens that can be copied, no requests at the beginning of a line.
std::string roff(std::string_view text) {
  std::string out;
  if (text.starts_with('.') || text.starts_with('\'')) out += "\\&";
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '\'')
      out += "\\(aq";
    else if (c == '`')
      out += "\\(ga";
    else if (c == '^')
      out += "\\(ha";
    else if (c == '~')
      out += "\\(ti";
    else
      out += c;
  }
  return out;
}

std::string bold(std::string_view text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + roff(text) + "\\fR"; }

std::string synopsis(const CommandPage& page) {
  const std::string line = usage_line(page), name = full_name(page);
  return bold(name) + roff(line.substr(name.size()));
}

std::string option_entry(const OptionRow& option) {
  std::string names;
  for (const auto& name : option.names)
    names += (names.empty() ? "" : ", ") + (option.positional ? italic(name) : bold(name));
  std::string text = ".TP\n" + names;
  constexpr std::size_t kLine = 60;
  const bool is_long = !option.words.empty() && option.type.size() > kLine;  // words that no line would hold
  if (option.value != Value::none && !option.positional)
    text += " " + italic(is_long ? "WORD" : option.type) + (option.repeated ? "..." : "");
  text += "\n" + roff(option.help);
  if (is_long) text += "\n(one of " + roff(io::joined(option.words)) + ")";
  if (option.required) text += "\n(required)";
  if (!option.fallback.empty() && !option.required) text += "\n(default " + roff(option.fallback) + ")";
  return text + "\n";
}

std::string man_section(const CommandPage& page, const std::string& heading, Shelf shelf, bool positional) {
  std::string text;
  for (const OptionRow& option : page.options)
    if (option.shelf == shelf && option.positional == positional) text += option_entry(option);
  return text.empty() ? "" : ".SH " + heading + "\n" + text;
}

std::string commands_section(const CommandPage& page) {
  std::string text = ".SH COMMANDS\n";
  for (const CommandPage& child : page.children)
    text += ".TP\n" + bold(full_name(child)) + "\n" + roff(child.summary) + "\n";
  return text;
}

std::string see_also(const CommandPage& page) {
  if (page.children.empty()) return ".SH SEE ALSO\n.BR fp8 (1)\n";
  std::string text = ".SH SEE ALSO\n";
  for (const CommandPage& child : page.children)
    text += ".BR " + roff(man_name(child)) + " (1)" + (&child != &page.children.back() ? ",\n" : "\n");
  return text;
}

constexpr const char* kExitStatus =
    ".SH EXIT STATUS\n"
    ".TP\n0\nAll was done.\n"
    ".TP\n1\nA failure: one line on standard error says which.\n"
    ".TP\n2\nThe command line cannot mean anything.\n"
    ".TP\n130, 143\nInterrupted (Ctrl\\-C), or ended by SIGTERM; nothing half\\-written is left behind.\n";

}  // namespace

std::string man_name(const CommandPage& page) {
  std::string name = full_name(page);
  std::ranges::replace(name, ' ', '-');
  return name;
}

std::string man_page(const CommandPage& page, const std::string& version) {
  std::string text = ".\\\" Made from the table of options by: fp8 man\n";
  text += ".TH " + roff(io::upper(man_name(page))) + " 1 \"\" \"fp8 " + version + "\" \"fp8 manual\"\n.nh\n.ad l\n";
  text += ".SH NAME\n" + roff(man_name(page)) + " \\- " + roff(page.summary) + "\n";
  text += ".SH SYNOPSIS\n" + synopsis(page) + "\n";
  if (!page.children.empty()) text += commands_section(page);
  text += man_section(page, "ARGUMENTS", Shelf::common, true);
  for (const Shelf shelf : {Shelf::common, Shelf::advanced, Shelf::processes})
    text += man_section(page, "\"" + io::upper(heading_of(shelf)) + "\"", shelf, false);
  text += kExitStatus;
  if (!page.example.empty()) text += ".SH EXAMPLE\n.EX\n" + roff(page.example) + "\n.EE\n";
  return text + see_also(page);
}

}  // namespace fp8::commands
