// SPDX-License-Identifier: Apache-2.0
// What save() wrote comes back bit for bit; checkpoints that do not fit the model are refused by name.
#include "fp8/quant/model/load.h"

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/handlers/node_handler.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/save.h"
#include "fp8/runtime/modules/op_modules.h"
#include "support/fp8_reference.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

/// The folder's fp8 modules into `model`; its other parameters too.
std::set<std::string> load(test::TinyLm& model, const fs::path& folder, at::ScalarType dtype) {
  const io::Checkpoint checkpoint(folder);
  const auto taken = load_fp8(measure::weight_modules(*model), measure::op_nodes(*model), checkpoint, dtype);
  for (auto& item : model->named_parameters()) {
    if (taken.count(item.key()) != 0) continue;
    at::Tensor value = torch::empty(item.value().sizes(), item.value().scalar_type());
    checkpoint.read(item.key(), value.data_ptr());
    item.value().data().copy_(value);
  }
  return taken;
}

TEST(Load, GivesBackTheVeryModel) {
  const at::Tensor ids = test::token_ids();
  const torch::NoGradGuard no_grad;
  for (auto dtype : {at::kFloat, at::kBFloat16})
    for (auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2})
      for (auto activations :
           {ActivationScaling::none, ActivationScaling::static_tensor, ActivationScaling::dynamic_token})
        for (const bool inc : {false, true}) {
          if (inc && activations != ActivationScaling::static_tensor) continue;
          const test::TempDir dir;
          auto model = test::tiny_lm(1, dtype);
          PlanOptions o{.activations = activations, .dialect = dialect};
          if (inc)
            o.config = configs::parse_quant_config(
                io::Json{{"scale_method", "maxabs_arbitrary"}, {"blocklist", {{"names", {"lm_head"}}}}}, "q");
          if (activations == ActivationScaling::static_tensor) {
            const auto session = measure::CalibrationSession::attach(*model, {});
            model(ids);
            session->finalize();
            o.measurements = session->result();
          }
          convert(*model, o);
          save(*model, dir / "out", "compressed-tensors");
          auto other = test::tiny_lm(2, dtype);
          const auto taken = load(other, dir / "out", dtype);
          EXPECT_EQ(taken.size(), activations == ActivationScaling::static_tensor ? 42u : 28u);
          EXPECT_TRUE(same_bits(other(ids), model(ids)))
              << dtype << " " << recipes::name_of(dialect) << " " << name_of(activations) << " inc " << inc;
        }
}

struct Saved {
  test::TempDir dir;
  test::TinyLm model = test::tiny_lm();
  Saved() {
    convert(*model, {});
    save(*model, dir / "out", "compressed-tensors");
  }
  /// Rewrites the file with `change` applied to each tensor.
  void rewrite(const std::function<void(io::SafetensorsWriter::Entry&, std::vector<std::uint8_t>&)>& change) {
    std::vector<io::SafetensorsWriter::Entry> entries;
    std::vector<std::vector<std::uint8_t>> data;
    {
      const io::SafetensorsFile file(dir / "out/model.safetensors");
      for (const auto& t : file.tensors()) {
        entries.push_back({t.name, t.dtype, t.shape});
        data.emplace_back(t.bytes());
        file.read(t, data.back().data());
        change(entries.back(), data.back());
      }
    }
    io::SafetensorsWriter writer(dir / "out/model.safetensors", entries);
    for (std::size_t i = 0; i < entries.size(); ++i) writer.write(entries[i].name, data[i].data(), 0, data[i].size());
    writer.commit();
  }
};

TEST(Load, WhatDoesNotFitIsNamed) {
  const auto fails = [](const std::vector<std::string>& words, const auto& change) {
    Saved s;
    s.rewrite(change);
    auto target = test::tiny_lm(2);
    EXPECT_TRUE(throws_with(words, [&] { load(target, s.dir / "out", at::kFloat); }));
  };
  fails({"layer_0.k_proj.weight_scale"}, [](auto& e, auto&) {  // 16 scales for 32 rows
    if (e.name == "layer_0.k_proj.weight") e.shape = {32, 16};
    if (e.name == "layer_0.k_proj.weight_scale") e.shape = {16, 1};
  });
  fails({"layer_0.down_proj.weight", "[40, 32]", "[32, 40]"}, [](auto& e, auto& data) {
    if (e.name == "layer_0.down_proj.weight") e.shape = {40, 32};
    if (e.name == "layer_0.down_proj.weight_scale") e.shape = {40, 1}, data.resize(160, 0x38);  // eight scales more
  });
  fails({"layer_1.q_proj.weight", "NaN codes"}, [](auto& e, auto& data) {
    if (e.name == "layer_1.q_proj.weight") data[7] = 0x7F;
  });
  fails({"layer_5.q_proj.weight", "no such module"}, [](auto& e, auto&) {
    if (e.name.rfind("layer_1.q_proj", 0) == 0) e.name.replace(0, 7, "layer_5");
  });
}

