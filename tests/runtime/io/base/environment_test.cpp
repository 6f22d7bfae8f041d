// SPDX-License-Identifier: Apache-2.0
// The table of environment variables: what each row takes and refuses, that nothing is read past it, and that
// tools/pages/environment.md shows what has an effect.
#include "fp8/runtime/io/base/environment.h"

#include <iterator>
#include <regex>
#include <stdexcept>

#include "fp8/runtime/io/base/runtime_flags.h"
#include "support/golden.h"
#include "support/scoped_variable.h"

namespace fp8::io {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = FP8_SOURCE_DIR;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Files below a folder of the tree that end so (all of them for no ending), but the two that hold the table.
std::vector<fs::path> sources(const fs::path& folder, const std::set<std::string>& endings) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
    const fs::path& path = entry.path();
    const std::string name = fs::relative(path, kRoot).string();
    if (!entry.is_regular_file() || (!endings.empty() && !endings.contains(path.extension().string()))) continue;
    if (name != "runtime/io/base/environment.cpp" && name != "runtime/io/base/vendor_variables.json")
      files.push_back(path);
  }
  return files;
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

struct Values {
  std::vector<const char*> good, bad;
};

/// By what a row says it allows.
const std::map<std::string, Values> kValues = {
    {"scalar, avx2, avx512, avx512bf16, amx",
     {{"scalar", "avx2", "avx512", "avx512bf16", "amx"}, {"AVX2", "avx", "scalar, avx2"}}},
    {"gaudi, gaudi2, gaudi3", {{"gaudi", "gaudi2", "gaudi3"}, {"gaudi1", "Gaudi2", "gaudi2 ", ","}}},
    {"an integer from 1 to 16", {{"1", "3", "16"}, {"0", "17", "-1", "two", "1x", "1.0"}}},
    {"a number of bytes > 0, K, M or G may follow",
     {{"1", "1e9", "64M", "0.5G", "7K"}, {"0", "-5", "3Q", "lots", "1e30", "nan", "inf", "K", "1 K", "0.5"}}},
    {"0, 1", {{"0", "1"}, {"2", "9", "true", "yes", "01"}}},
    {"0, 1, false, true", {{"0", "1", "false", "true"}, {"True", "maybe"}}},
    {"true, 1, false, 0", {{"true", "True", "FALSE", "1", "0"}, {"yes", "2", "t"}}},
    {"true, 1, yes, on, false, 0, no, off", {{"True", "1", "Yes", "on", "FALSE", "0", "no", "OFF"}, {"2", "t", "-1"}}},
    {"passive, active", {{"passive", "ACTIVE"}, {"spin", "passive,active"}}},
    {"INFO, WARNING, ERROR, FATAL", {{"WARNING", "ERROR"}, {"error", "5"}}},
    {"0, 1, 2, 0x0, 0x1, 0x2", {{"0", "1", "0x1"}, {"3", "lazy", "true"}}},
    {"compile, compile_fx, eager, all", {{"compile_fx", "all"}, {"lazy", "fx"}}},
    {"svg, graphml, pbtxt", {{"svg", "pbtxt"}, {"png", "pb"}}},
    {"habana, core_aten, none", {{"habana", "none"}, {"aten", "0"}}},
    {"json, text", {{"json", "text"}, {"xml", "csv"}}},
    {"bf16", {{"bf16", "BF16"}, {"fp8", "f32"}}},
    {"FOLDER[,DELETE[,MEGABYTES[,NFS]]]",
     {{"/tmp/recipes", ",false,1024", "cache,True,20000", "/tmp/c,false,1024,false"},
      {"c,maybe", "c,true,much", "c,true,1,2", "c,true,1024,false,1", "c,,1"}}},
    {"cpu, hpu, cuda, xpu", {{"cpu", "HPU", "Cuda", "xpu"}, {"hpux", "gpu"}}},
    {"1, 2, 3, 5", {{"1", "2", "3", "5"}, {"0", "4", "6", "x"}}},
    {"an integer from 0 on",
     {{"0", "7", "18446744073709551615", "0x1F"}, {"-1", "1.5", "0x", "18446744073709551616", "0b1", ""}}},
    {"integers from 1 on, commas between", {{"1", "4,2", "16"}, {"0", "4,", ",4", "4;2", "two", "-1"}}},
    {"process_exit, mark_step, metric_change, commas between",
     {{"mark_step", "process_exit,metric_change"}, {"exit", "mark_step;metric_change", "mark_step,", ""}}},
    {"an integer from 0 to 100", {{"0", "100"}, {"-1", "101", "50%"}}},
    {"an integer from 0 to 6", {{"0", "6"}, {"-1", "7", "info"}}},
    {"an integer from 0 to 65535", {{"0", "65535"}, {"-1", "65536", "x", "0x1", "1 "}}},
    {"an integer from 1 to 65536", {{"1", "65536"}, {"0", "65537", "two", "99999999999"}}},
    {"an integer from 1 to 65535", {{"1", "29500", "65535"}, {"0", "65536", "http"}}}};

