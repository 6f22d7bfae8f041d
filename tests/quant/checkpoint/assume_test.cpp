// SPDX-License-Identifier: Apache-2.0
// Codes that no config explains: refused with what was found, or read as the form that the caller names; and the second
// reading by which a conversion is verified. Expected values are LibTorch's products of codes and scales that the test
// made.

#include "fp8/quant/checkpoint/reading.h"
#include "fp8/quant/forms/assumed_form.h"
#include "quant/checkpoint/fp8_source.h"
#include "quant/forms/form_checkpoint.h"

namespace fp8::quant {
namespace {

using io::DType;
using io::Json;
using recipes::FloatType;
using test::codes;
using test::f32;
using test::HandCheckpoint;
using test::HandTensor;
using test::make_scheme;
using test::to;
using W = Granularity;
using A = ActivationScaling;

/// config.json without its quantization_config, and with the sizes that prove how weights stand.
void drop_config(const fs::path& folder) {
  auto config = io::read_json(folder / "config.json");
  config.erase("quantization_config");
  const auto h = io::Checkpoint(folder).info("model.embed_tokens.weight").shape[1];
  config.update({{"hidden_size", h},
                 {"intermediate_size", 3 * h / 2},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 1},
                 {"vocab_size", 50}});
  io::write_json(folder / "config.json", config);
}

/// The same checkpoint with all codes stored as bytes of another dtype.
void store_codes_as(const fs::path& folder, DType dtype) {
  const io::Checkpoint in(folder);
  std::vector<io::SafetensorsWriter::Entry> entries;
  std::vector<std::vector<std::uint8_t>> data;
  for (const auto& name : in.names()) {
    const auto& info = in.info(name);
    entries.push_back({name, info.dtype == DType::F8_E4M3 ? dtype : info.dtype, info.shape});
    data.emplace_back(info.bytes());
    in.read(name, data.back().data());
  }
  io::SafetensorsWriter writer(folder / "model.safetensors", entries);
  for (std::size_t i = 0; i < entries.size(); ++i) writer.write(entries[i].name, data[i].data(), 0, data[i].size());
  writer.commit();
}

struct Row {
  const char* name;
  Scheme scheme;
  std::int64_t unit;
};
std::vector<Row> rows() {
  return {{"static tensor", make_scheme(W::tensor, A::static_tensor), 16},
          {"channel", make_scheme(W::channel, A::dynamic_token), 16},
          {"block 16", make_scheme(W::block, A::dynamic_group, 16), 16},
          {"block 128", make_scheme(W::block, A::dynamic_group), 128},
          {"block 16 E8M0", make_scheme(W::block, A::dynamic_group, 16, true), 16}};
}

TEST(AssumedForm, CodesWithoutAConfigAreRefusedWithWhatWasFound) {
  for (const auto& row : rows()) {
    SCOPED_TRACE(row.name);
    TempDir tmp;
    test::write_fp8_source(tmp / "in", row.scheme, row.unit);
    drop_config(tmp / "in");
    const std::string q = "model.layers.0.self_attn.q_proj.weight";
    const std::vector<std::string> words = {
        (tmp / "in").string(), "no quantization_config", "found 7 weights in codes", "F8_E4M3", "with scales",
        "with assume"};
    for (const auto& o : {to(FloatType::BF16), to(FloatType::F32), to("fp8")}) {
      EXPECT_TRUE(throws_with(words, [&] { convert_checkpoint(tmp / "in", tmp / "out", o); }));
      EXPECT_TRUE(throws_with(words, [&] { verify_conversion(tmp / "in", tmp / "in", o); }));
    }
    CheckpointOptions quantize;
    EXPECT_TRUE(throws_with(words, [&] { quantize_checkpoint(tmp / "in", tmp / "out", quantize); }));
    quantize.plan.include = {"lm_head"};
    quantize.plan.exclude = {"model"};  // the codes would have been copied
    EXPECT_TRUE(throws_with(words, [&] { quantize_checkpoint(tmp / "in", tmp / "out", quantize); }));
    EXPECT_TRUE(throws_with(words, [&] { read_stored(io::Checkpoint(tmp / "in")); }));
    EXPECT_FALSE(fs::exists(tmp / "out"));
  }
}

TEST(AssumedForm, ReadsWhatTheConfigWouldHaveSaid) {
  for (const auto& row : rows()) {
    SCOPED_TRACE(row.name);
    TempDir tmp;
    const auto source = test::write_fp8_source(tmp / "in", row.scheme, row.unit);
    const auto form = row.scheme.power_of_two ? "fp8" : "compressed-tensors";
    const auto said = read_stored(io::Checkpoint(tmp / "in"));
    for (const DType dtype : {DType::F8_E4M3, DType::U8, DType::I8}) {
      SCOPED_TRACE(io::name_of(dtype));
      TempDir other;
      fs::copy(tmp / "in", other / "in", fs::copy_options::recursive);
      drop_config(other / "in");
      store_codes_as(other / "in", dtype);
      auto o = to(FloatType::BF16);
      EXPECT_REFUSED(convert_checkpoint(other / "in", other / "no", o), "7 weights in codes", io::name_of(dtype));
      o.assume = form;
      const auto report = convert_checkpoint(other / "in", other / "out", o);
      EXPECT_EQ(report.modules.size(), 7u);
      EXPECT_THAT(Json(report.notes).dump(), HasSubstr("as 'assume' says"));
      for (const auto& [name, w] : source.weights)
        EXPECT_TRUE(holds(other / "out", name + ".weight", w.values().to(at::kBFloat16)));
      EXPECT_TRUE(verify_conversion(other / "in", other / "out", o).changed.empty());
      const auto assumed = read_assumed(io::Checkpoint(other / "in"), form_named(form)).stored;
      ASSERT_EQ(assumed.weights.size(), said.weights.size());
      for (std::size_t i = 0; i < said.weights.size(); ++i)
        EXPECT_EQ(assumed.weights[i].spec.scheme.describe(), said.weights[i].spec.scheme.describe());
      ConvertOptions back{.form = form, .assume = form};
      if (row.scheme.power_of_two) back.power_of_two = true;
      convert_checkpoint(other / "in", other / "form", back);
      EXPECT_TRUE(verify_conversion(other / "in", other / "form", back).changed.empty());
      EXPECT_EQ(read_stored(io::Checkpoint(other / "form")).weights.size(), 7u);
    }
  }
}

TEST(AssumedForm, ExponentsOf32NeighboursAreMx) {
  TempDir tmp;
  test::write_fp8_source(tmp / "in", make_scheme(W::block, A::dynamic_group, 64, true), 64);
  auto o = to("compressed-tensors");
  set_weights(o, WeightWord::mx);
  convert_checkpoint(tmp / "in", tmp / "mx", o);
  drop_config(tmp / "mx");
  for (const char* form : {"compressed-tensors", "modelopt", "fp8"})
    for (const auto& w : read_assumed(io::Checkpoint(tmp / "mx"), form_named(form)).stored.weights)
      EXPECT_EQ(w.spec.scheme.describe(), "E4M3 mx weights, dynamic group activations, ocp") << form;
}

/// Whether the form has words for the scales of `dir`/in, which `dir`/form then is.
bool has_form(const TempDir& dir, const char* form) {
  return test::error_of<io::Error>([&] { convert_checkpoint(dir / "in", dir / "form", to(form)); }).empty();
}

TEST(AssumedForm, EveryFormsOwnFilesAreReadWithoutTheirConfig) {
  for (const auto& row : rows())
    for (const char* form : {"compressed-tensors", "fp8", "modelopt", "inc"}) {
      SCOPED_TRACE(std::string(row.name) + " " + form);
      TempDir tmp;
      const auto source = test::write_fp8_source(tmp / "in", row.scheme, row.unit);
      if (!has_form(tmp, form)) continue;
      for (const char* config : {"hf_quant_config.json", "quantization_config.json"}) fs::remove(tmp / "form" / config);
      drop_config(tmp / "form");
      ConvertOptions o{.type = FloatType::F32, .assume = form};
      convert_checkpoint(tmp / "form", tmp / "out", o);
      for (const auto& [name, w] : source.weights) EXPECT_TRUE(holds(tmp / "out", name + ".weight", w.values()));
      EXPECT_TRUE(verify_conversion(tmp / "form", tmp / "out", o).changed.empty());
    }
}

TEST(AssumedForm, BytesBesideCodesAreNoHighPrecisionWeights) {
  const Json config = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {2, 2}}};
  for (const DType dtype : {DType::U8, DType::I8}) {
    const HandCheckpoint mixed(config, {codes("m", 2, 2),
                                        f32("m.weight_scale_inv", {1, 1}, {0.5f}),
                                        {"n.weight", dtype, {2, 2}, {0x38, 0x40, 0xB8, 0x00}},
                                        f32("n.weight_scale_inv", {1, 1}, {4.0f})});
    TempDir tmp;
    auto o = to(FloatType::F32);
    EXPECT_REFUSED(convert_checkpoint(mixed.path(), tmp / "out", o), "n.weight", io::name_of(dtype),
                   "n.weight_scale_inv", "assume = fp8");
    EXPECT_FALSE(fs::exists(tmp / "out"));
    o.assume = "modelopt";
    EXPECT_REFUSED(convert_checkpoint(mixed.path(), tmp / "out", o), "says fp8", "assume = modelopt");
    o.assume = "fp8";
    convert_checkpoint(mixed.path(), tmp / "out", o);
    EXPECT_TRUE(holds(tmp / "out", "n.weight", torch::tensor({{4.0f, 8.0f}, {-4.0f, 0.0f}})));
  }
  // Without scales they are whole numbers, a buffer or a mask: copied.
  const HandCheckpoint plain(
      config,
      {codes("m", 2, 2), f32("m.weight_scale_inv", {1, 1}, {0.5f}), {"n.weight", DType::U8, {2, 2}, {1, 2, 3, 4}}});
  TempDir tmp;
  convert_checkpoint(plain.path(), tmp / "out", to(FloatType::F32));
  EXPECT_EQ(io::Checkpoint(tmp / "out").info("n.weight").dtype, DType::U8);
}

