// SPDX-License-Identifier: Apache-2.0
// INC's checkpoint form: what is written against the plain form's codes and scales, what INC itself writes, and the way
// back.
#include "fp8/measure/calibration/session.h"
#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/load.h"
#include "fp8/quant/model/save.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"
#include "support/values.h"

namespace fp8::quant {
namespace {

using namespace inc;

const std::string kLayer = "model.layers.0.";

/// The codes of a stored weight, upright.
std::vector<std::uint8_t> all_codes(const io::Checkpoint& checkpoint, const StoredWeight& w) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(w.spec.rows * w.spec.cols));
  read_code_rows(checkpoint, w, 0, w.spec.rows, codes.data());
  return codes;
}

/// The same plan in two forms, below `dir`/plain and `dir`/inc.
void quantize_both(const test::TempDir& dir, PlanOptions plan, bool measure, const std::string& form = "inc") {
  const auto tensors = test::small_llama(at::kBFloat16);
  test::write_llama(dir / "in", tensors);
  CheckpointOptions o;
  o.plan = std::move(plan);
  if (measure) o.plan.measurements = measured(tensors);
  quantize_checkpoint(dir / "in", dir / "plain", o);
  o.form = form;
  quantize_checkpoint(dir / "in", dir / "inc", o);
}

using IncCheckpoint = InFolder;

TEST_F(IncCheckpoint, HasTheTransposedCodesAndTheSameScales) {
  quantize_both(folder, {.activations = ActivationScaling::static_tensor, .include = {"lm_head"}}, true);
  for (const std::string& module : {kLayer + "self_attn.k_proj", kLayer + "mlp.down_proj", std::string("lm_head")}) {
    EXPECT_TRUE(same_bits(read_tensor(folder / "inc", module + ".weight"),
                          read_tensor(folder / "plain", module + ".weight").t().contiguous()))
        << module;
    EXPECT_TRUE(same_bits(read_tensor(folder / "inc", module + ".scale_weight"),
                          read_tensor(folder / "plain", module + ".weight_scale").squeeze()))
        << module;
    const at::Tensor in = read_tensor(folder / "plain", module + ".input_scale").squeeze();
    EXPECT_TRUE(same_bits(read_tensor(folder / "inc", module + ".scale_input"), in)) << module;
    EXPECT_TRUE(same_bits(read_tensor(folder / "inc", module + ".quant_input.scale_inv"), in.reciprocal())) << module;
  }
  const auto config = io::read_json(folder / "inc/config.json")["quantization_config"];
  EXPECT_EQ(config, io::read_json(folder / "inc/quantization_config.json"));
  EXPECT_EQ(&form_of_config(config, "here"), &form_named("inc"));
  expect_values(config, {{"mode", "LOAD"}, {"scale_method", "maxabs_arbitrary"}, {"world_size", -1}});
}

TEST_F(IncCheckpoint, LargeWeightsAreTransposedChunkByChunk) {
  const at::Tensor w = torch::randn({3001, 1531});  // three chunks of rows, ragged columns
  test::write_llama(folder / "in", {{"up_proj.weight", w}});
  CheckpointOptions o;
  quantize_checkpoint(folder / "in", folder / "plain", o);
  o.form = "inc";
  quantize_checkpoint(folder / "in", folder / "inc", o);
  EXPECT_TRUE(same_bits(read_tensor(folder / "inc", "up_proj.weight"),
                        read_tensor(folder / "plain", "up_proj.weight").t().contiguous()));
  EXPECT_EQ(io::read_json(folder / "inc/config.json")["quantization_config"]["dynamic_quantization"], true);
  const io::Checkpoint out(folder / "inc");
  const auto weights = read_stored(out).weights;
  ASSERT_EQ(weights.size(), 1u);
  EXPECT_EQ(weights[0].spec.scheme.activations, ActivationScaling::dynamic_token);
  std::vector<std::uint8_t> codes = all_codes(out, weights[0]);
  EXPECT_TRUE(same_bits(torch::from_blob(codes.data(), {3001, 1531}, at::kByte),
                        read_tensor(folder / "plain", "up_proj.weight")));
}

