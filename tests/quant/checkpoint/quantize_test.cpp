// SPDX-License-Identifier: Apache-2.0
// Checkpoint in, fp8 checkpoint out: codes and scales against the formulas, against conversion in memory, and
// everything carried along.
#include "fp8/quant/checkpoint/quantize.h"

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"
#include "support/values.h"

namespace fp8::quant {
namespace {

using CheckpointQuantize = InFolder;

TEST_F(CheckpointQuantize, DynamicChannelsOfEveryType) {
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const test::TempDir dir;
    const auto tensors = test::small_llama(dtype);
    test::write_llama(dir / "in", tensors);
    CheckpointOptions o;
    const auto report = quantize_checkpoint(dir / "in", dir / "out", o);
    EXPECT_EQ(report.quantized.size(), 7u);
    EXPECT_EQ(report.skipped.size(), 2u);
    for (const auto& [module, scheme] : report.quantized) {
      const at::Tensor w = test::find(tensors, module + ".weight");
      const auto want = test::quantize_by_amax(w, w.size(0));
      EXPECT_TRUE(same_bits(read_tensor(dir / "out", module + ".weight"), want.codes)) << module;
      auto inv = collected(test::amax_reference(w, w.size(0)), [](float a) { return test::own_scale_inv(a, 448.0f); });
      EXPECT_TRUE(same_bits(read_tensor(dir / "out", module + ".weight_scale"), torch::tensor(inv).view({-1, 1})))
          << module;
    }
    for (const char* kept : {"model.embed_tokens.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight",
                             "model.layers.0.self_attn.q_proj.bias", "model.steps"})
      EXPECT_TRUE(same_bits(read_tensor(dir / "out", kept), test::find(tensors, kept))) << kept;
    const io::Checkpoint out(dir / "out");
    EXPECT_EQ(report.weights_bytes, out.total_bytes());
    EXPECT_EQ(report.source_bytes, io::Checkpoint(dir / "in").total_bytes());
  }
}

TEST_F(CheckpointQuantize, StaticTensorsWithFusedScales) {
  const auto tensors = test::small_llama(at::kBFloat16);
  test::write_llama(folder / "in", tensors);
  auto o = options_with({.activations = ActivationScaling::static_tensor, .measurements = measured(tensors)});
  quantize_checkpoint(folder / "in", folder / "out", o);
  const std::string attention = "model.layers.0.self_attn.";
  const float q = test::amax_reference(test::find(tensors, attention + "q_proj.weight"), 1)[0],
              k = test::amax_reference(test::find(tensors, attention + "k_proj.weight"), 1)[0];
  const float fused = std::max(q, k) / 448.0f;  // v is zero
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    EXPECT_TRUE(same_bits(read_tensor(folder / "out", attention + name + ".weight_scale"), torch::tensor({fused})))
        << name;
    EXPECT_TRUE(
        same_bits(read_tensor(folder / "out", attention + name + ".weight"),
                  test::quantize_reference(test::find(tensors, attention + name + ".weight"), {fused}, 448.0f).codes));
  }
  EXPECT_TRUE(same_bits(read_tensor(folder / "out", attention + "k_proj.input_scale"),
                        torch::tensor({o.plan.measurements->find(attention + "k_proj")->inputs[0][0] / 448.0f})));
  o.plan.fuse_scales = false;
  quantize_checkpoint(folder / "in", folder / "apart", o);
  EXPECT_TRUE(
      same_bits(read_tensor(folder / "apart", attention + "v_proj.weight_scale"), torch::tensor({1.0f})));  // all zero
  EXPECT_TRUE(read_tensor(folder / "apart", attention + "v_proj.weight").eq(0).all().item<bool>());
}

/// The squared error of a weight's part under scale_inv_j, in double.
double squared_error(const at::Tensor& part, float scale_inv, float max) {
  const at::Tensor values = test::quantize_reference(part.reshape({1, -1}), {scale_inv}, max).values;
  return (values.reshape(-1) - part.to(at::kDouble).reshape(-1)).square().sum().item<double>();
}

