// SPDX-License-Identifier: Apache-2.0
// The program trains a small model: what it leaves behind, what `fp8 evaluate` says about it, that a run which was
// killed or interrupted and resumed is the run that was not, and what it refuses.

#include "support/child.h"
#include "support/golden.h"
#include "tools/commands/train/train_run.h"

namespace fp8 {
namespace {

class Train : public test::TrainingFolder {};

TEST_F(Train, LearnsAndLeavesACheckpointThatEvaluateLoads) {
  const auto run = run_train(folder, "run", "--save-dtype f32 --eval $HELDOUT --eval-every 15 --grad-accum 2");
  const auto json = json_of(run);
  const auto log = log_of(folder / "run");
  ASSERT_EQ(log.size(), 40u);
  double last = 0;
  for (std::size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i]["step"], i + 1);
    EXPECT_EQ(log[i]["tokens"], 2 * 4 * 64);
    EXPECT_GT(log[i]["seconds"].get<double>(), 0);
    EXPECT_GT(log[i]["grad_norm"].get<double>(), 0);
    EXPECT_GT(log[i]["memory"]["max"].get<std::int64_t>(), 0);
    EXPECT_EQ(log[i].contains("eval_loss"), i == 14 || i == 29 || i == 39) << i;
    if (i >= 20) last += log[i]["loss"].get<double>() / 20;
  }
  EXPECT_NEAR(log[0]["loss"].get<double>(), std::log(256), 0.1);  // drawn weights know nothing
  EXPECT_LT(last, 3.2);
  EXPECT_DOUBLE_EQ(log[0]["lr"].get<double>(), 0.0025);
  EXPECT_DOUBLE_EQ(log[4]["lr"].get<double>(), 0.01);
  EXPECT_NEAR(json["loss_last20"].get<double>(), last, 1e-12);
  EXPECT_EQ(json["tokens"], 40 * 2 * 4 * 64);
  EXPECT_GT(json["tokens_per_second"].get<double>(), 0);

  EXPECT_NEAR(json["eval_loss"].get<double>(),
              std::log(json_of(run_fp8("evaluate --model {} --data $HELDOUT --seq-len 64 --threads 1 --json",
                                       folder / "run"))["perplexity"]
                           .get<double>()),
              1e-5);
}

TEST_F(Train, SaysEachEvaluationWhereThereIsNoTerminal) {
  auto list = arguments(folder, "run", "--eval $HELDOUT --eval-every 15");
  std::erase(list, "--json");
  const auto run = succeeded(run_fp8(list));
  std::istringstream lines(run.err);
  for (const char* step : {"15", "30", "40"}) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line)) << run.err;
    EXPECT_THAT(line, ::testing::MatchesRegex("fp8: train: step " + std::string(step) +
                                              " of 40, loss .*, lr .*, .* tokens/s, eval loss .*"));
  }
}

// These ranks give each byte its own number, as the demo's tokenizer.json does: the same ids, the same run.
TEST_F(Train, ATokenizerOfRanksIsTakenAndGoesAlong) {
  fs::create_directories(folder / "ranks");
  std::ofstream ranks(folder / "ranks/bytes.tiktoken");
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int byte = 0; byte < 256; ++byte)
    ranks << kLetters[byte >> 2] << kLetters[(byte & 3) << 4] << "== " << byte << "\n";
  ranks.close();
  const auto json = succeeded(run_train(folder, "json", "--steps 3 --warmup 1"));
  for (const char* const path : {"ranks", "ranks/bytes.tiktoken"}) {
    const auto run = succeeded(run_train(folder, "run", "--steps 3 --warmup 1 --tokenizer {}", folder / path));
    EXPECT_EQ(read_file(folder / "run/model.safetensors"), read_file(folder / "json/model.safetensors"));
    EXPECT_EQ(read_file(folder / "run/bytes.tiktoken"), read_file(folder / "ranks/bytes.tiktoken"));
    EXPECT_FALSE(fs::exists(folder / "run/tokenizer.json"));
    fs::remove_all(folder / "run");
  }
}

