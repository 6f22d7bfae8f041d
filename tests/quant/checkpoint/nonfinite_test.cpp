// SPDX-License-Identifier: Apache-2.0
// One rule for NaN and Inf, whoever reads: refused with tensor and number, or copied and noted in fp8.json.
#include "fp8/quant/forms/nonfinite.h"

#include "quant/checkpoint/fp8_source.h"
#include "quant/forms/form_checkpoint.h"

namespace fp8::quant {
namespace {

using io::DType;
using io::Json;
using recipes::FloatType;
using test::make_scheme;
using test::to;
using W = Granularity;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

TEST(NonFinite, IsCountedAsTorchCountsIt) {
  torch::manual_seed(3);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    TempDir tmp;
    at::Tensor x = torch::randn({300, 171}).to(type);
    for (int i = 0; i < 40; ++i) x.view({-1})[i * 1237] = i % 3 == 0 ? kNan : i % 3 == 1 ? kInf : -kInf;
    test::write_tensors(tmp / "in", {{"x", x}, {"y", torch::randn({5})}, {"n", torch::tensor({1, 2}, at::kLong)}});
    const io::Checkpoint checkpoint(tmp / "in");
    const NonFinite found = count_nonfinite(checkpoint, "x");
    EXPECT_EQ(found.nan, static_cast<std::uint64_t>(x.isnan().sum().item<std::int64_t>()));
    EXPECT_EQ(found.inf, static_cast<std::uint64_t>(x.isinf().sum().item<std::int64_t>()));
    const auto all = find_nonfinite(checkpoint, recipes::Dialect::ocp);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all.at("x").nan, found.nan);
    EXPECT_REFUSED(refuse_nonfinite(checkpoint, "x"), "x: expected finite weights",
                   "NaN in 14 and Inf in 26 of 51300 values");
  }
}

TEST(NonFinite, CodesAreReadByTheirDialect) {
  std::vector<std::uint8_t> all(256);
  for (int i = 0; i < 256; ++i) all[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i);
  const test::HandCheckpoint checkpoint(nullptr, {{"a.weight", DType::F8_E4M3, {16, 16}, all},
                                                  {"b.weight", DType::F8_E5M2, {16, 16}, all},
                                                  {"c.weight", DType::U8, {16, 16}, all}});
  const auto open = checkpoint.open();
  const auto expect = [&](const char* tensor, recipes::Dialect dialect, bool bytes, std::uint64_t nan,
                          std::uint64_t inf) {
    const NonFinite found = count_nonfinite(open, tensor, dialect, bytes);
    EXPECT_EQ(found.nan, nan) << tensor;
    EXPECT_EQ(found.inf, inf) << tensor;
  };
  using recipes::Dialect;
  expect("a.weight", Dialect::ocp, false, 2, 0);
  expect("a.weight", Dialect::gaudi3, false, 2, 0);
  expect("a.weight", Dialect::gaudi2, false, 14, 2);  // 0x78 is Inf there, 0x79 to 0x7F NaN
  expect("b.weight", Dialect::ocp, false, 6, 2);
  expect("c.weight", Dialect::ocp, false, 0, 0);
  expect("c.weight", Dialect::ocp, true, 2, 0);
}

/// A small Llama with bad values in the tensors named.
void write_bad(const fs::path& folder, const std::vector<std::string>& names, float bad) {
  auto tensors = test::small_llama(at::kBFloat16);
  for (const auto& name : names) {
    auto t = test::find(tensors, name).view({-1});
    t[3].fill_(bad);
    t[t.numel() - 1].fill_(bad);
  }
  test::write_llama(folder, tensors);
}

/// The source's tensors with its codes as they are now.
void write_again(const fs::path& folder, const test::Fp8Source& source) {
  test::NamedTensors all = source.kept;
  for (const auto& [name, w] : source.weights) {
    all.emplace_back(name + ".weight", w.codes);
    all.emplace_back(name + ".weight_scale", w.scale);
  }
  test::write_tensors(folder, all);
}

