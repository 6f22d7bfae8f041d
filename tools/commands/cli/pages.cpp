// SPDX-License-Identifier: Apache-2.0
// fp8 completion and fp8 man: what is made of the pages of all commands.
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/terminal/completion.h"
#include "fp8/tools/commands/terminal/man_page.h"
#include "fp8/tools/commands/terminal/spelling.h"
#include "fp8/version.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

struct ManOptions {
  std::string command, subcommand;
  fs::path out;
};

/// The program's, those of its commands, and those of a group.
std::vector<CommandPage> all_pages() {
  const CommandPage program = page_of_program();
  std::vector<CommandPage> pages = {program};
  for (const CommandPage& page : program.children) {
    pages.push_back(page);
    pages.insert(pages.end(), page.children.begin(), page.children.end());
  }
  return pages;
}

void write_man_pages(const ManOptions& o, Context& context) {
  io::Json files = io::Json::array();
  std::string text;
  std::error_code error;
  fs::create_directories(o.out, error);
  if (error) io::fail(o.out, "can't be made: " + error.message());
  for (const CommandPage& page : all_pages()) {
    const fs::path file = o.out / (man_name(page) + ".1");
    io::AtomicFile written(file);
    written.append(man_page(page, FP8_VERSION));
    written.commit();
    files.push_back(file.string());
    text += file.string() + ": written\n";
  }
  context.result({{"files", files}}, text);
}

void print_man_page(const ManOptions& o, Context& context) {
  const std::string name = o.command + (o.subcommand.empty() ? "" : " " + o.subcommand);
  std::vector<std::string> names;
  for (const CommandPage& page : all_pages()) {
    if (page.name == name) {
      const std::string text = man_page(page, FP8_VERSION);
      return context.result({{"name", man_name(page)}, {"text", text}}, text);
    }
    if (!page.name.empty()) names.push_back(page.name);
  }
  throw UsageError("man: unknown command '" + name + "'" + did_you_mean(name, names));
}

}  // namespace

Action add_completion(Options& options) {
  auto shell = std::make_shared<Shell>();
  options.choice<Shell>("SHELL", *shell,
                        "bash: source <(fp8 completion bash) in ~/.bashrc; zsh: the same in ~/.zshrc, after compinit; "
                        "fish: fp8 completion fish > ~/.config/fish/completions/fp8.fish");
  options.require("SHELL");
  return [shell](Context& context) {
    const std::string script = completion_script(page_of_program(), *shell);
    context.result({{"shell", name_of(*shell)}, {"script", script}}, script);
  };
}

Action add_man(Options& options) {
  auto values = std::make_shared<ManOptions>();
  options.text("COMMAND", values->command, "Whose page is printed, as roff; without it that of the program");
  options.text("SUBCOMMAND", values->subcommand, "Of a group of commands: merge of measurements");
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  options.offer("COMMAND", std::move(names));
  options.path("--out", values->out, "Folder to write the pages of all commands to, as share/man/man1");
  return [values](Context& context) {
    if (values->out.empty()) return print_man_page(*values, context);
    if (!values->command.empty()) throw UsageError("man: --out writes all pages, found '" + values->command + "'");
    write_man_pages(*values, context);
  };
}

}  // namespace fp8::commands