TEST_F(IncCheckpoint, QuantizeDequantizeModeHasItsOwnNames) {
  for (const bool channel : {false, true}) {
    const test::TempDir dir;
    Scheme scheme;
    scheme.convention = Convention::inc;
    scheme.weights = channel ? Granularity::channel : Granularity::tensor;
    scheme.activations = ActivationScaling::static_tensor;
    scheme.input_scale_inv = 4.0f;
    scheme.input_scale = 0.25f;
    const CheckpointForm& form = form_named("inc");
    ConfigSpec spec{.scheme = scheme,
                    .quantized = {"q"},
                    .scale_method = "MAXABS_POW2",
                    .qdq = true,
                    .kv = {{"l", {8.0f}, {2.0f}}}};
    const WeightSpec weight{"q", 2, 3, scheme};
    const std::vector<std::uint8_t> codes = {0x38, 0xb8, 0x00, 0x40, 0x30, 0x7e};  // [2, 3]
    const std::vector<float> scales = channel ? std::vector<float>{0.5f, 0.25f} : std::vector<float>{0.5f};
    auto list = form.entries(weight, spec);
    for (auto& e : form.kv_entries(spec.kv[0], spec)) list.push_back(e);
    fs::create_directories(dir / "m");
    struct Sink : TensorSink {
      Sink(const fs::path& path, const std::vector<io::SafetensorsWriter::Entry>& entries) : file(path, entries) {}
      void write(const std::string& tensor, const void* data, std::uint64_t offset, std::uint64_t size) override {
        file.write(tensor, data, offset, size);
      }
      io::SafetensorsWriter file;
    } sink(dir / "m/model.safetensors", list);
    form.write_codes(sink, weight, codes.data(), 0, 1);
    form.write_codes(sink, weight, codes.data() + 3, 1, 1);
    form.write_scales(sink, weight, spec, scales);
    form.write_kv(sink, spec.kv[0], spec);
    sink.file.commit();
    io::write_json(dir / "m/config.json", io::Json{{"quantization_config", form.config(spec)}});
    const io::Checkpoint out(dir / "m");
    // Names, dtypes and shapes as neural-compressor 3.9 saves them.
    const auto expect = [&](const std::string& name, io::DType dtype, const std::vector<std::int64_t>& shape) {
      ASSERT_TRUE(out.contains(name)) << name;
      EXPECT_EQ(out.info(name).dtype, dtype) << name;
      EXPECT_EQ(out.info(name).shape, shape) << name;
    };
    const io::DType scale_type = channel ? io::DType::F32 : io::DType::BF16;
    expect("q.weight", io::DType::F8_E4M3, {3, 2});
    expect("q.dequant_weights.scale", scale_type, channel ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>{});
    expect("q.quant_input.scale", scale_type, {});
    expect("q.quant_input.scale_inv", scale_type, {});
    if (channel) expect("q.dequant_weights.zero_point", io::DType::F32, {});
    EXPECT_EQ(out.names().size(), channel ? 10u : 8u);
    EXPECT_EQ(read_tensor(dir / "m", "q.quant_input.scale_inv").item<float>(), 0.25f);
    EXPECT_EQ(read_tensor(dir / "m", "l.k_cache.quant_input.scale_inv").item<float>(), 0.125f);
    const auto stored = read_stored(out);
    ASSERT_EQ(stored.kv.size(), 1u);
    EXPECT_EQ(stored.kv[0].attention, "l");
    EXPECT_EQ(stored.kv[0].k, std::vector<float>{8.0f});
    EXPECT_EQ(stored.kv[0].v, std::vector<float>{2.0f});
    ASSERT_EQ(stored.weights.size(), 1u);
    EXPECT_EQ(read_scale_inv(out, stored.weights[0]), scales);
    EXPECT_EQ(stored.weights[0].spec.scheme.weights, scheme.weights);
    EXPECT_EQ(stored.weights[0].spec.scheme.input_scale_inv, 4.0f);
    EXPECT_EQ(all_codes(out, stored.weights[0]), codes);
  }
}