TEST(Load, RefusedOnTheFirstGeneration) {
  Saved s;
  auto target = test::tiny_lm(2);
  const runtime::DeviceKindScope kind(runtime::DeviceKind::gaudi);
  EXPECT_REFUSED(load(target, s.dir / "out", at::kFloat), "[load_fp8]", "GAUDI");
}

TEST(Load, Gaudi2CodesMustBeGaudi2s) {
  Saved s;
  auto sidecar = io::read_json(s.dir / "out/fp8.json");
  sidecar["dialect"] = "gaudi2";  // 448 is NaN there
  io::write_json(s.dir / "out/fp8.json", sidecar);
  auto target = test::tiny_lm(2);
  EXPECT_REFUSED(load(target, s.dir / "out", at::kFloat), "weight", "dialect gaudi2", "NaN codes");
}

TEST(Load, OcpCodesAreRefusedOnGaudi2UnlessTheCallerSaysSo) {
  Saved s;
  const io::Checkpoint checkpoint(s.dir / "out");
  const runtime::DeviceKindScope kind(runtime::DeviceKind::gaudi2);
  auto target = test::tiny_lm(2);
  const auto load_as = [&](const LoadFp8Options& options) {
    return load_fp8(measure::weight_modules(*target), measure::op_nodes(*target), checkpoint, at::kFloat, options);
  };
  EXPECT_REFUSED(load_as({}), (s.dir / "out").string(), "dialect ocp", "FP8_HPU_DEVICE=gaudi2",
                 "convert_checkpoint() with dialect gaudi2", "the option dialect = ocp");
  try {
    load_as({});
    FAIL() << "expected an error";
  } catch (const io::Error& error) {
    const auto flags = [](std::string_view id, std::string_view value) {
      return (id == "dialect" ? "--dialect " : "fp8 convert --dialect ") + std::string(value);
    };
    const std::string text = io::spelled(error.message(), flags);
    EXPECT_THAT(text, AllOf(HasSubstr("fp8 convert --dialect gaudi2"), HasSubstr(" --dialect ocp")));
  }
  EXPECT_REFUSED(load_as({recipes::Dialect::gaudi2, false, nullptr}), "fp8.json", "found ocp", "asked for is gaudi2");
  EXPECT_FALSE(load_as({recipes::Dialect::ocp, false, nullptr}).empty());
  fs::remove(s.dir / "out/fp8.json");  // ocp is what codes are, then
  auto other = test::tiny_lm(2);
  EXPECT_REFUSED(load_fp8(measure::weight_modules(*other), measure::op_nodes(*other), checkpoint, at::kFloat),
                 "dialect ocp");
  // Taken for gaudi2's, the largest are NaN.
  EXPECT_REFUSED(load_fp8(measure::weight_modules(*other), measure::op_nodes(*other), checkpoint, at::kFloat,
                          {recipes::Dialect::gaudi2, false, nullptr}),
                 "dialect gaudi2", "NaN codes");
}

TEST(Load, NaNCodesAreTakenWhereTheyAreAllowed) {
  Saved s;
  s.rewrite([](auto& e, auto& data) {
    if (e.name == "layer_1.q_proj.weight") data[7] = 0x7F;
  });
  const io::Checkpoint checkpoint(s.dir / "out");
  auto target = test::tiny_lm(2);
  const auto load_as = [&](bool allow) {
    return load_fp8(measure::weight_modules(*target), measure::op_nodes(*target), checkpoint, at::kFloat,
                    {std::nullopt, allow, nullptr});
  };
  EXPECT_REFUSED(load_as(false), "layer_1.q_proj.weight", "NaN codes", "NaN in 1 of");
  EXPECT_FALSE(load_as(true).empty());
}

// A converted model in memory becomes a checkpoint folder.

using Save = InFolder;

