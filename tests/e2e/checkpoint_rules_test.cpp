// SPDX-License-Identifier: Apache-2.0
// Rules for checkpoints that hold at every door of the program: whose codes they are, what explains them, NaN and Inf,
// and what a second run on a finished output does.

#include "e2e/e2e.h"
#include "support/values.h"

namespace fp8::e2e {
namespace {

const Environment kGaudi2 = {{"FP8_HPU_DEVICE", "gaudi2"}};

Arguments evaluating(const std::string& model, const Arguments& more = {}) {
  return args("evaluate --json --model {} --data $HELDOUT --samples 2 --seq-len 64 {}", model, more);
}
double perplexity(const std::string& model, const Arguments& more = {}, const Environment& environment = {}) {
  return json_of(fp8(evaluating(model, more), environment))["perplexity"];
}

// Dialects

TEST(Dialect, OcpCodesAreRefusedOnGaudi2AtEveryDoor) {
  const std::vector<std::string> words = {quantized(), "dialect ocp", "FP8_HPU_DEVICE=gaudi2",
                                          "fp8 convert --dialect gaudi2", "--dialect ocp"};
  expect_refused(fp8(evaluating(quantized()), kGaudi2), words);
  expect_refused(fp8(evaluating(demo_model(), {"--reference", quantized()}), kGaudi2), words);
  expect_refused(fp8(args("generate --json --model {} --prompt 'In the' --tokens 2", quantized()), kGaudi2), words);
  // These take no fp8 checkpoint at all.
  const test::TempDir folder;
  EXPECT_EQ(fp8(args("measure --model {} --data $CALIB --samples 1 --out {}", quantized(), folder / "m"), kGaudi2).code,
            1);
  EXPECT_EQ(fp8(args("inspect {} --data $HELDOUT", quantized()), kGaudi2).code, 1);
  // Without fp8.json ocp is what codes are taken for.
  const Model bare(quantized());
  fs::remove(bare.path() / "fp8.json");
  expect_refused(fp8(evaluating(bare.name()), kGaudi2), {bare.name(), "dialect ocp", "--dialect gaudi2"});
}

TEST(Dialect, WhoSaysOcpGoesOn) {
  const double expected = perplexity(quantized());
  EXPECT_EQ(perplexity(quantized(), {"--dialect", "ocp"}, kGaudi2), expected);
  EXPECT_EQ(perplexity(quantized(), {"--dialect", "gaudi3"}, kGaudi2), expected);
  EXPECT_EQ(fp8(args("generate --model {} --prompt 'In the' --tokens 2 --dialect ocp", quantized()), kGaudi2).code, 0);
  expect_refused(fp8(evaluating(quantized(), {"--dialect", "gaudi2"})),
                 {"fp8.json", "dialect", "ocp", "fp8 convert --dialect gaudi2"});
}

TEST(Dialect, TheConversionThatIsNamedRuns) {
  const test::TempDir folder;
  const std::string out = (folder / "gaudi2").string();
  expect_success(
      fp8("convert --quiet --model {} --format compressed-tensors --dialect gaudi2 --out {}", quantized(), out));
  const double there = perplexity(out, {}, kGaudi2);
  EXPECT_EQ(perplexity(out), there) << "codes up to 240 mean the same everywhere";
  EXPECT_NEAR(there, perplexity(quantized()), 0.05 * there);
  EXPECT_EQ(perplexity(out, {"--dialect", "ocp"}, kGaudi2), there);
}

TEST(Dialect, CodesOfGaudi2WithoutAFileThatSaysSoAreTakenForThem) {
  const test::TempDir folder;
  expect_success(fp8("convert --quiet --model {} --format compressed-tensors --dialect gaudi2 --out {}", quantized(),
                     folder / "g"));
  const double expected = perplexity((folder / "g").string(), {}, kGaudi2);
  fs::remove(folder / "g" / "fp8.json");
  EXPECT_EQ(perplexity((folder / "g").string(), {"--dialect", "gaudi2"}, kGaudi2), expected);
  const Model ocp(quantized());  // whose largest codes are NaN there
  fs::remove(ocp.path() / "fp8.json");
  expect_refused(fp8(evaluating(ocp.name(), {"--dialect", "gaudi2"}), kGaudi2), {"dialect gaudi2", "NaN codes"});
}

// Codes that nothing explains

TEST(UnexplainedCodes, AreRefusedWithWhatWasFoundAndReadIfAFormIsNamed) {
  const Model model(quantized());
  model.edit("config.json", [](io::Json& j) { j.erase("quantization_config"); });
  const test::TempDir folder;
  const std::string out = (folder / "out").string();
  const std::vector<std::string> words = {model.name(), "quantization_config", "weights in codes",
                                          "F8_E4M3",    "weight_scale",        "--assume"};
  for (const char* to : {"bf16", "f32", "fp8"})
    expect_refused(fp8("convert --model {} --format {} --out {} --verify", model.name(), to, out), words);
  expect_refused(fp8("quantize --model {} --dynamic --out {}", model.name(), out), words);
  expect_refused(fp8("measure --model {} --data $CALIB --samples 1 --out {}", model.name(), out), words);
  expect_evaluate_refused(model.name(), words);
  EXPECT_FALSE(fs::exists(out));
  const auto inspected = json_of(fp8("inspect --json --tensors-only {}", model.name()));
  EXPECT_THAT(inspected.value("problem", ""), HasSubstr("weights in codes"));
  const auto json = json_of(
      fp8("convert --json --model {} --format bf16 --out {} --assume compressed-tensors --verify", model.name(), out));
  EXPECT_TRUE(json["verify"]["broken"].empty());
  expect_success(fp8("convert --quiet --model {} --format bf16 --out {}", quantized(), folder / "said"));
  EXPECT_TRUE(read_file(folder / "out" / "model.safetensors") == read_file(folder / "said" / "model.safetensors"));
}

// NaN and Inf

/// The demo model with a bad value in one tensor.
struct NonFiniteModel : ::testing::Test {
  void spoil(const std::string& tensor, float bad) {
    Tensors file = Tensors::read(fs::path(demo_model()) / "model.safetensors");
    const std::string dtype = file.header.at(tensor).at("dtype");
    std::uint32_t bits;
    std::memcpy(&bits, &bad, sizeof bits);
    const auto half = static_cast<std::uint16_t>(bits >> 16);
    if (dtype == "F32") {
      file.poke(tensor, bad);
    } else {
      ASSERT_EQ(dtype, "BF16");
      file.poke(tensor, std::string(reinterpret_cast<const char*>(&half), sizeof half));
    }
    model.write("model.safetensors", file.bytes());
  }
  Model model;
  test::TempDir folder;
};

TEST_F(NonFiniteModel, IsRefusedEverywhereWithTensorAndNumber) {
  for (const auto& [tensor, bad] : std::vector<std::pair<std::string, float>>{
           {"model.layers.0.mlp.up_proj.weight", NAN}, {"model.layers.0.input_layernorm.weight", INFINITY}}) {
    spoil(tensor, bad);
    const std::vector<std::string> words = {
        model.name(), tensor, std::string(std::isnan(bad) ? "NaN" : "Inf") + " in 1 of", "--allow-nonfinite"};
    for (const auto& door :
         {args("quantize --model {} --dynamic --out {}", model.name(), folder / "out"),
          args("convert --model {} --format f32 --out {}", model.name(), folder / "out"), evaluating(model.name()),
          args("generate --json --model {} --prompt a --tokens 1", model.name())})
      expect_refused(fp8(door), words);
    EXPECT_THAT(names_in(folder.path()), IsEmpty());
  }
}

TEST_F(NonFiniteModel, IsCopiedWhereItIsAllowedAndEvaluateReadsThat) {
  const std::string tensor = "model.embed_tokens.weight";  // of byte 0, which no text has
  spoil(tensor, NAN);
  const std::string out = (folder / "out").string();
  const auto run = succeeded(fp8("quantize --json --model {} --dynamic --out {} --allow-nonfinite", model.name(), out));
  EXPECT_THAT(run.err, AllOf(HasSubstr("warning"), HasSubstr(tensor), HasSubstr("NaN in 1 of")));
  EXPECT_EQ(io::read_json(folder / "out" / "fp8.json")["nonfinite"], (io::Json{{tensor, {{"nan", 1}, {"inf", 0}}}}));
  expect_refused(fp8(evaluating(out)), {tensor, "NaN in 1 of", "--allow-nonfinite"});
  const bool tied = io::read_json(model.path() / "config.json").value("tie_word_embeddings", false);
  const auto evaluated = fp8(evaluating(out, {"--allow-nonfinite"}));
  if (tied) {  // then every logit of byte 0 is NaN, and that is said
    expect_refused(evaluated, {"NaN or infinite logits"});
  } else {
    EXPECT_EQ(json_of(evaluated)["perplexity"], perplexity(quantized()));
  }
  expect_success(
      fp8("convert --quiet --model {} --format f32 --out {} --allow-nonfinite --verify", out, folder / "f32"));
  EXPECT_TRUE(io::read_json(folder / "f32" / "fp8.json").contains("nonfinite"));
}

TEST_F(NonFiniteModel, InspectReportsItAndBadScales) {
  spoil("model.layers.0.mlp.up_proj.weight", INFINITY);
  const auto json = json_of(fp8("inspect --json {}", model.name()));
  ASSERT_EQ(json["problems"].size(), 1u);
  EXPECT_EQ(json["problems"][0]["tensor"], "model.layers.0.mlp.up_proj.weight");
  EXPECT_THAT(json["problems"][0]["problem"].get<std::string>(), HasSubstr("Inf in 1 of"));
  EXPECT_FALSE(json["modules"].empty()) << "the others' damage is shown";
  EXPECT_THAT(fp8({"inspect", model.name()}).out, HasSubstr("problem: model.layers.0.mlp.up_proj.weight: Inf in 1 of"));
  EXPECT_EQ(json_of(fp8("inspect --json --tensors-only {}", model.name()))["problems"].size(), 0u);

  const Model coded(quantized());
  Tensors file = Tensors::read(coded.path() / "model.safetensors");
  const std::string up = "model.layers.0.mlp.up_proj.weight", q = "model.layers.0.self_attn.q_proj.weight",
                    k = "model.layers.0.self_attn.k_proj.weight", v = "model.layers.0.self_attn.v_proj.weight",
                    o = "model.layers.0.self_attn.o_proj.weight";
  file.poke(up, std::string("\x7F\xFF"));
  file.poke(q + "_scale", 0.0f);
  file.poke(k + "_scale", -1.0f);
  file.poke(v + "_scale", 1e30f);
  file.poke(o + "_scale", NAN);
  coded.write("model.safetensors", file.bytes());
  const auto found = json_of(fp8("inspect --json {}", coded.name()));
  std::map<std::string, std::string> problems;
  for (const auto& p : found["problems"]) problems[p["tensor"]] = p["problem"];
  ASSERT_EQ(problems.size(), 5u) << found["problems"];
  EXPECT_THAT(problems[up], HasSubstr("codes are NaN in 2 of"));
  EXPECT_THAT(problems[q + "_scale"], HasSubstr("scale 0 in 1 of"));
  EXPECT_THAT(problems[k + "_scale"], HasSubstr("a negative scale in 1 of"));
  EXPECT_THAT(problems[v + "_scale"], HasSubstr("an absurd scale"));
  EXPECT_THAT(problems[o + "_scale"], HasSubstr("NaN or Inf in 1 of"));
  EXPECT_FALSE(found["modules"].empty());
  EXPECT_EQ(found["skipped"].size(), 6u) << found["skipped"];
}

TEST(InspectMeasurement, ReportsNegativeAndAbsurdAmax) {
  const test::TempDir folder;
  write_file(
      folder / "s_hooks_maxabs.json",
      R"({"Mode": "DynamicRange", "Nodes": {"a": {"inputs": [[[-3.0]]], "params": {"weight": [[2.0], [-1.0]]}}, )"
      R"("b": {"inputs": [[[1e30]], [[4.0]]], "outputs": [[[0.0]]]}}})");
  auto json = json_of(fp8("inspect --json {}", folder / "s_hooks_maxabs.json"));
  ASSERT_EQ(json["problems"].size(), 4u) << json["problems"];
  EXPECT_THAT(json["problems"].dump(),
              AllOf(HasSubstr("b.outputs.0"), HasSubstr("amax 0 (nothing came through, or zeros alone) in 1 of 1"),
                    HasSubstr("a.inputs.0"), HasSubstr("a negative amax in 1 of 1"), HasSubstr("a.params.weight"),
                    HasSubstr("in 1 of 2"), HasSubstr("b.inputs.0"), HasSubstr("an absurd amax")));
  EXPECT_THAT(fp8({"inspect", (folder / "s_hooks_maxabs.json").string()}).out, HasSubstr("bad: "));
  write_file(folder / "s_hooks_maxabs_MAXABS_HW.json",
             R"({"Mode": "Scale", "Nodes": {"a": {"inputs": [0.0, 1.0], "params": {"weight": 0.5}}}})");
  json = json_of(fp8("inspect --json {}", folder / "s_hooks_maxabs_MAXABS_HW.json"));
  ASSERT_EQ(json["problems"].size(), 1u) << json["problems"];
  EXPECT_THAT(json["problems"].dump(), HasSubstr("scale 0 in 1 of 1"));
}

// A second run on a finished output

TEST(Finished, QuantizeAndConvertSaySoAndEndWell) {
  const test::TempDir folder;
  const std::vector<Arguments> commands = {
      args("quantize --model $DEMO --dynamic --out {} --resume", folder / "q"),
      args("convert --model {} --format bf16 --out {} --resume", quantized(), folder / "bf16"),
      args("convert --model {} --format modelopt --out {} --resume", quantized(), folder / "m")};
  for (auto arguments : commands) {
    SCOPED_TRACE(arguments.back());
    EXPECT_EQ(fp8(arguments).code, 0);
    const fs::path out = *std::next(std::find(arguments.begin(), arguments.end(), "--out"));
    const auto before = contents(out);
    EXPECT_THAT(succeeded(fp8(arguments)).out, AllOf(HasSubstr("finished already"), HasSubstr("nothing was done")));
    arguments.push_back("--json");
    EXPECT_EQ(json_of(fp8(arguments))["finished_before"], true);
    EXPECT_TRUE(contents(out) == before);
    arguments.insert(arguments.end(), {"--shard-size", "100000"});
    expect_refused(fp8(arguments), {"not what this run would write"});
    EXPECT_TRUE(contents(out) == before);
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre("bf16", "m", "q"));
}

TEST(Finished, MeasureSaysSoAndMakesNoBackup) {
  const test::TempDir folder;
  Arguments arguments =
      args("measure --json --model $DEMO --data $CALIB --samples 4 --out {} --resume", folder / "stats");
  EXPECT_EQ(json_of(fp8(arguments))["finished_before"], false);
  const auto before = contents(folder / "stats");
  expect_values(json_of(fp8(arguments)), {{"finished_before", true}, {"samples", 4}});
  EXPECT_TRUE(contents(folder / "stats") == before);
  EXPECT_THAT(fp8("measure --model $DEMO --data $CALIB --samples 4 --out {} --resume", folder / "stats").out,
              HasSubstr("finished already"));
  const auto backups = [&] {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder / "stats")) count += entry.is_directory() ? 1 : 0;
    return count;
  };
  EXPECT_EQ(backups(), 0u);
  // Neither the folder nor the way of measuring changes the numbers.
  Arguments elsewhere = arguments;
  *std::next(std::find(elsewhere.begin(), elsewhere.end(), "--out")) = (folder / "other").string();
  elsewhere.insert(elsewhere.end(), {"--block-wise"});
  EXPECT_EQ(json_of(fp8(elsewhere))["finished_before"], false);
  EXPECT_TRUE(contents(folder / "other") == before);
  // Another run is another measurement: the first goes into a backup.
  *std::next(std::find(arguments.begin(), arguments.end(), "--samples")) = "3";
  EXPECT_EQ(json_of(fp8(arguments))["finished_before"], false);
  EXPECT_EQ(backups(), 1u);
  arguments.pop_back();  // --resume: without it everything is measured anew
  EXPECT_EQ(json_of(fp8(arguments))["finished_before"], false);
  EXPECT_EQ(backups(), 2u);
}