TEST_F(IncCheckpoint, WhatIncItselfWritesIsRead) {
  // Names, dtypes and shapes as neural-compressor 3.9 saves them, per channel in quantize-dequantize mode, without our
  // sidecar.
  const at::Tensor codes = torch::tensor({0x38, 0x40, 0xb8, 0x30, 0x00, 0x7e}, at::kByte)
                               .view({3, 2})
                               .view(at::kFloat8_e4m3fn);  // [in 3, out 2]
  const auto bf16 = [](at::Tensor t) { return t.to(at::kBFloat16); };
  test::write_tensors(folder / "m", {{"a.weight", codes},
                                     {"a.dequant_weights.scale", bf16(torch::tensor({0.5f, 0.25f}))},
                                     {"a.dequant_weights.zero_point", torch::tensor(0.0f)},
                                     {"a.quant_input.scale", bf16(torch::tensor(2.0f))},
                                     {"a.quant_input.scale_inv", bf16(torch::tensor(0.5f))},
                                     {"a.quant_input.zero_point", torch::tensor(0.0f)},
                                     {"l.k_cache.quant_input.scale_inv", bf16(torch::tensor(0.125f))},
                                     {"l.k_cache.dequant_output.scale", bf16(torch::tensor(8.0f))},
                                     {"l.v_cache.quant_input.scale_inv", bf16(torch::tensor(0.25f))},
                                     {"l.v_cache.dequant_output.scale", bf16(torch::tensor(4.0f))}});
  const io::Json config = {{"mode", "LOAD"},     {"fp8_config", "E4M3"},
                           {"hp_dtype", "bf16"}, {"scale_method", "act_maxabs_pow2_weights_pcs_maxabs_pow2"},
                           {"use_qdq", "True"},  {"world_size", -1}};
  io::write_json(folder / "m/config.json", io::Json{{"quantization_config", config}});
  const io::Checkpoint checkpoint(folder / "m");
  const auto stored = read_stored(checkpoint);
  ASSERT_EQ(stored.weights.size(), 1u);
  const auto& w = stored.weights[0];
  EXPECT_EQ(read_scale_inv(checkpoint, w), (std::vector<float>{0.5f, 0.25f}));
  EXPECT_EQ(w.spec.scheme.weights, Granularity::channel);
  EXPECT_EQ(w.spec.scheme.convention, Convention::inc);
  EXPECT_EQ(w.spec.scheme.input_scale_inv, 2.0f);
  EXPECT_EQ(w.spec.scheme.input_scale, 0.5f);
  EXPECT_EQ(w.spec.rows, 2);
  EXPECT_EQ(w.spec.cols, 3);
  EXPECT_EQ(all_codes(checkpoint, w), (std::vector<std::uint8_t>{0x38, 0xb8, 0x00, 0x40, 0x30, 0x7e}));
  ASSERT_EQ(stored.kv.size(), 1u);
  EXPECT_EQ(stored.kv[0].attention, "l");
  EXPECT_EQ(stored.kv[0].k, std::vector<float>{8.0f});
  EXPECT_EQ(stored.kv[0].v, std::vector<float>{4.0f});
  EXPECT_EQ(w.tensors.size() + stored.kv_tensors.size(), checkpoint.names().size());
}