/// Rows whose values no text can tell good from bad.
const std::set<std::string> kFree = {"0 is off, all else is on",
                                     "a file with one name on a line",
                                     "a JSON file",
                                     "a path",
                                     "a folder",
                                     "anything",
                                     "files, colons between",
                                     "a name or an address",
                                     "16 characters or more, the same for all ranks",
                                     "an interface",
                                     "hosts, as in n[1-3],m7"};

/// The problem that `fp8 doctor --json` reports for a value.
const std::set<std::string> kTypes = {"boolean", "choice", "integer", "bytes", "list", "path", "text", "secret"};

TEST(Variables, EachIsWhole) {
  std::set<std::string> names;
  for (const Variable& row : variables()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " stands there twice";
    for (const std::string text : {row.name, row.effect, row.allowed, row.fallback, row.reader}) {
      EXPECT_FALSE(text.empty()) << row.name;
      EXPECT_EQ(text.find_first_of("|\n"), std::string::npos) << row.name << ": a table has no place for " << text;
    }
    EXPECT_TRUE(kTypes.contains(row.rule.type)) << row.name << " " << row.rule.type;
    EXPECT_EQ(&variable(row.name), &row);
  }
}

TEST(Variables, EachTakesWhatItSaysAndNothingElse) {
  for (const Variable& row : variables()) {
    SCOPED_TRACE(row.name);
    const auto found = kValues.find(row.allowed);
    if (found == kValues.end()) {
      EXPECT_TRUE(kFree.contains(row.allowed)) << "no values for: " << row.allowed;
      EXPECT_EQ(problem_of(row, "whatever it is"), "");
      continue;
    }
    for (const char* value : found->second.good) EXPECT_EQ(problem_of(row, value), "");
    for (const char* value : found->second.bad)
      EXPECT_EQ(problem_of(row, value), std::string(row.name) + ": found '" + value + "', allowed: " + row.allowed);
  }
}

