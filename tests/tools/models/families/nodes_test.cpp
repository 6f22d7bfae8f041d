// SPDX-License-Identifier: Apache-2.0
// Nodes of a family besides projections: attention's products, softmax and cache are nodes of the same names in all of
// them, so that the lists of a QUANT_CONFIG mean them, alone and by layer; routers stay in high precision; experts that
// no token came to are told by name.
#include "fp8/tools/models/decoder/decoder.h"
#include "fp8/tools/models/layer_stream.h"
#include "tools/models/families/answers.h"

namespace fp8::models {
namespace {

using testing::Answers;

std::vector<std::string> mixtures() {
  auto names = testing::decoder_fixtures();
  std::erase_if(names, [](const auto& name) {
    const auto parsed = parse_config(Fixture(name).config, name);
    const auto* config = dynamic_cast<const DecoderConfig*>(parsed.values.get());
    return config == nullptr || config->moe.experts == 0 || config->moe.biased;
  });
  return names;
}

struct NodesOfFamilies : ::testing::TestWithParam<std::string> {
  void SetUp() override { fixture.write(folder / "model"); }

  std::string path(const std::string& name) const { return (folder / name).string(); }
  Task task() const { return parse_config(fixture.config, "config.json").values->shape.task; }
  /// Rows of `length` tokens, which are all the same one for step 0; what answers a source is that source.
  void write_ids(std::int64_t rows, std::int64_t length, std::int64_t step) const {
    const auto ids = (at::arange(rows * length, at::kLong).square() * step).remainder(31).view({rows, length}) + 3;
    if (task() == Task::answer) return testing::write_pairs(folder / "ids.safetensors", ids, ids);
    testing::write_ids(folder / "ids.safetensors", ids);
  }
  io::Json json_of(const std::vector<std::string>& arguments, std::string* warnings = nullptr) const {
    const auto run = test::fp8_in_process("{} --json", arguments);
    if (warnings != nullptr) *warnings = run.err;
    return test::json_of(run);
  }
  /// fp8 evaluate under a QUANT_CONFIG.
  io::Json evaluate(const std::string& quant_config) const {
    std::ofstream(folder / "q.json") << quant_config;
    setenv("QUANT_CONFIG", path("q.json").c_str(), 1);
    auto json = json_of(args("evaluate --model {} --reference {} --data {} --seq-len 24 --attention eager",
                             path("model"), path("model"), path("ids.safetensors")));
    unsetenv("QUANT_CONFIG");
    return json;
  }

  const Fixture fixture{GetParam()};
  const test::TempDir folder;
};

/// Encoders keep nothing.
bool has_cache(const ModelConfig& config, const std::string& attention) {
  const auto* both = dynamic_cast<const EncoderDecoderConfig*>(&config);
  return both != nullptr ? attention.starts_with(both->decoder.names.layers + ".") : config.shape.task == Task::causal;
}

TEST_P(NodesOfFamilies, AttentionHasTheSameNamesEverywhere) {
  const auto config = parse_config(fixture.config, "config.json");
  for (const auto kind : {AttentionKind::fused, AttentionKind::eager}) {
    const auto loaded = load_model(folder / "model", {.dtype = {}, .attention = kind});
    std::set<std::string> nodes;
    for (const auto& node : measure::op_nodes(*loaded.model)) nodes.insert(node.name);
    std::size_t attentions = 0;
    for (const auto& item : loaded.model->named_modules("", /*include_self=*/false)) {
      const std::string type = item.value()->name(), node = item.key() + ".";
      if (!type.ends_with("Attention")) continue;
      ++attentions;
      const bool fused = nodes.contains(node + "fused_scaled_dot_product_attention");
      EXPECT_TRUE(fused || (nodes.contains(node + "matmul_qk") && nodes.contains(node + "softmax") &&
                            nodes.contains(node + "matmul_av")))
          << node;
      EXPECT_FALSE(fused && kind == AttentionKind::eager) << node;
      for (const char* cache : {"k_cache", "v_cache"})
        EXPECT_EQ(nodes.contains(node + cache), has_cache(*config.values, node)) << node;
    }
    EXPECT_GT(attentions, 0u);
  }
}

TEST_P(NodesOfFamilies, ListsOfAConfigMeanThem) {
  if (fixture.config.contains("quantization_config")) return;  // a config is of high precision models
  write_ids(4, 24, 7);
  const std::string common = R"("observer": "maxabs", "dump_stats_path": ")" + path("inc") +
                             R"(", "allowlist": {"types": ["Matmul", "Softmax", "KVCache"]},
                                "blocklist": {"names": ["softmax"]})";
  evaluate(R"({"mode": "MEASURE", )" + common + "}");
  std::set<std::string> kinds;
  const auto measured = io::read_json(path("inc_hooks_maxabs.json"));
  for (const auto& item : measured.at("Nodes").items()) kinds.insert(item.key().substr(item.key().rfind('.') + 1));
  std::set<std::string> expected = {"matmul_qk", "matmul_av"};
  if (task() == Task::causal || task() == Task::answer) expected.insert({"k_cache", "v_cache"});
  EXPECT_THAT(kinds, ::testing::IsSupersetOf(expected));  // DeBERTa's have two products more
  EXPECT_FALSE(kinds.contains("softmax"));
  for (const auto& kind : kinds) EXPECT_TRUE(kind.starts_with("matmul_") || kind.ends_with("_cache")) << kind;
  const auto json = evaluate(R"({"mode": "QUANTIZE", "scale_method": "maxabs_arbitrary", )" + common + "}");
  ASSERT_TRUE(json.is_object());
  if (task() == Task::embed) return;
  EXPECT_GT(json["kl"].get<double>(), 0) << "nothing is in fp8";
  EXPECT_LE(json["kl"].get<double>(), 0.5) << "random routers change their choices, a wrong node its meaning";
}

