// SPDX-License-Identifier: Apache-2.0
#include <sys/syscall.h>

#include "support/launchers.h"
#include "support/values.h"
#include "tools/commands/quantize/ones_checkpoint.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

using Variables = std::map<std::string, std::string>;

/// `fp8 doctor --json` in this environment.
test::Run doctor(const Variables& environment) { return run_fp8({"doctor", "--json"}, {.environment = environment}); }

/// What a run printed that found these problems, each of them by a text or a matcher.
io::Json with_problems(const test::Run& run, const std::vector<::testing::Matcher<std::string>>& problems) {
  EXPECT_EQ(run.code, 1) << run.err;
  const auto json = io::parse_json(run.out, "stdout");
  EXPECT_THAT(json["problems"].get<std::vector<std::string>>(), ::testing::ElementsAreArray(problems));
  return json;
}

TEST(Doctor, SaysWhatIsInForceAndWhereItCameFrom) {
  const auto json = json_of(run_fp8(args("doctor --json --threads 3"),
                                    {.environment = {{"FP8_SIMD", "scalar"}, {"FP8_HPU_DEVICE", "gaudi2"}}}));
  expect_values(json, {{"simd_level", "scalar"}, {"threads", 3}, {"libtorch_threads", 3}});
  EXPECT_THAT(json["libtorch"].get<std::string>(), StartsWith("2."));
  expect_values(json["environment"]["FP8_HPU_DEVICE"], {{"value", "gaudi2"}, {"source", "environment"}});
  EXPECT_EQ(json["environment"]["FP8_TRACE"]["source"], "default");
  EXPECT_TRUE(json["problems"].empty());
}

/// What a library attempts that is loaded as a stranger's bytes might make a reader attempt it: name and errno.
std::string attempts(std::map<std::string, std::string> environment, const std::string& option = "--quiet") {
  const auto run = run_fp8({"doctor", "--json", option, "--load", FP8_SANDBOX_PROBE}, {.environment = environment});
  const std::string text = run.err;
  return text.substr(0, text.find("unshare") + 9);
}