/// Nobody reads them, and each says why; what a row takes, it takes whatever the defaults of the vendor are.
TEST(Variables, TheVendorsAreKnownWithoutAnEffect) {
  for (const Variable& row : vendor_variables()) {
    EXPECT_FALSE(row.in_effect) << row.name;
    EXPECT_STREQ(row.reader, "nobody") << row.name;
    const std::string type = row.rule.type;
    if (type == "boolean" || type == "choice") {
      EXPECT_TRUE(row.allows(row.fallback) || std::string(row.fallback) == "none") << row.name << " " << row.fallback;
    }
  }
  // Of the documented flags, of each part of the vendor's stack one that its scripts set.
  for (const std::string& name : words(R"(
        PT_HPU_RECIPE_CACHE_CONFIG PT_HPU_LAZY_ACC_PAR_MODE
        PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES PT_ENABLE_INT64_SUPPORT PT_HPU_PLACE_ON_CPU PT_HPU_INFERENCE_MODE
        PT_HPU_ENABLE_LAZY_COLLECTIVES PT_HPU_POOL_STRATEGY PT_HPU_POOL_MEM_ACQUIRE_PERC
        PT_ENABLE_HABANA_STREAMASYNC PT_HPU_MATMUL3D_2D_RESHAPE PT_HPU_GPU_MIGRATION PT_HPU_USE_EAGER_FALLBACK
        PT_HPU_WEIGHT_SHARING PT_HPU_AUTOLOAD PT_TE_DUMP_TENSORS PT_TE_DUMP_TENSORS_PATH
        PT_TE_OVERRIDE_SDPA_DOUT PT_TE_OVERRIDE_SDPA_BWD_PRECISSION PT_INFERENCE_RANGE_FILE
        PT_HPU_REPLACE_ADAM_ADAMW PT_HPUGRAPH_DISABLE_TENSOR_CACHE PT_HPUGRAPH_ENABLE_DRY_RUN HABANA_PROFILE
        HLS_MODULE_ID HABANA_VISIBLE_MODULES HABANA_VISIBLE_DEVICES HABANA_PGM_LRU_MAX GRAPH_VISUALIZATION)"))
    EXPECT_FALSE(variable(name.c_str()).in_effect) << name;
}

TEST(Variables, ProblemsArePrintable) {
  EXPECT_EQ(problem_of(variable("FP8_SIMD"), "a\nb"),
            "FP8_SIMD: found 'a\\x0ab', allowed: scalar, avx2, avx512, avx512bf16, amx");
}

TEST(Variables, ValuesOfThisProcess) {
  unsetenv("FP8_HPU_MEMORY");
  EXPECT_EQ(environment_value("FP8_HPU_MEMORY"), nullptr);
  EXPECT_EQ(environment_problem("FP8_HPU_MEMORY"), "");
  {
    const test::ScopedVariable wrong("FP8_HPU_MEMORY", "abc");
    EXPECT_STREQ(environment_value("FP8_HPU_MEMORY"), "abc");
    EXPECT_EQ(environment_problem("FP8_HPU_MEMORY"),
              "FP8_HPU_MEMORY: found 'abc', allowed: a number of bytes > 0, K, M or G may follow");
  }
  const test::ScopedVariable empty("FP8_HPU_MEMORY", "");
  EXPECT_EQ(environment_value("FP8_HPU_MEMORY"), nullptr);
  EXPECT_EQ(environment_problem("FP8_HPU_MEMORY"), "");
}

TEST(Variables, WhatTheTableHasNotCannotBeRead) {
  EXPECT_THROW(environment_value("PATH"), std::logic_error);
  EXPECT_THROW(environment_problem("FP8_HPU_DEVCE"), std::logic_error);
  EXPECT_THROW(variable(""), std::logic_error);
}

TEST(Variables, LaunchersAreThoseThatTheirReaderKnows) {
  EXPECT_THAT(launcher_variables(),
              ::testing::ElementsAre("LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
                                     "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
                                     "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "TORCHELASTIC_RUN_ID"));
}

TEST(Misspelled, IsWhatWasMeant) { EXPECT_GOLDEN(intended_variable(text)); }

TEST(Unknown, NamesLikeOursThatNoRowHas) {
  for (const char* name :
       {"FP8_", "FP8_SIZE", "FP8_TYPE", "PT_HPU_NO_SUCH_FLAG", "PT_TE_FORCE_SR", "PT_TE_X", "HABANA_NO_SUCH_FLAG"}) {
    EXPECT_TRUE(is_unknown_variable(name)) << name;
    EXPECT_EQ(intended_variable(name), "") << name;
  }
  for (const char* name :
       {"FP8_TEST_PYTHON", "FP8_TEST_DATA", "PT_SOMETHING", "FP8", "RANKS", "",
        // What launchers and other programs set.
        "PMIX_RANK", "SLURM_JOBID", "ROLE_RANK", "GLOBAL_RANK", "ROLE_WORLD_SIZE", "MKL_NUM_THREADS",
        "NCCL_SOCKET_IFNAME", "NOCOLOR", "OMPI_COMM_WORLD_LOCAL_RANK", "QUANT_PATH", "PATH_TO_NOWHERE"}) {
    EXPECT_FALSE(is_unknown_variable(name)) << name;
    EXPECT_EQ(intended_variable(name), "") << name;
  }
  for (const Variable& row : variables()) {
    EXPECT_FALSE(is_unknown_variable(row.name)) << row.name;
    EXPECT_EQ(intended_variable(row.name), "") << row.name;
  }
}

TEST(Unknown, AreFoundInThisProcess) {
  const test::ScopedVariable wrong("FP8_HPU_DEVCE", "gaudi2"), far("PT_HPU_NO_SUCH_FLAG", "1"),
      tests("FP8_TEST_X", "1"), other("QUANT_CONFG", "q.json");
  EXPECT_THAT(unknown_variables(),
              ::testing::ElementsAre("FP8_HPU_DEVCE: nobody reads it, did you mean FP8_HPU_DEVICE?",
                                     "PT_HPU_NO_SUCH_FLAG: nobody reads it",
                                     "QUANT_CONFG: nobody reads it, did you mean QUANT_CONFIG?"));
  EXPECT_EQ(unknown_variables(/*misspelt=*/true).size(), 2u);
}

TEST(Numbers, AreReadWhole) {
  EXPECT_EQ(parse_integer("12", 0, 12), 12);
  EXPECT_EQ(parse_integer("-3", -5, 0), -3);
  for (const char* wrong : {"", "13", "1x", " 1", "+1", "1.0", "99999999999"})
    EXPECT_EQ(parse_integer(wrong, 0, 12), std::nullopt) << wrong;
  EXPECT_EQ(parse_bytes("7"), 7);
  EXPECT_EQ(parse_bytes("64M"), std::int64_t{64} << 20);
  EXPECT_EQ(parse_bytes("0.5G"), std::int64_t{1} << 29);
  EXPECT_EQ(parse_bytes("1e9"), 1'000'000'000);
  for (const char* wrong : {"", "G", "1T", "1KB", "0x10", "9e18"}) EXPECT_EQ(parse_bytes(wrong), std::nullopt) << wrong;
}

TEST(Environment, EntriesOfNamesThatBeginAlike) {
  const test::ScopedVariable last("ZZ_B__C", "2=3"), first("ZZ_A", ""), other("Z_A", "1");
  EXPECT_EQ(environment_entries("ZZ_"), (std::vector<std::string>{"ZZ_A=", "ZZ_B__C=2=3"}));
}

/// C and C++ past their comments' first slashes, Python past its "#": prose may speak of getenv().
std::string without_comments(const fs::path& path) {
  const std::string mark = path.extension() == ".py" ? "#" : "//";
  std::string code;
  std::istringstream lines(text_of(path));
  for (std::string line; std::getline(lines, line); code += '\n') code += line.substr(0, line.find(mark));
  return code;
}

/// A child gets the environment as it is; nothing is read from it.
const std::set<std::string> kHandOn = {"tools/benchmarks/bench_startup.cpp", "tools/benchmarks/distributed.py",
                                       "tools/benchmarks/engines.py",        "tools/benchmarks/peer_packages.py",
                                       "tools/benchmarks/python.py",         "tools/python/fp8/_program.py"};

TEST(Sources, AskTheTable) {
  const std::regex read(R"(\b(secure_)?getenv\b|\benviron\b|/proc/(self|\d+)/environ)");
  const std::regex known(
      R"re(os\.environ(\.get\(|\.setdefault\(|\[)"(DS_ACCELERATOR|FP8_AUTOLOAD|FP8_BENCH|HABANA_LOGS|LOCAL_RANK|)re"
      R"re(LOWER_LIST|PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST|QUANT_CONFIG|RANK|SOURCE_DATE_EPOCH|)re"
      R"re(TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT|WORLD_SIZE|XDG_CACHE_HOME)")re");
  for (const char* folder : {"runtime", "recipes", "configs", "measure", "quant", "transformer_engine", "tools"})
    for (const auto& path : sources(folder, {".cpp", ".h", ".py"})) {
      if (kHandOn.contains(fs::relative(path, kRoot).string())) continue;
      const std::string code = std::regex_replace(without_comments(path), known, "");
      EXPECT_FALSE(std::regex_search(code, read))
          << path << " reads the environment past runtime/io/base/environment.h";
    }
}

/// The source of the table without its rows: the reader of launchers' variables stands behind them.
std::string code_beside_the_table() {
  std::string code;
  std::istringstream lines(text_of(kRoot / "runtime/io/base/environment.cpp"));
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with("    {\"")) code += line + '\n';
  return code;
}

/// The tools' and the tests' own are read by scripts too.
TEST(Sources, EachVariableIsReadWhereItsRowSays) {
  const std::string beside = code_beside_the_table();
  for (const Variable& row : variables()) {
    const std::string reader = row.reader;
    if (reader == "LibTorch" || reader == "nobody") continue;
    ASSERT_TRUE(fs::is_directory(kRoot / reader)) << row.name;
    const bool scripts = reader == "tools" || reader == "tests";
    const std::string wanted = scripts ? row.name : '"' + std::string(row.name) + '"';
    bool found = reader == "runtime/io" && beside.find(wanted) != std::string::npos;
    for (const auto& path : sources(reader, scripts ? std::set<std::string>{} : std::set<std::string>{".cpp", ".h"}))
      found = found || text_of(path).find(wanted) != std::string::npos;
    EXPECT_TRUE(found) << row.name << ": nothing in " << reader << " asks for it";
  }
}

TEST(Readme, ShowsWhatHasAnEffect) {
  std::string table = "| variable | default | values | what it does |\n|---|---|---|---|\n";
  for (const Variable& row : variables()) {
    if (!row.in_effect) continue;
    table += "| `" + std::string(row.name) + "` | " + row.fallback + " | " + row.allowed + " | " + row.effect + " |\n";
  }
  const std::string readme = text_of(kRoot / "tools/pages/environment.md");
  EXPECT_TRUE(readme.find("\n" + table + "\n") != std::string::npos) << "tools/pages/environment.md should have:\n"
                                                                     << table;
}

// Names that documents, scripts and containers for the vendor's devices, Intel Neural Compressor, vLLM and launchers
// give to variables: each has a row, or stands below with the reason why it has none.

/// Of the table of runtime variables, of the guides to training, inference and fp8, of vLLM's and of older scripts.
const std::string kNamed = R"(
    CALC_ROUNDING_WITH_CGUID CALC_SCALE_WITH_CGUID ENABLE_CONSOLE ENABLE_EXPERIMENTAL_FLAGS
    EXPERIMENTAL_WEIGHT_SHARING FP32_LIST GC_KERNEL_PATH GLOO_SOCKET_IFNAME GRAPH_VISUALIZATION HABANA_LOGS
    HABANA_PROFILE HABANA_VISIBLE_DEVICES HABANA_VISIBLE_MODULES HLS_MODULE_ID INC_LOG_FILE_SIZE
    INC_TARGET_DEVICE LOCAL_RANK LOCAL_WORLD_SIZE LOG_LEVEL_ALL LOG_LEVEL_INC LOWER_LIST MASTER_ADDR MASTER_PORT
    MEASUREMENT_DUMP_METHOD NODE_RANK OMP_NUM_THREADS PT_ENABLE_HABANA_STREAMASYNC PT_ENABLE_INT64_SUPPORT
    PT_HPUGRAPH_DISABLE_TENSOR_CACHE PT_HPUGRAPH_ENABLE_DRY_RUN PT_HPU_AUTOCAST_FP32_OPS_LIST
    PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST PT_HPU_AUTOLOAD PT_HPU_DISABLE_ASYNC_COLLECTIVE
    PT_HPU_EAGER_4_STAGE_PIPELINE_ENABLE PT_HPU_EAGER_OPS PT_HPU_EAGER_PIPELINE_ENABLE PT_HPU_ENABLE_EAGER_CACHE
    PT_HPU_ENABLE_EXECUTION_THREAD_NO_WAIT PT_HPU_ENABLE_LAZY_COLLECTIVES
    PT_HPU_ENABLE_LAZY_EAGER_LAUNCH_EXEC_THREAD PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES
    PT_HPU_ENABLE_SYNAPSE_LAYOUT_HANDLING PT_HPU_FP8_MINIMIZE_MEMORY PT_HPU_GPU_MIGRATION PT_HPU_INFERENCE_MODE
    PT_HPU_LAZY_ACC_PAR_MODE PT_HPU_LAZY_MODE PT_HPU_MATMUL3D_2D_RESHAPE PT_HPU_MAX_COMPOUND_OP_SIZE
    PT_HPU_METRICS_GC_DETAILS PT_HPU_PLACE_ON_CPU PT_HPU_POOL_MEM_ACQUIRE_PERC PT_HPU_POOL_STRATEGY
    PT_HPU_RECIPE_CACHE_CONFIG PT_HPU_REPLACE_ADAM_ADAMW PT_HPU_STOCHASTIC_ROUNDING_MODE
    PT_HPU_USE_EAGER_FALLBACK PT_HPU_WEIGHT_SHARING PT_INFERENCE_RANGE_FILE PT_TE_DUMP_TENSORS
    PT_TE_DUMP_TENSORS_PATH PT_TE_FORCE_SR_BWD PT_TE_OVERRIDE_SDPA_BWD_PRECISSION PT_TE_OVERRIDE_SDPA_DOUT
    QUANT_CONFIG RANK RUNTIME_SCALE_PATCHING SCALE_METHOD_CONFIG_DUMP_PATH SLURM_JOB_NODELIST
    TORCHELASTIC_RESTART_COUNT TORCHELASTIC_USE_AGENT_STORE VLLM_DYNAMIC_KV_QUANT WORLD_SIZE)";

/// By the reason.
const std::map<std::string, std::string> kWithoutRow = {
    {"an option of CMake for this project, not of the environment", "FP8_WERROR FP8_UNITY FP8_SANITIZE"},
    {"a scheme or format in checkpoints of others",
     "FP8_STATIC FP8_DYNAMIC FP8_BLOCK FP8_PB_WO FP8_PER_CHANNEL_PER_TOKEN"},
    {"a name in somebody's source: no variable of the environment",
     "FP8_MAX SYNAPSE_FUNCTION_CALLS BRIDGE_FUNCTION_CALLS SCALE_METHOD_UPPER"},
    {"decides how Intel Neural Compressor is built", "INC_PT_ONLY"},
    {"decides how LibTorch is built", "USE_C10D_GLOO"},
    {"GNU's OpenMP reads it, and says itself what is wrong with it", "OMP_PROC_BIND OMP_PLACES GOMP_SPINCOUNT"},
    {"read by NVIDIA's library alone: recipes say it in their JSON here",
     "NVTE_BACKWARD_OVERRIDE NVTE_UNFUSED_FP8_UPDATE NVTE_FP8_BLOCK_SCALING_FP32_SCALES "
     "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"},
    {"a step has its own, SLURM_PROCID and SLURM_STEP_NUM_TASKS", "SLURM_NTASKS SLURM_LOCALID SLURM_NODEID"},
    {"read by DeepSpeed or Lightning alone, which this is not",
     "DEEPSPEED_USE_HPU DS_ACCELERATOR PL_DEEPSPEED_CONFIG_PATH"},
    {"FP8_HPU_DEVICES says it here", "HPU_EMULATE_DEVICES"}};

bool has_row(const std::string& name) {
  for (const Variable& row : variables())
    if (name == row.name) return true;
  return false;
}

TEST(DocumentedVariables, HaveARow) {
  for (const std::string& name : words(kNamed)) EXPECT_TRUE(has_row(name)) << name;
}

TEST(DocumentedVariables, OrAReason) {
  for (const auto& [reason, names] : kWithoutRow) {
    EXPECT_GT(reason.size(), 20u) << names;
    for (const std::string& name : words(names)) EXPECT_FALSE(has_row(name)) << name << " has a row";
  }
}

/// Each pass of the vendor's compiler has a variable of its own.
TEST(DocumentedVariables, OnesForEveryPassOfTheGraphCompiler) {
  constexpr const char *kA = "PT_HPU_DISABLE_pass_reinplace_add", *kB = "PT_HPU_DISABLE_pass_eagerize_leaf_views";
  constexpr const char* kFamily = "PT_HPU_DISABLE_pass_*";
  for (const char* name : {kA, kB, kFamily}) EXPECT_FALSE(is_unknown_variable(name)) << name;
  for (const char* name : {"PT_HPU_DISABLE_pass_", "PT_HPU_DISABLE_reinplace", "PT_HPU_DISABLE_PASS_X"})
    EXPECT_TRUE(is_unknown_variable(name)) << name;
  EXPECT_FALSE(variable(kFamily).in_effect);
  EXPECT_EQ(RuntimeFlags::from_env()[kFamily].source, FlagSource::default_value);
  const test::ScopedVariable a(kA, "True"), b(kB, "1");
  const Flag flag = RuntimeFlags::from_env()[kFamily];
  EXPECT_EQ(flag.source, FlagSource::environment);
  EXPECT_EQ(flag.value, std::string(kB) + "=1, " + kA + "=True");
  EXPECT_THAT(unknown_variables(), ::testing::IsEmpty());
  setenv(kB, "", 1);  // is not set
  EXPECT_EQ(RuntimeFlags::from_env()[kFamily].value, std::string(kA) + "=True");
}

}  // namespace
}  // namespace fp8::io
