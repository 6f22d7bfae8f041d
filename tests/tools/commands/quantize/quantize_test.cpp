// SPDX-License-Identifier: Apache-2.0
// Options of fp8 quantize for modules, experts and towers, run as a process.

#include "runtime/io/tensors/safetensors_bytes.h"
#include "runtime/io/tensors/torch_bytes.h"
#include "support/child.h"
#include "tools/commands/quantize/ones_checkpoint.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

using io::safetensors_bytes;

struct QuantizeFamilies : ::testing::Test {
  /// Quantizes `model` with these options too; what the tool said.
  test::Run quantize(const std::string& model, const std::vector<std::string>& more) {
    return run_fp8("quantize --model {} --out {} --dynamic --overwrite {}", model, out(), more);
  }
  /// Modules whose weights are codes in the output.
  std::set<std::string> quantized() const {
    const io::Checkpoint written(out());
    std::set<std::string> modules;
    for (const auto& name : written.names())
      if (written.info(name).dtype == io::DType::F8_E4M3) modules.insert(name.substr(0, name.size() - 7));
    return modules;
  }
  std::vector<std::string> ignored() const {
    return io::read_json(out() + "/config.json")["quantization_config"]["ignore"].get<std::vector<std::string>>();
  }
  std::string out() const { return (folder_ / "out").string(); }

  test::TempDir folder_;
};

TEST_F(QuantizeFamilies, ExpertsAreCastOneByOneOrKept) {
  const auto model = test::write_mixture(folder_ / "moe");
  const auto each = succeeded(quantize(model, {"--check"}));
  EXPECT_EQ(quantized().size(), 1u + 6u);
  EXPECT_THAT(quantized(), Contains("model.layers.0.mlp.experts.1.up_proj"));
  EXPECT_THAT(each.out, HasSubstr("rules of transformers 5.23: accepted"));
  const auto kept = succeeded(quantize(model, {"--experts", "keep"}));
  EXPECT_EQ(quantized(), std::set<std::string>{"model.layers.0.self_attn.o_proj"});
  EXPECT_THAT(ignored(), Contains("model.layers.0.mlp.experts"));
  expect_failed(quantize(model, {"--experts", "some"}), {"--experts"}, 2);
}

TEST_F(QuantizeFamilies, LinearKeepAndIgnoreDecideWhereTheToolMayNotKnow) {
  const auto model = test::write_ones(
      folder_ / "own",
      {{"words.weight", {64, 32}}, {"blocks.0.mix.weight", {32, 32}}, {"blocks.0.table_embed.weight", {48, 32}}},
      R"({"model_type": "nobody_knows", "vocab_size": 64})");
  EXPECT_THAT(succeeded(quantize(model, {})).err, HasSubstr("unknown family 'nobody_knows'"));
  EXPECT_EQ(quantized(), std::set<std::string>{"blocks.0.mix"}) << "the rows of words are the config's vocab_size";
  ASSERT_EQ(quantize(model, args("--linear table_embed --keep mix$")).code, 0);
  EXPECT_EQ(quantized(), std::set<std::string>{"blocks.0.table_embed"});
  ASSERT_EQ(quantize(model, {"--ignore-spelling", "re:.*never_there$"}).code, 0);
  EXPECT_THAT(ignored(), Contains("re:.*never_there$"));
  expect_failed(quantize(model, {"--ignore-spelling", "re:.*mix"}), {"readers would use its codes as values"});
}

