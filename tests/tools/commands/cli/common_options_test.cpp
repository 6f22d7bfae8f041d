// SPDX-License-Identifier: Apache-2.0
// Every command and every common option: the option does what it says, or is refused with the names of the commands
// where it would. What ran on the device, and in which dtype, is seen in the trace of FP8_TRACE.
#include <cstddef>
#include <functional>

#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string model() { return (test::demo_data() / "kjv-byte-1.7M").string(); }

/// The files that the commands below work on.
class CommonOptions : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TempDir;
    std::ofstream(*folder_ / "quant.json") << R"({"mode": "QUANTIZE", "device_for_scales": "GAUDI3"})";
    ASSERT_EQ(run_fp8("measure --model $DEMO --data $HELDOUT --samples 1 --out {}", at("stats")).code, 0);
    ASSERT_EQ(run_fp8("measurements expand {} --world-size 2 --out {}", at("stats"), at("ranks")).code, 0);
    ASSERT_EQ(run_fp8("quantize --model $DEMO --dynamic --out {}", at("fp8")).code, 0);
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string at(const std::string& name) { return (*folder_ / name).string(); }

  /// One thread; into a new folder each time, "OUT" among the arguments.
  static test::Run run(Words arguments, const Words& more, bool traced = false) {
    static int runs = 0;
    last_out_ = at("out" + std::to_string(runs++));
    for (std::string& word : arguments)
      if (word == "OUT") word = last_out_;
    test::RunOptions options;
    options.environment["FP8_TRACE"] = traced ? "1" : "0";
    return run_fp8(args("{} --threads 1 {}", std::move(arguments), more), options);
  }

  static test::TempDir* folder_;
  static std::string last_out_;
};
test::TempDir* CommonOptions::folder_ = nullptr;
std::string CommonOptions::last_out_;

const Words kData = args("--data $HELDOUT --samples 1 --seq-len 16");

/// A command and its use of --device, --dialect, --dtype and --load.
struct Case {
  Words command;
  bool model = false;    ///< loads one: takes --device, --load, and --dtype unless it trains
  bool dialect = false;  ///< takes --dialect
};

std::vector<Case> cases(const std::function<std::string(const std::string&)>& at) {
  return {
      {args("measure --model $DEMO --out OUT {}", kData), true, false},
      {args("evaluate --model $DEMO {}", kData), true, true},
      {args("generate --model $DEMO --prompt And --tokens 2 --temperature 2"), true, true},
      {args("embed --model $DEMO --data $HELDOUT --out OUT"), true, true},
      {args("train --init $DEMO --data $HELDOUT --out OUT --steps 1 --batch 1 --seq-len 16 --precision 32-true"), true,
       true},
      {args("quantize --model $DEMO --dynamic --budget kl=1 --dry-run --out OUT {}", kData), true, true},
      {args("quantize --model $DEMO --dynamic --out OUT"), false, true},
      {args("convert --model {} --to fp8 --scheme tensor --out OUT", at("fp8")), false, true},
      {args("inspect {} {}", model(), kData), true, true},
      {{"inspect", model()}, false, true},
      {{"inspect", at("stats")}, false, false},
      {args("config explain {}", at("quant.json")), false, true},
      {args("measurements merge {} {} --out OUT", at("stats"), at("stats"))},
      {args("measurements unify {} --out OUT", at("ranks"))},
      {args("measurements expand {} --world-size 2 --out OUT", at("stats"))},
      {args("measurements postprocess {} --out OUT", at("stats"))},
      {args("measurements diff {} {}", at("stats"), at("stats"))},
      {args("measurements show {}", at("stats"))},
  };
}

std::string named(const Words& command) { return command[0] == "measurements" ? command[1] : command[0]; }

void expect_refused(const test::Run& run, const std::string& part) { test::expect_refused(run, {part}, 2); }

/// "aten::mm [16, 192] Float [192, 256] Float": how often a word is in it.
std::ptrdiff_t count(const std::string& trace, const std::string& word) {
  std::ptrdiff_t found = 0;
  for (auto at = trace.find(word); at != std::string::npos; at = trace.find(word, at + 1)) ++found;
  return found;
}

TEST_F(CommonOptions, LoadLoadsOrSaysWhichCommandsDo) {
  for (const Case& c : cases(&at)) {
    SCOPED_TRACE(::testing::PrintToString(c.command));
    const test::Run done = run(c.command, {"--load", "/no/such.so"});
    EXPECT_FALSE(fs::exists(last_out_));
    if (!c.model) {
      expect_refused(done, named(c.command) +
                               ": --load has no effect here, it goes with: measure, evaluate, generate, embed, train, "
                               "run, quantize --budget, inspect --data, doctor\n");
      continue;
    }
    expect_failed(done, {"fp8: error: --load: found '/no/such.so', which can't be loaded"});
  }
}

TEST_F(CommonOptions, DeviceIsWhereTheModelRuns) {
  for (const Case& c : cases(&at)) {
    SCOPED_TRACE(::testing::PrintToString(c.command));
    const std::string command = c.command[0];
    const test::Run done = run(c.command, {"--device", "cpu"}, true);
    if (!c.model) {
      expect_refused(done, named(c.command) + ": --device has no effect here, it goes with: measure, evaluate, ");
    } else if (command == "measure" || command == "quantize" || command == "inspect") {
      expect_refused(done, "--device: found 'cpu', ");
    } else {
      EXPECT_EQ(done.code, 0) << done.err;
      EXPECT_THAT(done.err, Not(HasSubstr("aten::mm")));
      EXPECT_THAT(run(c.command, {"--device", "hpu"}, true).err, HasSubstr("fp8 trace: aten::mm"));
    }
  }
}