TEST(Sandbox, NothingIsStartedAndNobodyIsCalled) {
  const std::string refused = "exec 1\nsocket 1\nptrace 1\nio_uring 1\nunshare 1";  // EPERM
  EXPECT_EQ(attempts({}), refused);
  EXPECT_EQ(attempts({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "exec 1\nsocket 0\nptrace 1\nio_uring 1\nunshare 1");
  const std::string off = attempts({{"FP8_SANDBOX", "0"}});
  EXPECT_THAT(off, StartsWith("exec 2\nsocket 0\nptrace 3\n"));  // ENOENT, ESRCH: the kernel's own answers
  EXPECT_EQ(attempts({}, "--no-sandbox"), off);
  EXPECT_EQ(attempts({{"FP8_SANDBOX", "1"}}), refused);
}

/// Of version 2, with which files can be moved between folders.
bool has_landlock() { return syscall(SYS_landlock_create_ruleset, nullptr, 0, 1U) >= 2; }

/// A reader that opens another file where it should open a model's config.json, as if the bytes before had made it.
struct TurnedReader : InFolder {
  TurnedReader() {
    fs::create_directory(folder / "secret");
    std::ofstream(secret()) << "root:x:0:0";
    fs::create_directory(folder / "outputs");
    std::ofstream(beside()) << "as it was";
  }
  fs::path secret() const { return folder / "secret/passwd"; }
  fs::path beside() const { return folder / "outputs/beside.txt"; }

  test::Run quantize(const fs::path& opens, Variables more = {}) const {
    more.insert({{"LD_PRELOAD", FP8_TURNED_READER},
                 {"FP8_TEST_TURNS_AT", "ones/config.json"},
                 {"FP8_TEST_OPENS", opens.string()}});
    return run_fp8(args("quantize {} -o {} --dynamic", model_, folder / "outputs/q"), {.environment = more});
  }

  const std::string model_ = test::write_ones(folder / "ones", {{"blocks.0.mix.weight", {32, 32}}},
                                              R"({"model_type": "nobody_knows", "vocab_size": 64})");
};

TEST_F(TurnedReader, OpensNothingThatWasNotNamed) {
  if (!has_landlock()) GTEST_SKIP() << "this kernel has no Landlock";
  for (const fs::path& file : {secret(), fs::path("/etc/passwd"), beside()}) {
    const auto run = quantize(file);
    expect_failed(run, {"ones/config.json", "ermission denied"});
    EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
    EXPECT_THAT(quantize(file, {{"FP8_SANDBOX", "0"}}).err, Not(HasSubstr("ermission denied")));
  }
  EXPECT_EQ(names_in(folder / "outputs"), std::vector<std::string>{"beside.txt"});
}

TEST_F(TurnedReader, ChangesNothingBesideTheOutput) {
  if (!has_landlock()) GTEST_SKIP() << "this kernel has no Landlock";
  expect_failed(quantize(beside(), {{"FP8_TEST_CHANGES", "1"}}), {"ones/config.json", "ermission denied"});
  EXPECT_EQ(read_file(beside()), "as it was");
  expect_failed(quantize(beside(), {{"FP8_TEST_CHANGES", "1"}, {"FP8_SANDBOX", "0"}}));
  EXPECT_EQ(read_file(beside()), "changedas");
}

/// Links of a hub's cache lead beside the folder that was named.
TEST_F(TurnedReader, ReadsWhatTheModelsLinksLeadTo) {
  const fs::path cache = folder / "models--a--b", snapshot = cache / "snapshots/1";
  fs::create_directories(snapshot);
  fs::create_directories(cache / "blobs");
  for (const auto& name : names_in(model_)) {
    fs::copy(fs::path(model_) / name, cache / "blobs" / name);
    fs::create_symlink("../../blobs/" + name, snapshot / name);
  }
  EXPECT_EQ(run_fp8(args("quantize {} -o {} --dynamic", snapshot, folder / "outputs/q")).code, 0);
  EXPECT_TRUE(fs::exists(folder / "outputs/q/config.json"));
}

TEST(Sandbox, DoctorSaysWhatIsInForce) {
  const auto found = [](std::map<std::string, std::string> environment) {
    return json_of(run_fp8({"doctor", "--json"}, {.environment = std::move(environment)}))["sandbox"];
  };
  const std::string files = has_landlock() ? ", no other file" : ", any file: this kernel has no Landlock";
  EXPECT_THAT(found({}), StartsWith("no other program, no network" + files));
  EXPECT_THAT(found({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), StartsWith("no other program" + files));
  EXPECT_EQ(found({{"FP8_EXTENSIONS", FP8_SANDBOX_PROBE}}),
            "no other program, no network, but any file: " FP8_SANDBOX_PROBE " may need it");
  EXPECT_EQ(found({{"FP8_SANDBOX", "0"}}), "off: FP8_SANDBOX=0");
  expect_failed(run_fp8({"doctor"}, {.environment = {{"FP8_SANDBOX", "off"}}}), {"FP8_SANDBOX", "allowed: 0, 1"});
}

TEST(Doctor, TableForPeople) {
  const auto run = succeeded(run_fp8({"doctor"}, {.environment = {{"FP8_SIMD", "scalar"}}}));
  EXPECT_THAT(run.out, HasSubstr("SIMD level in use"));
  EXPECT_EQ(run.out.find('\x1b'), std::string::npos);
  EXPECT_THAT(run.out, ::testing::EndsWith("\nready: every command runs here, the kernels with scalar (slow)\n"));
}

TEST(Doctor, WrongSettingsAreProblems) {
  const auto run = doctor({{"FP8_SIMD", "avx9"},
                           {"FP8_HPU_DEVICE", "gaudi7"},
                           {"FP8_HPU_DEVICES", "x"},
                           {"QUANT_CONFIG", "/no/such.json"}});
  expect_failed(run);
  const auto json =
      with_problems(run, {HasSubstr("avx9"), "FP8_HPU_DEVICE: found 'gaudi7', allowed: gaudi, gaudi2, gaudi3",
                          HasSubstr("FP8_HPU_DEVICES: found 'x'"), HasSubstr("QUANT_CONFIG: /no/such.json")});
  EXPECT_THAT(json["verdict"].get<std::string>(), HasSubstr("not ready"));
}

TEST(Doctor, ExtensionsThatCantBeLoadedAreProblems) {
  const auto run =
      run_fp8(args("doctor --json --load {}", ""), {.environment = {{"FP8_EXTENSIONS", "/no/such.so:/no/other.so"}}});
  const auto json =
      with_problems(run, {HasSubstr("found ''"), HasSubstr("found '/no/such.so', which can't be loaded: "),
                          HasSubstr("found '/no/other.so', which")});
  EXPECT_TRUE(json["extensions"].empty());
}

/// The rows that lightning-habana's tests create tensors of, by generation.
TEST(Doctor, WhichDtypesTheDeviceTakes) {
  const auto device =
      json_of(run_fp8(args("doctor --device --json"),
                      {.environment = {{"FP8_HPU_DEVICE", "gaudi"}, {"FP8_HPU_DEVICES", "3"}}}))["device"];
  expect_values(device, {{"name", "GAUDI"}, {"devices", 3}, {"lazy", false}, {"fp8", false}, {"fp16", false}});
  const io::Json& dtypes = device["dtypes"];
  for (const char* name : {"int8", "int16", "int32", "int64", "float32", "bfloat16", "bool"})
    for (const char* kind : {"GAUDI", "GAUDI2", "GAUDI3"}) EXPECT_EQ(dtypes[name][kind][0], "tensors") << name << kind;
  for (const char* name : {"float16", "float8_e5m2", "float8_e4m3fn"}) {
    EXPECT_TRUE(dtypes[name]["GAUDI"].empty()) << name;
    for (const char* kind : {"GAUDI2", "GAUDI3"}) EXPECT_EQ(dtypes[name][kind][0], "tensors") << name << kind;
    EXPECT_EQ(dtypes[name]["emulation_only"], false);
  }
  EXPECT_EQ(dtypes["float16"]["GAUDI3"], io::Json({"tensors", "mm", "conv", "autocast"}));
  EXPECT_EQ(dtypes["float64"]["emulation_only"], true);
}

TEST(Doctor, TheTableOfDtypesForPeople) {
  const auto bare = succeeded(run_fp8({"doctor", "--device"}, {.environment = {{"FP8_HPU_DEVICE", "gaudi2"}}}));
  EXPECT_THAT(bare.out,
              ::testing::ContainsRegex("\ndtype  +GAUDI  +GAUDI2 .in use.  +GAUDI3  +on the vendor's list\n"));
  EXPECT_THAT(bare.out, ::testing::ContainsRegex("\nfloat8_e4m3fn  +no  +tensors, mm  +tensors, mm  +yes\n"));
  EXPECT_EQ(run_fp8(args("doctor --device hpu"), {.environment = {{"FP8_HPU_DEVICE", "gaudi2"}}}).out, bare.out);
  EXPECT_THAT(run_fp8({"doctor"}).out, Not(HasSubstr("float8_e4m3fn")));
  expect_failed(run_fp8("doctor --device cpu"), {"doctor: --device: found 'cpu', allowed: hpu"}, 2);
}

TEST(Doctor, AWrongDeviceHasNoName) {
  const auto run = run_fp8(args("doctor --device --json"),
                           {.environment = {{"FP8_HPU_DEVICE", "gaudi9"}, {"FP8_HPU_DEVICES", "x"}}});
  EXPECT_EQ(run.code, 1);
  const auto device = io::parse_json(run.out, "stdout")["device"];
  for (const char* key : {"name", "devices", "fp8", "fp16"}) EXPECT_TRUE(device[key].is_null()) << key;
  EXPECT_EQ(device["dtypes"]["float16"]["GAUDI"], io::Json::array());
}

TEST(Doctor, EveryVariableWithItsDefault) {
  const auto listed = json_of(doctor({{"QUANT_CONFIG", ""}, {"LOG_LEVEL_INC", "3"}}))["environment"];
  EXPECT_EQ(listed.size(), io::variables().size());
  for (const io::Variable& row : io::variables()) {
    ASSERT_TRUE(listed.contains(row.name)) << row.name;
    EXPECT_EQ(listed[row.name]["default"], row.fallback);
    EXPECT_EQ(listed[row.name]["allowed"], row.allowed);
    EXPECT_EQ(listed[row.name]["type"], row.rule.type);
    EXPECT_EQ(listed[row.name]["effect"], row.effect);
  }
  expect_values(listed["LOG_LEVEL_INC"], {{"value", "3"}, {"in_effect", false}});
  EXPECT_TRUE(listed["QUANT_CONFIG"]["value"].is_null());  // empty is not set
}

TEST(Doctor, PeopleSeeTheVariablesThatAreSet) {
  const auto run = succeeded(run_fp8({"doctor"}, {.environment = {{"HABANA_LOGS", "/var/logs"}, {"LOWER_LIST", ""}}}));
  EXPECT_THAT(run.out, AllOf(HasSubstr("HABANA_LOGS"), HasSubstr("/var/logs"), Not(HasSubstr("LOWER_LIST"))));
}

TEST(Doctor, WhatNoCommandRefusesIsAProblemToo) {
  auto environment = test::no_launcher();
  environment.insert({{"PT_HPU_FP8_MINIMIZE_MEMORY", "true"}, {"LOG_LEVEL_INC", "9"}, {"FP8_HPU_DEVCE", "gaudi2"}});
  environment["WORLD_SIZE"] = "eight";
  environment["MASTER_PORT"] = "http";
  const auto run = doctor(environment);
  expect_failed(run);
  with_problems(run, {"PT_HPU_FP8_MINIMIZE_MEMORY: found 'true', allowed: 0, 1",
                      "LOG_LEVEL_INC: found '9', allowed: an integer from 0 to 6",
                      "WORLD_SIZE: found 'eight', allowed: an integer from 1 to 65536",
                      "MASTER_PORT: found 'http', allowed: an integer from 1 to 65535",
                      "FP8_HPU_DEVCE: nobody reads it, did you mean FP8_HPU_DEVICE?"});
}

TEST(Doctor, RanksThatDoNotAddUpAreAProblem) {
  auto environment = test::no_launcher();
  environment["WORLD_SIZE"] = environment["RANK"] = "8";
  with_problems(doctor(environment),
                {"environment variable 'RANK': found '8', allowed: an integer from 0 to 7 (WORLD_SIZE is 8)"});
}

TEST(Doctor, AnAutocastListWithWhatACastRunsIsAProblem) {
  const test::TempDir dir;
  std::ofstream(dir / "lower") << "mm\nto\n_to_copy\n";
  with_problems(doctor({{"LOWER_LIST", (dir / "lower").string()}}),
                {AllOf(HasSubstr("LOWER_LIST"), HasSubstr("'to'"), HasSubstr("never cast")), HasSubstr("'_to_copy'")});
}

/// Variables with values that every command refuses.
const Variables kWrong = {{"FP8_HPU_DEVICE", "gaudi9"},
                          {"FP8_HPU_DEVICES", "0"},
                          {"FP8_HPU_MEMORY", "abc"},
                          {"FP8_SIMD", "avx9"},
                          {"PT_HPU_STOCHASTIC_ROUNDING_MODE", "9"},
                          {"PT_TE_FORCE_SR_BWD", "maybe"}};

TEST(Environment, WhatCannotBeMeantIsRefusedByEveryCommandThatComputes) {
  const test::TempDir dir;  // nothing that is named exists: the environment is looked at first
  const std::string model = (dir / "model").string(), out = (dir / "out").string();
  const std::vector<std::vector<std::string>> commands = {args("measure --model {} --data t.txt --out {}", model, out),
                                                          args("quantize --model {} --dynamic --out {}", model, out),
                                                          args("convert --model {} --format bf16 --out {}", model, out),
                                                          args("evaluate --model {} --data t.txt", model),
                                                          args("generate --model {} --prompt x", model),
                                                          args("train --init {} --data t.txt --out {}", model, out),
                                                          args("run m.jit --data x.wav --out {}", out),
                                                          {"inspect", model}};
  for (const auto& [name, value] : kWrong) {
    for (const auto& command : commands) {
      const auto run = run_fp8(command, {.environment = {{name, value}}});
      expect_failed(run);
      EXPECT_THAT(run.err, AllOf(HasSubstr(name), HasSubstr(value), HasSubstr("environment"))) << command[0];
      if (name != "FP8_HPU_DEVICE") break;  // one variable at all commands, the others at one
    }
    EXPECT_FALSE(std::filesystem::exists(out));
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"--version"}, {"--help"}, {"evaluate", "--help"}, {"train", "--version"}}) {
      const auto run = run_fp8(command, {.environment = {{name, value}}});
      EXPECT_EQ(run.code, 0) << name << " " << command[0] << run.err;
    }
    with_problems(doctor({{name, value}}), {AllOf(HasSubstr(name), HasSubstr(value), HasSubstr("allow"))});
  }
}

