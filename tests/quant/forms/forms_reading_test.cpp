// SPDX-License-Identifier: Apache-2.0
// Other tools' spellings of each form are read, and what a reader would take for something else is refused by file,
// tensor or key.
#include "fp8/quant/forms/parts.h"
#include "quant/forms/form_checkpoint.h"
#include "support/golden.h"

namespace fp8::quant {
namespace {

using io::DType;
using io::Json;
using test::codes;
using test::f32;
using test::HandCheckpoint;
using test::HandTensor;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

Json args(const std::string& strategy, bool dynamic) {
  return {{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}, {"symmetric", true}, {"dynamic", dynamic}};
}

Json compressed(const Json& weights, const Json& activations = nullptr) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups",
           {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", activations}}}}},
          {"ignore", Json::array()}};
}
const Json kTensor = compressed(args("tensor", false)), kChannel = compressed(args("channel", false));
const Json kFp8Block =
    Json::parse(R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [2, 2]})");
const Json kFp8Tensor =
    Json::parse(R"({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": null})");
/// The same with scales of key-value caches.
Json with_caches(Json config) {
  config["kv_cache_scheme"] = args("tensor", false);
  return config;
}
Json modelopt(const char* algorithm) { return {{"quant_method", "modelopt"}, {"quant_algo", algorithm}}; }

/// Reads all of a checkpoint, scales and codes too.
void read_all(const HandCheckpoint& checkpoint) {
  const auto open = checkpoint.open();
  for (const auto& w : read_stored(open).weights) {
    read_scale_inv(open, w);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(w.spec.rows * w.spec.cols));
    read_code_rows(open, w, 0, w.spec.rows, bytes.data());
  }
}

/// Expects an error whose message has the folder and these words.
void refused(const std::vector<std::string>& words, const Json& config, const std::vector<HandTensor>& tensors) {
  const HandCheckpoint checkpoint(config, tensors);
  auto all = words;
  all.push_back(checkpoint.path().string());
  EXPECT_TRUE(throws_with(all, [&] { read_all(checkpoint); })) << words[0];
}

StoredWeight only(const StoredCheckpoint& stored) {
  EXPECT_EQ(stored.weights.size(), 1u);
  return stored.weights.at(0);
}

TEST(FormsReading, ScalarAndHalfScalesOfCompressedTensors) {
  EXPECT_EQ(
      only(HandCheckpoint(kTensor, {codes("m", 3, 2), f32("m.weight_scale", {}, {0.5f})}).read()).spec.scheme.weights,
      Granularity::tensor);
  const HandCheckpoint half(
      kChannel, {codes("m", 2, 2), {"m.weight_scale", DType::F16, {2, 1}, {0x00, 0x3C, 0x00, 0x40}}});  // 1, 2
  EXPECT_EQ(read_scale_inv(half.open(), only(half.read())), (std::vector<float>{1, 2}));
  const HandCheckpoint brain(
      kChannel, {codes("m", 2, 2), {"m.weight_scale", DType::BF16, {2, 1}, {0x80, 0x3F, 0x40, 0x40}}});  // 1, 3
  EXPECT_EQ(read_scale_inv(brain.open(), only(brain.read())), (std::vector<float>{1, 3}));
}

TEST(FormsReading, OlderKeyOfCompressedTensors) {
  Json inner = kTensor;
  inner.erase("quant_method");
  for (const Json& config : {inner, Json{{"quantization_config", inner}, {"sparsity_config", nullptr}}}) {
    const HandCheckpoint checkpoint(config, {codes("m", 3, 2), f32("m.weight_scale", {1}, {0.5f})},
                                    "compression_config");
    EXPECT_EQ(only(checkpoint.read()).spec.module, "m");
  }
}

