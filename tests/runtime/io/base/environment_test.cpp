// SPDX-License-Identifier: Apache-2.0
// The table of environment variables: what each row takes and refuses, that nothing is read past it, and that
// tools/pages/environment.md shows what has an effect.
#include "fp8/runtime/io/base/environment.h"

#include <regex>

#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/io/json/json.h"
#include "support/golden.h"
#include "support/scoped_variable.h"
#include "support/temp_dir.h"

namespace fp8::io {
namespace {

const fs::path kRoot = FP8_SOURCE_DIR;

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

/// The file beside this one: values by what a row says it allows, rows whose values no text can tell good from bad, and
/// names that documents give to variables.
const Json& names_and_values() {
  static const Json all = read_json(kRoot / "tests/runtime/io/base/environment_test.json");
  return all;
}

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
    const auto found = names_and_values()["values"].find(row.allowed);
    if (found == names_and_values()["values"].end()) {
      EXPECT_THAT(names_and_values()["free"], Contains(row.allowed)) << "no values for it";
      EXPECT_EQ(problem_of(row, "whatever it is"), "");
      continue;
    }
    for (const std::string value : (*found)["good"]) EXPECT_EQ(problem_of(row, value), "");
    for (const std::string value : (*found)["bad"])
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
  for (const std::string name : names_and_values()["vendors"]) EXPECT_FALSE(variable(name.c_str()).in_effect) << name;
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
  std::istringstream lines(test::read_file(path));
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
  std::istringstream lines(test::read_file(kRoot / "runtime/io/base/environment.cpp"));
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
      found = found || test::read_file(path).find(wanted) != std::string::npos;
    EXPECT_TRUE(found) << row.name << ": nothing in " << reader << " asks for it";
  }
}

TEST(Readme, ShowsWhatHasAnEffect) {
  std::string table = "| variable | default | values | what it does |\n|---|---|---|---|\n";
  for (const Variable& row : variables()) {
    if (!row.in_effect) continue;
    table += "| `" + std::string(row.name) + "` | " + row.fallback + " | " + row.allowed + " | " + row.effect + " |\n";
  }
  const std::string readme = test::read_file(kRoot / "tools/pages/environment.md");
  EXPECT_TRUE(readme.find("\n" + table + "\n") != std::string::npos) << "tools/pages/environment.md should have:\n"
                                                                     << table;
}

// Names that documents, scripts and containers for the vendor's devices, Intel Neural Compressor, vLLM and launchers
// give to variables: each has a row, or stands below with the reason why it has none.

bool has_row(const std::string& name) {
  for (const Variable& row : variables())
    if (name == row.name) return true;
  return false;
}

/// Of the table of runtime variables, of the guides to training, inference and fp8, of vLLM's and of older scripts.
TEST(DocumentedVariables, HaveARow) {
  for (const std::string name : names_and_values()["documented"]) EXPECT_TRUE(has_row(name)) << name;
}

TEST(DocumentedVariables, OrAReason) {
  for (const auto& [reason, names] : names_and_values()["without_row"].items()) {
    EXPECT_GT(reason.size(), 20u) << names;
    for (const std::string name : names) EXPECT_FALSE(has_row(name)) << name << " has a row";
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
