// SPDX-License-Identifier: Apache-2.0
// Every command and every common option: the option does what it says, or is refused with the names of the commands
// where it would. What ran on the device, and in which dtype, is seen in the trace of FP8_TRACE.
#include <cctype>

#include "support/launchers.h"
#include "support/values.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

using Variables = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

/// The files that the commands below work on.
struct CommonOptions : ::testing::Test {
  static void SetUpTestSuite() {
    folder_ = new test::TempDir;
    std::ofstream(*folder_ / "quant.json") << R"({"mode": "QUANTIZE", "device_for_scales": "GAUDI3"})";
    ASSERT_EQ(run_fp8("measure --model $DEMO --data $HELDOUT --samples 1 --out {}", at("stats")).code, 0);
    ASSERT_EQ(run_fp8("measurements expand {} --ranks 2 --out {}", at("stats"), at("ranks")).code, 0);
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
      {args("convert --model {} --format fp8 --scheme tensor --out OUT", at("fp8")), false, true},
      {args("inspect {} {}", test::demo_model(), kData), true, true},
      {{"inspect", test::demo_model()}, false, true},
      {{"inspect", at("stats")}, false, false},
      {args("config explain {}", at("quant.json")), false, true},
      {args("measurements merge {} {} --out OUT", at("stats"), at("stats"))},
      {args("measurements unify {} --out OUT", at("ranks"))},
      {args("measurements expand {} --ranks 2 --out OUT", at("stats"))},
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
                               "run, quantize --budget or --data, inspect --data, doctor\n");
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
    const test::Run done = succeeded(run(c.command, args("--json --quiet --seed 5")));
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
  EXPECT_THAT(run({"doctor"}, {"--help-all"}).out, AllOf(HasSubstr("--load"), Not(HasSubstr("--dtype"))));
}

/// A command that loads no LibTorch does not look at FP8_EXTENSIONS either; doctor finds what is wrong with it.
TEST_F(CommonOptions, ExtensionsOfTheEnvironmentAreNotLookedAtWithoutLibTorch) {
  const test::RunOptions missing{.environment = {{"FP8_EXTENSIONS", "/no/such.so"}}};
  EXPECT_EQ(run_fp8(args("inspect $DEMO --tensors-only"), missing).code, 0);
  EXPECT_EQ(run_fp8(args("config check {}", at("quant.json")), missing).code, 0);
  EXPECT_EQ(run_fp8({"doctor"}, missing).code, 1);
  expect_failed(run_fp8(args("generate --model $DEMO --prompt x"), missing), {"/no/such.so"});
}

// Flags through the program: wrong values and unknown names are problems, every name in the binaries has a row, and
// doctor says where a value comes from.

