// SPDX-License-Identifier: Apache-2.0
// What every form calls its tensors, in which shapes and dtypes (as the readers of these forms have them), what it
// refuses to hold, and that what a form writes, and what peers wrote, is read.

#include "fp8/runtime/kernels/cast.h"
#include "quant/forms/form_checkpoint.h"
#include "support/test_data.h"

namespace fp8::quant {
namespace {

using io::DType;
using io::Json;
using test::scheme_of;

constexpr auto kTensor = Granularity::tensor;
constexpr auto kChannel = Granularity::channel;
constexpr auto kBlock = Granularity::block;
constexpr auto kNone = ActivationScaling::none;
constexpr auto kStatic = ActivationScaling::static_tensor;
constexpr auto kToken = ActivationScaling::dynamic_token;
constexpr auto kDynamicTensor = ActivationScaling::dynamic_tensor;
constexpr auto kGroup = ActivationScaling::dynamic_group;

/// "F32 [1]" by name.
std::map<std::string, std::string> shapes_of(const std::vector<io::SafetensorsWriter::Entry>& entries) {
  std::map<std::string, std::string> out;
  for (const auto& e : entries) {
    std::string text = std::string(io::name_of(e.dtype)) + " [";
    for (std::size_t i = 0; i < e.shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(e.shape[i]);
    out[e.name] = text + "]";
  }
  return out;
}
using Shapes = std::map<std::string, std::string>;

Shapes weight_shapes(const std::string& form, const Scheme& scheme, std::int64_t rows = 256, std::int64_t cols = 384,
                     bool qdq = false) {
  return shapes_of(form_named(form).entries({"m", rows, cols, scheme}, {.scheme = scheme, .qdq = qdq}));
}

TEST(Forms, TensorsOfCompressedTensors) {
  const auto of = [](const Scheme& s, std::int64_t rows = 256, std::int64_t cols = 384) {
    return weight_shapes("compressed-tensors", s, rows, cols);
  };
  EXPECT_EQ(of(scheme_of(kTensor, kStatic)),
            (Shapes{{"m.weight", "F8_E4M3 [256, 384]"}, {"m.weight_scale", "F32 [1]"}, {"m.input_scale", "F32 [1]"}}));
  EXPECT_EQ(of(scheme_of(kChannel, kToken)),
            (Shapes{{"m.weight", "F8_E4M3 [256, 384]"}, {"m.weight_scale", "F32 [256, 1]"}}));
  EXPECT_EQ(of(scheme_of(kChannel, kNone)),
            (Shapes{{"m.weight", "F8_E4M3 [256, 384]"}, {"m.weight_scale", "F32 [256, 1]"}}));
  EXPECT_EQ(of(scheme_of(kBlock, kGroup), 300, 384),
            (Shapes{{"m.weight", "F8_E4M3 [300, 384]"}, {"m.weight_scale", "F32 [3, 3]"}}));
  EXPECT_EQ(of(scheme_of(kBlock, kGroup, {64, 32}), 100, 64),
            (Shapes{{"m.weight", "F8_E4M3 [100, 64]"}, {"m.weight_scale", "F32 [2, 2]"}}));
}

TEST(Forms, TensorsOfFp8) {
  auto block = scheme_of(kBlock, kGroup);
  EXPECT_EQ(weight_shapes("fp8", block),
            (Shapes{{"m.weight", "F8_E4M3 [256, 384]"}, {"m.weight_scale_inv", "F32 [2, 3]"}}));
  block.power_of_two = true;
  EXPECT_EQ(weight_shapes("fp8", block),
            (Shapes{{"m.weight", "F8_E4M3 [256, 384]"}, {"m.weight_scale_inv", "F8_E8M0 [2, 3]"}}));
  EXPECT_EQ(weight_shapes("fp8", scheme_of(kTensor, kStatic)),
            (Shapes{{"m.weight", "F8_E4M3 [256, 384]"}, {"m.weight_scale", "F32 []"}, {"m.input_scale", "F32 []"}}));
  EXPECT_EQ(weight_shapes("fp8", scheme_of(kTensor, kToken)),
            (Shapes{{"m.weight", "F8_E4M3 [256, 384]"}, {"m.weight_scale", "F32 []"}}));
}

TEST(Forms, TensorsOfModelOpt) {
  EXPECT_EQ(weight_shapes("modelopt", scheme_of(kTensor, kStatic)),
            (Shapes{{"m.weight", "F8_E4M3 [256, 384]"}, {"m.weight_scale", "F32 []"}, {"m.input_scale", "F32 []"}}));
  EXPECT_EQ(weight_shapes("modelopt", scheme_of(kChannel, kToken)),
            (Shapes{{"m.weight", "F8_E4M3 [256, 384]"}, {"m.weight_scale", "F32 [256]"}}));
  EXPECT_EQ(weight_shapes("modelopt", scheme_of(kBlock, kGroup), 257),
            (Shapes{{"m.weight", "F8_E4M3 [257, 384]"}, {"m.weight_scale", "F32 [3, 1, 3, 1]"}}));
}

Scheme mx(ActivationScaling activations = kGroup) {
  auto scheme = scheme_of(kBlock, activations, kMxBlock);
  scheme.power_of_two = true;
  return scheme;
}

TEST(Forms, MxHasExponentsInU8) {
  for (const char* form : {"compressed-tensors", "modelopt"}) {
    EXPECT_EQ(weight_shapes(form, mx()),
              (Shapes{{"m.weight", "F8_E4M3 [256, 384]"}, {"m.weight_scale", "U8 [256, 12]"}}));
    EXPECT_EQ(form_named(form).weight_problem({"l.mlp.gate_proj", 100, 96, mx()}), "");
    EXPECT_THAT(form_named(form).weight_problem({"l.mlp.gate_proj", 100, 80, mx()}),
                HasSubstr("80 inputs are no multiple of 32"));
    for (auto activations : {kNone, kStatic, kToken, kDynamicTensor, kGroup}) {
      const bool held = activations == kGroup || (activations == kNone && form != std::string("modelopt"));
      EXPECT_EQ(form_named(form).scheme_problem(mx(activations)).empty(), held) << form << name_of(activations);
    }
  }
  EXPECT_NE(form_named("compressed-tensors").weight_problem({"m", 100, 80, mx(kNone)}), "");
  EXPECT_NE(form_named("inc").scheme_problem(mx()), "");
}

TEST(Forms, TensorsOfInc) {
  EXPECT_EQ(weight_shapes("inc", scheme_of(kTensor, kStatic)), (Shapes{{"m.weight", "F8_E4M3 [384, 256]"},
                                                                       {"m.scale_weight", "F32 []"},
                                                                       {"m.scale_input", "F32 []"},
                                                                       {"m.quant_input.scale_inv", "F32 []"}}));
  EXPECT_EQ(weight_shapes("inc", scheme_of(kChannel, kToken)),
            (Shapes{{"m.weight", "F8_E4M3 [384, 256]"}, {"m.scale_weight", "F32 [256]"}}));
  auto inc = scheme_of(kTensor, kStatic);
  inc.convention = Convention::inc;
  inc.format = recipes::Format::E5M2;
  EXPECT_EQ(weight_shapes("inc", inc, 256, 384, true), (Shapes{{"m.weight", "F8_E5M2 [384, 256]"},
                                                               {"m.dequant_weights.scale", "BF16 []"},
                                                               {"m.quant_input.scale", "BF16 []"},
                                                               {"m.quant_input.scale_inv", "BF16 []"}}));
}

TEST(Forms, CachesOfEveryForm) {
  ConfigSpec config;
  const KvScales one{"l.self_attn", {0.5f}, {0.25f}}, heads{"l.self_attn", {0.5f, 1.0f}, {0.25f, 2.0f}};
  const auto of = [&](const std::string& form, const KvScales& kv) {
    config.kv = {kv};
    EXPECT_EQ(form_named(form).kv_problem(kv), "") << form;
    return shapes_of(form_named(form).kv_entries(kv, config));
  };
  EXPECT_EQ(of("compressed-tensors", one),
            (Shapes{{"l.self_attn.k_scale", "F32 [1]"}, {"l.self_attn.v_scale", "F32 [1]"}}));
  EXPECT_EQ(of("compressed-tensors", heads),
            (Shapes{{"l.self_attn.k_scale", "F32 [2, 1, 1]"}, {"l.self_attn.v_scale", "F32 [2, 1, 1]"}}));
  EXPECT_EQ(form_named("compressed-tensors").config(config)["kv_cache_scheme"]["strategy"], "attn_head");
  EXPECT_EQ(of("fp8", one), (Shapes{{"l.self_attn.k_scale", "F32 []"}, {"l.self_attn.v_scale", "F32 []"}}));
  EXPECT_EQ(of("modelopt", one),
            (Shapes{{"l.self_attn.k_proj.k_scale", "F32 []"}, {"l.self_attn.v_proj.v_scale", "F32 []"}}));
  EXPECT_EQ(of("inc", one), (Shapes{{"l.self_attn.k_cache.quant_input.scale_inv", "F32 []"},
                                    {"l.self_attn.k_cache.dequant_output.scale", "F32 []"},
                                    {"l.self_attn.v_cache.quant_input.scale_inv", "F32 []"},
                                    {"l.self_attn.v_cache.dequant_output.scale", "F32 []"}}));
  for (const char* form : {"fp8", "modelopt", "inc"}) EXPECT_NE(form_named(form).kv_problem(heads), "") << form;
  KvScales queries = one;
  queries.q = {2.0f};
  EXPECT_EQ(of("compressed-tensors", queries)["l.self_attn.q_scale"], "F32 [1]");
  for (const char* form : {"fp8", "modelopt"}) EXPECT_EQ(of(form, queries)["l.self_attn.q_scale"], "F32 []") << form;
  EXPECT_THAT(form_named("inc").kv_problem(queries), HasSubstr("queries"));
}

TEST(Forms, HoldTheSchemesTheyHaveWordsFor) {
  struct Case {
    std::string form;
    std::map<Granularity, std::set<ActivationScaling>> held;
  };
  const std::vector<Case> cases = {
      {"compressed-tensors",
       {{kTensor, {kNone, kStatic, kToken, kDynamicTensor}},
        {kChannel, {kNone, kStatic, kToken, kDynamicTensor}},
        {kBlock, {kNone, kToken, kDynamicTensor, kGroup}}}},
      {"fp8", {{kTensor, {kStatic, kToken}}, {kBlock, {kGroup}}}},
      {"modelopt", {{kTensor, {kStatic}}, {kChannel, {kToken}}, {kBlock, {kGroup}}}},
      {"inc", {{kTensor, {kStatic, kToken, kDynamicTensor}}, {kChannel, {kStatic, kToken, kDynamicTensor}}}},
      {"inc-vllm", {{kTensor, {kStatic}}}},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(form_named(c.form).name(), c.form);
    for (auto weights : {kTensor, kChannel, kBlock})
      for (auto activations : {kNone, kStatic, kToken, kDynamicTensor, kGroup}) {
        const auto of = c.held.find(weights);
        const bool held = of != c.held.end() && of->second.contains(activations);
        const std::string problem = form_named(c.form).scheme_problem(scheme_of(weights, activations));
        EXPECT_EQ(problem.empty(), held) << c.form << " " << name_of(weights) << " " << name_of(activations) << ": "
                                         << problem;
      }
    auto e5m2 = scheme_of(kTensor, kStatic);
    e5m2.format = recipes::Format::E5M2;
    EXPECT_EQ(form_named(c.form).scheme_problem(e5m2).empty(), c.form == "inc");
  }
  EXPECT_NE(form_named("modelopt").scheme_problem(scheme_of(kBlock, kGroup, {64, 64})), "");
}

TEST(Forms, WeightsThatReadersWouldMisread) {
  const auto problem = [](const std::string& form, const std::string& module, std::int64_t rows, std::int64_t cols,
                          ActivationScaling activations = kGroup) {
    return form_named(form).weight_problem({"l.mlp." + module, rows, cols, scheme_of(kBlock, activations)});
  };
  EXPECT_EQ(problem("fp8", "down_proj", 256, 384), "");
  EXPECT_NE(problem("fp8", "kv_a_proj_with_mqa", 576, 384), "");
  EXPECT_NE(problem("fp8", "down_proj", 256, 172), "");
  EXPECT_EQ(problem("compressed-tensors", "o_proj", 576, 384), "");
  EXPECT_NE(problem("compressed-tensors", "o_proj", 256, 172), "");
  EXPECT_EQ(problem("compressed-tensors", "o_proj", 256, 172, kNone), "");
  EXPECT_NE(problem("compressed-tensors", "q_proj", 192, 384), "");
  EXPECT_NE(problem("compressed-tensors", "gate_proj", 192, 384), "");
  EXPECT_EQ(problem("compressed-tensors", "up_proj", 192, 384), "");  // the last of its fused module
  EXPECT_NE(problem("modelopt", "o_proj", 256, 172), "");
  EXPECT_EQ(problem("modelopt", "o_proj", 200, 384), "");
  EXPECT_EQ(form_named("fp8").weight_problem({"m", 7, 5, scheme_of(kTensor, kStatic)}), "");
}

/// One quantized module, its caches and a module that stays, written in a form.
class Written {
 public:
  Written(const std::string& name, const Scheme& scheme, std::int64_t rows, std::int64_t cols, bool qdq = false)
      : scheme_(scheme), rows_(rows), cols_(cols) {
    const CheckpointForm& form = form_named(name);
    const WeightSpec spec{"l.self_attn.o_proj", rows, cols, scheme};
    ConfigSpec config{.scheme = scheme,
                      .quantized = {spec.module},
                      .kept_linears = {"lm_head"},
                      .scale_method = "amax",
                      .qdq = qdq,
                      .kv = {{"l.self_attn", {0.5f}, {0.125f}}}};
    auto entries = form.entries(spec, config);
    for (auto& e : form.kv_entries(config.kv[0], config)) entries.push_back(std::move(e));
    entries.push_back({"lm_head.weight", DType::F32, {2, 2}});
    struct Sink : TensorSink {
      Sink(const std::filesystem::path& path, const std::vector<io::SafetensorsWriter::Entry>& entries)
          : file(path, entries) {}
      void write(const std::string& tensor, const void* data, std::uint64_t offset, std::uint64_t size) override {
        file.write(tensor, data, offset, size);
      }
      io::SafetensorsWriter file;
    } sink(dir_ / "model.safetensors", entries);
    codes_ = test::codes("m", rows, cols).bytes;
    const std::int64_t half = rows / 2;  // in two pieces
    form.write_codes(sink, spec, codes_.data(), 0, half);
    form.write_codes(sink, spec, codes_.data() + half * cols, half, rows - half);
    const auto n = scale_grid(scheme, rows, cols).size();
    for (std::int64_t i = 0; i < n; ++i) scale_inv_.push_back(std::ldexp(1.0f, static_cast<int>(i % 5) - 2));
    form.write_scales(sink, spec, config, scale_inv_);
    form.write_kv(sink, config.kv[0], config);
    const float rest[4] = {1, 2, 3, 4};
    sink.write("lm_head.weight", rest, 0, sizeof rest);
    sink.file.commit();
    config_ = form.config(config);
    io::write_json(dir_ / "config.json", Json{{"quantization_config", config_}});
    for (const auto& [name, value] : form.extra_files(config_)) io::write_json(dir_ / name, value);
  }

  void check(const std::string& what) const {
    SCOPED_TRACE(what);
    const io::Checkpoint checkpoint(dir_.path());
    const auto stored = read_stored(checkpoint);
    ASSERT_EQ(stored.weights.size(), 1u);
    const auto& w = stored.weights[0];
    EXPECT_EQ(w.spec.module, "l.self_attn.o_proj");
    EXPECT_EQ(w.spec.rows, rows_);
    EXPECT_EQ(w.spec.cols, cols_);
    EXPECT_EQ(w.spec.scheme.describe(), scheme_.describe());
    if (scheme_.activations == kStatic) {
      EXPECT_EQ(w.spec.scheme.input_scale_inv, 0.25f);
      EXPECT_EQ(w.spec.scheme.input_scale, 4.0f);
    }
    EXPECT_EQ(read_scale_inv(checkpoint, w), scale_inv_);
    for (const auto& [first, rows] :
         {std::pair<std::int64_t, std::int64_t>{0, rows_}, {rows_ / 3, rows_ / 4}, {rows_ - 1, 1}}) {
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * cols_));
      read_code_rows(checkpoint, w, first, rows, codes.data());
      EXPECT_EQ(codes,
                std::vector<std::uint8_t>(codes_.begin() + first * cols_, codes_.begin() + (first + rows) * cols_))
          << first;
    }
    ASSERT_EQ(stored.kv.size(), 1u);
    EXPECT_EQ(stored.kv[0].attention, "l.self_attn");
    EXPECT_EQ(stored.kv[0].k, std::vector<float>{0.5f});
    EXPECT_EQ(stored.kv[0].v, std::vector<float>{0.125f});
    EXPECT_EQ(w.tensors.size() + stored.kv_tensors.size() + 1,
              checkpoint.names().size());  // nothing is left over but lm_head
    EXPECT_TRUE(stored.strays.empty());
  }

