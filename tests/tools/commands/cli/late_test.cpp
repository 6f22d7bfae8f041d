// SPDX-License-Identifier: Apache-2.0
// Commands without LibTorch: its libraries are there by name, but are no libraries.
#include "fp8/tools/commands/cli/context.h"
#include "support/throws_with.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

struct WithoutTorch : ::testing::Test {
  WithoutTorch() {
    for (const char* name : {"libtorch.so", "libtorch_cpu.so", "libc10.so"}) std::ofstream(hidden_ / name) << "nothing";
  }
  test::Run run(const std::vector<std::string>& arguments) const {
    return run_fp8(arguments, {.environment = {{"LD_LIBRARY_PATH", hidden_.path().string()}}});
  }
  std::string run_json(std::vector<std::string> arguments) const {
    arguments.push_back("--json");
    const auto done = run(arguments);
    EXPECT_EQ(done.code, 0) << arguments[0] << ": " << done.err;
    return done.out;
  }
  static std::string model() { return (test::demo_data() / "kjv-byte-1.7M").string(); }
  std::string at(const char* name) const { return (work_ / name).string(); }

  test::TempDir hidden_, work_;
};

/// Of every command: wrong usage, and what is said of it.
struct Misuse {
  std::vector<std::string> command, arguments;
  const char* message;
};
const Misuse kMisuses[] = {
    {{"measure"}, {"--model", "m", "--data", "d", "--out", "o", "--block-wise", "--whole"}, "--block-wise: excludes"},
    {{"measure"},
     {"--model", "m", "--data", "d", "--out", "o", "--pipeline", "--whole"},
     "--pipeline: excludes --whole"},
    {{"quantize"}, {"--model", "m", "--out", "o", "--scheme", "row"}, "--scheme: found 'row', allowed: tensor, "},
    {{"convert"}, {"--modle", "m"}, "convert: unknown option '--modle', did you mean '--model'?"},
    {{"evaluate"}, {"--model", "m", "--data", "d", "--kv-cache", "bf8"}, "--kv-cache: found 'bf8', allowed: auto, fp8"},
    {{"generate"}, {"--model", "m"}, "generate: one of --prompt, --prompt-file, --data is required"},
    {{"embed"}, {"--model", "m", "--data", "d"}, "embed: --out is required"},
    {{"train"}, {"--data", "d", "--out", "o", "--init", "c", "--recipe", "mxfp8"}, "--recipe: found 'mxfp8' with"},
    {{"run"}, {"m.pt", "--data", "i", "--out", "o", "--batch", "0"}, "--batch: found '0', allowed: an integer from 1"},
    {{"inspect"}, {}, "inspect: PATH is required"},
    {{"config"}, {"show", "quant.json"}, "config: found 'show', allowed: explain, check"},
    {{"measurements", "merge"}, {"stats"}, "merge: --out is required"},
    {{"measurements", "unify"}, {"--out", "o"}, "unify: PATH is required"},
    {{"measurements", "expand"}, {"--out", "o"}, "expand: PATH and --ranks are required"},
    {{"measurements", "postprocess"}, {"--keep"}, "postprocess: unknown option '--keep'"},
    {{"measurements", "diff"}, {"stats"}, "diff: AFTER is required"},
    {{"measurements", "show"}, {}, "show: PATH is required"},
    {{"doctor"}, {"--device", "gpu"}, "--device: found 'gpu', allowed: hpu, cpu"},
    {{"completion"}, {"tcsh"}, "SHELL: found 'tcsh', allowed: bash, zsh, fish"},
    {{"man"}, {"quantise"}, "man: unknown command 'quantise', did you mean 'quantize'?"},
};

TEST_F(WithoutTorch, HelpAndVersion) {
  EXPECT_THAT(run({"--help"}).out, HasSubstr("evaluate"));
  EXPECT_THAT(run({"--version"}).out, HasSubstr("fp8 "));
  std::string names, last;
  for (const auto& [command, arguments, message] : kMisuses) {
    if (command[0] != last) names += (names.empty() ? "" : ", ") + command[0];
    last = command[0];
    const auto help = run(args("{} --help", command));
    const auto name = command.size() > 1 ? command[0] + " " + command[1] : command[0];
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_EQ(help.err, "") << name;
    EXPECT_THAT(help.out, HasSubstr(name == "completion" ? ":\n  source <(fp8 completion bash)" : ":\n  fp8 " + name));
    EXPECT_THAT(help.out, HasSubstr("--quiet")) << name;
  }
  EXPECT_THAT(run({"--no"}).err, HasSubstr("--version or a command: " + names + "\n"));  // so the table has all
}