TEST(AssumedForm, WhatCannotBeAssumedIsNamed) {
  const auto refused = [](const std::vector<HandTensor>& tensors, const std::string& form,
                          const std::vector<std::string>& words) {
    const HandCheckpoint checkpoint(nullptr, tensors);
    EXPECT_TRUE(throws_with(words, [&] { read_assumed(checkpoint.open(), form_named(form)); })) << words[0];
  };
  const auto scale = f32("m.weight_scale", {1}, {1});
  refused({codes("m", 4, 4), scale}, "inc",
          {"m.weight", "assume = inc", "m.scale_weight", "found m.weight_scale F32 [1]"});
  refused({codes("m", 4, 4)}, "fp8", {"m.weight", "m.weight_scale_inv", "found none"});
  refused({f32("m.weight", {1, 1}, {1})}, "fp8", {"assume = fp8", "expected weights in codes"});
  refused({codes("m", 10, 4), f32("m.weight_scale_inv", {7, 1}, std::vector<float>(7, 1))}, "fp8",
          {"m.weight", "no size of blocks fits"});
  refused({codes("m", 4, 4), scale}, "quark",
          {"assume = quark: allowed: compressed-tensors, inc, fp8, modelopt; quark's"});
  refused({codes("m", 4, 4), scale}, "inc-vllm", {"inc-vllm is read as compressed-tensors"});
  // Packed 4 bits are refused whatever is assumed; without a form that names them they were copied, and their scales
  // rounded.
  const std::vector<HandTensor> packed = {{"m.qweight", DType::I32, {1, 2}, std::vector<std::uint8_t>(8)},
                                          f32("m.scales", {1, 2}, {1, 1}),
                                          codes("n", 2, 2),
                                          f32("n.weight_scale", {1}, {1})};
  refused(packed, "fp8", {"m.qweight", "I32", "m.scales", "packed whole numbers"});
  TempDir tmp;
  EXPECT_REFUSED(
      convert_checkpoint(HandCheckpoint(nullptr, {packed[0], packed[1]}).path(), tmp / "out", to(FloatType::BF16)),
      "weights in codes", "m.qweight I32 [1, 2] with scales m.scales F32 [1, 2]");
  // Codes without any scale.
  EXPECT_REFUSED(read_stored(HandCheckpoint(nullptr, {codes("m", 4, 4)}).open()), "without scales");
}

