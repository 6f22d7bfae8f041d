// SPDX-License-Identifier: Apache-2.0
// The table of commands, and their pages.
#include "fp8/tools/commands/cli/command.h"

#include <system_error>

#include "fp8/quant/forms/model_source.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/terminal/message.h"
#include "fp8/version.h"

namespace fp8::commands {

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"measure", "Run a model on calibration data and write the amax of its tensors",
       "fp8 measure model -d calibration.txt -o stats -n 128", add_measure},
      {"quantize", "Write an fp8 checkpoint",
       "fp8 quantize model -o model-fp8 --preset FP8_DYNAMIC\n"
       "fp8 quantize model -o model-fp8 --preset FP8_BLOCK\n"
       "fp8 quantize model -o model-fp8 --preset FP8_WEIGHT_ONLY\n"
       "fp8 quantize model -o model-fp8 --preset FP8_STATIC --measurements stats\n"
       "fp8 quantize model -o model-fp8 --preset FP8_KV --measurements stats",
       add_quantize},
      {"convert", "Write an fp8 checkpoint in another form, or back in high precision",
       "fp8 convert model-fp8 --format bf16 -o model-bf16 --verify", add_convert},
      {"evaluate", "Perplexity of a model on a text, and its distance from a reference model",
       "fp8 evaluate model-fp8 -d text.txt --reference model", add_evaluate, Ranks::share_unless_measures},
      {"generate", "Continue a prompt", "fp8 generate model --prompt \"In the beginning\" --tokens 100", add_generate,
       Ranks::first_unless_measures},
      {"embed", "One vector of each text, as sentence encoders give it",
       "fp8 embed model -d texts.jsonl -o vectors.safetensors", add_embed, Ranks::first_unless_measures},
      {"train", "Train a model on a text, from drawn weights or from a checkpoint, in fp8 or in higher precision",
       "fp8 train --init config.json -d text.txt -o run --precision fp8\n"
       "fp8 train model -d text.txt -o run --eval heldout.txt",
       add_train},
      {"run", "Run a TorchScript model on sound or tensors, in high precision or with measured modules in fp8",
       "fp8 run model.jit -d sound.wav -o result.safetensors --measurements stats", add_run, Ranks::first},
      {"inspect", "Table of a checkpoint, a measurement or a scale file", "fp8 inspect model-fp8", add_inspect,
       Ranks::first},
      {"config", "What a config means, or what is wrong with it: QUANT_CONFIG, recipe, DeepSpeed, Optimum",
       "fp8 config explain quant.json --model model", add_config},
      {"measurements", "Merge, unify, expand, compare and show measurement and scale files",
       "fp8 measurements diff stats-old stats-new", nullptr, Ranks::first, measurements_commands()},
      {"doctor", "What this machine, this build and the environment add up to", "fp8 doctor", add_doctor},
      {"completion", "A script that completes command lines in bash, zsh or fish", "source <(fp8 completion bash)",
       add_completion, Ranks::first},
      {"man", "Manual pages", "fp8 man quantize | man -l -", add_man, Ranks::first},
  };
  return table;
}

Parser::Parser(const Command& command, const std::string& name, Context& context)
    : app_(command.summary, command.name), options_(app_, name) {
  app_.allow_extras();
  app_.set_help_flag("-h,--help", "The common options, with an example");
  app_.set_help_all_flag("--help-all", "Every option");
  app_.set_version_flag("-V,--version", "fp8 " FP8_VERSION, "The version");
  action_ = command.add(options_);
  options_.common(context);
}

std::string shown_command(const std::string& command, const Options& options) {
  std::string text = "fp8 " + command;
  for (const auto& [option, values] : options.given()) {
    const bool flag = values.size() == 1 && values[0] == "true";
    if (option == "--html") continue;
    if (option != "--model") text += " " + option;
    for (const auto& value : flag ? std::vector<std::string>() : values)
      text += " " + (value.find('/') == std::string::npos ? value : quant::model_name(value));
  }
  return text;
}

CommandPage page_of(const Command& command, const std::string& group) {
  CommandPage page{group.empty() ? command.name : group + " " + command.name, command.summary, command.example};
  if (command.add == nullptr) {
    for (const Command& child : command.children) page.children.push_back(page_of(child, command.name));
    return page;
  }
  Context context;
  const Parser parser(command, page.name, context);
  page.options = parser.options().rows();
  page.alternatives = parser.options().alternatives();
  return page;
}

CommandPage page_of_program() {
  CommandPage page{"", "Measure, quantize and run models in 8-bit floating point.",
                   "fp8 quantize DIR -o DIR-fp8 --preset FP8_DYNAMIC"};
  OptionRow which{.names = {"COMMAND"},
                  .type = "TEXT",
                  .help = "A command, a group and one of it, or a topic",
                  .value = Value::word,
                  .repeated = true,
                  .positional = true};
  for (const Command& command : commands()) {
    page.children.push_back(page_of(command, ""));
    which.words.emplace_back(command.name);
  }
  for (const Topic& topic : topics()) {
    page.topics.emplace_back(topic.name, topic.summary);
    which.words.emplace_back(topic.name);
  }
  page.children.push_back({"help",
                           "What a command does: its usual options and an example; or a topic",
                           "fp8 help quantize --help-all\nfp8 help presets",
                           {which, {.names = {"--help-all"}, .help = "Every option"}}});
  return page;
}

// fp8 completion and fp8 man: what is made of the pages of all commands.

namespace {

namespace fs = std::filesystem;

struct ManOptions {
  std::string command, subcommand;
  fs::path out;
  bool overwrite = false;
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
  const auto file_of = [&](const CommandPage& page) { return o.out / (man_name(page) + ".1"); };
  const std::vector<CommandPage> pages = all_pages();
  for (const CommandPage& page : pages) refuse_existing(file_of(page), o.overwrite);
  fs::create_directories(o.out, error);
  if (error) io::fail(o.out, "can't be made: {}", error.message());
  for (const CommandPage& page : pages) {
    const fs::path file = file_of(page);
    write_output_file(file, man_page(page, FP8_VERSION));
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
  io::fail<UsageError>("man: unknown command '{}'{}", name, did_you_mean(name, names));
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
  options.path("--out", values->out, io::Reach::folder,
               "Folder to write the pages of all commands to, as share/man/man1");
  options.flag("--overwrite", values->overwrite, kOverwriteHelp);
  return [values](Context& context) {
    if (values->out.empty()) return print_man_page(*values, context);
    if (!values->command.empty()) io::fail<UsageError>("man: --out writes all pages, found '{}'", values->command);
    write_man_pages(*values, context);
  };
}

}  // namespace fp8::commands