TEST(NonFinite, QuantizeAndConvertRefuseItAnywhereWithTensorAndNumber) {
  const std::string mlp = "model.layers.0.mlp.down_proj.weight";
  for (const std::string& name :
       {mlp, std::string("lm_head.weight"), std::string("model.layers.0.input_layernorm.weight"),
        std::string("model.layers.0.self_attn.q_proj.bias")})
    for (const float bad : {kNan, kInf, -kInf}) {
      SCOPED_TRACE(name + " " + std::to_string(bad));
      TempDir tmp;
      write_bad(tmp / "in", {name}, bad);
      const std::vector<std::string> words = {(tmp / "in").string(), name,
                                              std::string(std::isnan(bad) ? "NaN" : "Inf") + " in 2 of"};
      for (const auto scheme : {W::tensor, W::channel, W::block}) {
        auto o = options_with({.weights = scheme, .block = {4, 4}});
        EXPECT_TRUE(throws_with(words, [&] { quantize_checkpoint(tmp / "in", tmp / "out", o); }));
      }
      for (const auto type : {FloatType::F32, FloatType::F16, FloatType::BF16})
        EXPECT_TRUE(throws_with(words, [&] { convert_checkpoint(tmp / "in", tmp / "out", to(type)); }));
      EXPECT_FALSE(fs::exists(tmp / "out"));
    }
  TempDir tmp;  // in codes, and beside them
  auto source = test::write_fp8_source(tmp / "in", make_scheme(W::channel, ActivationScaling::none), 16);
  const std::string q = "model.layers.0.self_attn.q_proj";
  source.weights.at(q).codes.view(at::kByte)[3][4].fill_(0xFF);
  source.weights.at(q).codes.view(at::kByte)[31][0].fill_(0x7F);
  write_again(tmp / "in", source);
  for (const auto& o : {to(FloatType::BF16), to("inc"), to("modelopt")}) {
    auto dynamic = o;
    EXPECT_REFUSED(convert_checkpoint(tmp / "in", tmp / "out", dynamic), q + ".weight", "NaN codes",
                   "NaN in 2 of 1024");
  }
}

TEST(NonFinite, QuantizeCopiesItWhereItIsAllowedAndNotesIt) {
  const std::string q = "model.layers.0.self_attn.q_proj", norm = "model.layers.0.input_layernorm.weight";
  for (const auto scheme : {W::tensor, W::channel}) {
    TempDir tmp;
    write_bad(tmp / "in", {q + ".weight", norm}, kNan);
    auto o = options_with({.weights = scheme});
    o.allow_nonfinite = true;
    const auto report = quantize_checkpoint(tmp / "in", tmp / "out", o);
    const io::Checkpoint in(tmp / "in"), out(tmp / "out");
    for (const char* kept : {"q_proj", "k_proj", "v_proj"}) {  // engines run the three as one
      const std::string name = std::string("model.layers.0.self_attn.") + kept + ".weight";
      EXPECT_EQ(out.info(name).dtype, DType::BF16) << name;
    }
    EXPECT_EQ(out.info("model.layers.0.self_attn.o_proj.weight").dtype, DType::F8_E4M3);
    for (const auto& name : {q + ".weight", norm})
      EXPECT_TRUE(
          torch::equal(read_tensor(tmp / "in", name).view(at::kShort), read_tensor(tmp / "out", name).view(at::kShort)))
          << name;
    const Json note = io::read_json(tmp / "out" / "fp8.json");
    EXPECT_EQ(note["nonfinite"], (Json{{norm, {{"nan", 2}, {"inf", 0}}}, {q + ".weight", {{"nan", 2}, {"inf", 0}}}}));
    EXPECT_THAT(note["skipped"][q].get<std::string>(), HasSubstr("NaN in 2 of 1296"));
    EXPECT_THAT(Json(report.warnings).dump(), HasSubstr(q + ".weight: copied with NaN in 2"));
    // The config names them, so that readers take them for what they are.
    EXPECT_THAT(io::read_json(tmp / "out" / "config.json")["quantization_config"]["ignore"].dump(), HasSubstr(q));
    // Of a model without such, the option changes nothing.
    test::write_llama(tmp / "good", test::small_llama(at::kBFloat16));
    quantize_checkpoint(tmp / "good", tmp / "with", o);
    o.allow_nonfinite = false;
    quantize_checkpoint(tmp / "good", tmp / "without", o);
    EXPECT_EQ(folder_bytes(tmp / "with"), folder_bytes(tmp / "without"));
  }
}