TEST_F(QuantizeFamilies, IgnoreKeepsWhatLlmCompressorWould) {
  const auto model = test::write_mixture(folder_ / "moe");
  const std::string o_proj = "model.layers.0.self_attn.o_proj", up = "model.layers.0.mlp.experts.1.up_proj";
  const auto run = succeeded(quantize(model, {"--ignore", "lm_head," + o_proj}));
  EXPECT_THAT(run.err, HasSubstr("--ignore keeps modules in high precision now"));
  EXPECT_EQ(quantized().size(), 6u);
  EXPECT_THAT(ignored(), Contains(o_proj));
  ASSERT_EQ(quantize(model, {"--ignore", R"(re:.*experts\.\d{1,2}\..*proj$)"}).code, 0);
  EXPECT_EQ(quantized(), std::set<std::string>{o_proj});
  ASSERT_EQ(quantize(model, {"--ignore", up}).code, 0);
  EXPECT_EQ(quantized(), std::set<std::string>{o_proj}) << "engines run all experts of a layer alike";
  expect_failed(quantize(model, {"--ignore", "o_proj"}),
                {"pattern 'o_proj' matches no module; the nearest is", o_proj});
  expect_failed(quantize(model, {"--ignore", "Linear"}), {"no module is left to quantize"});
  expect_failed(run_fp8("quantize --model {} --out {} --config q.json --ignore lm_head", model, out()), {"--ignore"},
                2);
}

TEST_F(QuantizeFamilies, IncludeIsOfferedWhereItQuantizes) {
  const auto model = test::write_mixture(folder_ / "moe");
  const auto run = quantize(model, {});
  EXPECT_THAT(run.out, ::testing::ContainsRegex("kept lm_head +kept in high precision by default .--include"));
  EXPECT_THAT(run.out, ::testing::ContainsRegex("kept model.embed_tokens +kept in high precision by default[:\n]"));
  ASSERT_EQ(quantize(model, args("--include lm_head --include embed_tokens")).code, 0);
  EXPECT_THAT(quantized(), Contains("lm_head"));
  EXPECT_THAT(quantized(), Not(Contains("model.embed_tokens")));
  const auto blocks = succeeded(quantize(model, args("--scheme block --block 32")));
  EXPECT_THAT(blocks.out, ::testing::ContainsRegex("mlp.gate +a router, kept in high precision"));
}

TEST_F(QuantizeFamilies, TowersAreKeptUnlessAskedFor) {
  const auto model = test::write_ones(folder_ / "vl",
                                      {{"vision_tower.encoder.layers.0.fc1.weight", {32, 32}},
                                       {"language_model.model.layers.0.mlp.up_proj.weight", {32, 32}},
                                       {"language_model.model.embed_tokens.weight", {16, 32}}},
                                      R"({"model_type": "llava", "text_config": {"model_type": "llama"}})");
  ASSERT_EQ(quantize(model, {}).code, 0);
  EXPECT_EQ(quantized(), std::set<std::string>{"language_model.model.layers.0.mlp.up_proj"});
  EXPECT_THAT(ignored(), Contains(HasSubstr("vision_tower")));
  ASSERT_EQ(quantize(model, {"--towers", "fp8"}).code, 0);
  EXPECT_EQ(quantized().size(), 2u);
  EXPECT_THAT(ignored(), Not(Contains(HasSubstr("vision_tower"))));
}

TEST_F(QuantizeFamilies, WhatNoReaderLoadsIsRefusedWithItsRule) {
  const std::string mlp = "dinov2.encoder.layer.0.mlp.";
  const std::string config = R"({"model_type": "dinov2"})";
  expect_failed(quantize(test::write_ones(folder_ / "plain",
                                          {{mlp + "fc1.weight", {64, 32}}, {mlp + "fc2.weight", {32, 64}}}, config),
                         {}),
                {"quantizers/base.py"});
  const auto fused = test::write_ones(
      folder_ / "fused", {{mlp + "weights_in.weight", {128, 32}}, {mlp + "weights_out.weight", {32, 64}}}, config);
  ASSERT_EQ(quantize(fused, {}).code, 0);
  EXPECT_EQ(quantized().size(), 2u);
  expect_failed(quantize(fused, {"--keep", "weights_in"}), {"weights_in: transformers splits it on load"});
}

// The program itself with --budget: what it promises about KL is measured again with evaluate.

struct Budget : ::testing::Test {
  const test::TempDir dir;
};