// Checksums: what inspect --verify says of an output (quant/forms/checksums_test.cpp has each kind of damage).

TEST(Verify, OutputsAreAsTheyWereWrittenUntilSomebodyChangesThem) {
  const test::TempDir folder;
  expect_success(fp8("quantize $DEMO --dynamic --quiet --out {}", folder / "q"));
  expect_success(fp8("convert {} --format bf16 --quiet --out {}", folder / "q", folder / "c"));
  for (const char* name : {"q", "c"}) {
    const auto json = json_of(fp8("inspect --json --verify {}", folder / name));
    EXPECT_EQ(json["damage"], io::Json::array());
    EXPECT_EQ(json["files"], names_in(folder / name).size());
  }
  const auto file = folder / "q" / "model.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(file, bytes);
  const auto run = fp8("inspect --json --verify {}", folder / "q");
  expect_failed(run, {"1 damaged, the first: model.safetensors: tensor '", "are not those that were written"});
  EXPECT_EQ(io::parse_json(run.out, "stdout")["damage"][0]["file"], "model.safetensors");
  expect_refused(fp8(args("inspect --verify $DEMO")), {"fp8.json"});
  EXPECT_EQ(fp8(args("inspect --verify --plan {}", folder / "q")).code, 2);
  EXPECT_EQ(fp8(args("inspect --verify --reference $DEMO {}", folder / "q")).code, 2);
}

}  // namespace
}  // namespace fp8::e2e