TEST(FormsReading, TheSidecarTellsDialectAndConvention) {
  const HandCheckpoint checkpoint(
      compressed(args("tensor", false), args("tensor", false)),
      {codes("m", 4, 2), f32("m.weight_scale", {1}, {0.5f}), f32("m.input_scale", {1}, {0.30078125f})});
  checkpoint.write("fp8.json", {{"dialect", "gaudi2"}, {"convention", "inc"}, {"hp_dtype", "bf16"}});
  const Scheme scheme = only(checkpoint.read()).spec.scheme;
  EXPECT_EQ(scheme.dialect, recipes::Dialect::gaudi2);
  EXPECT_EQ(scheme.convention, Convention::inc);
  EXPECT_EQ(scheme.input_scale, 3.328125f);  // 1 / 0.30078125 = 3.3247 in bf16
  checkpoint.write("fp8.json", Json::array());
  EXPECT_REFUSED(checkpoint.read(), "fp8.json", "expected an object");
}

TEST(FormsReading, OddJsonIsRefused) {
  for (const Json& odd : {Json(3), Json::array({1}), Json("x")}) {
    refused({"'quantization_config'", "expected an object"}, odd, {codes("m", 4, 2)});
    Json config = kTensor;
    config["config_groups"]["group_0"] = odd;
    refused({"config_groups.group_0", "expected an object"}, config, {codes("m", 4, 2)});
    config = kTensor;
    config["config_groups"]["group_0"]["weights"] = odd;
    refused({"group_0.weights", "expected an object"}, config, {codes("m", 4, 2)});
    config["config_groups"] = odd;
    refused({"'config_groups'", "at least one"}, config, {codes("m", 4, 2)});
  }
}

TEST(FormsReading, GroupsAreToldApartByTheirTargets) {
  Json config = kTensor;
  const auto group = [&](const Json& targets, const std::string& strategy, const Json& activations) {
    return Json{{"targets", targets}, {"weights", args(strategy, false)}, {"input_activations", activations}};
  };
  config["config_groups"] = {{"a", group({"Linear"}, "tensor", nullptr)},
                             {"b", group({"re:.*[.]down_proj$"}, "channel", args("token", true))},
                             {"c", group({"l.1.down_proj"}, "tensor", args("tensor", true))}};
  const std::vector<HandTensor> tensors = {
      codes("l.0.down_proj", 2, 2), f32("l.0.down_proj.weight_scale", {2, 1}, {1, 2}),
      codes("l.1.down_proj", 2, 2), f32("l.1.down_proj.weight_scale", {1}, {1}),
      codes("l.0.up_proj", 2, 2),   f32("l.0.up_proj.weight_scale", {1}, {1})};
  std::map<std::string, std::string> found;
  for (const auto& w : HandCheckpoint(config, tensors).read().weights) found[w.spec.module] = w.spec.scheme.describe();
  EXPECT_EQ(found, (std::map<std::string, std::string>{
                       {"l.0.down_proj", "E4M3 channel weights, dynamic token activations, ocp"},
                       {"l.1.down_proj", "E4M3 tensor weights, dynamic tensor activations, ocp"},
                       {"l.0.up_proj", "E4M3 tensor weights, high precision activations, ocp"}}));
  config["config_groups"].erase("a");
  refused({"config_groups", "l.0.up_proj"}, config, tensors);
}

TEST(FormsReading, BothDialectsOfFp8PerTensor) {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {1}, {1, 1}}) {
    const auto w = only(HandCheckpoint(kFp8Tensor, {codes("m", 3, 2), f32("m.weight_scale_inv", shape, {0.5f}),
                                                    f32("m.activation_scale", shape, {0.25f})})
                            .read());
    EXPECT_EQ(w.scale, "m.weight_scale_inv");
    EXPECT_EQ(w.spec.scheme.input_scale_inv, 0.25f);
    EXPECT_EQ(w.tensors.size(), 3u);
  }
  const auto w = only(HandCheckpoint(kFp8Tensor, {codes("m", 3, 2), f32("m.weight_scale", {}, {0.5f}),
                                                  f32("m.input_scale", {1}, {2.0f})})
                          .read());
  EXPECT_EQ(w.scale, "m.weight_scale");
  EXPECT_EQ(w.spec.scheme.input_scale, 0.5f);
}