// 2,496 chunks: the third step of an epoch has 496 of them, and other sizes.
TEST_F(Train, CountsGraphsAndNamesWhatMakesANewOne) {
  std::ofstream five(folder / "five.txt");  // sequences of 64
  for (int i = 0; i < 11; ++i) five << "In the beginning was the word. ";
  five.close();
  const auto later = [&](const char* out, const std::string& flags) {
    const auto json = json_of(run_fp8(
        arguments(folder, out, args(flags + " --steps 3 --warmup 1 --batch 2 --data {}", folder / "five.txt"))));
    EXPECT_EQ(json["graphs"]["steps"], 3);
    EXPECT_EQ(json["graphs"]["host_reads"].back()["op"], "aten::_local_scalar_dense");
    std::vector<std::string> places;
    for (const auto& graph : json["graphs"]["after_first_step"])
      if (graph["step"] == 3) places.push_back(graph["place"]);
    return places;
  };
  EXPECT_TRUE(later("whole", "--count-graphs --drop-last").empty());
  const auto places = later("ragged", "--count-graphs");
  EXPECT_TRUE(later("filled", "--count-graphs --last-batch fill").empty());
  ASSERT_EQ(places.size(), 2U);  // the loss is read in between: of forward, and of backward
  EXPECT_EQ(places[0], "module 'model.layers.0.input_layernorm'");
}

TEST_F(Train, GraphsAndLazyModeChangeNoByte) {
  io::Json keys = {{"use_habana", true}, {"learning_rate", 1e-3}};
  io::write_json((folder / "eager.json").string(), keys);
  keys.update({{"use_lazy_mode", true}, {"pipelining_fwd_bwd", true}, {"non_blocking_data_copy", true}});
  io::write_json((folder / "lazy.json").string(), keys);
  keys.update({{"use_hpu_graphs_for_training", true}, {"use_hpu_graphs_for_inference", true}, {"max_hpu_graphs", 3}});
  io::write_json((folder / "graphed.json").string(), keys);
  for (const std::string precision : {"32-true", "bf16-mixed", "fp8"}) {
    const auto run = [&](const std::string& name) {
      return json_of(
          run_fp8(args("train --model $DEMO --data $CALIB --eval $CALIB --eval-every 2 --steps 4 --batch 2 "
                       "--seq-len 64 --json --trainer.limit_val_batches=3 --training-args {} --precision " +
                           precision + " --out {}",
                       folder / (name + ".json"), folder / (precision + name))));
    };
    const auto eager = run("eager"), lazy = run("lazy"), graphed = run("graphed");
    for (const char* other : {"lazy", "graphed"})
      EXPECT_EQ(read_file(folder / (precision + "eager/model.safetensors")),
                read_file(folder / (precision + other + "/model.safetensors")));
    EXPECT_EQ(eager["eval_loss"], graphed["eval_loss"]);
    EXPECT_EQ(eager["eval_loss"], lazy["eval_loss"]);
    EXPECT_FALSE(eager.contains("hpu_graphs"));
    EXPECT_EQ(graphed["hpu_graphs"]["reasons"].size(), 0U) << graphed["hpu_graphs"].dump();
    const auto captured = graphed["hpu_graphs"]["captured"].get<int>();
    EXPECT_THAT(captured, ::testing::AllOf(::testing::Ge(2), ::testing::Le(3))) << precision;  // training, validation
    EXPECT_EQ(captured + graphed["hpu_graphs"]["replayed"].get<int>(), 4 + 2 * 3) << precision;
  }
  const auto on_cpu = run_train(folder, "cpu", "--steps 2 --warmup 1 --device cpu --hpu-graphs");
  EXPECT_EQ(on_cpu.code, 2);
  EXPECT_THAT(on_cpu.err, ::testing::HasSubstr("--hpu-graphs: found with --device cpu, allowed: with --device hpu"));
}