/// scale_inv is one of the 25 candidates around that of the amax of `parts`, and none has a smaller error over them.
void expect_least_error(const std::vector<at::Tensor>& parts, float scale_inv, float max) {
  float amax = 0;
  for (const auto& part : parts) amax = std::max(amax, part.abs().max().item<float>());
  std::vector<double> errors;
  double chosen = -1;
  for (int j = -8; j <= 16; ++j) {
    const float candidate = static_cast<float>(double{test::own_scale_inv(amax, max)} * std::exp2(j / 16.0));
    errors.push_back(0);
    for (const auto& part : parts) errors.back() += squared_error(part, candidate, max);
    if (std::abs(candidate - scale_inv) <= 1e-6f * candidate) chosen = errors.back();
  }
  ASSERT_GE(chosen, 0) << scale_inv << " is no candidate of amax " << amax;
  EXPECT_LE(chosen, *std::ranges::min_element(errors) * (1 + 1e-5));
}

TEST_F(CheckpointQuantize, ScalesOfLeastError) {
  for (const auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2}) {
    const float max = dialect == recipes::Dialect::gaudi2 ? 240.0f : 448.0f;
    const test::TempDir dir;
    const auto tensors = test::small_llama(at::kBFloat16);
    test::write_llama(dir / "in", tensors);
    auto o = options_with({.search = ScaleSearch::mse, .dialect = dialect});
    const auto report = quantize_checkpoint(dir / "in", dir / "channels", o);
    for (const auto& [module, scheme] : report.quantized) {
      EXPECT_THAT(scheme, HasSubstr("scales of least error"));
      const at::Tensor w = test::find(tensors, module + ".weight").to(at::kFloat),
                       inv = read_tensor(dir / "channels", module + ".weight_scale");
      for (std::int64_t row = 0; row < w.size(0); ++row) {
        if (w[row].eq(0).all().item<bool>())
          EXPECT_EQ(inv[row].item<float>(), 1.0f) << "zeros keep the scale of their amax";
        else
          expect_least_error({w[row]}, inv[row].item<float>(), max);
      }
    }
    EXPECT_EQ(io::read_json(dir / "channels/fp8.json")["weight_scales"], "mse");
    o.plan.weights = Granularity::tensor;
    quantize_checkpoint(dir / "in", dir / "tensors", o);
    std::vector<at::Tensor> group;
    for (const char* name : {"q_proj", "k_proj", "v_proj"})
      group.push_back(test::find(tensors, "model.layers.0.self_attn." + std::string(name) + ".weight").to(at::kFloat));
    const at::Tensor q = read_tensor(dir / "tensors", "model.layers.0.self_attn.q_proj.weight_scale");
    expect_least_error(group, q.item<float>(), max);
    EXPECT_TRUE(same_bits(q, read_tensor(dir / "tensors", "model.layers.0.self_attn.v_proj.weight_scale")));
    o.plan.weights = Granularity::block, o.plan.block = {12, 12};
    o.form = "fp8";
    const std::string module = quantize_checkpoint(dir / "in", dir / "blocks", o).quantized.front().first;
    const at::Tensor w = test::find(tensors, module + ".weight").to(at::kFloat),
                     inv = read_tensor(dir / "blocks", module + ".weight_scale_inv");
    for (std::int64_t r = 0; r < inv.size(0); ++r) {
      for (std::int64_t c = 0; c < inv.size(1); ++c)
        expect_least_error({w.slice(0, 12 * r, 12 * r + 12).slice(1, 12 * c, 12 * c + 12)}, inv[r][c].item<float>(),
                           max);
    }
  }
}

TEST_F(CheckpointQuantize, PowersOfTwoFollowTheAmax) {
  test::write_llama(folder / "in", test::small_llama(at::kBFloat16));
  CheckpointOptions o;
  o.form = "fp8";
  o.plan.weights = Granularity::block, o.plan.block = {12, 12};
  o.plan.power_of_two = true;
  quantize_checkpoint(folder / "in", folder / "amax", o);
  o.plan.search = ScaleSearch::mse;
  const auto report = quantize_checkpoint(folder / "in", folder / "mse", o);
  EXPECT_EQ(folder_bytes(folder / "amax"), folder_bytes(folder / "mse"));
  EXPECT_THAT(report.warnings, Contains(HasSubstr("has no effect")));
}