TEST_F(Budget, IsMetWithTheFewestModulesKept) {
  const auto out = (dir / "q").string();
  const auto json = json_of(
      run_fp8("quantize --model $DEMO --out {} --dynamic --budget kl=0.001 --data $HELDOUT --samples 8 --json", out));
  const auto& budget = json["budget"];
  EXPECT_GT(budget["kl_of_all"].get<double>(), 0.001);
  EXPECT_LE(budget["kl"].get<double>(), 0.001);
  EXPECT_GT(budget["kept"].size(), 0u);
  EXPECT_LT(budget["kept"].size(), 28u);
  EXPECT_EQ(budget["ranked_by"], "kl per byte");
  double last = 1e300;
  std::size_t modules = 0, larger_kl_later = 0;
  const auto& units = budget["units"];
  for (std::size_t i = 0; i < units.size(); ++i) {
    const double kl = units[i]["kl_alone"], bytes = units[i]["bytes_saved"];
    EXPECT_GT(bytes, 0);
    EXPECT_LE(kl / bytes, last * (1 + 1e-12)) << i;
    last = kl / bytes;
    modules += units[i]["modules"].size();
    larger_kl_later += i > 0 && kl > units[i - 1]["kl_alone"].get<double>() ? 1 : 0;
  }
  EXPECT_EQ(modules, 28u);
  EXPECT_GT(larger_kl_later, 0u) << "the order of KL alone would be another";
  const auto score =
      json_of(run_fp8("evaluate --model {} --reference $DEMO --data $HELDOUT --samples 8 --seq-len 256 --json", out));
  EXPECT_NEAR(score["kl"].get<double>(), budget["kl"].get<double>(), 1e-3 * budget["kl"].get<double>());
  const auto sidecar = io::read_json(dir / "q" / "fp8.json");
  const auto name = budget["kept"][0]["name"].get<std::string>();
  EXPECT_THAT(sidecar["skipped"][name].get<std::string>(), HasSubstr("kept by --budget kl=0.001"));
}

TEST_F(Budget, ThatIsMetByAllKeepsNone) {
  const auto json = json_of(
      run_fp8("quantize --model $DEMO --out {} --dynamic --budget kl=1 --data $HELDOUT --samples 4 --json", dir / "q"));
  EXPECT_TRUE(json["budget"]["kept"].empty());
  EXPECT_EQ(json["budget"]["runs"].size(), 1u) << "all in fp8 is asked first, and nothing after it";
  EXPECT_TRUE(json["budget"]["units"].empty()) << "no unit was run alone";
  EXPECT_EQ(json["budget"]["ranked_by"], nullptr);
  EXPECT_EQ(json["modules_quantized"], 28);
}

TEST_F(Budget, OfAConfigIsThatOfTheCheckpointThatIsWritten) {
  const auto config = [&](const char* mode) {
    const auto path = (dir / (std::string(mode) + ".json")).string();
    std::ofstream(path)
        << R"({"mode": ")" << mode
        << R"(", "scale_method": "maxabs_hw", "blocklist": {"names": ["lm_head"]}, "dump_stats_path": ")"
        << (dir / "s/inc").string() << "\"}";
    return path;
  };
  const auto measured = succeeded(run_fp8(args("evaluate --model $DEMO --data $HELDOUT --samples 4"),
                                          {.environment = {{"QUANT_CONFIG", config("MEASURE")}}}));
  const auto json =
      json_of(run_fp8("quantize --model $DEMO --out {} --config {} --budget kl=1 --data $HELDOUT --samples 4 --json",
                      dir / "q", config("QUANTIZE")));
  const auto score = json_of(
      run_fp8("evaluate --model {} --reference $DEMO --data $HELDOUT --samples 4 --seq-len 256 --json", dir / "q"));
  EXPECT_EQ(score["kv_cache"], "fp8");
  EXPECT_NEAR(score["kl"].get<double>(), json["budget"]["kl"].get<double>(), 1e-3 * score["kl"].get<double>())
      << "without the attention products, which no checkpoint holds";
}