TEST(Doctor, AutocastListsAndWhereTheyCameFrom) {
  const test::TempDir dir;
  std::ofstream(dir / "lower", std::ios::binary) << "add\r\nmm\r\n# comment\r\n";
  const auto json = json_of(doctor({{"LOWER_LIST", (dir / "lower").string()}}));
  EXPECT_EQ(json["autocast"]["lower"], io::Json({"add", "mm"}));
  EXPECT_EQ(json["autocast"]["lower_from"], "LOWER_LIST (" + (dir / "lower").string() + ")");
  EXPECT_EQ(json["autocast"]["fp32"].size(), 49u);
  EXPECT_EQ(json["autocast"]["fp32_from"], "default");
}

TEST(Doctor, WrongAutocastListsAreWarningsAndProblems) {
  const test::TempDir dir;
  std::ofstream(dir / "lower") << "mm\nsofmax\n";
  const auto run = doctor(
      {{"PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", (dir / "lower").string()}, {"FP32_LIST", (dir / "none").string()}});
  EXPECT_THAT(run.err, AllOf(HasSubstr("fp8: warning: FP32_LIST: "), HasSubstr("nearest: 'softmax'")));
  const auto json = with_problems(run, {HasSubstr((dir / "none").string()), HasSubstr("found 'sofmax'")});
  EXPECT_EQ(json["autocast"]["fp32"].size(), 49u);
}

}  // namespace
}  // namespace fp8