TEST_F(IncCheckpoint, SavedModelsComeBackBitForBit) {
  const at::Tensor ids = test::token_ids();
  const torch::NoGradGuard no_grad;
  for (const bool dynamic : {false, true}) {
    const test::TempDir dir;
    auto model = test::tiny_lm(1, at::kBFloat16);
    PlanOptions o{.activations = dynamic ? ActivationScaling::dynamic_token : ActivationScaling::static_tensor};
    if (!dynamic) {
      const auto session = measure::CalibrationSession::attach(*model, {});
      model(ids);
      session->finalize();
      o.measurements = session->result();
    }
    convert(*model, o);
    save(*model, dir / "out", "inc");
    auto other = test::tiny_lm(2, at::kBFloat16);
    const io::Checkpoint checkpoint(dir / "out");
    const auto taken = load_fp8(measure::weight_modules(*other), measure::op_nodes(*other), checkpoint, at::kBFloat16);
    EXPECT_EQ(taken.size(), dynamic ? 28u : 56u);
    for (auto& item : other->named_parameters())
      if (taken.count(item.key()) == 0) item.value().data().copy_(read_tensor(dir / "out", item.key()));
    EXPECT_TRUE(same_bits(other(ids), model(ids))) << dynamic;
  }
}

TEST_F(IncCheckpoint, TheVllmFormIsCompressedTensorsWithOneStaticScalePerTensor) {
  const test::TempDir dir;
  quantize_both(dir, {.activations = ActivationScaling::static_tensor}, true, "inc-vllm");
  auto inc = folder_bytes(dir / "inc"), plain = folder_bytes(dir / "plain");
  for (auto* files : {&inc, &plain}) {  // but for what the run was asked
    io::Json note = io::parse_json(files->at("fp8.json"), "fp8.json");
    note.erase("run");
    note.erase("checksums");
    files->at("fp8.json") = note.dump();
    files->erase("README.md");  // names the form
  }
  EXPECT_TRUE(inc == plain);
  for (const bool channel : {true, false}) {
    const test::TempDir other;
    PlanOptions bad{.activations = channel ? ActivationScaling::static_tensor : ActivationScaling::dynamic_token,
                    .weights = channel ? Granularity::channel : Granularity::tensor};
    EXPECT_REFUSED(quantize_both(other, bad, channel, "inc-vllm"), "inc-vllm", "one static scale per tensor");
    EXPECT_FALSE(fs::exists(other / "inc"));
  }
}

TEST_F(IncCheckpoint, WeightsAloneAreRefused) {
  PlanOptions plan{.activations = ActivationScaling::none};
  EXPECT_REFUSED(quantize_both(folder, plan, false), "inc", "activations in high precision");
}

TEST_F(IncCheckpoint, KeptNamesFindNoQuantizedModule) {
  ConfigSpec spec{.quantized = {"l.mlp.gate_proj", "l.mlp.up_proj"},
                  .kept_linears = {"l.mlp.gate", "lm_head"},
                  .scale_method = "amax"};
  const auto config = form_named("inc").config(spec);
  EXPECT_EQ(config["blocklist"]["names"], io::Json::parse(R"(["^l\\.mlp\\.gate$", "lm_head"])"));
}

TEST_F(IncCheckpoint, WhatDoesNotFitIsNamed) {
  const io::Json config = {{"fp8_config", "E4M3"}, {"scale_method", "maxabs_hw"}};
  const auto fails = [&](const std::vector<std::string>& words, const test::NamedTensors& tensors,
                         const io::Json& with) {
    const test::TempDir dir;
    test::write_tensors(dir / "m", tensors);
    io::write_json(dir / "m/config.json", io::Json{{"quantization_config", with}});
    EXPECT_TRUE(throws_with(words, [&] {
      const io::Checkpoint checkpoint(dir / "m");
      for (const auto& w : read_stored(checkpoint).weights) read_scale_inv(checkpoint, w);
    }));
  };
  const at::Tensor codes = torch::zeros({3, 2}).to(at::kFloat8_e4m3fn), one = torch::tensor(1.0f);
  fails({"a.dequant_weights.scale"}, {{"a.weight", codes}}, config);
  fails({"a.scale_weight", "expected shape [] or [1] or [2]", "found [3]"},
        {{"a.weight", codes}, {"a.scale_weight", torch::ones({3})}, {"a.scale_input", one}}, config);
  fails({"a.scale_weight", "finite scales > 0"},
        {{"a.weight", codes}, {"a.scale_weight", torch::tensor(0.0f)}, {"a.scale_input", one}}, config);
  fails({"a.scale_input"}, {{"a.weight", codes}, {"a.scale_weight", one}}, config);
  auto ranks = config;
  ranks["world_size"] = 8;
  fails({"world_size", "found 8", "unify"}, {{"a.weight", codes}}, ranks);
  fails({"INC's form"}, {{"a.weight", codes}}, {{"fp8_config", "E4M3"}});
}