/// Without a launcher's.
test::Run doctor(const std::vector<std::string>& options, const Variables& variables) {
  auto environment = test::no_launcher();
  for (const auto& [name, value] : variables) environment[name] = value;
  std::vector<std::string> arguments = {"doctor"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return run_fp8(arguments, {.environment = environment});
}

/// The line of a table that begins so.
std::string line_of(const std::string& table, const std::string& start) {
  const std::size_t begin = table.find("\n" + start + " ");
  return begin == std::string::npos ? "" : table.substr(begin + 1, table.find('\n', begin + 1) - begin - 1);
}

const std::vector<std::string> kWrongFlags = args(
    "FP8_SIMD=avx9 FP8_SIMD=AVX2 FP8_HPU_DEVICE=gaudi7 FP8_HPU_DEVICE=Gaudi2 FP8_HPU_DEVICES=0 FP8_HPU_DEVICES=17 "
    "FP8_HPU_DEVICES=two FP8_HPU_MEMORY=abc FP8_HPU_MEMORY=-1G FP8_HPU_MEMORY=64MB FP8_HPU_MOVE_HOST_OPERANDS=yes "
    "PT_HPU_STOCHASTIC_ROUNDING_MODE=9 PT_TE_FORCE_SR_BWD=maybe PT_HPU_FP8_MINIMIZE_MEMORY=true "
    "PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST=/no/such/list PT_HPU_AUTOCAST_FP32_OPS_LIST=/no/such/list "
    "LOWER_LIST=/no/such/list FP32_LIST=/no/such/list QUANT_CONFIG=/no/such.json INC_TARGET_DEVICE=gpu "
    "RUNTIME_SCALE_PATCHING=2 CALC_SCALE_WITH_CGUID=maybe CALC_ROUNDING_WITH_CGUID=on MEASUREMENT_DUMP_METHOD=4 "
    "LOG_LEVEL_INC=9 LOG_LEVEL_ALL=debug LOCAL_RANK=-1 RANK=first WORLD_SIZE=0 LOCAL_WORLD_SIZE=eight NODE_RANK=1.5 "
    "GROUP_RANK=65536 OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=-2 PMI_RANK=0x1 PMI_SIZE=many SLURM_PROCID=none "
    "SLURM_STEP_NUM_TASKS=1e3 MASTER_PORT=http MASTER_PORT=65536 OMP_NUM_THREADS=0 OMP_WAIT_POLICY=spin "
    "TORCH_SHOW_CPP_STACKTRACES=full FP8_COUNTS_REFRESH=yes FP8_KILLS=some PT_HPU_LAZY_MODE=eager "
    "PT_HPU_LAZY_ACC_PAR_MODE=-1 PT_HPU_RECIPE_CACHE_CONFIG=cache,true,much PT_HPU_MAX_COMPOUND_OP_SIZE=INT64_MAX "
    "PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES=2 PT_HPU_POOL_STRATEGY=best PT_HPU_POOL_MEM_ACQUIRE_PERC=101 "
    "PT_ENABLE_INT64_SUPPORT=int64 PT_HPU_GPU_MIGRATION=cuda PT_HPU_INFERENCE_MODE=maybe "
    "PT_HPU_COMPILE_DECOMPOSITION_MODE=aten PT_HPU_METRICS_FILE_FORMAT=xml PT_TE_DUMP_TENSORS=all "
    "PT_TE_OVERRIDE_SDPA_BWD_PRECISSION=fp8 HABANA_PGM_LRU_MAX=lots");

TEST(Flags, SixtyWrongValuesAreNamedProblems) {
  ASSERT_EQ(kWrongFlags.size(), 60u);
  std::vector<Variables> runs;
  Variables together;  // what neither the kernels nor the device read: one run finds all of it
  for (const std::string& wrong : kWrongFlags) {
    const std::string name = wrong.substr(0, wrong.find('=')), value = wrong.substr(name.size() + 1);
    const std::string_view reader = io::variable(name).reader;
    const bool alone = reader.starts_with("runtime/") && reader != "runtime/io";
    if (alone || !together.emplace(name, value).second) runs.push_back({{name, value}});
  }
  runs.push_back(together);
  for (const Variables& variables : runs) {
    SCOPED_TRACE(::testing::PrintToString(variables));
    const test::Run run = doctor({"--json"}, variables);
    EXPECT_EQ(run.code, 1);
    const auto problems = io::parse_json(run.out, "stdout")["problems"].get<std::vector<std::string>>();
    ASSERT_EQ(problems.size(), variables.size()) << ::testing::PrintToString(problems);
    for (const auto& [name, value] : variables)
      EXPECT_THAT(problems, Contains(AllOf(HasSubstr(name), HasSubstr(value))));
    EXPECT_THAT(run.err, HasSubstr("doctor found " + std::to_string(problems.size()) +
                                   " problem(s), the first: " + problems[0]));
  }
}

TEST(Flags, AContainerOfTheVendorsHasNoProblem) {
  const test::Run run = doctor({}, {{"HABANA_LOGS", "/var/log/habana_logs/"},
                                    {"HABANA_PLUGINS_LIB_PATH", "/opt/habanalabs/habana_plugins"},
                                    {"HABANA_SCAL_BIN_PATH", "/opt/habanalabs/engines_fw"},
                                    {"GC_KERNEL_PATH", "/usr/lib/habanalabs/libtpc_kernels.so"},
                                    {"HABANA_VISIBLE_DEVICES", "all"},
                                    {"PT_HPU_LAZY_MODE", "0x1"},
                                    {"PT_HPU_ENABLE_LAZY_COLLECTIVES", "True"},
                                    {"PT_HPU_WEIGHT_SHARING", "0"},
                                    {"PT_HPU_DISABLE_pass_reinplace_add", "True"},
                                    {"PT_HPU_RECIPE_CACHE_CONFIG", "/tmp/recipes,True,20000"},
                                    {"HABANA_PROFILE", "profile_api_light"}});
  EXPECT_EQ(run.code, 0) << run.err << run.out;
  EXPECT_THAT(line_of(run.out, "PT_HPU_WEIGHT_SHARING"), HasSubstr("environment; no effect: a model is run as it is"));
  EXPECT_THAT(line_of(run.out, "PT_HPU_DISABLE_pass_*"),
              AllOf(HasSubstr(" PT_HPU_DISABLE_pass_reinplace_add=True "), HasSubstr("no graph is built")));
  EXPECT_THAT(line_of(run.out, "HABANA_LOGS"), ::testing::EndsWith(" environment"));
}

TEST(Flags, AllOfThemForPeople) {
  const test::Run run = succeeded(doctor({"--all"}, {}));
  for (const io::Variable& row : io::variables()) EXPECT_THAT(run.out, HasSubstr(std::string("\n") + row.name + " "));
  EXPECT_THAT(doctor({}, {}).out, Not(HasSubstr("PT_HPU_LAZY_MODE")));
}

TEST(Flags, WhereAValueComesFrom) {
  const test::TempDir dir;
  io::write_json(dir / "quant.json", {{"mode", "MEASURE"}, {"dump_stats_path", "stats/inc"}});
  const std::string config = (dir / "quant.json").string();
  const Variables given = {{"QUANT_CONFIG", config}, {"HABANA_LOGS", "/logs"}, {"OMP_NUM_THREADS", "1"}};
  const test::Run people = succeeded(doctor({"--threads", "3"}, given));
  EXPECT_THAT(line_of(people.out, "QUANT_CONFIG"), AllOf(HasSubstr(config), HasSubstr("environment")));
  EXPECT_THAT(line_of(people.out, "OMP_NUM_THREADS"), AllOf(HasSubstr(" 3 "), HasSubstr("option: --threads")));
  EXPECT_THAT(line_of(people.out, "HABANA_LOGS"), AllOf(HasSubstr("stats/inc"), HasSubstr("config file: " + config)));

  const io::Json json = io::parse_json(doctor({"--json", "--threads", "3"}, given).out, "stdout")["environment"];
  expect_values(json["HABANA_LOGS"], {{"source", "config file"}, {"by", config}});
  expect_values(json["OMP_NUM_THREADS"], {{"value", "3"}, {"source", "option"}, {"by", "--threads"}});
  EXPECT_EQ(json["QUANT_CONFIG"]["source"], "environment");
  EXPECT_EQ(json["FP8_HPU_DEVICE"]["source"], "default");
}

/// ctest sets "passive" for its tests; here the variable is empty.
TEST(Flags, WhatTheProgramPrefersIsADefault) {
  const io::Json json = io::parse_json(doctor({"--json"}, {{"OMP_WAIT_POLICY", ""}}).out, "stdout")["environment"];
  expect_values(json["OMP_WAIT_POLICY"], {{"source", "default"}, {"by", "fp8"}});
}

/// Of modelopt's checkpoints and of our own pages: words that look like variables.
const std::set<std::string> kOtherWords = {
    "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "FP8_REPORT_DATA", "FP8_DYNAMIC", "FP8_STATIC", "FP8_BLOCK",
    "FP8_WEIGHT_ONLY",           "FP8_KV"};

/// The texts of a binary, as `strings` finds them: whole, so that what the compiler laid into code is none.
std::set<std::string> variables_in(const fs::path& path) {
  const std::string bytes = read_file(path);
  std::set<std::string> names;
  for (std::size_t begin = 0; begin < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\0', begin), bytes.size());
    const std::string text = bytes.substr(begin, std::min<std::size_t>(end - begin, 80));
    begin = end + 1;
    bool ours = false;
    for (const char* start : {"FP8_", "PT_HPU", "PT_TE_", "HABANA_"}) ours = ours || text.starts_with(start);
    const bool name =
        std::ranges::all_of(text, [](unsigned char c) { return std::isupper(c) || std::isdigit(c) || c == '_'; });
    if (ours && name && std::string_view("_").find(text.back()) == std::string_view::npos) names.insert(text);
  }
  return names;
}

TEST(Flags, EveryNameInTheBinariesHasARow) {
  std::vector<fs::path> binaries = {FP8_BINARY_DIR "/bin/fp8"};
  for (const auto& entry : fs::directory_iterator(FP8_BINARY_DIR "/lib")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("libfp8_") && name.ends_with(".so")) binaries.push_back(entry.path());
  }
  EXPECT_GE(binaries.size(), 8u);
  std::set<std::string> rows, found;
  for (const io::Variable& row : io::variables()) rows.insert(row.name);
  for (const fs::path& binary : binaries)
    for (const std::string& name : variables_in(binary)) {
      EXPECT_TRUE(rows.contains(name) || kOtherWords.contains(name)) << binary << ": " << name;
      found.insert(name);
    }
  for (const char* name : {"FP8_HPU_MEMORY", "PT_TE_FORCE_SR_BWD", "HABANA_LOGS"}) EXPECT_TRUE(found.contains(name));
}

}  // namespace
}  // namespace fp8
