// SPDX-License-Identifier: Apache-2.0

#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/commands/terminal/page.h"

namespace fp8::commands {
namespace {

/// Those that take options: not the groups.
std::vector<const CommandPage*> leaves(const CommandPage& program) {
  std::vector<const CommandPage*> all;
  for (const CommandPage& page : program.children) {
    if (page.children.empty()) all.push_back(&page);
    for (const CommandPage& child : page.children) all.push_back(&child);
  }
  return all;
}

std::string last_word(const std::string& name) { return name.substr(name.rfind(' ') + 1); }

std::string names_of_children(const CommandPage& page) {
  return io::joined(page.children | std::views::transform([](const auto& child) { return last_word(child.name); }),
                    " ");
}

/// Returns the text that a list shows beside a word: the help up to its first "; " or ". ".
std::string brief(const std::string& help) {
  constexpr std::size_t kMost = 80;
  std::string text = help.substr(0, std::min(help.find("; "), help.find(". ")));
  if (text.size() <= kMost) return text;
  text.erase(text.rfind(' ', kMost));
  return text + " ...";
}

// --- bash

std::string bash_values(const OptionRow& option) {
  if (!option.words.empty()) return "words=" + io::shell_word(io::joined(option.words, " "));
  return option.value == Value::file || option.value == Value::text ? "files=1" : ":";
}

/// The arms of `case "$command $option" in`, and of `case $command in`.
void bash_arms(const CommandPage& page, std::string& of_options, std::string& of_commands) {
  std::string names, positional = ":";
  for (const OptionRow& option : page.options) {
    if (option.positional) {
      if (positional == ":" || option.words.empty())
        positional = positional == ":" ? bash_values(option) : positional + "; files=1";
      continue;
    }
    names += (names.empty() ? "" : " ") + io::joined(option.names, " ");
    if (option.value == Value::none) continue;
    const auto patterns =
        option.names | std::views::transform([&](const auto& name) { return io::shell_word(page.name + " " + name); });
    of_options += "    " + io::joined(patterns, "|") + ") " + bash_values(option) + " ;;\n";
  }
  of_commands +=
      "    " + io::shell_word(page.name) + ") options=" + io::shell_word(names) + "; " + positional + " ;;\n";
}

std::string bash_script(const CommandPage& program) {
  std::string of_options, of_commands, groups;
  for (const CommandPage* page : leaves(program)) bash_arms(*page, of_options, of_commands);
  for (const CommandPage& page : program.children)
    if (!page.children.empty())
      groups += "    " + page.name +
                ") [ \"$COMP_CWORD\" -eq 2 ] && words=" + io::shell_word(names_of_children(page) + " --help") +
                "; command+=\" ${COMP_WORDS[2]-}\" ;;\n";
  return io::message(
      "# bash completion for fp8, made by: fp8 completion bash\n_fp8() {\n  local cur=${COMP_WORDS[COMP_CWORD]} "
      "prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]-}\n  local words='' options='' files='' value=''\n  "
      "COMPREPLY=()\n  # --option=value is three words to bash\n  if [ \"$cur\" = = ]; then cur=''; elif [ \"$prev\" = "
      "= ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen "
      "-W {} -- \"$cur\"))\n    return\n  fi\n  case $command in\n{}  esac\n  if [ -z \"$words\" ]; then\n  value=1\n  "
      "case \"$command $prev\" in\n{}    *) value='' ;;\n  esac\n  if [ -z \"$value\" ]; then\n  case $command in\n{}  "
      "esac\n  if [[ $cur == -* ]]; then words=$options files=''; fi\n  fi\n  fi\n  [ -z \"$words\" ] || "
      "COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n  [ -z \"$files\" ] || { compopt -o filenames 2>/dev/null; "
      "local IFS=$'\\n'; COMPREPLY+=($(compgen -f -- \"$cur\")); }\n}\ncomplete -F _fp8 fp8\n",
      io::shell_word(names_of_children(program) + " --help --version"), groups, of_options, of_commands);
}

// --- zsh

/// Of _arguments: brackets and colons mean something there.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const OptionRow& option) {
  if (!option.words.empty()) return "(" + io::joined(option.words, " ") + ")";
  return option.value == Value::file || option.value == Value::text ? "_files" : " ";
}

std::string zsh_row(const OptionRow& option) {
  const std::string value = option.value == Value::none ? ""
                                                        : ":" + zsh_text(option.words.empty() ? option.type : "word") +
                                                              ":" + zsh_action(option);
  if (option.positional)
    return io::shell_word((option.repeated   ? "*:"
                           : option.required ? ":"
                                             : "::") +
                          zsh_text(option.long_name()) + ":" + zsh_action(option));
  std::string row;
  for (const auto& name : option.names) {
    const std::string others = option.repeated ? "*" : "(" + io::joined(option.names, " ") + ")";
    row += (row.empty() ? "" : " ") + io::shell_word(others + name + (value.empty() ? "" : "=") + "[" +
                                                     zsh_text(brief(option.help)) + "]" + value);
  }
  return row;
}

std::string zsh_list(const CommandPage& page) {
  std::string rows = "    local -a list=(\n";
  for (const CommandPage& child : page.children)
    rows += "      " + io::shell_word(zsh_text(last_word(child.name)) + ":" + brief(child.summary)) + "\n";
  return rows + "    )\n    _describe -t commands command list\n";
}

std::string zsh_script(const CommandPage& program) {
  std::string arms;
  for (const CommandPage& page : program.children)
    if (!page.children.empty())
      arms += "  if [[ $words[2] == " + page.name + " ]] && (( CURRENT == 3 )); then\n" + zsh_list(page) +
              "    return\n  fi\n";
  arms += "  local name=$words[2] used=2\n";
  for (const CommandPage& page : program.children)
    if (!page.children.empty()) arms += "  [[ $name == " + page.name + " ]] && name+=\" $words[3]\" used=3\n";
  arms += "  words=(fp8 \"${(@)words[used+1,-1]}\")\n  (( CURRENT -= used - 1 ))\n  case $name in\n";
  for (const CommandPage* page : leaves(program)) {
    arms += "    " + io::shell_word(page->name) + ")\n      _arguments";
    for (const OptionRow& option : page->options) arms += " \\\n        " + zsh_row(option);
    arms += " ;;\n";
  }
  return io::message(
      "#compdef fp8\n# zsh completion for fp8, made by: fp8 completion zsh\n_fp8() {\n  if (( CURRENT == 2 )); "
      "then\n{}    return\n  fi\n{}  esac\n}\nif [[ $funcstack[1] == _fp8 ]]; then _fp8 \"$@\"; else compdef _fp8 fp8; "
      "fi\n",
      zsh_list(program), arms);
}

// --- fish

/// Inside of single quotes fish reads \\ and \'.
std::string fish_quoted(const std::string& text) {
  std::string escaped;
  for (const char c : text) c == '\\' ? escaped += "\\\\" : escaped += c;
  return io::shell_word(escaped, "\\'");
}

std::string fish_row(const std::string& condition, const OptionRow& option) {
  std::string row = "complete -c fp8 -n " + fish_quoted(condition);
  if (option.positional) {
    if (!option.words.empty()) return row + " -f -a " + fish_quoted(io::joined(option.words, " ")) + "\n";
    return row + " -F\n";
  }
  for (const auto& name : option.names)
    row += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  if (!option.words.empty())
    row += " -x -a " + fish_quoted(io::joined(option.words, " "));
  else if (option.value == Value::file || option.value == Value::text)
    row += " -r -F";
  else if (option.value == Value::word)
    row += " -x";
  return row + " -d " + fish_quoted(brief(option.help)) + "\n";
}

std::string fish_script(const CommandPage& program) {
  std::string text =
      "# fish completion for fp8, made by: fp8 completion fish\n"
      "function __fp8_at --description 'The command line begins with: fp8 ARGUMENTS'\n"
      "    set -l words (commandline -opc)\n"
      "    set -l last (math (count $argv) + 1)\n"
      "    test (count $words) -ge $last; and test \"$words[2..$last]\" = \"$argv\"\n"
      "end\n"
      "function __fp8_in --description 'The words so far are: fp8 ARGUMENTS'\n"
      "    set -l words (commandline -opc)\n"
      "    test (count $words) -eq (math (count $argv) + 1); and test \"$words[2..-1]\" = \"$argv\"\n"
      "end\n"
      "complete -c fp8 -f\n";
  const auto commands = [&](const std::string& condition, const CommandPage& page) {
    for (const CommandPage& child : page.children)
      text += "complete -c fp8 -n " + fish_quoted(condition) + " -a " + last_word(child.name) + " -d " +
              fish_quoted(brief(child.summary)) + "\n";
  };
  commands("test (count (commandline -opc)) -eq 1", program);
  for (const CommandPage& page : program.children)
    if (!page.children.empty()) commands("__fp8_in " + page.name, page);
  for (const CommandPage* page : leaves(program))
    for (const OptionRow& option : page->options) text += fish_row("__fp8_at " + page->name, option);
  return text;
}

}  // namespace

std::string completion_script(const CommandPage& program, Shell shell) {
  if (shell == Shell::bash) return bash_script(program);
  return shell == Shell::zsh ? zsh_script(program) : fish_script(program);
}

}  // namespace fp8::commands