/// The file's tensors as modules in memory, converted with the same options: the very same codes and scales.
void expect_same_as_in_memory(const PlanOptions& plan, const test::NamedTensors& tensors) {
  const test::TempDir dir;
  test::write_llama(dir / "in", tensors);
  CheckpointOptions o;
  o.plan = plan;
  const auto report = quantize_checkpoint(dir / "in", dir / "out", o);
  std::vector<measure::WeightModule> modules;
  for (const auto& [name, t] : tensors) {
    const std::string module = name.substr(0, name.size() - 7);
    if (t.dim() == 2)
      modules.push_back({module, is_embedding_name(module) ? "Embedding" : "Linear", hpu(t).clone(), std::nullopt});
  }
  const auto converted = convert(modules, plan);
  EXPECT_EQ(converted.converted.size(), report.quantized.size());
  int compared = 0;
  for (const auto& m : modules) {
    const auto* tag = runtime::find_tag(m.weight);
    if (tag == nullptr) continue;
    ++compared;
    EXPECT_TRUE(same_bits(test::code_bytes(m.weight), read_tensor(dir / "out", m.name + ".weight"))) << m.name;
    const auto& handler = dynamic_cast<const Fp8Handler&>(*tag->handler);
    at::Tensor scale = read_tensor(dir / "out", m.name + ".weight_scale");
    if (scale.scalar_type() == at::kByte) scale = torch::exp2(scale.to(at::kDouble) - 127).to(at::kFloat);
    EXPECT_TRUE(same_bits(handler.weight_scale_inv().reshape({-1}), scale.reshape({-1}))) << m.name;
    if (plan.activations == ActivationScaling::static_tensor) {
      EXPECT_EQ(handler.scheme().input_scale_inv, read_tensor(dir / "out", m.name + ".input_scale").item<float>());
    }
  }
  EXPECT_GE(compared, 7);
}

void expect_same_as_in_memory(const PlanOptions& plan, at::ScalarType dtype) {
  expect_same_as_in_memory(plan, test::small_llama(dtype));
}

TEST_F(CheckpointQuantize, MxInAFileIsMxInMemory) {
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    auto tensors = test::small_llama(dtype);  // with rows of zeros
    for (auto& [name, t] : tensors)
      if (t.dim() == 2 && t.size(1) == 36) t = torch::cat({t, t * 0.001}, 1).slice(1, 0, 64).contiguous();
    PlanOptions plan;
    set_weights(plan, WeightWord::mx);
    plan.dialect = recipes::Dialect::ocp;
    plan.include = {"lm_head"};
    expect_same_as_in_memory(plan, tensors);
    plan.include.clear();
    const Plan made = make_plan({{"down_proj", "Linear", {36, 53}}, {"o_proj", "Linear", {36, 64}}}, plan);
    ASSERT_EQ(made.skipped.size(), 1u);
    EXPECT_EQ(made.skipped[0].name + ": " + made.skipped[0].reason,
              "down_proj: 53 inputs are no multiple of 32, as MXFP8 has them");
  }
}

TEST_F(CheckpointQuantize, GivesTheCodesOfConversionInMemory) {
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2}) {
      PlanOptions plan{.dialect = dialect};
      expect_same_as_in_memory(plan, dtype);
      for (const auto weights : {Granularity::channel, Granularity::tensor}) {
        PlanOptions search = plan;
        search.search = ScaleSearch::mse;
        search.weights = weights;
        expect_same_as_in_memory(search, dtype);
      }
      plan.activations = ActivationScaling::static_tensor;
      plan.measurements = measured(test::small_llama(dtype));
      expect_same_as_in_memory(plan, dtype);
      for (const char* method : {"maxabs_hw", "maxabs_arbitrary", "act_maxabs_pow2_weights_pcs_maxabs_pow2"}) {
        plan.config = configs::parse_quant_config(
            io::Json{{"scale_method", method}, {"blocklist", {{"names", {"lm_head"}}}}}, "q");
        expect_same_as_in_memory(plan, dtype);
      }
    }
}

TEST_F(CheckpointQuantize, ConfigKeepsItsOrderAndSpelling) {
  test::write_llama(folder / "in", test::small_llama(at::kBFloat16));
  quantize_checkpoint(folder / "in", folder / "out", {});
  auto config = io::read_json(folder / "out/config.json");
  std::vector<std::string> keys;
  for (const auto& [key, value] : config.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("zeta", "model_type", "rope_theta", "torch_dtype", "tie_word_embeddings", "alpha",
                                "quantization_config"));
  const std::string text = read_file(folder / "out/config.json");
  EXPECT_THAT(text, AllOf(HasSubstr("\"rope_theta\": 10000.0"), HasSubstr("\"zeta\": 1e-06")));
  const auto& quantization = config["quantization_config"];
  expect_values(quantization, {{"quantization_status", "compressed"}, {"ignore", io::Json::array({"lm_head"})}});
  config.erase("quantization_config");
  EXPECT_EQ(config, io::read_json(folder / "in/config.json"));
  const auto sidecar = io::read_json(folder / "out/fp8.json");
  EXPECT_EQ(sidecar["convention"], "own");
  EXPECT_EQ(sidecar["skipped"].size(), 2u);
}