TEST_F(Budget, EachModuleIsPrintedOnce) {
  const auto run = succeeded(
      run_fp8("quantize --model $DEMO --out {} --dynamic --budget kl=0.0015 --data $HELDOUT --samples 4", dir / "q"));
  std::map<std::string, int> times;
  std::istringstream lines(run.out + run.err);
  for (std::string line; std::getline(lines, line);)
    for (std::size_t at = line.find("model.layers."); at != std::string::npos; at = line.find("model.layers.", at + 1))
      ++times[line.substr(at, line.find_first_of(" :,", at) - at)];
  EXPECT_FALSE(times.empty());
  for (const auto& [name, n] : times) EXPECT_EQ(n, 1) << name << "\n" << run.out;
}

TEST_F(Budget, WrongUsage) {
  const auto run = [&](std::vector<std::string> more) {
    return run_fp8("quantize --model $DEMO --out {} --dynamic {}", dir / "q", more);
  };
  EXPECT_EQ(run(args("--data $HELDOUT")).code, 2);
  expect_failed(run(args("--budget ppl=3 --data $HELDOUT")), {"--budget: found 'ppl=3', allowed: kl=X"}, 2);
  expect_failed(run(args("--budget kl=1e-12 --data $HELDOUT --samples 2")),
                {"no module can be quantized within --budget"});
}

// Checkpoints that are damaged, hostile or merely unusual, met by the program: the right message in one line and exit
// code 1, or none at all where the file is legal.

const std::string kIndex = "model.safetensors.index.json";

void put(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

/// A Linear's weight of 2 x 2 bf16 ones.
std::string shard(const std::string& name) {
  const std::string one = "\x80\x3f";
  return safetensors_bytes("{\"" + name + R"(":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}})",
                           one + one + one + one);
}

std::string header(const std::string& text, std::size_t data = 0) {
  return safetensors_bytes(text, std::string(data, 'x'));
}

struct Damage {
  const char* name;
  const char* message;  ///< nullptr: the checkpoint is fine
  std::function<void(const fs::path&)> make;
};

void PrintTo(const Damage& c, std::ostream* out) { *out << c.name; }

void two_shards(const fs::path& d, const std::string& map) {
  put(d / "one.safetensors", shard("a.weight"));
  put(d / "two.safetensors", shard("b.weight"));
  put(d / kIndex, "{\"weight_map\":{" + map + "}}");
}

auto shards(const std::string& map) {
  return [=](const fs::path& d) { two_shards(d, map); };
}
auto model_file(const std::string& bytes) {
  return [=](const fs::path& d) { put(d / "model.safetensors", bytes); };
}
/// make(path) puts something else in the place of the only shard.
template <class Make>
auto shard_that_is(const Make& make) {
  return [=](const fs::path& d) {
    two_shards(d, R"("a.weight":"one.safetensors")");
    fs::remove(d / "one.safetensors");
    make(d / "one.safetensors");
  };
}