TEST_F(WithoutTorch, WrongUsageOfEveryCommand) {
  for (const auto& [command, arguments, message] : kMisuses) {
    const auto done = run(args("{} {}", command, arguments));
    expect_failed(done, {}, 2);
    EXPECT_THAT(done.err, HasSubstr(std::string("fp8: error: ") + message));
  }
}

TEST_F(WithoutTorch, CheckpointsAreQuantizedConvertedAndInspected) {
  io::parse_json(run_json(args("quantize --model $DEMO --dynamic --out {} --check", at("fp8"))), "quantize");
  io::parse_json(run_json(args("convert --model {} --format fp8 --scheme tensor --out {}", at("fp8"), at("tensor"))),
                 "convert");
  io::parse_json(run_json(args("convert --model {} --format bf16 --out {} --verify", at("tensor"), at("bf16"))),
                 "bf16");
  for (const auto& folder : {model(), at("fp8"), at("tensor"), at("bf16")})
    EXPECT_EQ(io::parse_json(run_json({"inspect", folder}), folder)["kind"], "checkpoint") << folder;
  EXPECT_EQ(io::parse_json(run_json(args("inspect $DEMO --plan")), "plan")["kind"], "plan");
}

TEST_F(WithoutTorch, ConfigsAndMeasurementsAreReadAndMerged) {
  std::ofstream(work_ / "quant.json") << R"({"mode": "MEASURE", "observer": "percentile"})";
  EXPECT_EQ(io::parse_json(run_json(args("config check {}", at("quant.json"))), "check")["ok"], true);
  const auto explained = io::parse_json(run_json(args("config explain {} --model $DEMO", at("quant.json"))), "explain");
  EXPECT_GT(explained["model"]["selected"].get<int>(), 0);
  for (const char* stats : {"one", "two"}) {
    const auto measured = succeeded(run_fp8("measure --model $DEMO --data $CALIB --samples 2 --out {}", at(stats)));
  }
  run_json(args("measurements merge {} {} --out {}", at("one"), at("two"), at("merged")));
  run_json(args("measurements diff {} {}", at("one"), at("merged")));
  EXPECT_EQ(io::parse_json(run_json({"inspect", at("merged")}), "inspect")["kind"], "measurement");
  run_json(args("quantize --model $DEMO --measurements {} --out {}", at("merged"), at("static")));
}

TEST_F(WithoutTorch, WhatNeedsItSaysSoInOneLine) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           args("evaluate --model $DEMO --data x"), args("generate --model $DEMO --prompt x"),
           args("embed --model $DEMO --data x --out {}", at("vectors")),
           args("measure --model $DEMO --data x --out {}", at("stats")),
           args("train --init $DEMO --data x --out {}", at("run")), args("run x.pt --data x --out {}", at("output")),
           args("inspect $DEMO --data x"),
           args("quantize --model $DEMO --dynamic --budget kl=1 --data x --out {}", at("budget"))})
    expect_failed(run(arguments), {"fp8: error: LibTorch is needed here and can't be loaded: "});
  EXPECT_TRUE(std::filesystem::is_empty(work_.path()));
}

TEST_F(WithoutTorch, DoctorSaysThatItIsMissing) {
  const auto json = io::parse_json(run_json({"doctor"}), "doctor");
  EXPECT_TRUE(json["libtorch"].is_null());
  EXPECT_THAT(json["libtorch_missing"].get<std::string>(), HasSubstr("LibTorch"));
  EXPECT_THAT(run({"doctor"}).out, HasSubstr("not found"));
}

TEST_F(WithoutTorch, AnotherLibTorchIsNamed) {
  const auto done =
      run_fp8(args("generate --model $DEMO --prompt x"), {.environment = {{"FP8_LIBTORCH", hidden_.path().string()}}});
  expect_failed(done);
  EXPECT_THAT(done.err,
              HasSubstr("FP8_LIBTORCH: found '" + hidden_.path().string() + "', allowed: a folder with lib/"));
  const auto doctor = run_fp8({"doctor"}, {.environment = {{"FP8_LIBTORCH", hidden_.path().string()}}});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.out, HasSubstr("problem: FP8_LIBTORCH: found"));
}

TEST(Late, IsCalledAsSoonAsItIsProvided) {
  commands::Late<int(int, const std::string&)> late;
  late.provide([](int a, const std::string& b) { return a + static_cast<int>(b.size()); });
  EXPECT_EQ(late(2, "abc"), 5);
}

/// This program has late_static.cpp in the place of late.cpp.
TEST(Late, WhatIsNotThereIsWrongUsageOfTheStaticProgram) {
  const commands::Late<void()> late;
  EXPECT_ERROR(commands::UsageError, late(), "run the full program, fp8, with the same arguments");
}

}  // namespace
}  // namespace fp8