TEST(FormsReading, PowerOfTwoScalesAndRaggedBlocksOfFp8) {
  const HandCheckpoint checkpoint(kFp8Block,
                                  {codes("m", 3, 2), {"m.weight_scale_inv", DType::F8_E8M0, {2, 1}, {127, 0}}});
  const auto w = only(checkpoint.read());
  EXPECT_TRUE(w.spec.scheme.power_of_two);
  EXPECT_EQ(w.spec.scheme.activations, ActivationScaling::dynamic_group);
  EXPECT_EQ(read_scale_inv(checkpoint.open(), w), (std::vector<float>{1.0f, std::ldexp(1.0f, -127)}));
  refused({"m.weight_scale_inv", "finite scales > 0"}, kFp8Block,
          {codes("m", 3, 2), {"m.weight_scale_inv", DType::F8_E8M0, {2, 1}, {127, 255}}});
}

TEST(FormsReading, ScalesLeftBesideWeightsInHighPrecisionAreStrays) {
  const auto stored =
      HandCheckpoint(kFp8Block, {codes("m", 2, 2), f32("m.weight_scale_inv", {1, 1}, {1}),
                                 f32("n.weight", {1, 2}, {1, 2}), f32("n.weight_scale_inv", {1, 1}, {kNan})})
          .read();
  EXPECT_EQ(stored.weights.size(), 1u);
  EXPECT_EQ(stored.strays, std::vector<std::string>{"n.weight_scale_inv"});
}

TEST(FormsReading, ModelOptInEitherFileAndItsScalarBlock) {
  const HandCheckpoint beside(nullptr,
                              {codes("m", 2, 2), f32("m.weight_scale", {}, {0.5f}), f32("m.input_scale", {}, {0.25f})});
  EXPECT_REFUSED(read_stored(beside.open()), "no quantization_config",
                 "m.weight F8_E4M3 [2, 2] with scales m.weight_scale F32 []");
  beside.write("hf_quant_config.json", {{"producer", {{"name", "modelopt"}}},
                                        {"quantization", {{"quant_algo", "FP8"}, {"exclude_modules", {"lm_head"}}}}});
  EXPECT_EQ(only(beside.read()).spec.scheme.activations, ActivationScaling::static_tensor);
  const std::vector<HandTensor> tensors = {codes("m", 2, 2), f32("m.weight_scale", {}, {0.5f}),
                                           f32("m.input_scale", {}, {0.25f})};
  const auto both = [&](const Json& config, const char* other) {
    const HandCheckpoint checkpoint(config, tensors);
    checkpoint.write("hf_quant_config.json", {{"quantization", {{"quant_algo", other}}}});
    return checkpoint.read();
  };
  EXPECT_EQ(both(modelopt("FP8"), "FP8").weights.size(), 1u);
  EXPECT_REFUSED(both(modelopt("FP8"), "FP8_PB_WO"), "hf_quant_config.json: found \"FP8_PB_WO\"",
                 "'quantization_config'", "quant_algo \"FP8\"");
  EXPECT_REFUSED(both(kTensor, "FP8"), "found modelopt", "says \"compressed-tensors\"");
  for (const char* algorithm : {"fp8_pb_wo", "FP8_PB_WO"}) {
    const HandCheckpoint scalar(modelopt(algorithm), {codes("m", 100, 128), f32("m.weight_scale", {}, {0.5f})});
    EXPECT_EQ(read_scale_inv(scalar.open(), only(scalar.read())), std::vector<float>{0.5f});
  }
}