TEST_F(CheckpointQuantize, CarriesFilesButNoStrayWeights) {
  test::write_llama(folder / "in", test::small_llama(at::kBFloat16));
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "generation_config.json", "chat_template.jinja", "LICENSE.txt"})
    test::write_text(folder / "in" / name, name);
  for (const char* name : {"optimizer.pt", "pytorch_model.bin", "training_args.bin", "other.safetensors.index.json"})
    test::write_text(folder / "in" / name, "no");
  test::write_tensors(folder / "in", {{"stray", torch::ones({2})}}, "consolidated.safetensors");
  quantize_checkpoint(folder / "in", folder / "out", {});
  const auto files = folder_bytes(folder / "out");
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("LICENSE.txt", "README.md", "chat_template.jinja", "config.json", "fp8.json",
                                 "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer.model"));
  EXPECT_EQ(files.at("tokenizer.model"), "tokenizer.model");
}

TEST_F(CheckpointQuantize, ScalesOfNoWeightStayBehind) {
  auto tensors = test::small_llama(at::kBFloat16);
  for (const char* scale : {"k_scale", "v_scale"})
    tensors.emplace_back(std::string("model.layers.0.self_attn.") + scale, torch::full({1}, 0.125f));
  test::write_llama(folder / "in", tensors);
  const auto report = quantize_checkpoint(folder / "in", folder / "out", {});
  const io::Checkpoint out(folder / "out");
  for (const auto& name : out.names()) EXPECT_FALSE(name.ends_with("k_scale")) << name;
  EXPECT_EQ(std::count_if(report.warnings.begin(), report.warnings.end(),
                          [](const auto& w) { return w.starts_with("2 scales of key-value caches left out"); }),
            1);
}

TEST_F(CheckpointQuantize, ShardsInAndShardsOut) {
  const auto tensors = test::small_llama(at::kBFloat16);
  test::write_llama(folder / "whole", tensors);
  test::write_llama(folder / "in", tensors);
  fs::remove(folder / "in/model.safetensors");
  io::Json map = io::Json::object();
  test::NamedTensors first(tensors.begin(), tensors.begin() + 5), second(tensors.begin() + 5, tensors.end());
  test::write_tensors(folder / "in", first, "model-00001-of-00002.safetensors");
  test::write_tensors(folder / "in", second, "model-00002-of-00002.safetensors");
  for (const auto& [name, t] : first) map[name] = "model-00001-of-00002.safetensors";
  for (const auto& [name, t] : second) map[name] = "model-00002-of-00002.safetensors";
  io::write_json(folder / "in/model.safetensors.index.json",
                 io::Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}});
  CheckpointOptions o;
  quantize_checkpoint(folder / "whole", folder / "one", o);
  o.shard_bytes = 4000;
  quantize_checkpoint(folder / "in", folder / "many", o);
  EXPECT_FALSE(fs::exists(folder / "many/model.safetensors"));
  const auto index = io::read_json(folder / "many/model.safetensors.index.json");
  const io::Checkpoint one(folder / "one"), many(folder / "many");
  EXPECT_EQ(index["metadata"]["total_size"], one.total_bytes());
  EXPECT_EQ(index["weight_map"].size(), one.names().size());
  for (const auto& name : one.names())
    EXPECT_TRUE(same_bits(read_tensor(folder / "one", name), read_tensor(folder / "many", name))) << name;
  std::set<std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) files.insert(file.get<std::string>());
  EXPECT_GT(files.size(), 2u);
  for (const auto& file : files) EXPECT_TRUE(fs::exists(folder / ("many/" + file))) << file;
}