TEST_F(Save, WritesCodesScalesAndTheRest) {
  auto model = test::tiny_lm(1, at::kBFloat16);
  model->register_buffer("steps", hpu(torch::tensor({3, 4}, at::kLong)));
  convert(*model, {});
  save(*model, folder / "out", "compressed-tensors");
  const io::SafetensorsFile file(folder / "out/model.safetensors");
  const auto* codes = file.find("layer_0.q_proj.weight");
  const auto* scale = file.find("layer_0.q_proj.weight_scale");
  ASSERT_TRUE(codes != nullptr && scale != nullptr);
  EXPECT_EQ(codes->dtype, io::DType::F8_E4M3);
  EXPECT_EQ(scale->shape, (std::vector<std::int64_t>{32, 1}));
  at::Tensor bytes = torch::empty({32, 32}, at::kByte);
  file.read(*codes, bytes.data_ptr());
  EXPECT_TRUE(same_bits(bytes, test::code_bytes(model->layers[0]->q_proj->weight)));
  EXPECT_EQ(file.find("layer_0.q_proj.bias")->dtype, io::DType::BF16);
  EXPECT_EQ(file.find("embed_tokens.weight")->dtype, io::DType::BF16);
  EXPECT_EQ(file.find("steps")->dtype, io::DType::I64);
  EXPECT_EQ(file.find("layer_0.q_proj.input_scale"), nullptr);
  const auto config = io::read_json(folder / "out/config.json");
  EXPECT_EQ(config["quantization_config"]["ignore"], (io::Json::array({"lm_head", R"(re:(.*\.)?lm_head$)"})))
      << "its family is not known: under any prefix";
  EXPECT_EQ(config["quantization_config"]["config_groups"]["group_0"]["weights"]["strategy"], "channel");
  EXPECT_EQ(io::read_json(folder / "out/fp8.json")["dialect"], "ocp");
}

TEST_F(Save, CompletesTheSourcesConfigAndCarriesItsFiles) {
  fs::create_directories(folder / "source");
  std::ofstream(folder / "source/config.json") << R"({"model_type": "tiny", "rope_theta": 10000.0})";
  std::ofstream(folder / "source/tokenizer.json") << "{}";
  std::ofstream(folder / "source/model.safetensors") << "not carried";
  auto model = test::tiny_lm();
  convert(*model, {});
  save(*model, folder / "out", "compressed-tensors", {folder / "source"});
  const auto config = io::read_json(folder / "out/config.json");
  EXPECT_EQ(config["model_type"], "tiny");
  EXPECT_TRUE(config.contains("quantization_config"));
  EXPECT_TRUE(fs::exists(folder / "out/tokenizer.json"));
  EXPECT_TRUE(
      throws_with({"not empty"}, [&] { save(*model, folder / "out", "compressed-tensors", {folder / "source"}); }) ||
      throws_with({"overwrite"}, [&] { save(*model, folder / "out", "compressed-tensors", {folder / "source"}); }));
  EXPECT_NO_THROW(save(*model, folder / "out", "compressed-tensors", {folder / "source", true}));
  EXPECT_REFUSED(save(*model, folder / "source", "compressed-tensors", {folder / "source", true}),
                 "is the input itself");
  EXPECT_TRUE(fs::exists(folder / "source/tokenizer.json"));
}

TEST_F(Save, NamesWhatReadersOfTheFamilyCallModules) {
  fs::create_directories(folder / "source");
  const auto ignored = [&](const std::string& model_type, bool head) {
    std::ofstream(folder / "source/config.json") << "{\"model_type\": \"" << model_type << "\"}";
    std::vector<measure::WeightModule> modules = {
        {"model.layers.0.mlp.up_proj", "Linear", hpu(torch::randn({32, 32}).to(at::kBFloat16)), std::nullopt}};
    std::vector<std::pair<std::string, at::Tensor>> tensors = {{"model.embed_tokens.weight", torch::randn({8, 32})}};
    if (head)
      modules.push_back(
          {"language_model.lm_head", "Linear", hpu(torch::randn({8, 32}).to(at::kBFloat16)), std::nullopt});
    convert(modules, PlanOptions{});
    for (const auto& m : modules) tensors.emplace_back(m.name + ".weight", m.weight);
    save(tensors, modules, {}, folder / "out", "compressed-tensors", {folder / "source", true});
    return io::read_json(folder / "out/config.json")["quantization_config"]["ignore"].dump();
  };
  EXPECT_EQ(ignored("llama", false), R"(["lm_head"])") << "which readers make of the embedding";
  EXPECT_THAT(ignored("llava", true), HasSubstr("\"lm_head\"")) << "transformers moves it: " << ignored("llava", true);
}