TEST(FormsReading, CachesInEverySpelling) {
  const auto read = [](const Json& config, const std::string& scale, std::vector<HandTensor> tensors) {
    tensors.insert(tensors.end(), {codes("l.self_attn.o_proj", 2, 2), f32("l.self_attn.o_proj." + scale, {}, {1})});
    return HandCheckpoint(config, tensors).read().kv;
  };
  const std::string a = "l.self_attn.";
  const Json fp8 = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  for (const auto& [k, v] : {std::pair{"k_scale", "v_scale"},
                             {"k_proj.k_scale", "v_proj.v_scale"},
                             {"k_proj.output_scale", "v_proj.output_scale"},
                             {"attn.k_scale", "attn.v_scale"},
                             {"qkv_proj.k_scale", "qkv_proj.v_scale"},
                             {"kv_scale", ""}}) {
    std::vector<HandTensor> tensors = {f32(a + k, {1, 1}, {0.5f})};
    if (v[0] != '\0') tensors.push_back(f32(a + v, {}, {0.5f}));
    for (const Json& config : {with_caches(kTensor), with_caches(fp8)}) {
      const auto kv = read(config, "weight_scale", tensors);
      ASSERT_EQ(kv.size(), 1u) << k;
      EXPECT_EQ(kv[0].attention, "l.self_attn") << k;
      EXPECT_EQ(kv[0].k, std::vector<float>{0.5f}) << k;
      EXPECT_EQ(kv[0].v, std::vector<float>{0.5f}) << k;
    }
  }
  const auto heads = read(with_caches(kTensor), "weight_scale",
                          {f32(a + "k_scale", {2, 1, 1}, {1, 2}), f32(a + "v_scale", {2, 1, 1}, {3, 4})});
  EXPECT_EQ(heads[0].v, (std::vector<float>{3, 4}));
}

TEST(FormsReading, CachesThatDoNotFitAreRefused) {
  const auto fails = [](const std::vector<std::string>& words, std::vector<HandTensor> tensors) {
    tensors.insert(tensors.end(), {codes("l.o_proj", 2, 2), f32("l.o_proj.weight_scale", {1}, {1})});
    refused(words, with_caches(kTensor), tensors);
  };
  fails({"a.k_scale", "values", "missing"}, {f32("a.k_scale", {1}, {1})});
  fails({"a.v_scale", "keys", "missing"}, {f32("a.v_scale", {1}, {1})});
  fails({"a.k_scale", "finite scales > 0", "found 0"}, {f32("a.k_scale", {1}, {0}), f32("a.v_scale", {1}, {1})});
  fails({"a.v_scale", "nan"}, {f32("a.k_scale", {1}, {1}), f32("a.v_scale", {1}, {kNan})});
  fails({"a.v_scale", "expected 2 values", "found 1"},
        {f32("a.k_scale", {2, 1, 1}, {1, 1}), f32("a.v_scale", {1}, {1})});
  fails({"a.k_scale", "[2, 2]"}, {f32("a.k_scale", {2, 2}, {1, 1, 1, 1}), f32("a.v_scale", {1}, {1})});
  fails({"a second scale", "a.kv_scale"},
        {f32("a.k_scale", {1}, {1}), f32("a.kv_scale", {1}, {1}), f32("a.v_scale", {1}, {1})});
}

TEST(FormsReading, CacheScalesThatNoSchemePromisesAreLeftovers) {
  const auto read = [](const Json& config) {
    return HandCheckpoint(config,
                          {codes("l.o_proj", 2, 2), f32("l.o_proj.weight_scale", {1}, {1}), f32("a.k_scale", {1}, {0}),
                           f32("a.q_scale", {1}, {1}), f32("b.logit_scale", {}, {1})})
        .read();
  };
  const auto left = read(kTensor);
  EXPECT_TRUE(left.kv.empty() && left.attention_scales.empty());
  EXPECT_EQ(left.kv_tensors, (std::vector<std::string>{"a.k_scale", "a.q_scale"}));
  EXPECT_THAT(left.warnings.at(0), HasSubstr("2 scales of attention and caches"));
  const HandCheckpoint said(with_caches(kTensor), {codes("l.o_proj", 2, 2), f32("l.o_proj.weight_scale", {1}, {1}),
                                                   f32("a.k_scale", {1}, {1}), f32("a.v_scale", {1}, {1}),
                                                   f32("a.q_scale", {1}, {1}), f32("a.prob_scale", {1}, {1})});
  EXPECT_EQ(said.read().attention_scales, (std::vector<std::string>{"a.prob_scale", "a.q_scale"}));
}