// INC checkpoints of several ranks: split, put together again, with equal and with different scales.

void write_folder(const fs::path& folder, const test::NamedTensors& tensors, int world = -1) {
  test::write_tensors(folder, tensors);
  io::write_json(folder / "config.json", {{"quantization_config",
                                           {{"mode", "LOAD"},
                                            {"fp8_config", "E4M3"},
                                            {"hp_dtype", "bf16"},
                                            {"scale_method", "maxabs_pow2"},
                                            {"world_size", world}}}});
}

at::Tensor codes(std::int64_t in, std::int64_t out) { return torch::randn({in, out}).to(at::kFloat8_e4m3fn); }
at::Tensor scalar(float v) { return torch::tensor(v).to(at::kBFloat16); }

test::NamedTensors model() {
  torch::manual_seed(4);
  return {{"l.q_proj.weight", codes(6, 8)},
          {"l.q_proj.scale_weight", torch::rand({8}) + 0.5},
          {"l.q_proj.scale_input", scalar(2)},
          {"l.q_proj.quant_input.scale_inv", scalar(0.5)},
          {"l.q_proj.bias", torch::randn({8})},
          {"l.o_proj.weight", codes(8, 6)},
          {"l.o_proj.scale_weight", scalar(0.25)},
          {"l.o_proj.scale_input", scalar(4)},
          {"l.o_proj.quant_input.scale_inv", scalar(0.25)},
          {"l.o_proj.bias", torch::randn({6})},
          {"norm.weight", torch::randn({6})}};
}

using IncRanks = InFolder;

TEST_F(IncRanks, SplitByOutputAndByInput) {
  const auto tensors = model();
  write_folder(folder / "one", tensors);
  split_checkpoint(folder / "one", folder / "four", 4);
  const auto bytes = [](const at::Tensor& t) { return t.view(at::kByte); };
  for (int r = 0; r < 4; ++r) {
    const auto found = [&](const char* name) {
      return read_tensor(folder / "four", std::string("l.") + name + "_" + std::to_string(r) + "_4");
    };
    const auto part = [&](const at::Tensor& t, int dim) { return t.narrow(dim, 2 * r, 2).contiguous(); };
    EXPECT_TRUE(same_bits(found("q_proj.weight"), part(bytes(tensors[0].second), 1)));
    EXPECT_TRUE(same_bits(found("q_proj.scale_weight"), part(tensors[1].second, 0)));
    EXPECT_TRUE(same_bits(found("q_proj.bias"), part(tensors[4].second, 0)));
    EXPECT_TRUE(same_bits(found("o_proj.weight"), part(bytes(tensors[5].second), 0)));
    EXPECT_TRUE(same_bits(found("o_proj.scale_weight"), tensors[6].second));
    EXPECT_TRUE(same_bits(found("o_proj.bias"), tensors[9].second));
  }
  EXPECT_TRUE(same_bits(read_tensor(folder / "four", "norm.weight"), tensors[10].second));
  EXPECT_EQ(io::read_json(folder / "four/quantization_config.json")["world_size"], 4);
  EXPECT_EQ(io::read_json(folder / "four/config.json")["quantization_config"]["world_size"], 4);
}