TEST_F(CommonOptions, DtypeIsTheOneThatIsComputedIn) {
  for (const Case& c : cases(&at)) {
    SCOPED_TRACE(::testing::PrintToString(c.command));
    const test::Run done = run(c.command, {"--dtype", "f32"}, true);
    if (!c.model) {
      expect_refused(done, named(c.command) + ": --dtype has no effect here, it goes with: measure, evaluate, ");
    } else if (c.command[0] == "train") {
      expect_refused(done, "--dtype: weights are f32 in training, allowed: --precision and --save-dtype");
    } else {
      EXPECT_EQ(done.code, 0) << done.err;
      EXPECT_EQ(count(done.err, "BFloat16"), 0);
      EXPECT_GT(count(run(c.command, {"--dtype", "bf16"}, true).err, "BFloat16"), 10);
    }
  }
}

/// Of a checkpoint that was written, or of the report. The config's device_for_scales goes with one of the dialects.
std::string numbers_of(const Words& command, const test::Run& done, const std::string& out) {
  if (fs::exists(fs::path(out) / "model.safetensors")) return read_file(fs::path(out) / "model.safetensors");
  return command[0] == "config" ? done.out : io::parse_json(done.out, command[0])["modules"].dump();
}

TEST_F(CommonOptions, DialectChangesTheCodesOrIsRefused) {
  for (const Case& c : cases(&at)) {
    SCOPED_TRACE(::testing::PrintToString(c.command));
    const test::Run done = run(c.command, args("--dialect gaudi2 --json"));
    if (!c.dialect) {
      expect_refused(done, named(c.command) == "inspect" ? "inspect: --dialect goes with a checkpoint folder"
                                                         : ": --dialect has no effect here, it goes with: evaluate, ");
      continue;
    }
    EXPECT_EQ(done.code, 0) << done.err;
    // Commands that read checkpoints: checkpoint_rules_test. Training: train_settings_test.
    if (c.model && c.command[0] != "inspect") continue;
    const std::string gaudi2 = numbers_of(c.command, done, last_out_);
    const test::Run other = run(c.command, args("--dialect ocp --json"));
    EXPECT_NE(gaudi2, numbers_of(c.command, other, last_out_));
    EXPECT_NE(gaudi2, "null");
  }
  expect_refused(run(args("inspect $DEMO --tensors-only"), {"--dialect", "gaudi2"}), "--dialect goes with");
  expect_failed(run({"inspect", at("fp8")}, {"--dialect", "gaudi2"}),
                {"--dialect expect a high precision checkpoint, found an fp8 one"});
}

/// Whatever a command does, it draws from one generator, has a number of threads, prints and warns.
TEST_F(CommonOptions, PromisesThatHoldForEveryCommand) {
  for (const Case& c : cases(&at)) {
    SCOPED_TRACE(::testing::PrintToString(c.command));
    const test::Run done = run(c.command, args("--json --quiet --seed 5"));
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(done.err, "");
    EXPECT_TRUE(io::parse_json(done.out, "stdout").is_object());
    EXPECT_EQ(std::count(done.out.begin(), done.out.end(), '\n'), 1);
    const bool draws = c.command[0] == "generate" || c.command[0] == "train";
    if (!draws) continue;
    const auto drawn = [&](const char* seed) {
      const io::Json json = io::parse_json(run(c.command, args("--json --seed {}", seed)).out, "stdout");
      return json.contains("ids") ? json["ids"].dump() : json.dump();
    };
    EXPECT_NE(drawn("5"), drawn("6"));
  }
}

TEST_F(CommonOptions, HelpOffersWhatIsRead) {
  for (const Case& c : cases(&at)) {
    SCOPED_TRACE(::testing::PrintToString(c.command));
    Words command = {c.command[0]};
    if (command[0] == "measurements") command.push_back(c.command[1]);
    const std::string help = run(command, {"--help-all"}).out;
    for (const char* option : {"--json", "--threads", "--seed", "--quiet"}) EXPECT_THAT(help, HasSubstr(option));
    for (const char* option : {"--device", "--load"})
      EXPECT_EQ(count(help, std::string("  ") + option + " ") > 0,
                c.model || command[0] == "quantize" || command[0] == "inspect")
          << option;
  }
  const std::string doctor = run({"doctor"}, {"--help-all"}).out;
  EXPECT_THAT(doctor, HasSubstr("--load"));
  EXPECT_THAT(doctor, Not(HasSubstr("--dtype")));
}

/// A command that loads no LibTorch does not look at FP8_EXTENSIONS either; doctor finds what is wrong with it.
TEST_F(CommonOptions, ExtensionsOfTheEnvironmentAreNotLookedAtWithoutLibTorch) {
  const test::RunOptions missing{.environment = {{"FP8_EXTENSIONS", "/no/such.so"}}};
  EXPECT_EQ(run_fp8(args("inspect $DEMO --tensors-only"), missing).code, 0);
  EXPECT_EQ(run_fp8(args("config check {}", at("quant.json")), missing).code, 0);
  EXPECT_EQ(run_fp8({"doctor"}, missing).code, 1);
  expect_failed(run_fp8(args("generate --model $DEMO --prompt x"), missing), {"/no/such.so"});
}

}  // namespace
}  // namespace fp8