TEST(FormsReading, CachesAlone) {
  for (const Json& groups : {Json::object(), Json{{"g", {{"targets", Json::array()}, {"weights", nullptr}}}}}) {
    Json config = with_caches(kTensor);
    config["config_groups"] = groups;
    const std::vector<HandTensor> tensors = {f32("l.weight", {1, 2}, {1, 2}), f32("a.k_scale", {}, {0.5f}),
                                             f32("a.v_scale", {}, {0.25f})};
    const auto stored = HandCheckpoint(config, tensors).read();
    EXPECT_TRUE(stored.weights.empty());
    EXPECT_EQ(stored.kv.at(0).v, std::vector<float>{0.25f});
    refused({"m.weight F8_E4M3"}, config, {codes("m", 2, 2), tensors[1], tensors[2]});
  }
}

TEST(FormsReading, ScalesUnderOtherToolsNames) {
  const Json mx = {{"quant_method", "mxfp8"}};
  const HandTensor exponents{"", DType::U8, {3, 2}, {127, 128, 126, 127, 129, 125}};  // 2^(byte - 127)
  const std::vector<float> values = {1, 2, 0.5f, 1, 4, 0.25f};
  const auto named = [&](const std::string& name, DType dtype) {
    return HandTensor{name, dtype, exponents.shape, exponents.bytes};
  };
  const auto read = [](const Json& config, const HandTensor& scale, std::int64_t cols) {
    const HandCheckpoint checkpoint(config, {codes("m", 3, cols), scale});
    const auto w = only(checkpoint.read());
    EXPECT_EQ(w.tensors, (std::vector<std::string>{"m.weight", scale.name}));
    return std::pair(read_scale_inv(checkpoint.open(), w), w.spec.scheme.power_of_two);
  };
  Json block = kFp8Block;
  block["weight_block_size"] = {1, 32};
  for (const char* name : {"m.weight_scale_inv", "m.weight_scale", "m.scale"}) {
    for (const Json& config : {mx, block, modelopt("MXFP8")}) {
      for (const DType dtype : {DType::U8, DType::F8_E8M0})
        EXPECT_EQ(read(config, named(name, dtype), 64), std::pair(values, true)) << name << config;
      EXPECT_EQ(read(config, f32(name, {3, 2}, values), 64).first, values) << name << config;
    }
    const auto grid = f32(name, {1, 2}, {3, 5});
    EXPECT_EQ(read(modelopt("FP8_PB_WO"), grid, 256), std::pair(std::vector<float>{3, 5}, false)) << name;
  }
  EXPECT_EQ(read(kTensor, f32("m.weight_scale_inv", {1}, {3}), 2).first, std::vector<float>{3});
  EXPECT_EQ(read(kChannel, f32("m.scale_weight", {3, 1}, {3, 4, 5}), 2).first, (std::vector<float>{3, 4, 5}));
  refused({"m.weight_scale", "missing", "found m.scale"}, kTensor, {codes("m", 3, 2), f32("m.scale", {1}, {1})});
  refused({"m.weight_scale", "U8"}, kTensor, {codes("m", 3, 2), {"m.weight_scale", DType::U8, {1}, {127}}});
  refused({"m.weight_scale", "U8"}, kChannel, {codes("m", 3, 2), {"m.weight_scale", DType::U8, {3, 1}, {1, 2, 3}}});
}

/// As llm-compressor writes it; `group`: what its group says of the format.
Json mx_config(const Json& group = "mxfp8-quantized", std::int64_t size = 32) {
  Json weights = args("group", false), inputs = args("group", true);
  weights["group_size"] = inputs["group_size"] = size;
  weights["scale_dtype"] = inputs["scale_dtype"] = "torch.uint8";
  Json config = compressed(weights, inputs);
  config["format"] = "mxfp8-quantized";
  config["config_groups"]["group_0"]["format"] = group;
  return config;
}