 private:
  test::TempDir dir_;
  Scheme scheme_;
  std::int64_t rows_, cols_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> scale_inv_;
  Json config_;
};

TEST(Forms, ReadWhatTheyWrite) {
  for (auto weights : {kTensor, kChannel, kBlock})
    for (auto activations : {kNone, kStatic, kToken, kDynamicTensor, kGroup})
      for (const std::string form : {"compressed-tensors", "fp8", "modelopt", "inc", "inc-vllm"}) {
        const auto scheme = scheme_of(weights, activations);
        if (!form_named(form).scheme_problem(scheme).empty()) continue;
        if (form == "inc" && activations == kDynamicTensor) continue;  // INC says so by its scale_method alone
        Written(form, scheme, 256, 384).check(form + " " + scheme.describe());
      }
  Written("compressed-tensors", scheme_of(kBlock, kGroup, {48, 32}), 100, 64).check("ragged rows");
  Written("compressed-tensors", scheme_of(kBlock, kNone, {48, 32}), 100, 70).check("ragged both ways");
  Written("modelopt", scheme_of(kBlock, kGroup), 300, 128).check("ragged rows, pb_wo");
  auto e8m0 = scheme_of(kBlock, kGroup);
  e8m0.power_of_two = true;
  Written("fp8", e8m0, 256, 384).check("E8M0");
  for (const char* form : {"compressed-tensors", "modelopt", "fp8"}) Written(form, mx(), 48, 96).check(form);
  Written("compressed-tensors", mx(kNone), 48, 96).check("weights only");
}

TEST(Forms, ReadWhatTheyWriteForQuantizeDequantizeMode) {
  for (auto weights : {kTensor, kChannel})
    Written("inc", scheme_of(weights, kStatic), 70, 131, true).check(name_of(weights));
}

TEST(Forms, ASecondGroupKeepsActivations) {
  ConfigSpec spec{.scheme = scheme_of(kChannel, kToken),
                  .quantized = {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "lm_head"},
                  .weights_only = {"model.layers.0.self_attn.k_proj"}};
  const auto config = form_named("compressed-tensors").config(spec);
  EXPECT_EQ(config["format"], "mixed-precision");
  const auto &first = config["config_groups"]["group_0"], &second = config["config_groups"]["group_1"];
  EXPECT_EQ(first["format"], "float-quantized");
  EXPECT_EQ(second["format"], "naive-quantized");
  EXPECT_EQ(first["targets"], Json::array({"model.layers.0.self_attn.q_proj", "lm_head"}))
      << "vLLM would take the class of a fused layer before the names of its parts";
  EXPECT_EQ(second["targets"], Json(spec.weights_only));
  EXPECT_EQ(first["weights"], second["weights"]);
  EXPECT_FALSE(first["input_activations"].is_null());
  EXPECT_TRUE(second["input_activations"].is_null());
  const ModelNames llama(Json{{"model_type", "llama"}});
  EXPECT_TRUE(form_named("compressed-tensors").holds_weights_only_beside(llama, spec.scheme));
  EXPECT_FALSE(form_named("compressed-tensors").holds_weights_only_beside(llama, mx())) << "vLLM casts them anyway";
  EXPECT_FALSE(form_named("compressed-tensors").holds_weights_only_beside({}, spec.scheme)) << "no names to target";
  EXPECT_FALSE(form_named("inc-vllm").holds_weights_only_beside(llama, spec.scheme));
}

TEST(Forms, ConfigsHaveTheWordsTheirReadersAskFor) {
  ConfigSpec spec{.quantized = {"a", "model.lm_head"}, .kept_linears = {"b"}};
  const auto config = [&](const std::string& form, const Scheme& scheme) {
    spec.scheme = scheme;
    return form_named(form).config(spec);
  };
  const auto ct = config("compressed-tensors", scheme_of(kBlock, kGroup, {64, 32}));
  EXPECT_EQ(ct["quantization_status"], "compressed");
  const auto& group = ct["config_groups"]["group_0"];
  EXPECT_EQ(group["weights"], Json::parse(R"({"num_bits": 8, "type": "float", "strategy": "block", "symmetric": true, )"
                                          R"("dynamic": false, "block_structure": [64, 32]})"));
  EXPECT_EQ(group["input_activations"],
            Json::parse(R"({"num_bits": 8, "type": "float", "strategy": "group", "symmetric": true, )"
                        R"("dynamic": true, "group_size": 32})"));
  EXPECT_EQ(group["targets"], Json::parse(R"(["Linear", "re:.*lm_head"])"));
  EXPECT_EQ(ct["ignore"], Json::array({"b", R"(re:(.*\.)?b$)"})) << "no family: under any prefix";
  EXPECT_TRUE(ct["kv_cache_scheme"].is_null());
  EXPECT_EQ(config("fp8", scheme_of(kBlock, kGroup)),
            Json::parse(R"({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", )"
                        R"("weight_block_size": [128, 128], "modules_to_not_convert": ["b"]})"));
  EXPECT_EQ(config("fp8", scheme_of(kTensor, kStatic)),
            Json::parse(R"({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["b"]})"));
  auto e8m0 = scheme_of(kBlock, kGroup);
  e8m0.power_of_two = true;
  EXPECT_EQ(config("fp8", e8m0)["scale_fmt"], "ue8m0");
  const auto ct_mx = config("compressed-tensors", mx());
  const auto& mx_group = ct_mx["config_groups"]["group_0"];
  EXPECT_EQ(ct_mx["format"], "mxfp8-quantized");
  EXPECT_EQ(mx_group["format"], "mxfp8-quantized");
  Json arguments =
      Json::parse(R"({"num_bits": 8, "type": "float", "strategy": "group", "symmetric": true, "dynamic": false, )"
                  R"("group_size": 32, "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"})");
  EXPECT_EQ(mx_group["weights"], arguments);
  arguments["dynamic"] = true;
  EXPECT_EQ(mx_group["input_activations"], arguments);
  EXPECT_TRUE(config("compressed-tensors", mx(kNone))["config_groups"]["group_0"]["input_activations"].is_null());
  EXPECT_EQ(form_named("modelopt").extra_files(config("modelopt", mx()))[0].second["quantization"],
            Json::parse(R"({"quant_algo": "MXFP8", "kv_cache_quant_algo": null, "group_size": 32, )"
                        R"("exclude_modules": ["b"]})"));
  spec.kv = {{"l.self_attn", {1.0f}, {1.0f}}};
  const auto mo = config("modelopt", scheme_of(kTensor, kStatic));
  EXPECT_EQ(mo["quant_algo"], "FP8");
  EXPECT_EQ(mo["kv_cache_scheme"], Json::parse(R"({"dynamic": false, "num_bits": 8, "type": "float"})"));
  const auto files = form_named("modelopt").extra_files(mo);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].first, "hf_quant_config.json");
  EXPECT_EQ(files[0].second["quantization"],
            Json::parse(R"({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["b"]})"));
  EXPECT_EQ(config("modelopt", scheme_of(kBlock, kGroup))["quant_algo"], "fp8_pb_wo");
  EXPECT_EQ(config("modelopt", scheme_of(kChannel, kToken))["quant_algo"], "FP8_PER_CHANNEL_PER_TOKEN");
}