TEST_F(Train, LazyModeFillsTheLastBatchAndGoesBeforePipelining) {
  ASSERT_EQ(run_train(folder, "filled", "--last-batch fill --steps 3 --warmup 1 --batch 1000").code, 0);
  ASSERT_EQ(run_train(folder, "lazy", "--lazy --steps 3 --warmup 1 --batch 1000").code, 0);
  ASSERT_EQ(run_train(folder, "kept", "--lazy --last-batch keep --steps 3 --warmup 1 --batch 1000").code, 0);
  const auto of = [&](const char* name) { return read_file(folder / name / "model.safetensors"); };
  EXPECT_EQ(of("filled"), of("lazy"));
  EXPECT_NE(of("kept"), of("lazy"));
  EXPECT_THAT(run_train(folder, "alone", "--steps 2 --warmup 1 --pipelining").err,
              ::testing::HasSubstr("--pipelining: found, but no --lazy"));
  EXPECT_THAT(run_train(folder, "cpu", "--steps 2 --warmup 1 --device cpu --lazy").err,
              ::testing::HasSubstr("--lazy: found with --device cpu, allowed: with --device hpu"));
  EXPECT_THAT(run_train(folder, "cpu", "--steps 2 --warmup 1 --device cpu --non-blocking").err,
              ::testing::HasSubstr("--non-blocking: found with --device cpu, allowed: with --device hpu"));
}

TEST_F(Train, GoesOnFromACheckpoint) {
  std::vector<std::string> list = args(
      "train --model $DEMO --data $CALIB --out {} --steps 2 --batch 2 --seq-len 64 --precision 32-true --lr 1e-6 "
      "--json",
      folder / "run");
  const auto run = run_fp8(list);
  EXPECT_LT(json_of(run)["loss"].get<double>(), 1.6);  // it knew this text
  EXPECT_EQ(io::read_json(folder / "run/config.json")["torch_dtype"], "bfloat16");
}

TEST_F(Train, ThreadsChangeNothing) {
  // E5M2 gradients are rounded stochastically; the second layer has another recipe.
  const auto recipe = (folder / "recipe.json").string();
  io::write_json(
      recipe,
      {{"recipe", "delayed"},
       {"fp8_format", "HYBRID"},
       {"modules",
        {{{"match", "layers\\.0\\.mlp"}, {"keep", "bf16"}}, {{"match", "layers\\.1"}, {"recipe", "current"}}}}});
  for (const std::string precision : {"32-true", "fp8"}) {
    for (const char* threads : {"1", "2"}) {
      std::vector<std::string> more = args("--threads {} --precision {}", threads, precision);
      if (precision == "fp8") more.insert(more.end(), {"--recipe", recipe});
      const auto run = succeeded(run_train(folder, precision + threads, more));
      if (precision == "fp8") {
        EXPECT_EQ(io::parse_json(run.out, "stdout")["modules_fp8"], 11);
      }
    }
    expect_same_run(folder / (precision + "1"), folder / (precision + "2"));
  }
}

TEST_F(Train, KilledAndResumedIsTheSameRun) {
  ASSERT_EQ(run_train(folder, "whole", "--save-every 7").code, 0);
  const auto list = arguments(folder, "cut", "--save-every 7 --resume");
  for (const std::size_t lines : {3u, 17u, 30u}) {  // before the first checkpoint, and twice after one
    ASSERT_EQ(run_and_signal(list, folder / "cut", lines, SIGKILL), -SIGKILL) << lines;
  }
  std::ofstream(folder / "cut/log.jsonl", std::ios::app) << "{\"step\": 31, \"lo";  // as a cut off write leaves it
  EXPECT_GE(json_of(run_fp8(list))["resumed_from"].get<int>(), 28);
  expect_same_run(folder / "whole", folder / "cut");
}