/// Rows of all codes; each row of scales holds one byte.
std::vector<HandTensor> all_codes_and_exponents(std::int64_t rows) {
  HandTensor codes{"m.weight", DType::F8_E4M3, {rows, 256}, {}}, scale{"m.weight_scale", DType::U8, {rows, 8}, {}};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (int c = 0; c < 256; ++c) codes.bytes.push_back(static_cast<std::uint8_t>((c & 0x7F) == 0x7F ? 0 : c));
    scale.bytes.insert(scale.bytes.end(), 8, static_cast<std::uint8_t>(r));
  }
  return {codes, scale};
}

TEST(FormsReading, EveryCodeUnderEveryExponentOfMx) {
  const auto tensors = all_codes_and_exponents(255);
  for (const Json& config : {mx_config(), mx_config(nullptr), modelopt("MXFP8"), Json{{"quant_method", "mxfp8"}}}) {
    const HandCheckpoint checkpoint(config, tensors);
    const auto w = only(checkpoint.read());
    EXPECT_EQ(w.spec.scheme.describe(), "E4M3 mx weights, dynamic group activations, ocp") << config;
    const auto scale_inv = read_scale_inv(checkpoint.open(), w);
    std::vector<float> y(255 * 256);
    decode_weight_rows(tensors[0].bytes.data(), 255, 256, 0, scale_inv.data(), 255 * 8, w.spec.scheme, y.data(),
                       recipes::FloatType::F32);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const int code = tensors[0].bytes[i] & 0x7F, e = code >> 3, m = code & 7,
                exponent = static_cast<int>(i / 256) - 127;
      const double value = std::ldexp(e == 0 ? m : 8 + m, std::max(e, 1) - 10 + exponent);
      ASSERT_EQ(y[i], static_cast<float>(tensors[0].bytes[i] == code ? value : -value)) << i;
    }
    refused({"m.weight_scale", "finite scales > 0", "nan"}, config, all_codes_and_exponents(256));
  }
}

TEST(FormsReading, WhatMxCannotBeIsRefused) {
  const auto tensors = all_codes_and_exponents(4);
  const auto with = [&](DType dtype, std::vector<std::int64_t> shape) {
    std::int64_t bytes = io::size_of(dtype);
    for (auto n : shape) bytes *= n;
    return std::vector<HandTensor>{
        tensors[0], {"m.weight_scale", dtype, shape, std::vector<std::uint8_t>(static_cast<std::size_t>(bytes), 63)}};
  };
  for (const Json& config : {mx_config(), modelopt("MXFP8")}) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{4, 7}, {8, 4}, {32}, {4, 1, 8, 1}, {4, 16}})
      refused({"m.weight_scale", "shape [4, 8]"}, config, with(DType::U8, shape));
    refused({"m.weight_scale", "I8"}, config, with(DType::I8, {4, 8}));
    refused({"m.weight_scale", "missing"}, config, {tensors[0]});
  }
  refused({"m.weight_scale", "U8", "F32"}, mx_config(), with(DType::F32, {4, 8}));
  refused({"'format'", "128", "group_size 32"}, mx_config("mxfp8-quantized", 128), tensors);
  refused({"m.weight_scale", "U8"}, mx_config("float-quantized"), tensors);
  Json channel = kChannel;
  channel["format"] = "mxfp8-quantized";
  refused({"'format'", "channel"}, channel, tensors);
  refused({"'format'", "mixed-precision"}, mx_config("mixed-precision"), tensors);
}