TEST(NonFinite, ConvertCopiesItWhereItIsAllowedAndNotesIt) {
  TempDir tmp;
  write_bad(tmp / "in", {"lm_head.weight"}, kInf);
  ConvertOptions o{.type = FloatType::F32, .allow_nonfinite = true};
  convert_checkpoint(tmp / "in", tmp / "f32", o);
  EXPECT_TRUE(holds(tmp / "f32", "lm_head.weight", read_tensor(tmp / "in", "lm_head.weight").to(at::kFloat)));
  EXPECT_EQ(io::read_json(tmp / "f32" / "fp8.json")["nonfinite"], (Json{{"lm_head.weight", {{"nan", 0}, {"inf", 2}}}}));
  EXPECT_TRUE(verify_conversion(tmp / "in", tmp / "f32", o).changed.empty());
  // In codes: to a type NaN is NaN, in another form the code stays.
  auto source = test::write_fp8_source(tmp / "codes", make_scheme(W::channel, ActivationScaling::dynamic_token), 16);
  const std::string q = "model.layers.0.self_attn.q_proj";
  source.weights.at(q).codes.view(at::kByte)[3][4].fill_(0xFF);
  write_again(tmp / "codes", source);
  for (const auto type : {FloatType::BF16, FloatType::F16}) {
    ConvertOptions typed{.type = type, .allow_nonfinite = true, .stream = {.overwrite = true}};
    convert_checkpoint(tmp / "codes", tmp / "typed", typed);
    const auto y = read_tensor(tmp / "typed", q + ".weight").to(at::kFloat);
    EXPECT_TRUE(std::isnan(y[3][4].item<float>()));
    EXPECT_EQ(y.isnan().sum().item<std::int64_t>(), 1);
    EXPECT_TRUE(verify_conversion(tmp / "codes", tmp / "typed", typed).changed.empty());
  }
  ConvertOptions form{.form = "modelopt", .allow_nonfinite = true};
  convert_checkpoint(tmp / "codes", tmp / "form", form);
  EXPECT_EQ(read_tensor(tmp / "form", q + ".weight")[3][4].item<int>(), 0xFF);
  EXPECT_EQ(io::read_json(tmp / "form" / "fp8.json")["nonfinite"], (Json{{q + ".weight", {{"nan", 1}, {"inf", 0}}}}));
  EXPECT_TRUE(verify_conversion(tmp / "codes", tmp / "form", form).changed.empty());
  form.weights = W::tensor;
  form.form = "compressed-tensors";
  EXPECT_REFUSED(convert_checkpoint(tmp / "codes", tmp / "no", form), q + ".weight", "no new scales can be made");
}