/// A checkpoint without a config of its codes: q and o square, down not; config.json has the sizes of a Llama.
struct Unexplained {
  TempDir dir;
  std::map<std::string, at::Tensor> values;  ///< upright

  Unexplained(bool transposed, const std::string& scale, bool sizes = true, bool bias = false) {
    torch::manual_seed(3);
    test::NamedTensors tensors;
    const std::string layer = "model.layers.0.";
    for (const auto& [name, rows, cols] :
         {std::tuple{"self_attn.q_proj", 8, 8}, {"self_attn.o_proj", 8, 8}, {"mlp.down_proj", 8, 12}}) {
      const at::Tensor codes = test::random_codes(rows, cols, 448), one = torch::tensor(0.5f);
      values[layer + name + ".weight"] = codes.to(at::kFloat) * one;
      tensors.emplace_back(layer + name + ".weight", transposed ? codes.t().contiguous() : codes);
      tensors.emplace_back(layer + name + scale, one);
      if (bias) tensors.emplace_back(layer + name + ".bias", torch::zeros({rows}));
    }
    test::write_tensors(dir / "in", tensors);
    io::Json config = {{"model_type", "llama"}};
    if (sizes) config.update({{"hidden_size", 8}, {"intermediate_size", 12}, {"num_attention_heads", 2}});
    io::write_json(dir / "in/config.json", config);
  }