TEST(FormsReading, ConfigsAtEveryLevel) {
  const std::vector<HandTensor> tensors = {codes("m", 3, 2), f32("m.weight_scale", {1}, {0.5f})};
  const auto with = [&](const Json& config) {
    auto checkpoint = std::make_unique<HandCheckpoint>(nullptr, tensors);
    checkpoint->write("config.json", config);
    return checkpoint;
  };
  const Json said = {{"quantization_config", kTensor}};
  for (const Json& config : {Json{{"text_config", said}}, Json{{"thinker_config", {{"text_config", said}}}},
                             Json{{"text_config", {{"compression_config", kTensor}}}},
                             Json{{"quantization_config", kTensor}, {"text_config", said}},
                             Json{{"quantization_config", Json::object()}, {"text_config", said}}})
    EXPECT_EQ(only(with(config)->read()).spec.module, "m") << config;
  const auto two = with({{"quantization_config", kChannel}, {"text_config", said}});
  EXPECT_REFUSED(two->read(), "'quantization_config'", "'text_config.quantization_config'", "different things");
  EXPECT_REFUSED(with({{"text_config", {{"quantization_config", 3}}}})->read(), "'text_config.quantization_config'",
                 "expected an object, found number");
}

TEST(FormsReading, AConfigWithoutQuantizedTensorsIsALeftover) {
  const HandTensor weight = f32("m.weight", {1, 2}, {1, 2}),
                   position{"p", DType::I64, {1, 1}, {0, 0, 0, 0, 0, 0, 0, 0}};
  for (const Json& config :
       {Json{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}}, Json{{"bits", 8}}, kTensor}) {
    const HandCheckpoint left(config, {weight, position});
    EXPECT_TRUE(read_quantization_config(left.path()).is_null()) << config;
    EXPECT_TRUE(left.read().weights.empty());
    EXPECT_THAT(leftover_config(left.open()), HasSubstr("leftover"));
    for (const HandTensor& held :
         {HandTensor{"n.weight", DType::U8, {2, 1}, {1, 2}}, HandTensor{"n.qweight", DType::I32, {1, 1}, {0, 0, 0, 0}},
          codes("n", 1, 1), f32("m.weight_scale", {1}, {1}), f32("a.k_scale", {1}, {1})}) {
      const HandCheckpoint quantized(config, {weight, held});
      EXPECT_EQ(read_quantization_config(quantized.path()), config) << held.name;
      EXPECT_EQ(leftover_config(quantized.open()), "") << held.name;
    }
  }
}

TEST(FormsReading, ScalesThatAreNoScalesAreRefused) {
  for (const auto& [value, shown] : {std::pair{0.0f, "found 0"}, {kNan, "nan"}, {kInf, "inf"}, {-1.0f, "found -1"}}) {
    refused({"m.weight_scale", "finite scales > 0", shown}, kTensor,
            {codes("m", 3, 2), f32("m.weight_scale", {1}, {value})});
    refused({"m.weight_scale_inv", "finite scales > 0", shown}, kFp8Block,
            {codes("m", 3, 2), f32("m.weight_scale_inv", {2, 1}, {1, value})});
    refused({"m.input_scale", "finite scales > 0", shown}, modelopt("FP8"),
            {codes("m", 3, 2), f32("m.weight_scale", {}, {1}), f32("m.input_scale", {}, {value})});
  }
}

TEST(FormsReading, ShapesThatAnotherReaderWouldTakeForSomethingElseAreRefused) {
  refused({"m.weight_scale", "expected shape [3, 1]", "found [3]"}, kChannel,
          {codes("m", 3, 2), f32("m.weight_scale", {3}, {1, 1, 1})});
  refused({"m.weight_scale", "expected shape [3, 1]", "found [1]"}, kChannel,
          {codes("m", 3, 2), f32("m.weight_scale", {1}, {1})});
  refused({"m.weight_scale", "expected shape [1] or []", "found [3, 1]"}, kTensor,
          {codes("m", 3, 2), f32("m.weight_scale", {3, 1}, {1, 1, 1})});
  refused({"m.weight_scale_inv", "expected shape [2, 1]", "found [1, 1]"}, kFp8Block,
          {codes("m", 3, 2), f32("m.weight_scale_inv", {1, 1}, {1})});
  refused({"m.weight_scale", "expected shape [3]", "found [3, 1]"}, modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
          {codes("m", 3, 2), f32("m.weight_scale", {3, 1}, {1, 1, 1})});
  refused({"m.weight_scale", "[1, 1, 1, 1]", "found [1, 2]"}, modelopt("fp8_pb_wo"),
          {codes("m", 3, 2), f32("m.weight_scale", {1, 2}, {1, 1})});
  refused({"m.input_scale", "expected 1 value", "found shape [2]"}, kFp8Tensor,
          {codes("m", 3, 2), f32("m.weight_scale", {}, {1}), f32("m.input_scale", {2}, {1, 1})});
  refused({"m.weight_scale", "dtype", "F8_E8M0"}, kTensor,
          {codes("m", 3, 2), {"m.weight_scale", DType::F8_E8M0, {1}, {127}}});
}

