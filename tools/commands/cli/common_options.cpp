// SPDX-License-Identifier: Apache-2.0
#include <iterator>
#include <system_error>

#include "fp8/tools/commands/cli/options.h"
#include "fp8/tools/commands/terminal/message.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kMaxThreads = 1024;

/// The common options that only some commands read, as bits.
enum Reads : unsigned { kNothing = 0, kReadsModel = 1, kReadsDtype = 2, kReadsDialect = 4 };

struct CommonReader {
  const char* command;
  unsigned always;
  std::vector<const char*> with = {};  ///< options of its own
  unsigned beside = kNothing;          ///< read only beside one of those
};

// Commands that load a model read the options that a model needs.
const CommonReader kReaders[] = {{"measure", kReadsModel | kReadsDtype},
                                 {"evaluate", kReadsModel | kReadsDtype | kReadsDialect},
                                 {"generate", kReadsModel | kReadsDtype | kReadsDialect},
                                 {"embed", kReadsModel | kReadsDtype | kReadsDialect},
                                 {"train", kReadsModel | kReadsDialect},
                                 {"run", kReadsModel | kReadsDtype | kReadsDialect},
                                 {"quantize", kReadsDialect, {"--budget", "--data"}, kReadsModel | kReadsDtype},
                                 {"convert", kReadsDialect},
                                 {"inspect", kReadsDialect, {"--data"}, kReadsModel | kReadsDtype},
                                 {"config", kReadsDialect},
                                 {"doctor", kReadsModel}};

struct CommonOption {
  const char* name;
  unsigned reads;  ///< kNothing: what it promises holds for every command
};
constexpr CommonOption kCommon[] = {{"--json", kNothing},     {"--device", kReadsModel}, {"--dialect", kReadsDialect},
                                    {"--dtype", kReadsDtype}, {"--threads", kNothing},   {"--seed", kNothing},
                                    {"--load", kReadsModel},  {"--quiet", kNothing},     {"--verbose", kNothing},
                                    {"--color", kNothing},    {"--no-sandbox", kNothing}};

const CommonReader* reader_of(const CommonOption& option, const std::string& command) {
  for (const CommonReader& reader : kReaders)
    if (command == reader.command && ((reader.always | reader.beside) & option.reads) != 0) return &reader;
  return nullptr;
}

std::string names_of_readers(const CommonOption& option) {
  std::vector<std::string> names;
  for (const CommonReader& reader : kReaders) {
    if ((reader.always & option.reads) != 0)
      names.emplace_back(reader.command);
    else if ((reader.beside & option.reads) != 0)
      names.push_back(io::message("{} {}", reader.command, io::joined(reader.with, " or ")));
  }
  return io::joined(names);
}

}  // namespace

void refuse_unread(const CLI::App& app) {
  for (const CommonOption& common : kCommon) {
    const CLI::Option* option = app.get_option_no_throw(common.name);
    if (common.reads == kNothing || option == nullptr || option->count() == 0) continue;
    if (app.get_name() == "train" && common.reads == kReadsDtype)
      throw UsageError("--dtype: weights are f32 in training, allowed: --precision and --save-dtype");
    const CommonReader* reader = reader_of(common, app.get_name());
    const bool reads =
        reader != nullptr && ((reader->always & common.reads) != 0 ||
                              std::ranges::any_of(reader->with, [&](const char* own) { return app.count(own) > 0; }));
    if (!reads)
      io::fail<UsageError>("{}: {} has no effect here, it goes with: {}", app.get_name(), common.name,
                           names_of_readers(common));
  }
}

void refuse_own_input(const CLI::App& app) {
  constexpr std::string_view kInto[] = {"measure", "train"};  // files beside the model's, a run that goes on
  const CLI::Option* out = app.get_option_no_throw("--out");
  if (out == nullptr || out->count() == 0) return;
  const bool into = std::ranges::find(kInto, app.get_name()) != std::end(kInto);
  for (const auto& [name, shown] : {std::pair{"--data", "--data"}, {"--model", "MODEL"}}) {
    const CLI::Option* input = app.get_option_no_throw(name);
    if (input == nullptr || (into && input->check_name("--model"))) continue;
    std::error_code ignored;
    for (const std::string& file : input->results())
      if (std::filesystem::equivalent(file, out->results()[0], ignored))
        io::fail<UsageError>("{}: --out: found '{}', which is {}, allowed: another path", app.get_name(),
                             out->results()[0], shown);
  }
}

void Options::common(Context& context) {
  constexpr auto kMaxSeed = std::numeric_limits<std::int64_t>::max();
  flag("--json", context.json, "Print one JSON object on stdout; messages go to stderr");
  const bool loads_none = app_.get_name() == "doctor";
  choice(
      "--device", {"hpu", "cpu"}, [&](std::size_t i) { context.device = i == 0 ? "hpu" : "cpu"; },
      loads_none ? "Which dtypes each generation of the device takes"
                 : "hpu: as the accelerator computes, emulated on this CPU (default); cpu: plain LibTorch");
  if (loads_none) app_.get_option("--device")->expected(0, 1)->type_name("[hpu]")->default_str("hpu");
  choice<kernels::Dialect>("--dialect", context.dialect,
                           "Reading of the fp8 formats: of what is written, and of a checkpoint without fp8.json");
  choice<kernels::FloatType>("--dtype", context.dtype, "Compute dtype (default the checkpoint's)");
  add(
      "--threads", "N",
      [&](const std::string& text) {
        const auto value = parse_integer(text);
        if (!value || *value < 1 || *value > kMaxThreads)
          bad_value("--threads", text, "an integer from 1 to " + std::to_string(kMaxThreads));
        context.threads = *value;
      },
      "Threads of the whole program (default all CPUs)");
  add(
      "--seed", "N",
      [&](const std::string& text) {
        const auto value = parse_integer(text);
        if (!value || *value < 0) bad_value("--seed", text, "an integer from 0 to " + std::to_string(kMaxSeed));
        context.seed = static_cast<std::uint64_t>(*value);
      },
      "Seed of everything random")
      ->default_str("0");
  list("--load", context.load, "A library of operators to load (fp8_add_extension), several times if wanted");
  reach("--load", io::Reach::code);
  flag("--quiet", context.quiet, "No warnings, no progress bar");
  flag("--verbose", context.verbose, "Nothing is folded: all modules, all problems");
  choice(
      "--color", {"auto", "always", "never"}, [](std::size_t i) { set_color_mode(static_cast<ColorMode>(i)); },
      "Colours of warnings, errors and bars (default auto: on a terminal; NO_COLOR is heeded)");
  flag("--no-sandbox", context.no_sandbox,
       "Keep what no command needs: other programs, the network, files that were not named");
  for (const CommonOption& common : kCommon) {  // taken, so that check() can name its readers, but not offered
    if (common.reads != kNothing && reader_of(common, app_.get_name()) == nullptr)
      app_.get_option(common.name)->group(kHidden);
  }
}

}  // namespace fp8::commands