const Damage kDamages[] = {
    {"Shards", nullptr, shards(R"("a.weight":"one.safetensors","b.weight":"two.safetensors")")},
    {"PathTraversal", "weight_map of 'a.weight' is \"../out.safetensors\", expected a plain file name",
     shards(R"("a.weight":"../out.safetensors")")},
    {"EmptyIndex", "weight_map is empty", shards("")},
    {"IndexThatIsNoJson", kIndex.c_str(), [](const fs::path& d) { put(d / kIndex, "weight_map"); }},
    {"HugeIndex", "bytes, allowed at most",
     [](const fs::path& d) {
       put(d / kIndex, "{");
       fs::resize_file(d / kIndex, std::uintmax_t{1} << 40);
     }},
    {"ShardThatIsADevice", "one.safetensors: is a link to /dev/zero, allowed: a file of the model's folder",
     shard_that_is([](const fs::path& one) { fs::create_symlink("/dev/zero", one); })},
    {"ShardThatLinksToItself", "one.safetensors: can't open: Too many levels of symbolic links",
     shard_that_is([](const fs::path& one) { fs::create_symlink("one.safetensors", one); })},
    {"IndexThatLinksToItself", "model.safetensors.index.json: can't open: Too many levels of symbolic links",
     [](const fs::path& d) {
       put(d / "model.safetensors", shard("a.weight"));
       fs::create_symlink(kIndex, d / kIndex);
     }},
    {"UnalignedTensors", nullptr,  // f32 at byte 1, bf16 at byte 5, in a header whose length is no multiple of 8
     model_file(safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                  R"("f":{"dtype":"F32","shape":[],"data_offsets":[1,5]},)"
                                  R"("l.weight":{"dtype":"BF16","shape":[1,2],"data_offsets":[5,9]}})",
                                  std::string("\1\0\0\x80\x3f\x80\x3f\0\x40", 9)))},
    {"EmptyTensors", nullptr,
     model_file(header(R"({"z":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)"
                       R"("l.weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("y":{"dtype":"F32","shape":[0],"data_offsets":[1,1]}})",
                       1))},
    {"TorchSave", nullptr,
     [](const fs::path& d) {
       put(d / "pytorch_model.bin",
           io::torch_bytes::file_of({"0", "FloatStorage", 4, 0, {2, 2}, {1, 2}}, std::string(16, '\0')));
     }},
    {"TorchSaveIndexWithoutItsShard", "pytorch_model.bin.index.json: names the shard 'one.bin', which is missing",
     [](const fs::path& d) { put(d / "pytorch_model.bin.index.json", R"({"weight_map":{"a":"one.bin"}})"); }},
};

class DamagedCheckpoint : public testing::TestWithParam<Damage> {};
INSTANTIATE_TEST_SUITE_P(, DamagedCheckpoint, testing::ValuesIn(kDamages),
                         [](const auto& i) { return std::string(i.param.name); });

TEST_P(DamagedCheckpoint, IsToldInOneLine) {
  const test::TempDir dir;
  fs::create_directory(dir / "m");
  put(dir / "m/config.json", R"({"model_type": "llama"})");
  GetParam().make(dir / "m");
  const auto inspected = run_fp8("inspect {} --tensors-only", dir / "m");
  if (GetParam().message == nullptr) {
    EXPECT_EQ(inspected.code, 0) << inspected.err;
    EXPECT_EQ(inspected.err, "");
    return;
  }
  const auto quantized = run_fp8("quantize --model {} --out {} --dynamic", dir / "m", dir / "out");
  for (const auto* run : {&inspected, &quantized}) {
    EXPECT_EQ(run->code, 1);
    EXPECT_EQ(run->error_lines(), 1) << run->err;
    EXPECT_EQ(run->out, "");
    EXPECT_THAT(run->err, AllOf(HasSubstr(GetParam().message), HasSubstr("fp8: error: ")));
  }
  EXPECT_FALSE(fs::exists(dir / "out"));
}

/// What a hub and a boss are shown: no path stands in it.
TEST(Shown, ACardAndAPage) {
  const test::TempDir dir;
  std::filesystem::create_directory(dir / "org-model");
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(std::filesystem::path(test::demo_model()) / name, dir / "org-model" / name);
  put(dir / "org-model/README.md", "---\nlicense: apache-2.0\n---\n# Org's model\n");
  const auto out = dir / "out", back = dir / "back", page = dir / "page.html";
  const auto done = json_of(run_fp8("quantize --model {} --dynamic --budget kl=1 --samples 1 --out {} --html {} --json",
                                    dir / "org-model", out, page));
  EXPECT_EQ(done["html"], page.string());
  const std::string card = read_file(out / "README.md"), shown = read_file(page);
  EXPECT_THAT(card, AllOf(StartsWith("---\nlicense: apache-2.0\nbase_model: org-model\n"), HasSubstr("nats a token")));
  EXPECT_TRUE(card.ends_with("\n# Org's model\n"));
  for (const char* said :
       {"The worst 5 of 28 modules", "KL divergence for --budget", "fp8 quantize org-model --out out"})
    EXPECT_THAT(shown, HasSubstr(said));
  for (const auto& text : {card, shown}) EXPECT_THAT(text, Not(HasSubstr(dir.path().string())));
  ASSERT_EQ(run_fp8("convert --model {} --to bf16 --out {}", out, back).code, 0);
  const std::string again = read_file(back / "README.md");
  EXPECT_THAT(again, StartsWith("---\nlicense: apache-2.0\nbase_model: org-model\nlibrary_name: transformers\n---\n"));
  EXPECT_THAT(again, HasSubstr("# out in high precision"));
  EXPECT_TRUE(again.ends_with("\n# Org's model\n"));
  expect_failed(run_fp8("quantize --model $DEMO --dynamic --dry-run --out {} --html {}", out, dir / "other.html"),
                {"--html shows a whole output"}, 2);
}