/// Largest |decoded - original| of a weight in units of what E4M3 may round away: half a step, 2^-4 of the value or
/// 2^-10 of the scale.
double worst_error(const io::Checkpoint& checkpoint, const StoredWeight& w, const io::Checkpoint& original) {
  const auto [rows, cols] = std::pair{w.spec.rows, w.spec.cols};
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * cols));
  std::vector<float> values(codes.size());
  read_code_rows(checkpoint, w, 0, rows, codes.data());
  original.read(w.weight, values.data());
  const auto scale_inv = read_scale_inv(checkpoint, w);
  const kernels::ScaleLayout layout = w.spec.scheme.layout();
  double worst = 0;
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const double s = scale_inv.at(static_cast<std::size_t>(layout.in_grid(i / cols, i % cols, cols)));
    const double x = values[i], y = kernels::decode_table(kernels::Format::E4M3)[codes[i]] * s;
    worst = std::max(worst, std::abs(x - y) / std::max(std::abs(x) / 16, s / 1024));
  }
  return worst;
}

TEST(FormsReading, PeersFilesGiveBackTheirModel) {
  FP8_NEED_TEST_DATA(data);
  const io::Checkpoint original(data / "models/stories260K");
  for (const auto& [folder, scheme] : {std::pair{"ct-dynamic", "E4M3 channel weights, dynamic token activations, ocp"},
                                       {"ct-static", "E4M3 tensor weights, static tensor activations, ocp"},
                                       {"hf-block4", "E4M3 block 4x4 weights, dynamic group activations, ocp"},
                                       {"mo-fp8", "E4M3 tensor weights, static tensor activations, ocp"}}) {
    const io::Checkpoint checkpoint(data / "peers" / folder);
    const auto stored = read_stored(checkpoint);
    EXPECT_EQ(stored.weights.size(), 35u) << folder;
    EXPECT_TRUE(stored.kv.empty() && stored.strays.empty()) << folder;
    for (const auto& w : stored.weights) {
      EXPECT_EQ(w.spec.scheme.describe(), scheme) << folder;
      EXPECT_LE(worst_error(checkpoint, w, original), 1.001) << folder << " " << w.weight;
    }
  }
}

}  // namespace
}  // namespace fp8::quant