TEST_F(Train, InterruptedItSavesAndGoesOn) {
  ASSERT_EQ(run_train(folder, "whole").code, 0);
  for (const std::string name : {"cut", "lazy"}) {  // the second with work that is queued
    SCOPED_TRACE(name);
    const auto list = arguments(folder, name, args(name == "cut" ? "--resume" : "--resume --lazy --last-batch keep"));
    ASSERT_EQ(run_and_signal(list, folder / name, 9, SIGINT), 130);
    const auto steps = log_of(folder / name).size();
    ASSERT_GE(steps, 9u);
    ASSERT_LT(steps, 40u);
    EXPECT_FALSE(fs::exists(folder / name / "model.safetensors"));
    EXPECT_EQ(json_of(run_fp8(list))["resumed_from"], steps);
    expect_same_run(folder / "whole", folder / name);
  }
}

TEST_F(Train, Fp8LogsItsCastsAndResumesBitEqual) {
  const std::vector<std::string> more = args("--precision fp8 --recipe habana --save-every 7 --grad-accum 2");
  auto whole = arguments(folder, "whole", more);
  const auto json = json_of(run_fp8(whole));
  EXPECT_EQ(json["modules_fp8"], 14);  // seven linear modules in each of two layers
  const auto log = log_of(folder / "whole");
  for (std::size_t i = 0; i < log.size(); ++i) {
    const bool counted = i == 0 || (i + 1) % 10 == 0;
    ASSERT_EQ(log[i].contains("fp8") && log[i]["fp8"].contains("elements"), counted) << i;
    if (!counted) continue;
    const auto& fp8 = log[i]["fp8"];
    EXPECT_EQ(fp8["modules"].size(), 14u);
    EXPECT_GT(fp8["elements"].get<std::int64_t>(), 0);
    EXPECT_LE(fp8["saturated"].get<std::int64_t>() + fp8["underflowed"].get<std::int64_t>(),
              fp8["elements"].get<std::int64_t>());
  }
  auto list = arguments(folder, "cut", more);
  list.push_back("--resume");
  ASSERT_EQ(run_and_signal(list, folder / "cut", 18, SIGKILL), -SIGKILL);
  ASSERT_EQ(run_fp8(list).code, 0);
  expect_same_run(folder / "whole", folder / "cut");
}

/// The scales, histories and seeds of fp8 come back in each mode, and the bits are those of an eager run.
TEST_F(Train, KilledAndResumedInFp8InEveryMode) {
  const std::string fp8 = "--precision fp8 --recipe habana-hybrid --save-every 7";
  ASSERT_EQ(run_train(folder, "whole", args(fp8)).code, 0);
  for (const std::string mode : {"", " --hpu-graphs", " --lazy --last-batch keep",
                                 " --lazy --pipelining --last-batch keep", " --lazy --hpu-graphs --last-batch keep"}) {
    SCOPED_TRACE(mode);
    const auto list = arguments(folder, "cut" + mode, args(fp8 + mode + " --resume"));
    ASSERT_EQ(run_and_signal(list, folder / ("cut" + mode), 18, SIGKILL), -SIGKILL);
    EXPECT_GE(json_of(run_fp8(list))["resumed_from"].get<int>(), 14);
    expect_same_run(folder / "whole", folder / ("cut" + mode));
  }
}

TEST_F(Train, EveryPrecisionAndRecipeLearnsTheSame) {
  const auto loss = [&](const std::string& name, std::vector<std::string> more) {
    const auto run = run_train(folder, name, std::move(more));
    EXPECT_EQ(run.code, 0) << name << ": " << run.err;
    return run.code == 0 ? io::parse_json(run.out, "stdout")["loss_last20"].get<double>() : 0.0;
  };
  const double expected = loss("f32", {});
  EXPECT_NEAR(loss("bf16", {"--precision", "bf16-mixed"}) / expected, 1, 0.01);
  EXPECT_NEAR(loss("f16", {"--precision", "16-mixed"}) / expected, 1, 0.01);
  for (const std::string recipe : {"habana", "habana-hybrid", "nvidia", "current", "block", "mxfp8"})
    EXPECT_NEAR(loss(recipe, {"--precision", "fp8", "--recipe", recipe}) / expected, 1, 0.02) << recipe;
}

