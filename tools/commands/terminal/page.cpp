// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/page.h"

#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/commands/terminal/message.h"

namespace fp8::commands {
namespace {

constexpr std::size_t kColumn = 27;         ///< at which the description of an option begins
constexpr std::size_t kCommandColumn = 16;  ///< at which the description of a command begins

/// "-u, --experts N"; a choice whose words would fill a line has them in `more`.
struct Label {
  std::string text, more;
};

Label label_of(const OptionRow& option, std::size_t width) {
  Label label{io::joined(option.names, ", "), ""};
  if (option.type.empty()) return label;
  const bool is_choice = !option.words.empty() && option.type == io::joined(option.words, "|");
  if (option.positional) return {label.text, is_choice ? "one of " + io::joined(option.words) : ""};
  const bool fits = 2 + columns_of(label.text) + 1 + columns_of(option.type) <= std::min<std::size_t>(width, 80);
  label.text += " " + (fits || !is_choice ? option.type : "WORD");
  if (option.repeated) label.text += "...";
  if (!fits && is_choice) label.more = "one of " + io::joined(option.words);
  return label;
}

/// Returns the option's help, then its words, and its default unless the option is required.
std::string sentence_of(const OptionRow& option, const std::string& words) {
  std::string text = option.help;
  if (!words.empty()) text += "; " + words;
  if (!option.fallback.empty() && !option.required) text += " (default " + option.fallback + ")";
  return text;
}

std::string row(const std::string& label, const std::string& sentence, std::size_t width, std::size_t column) {
  std::string text = "  " + label;
  if (width < 60) column = 8;
  if (columns_of(text) + 2 > column)
    text += "\n" + std::string(column, ' ');
  else
    text.append(column - columns_of(text), ' ');
  return text + wrapped(sentence, width, column, column) + "\n";
}

std::string section(const char* heading, const CommandPage& page, Shelf shelf, bool positional, std::size_t width) {
  std::string text;
  for (const OptionRow& option : page.options) {
    if (option.shelf != shelf || option.positional != positional) continue;
    const Label label = label_of(option, width);
    text += row(label.text, sentence_of(option, label.more), width, kColumn);
  }
  return text.empty() ? "" : "\n" + std::string(heading) + ":\n" + text;
}

/// A command line to copy: broken before options alone, as shells take it.
std::string command_line(std::string_view line, std::size_t width) {
  std::string text = "  ";
  std::size_t column = 2;
  for (bool first = true; !line.empty(); first = false) {
    const auto end = std::min(line.find(" -", 1), line.size());
    const std::string_view part = line.substr(0, end);
    line.remove_prefix(end);
    const std::size_t rest = line.empty() ? 0 : 2;  // the backslash
    if (!first && column + columns_of(part) + rest > width) {
      text += " \\\n     ";
      column = 5;
    }
    text += part;
    column += columns_of(part);
  }
  return text + "\n";
}

/// "fp8 train --help-all shows 60 options more".
std::string pointer_to_rest(const CommandPage& page) {
  const auto hidden = std::ranges::count_if(page.options, [](const auto& o) { return o.shelf != Shelf::common; });
  if (hidden == 0) return "";
  return io::message("{} --help-all shows {}{} more.", full_name(page), hidden, hidden == 1 ? " option" : " options");
}

/// " NAME"; "" of a flag.
std::string value_of(const OptionRow& option) {
  if (option.type.empty()) return "";
  return " " + (option.words.empty() ? option.type : "NAME");
}

std::string examples_of(const CommandPage& page, std::size_t width) {
  std::string text;
  for (const auto line : std::views::split(std::string_view(page.example), '\n'))
    text += command_line(std::string_view(line.begin(), line.end()), width);
  const bool several = page.example.find('\n') != std::string::npos;
  return text.empty() ? "" : (several ? "\nExamples:\n" : "\nExample:\n") + text;
}

/// Returns the heading of a section.
const char* heading_of(Shelf shelf) {
  return shelf == Shelf::common ? "Options" : shelf == Shelf::advanced ? "Advanced options" : "Several processes";
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent, std::size_t start) {
  std::string lines;
  std::size_t column = start;
  bool first = true;
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t columns = columns_of(word);
    if (!first && column + 1 + columns > width) {
      lines += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += columns;
    first = false;
  }
  return lines;
}

std::string full_name(const CommandPage& page) { return page.name.empty() ? "fp8" : "fp8 " + page.name; }

std::string usage_line(const CommandPage& page) {
  std::string text = full_name(page);
  if (!page.children.empty()) return text + " COMMAND [OPTION]...";
  for (const OptionRow& option : page.options) {
    if (option.positional)
      text += " " + (option.required ? option.long_name() : "[" + option.long_name() + "]") +
              (option.repeated ? "..." : "");
    else if (option.required)
      text += " " + option.names.front() + value_of(option);
  }
  for (const auto& names : page.alternatives) {
    std::string choice;
    for (const OptionRow& option : page.options)
      if (std::ranges::find(names, option.long_name()) != names.end())
        choice += (choice.empty() ? "" : " | ") + option.long_name() + value_of(option);
    text += " (" + choice + ")";
  }
  return text + " [OPTION]...";
}

std::string help_text(const CommandPage& page, std::size_t width, bool all) {
  constexpr std::size_t kReadable = 120;  // longer lines are not read more easily
  width = std::min(width, kReadable);
  std::string text = wrapped(page.summary, width, 0) + "\n\nUsage: " + wrapped(usage_line(page), width, 9, 7) + "\n";
  std::string commands;
  for (const CommandPage& child : page.children) {
    const auto space = child.name.rfind(' ');
    commands += row(space == std::string::npos ? child.name : child.name.substr(space + 1), child.summary, width,
                    kCommandColumn);
  }
  if (!commands.empty()) text += "\nCommands:\n" + commands;
  if (!page.topics.empty()) text += "\nTopics (fp8 help TOPIC):\n";
  for (const auto& [name, summary] : page.topics) text += row(name, summary, width, kCommandColumn);
  text += section("Arguments", page, Shelf::common, true, width);
  for (const Shelf shelf : {Shelf::common, Shelf::advanced, Shelf::processes})
    if (all || shelf == Shelf::common) text += section(heading_of(shelf), page, shelf, false, width);
  text += examples_of(page, width);
  const std::string rest =
      !page.children.empty()
          ? full_name(page) + " COMMAND --help shows a command with an example, --help-all every option."
      : all ? ""
            : pointer_to_rest(page);
  return rest.empty() ? text : text + "\n" + wrapped(rest, width, 0) + "\n";
}

namespace {

struct Escape {
  char character;
  const char* text;
};
constexpr Escape kEscapes[] = {{'\\', "\\e"},  {'-', "\\-"},   {'\'', "\\(aq"},
                               {'`', "\\(ga"}, {'^', "\\(ha"}, {'~', "\\(ti"}};

/// Text as roff prints it: hyphens that can be copied, no requests at the beginning of a line.
std::string roff(std::string_view text) {
  std::string out;
  if (text.starts_with('.') || text.starts_with('\'')) out += "\\&";
  for (const char c : text) {
    const auto* escape = std::ranges::find(kEscapes, c, &Escape::character);
    escape == std::end(kEscapes) ? out += c : out += escape->text;
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
  std::string text = ".TP\n" + io::joined(option.names | std::views::transform(option.positional ? italic : bold));
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

std::string exit_status() {
  std::string text = ".SH EXIT STATUS\n";
  for (const ExitCode& row : kExitCodes) text += ".TP\n" + roff(row.code) + "\n" + roff(row.meaning) + "\n";
  return text;
}

std::string example_lines(const CommandPage& page) {
  std::string text;
  for (const auto line : std::views::split(std::string_view(page.example), '\n'))
    text += roff(std::string_view(line.begin(), line.end())) + "\n";
  return text;
}

}  // namespace

std::string definition(const std::string& word, const std::string& meaning, std::size_t width) {
  return row(word, meaning, width, kColumn);
}

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
  text += exit_status();
  if (!page.example.empty()) text += ".SH EXAMPLE\n.EX\n" + example_lines(page) + ".EE\n";
  return text + see_also(page);
}

}  // namespace fp8::commands