TEST(FormsReading, MissingScalesAndForeignWeightsAreRefused) {
  refused({"m.weight_scale", "missing"}, kTensor, {codes("m", 3, 2)});
  refused({"m.weight_scale_inv", "missing"}, kFp8Block, {codes("m", 3, 2)});
  refused({"m.input_scale", "missing", "static"}, modelopt("FP8"), {codes("m", 3, 2), f32("m.weight_scale", {}, {1})});
  refused({"found none"}, kTensor, {f32("m.weight", {1, 2}, {1, 2}), f32("m.weight_scale", {1}, {1})});
  refused({"m.weight", "F8_E4M3FNUZ"}, kTensor,
          {{"m.weight", DType::F8_E4M3FNUZ, {1, 2}, {1, 2}}, f32("m.weight_scale", {1}, {1})});
  refused({"m.weight", "F8_E5M2"}, kTensor,
          {{"m.weight", DType::F8_E5M2, {1, 2}, {1, 2}}, f32("m.weight_scale", {1}, {1})});
  refused({"experts.gate_up_proj", "stacked experts"}, modelopt("FP8"),
          {{"experts.gate_up_proj", DType::F8_E4M3, {1, 1, 2}, {1, 2}}});
  refused({"m.weight", "NaN codes"}, kTensor,
          {{"m.weight", DType::F8_E4M3, {2, 1}, {1, 0x7F}}, f32("m.weight_scale", {1}, {1})});
  refused({"m.weight", "NaN codes"}, kFp8Block,
          {{"m.weight", DType::F8_E4M3, {2, 1}, {0xFF, 1}}, f32("m.weight_scale_inv", {1, 1}, {1})});
}

/// What reading says of the config NAME with VALUE at POINTER of it: "NAME POINTER VALUE".
std::string error_of_changed(const std::string& text) {
  const std::map<std::string, Json> configs = {{"none", Json::object()},
                                               {"tensor", kTensor},
                                               {"fp8_tensor", kFp8Tensor},
                                               {"fp8_block", kFp8Block},
                                               {"modelopt", modelopt("FP8")}};
  std::istringstream words(text);
  std::string name, pointer;
  words >> name >> pointer;
  Json config = configs.at(name);
  config[Json::json_pointer(pointer)] = Json::parse(words);
  const HandCheckpoint checkpoint(config, {codes("m", 3, 2), f32("m.weight_scale", {1}, {1})});
  const std::string error = error_of([&] { read_all(checkpoint); });
  EXPECT_THAT(error, HasSubstr(checkpoint.path().string()));
  return error;
}

TEST(FormsReading, WordsThatAreNotBuiltAreRefusedByKey) { EXPECT_GOLDEN(error_of_changed(text)); }

TEST(FormsReading, PowersOfTwoAsBytes) {
  EXPECT_EQ(form_parts::e8m0_bytes({1.0f, 2.0f, 0.5f, std::ldexp(1.0f, -127), std::ldexp(1.0f, 127)}, "t"),
            (std::vector<std::uint8_t>{127, 128, 126, 0, 254}));
  for (const float bad : {3.0f, 0.0f, -1.0f, kInf, kNan, std::ldexp(1.0f, -128)})
    EXPECT_REFUSED(form_parts::e8m0_bytes({bad}, "t"), "t", "powers of two") << bad;
}

}  // namespace
}  // namespace fp8::quant
