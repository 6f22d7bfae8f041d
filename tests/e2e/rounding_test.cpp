// SPDX-License-Identifier: Apache-2.0
// fp8 quantize --rounding gptq: its gain, the same bytes from any number of processes, configs, budgets, and refusals.
#include "e2e/processes.h"
#include "support/values.h"

namespace fp8::e2e {
namespace {

struct Rounding : test::InFolder {
  /// A command that ends with --out, with a folder of this test and more options behind it.
  Arguments behind(Arguments command, const std::string& out, const Arguments& more) const {
    command.push_back((folder / out).string());
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
};

/// KL to the demo model on text that calibration never saw, in f32.
double kl_to_demo(const fs::path& model) {
  return json_of(
      fp8("evaluate --json --model {} --reference $DEMO --data $HELDOUT --samples 32 --seq-len 256 --dtype f32",
          model))["kl"];
}

TEST_F(Rounding, RoundingAgainstInputsLosesLess) {
  for (const Arguments& scheme : {args("--weights-only"), args("--dynamic"), args("--dynamic --scheme block:64"),
                                  args("--weights-only --scheme tensor")}) {
    const test::TempDir out;
    quantize(demo_model(), out / "nearest", args("--quiet {}", scheme));  // vLLM has no blocks of 64
    const auto json =
        json_of(fp8("quantize --json --model $DEMO --out {} --rounding gptq --data $CALIB --samples 32 "
                    "--seq-len 256 {}",
                    out / "gptq", scheme));
    const double nearest = kl_to_demo(out / "nearest"), gptq = kl_to_demo(out / "gptq");
    EXPECT_LT(gptq, (scheme[0] == "--dynamic" ? 0.8 : 0.5) * nearest) << scheme.back();
    EXPECT_EQ(json["rounding"]["modules"].size(), 28u);
    for (const auto& m : json["rounding"]["modules"]) {
      EXPECT_GE(m["db"].get<double>(), m["nearest_db"].get<double>()) << m;
      EXPECT_EQ(m["tokens"].get<int>() + m["held_back"].get<int>(), 32 * 256) << m;
      EXPECT_EQ(m["held_back"].get<int>(), 1024) << m;
    }
    EXPECT_EQ(io::read_json(out / "gptq/fp8.json")["rounding"], json["rounding"]);
    EXPECT_THAT(names_in(out.path()), UnorderedElementsAre("nearest", "gptq"));
    EXPECT_THAT(fp8("inspect {} --tensors-only", out / "gptq").out,
                HasSubstr("codes   rounded against inputs: output error of 28 modules"));
    if (scheme != args("--dynamic")) continue;
    json_of(fp8("convert --json --model {} --format modelopt --out {}", out / "gptq", out / "same"));
    EXPECT_EQ(io::read_json(out / "same/fp8.json")["rounding"], json["rounding"]);
    const auto anew =
        fp8("convert --model {} --format compressed-tensors --scheme tensor --out {}", out / "gptq", out / "anew");
    EXPECT_THAT(anew.out, HasSubstr("28 of 28 weights get new codes, the nearest"));
  }
}

TEST_F(Rounding, RoundedBitsDependOnNeitherThreadsNorBatchNorKills) {
  const Arguments command = args(
      "quantize --json --model $DEMO --dynamic --rounding gptq --data $CALIB --samples 16 "
      "--seq-len 256 --weight-scales mse --include lm_head --out");
  const auto with = [&](const std::string& out, const Arguments& more) { return behind(command, out, more); };
  json_of(fp8(with("whole", {})));
  const std::string expected = read_file(folder / "whole/model.safetensors");
  json_of(fp8(with("batches", args("--batch 3 --threads 1"))));
  EXPECT_TRUE(read_file(folder / "batches/model.safetensors") == expected);
  for (int i = 0; i < 20; ++i) {  // each goes on where the one before was killed
    auto process = start_fp8(with("killed", {"--resume"}));
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + 20 * i));
    process.send(SIGKILL);
    if (process.wait().code == 0) break;
  }
  json_of(fp8(with("killed", {"--resume"})));
  EXPECT_TRUE(read_file(folder / "killed/model.safetensors") == expected);
  EXPECT_FALSE(fs::exists(folder / ".killed.rounding"));
}

TEST_F(Rounding, RoundingRefusesWhatItCannotDo) {
  const auto refused = [&](const Arguments& more, const std::vector<std::string>& words, int code) {
    expect_refused(fp8("quantize --model $DEMO --rounding gptq --out {} {}", folder / "out", more), words, code);
    EXPECT_THAT(names_in(folder.path()), IsEmpty());
  };
  refused(args("--dynamic"), {"--rounding gptq needs --data"}, 2);
  refused(args("--dynamic --data $CALIB --device cpu"), {"--device"}, 2);
  refused(args("--dynamic --data $CALIB --seq-len 100000"), {"100000"}, 1);
  refused(args("--dynamic --data $CALIB --seq-len 100000 --rank 0/2"), {"100000"}, 1);
  refused(args("--dynamic --data $CALIB --samples 100000 --seq-len 64 --budget kl=1"),
          {"--budget judges on the text behind"}, 1);
  const Model foreign;
  foreign.edit("config.json", [](io::Json& config) { config["model_type"] = "mine"; });
  expect_refused(
      fp8("quantize --model {} --dynamic --rounding gptq --data $CALIB --out {}", foreign.name(), folder / "out"),
      {"--rounding runs the model", "mine"}, 2);
}

TEST_F(Rounding, RanksAndSharesRoundLayersOnce) {
  const Arguments command =
      args("quantize --json --model $DEMO --dynamic --rounding gptq --data $CALIB --samples 8 --seq-len 128 --out");
  const auto with = [&](const std::string& out, const Arguments& more) { return behind(command, out, more); };
  json_of(fp8(with("whole", {})));
  const auto whole = contents(folder / "whole");
  Processes processes;
  std::vector<std::size_t> ranks;
  for (const char* rank : {"0", "1", "2"})
    ranks.push_back(processes.start(with("ranks", args("--shard-size 500000 --rank {} --world-size 3", rank))));
  for (const auto i : ranks) EXPECT_EQ(processes.wait(i).code, 0);
  json_of(fp8(with("ranks", args("--rank 0/3 --dry-run --budget kl=1"))));
  const Arguments join = args("--join 3 --shard-size 500000");
  ASSERT_TRUE(fs::remove(folder / ".ranks.rounding/model.layers.1.safetensors"));
  expect_refused(fp8(with("ranks", join)), {".ranks.rounding", "no codes of 1 layers", "model.layers.1"}, 1);
  json_of(fp8(with("ranks", args("--shard-size 500000 --rank 1/3 --resume"))));
  json_of(fp8(with("ranks", join)));
  json_of(fp8(with("cut", args("--shard-size 500000"))));
  EXPECT_TRUE(contents(folder / "ranks") == contents(folder / "cut"));
  for (const char* rank : {"0", "1", "2"})
    json_of(fp8(with("ranks", args("--shard-size 500000 --rank {} --world-size 3 --overwrite", rank))));
  json_of(fp8(with("ranks", args("--join 3 --shard-size 500000 --overwrite"))));
  EXPECT_TRUE(contents(folder / "ranks") == contents(folder / "cut"));
  EXPECT_EQ(io::read_json(folder / "ranks/fp8.json")["rounding"], io::read_json(folder / "whole/fp8.json")["rounding"]);
  auto killed = processes.start(with("shares", args("--shares 2 --join wait:60")));
  ::usleep(700000);
  processes.kill(killed);
  const auto one = processes.start(with("shares", args("--shares 2 --join wait:60"))),
             two = processes.start(with("shares", args("--shares 2 --join wait:60 --batch 2")));
  for (const auto i : {one, two}) EXPECT_EQ(processes.wait(i).code, 0);
  EXPECT_TRUE(contents(folder / "shares") == whole);
  const auto again = json_of(fp8(with("shares", {"--resume"})));
  EXPECT_EQ(again["finished_before"], true);
  EXPECT_EQ(again["rounding"]["modules"].size(), 28u);
  EXPECT_THAT(names_in(folder.path()), UnorderedElementsAre("whole", "ranks", "cut", "shares"));
}

TEST_F(Rounding, AConfigRoundsToo) {
  measure(demo_model(), calibration_text(), folder / "stats", "6");
  const auto quantized = [&](const std::string& out, io::Json keys, const Arguments& more) {
    keys["dump_stats_path"] = (folder / "stats/inc_output").string();
    keys["allowlist"] = {{"types", {"Linear"}}};
    write_file(folder / "config.json", keys.dump());
    const auto run = succeeded(
        fp8("quantize --json --model $DEMO --config {} --out {} {}", folder / "config.json", folder / out, more));
    return run;
  };
  const Arguments data = args("--data $CALIB --samples 32 --seq-len 256");
  const io::Json gptq = {{"method", "gptq"}, {"dampening_frac", 0.02}, {"actorder", nullptr}};
  quantized("nearest", {{"scale_method", "maxabs_hw"}}, {});
  const auto json = json_of(quantized("gptq", {{"scale_method", "maxabs_hw"}, {"rounding", gptq}}, data));
  EXPECT_LT(kl_to_demo(folder / "gptq"), 0.9 * kl_to_demo(folder / "nearest"));
  expect_values(json["rounding"], {{"dampening_frac", 0.02}, {"actorder", nullptr}});
  EXPECT_EQ(json["rounding"]["modules"][0]["damping"], 0.02);
  expect_refused(fp8("quantize --model $DEMO --config {} --out {}", folder / "config.json", folder / "none"),
                 {"config.json: key 'rounding' needs --data"}, 2);
  const auto on_load = fp8(args("evaluate --model $DEMO --data $HELDOUT --samples 1 --seq-len 16"),
                           {{"QUANT_CONFIG", (folder / "config.json").string()}});
  expect_refused(on_load, {"key 'rounding'", "fp8 quantize --config"}, 1);
  const auto searched = quantized("mse", {{"scale_method", "maxabs_arbitrary"}, {"weight_scale_search", "mse"}}, {});
  EXPECT_THAT(searched.out, HasSubstr("scales of least error"));
  const auto kept = quantized("kept", {{"scale_method", "maxabs_hw"}, {"weight_scale_search", "mse"}}, {});
  EXPECT_THAT(kept.err, HasSubstr("'weight_scale_search': 29 of 29 modules keep the scales of scale_method"));
  EXPECT_TRUE(read_file(folder / "kept/model.safetensors") == read_file(folder / "nearest/model.safetensors"));
}

TEST_F(Rounding, ABudgetJudgesRoundedCodesAndGivesAwayActivationsFirst) {
  const auto with = [&](const std::string& out, const std::string& budget) {
    return json_of(
        fp8("quantize --json --model $DEMO --dynamic --rounding gptq --data $CALIB --samples 8 --seq-len 128 --budget "
            "{} --out {}",
            budget, folder / out));
  };
  const auto all = with("all", "kl=1");
  const double kl_of_all = all["budget"]["kl_of_all"];
  for (const double share : {0.6, 0.1}) {
    const std::string out = share > 0.5 ? "some" : "few";
    const auto json = with(out, "kl=" + std::to_string(share * kl_of_all));
    const auto& budget = json["budget"];
    EXPECT_EQ(budget["kl_of_all"], kl_of_all);
    EXPECT_LE(budget["kl"].get<double>(), share * kl_of_all);
    EXPECT_FALSE(budget["weights_only"].empty());
    EXPECT_EQ(budget["kept"].empty(), share > 0.5) << budget["kept"];
    EXPECT_EQ(json["weights_bytes"] == all["weights_bytes"], share > 0.5);
    const double found =
        json_of(fp8("evaluate --json --model {} --reference $DEMO --data $CALIB --skip 8 --samples 8 "
                    "--seq-len 128",
                    folder / out))["kl"];
    EXPECT_EQ(found, budget["kl"].get<double>()) << "what ran in memory is what the file has";
    EXPECT_EQ(json["rounding"]["modules"].size(), json["modules_quantized"]);
    const auto groups = io::read_json(folder / out / "config.json")["quantization_config"];
    if (share > 0.5) {
      EXPECT_EQ(groups["format"], "mixed-precision");
      EXPECT_EQ(groups["config_groups"]["group_1"]["targets"].size(), budget["weights_only"].size());
    }
  }
}

TEST_F(Rounding, AFewTokensLeaveNearest) {
  quantize(demo_model(), folder / "nearest", args("--dynamic"));
  const auto run = succeeded(fp8(
      "quantize --model $DEMO --dynamic --rounding gptq --data $CALIB --samples 1 --seq-len 64 --dtype f32 --out {}",
      folder / "few"));
  EXPECT_THAT(run.err, HasSubstr("28 of 28 modules have more columns"));
  EXPECT_THAT(run.out, HasSubstr("28 kept nearest"));
  EXPECT_TRUE(read_file(folder / "few/model.safetensors") == read_file(folder / "nearest/model.safetensors"));
}

}  // namespace
}  // namespace fp8::e2e
