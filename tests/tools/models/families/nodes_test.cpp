// SPDX-License-Identifier: Apache-2.0
// What a family has besides projections: attention's products, softmax and cache are nodes of the same names in all of
// them, so that the lists of a QUANT_CONFIG mean them; routers stay in high precision; experts that no token came to
// are told by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "fp8/measure/model/module_tree.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/models/decoder/description.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/models/registry.h"
#include "support/in_process.h"
#include "support/temp_dir.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

using testing::Fixture;
using ::testing::HasSubstr;

std::vector<std::string> mixtures() {
  auto names = testing::decoder_fixtures();
  std::erase_if(names, [](const auto& name) {
    const auto parsed = parse_config(Fixture(name).config, name);
    const auto* config = dynamic_cast<const DecoderConfig*>(parsed.values.get());
    return config == nullptr || config->moe.experts == 0 || config->moe.biased;
  });
  return names;
}

class NodesOfFamilies : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { fixture.write(folder / "model"); }

  std::string path(const std::string& name) const { return (folder / name).string(); }
  /// Rows of `length` tokens, which are all the same one for step 0.
  void write_ids(std::int64_t rows, std::int64_t length, std::int64_t step) const {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < rows * length; ++i) ids.push_back(3 + step * i * i % 31);
    io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, {rows, length}}});
    writer.write("input_ids", ids.data());
    writer.commit();
  }
  io::Json json_of(std::vector<std::string> arguments, std::string* warnings = nullptr) const {
    arguments.emplace_back("--json");
    const auto run = test::fp8_in_process(arguments);
    EXPECT_EQ(run.code, 0) << run.err;
    if (warnings != nullptr) *warnings = run.err;
    return run.code == 0 ? io::parse_json(run.out, "stdout") : io::Json();
  }
  /// fp8 evaluate under a QUANT_CONFIG.
  io::Json evaluate(const std::string& quant_config) const {
    std::ofstream(folder / "q.json") << quant_config;
    setenv("QUANT_CONFIG", path("q.json").c_str(), 1);
    auto json = json_of({"evaluate", "--model", path("model"), "--reference", path("model"), "--data",
                         path("ids.safetensors"), "--seq-len", "24", "--attention", "eager"});
    unsetenv("QUANT_CONFIG");
    return json;
  }

  const Fixture fixture{GetParam()};
  const test::TempDir folder;
};

TEST_P(NodesOfFamilies, AttentionHasTheSameNamesEverywhere) {
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
      const bool causal = loaded.model->shape().task == Task::causal;
      EXPECT_EQ(nodes.contains(node + "k_cache") && nodes.contains(node + "v_cache"), causal) << node;
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
  if (parse_config(fixture.config, "config.json").values->shape.task == Task::causal)
    expected.insert({"k_cache", "v_cache"});
  EXPECT_THAT(kinds, ::testing::IsSupersetOf(expected));  // DeBERTa's have two products more
  EXPECT_FALSE(kinds.contains("softmax"));
  for (const auto& kind : kinds) EXPECT_TRUE(kind.starts_with("matmul_") || kind.ends_with("_cache")) << kind;
  const auto json = evaluate(R"({"mode": "QUANTIZE", "scale_method": "maxabs_arbitrary", )" + common + "}");
  ASSERT_TRUE(json.is_object());
  const auto task = parse_config(fixture.config, "config.json").values->shape.task;
  if (task == Task::embed) return;
  EXPECT_GT(json["kl"].get<double>(), 0) << "nothing is in fp8";
  EXPECT_LE(json["kl"].get<double>(), 0.5) << "random routers change their choices, a wrong node its meaning";
}

INSTANTIATE_TEST_SUITE_P(All, NodesOfFamilies, ::testing::ValuesIn(testing::runnable_fixtures()), testing::test_name);

class MixturesOfFamilies : public NodesOfFamilies {};

TEST_P(MixturesOfFamilies, RoutersStayAndIdleExpertsAreNamed) {
  const auto parsed = parse_config(fixture.config, "config.json");
  const auto& names = dynamic_cast<const DecoderConfig&>(*parsed.values).names;
  write_ids(1, 2, 0);  // one token: most experts see none
  json_of({"measure", "--model", path("model"), "--data", path("ids.safetensors"), "--out", path("stats"), "--seq-len",
           "2"});
  std::string warnings;
  const auto json = json_of(
      {"quantize", "--model", path("model"), "--measurements", path("stats"), "--out", path("out"), "--dry-run"},
      &warnings);
  ASSERT_TRUE(json.is_object());
  EXPECT_THAT(warnings, HasSubstr("no token"));
  EXPECT_THAT(warnings, HasSubstr("expert"));
  std::size_t experts = 0;
  for (const auto& module : json["modules"]) {
    const auto name = module.get<std::string>();
    experts += name.find(".experts.") != std::string::npos ? 1 : 0;
    EXPECT_FALSE(name.ends_with("." + names.moe + "." + names.router)) << name;
    EXPECT_TRUE(names.shared_gate.empty() || !name.ends_with("." + names.shared_gate)) << name;
  }
  EXPECT_GT(experts, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, MixturesOfFamilies, ::testing::ValuesIn(mixtures()), testing::test_name);

}  // namespace
}  // namespace fp8::models