  std::string convert(const std::string& form) const {
    ConvertOptions o{.type = FloatType::F32, .assume = form, .stream = {.overwrite = true}};
    return test::error_of([&] {
      convert_checkpoint(dir / "in", dir / "out", o);
      for (const auto& [name, expected] : values) EXPECT_TRUE(holds(dir / "out", name, expected));
      EXPECT_TRUE(verify_conversion(dir / "in", dir / "out", o).changed.empty());
    });
  }
};

TEST(AssumedForm, HowWeightsStandIsProvedByShapesOrBiases) {
  using ::testing::HasSubstr;
  for (const bool bias : {false, true}) {  // by the sizes of config.json, by a bias
    const Unexplained upright(false, ".scale_weight", !bias, bias), turned(true, ".scale_weight", !bias, bias);
    EXPECT_EQ(upright.convert("fp8"), "");
    EXPECT_EQ(turned.convert("inc"), "");
    EXPECT_THAT(upright.convert("inc"),
                HasSubstr("weights stand as [out, in], inc's as [in, out]; option assume = fp8"));
    EXPECT_THAT(turned.convert("fp8"),
                HasSubstr("weights stand as [in, out], fp8's as [out, in]; option assume = inc"));
    EXPECT_THAT(Unexplained(true, ".weight_scale", !bias, bias).convert("fp8"), HasSubstr("stand as [in, out]"));
  }
  for (const char* form : {"fp8", "inc"})
    EXPECT_THAT(Unexplained(true, ".scale_weight", false).convert(form),
                HasSubstr("neither config.json's sizes nor a bias"));
  EXPECT_EQ(Unexplained(false, ".weight_scale", false).convert("fp8"), "");  // no reader has these transposed
}