INSTANTIATE_TEST_SUITE_P(All, NodesOfFamilies, ::testing::ValuesIn(testing::fixtures_of([](Task) { return true; })),
                         testing::test_name);

/// Of attention that is not llama's: a table of distances; a source text.
class AttentionsNodes : public NodesOfFamilies {
 protected:
  /// Products and caches by a pattern for those of all layers, "^decoder\.block\.[0-9]+\.": {pattern: names}.
  std::map<std::string, std::set<std::string>> nodes_of_layers() const {
    const auto loaded = load_model(folder / "model", {.dtype = {}, .attention = AttentionKind::eager});
    std::map<std::string, std::set<std::string>> layers;
    for (const auto& node : measure::op_nodes(*loaded.model)) {
      if (node.type != "Matmul" && node.type != "KVCache") continue;
      std::string pattern = "^";
      std::istringstream parts(node.name);
      for (std::string part; std::getline(parts, part, '.');)
        pattern +=
            (pattern.size() > 1 ? "\\." : "") + (part.find_first_not_of("0123456789") < part.size() ? part : "[0-9]+");
      layers[pattern + "$"].insert(node.name);
    }
    return layers;
  }
  io::Json with(const char* mode, const io::Json& lists, const std::string& stats) const {
    io::Json config = {{"mode", mode}, {"observer", "maxabs"}, {"dump_stats_path", path(stats)}};
    if (config["mode"] == "QUANTIZE") config["scale_method"] = "maxabs_arbitrary";
    config.update(lists);
    return evaluate(config.dump());
  }
  double kl(const io::Json& lists, const std::string& stats) const {
    const auto json = with("QUANTIZE", lists, stats);
    return json.is_object() ? json["kl"].get<double>() : std::nan("");
  }
  std::set<std::string> measured(const io::Json& lists, const std::string& stats) const {
    with("MEASURE", lists, stats);
    std::set<std::string> names;
    const auto json = io::read_json(path(stats + "_hooks_maxabs.json"));
    for (const auto& item : json.at("Nodes").items()) names.insert(item.key());
    return names;
  }
};

