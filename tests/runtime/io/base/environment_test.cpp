// SPDX-License-Identifier: Apache-2.0
// The table of environment variables: what each row takes and refuses, that nothing is read past it, and that the
// README shows it.
#include "fp8/runtime/io/base/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>

#include "fp8/runtime/io/base/launcher.h"

namespace fp8::io {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kRoot = FP8_SOURCE_DIR;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Sources below a folder of the tree, but the one that holds the table.
std::vector<fs::path> sources(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
    const fs::path& path = entry.path();
    if (path.extension() != ".cpp" && path.extension() != ".h") continue;
    if (fs::relative(path, kRoot) != "runtime/io/base/environment.cpp") files.push_back(path);
  }
  return files;
}

/// A variable for one test.
class Set {
 public:
  Set(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Set() { unsetenv(name_); }

 private:
  const char* name_;
};

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
    {"cpu, hpu, cuda, xpu", {{"cpu", "HPU", "Cuda", "xpu"}, {"hpux", "gpu"}}},
    {"1, 2, 3, 5", {{"1", "2", "3", "5"}, {"0", "4", "6", "x"}}},
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
                                     "a name or an address",
                                     "an interface",
                                     "an integer from 1 on",
                                     "passive, active"};

TEST(Variables, EachIsWhole) {
  std::set<std::string> names;
  for (const Variable& row : variables()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " stands there twice";
    for (const std::string text : {row.name, row.effect, row.allowed, row.fallback, row.reader}) {
      EXPECT_FALSE(text.empty()) << row.name;
      EXPECT_EQ(text.find_first_of("|\n"), std::string::npos) << row.name << ": a table has no place for " << text;
    }
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
    for (const char* value : found->second.bad) {
      EXPECT_EQ(problem_of(row, value), std::string(row.name) + ": found '" + value + "', allowed: " + row.allowed);
    }
  }
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
    const Set wrong("FP8_HPU_MEMORY", "abc");
    EXPECT_STREQ(environment_value("FP8_HPU_MEMORY"), "abc");
    EXPECT_EQ(environment_problem("FP8_HPU_MEMORY"),
              "FP8_HPU_MEMORY: found 'abc', allowed: a number of bytes > 0, K, M or G may follow");
  }
  const Set empty("FP8_HPU_MEMORY", "");
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
                                     "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"));
}

TEST(Misspelled, IsWhatWasMeant) {
  const std::map<std::string, std::string> meant = {{"FP8_SIMDD", "FP8_SIMD"},
                                                    {"FP8_Simd", "FP8_SIMD"},
                                                    {"FP8_TRACES", "FP8_TRACE"},
                                                    {"FP8_HPU_DEVCE", "FP8_HPU_DEVICE"},
                                                    {"FP8_HPU_MEM", "FP8_HPU_MEMORY"},
                                                    {"PT_TE_FORCE_SR_BW", "PT_TE_FORCE_SR_BWD"},
                                                    {"PT_HPU_FP8_MINIMISE_MEMORY", "PT_HPU_FP8_MINIMIZE_MEMORY"}};
  for (const auto& [name, known] : meant) EXPECT_EQ(intended_variable(name), known);
}

TEST(Misspelled, OtherProgramsVariablesAreTheirs) {
  for (const char* name : {"FP8_", "FP8_SIZE", "FP8_TYPE", "FP8_DTYPE", "FP8_BUILD", "FP8_TEST_DATA", "FP8_TEST_PYTHON",
                           "FP8_TEST_VLLM", "PT_HPU_LAZY_MODE", "PT_HPU_WEIGHT_SHARING", "RANKS", "QUANT_CONFI"})
    EXPECT_EQ(intended_variable(name), "") << name;
  for (const Variable& row : variables()) EXPECT_EQ(intended_variable(row.name), "") << row.name;
}

TEST(Misspelled, AreFoundInThisProcess) {
  const Set wrong("FP8_HPU_DEVCE", "gaudi2"), other("FP8_OF_ANOTHER_PROGRAM", "1");
  EXPECT_THAT(misspelled_variables(),
              ::testing::ElementsAre("FP8_HPU_DEVCE: nobody reads it, did you mean FP8_HPU_DEVICE?"));
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

TEST(Sources, AskTheTable) {
  for (const char* folder : {"runtime", "recipes", "configs", "measure", "quant", "transformer_engine", "tools"}) {
    for (const auto& path : sources(folder)) {
      for (const char* call : {"getenv(", "getenv;", "environ;"})
        EXPECT_EQ(text_of(path).find(call), std::string::npos)
            << path << " reads the environment past runtime/io/base/environment.h";
    }
  }
}

TEST(Sources, EachVariableIsReadWhereItsRowSays) {
  for (const Variable& row : variables()) {
    const std::string reader = row.reader, quoted = '"' + std::string(row.name) + '"';
    if (reader == "LibTorch" || reader == "nobody") continue;
    ASSERT_TRUE(fs::is_directory(kRoot / reader)) << row.name;
    bool found = false;
    for (const auto& path : sources(reader)) found = found || text_of(path).find(quoted) != std::string::npos;
    EXPECT_TRUE(found) << row.name << ": nothing in " << reader << " asks for it";
  }
}

TEST(Readme, ShowsTheTable) {
  std::string table = "| variable | default | values | what it does |\n|---|---|---|---|\n";
  for (const Variable& row : variables()) {
    table += "| `" + std::string(row.name) + "` | " + row.fallback + " | " + row.allowed + " | " +
             (row.in_effect ? "" : "none: ") + row.effect + " |\n";
  }
  const std::string readme = text_of(kRoot / "tools/README.md");
  EXPECT_TRUE(readme.find("\n" + table + "\n") != std::string::npos) << "tools/README.md should have:\n" << table;
}

}  // namespace
}  // namespace fp8::io