TEST(AssumedForm, MarksAndInputScalesOfDiffusionFiles) {
  for (const std::int64_t size : {0, 2}) {
    std::vector<HandTensor> tensors = {codes("m", 4, 2),
                                       f32("m.scale_weight", {}, {0.5f}),
                                       f32("m.scale_input", {}, {0.25f}),
                                       f32("m.bias", {4}, {0, 0, 0, 0}),
                                       {"m.comfy_quant", DType::U8, {3}, {1, 2, 3}}};
    tensors.push_back(
        {"scaled_fp8", DType::F8_E4M3, {size}, std::vector<std::uint8_t>(static_cast<std::size_t>(size))});
    const HandCheckpoint checkpoint(nullptr, tensors);
    EXPECT_REFUSED(read_stored(checkpoint.open()), "found 1 weights in codes", "m.scale_weight",
                   "option assume = fp8 reads such scales");
    for (const char* form : {"fp8", "compressed-tensors", "modelopt"}) {
      const auto stored = read_assumed(checkpoint.open(), form_named(form)).stored;
      EXPECT_EQ(stored.weights.at(0).spec.scheme.activations, A::static_tensor) << form;
      EXPECT_EQ(stored.weights.at(0).spec.scheme.input_scale_inv, 0.25f) << form;
      EXPECT_EQ(stored.strays, (std::vector<std::string>{"m.comfy_quant", "scaled_fp8"})) << form;
    }
  }
}

TEST(AssumedForm, ExponentsThatAConfigPromisesAreWhatTheFileHolds) {
  // A config copied from elsewhere: ue8m0, beside scales that are no powers of two.
  const HandCheckpoint source({{"quant_method", "fp8"}, {"weight_block_size", {2, 2}}, {"scale_fmt", "ue8m0"}},
                              {codes("m", 2, 2), f32("m.weight_scale_inv", {1, 1}, {0.3f})});
  TempDir tmp;
  for (const char* form : {"fp8", "compressed-tensors"}) {
    convert_checkpoint(source.path(), tmp / form, to(form));
    EXPECT_THAT(read_scale_inv(io::Checkpoint(tmp / form), read_stored(io::Checkpoint(tmp / form)).weights.at(0)),
                ElementsAre(0.3f));
  }
}