TEST_F(Train, ItsMeasurementQuantizesItsModel) {
  const auto out = (folder / "run").string(), measurement = (folder / "run/measurements").string();
  const auto run = run_train(folder, "run", "--precision fp8 --recipe nvidia");
  EXPECT_EQ(json_of(run)["measurements"], measurement);
  const auto nodes = io::read_json(folder / "run/measurements/inc_output_hooks_maxabs.json")["Nodes"];
  ASSERT_EQ(nodes.size(), 14u);
  // q, k and v read the same tensor.
  const auto input = [&](const std::string& name) {
    return nodes["model.layers.1.self_attn." + name + "_proj"]["inputs"];
  };
  EXPECT_GT(input("q")[0][0][0].get<double>(), 0);
  EXPECT_EQ(input("q"), input("k"));
  const auto quantize =
      run_fp8("quantize --model {} --measurements {} --out {} --json", out, measurement, folder / "fp8");
  EXPECT_EQ(json_of(quantize)["modules_quantized"], 14);
  EXPECT_FALSE(fs::exists(folder / "fp8/checkpoints"));
  const auto perplexity = [&](const std::string& model) {
    const auto e = run_fp8("evaluate --model {} --data $HELDOUT --seq-len 64 --json", model);
    return e.code == 0 ? json_of(e)["perplexity"].get<double>() : 0.0;
  };
  EXPECT_NEAR(perplexity((folder / "fp8").string()) / perplexity(out), 1, 0.02);

  for (const char* recipe : {"current", "mxfp8"}) {
    EXPECT_EQ(
        json_of(run_train(folder, "run", "--overwrite --precision fp8 --recipe {} --steps 4", recipe))["measurements"],
        measurement)
        << recipe;
    EXPECT_EQ(json_of(run_fp8("quantize --model {} --measurements {} --out {} --json", out, measurement,
                              folder / recipe))["modules_quantized"],
              14)
        << recipe;
  }
  EXPECT_TRUE(
      json_of(run_train(folder, "run", "--overwrite --precision bf16-mixed --steps 4"))["measurements"].is_null());
  EXPECT_FALSE(fs::exists(measurement));  // not that of the run before
}

std::vector<io::Json> without_counts(std::vector<io::Json> lines) {
  for (auto& line : lines) line.erase("fp8");
  return timeless(std::move(lines));
}

/// Layers that run again in backward give the gradients that they would have given. In fp8 their second run is counted,
/// too.
TEST_F(Train, ActivationCheckpointingChangesMemoryOnly) {
  for (const std::string precision : {"32-true", "bf16-mixed", "fp8"}) {
    const std::vector<std::string> more = args("--precision {} --steps 8 --seq-len 256", precision);
    ASSERT_EQ(run_train(folder, "plain" + precision, more).code, 0);
    auto again = more;
    again.insert(again.begin(), "--activation-checkpointing");
    const auto run = succeeded(run_train(folder, "again" + precision, again));
    const auto plain = log_of(folder / ("plain" + precision)), repeated = log_of(folder / ("again" + precision));
    EXPECT_EQ(without_counts(plain), without_counts(repeated)) << precision;
    EXPECT_LT(repeated[0]["memory"]["max"].get<double>(), plain[0]["memory"]["max"].get<double>()) << precision;
  }
}