TEST_P(AttentionsNodes, AreMeantOneByOne) {
  write_ids(4, 24, 7);
  const auto layers = nodes_of_layers();
  EXPECT_GE(layers.size(), 2u);
  std::set<std::string> all;
  for (const auto& [pattern, nodes] : layers) all.insert(nodes.begin(), nodes.end());
  for (const auto& [pattern, nodes] : layers) {
    SCOPED_TRACE(pattern);
    const io::Json name = {{"names", io::Json::array({pattern})}}, types = {{"types", {"Matmul", "KVCache"}}};
    EXPECT_EQ(measured({{"allowlist", name}}, "alone"), nodes);
    EXPECT_GT(kl({{"allowlist", name}}, "alone"), 0) << "not in fp8";
    EXPECT_EQ(kl({{"allowlist", name}, {"blocklist", name}}, "alone"), 0) << "in fp8";
    std::set<std::string> others = all;
    for (const auto& node : nodes) others.erase(node);
    EXPECT_EQ(measured({{"allowlist", types}, {"blocklist", name}}, "others"), others);
    EXPECT_GT(kl({{"allowlist", types}, {"blocklist", name}}, "others"), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Some, AttentionsNodes, ::testing::Values("deberta-v2", "deberta-v2-own", "bert", "t5", "bart"),
                         testing::test_name);

class MixturesOfFamilies : public NodesOfFamilies {};

TEST_P(MixturesOfFamilies, RoutersStayAndIdleExpertsAreNamed) {
  const auto parsed = parse_config(fixture.config, "config.json");
  const auto& names = dynamic_cast<const DecoderConfig&>(*parsed.values).names;
  write_ids(1, 2, 0);  // one token: most experts see none
  json_of(
      args("measure --model {} --data {} --out {} --seq-len 2", path("model"), path("ids.safetensors"), path("stats")));
  std::string warnings;
  const auto json = json_of(
      args("quantize --model {} --measurements {} --out {} --dry-run", path("model"), path("stats"), path("out")),
      &warnings);
  ASSERT_TRUE(json.is_object());
  EXPECT_THAT(warnings, AllOf(HasSubstr("no token"), HasSubstr("expert")));
  std::size_t experts = 0;
  for (const auto& module : json["modules"]) {
    const auto name = module.get<std::string>();
    experts += name.find(".experts.") != std::string::npos ? 1 : 0;
    EXPECT_FALSE(name.ends_with("." + names.moe + "." + names.router)) << name;
    EXPECT_TRUE(names.shared_gate.empty() || !name.ends_with("." + names.shared_gate)) << name;
  }
  EXPECT_GT(experts, 0u);
}

/// GPT-OSS's, of which no checkpoint has a place for one by one.
TEST(StackedExperts, StayAndAreNamed) {
  const Fixture fixture("gpt_oss");
  const test::TempDir folder;
  fixture.write(folder / "model");
  const auto json = test::json_of(test::fp8_in_process(
      "quantize --model {} --dynamic --out {} --dry-run --json --quiet", folder / "model", folder / "out"));
  std::set<std::string> skipped;
  for (const auto& module : json["modules_skipped"]) skipped.insert(module["name"]);
  for (std::int64_t i = 0; i < fixture.config["num_hidden_layers"]; ++i)
    for (const char* name : {"experts.gate_up_proj", "experts.down_proj", "router"})
      EXPECT_TRUE(skipped.contains("model.layers." + std::to_string(i) + ".mlp." + name)) << i << name;
  for (const auto& module : json["modules"]) EXPECT_THAT(module.get<std::string>(), Not(HasSubstr(".mlp."))) << module;
}

INSTANTIATE_TEST_SUITE_P(All, MixturesOfFamilies, ::testing::ValuesIn(mixtures()), testing::test_name);

// Mistral with a sliding window: one that is longer than the text is none, and those of which something is out of sight
// are not.

constexpr std::int64_t kLongest = 40;  // of the fixtures' texts

struct Windows : ::testing::Test {
  /// The checkpoint of a fixture with another window; 0: none.
  std::string write(const std::string& name, std::int64_t window) {
    Fixture fixture(name);
    fixture.config["sliding_window"] = window > 0 ? io::Json(window) : io::Json();
    const auto model = name + "-" + std::to_string(window);
    fixture.write(folder / model);
    return (folder / model).string();
  }
  static at::Tensor logits(const std::string& model, const at::Tensor& ids,
                           AttentionKind attention = AttentionKind::fused) {
    return load_model(model, {.dtype = at::kFloat, .attention = attention}).model->forward(ids);
  }
  io::Json json_of(const std::vector<std::string>& arguments) const {
    return test::json_of(test::fp8_in_process("{} --json --quiet", arguments));
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  const at::NoGradGuard no_grad;
  const test::TempDir folder;
};

/// fixtures/mistral.json has transformers' logits of the model without a window.
TEST_F(Windows, LongerThanTheTextAreNone) {
  const Fixture fixture("mistral");
  for (const auto attention : {AttentionKind::fused, AttentionKind::eager})
    for (const auto& run : fixture.runs) {
      const auto none = logits(write("mistral", 0), run.ids, attention);
      for (const std::int64_t window : {kLongest, kLongest + 1, std::int64_t{4096}, std::int64_t{1} << 30}) {
        const auto found = logits(write("mistral", window), run.ids, attention);
        EXPECT_TRUE(at::equal(found, none)) << window;
        const auto chosen = found.index_select(1, at::tensor(run.positions, at::kLong));
        EXPECT_LE((chosen - run.logits).abs().max().item<float>(), 3e-4f) << window;
      }
    }
}

/// The last token of 40 does not see the first through 39 places; fixtures/mistral-window.json has the logits of 16.
TEST_F(Windows, ShorterOnesHideWhatIsFar) {
  const auto ids = Fixture("mistral").runs.back().ids;
  const auto none = logits(write("mistral", 0), ids), short_of = logits(write("mistral", kLongest - 1), ids);
  EXPECT_TRUE(at::equal(short_of.narrow(1, 0, kLongest - 1), none.narrow(1, 0, kLongest - 1)));
  EXPECT_GT((short_of.select(1, kLongest - 1) - none.select(1, kLongest - 1)).abs().max().item<float>(), 1e-3f);
  const Fixture fixture("mistral-window");
  for (const auto& run : fixture.runs) {
    const auto positions = at::tensor(run.positions, at::kLong);
    const auto found = logits(write("mistral-window", 16), run.ids), free = logits(write("mistral-window", 0), run.ids);
    EXPECT_LE((found.index_select(1, positions) - run.logits).abs().max().item<float>(), 3e-4f);
    EXPECT_EQ(at::equal(found, free), run.ids.size(1) <= 16);
  }
}

TEST_F(Windows, LongerOnesChangeNothingInFp8) {
  const auto ids = (at::arange(8 * kLongest, at::kLong).square() * 7 + 3).remainder(48).view({8, kLongest});
  testing::write_ids(folder / "ids.safetensors", ids);
  const auto in_fp8 = [&](std::int64_t window) {
    const auto model = write("mistral", window), end = std::to_string(window);
    json_of(args("measure --model {} --data {} --out {}", model, path("ids.safetensors"), path("stats" + end)));
    json_of(args("quantize --model {} --out {} --measurements {} --kv-cache fp8", model, path("fp8" + end),
                 path("stats" + end)));
    EXPECT_EQ(io::read_json(folder / ("fp8" + end) / "config.json")["sliding_window"],
              window > 0 ? io::Json(window) : io::Json());
    return json_of(args("evaluate --model {} --reference {} --data {} --seq-len {}", path("fp8" + end), model,
                        path("ids.safetensors"), kLongest));
  };
  const auto none = in_fp8(0), found = in_fp8(4096);
  ASSERT_TRUE(none.is_object() && found.is_object());
  for (const char* name : {"inc_output_hooks_maxabs.json", "inc_output_hooks_maxabs.kv_cache"})
    EXPECT_EQ(io::read_json(folder / "stats4096" / name), io::read_json(folder / "stats0" / name)) << name;
  EXPECT_GT(none["kl"].get<double>(), 0) << "nothing is in fp8";
  for (const char* key : {"kl", "perplexity", "top1_agreement", "tokens"}) EXPECT_EQ(found[key], none[key]) << key;
}

// Measuring layer by layer under a memory limit, of every family with repeated layers: decoders, encoders, models that
// answer and the language parts of larger ones. The same amax as of the whole model, and one layer's weights in memory
// at a time.

constexpr std::int64_t kRows = 6, kInputLength = 40, kAnswerLength = 9;

class BlocksOfFamilies : public Answers {
 protected:
  void SetUp() override {
    fixture.write(folder / "model");
    const auto ids = tokens(kRows, kInputLength, 1);
    if (task() == Task::answer)
      return testing::write_pairs(folder / "ids.safetensors", ids, tokens(kRows, kAnswerLength, 2));
    testing::write_ids(folder / "ids.safetensors", ids);
  }
  Task task() const { return parse_config(fixture.config, "config.json").values->shape.task; }

  std::vector<std::string> command(const std::string& out, const std::vector<std::string>& more) const {
    return args("measure --model {} --data {} --batch 2 --out {} {}", path("model"), path("ids.safetensors"), path(out),
                more);
  }
  /// The least --memory-limit that is taken, as its refusal tells: "203MB".
  std::string least() const {
    const auto refused = run(command("none", {"--block-wise", "--memory-limit", "1kB"}));
    expect_failed(refused, {"one decoder layer with a batch of 2 samples"}, 2);
    const std::string allowed = "allowed: ";
    const auto begin = refused.err.find(allowed) + allowed.size();
    return refused.err.substr(begin, refused.err.find(" or more") - begin);
  }
};

TEST_P(BlocksOfFamilies, GiveTheAmaxOfTheWholeModel) {
  const auto whole = json_of(command("whole", {"--whole"}));
  const auto blocks = json_of(command("blocks", {"--block-wise", "--memory-limit", least()}));
  ASSERT_TRUE(whole.is_object() && blocks.is_object());
  EXPECT_EQ(whole["mode"], "whole");
  EXPECT_EQ(blocks["mode"], "block-wise");
  for (const char* key : {"modules", "tensors", "samples", "kv_caches", "non_finite"})
    EXPECT_EQ(blocks[key], whole[key]) << key;
  std::vector<std::string> files = {"inc_output_hooks_maxabs.json"};
  if (whole["kv_caches"] != 0) files.emplace_back("inc_output_hooks_maxabs.kv_cache");
  for (const auto& name : files) {
    const auto expected = io::read_json(folder / "whole" / name);
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(io::read_json(folder / "blocks" / name), expected) << name;
  }
}

/// Placeholders are NaN: what is not is in memory.
TEST_P(BlocksOfFamilies, HoldOneLayerAtATime) {
  LayerStream stream(folder / "model", {.dtype = at::kFloat, .device = at::kCPU});
  ASSERT_GT(stream.shape().layers, 1);
  const auto& model = *stream.loaded().model;
  const auto layer_of = [&](const std::string& name) {
    if (name.ends_with(".relative_attention_bias.weight")) return std::int64_t{-1};  // T5's: all layers look there
    for (std::int64_t i = 0; i < stream.shape().layers; ++i)
      if (name.starts_with(stream.layer_name(i) + ".")) return i;
    return std::int64_t{-1};
  };
  for (std::int64_t i = 0; i < stream.shape().layers; ++i) {
    const auto layer = stream.load_layer(i);
    std::int64_t bytes = 0;
    for (const auto& item : model.named_parameters()) {
      const auto nan = item.value().isnan();
      const auto own = layer_of(item.key());
      if (own == i) {
        EXPECT_FALSE(nan.any().item<bool>()) << item.key();
        bytes += item.value().numel() * 4;
      } else if (own >= 0) {
        EXPECT_TRUE(nan.all().item<bool>()) << item.key() << " beside layer " << i;
      }
    }
    const bool absent = GetParam() == "mllama" && i == 1;  // which looks at images
    EXPECT_EQ(bytes > 0, !absent);
    EXPECT_LE(bytes, stream.layer_bytes());
  }
  for (const auto& item : model.named_parameters())
    EXPECT_TRUE(layer_of(item.key()) < 0 || item.value().isnan().all().item<bool>()) << item.key();
  EXPECT_LE(stream.layer_bytes() * 3 / 2, bytes_in_memory(folder / "model", at::kFloat));
}

/// Two processes with a half of the layers each, by what goes from one to the other alone: of every family.
TEST_P(BlocksOfFamilies, RunInTwoParts) {
  const LoadOptions options = {.dtype = at::kFloat, .device = at::kCPU};
  const bool answers = task() == Task::answer;
  const std::int64_t source = answers ? kInputLength : 0;
  const auto ids =
      answers ? at::cat({tokens(2, kInputLength, 1), tokens(2, kAnswerLength, 2)}, 1) : tokens(2, kInputLength, 1);
  const auto expected =
      load_model(folder / "model", options).model->forward(ids, nullptr, CausalLM::Logits::all, source);
  LayerStream first(folder / "model", options), second(folder / "model", options);
  const auto layers = first.shape().layers, cut = layers / 2;
  const auto run = [&](LayerStream& stream, std::int64_t begin, std::int64_t end, const at::Tensor& h) {
    std::vector<Resident> resident;
    for (auto i = begin; i < end; ++i) resident.push_back(stream.load_layer(i));
    return stream.run_layers(begin, end, h, source);
  };
  const auto h = run(second, cut, layers, run(first, 0, cut, first.embed(ids, /*load=*/true, source)).clone());
  const auto head = second.load_head();
  EXPECT_TRUE(at::equal(second.run_head(second.run_norm(h, source)), expected));
}

INSTANTIATE_TEST_SUITE_P(All, BlocksOfFamilies, ::testing::ValuesIn(testing::fixtures_of([](Task) { return true; })),
                         testing::test_name);

// Damage of fp8 to each family: `inspect --data` sees the inputs that `measure` sees, and `quantize --budget` writes
// checkpoints whose divergence is the one that it tells.

constexpr std::int64_t kTexts = 4, kTokens = 24;

class DamageOfFamilies : public Answers {
 protected:
  void SetUp() override {
    fixture.write(folder / "model");
    const auto ids = tokens(kTexts, kTokens, 1);
    if (parse_config(fixture.config, "config.json").values->shape.task == Task::answer)
      return testing::write_pairs(folder / "ids.safetensors", ids, tokens(kTexts, 9, 2));
    testing::write_ids(folder / "ids.safetensors", ids);
  }
  /// Weights that stay as they are stored: [in, out], or MXFP4.
  bool is_stored_otherwise() const { return GetParam() == "gpt2" || GetParam() == "gpt_oss-mxfp4"; }
};

TEST_P(DamageOfFamilies, InspectSeesTheInputsThatMeasureSees) {
  if (is_stored_otherwise()) return;
  ASSERT_TRUE(
      json_of(args("measure --model {} --data {} --out {}", path("model"), path("ids.safetensors"), path("stats")))
          .is_object());
  const auto nodes = io::read_json(folder / "stats" / "inc_output_hooks_maxabs.json")["Nodes"];
  const auto json = json_of(args("inspect {} --data {}", path("model"), path("ids.safetensors")));
  ASSERT_TRUE(json.is_object());
  std::size_t compared = 0;
  for (const auto& module : json["modules"]) {
    const auto name = module["name"].get<std::string>();
    if (!nodes.contains(name) || module["input"].is_null()) continue;
    ++compared;
    EXPECT_FLOAT_EQ(module["input"]["amax"].get<float>(), nodes[name]["inputs"][0][0][0].get<float>()) << name;
  }
  EXPECT_GE(compared, static_cast<std::size_t>(2 * parse_config(fixture.config, "config.json").values->shape.layers));
}

TEST_P(DamageOfFamilies, BudgetsAreKept) {
  if (is_stored_otherwise()) return;
  const auto json = json_of(args("quantize --model {} --out {} --dynamic --budget kl=0.01 --data {}", path("model"),
                                 path("out"), path("ids.safetensors")));
  ASSERT_TRUE(json.is_object());
  const auto score = json_of(
      args("evaluate --model {} --reference {} --data {}", path("out"), path("model"), path("ids.safetensors")));
  ASSERT_TRUE(score.is_object());
  const double kl = score["kl"];
  EXPECT_LE(kl, 0.01 * (1 + 1e-3));
  EXPECT_NEAR(json["budget"]["kl"].get<double>(), kl, 1e-3 * kl + 1e-9);
}

INSTANTIATE_TEST_SUITE_P(All, DamageOfFamilies, ::testing::ValuesIn(testing::fixtures_of([](Task) { return true; })),
                         testing::test_name);

}  // namespace
}  // namespace fp8::models