TEST(UnusualCheckpoint, UnalignedAndTransposedWeightsAreQuantizedAsTheyMean) {
  const test::TempDir dir;
  for (const char* name : {"st", "bin"}) {
    fs::create_directory(dir / name);
    put(dir.path() / name / "config.json", R"({"rms_norm_eps": 1e-05, "x": 1.0})");
  }
  // [[1, 2], [3, 4]] at an odd byte, and as the transpose of [[1, 3], [2, 4]]
  const std::string values("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40", 16),
      transposed("\0\0\x80\x3f\0\0\x40\x40\0\0\0\x40\0\0\x80\x40", 16);
  put(dir / "st/model.safetensors",
      safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("w.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[1,17]}})",
                        "x" + values));
  const io::torch_bytes::Tensor w{"0", "FloatStorage", 4, 0, {2, 2}, {1, 2}}, a{"1", "ByteStorage", 1, 0, {1}, {1}};
  using namespace io::torch_bytes;  // NOLINT
  put(dir / "bin/pytorch_model.bin",
      zip({{"x/data.pkl", pickle(dict(text("a") + pickled(a) + text("w.weight") + pickled(w)))},
           {"x/data/0", transposed},
           {"x/data/1", "x"}}));
  std::string bytes[2];
  for (const int i : {0, 1}) {
    const auto from = dir / (i == 0 ? "st" : "bin"), to = dir / (i == 0 ? "st8" : "bin8");
    const auto run = succeeded(run_fp8("quantize --model {} --out {} --dynamic", from, to));
    bytes[i] = read_file(to / "model.safetensors");
    EXPECT_THAT(read_file(to / "config.json"),
                StartsWith(R"({"rms_norm_eps": 1e-05, "x": 1.0, "quantization_config": {)"));
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  // Rows (1, 2) and (3, 4): scale_inv 2/448 and 4/448, codes 224 (0x76) and 448 (0x7e), 336 (0x7a or 0x7b: 352) and
  // 448.
  EXPECT_THAT(bytes[0], HasSubstr("\x76\x7e"));
}

TEST(UnusualCheckpoint, ManyTensorsInBoundedMemory) {
  const test::TempDir dir;
  constexpr int kTensors = 300'000;
  std::string text = "{";
  for (int i = 0; i < kTensors; ++i)
    text += (i == 0 ? "" : ",") + ("\"model.layers." + std::to_string(i)) +
            R"(.weight":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," + std::to_string(i + 1) +
            "]}";
  put(dir / "model.safetensors", header(text + "}", kTensors));
  ASSERT_EQ(run_fp8({"--version"}).code, 0);
  const std::int64_t before = test::peak_memory_of_children();
  EXPECT_THAT(succeeded(run_fp8({"inspect", dir.path().string()})).out, HasSubstr("in 300000 tensors"));
  EXPECT_LT(test::peak_memory_of_children() - before, 10 * static_cast<std::int64_t>(text.size()));
}

}  // namespace
}  // namespace fp8