TEST_F(Save, OfAModelOnTheHostIsTheSame) {
  auto model = test::tiny_lm(1, at::kBFloat16);
  convert(*model, {});
  save(*model, folder / "hpu", "compressed-tensors");
  model->to(at::kCPU);
  save(*model, folder / "host", "compressed-tensors");
  EXPECT_FALSE(read_file(folder / "hpu/model.safetensors").empty());
  for (const char* file : {"model.safetensors", "config.json", "fp8.json"})
    EXPECT_TRUE(read_file(folder / "hpu" / file) == read_file(folder / "host" / file)) << file;
}

TEST_F(Save, CodesThatNoModuleHoldsAreRefused) {
  auto model = test::tiny_lm();
  convert(*model, {});
  model->register_buffer("kept", model->layers[0]->q_proj->weight.detach().clone());
  EXPECT_REFUSED(save(*model, folder / "out", "compressed-tensors"), "[save] kept", "module 'layer_0.q_proj'");
  EXPECT_FALSE(fs::exists(folder / "out"));
}

struct CachedImpl : torch::nn::Module {
  struct AttentionImpl : torch::nn::Module {
    torch::nn::Linear k_proj = register_module("k_proj", torch::nn::Linear(16, 16));
    runtime::KVCache k_cache = register_module("k_cache", runtime::KVCache()),
                     v_cache = register_module("v_cache", runtime::KVCache());
  };
  std::shared_ptr<AttentionImpl> a = register_module("a", std::make_shared<AttentionImpl>()),
                                 b = register_module("b", std::make_shared<AttentionImpl>());
};

TEST_F(Save, CachesAreWrittenIfAllOfThemAreInFp8) {
  auto model = std::make_shared<CachedImpl>();
  model->to(test::kHpu);
  convert(*model, {});
  NodeScheme scheme;
  scheme.kind = configs::ModuleKind::kv_cache;
  scheme.input_scale_inv = scheme.output_scale_inv = {0.5f};
  const auto nodes = measure::op_nodes(*model);
  ASSERT_EQ(nodes.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    nodes[i].slot->handler = make_node_handler(scheme);
    save(*model, folder / "out", "compressed-tensors", {.overwrite = true});
    const io::SafetensorsFile file(folder / "out/model.safetensors");
    EXPECT_EQ(file.find("a.k_scale") != nullptr || file.find("a.k_proj.k_scale") != nullptr, i == 3) << i;
    const auto skipped = io::read_json(folder / "out/fp8.json")["skipped"];
    EXPECT_EQ(skipped.empty(), i == 3);  // engines would take 1.0 for the scales of the others
    if (i == 2) {
      EXPECT_EQ(skipped["a.k_cache"],
                "only a part of the key-value caches is in fp8, a checkpoint holds scales of all or none");
    }
  }
}

TEST_F(Save, RefusesWhatTheFormatCannotHold) {
  const auto fails = [&](const std::vector<std::string>& words, torch::nn::Module& model) {
    EXPECT_TRUE(throws_with(words, [&] { save(model, folder / "out", "compressed-tensors"); }));
    EXPECT_TRUE(fs::is_empty(folder.path()));
  };
  auto plain = test::tiny_lm();
  fails({"[save]", "no fp8 module"}, *plain);
  EXPECT_REFUSED(save(*plain, folder / "out", "quark"), "[save]", "quark is written for checkpoints of gpt_oss");
  torch::nn::Sequential conv(torch::nn::Conv2d(4, 4, 1));
  conv->to(test::kHpu);
  convert(*conv, {});
  fails({"[save] 0", "Linear modules only", "Conv2d"}, *conv);
  auto embedding = test::tiny_lm();
  PlanOptions o{.include = {"embed_tokens"}};
  convert(*embedding, o);
  fails({"[save] embed_tokens", "Embedding"}, *embedding);
  torch::nn::Linear root(4, 4);
  root->to(test::kHpu);
  convert(*root, {});
  fails({"root"}, *root);
  auto mixed = test::tiny_lm();
  o = {};
  o.exclude = {"layer_1"};
  convert(*mixed, o);
  auto modules = measure::weight_modules(*mixed);
  modules.erase(
      std::remove_if(modules.begin(), modules.end(), [](const auto& m) { return m.name.rfind("layer_1", 0) != 0; }),
      modules.end());
  o = {};
  o.weights = Granularity::tensor;
  convert(modules, o);
  fails({"one scheme", "tensor weights"}, *mixed);
  auto e5m2 = test::tiny_lm();
  o = {};
  o.config = configs::parse_quant_config(io::Json{{"scale_method", "unit_scale"}, {"fp8_config", "E5M2"}}, "q");
  convert(*e5m2, o);
  fails({"[save]", "E5M2"}, *e5m2);
}

}  // namespace
}  // namespace fp8::quant