TEST(Convert, NothingOfAQuantizationIsLeftInHighPrecision) {
  const HandCheckpoint source(
      nullptr, {codes("m", 2, 2), f32("m.weight_scale", {1}, {0.5f}), f32("a.k_scale", {1}, {0.5f}),
                f32("a.v_scale", {1}, {0.5f}), f32("a.q_scale", {1}, {0.5f}), f32("b.logit_scale", {}, {3})});
  const Json said = {{"quant_method", "fp8"}};
  TempDir tmp;
  for (const bool caches : {false, true}) {
    Json with = said;
    if (caches) with["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
    source.write("config.json", {{"model_type", "llama"},
                                 {"eps", 1e-5},
                                 {"text_config", {{"vocab_size", 7}, {"quantization_config", with}}},
                                 {"quantization_config", with}});
    ConvertOptions o{.type = FloatType::F32, .stream = {.overwrite = true}};
    const auto report = convert_checkpoint(source.path(), tmp / "out", o);
    EXPECT_EQ(io::Checkpoint(tmp / "out").names(), (std::vector<std::string>{"b.logit_scale", "m.weight"}));
    EXPECT_THAT(Json(report.notes).dump(), HasSubstr("scales of attention"));
    EXPECT_EQ(io::read_json(tmp / "out/config.json"),
              (Json{{"model_type", "llama"}, {"eps", 1e-5}, {"text_config", {{"vocab_size", 7}}}}));
    ConvertOptions form{.form = "compressed-tensors", .stream = {.overwrite = true}};
    convert_checkpoint(source.path(), tmp / "form", form);
    EXPECT_EQ(io::Checkpoint(tmp / "form").contains("a.q_scale"), caches);
    EXPECT_FALSE(io::read_json(tmp / "form/config.json")["text_config"].contains("quantization_config"));
  }
}

// The second reading

TEST(CheckpointReading, IsTheFormulaInEveryForm) {
  for (const auto& row : rows())
    for (const char* form : {"compressed-tensors", "fp8", "modelopt", "inc"}) {
      SCOPED_TRACE(std::string(row.name) + " " + form);
      TempDir tmp;
      const auto source = test::write_fp8_source(tmp / "in", row.scheme, row.unit);
      if (!has_form(tmp, form)) continue;
      const io::Checkpoint checkpoint(tmp / "form");
      const CheckpointReading reading(checkpoint);
      ASSERT_EQ(reading.weights().size(), source.weights.size());
      for (const auto& [name, w] : source.weights) {
        const auto& found = reading.weights().at(name);
        ASSERT_EQ(found.rows, w.codes.size(0));
        ASSERT_EQ(found.cols, w.codes.size(1));
        at::Tensor y = torch::empty(w.codes.sizes());
        const std::int64_t half = found.rows / 2 + 1;
        reading.read(name, 0, half, y.data_ptr<float>());
        reading.read(name, half, found.rows - half, y.data_ptr<float>() + half * found.cols);
        EXPECT_TRUE(torch::equal(y, w.values())) << name;
      }
    }
}

TEST(CheckpointReading, AllCodesAndRoundingsAreTorchs) {
  std::vector<std::uint8_t> all(256);
  for (int i = 0; i < 256; ++i) all[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i);
  const auto bytes = torch::from_blob(all.data(), {16, 16}, at::kByte).clone();
  for (const auto& [dtype, torch_dtype] :
       {std::pair{DType::F8_E4M3, at::kFloat8_e4m3fn}, std::pair{DType::F8_E5M2, at::kFloat8_e5m2}}) {
    const HandCheckpoint checkpoint(nullptr,
                                    {{"m.weight", dtype, {16, 16}, all}, f32("m.weight_scale", {1}, {0.0123f})});
    const auto open = checkpoint.open();
    at::Tensor y = torch::empty({16, 16});
    CheckpointReading(open).read("m", 0, 16, y.data_ptr<float>());
    EXPECT_TRUE(torch::allclose(y, bytes.view(torch_dtype).to(at::kFloat) * 0.0123f, 0, 0, /*equal_nan=*/true));
  }
  torch::manual_seed(5);
  const at::Tensor x = torch::cat(
      {torch::randn({4000}), torch::randn({4000}) * 1e-7, torch::randn({4000}) * 3e4, torch::randn({4000}) * 1e-39,
       torch::tensor({0.0f, -0.0f, 65519.9f, 65520.0f, 1e-45f, 3.4e38f, 6.1e-5f, 2.9e-8f, 2.99e-8f})});
  for (const auto& [type, torch_type] : {std::pair{FloatType::BF16, at::kBFloat16},
                                         std::pair{FloatType::F16, at::kHalf}, std::pair{FloatType::F32, at::kFloat}}) {
    at::Tensor y = x.clone();
    for (std::int64_t i = 0; i < y.numel(); ++i) y[i] = rounded_to(y[i].item<float>(), type);
    EXPECT_TRUE(torch::equal(y, x.to(torch_type).to(at::kFloat)));
  }
}

TEST(CheckpointReading, ReadsBlocksThatDoNotDivideTheirWeight) {
  const Json config = {{"quant_method", "fp8"}, {"weight_block_size", {4, 2}}};
  std::vector<float> scales;
  for (int i = 0; i < 6; ++i) scales.push_back(0.25f * static_cast<float>(i + 1));
  const HandCheckpoint checkpoint(config, {codes("m", 5, 5), f32("m.weight_scale_inv", {2, 3}, scales)});
  const auto open = checkpoint.open();
  at::Tensor y = torch::empty({5, 5});
  CheckpointReading(open).read("m", 0, 5, y.data_ptr<float>());
  const auto grid = torch::tensor(scales).reshape({2, 3});
  const auto values = torch::from_blob(const_cast<std::uint8_t*>(codes("m", 5, 5).bytes.data()), {5, 5}, at::kByte)
                          .clone()
                          .view(at::kFloat8_e4m3fn)
                          .to(at::kFloat);
  EXPECT_TRUE(torch::equal(y, values * test::spread_grid(grid, {4, 2}, 5, 5)));
}

// What --verify finds

TEST(VerifyConversion, FailsWhereCodesWereCopiedAsIfTheyWereValues) {
  // What a converter that takes codes without a config for a model in high precision leaves: codes as they are, rounded
  // scales beside them.
  for (const DType dtype : {DType::F8_E4M3, DType::U8}) {
    TempDir tmp;
    test::write_fp8_source(tmp / "in", make_scheme(W::channel, A::dynamic_token), 16);
    drop_config(tmp / "in");
    store_codes_as(tmp / "in", dtype);
    fs::copy(tmp / "in", tmp / "out", fs::copy_options::recursive);
    ConvertOptions o{.type = FloatType::BF16, .assume = "compressed-tensors"};
    EXPECT_REFUSED(verify_conversion(tmp / "in", tmp / "out", o), (tmp / "out").string(), "weight");
    EXPECT_ANY_THROW(verify_conversion(tmp / "in", tmp / "out", to(FloatType::BF16)));
  }
}

TEST(VerifyConversion, FailsForValuesOfOtherScales) {
  for (const auto& row : rows()) {
    SCOPED_TRACE(row.name);
    TempDir tmp;
    const auto source = test::write_fp8_source(tmp / "in", row.scheme, row.unit);
    const auto o = to(FloatType::BF16);
    convert_checkpoint(tmp / "in", tmp / "out", o);
    const std::string k = "model.layers.0.self_attn.k_proj", v = "model.layers.0.self_attn.v_proj";
    test::NamedTensors all;
    const io::Checkpoint out(tmp / "out");
    for (const auto& name : out.names()) all.emplace_back(name, read_tensor(tmp / "out", name));
    for (auto& [name, t] : all) {  // the codes of k with the scales of v; one element of v by one rounding
      if (name == k + ".weight")
        t = (source.weights.at(k).codes.to(at::kFloat) * source.weights.at(v).spread).to(at::kBFloat16);
      if (name == v + ".weight") t.view(at::kShort).view({-1})[7].add_(1);
    }
    test::write_tensors(tmp / "out", all);
    EXPECT_EQ(verify_conversion(tmp / "in", tmp / "out", o).changed, (std::vector<std::string>{k, v}));
  }
}

TEST(VerifyConversion, FailsForAnInputScaleThatIsNotTheSources) {
  TempDir tmp;
  test::write_fp8_source(tmp / "in", make_scheme(W::tensor, A::static_tensor), 16);
  const auto o = to("modelopt");
  convert_checkpoint(tmp / "in", tmp / "out", o);
  ASSERT_TRUE(verify_conversion(tmp / "in", tmp / "out", o).changed.empty());
  const io::SafetensorsFile file(tmp / "out" / "model.safetensors");
  const auto* t = file.find("model.layers.0.mlp.down_proj.input_scale");
  auto bytes = read_file(tmp / "out" / "model.safetensors");
  bytes[file.place(*t)->offset] = static_cast<char>(bytes[file.place(*t)->offset] ^ 1);
  test::write_text(tmp / "out" / "model.safetensors", bytes);
  EXPECT_THAT(verify_conversion(tmp / "in", tmp / "out", o).changed, ElementsAre("model.layers.0.mlp.down_proj"));
}

TEST(VerifyConversion, FailsForACachesScaleThatIsNotTheSources) {
  for (const char* form : {"modelopt", "inc", "fp8"}) {
    TempDir tmp;
    test::write_fp8_source(tmp / "in", make_scheme(W::tensor, A::static_tensor), 16, /*kv=*/true);
    const auto o = to(form);
    convert_checkpoint(tmp / "in", tmp / "out", o);
    ASSERT_TRUE(verify_conversion(tmp / "in", tmp / "out", o).changed.empty()) << form;
    const io::SafetensorsFile file(tmp / "out" / "model.safetensors");
    for (const auto& t : file.tensors()) {
      if (t.name.find("v_scale") == std::string::npos && t.name.find("v_cache.dequant_output") == std::string::npos)
        continue;
      auto bytes = read_file(tmp / "out" / "model.safetensors");
      bytes[file.place(t)->offset] = static_cast<char>(bytes[file.place(t)->offset] ^ 2);
      test::write_text(tmp / "out" / "model.safetensors", bytes);
    }
    EXPECT_THAT(verify_conversion(tmp / "in", tmp / "out", o).changed,
                ElementsAre("model.layers.0.self_attn (key-value cache scales)"))
        << form;
  }
}

}  // namespace
}  // namespace fp8::quant