TEST(NonFinite, AnotherDialectsNaNIsNoNumber) {
  TempDir tmp;
  Scheme scheme = make_scheme(W::channel, ActivationScaling::dynamic_token);
  scheme.dialect = recipes::Dialect::gaudi2;
  auto source = test::write_fp8_source(tmp / "in", scheme, 16);
  const std::string q = "model.layers.0.self_attn.q_proj";
  source.weights.at(q).codes.view(at::kByte)[3][4].fill_(0x78);
  write_again(tmp / "in", source);
  for (const auto& base : {to(FloatType::BF16), to("compressed-tensors")}) {
    auto o = base;
    o.dialect = base.type.has_value() ? std::nullopt : std::optional(recipes::Dialect::ocp);
    EXPECT_REFUSED(convert_checkpoint(tmp / "in", tmp / "out", o), q + ".weight", "dialect gaudi2", "Inf in 1 of 1024");
    o.allow_nonfinite = true;
    EXPECT_REFUSED(convert_checkpoint(tmp / "in", tmp / "out", o), q + ".weight", "dialect gaudi2");
  }
}

// Warnings of what others would misread

TEST(CheckpointWarnings, RaggedBlocksOfTheFp8FormAreSaidInOneLine) {
  const Json config = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {4, 4}}};
  const auto ragged = [&](const std::string& module) {
    return std::vector<test::HandTensor>{test::codes(module, 6, 4),
                                         test::f32(module + ".weight_scale_inv", {2, 1}, {1, 1})};
  };
  auto tensors = ragged("b");
  for (const auto& t : ragged("a")) tensors.push_back(t);
  const auto stored = test::HandCheckpoint(config, tensors).read();
  ASSERT_EQ(stored.warnings.size(), 1u);
  for (const char* word : {"2 weights", "[6, 4] in blocks of 4x4", "transformers would misread"})
    EXPECT_THAT(stored.warnings[0], HasSubstr(word));
  EXPECT_TRUE(test::HandCheckpoint(config, {test::codes("a", 8, 4), test::f32("a.weight_scale_inv", {2, 1}, {1, 1})})
                  .read()
                  .warnings.empty());
}

TEST(CheckpointWarnings, PromisedKeyValueScalesThatAreMissingAreSaid) {
  const Json numbers = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"symmetric", true}, {"dynamic", false}};
  Json group = {{"targets", {"Linear"}}, {"weights", numbers}, {"input_activations", nullptr}};
  const Json compressed = {
      {"quant_method", "compressed-tensors"}, {"format", "float-quantized"}, {"config_groups", {{"group_0", group}}}};
  const Json fp8 = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  const Json modelopt = {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}};
  const std::vector<test::HandTensor> tensors = {test::codes("l.self_attn.q_proj", 2, 2),
                                                 test::f32("l.self_attn.q_proj.weight_scale", {1}, {1}),
                                                 test::f32("l.self_attn.q_proj.input_scale", {1}, {1})};
  auto with = tensors;
  with.push_back(test::f32("l.self_attn.k_scale", {1}, {1}));
  with.push_back(test::f32("l.self_attn.v_scale", {1}, {1}));
  const auto count = [&](Json config, const Json& kv, const char* key, const std::vector<test::HandTensor>& t) {
    config[key] = kv;
    const auto stored = test::HandCheckpoint(config, t).read();
    for (const auto& w : stored.warnings)
      EXPECT_THAT(w, HasSubstr(std::string("quantization_config: ") + key + " promises"));
    return stored.warnings.size();
  };
  for (const Json& config : {compressed, fp8, modelopt}) {
    EXPECT_EQ(count(config, numbers, "kv_cache_scheme", tensors), 1u) << config;
    EXPECT_EQ(count(config, numbers, "kv_cache_scheme", with), 0u) << config;
    EXPECT_EQ(count(config, nullptr, "kv_cache_scheme", tensors), 0u) << config;
  }
  Json dynamic = numbers;
  dynamic["dynamic"] = true;
  EXPECT_EQ(count(compressed, dynamic, "kv_cache_scheme", tensors), 0u) << "engines compute them";
  EXPECT_EQ(count(modelopt, "FP8", "kv_cache_quant_algo", tensors), 1u);
  EXPECT_EQ(count(modelopt, "FP8", "kv_cache_quant_algo", with), 0u);
}

}  // namespace
}  // namespace fp8::quant