TEST_F(CheckpointQuantize, ATiedHeadIsUntiedWhenIncluded) {
  const auto tensors = test::small_llama(at::kBFloat16, /*tied=*/true);
  test::write_llama(folder / "in", tensors, true);
  CheckpointOptions o;
  quantize_checkpoint(folder / "in", folder / "tied", o);
  EXPECT_EQ(io::read_json(folder / "tied/config.json")["tie_word_embeddings"], true);
  EXPECT_EQ(io::read_json(folder / "tied/config.json")["quantization_config"]["ignore"], io::Json::array({"lm_head"}));
  EXPECT_FALSE(io::Checkpoint(folder / "tied").contains("lm_head.weight"));
  o.plan.include = {"lm_head"};
  quantize_checkpoint(folder / "in", folder / "untied", o);
  const auto config = io::read_json(folder / "untied/config.json");
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(config["quantization_config"]["config_groups"]["group_0"]["targets"],
            io::Json::array({"Linear", "re:.*lm_head"}));
  const at::Tensor embedding = test::find(tensors, "model.embed_tokens.weight");
  EXPECT_TRUE(same_bits(read_tensor(folder / "untied", "model.embed_tokens.weight"), embedding));
  EXPECT_TRUE(same_bits(read_tensor(folder / "untied", "lm_head.weight"), test::quantize_by_amax(embedding, 50).codes));
}

TEST_F(CheckpointQuantize, AHeadStoredDespiteTheTieEndsTheTieToo) {
  test::write_llama(folder / "in", test::small_llama(at::kBFloat16), /*tied=*/true);
  auto o = options_with({.include = {"lm_head"}});
  quantize_checkpoint(folder / "in", folder / "out", o);
  EXPECT_EQ(io::read_json(folder / "out/config.json")["tie_word_embeddings"],
            false);  // else readers would use the embedding
}

TEST_F(CheckpointQuantize, TheSameBytesOnEveryRunAndThreadCount) {
  const auto tensors = test::small_llama(at::kBFloat16);
  test::write_llama(folder / "in", tensors);
  auto o = options_with({.activations = ActivationScaling::static_tensor, .measurements = measured(tensors)});
  const int threads = kernels::num_threads();
  for (int n : {1, 2, 4}) {
    kernels::set_num_threads(n);
    quantize_checkpoint(folder / "in", folder / ("out" + std::to_string(n)), o);
  }
  kernels::set_num_threads(threads);
  quantize_checkpoint(folder / "in", folder / "again", o);
  const auto expected = folder_bytes(folder / "out1");
  EXPECT_EQ(expected.size(), 4u);
  for (const char* other : {"out2", "out4", "again"}) EXPECT_EQ(folder_bytes(folder / other), expected) << other;
}

TEST_F(CheckpointQuantize, DryRunReportsAndWritesNothing) {
  test::write_llama(folder / "in", test::small_llama(at::kBFloat16));
  CheckpointOptions o;
  o.dry_run = true;
  const auto dry = quantize_checkpoint(folder / "in", folder / "out", o);
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
  o.dry_run = false;
  std::uint64_t last = 0, total = 0;
  o.progress = [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GE(done, last);
    last = done, total = all;
  };
  const auto wet = quantize_checkpoint(folder / "in", folder / "out", o);
  EXPECT_EQ(dry.weights_bytes, wet.weights_bytes);
  EXPECT_EQ(dry.quantized, wet.quantized);
  EXPECT_EQ(total, wet.source_bytes);
  EXPECT_EQ(last, total);
}

TEST_F(CheckpointQuantize, RefusesTheMeasurementOfAnotherModel) {
  const auto tensors = test::small_llama(at::kBFloat16);
  test::write_llama(folder / "in", tensors);
  auto o = options_with({.activations = ActivationScaling::static_tensor, .measurements = measured(tensors)});
  const io::Checkpoint source(folder / "in");
  measure::ModelFingerprint model;
  for (const auto& m : o.plan.measurements->modules)
    model.weights.push_back(measure::fingerprint_of(m.module, source, m.module + ".weight"));
  o.plan.measurements->model = model;
  o.dry_run = true;
  EXPECT_NO_THROW(quantize_checkpoint(folder / "in", folder / "out", o));
  o.plan.measurements->model->weights[3].samples[7] += 1.0f;  // the same amax, another weight
  const std::string module = o.plan.measurements->model->weights[3].module;
  EXPECT_REFUSED(quantize_checkpoint(folder / "in", folder / "out", o),
                 "measurements: " + module + ".weight has other values", "another model");
}

}  // namespace
}  // namespace fp8::quant