TEST_F(Train, RefusesByName) {
  std::ofstream(folder / "short.txt") << "too short";
  std::ofstream(folder / "empty.txt") << "";
  const auto refused = [&](const std::vector<std::string>& more) {
    const auto run = run_train(folder, "run", more);
    EXPECT_EQ(run.error_lines(), 1) << run.err;
    EXPECT_FALSE(fs::exists(folder / "run"));
    return std::to_string(run.code) + ": " + run.err;
  };
  EXPECT_GOLDEN(refused(args(text)));
  EXPECT_THAT(refused({"--model", demo("kjv-byte-1.7M")}),
              AllOf(StartsWith("2: "), HasSubstr("--init and MODEL: found both")));
  for (const auto& [option, file, message] :
       {std::tuple("--data", "short.txt", "short.txt"), std::tuple("--data", "empty.txt", "empty.txt"),
        std::tuple("--tokenizer", "nowhere", "nowhere: has no tokenizer")})
    EXPECT_THAT(refused({option, (folder / file).string()}), AllOf(StartsWith("1: "), HasSubstr(message)));
  EXPECT_EQ(run_fp8("train --data x.txt --out y").code, 2);
}

TEST_F(Train, AnAbsurdConfigIsOneLineBeforeAnythingIsAllocated) {
  const auto before = test::peak_memory_of_children();
  const auto expect_refused = [&](const std::vector<std::string>& more,
                                  const std::map<std::string, std::string>& environment) {
    const auto run = test::Fp8Process(arguments(folder, "run", more), {.environment = environment}).wait();
    expect_failed(run);
    EXPECT_THAT(run.err, AllOf(HasSubstr("config.json"), HasSubstr("parameters"), HasSubstr("needs at least"),
                               HasSubstr("are free")));
    EXPECT_FALSE(fs::exists(folder / "run"));
  };
  expect_refused({"--batch", "65536"}, {{"FP8_HPU_MEMORY", "1G"}});  // logits of 64 tokens each: 4 GB
  const auto file = folder / "init/config.json";
  auto config = io::read_json(file);
  config["hidden_size"] = config["intermediate_size"] = 1 << 20;
  config["num_hidden_layers"] = 4096;
  io::write_json(file, config);
  expect_refused({}, {});
  EXPECT_LT(test::peak_memory_of_children(), std::max<std::int64_t>(before, 1 << 30));
}

TEST_F(Train, InspectDrawsItsLoss) {
  for (const char* name : {"a", "b"})
    ASSERT_EQ(run_train(folder, name, "--steps 6 --eval $HELDOUT --lr {}", name[0] == 'a' ? "0.01" : "0.02").code, 0);
  const auto html = (folder / "loss.html").string(), svg = (folder / "loss.svg").string();
  const auto json = json_of(run_fp8("inspect {} --reference {} --html {} --json", folder / "a", folder / "b", html));
  EXPECT_EQ(json["kind"], "training");
  ASSERT_EQ(json["runs"].size(), 2u);
  const auto log = log_of(folder / "a");
  EXPECT_EQ(json["runs"][0]["steps"], 6);
  EXPECT_EQ(json["runs"][0]["first_loss"], log[0]["loss"]);
  EXPECT_EQ(json["runs"][0]["eval_loss"], log[5]["eval_loss"]);
  EXPECT_THAT(read_file(html), AllOf(HasSubstr("<svg"), HasSubstr((folder / "b").string())));
  EXPECT_EQ(run_fp8("inspect {} --with {} --html {}", folder / "a", folder / "b", svg).code, 0);
  EXPECT_EQ(read_file(svg).rfind("<svg", 0), 0u);
  EXPECT_EQ(run_fp8("inspect $DEMO --with {}", folder / "b").code, 2);
  std::ofstream(folder / "a/log.jsonl") << "{\"step\": 1}\n";
  expect_failed(run_fp8({"inspect", (folder / "a").string()}), {"log.jsonl, line 1"});
}

}  // namespace
}  // namespace fp8