TEST_F(IncRanks, UnifyGivesBackWhatWasSplit) {
  write_folder(folder / "one", model());
  split_checkpoint(folder / "one", folder / "four", 2 * 2, {}, usual_split);
  split_checkpoint(folder / "one", folder / "two", 2);
  unify_checkpoint(folder / "four", folder / "two_again", 2);
  unify_checkpoint(folder / "two_again", folder / "one_again");
  for (const auto& [name, t] : model())
    EXPECT_TRUE(same_bits(read_tensor(folder / "one_again", name), read_tensor(folder / "one", name))) << name;
  const io::Checkpoint two(folder / "two");
  for (const auto& name : two.names())
    EXPECT_TRUE(same_bits(read_tensor(folder / "two_again", name), read_tensor(folder / "two", name))) << name;
  EXPECT_EQ(io::read_json(folder / "one_again/config.json")["quantization_config"]["world_size"], -1);
}

TEST_F(IncRanks, DifferentScalesBecomeTheLargerOne) {
  torch::manual_seed(5);
  const at::Tensor a = codes(4, 6), b = codes(4, 6);
  write_folder(folder / "two",
               {{"o_proj.weight_0_2", a},
                {"o_proj.weight_1_2", b},
                {"o_proj.scale_weight_0_2", scalar(0.5)},
                {"o_proj.scale_weight_1_2", scalar(2)},
                {"o_proj.scale_input_0_2", scalar(8)},
                {"o_proj.scale_input_1_2", scalar(4)},
                {"o_proj.quant_input.scale_inv_0_2", scalar(0.125)},
                {"o_proj.quant_input.scale_inv_1_2", scalar(0.25)}},
               2);
  unify_checkpoint(folder / "two", folder / "one");
  EXPECT_EQ(read_tensor(folder / "one", "o_proj.scale_weight").item<float>(), 2.0f);
  EXPECT_EQ(read_tensor(folder / "one", "o_proj.scale_input").item<float>(), 8.0f);
  EXPECT_EQ(read_tensor(folder / "one", "o_proj.quant_input.scale_inv").item<float>(), 0.125f);
  const at::Tensor got = read_tensor(folder / "one", "o_proj.weight");
  ASSERT_EQ(got.sizes(), at::IntArrayRef({8, 6}));
  EXPECT_TRUE(same_bits(got.narrow(0, 4, 4).contiguous(), b.view(at::kByte)));
  // torch rounds to nearest even; a power of two: nothing else to round.
  const at::Tensor want = (a.to(at::kFloat) * 0.5 / 2.0).to(at::kFloat8_e4m3fn);
  EXPECT_TRUE(same_bits(got.narrow(0, 0, 4).contiguous(), want.view(at::kByte)));
}

TEST_F(IncRanks, WhatDoesNotFitIsNamed) {
  write_folder(folder / "one", model());
  EXPECT_REFUSED(split_checkpoint(folder / "one", folder / "out", 3), "l.q_proj.", "size 8", "3 ranks");
  EXPECT_REFUSED(unify_checkpoint(folder / "one", folder / "out"), "found 1 ranks to read", "smaller divisor");
  EXPECT_REFUSED(split_checkpoint(folder / "one", folder / "one", 2, {.overwrite = true}), "is the input itself");
  auto tensors = test::NamedTensors{{"q_proj.weight_0_2", codes(4, 6)},
                                    {"q_proj.scale_weight_0_2", scalar(1)},
                                    {"q_proj.scale_weight_1_2", scalar(1)}};
  write_folder(folder / "two", tensors, 2);
  EXPECT_REFUSED(unify_checkpoint(folder / "two", folder / "out"), "rank 1 of 2 is missing: q_proj.weight_1_2");
  tensors.push_back({"q_proj.weight_1_2", codes(5, 6)});
  write_folder(folder / "odd", tensors, 2);
  EXPECT_REFUSED(unify_checkpoint(folder / "odd", folder / "out"), "q_proj.weight", "do not fit");
  test::write_text(folder / "odd/config.json", R"({"quantization_config": {"quant_method": "fp8"}})");
  EXPECT_REFUSED(unify_checkpoint(folder / "odd", folder / "out"), "config.json", "'quantization_config'");
  EXPECT_FALSE(fs::exists(folder / "out"));
}

}  // namespace
}  // namespace fp8::quant
