// SPDX-License-Identifier: Apache-2.0
// A calibration's life: attached, run, finalized or destroyed with the model, and nothing left behind.
#include "fp8/measure/calibration/session.h"

#include <torch/script.h>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/modules/op_modules.h"
#include "measure/amax_by_aten.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::measure {
namespace {

TEST(Calibration, MeasuresEveryLinearAndChangesNoBit) {
  auto model = test::tiny_lm();
  const at::Tensor ids = test::token_ids();
  const at::Tensor plain = model(ids);
  const auto session = CalibrationSession::attach(*model, {});
  EXPECT_TRUE(same_bits(model(ids), plain));
  const auto file = session->result();
  EXPECT_EQ(file.modules.size(), 15u);  // 2 x 7 and lm_head; the embedding is no default type
  EXPECT_EQ(file.selected.size(), 15u);
  EXPECT_EQ(file.find("embed_tokens"), nullptr);
  const at::Tensor h = model->embed_tokens(ids);
  EXPECT_EQ(file.find("layer_0.q_proj")->inputs, (std::vector<Amax>{{largest(h)}}));
  EXPECT_EQ(*file.find("layer_0.q_proj")->outputs, (std::vector<Amax>{{largest(model->layers[0]->q_proj(h))}}));
  EXPECT_EQ(*file.find("lm_head")->outputs, (std::vector<Amax>{{largest(plain)}}));
  EXPECT_EQ(file.find("layer_1.down_proj")->weight, Amax{largest(model->layers[1]->down_proj->weight)});
  EXPECT_TRUE(session->finalize().empty());  // no prefix
  EXPECT_TRUE(session->finalize().empty());
  EXPECT_EQ(CalibrationSession::of(*model), nullptr);
  EXPECT_GE(session->watch_seconds(), 0.0);
}

TEST(Calibration, OptionsLeaveOut) {
  auto model = test::tiny_lm();
  CalibrationOptions options;
  options.select = [](const std::string& name, const std::string&) { return name == "lm_head"; };
  options.outputs = options.weights = false;
  const auto session = CalibrationSession::attach(*model, options);
  model(test::token_ids());
  const auto file = session->result();
  ASSERT_EQ(file.modules.size(), 1u);
  EXPECT_EQ(file.selected, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(file.modules[0].inputs.size(), 1u);
  EXPECT_FALSE(file.modules[0].outputs.has_value());
  EXPECT_FALSE(file.modules[0].weight.has_value());
  session->finalize();
}

TEST(Calibration, ModulesNeverCalledStandInTheModuleListOnly) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  model->to(test::kHpu);
  const auto session = CalibrationSession::attach(*model, {});
  model->ptr<torch::nn::LinearImpl>(1)->forward(hpu(torch::ones({2, 4})));
  const auto file = session->result();
  ASSERT_EQ(file.modules.size(), 1u);
  EXPECT_EQ(file.modules[0].module, "1");
  EXPECT_EQ(file.selected, (std::vector<std::string>{"0", "1"}));
  session->finalize();
}

TEST(Calibration, TiedModulesAreBothMeasured) {
  torch::nn::Linear a(4, 4), b(4, 4);
  b->weight = a->weight;
  torch::nn::Sequential model(a, b);
  model->to(test::kHpu);
  b->weight = a->weight;  // to() made two of it
  const auto session = CalibrationSession::attach(*model, {});
  const at::Tensor x = hpu(torch::randn({3, 4}));
  a(x);
  const auto file = session->result();
  ASSERT_EQ(file.modules.size(), 2u);  // which of the two was called can't be told
  EXPECT_EQ(file.modules[0].inputs, file.modules[1].inputs);
  EXPECT_EQ(runtime::find_tag(a->weight)->module_names(), "0, 1");
  finalize_calibration(*model);
  EXPECT_EQ(runtime::find_tag(a->weight), nullptr);
}

TEST(Calibration, WeightsOverTheSameMemoryAreAllLetGo) {
  torch::nn::Linear a(4, 4), b(4, 4);
  a->to(test::kHpu), b->to(test::kHpu);
  b->weight.set_data(a->weight.data());  // another parameter over the same memory
  torch::nn::Sequential model(a, b);
  CalibrationSession::attach(*model, {});
  finalize_calibration(*model);
  EXPECT_EQ(runtime::find_tag(a->weight), nullptr);
  EXPECT_EQ(runtime::find_tag(b->weight), nullptr);
  EXPECT_EQ(CalibrationSession::of(*model), nullptr);
}

TEST(Calibration, FinalizeWritesTheFilesOnce) {
  const test::TempDir dir;
  auto model = test::tiny_lm();
  CalibrationOptions options{.prefix = (dir / "deep/er/inc_output").string()};
  CalibrationSession::attach(*model, options);
  CalibrationSession::of(*model)->begin_samples(0, 2);
  model(test::token_ids());
  const auto expected = CalibrationSession::of(*model)->result();
  const auto paths = finalize_calibration(*model);
  ASSERT_EQ(paths.size(), 4u);
  for (const auto& path : paths) EXPECT_TRUE(fs::is_regular_file(path)) << path;
  const auto read = read_measurements(options.prefix);
  EXPECT_EQ(read.fingerprint(), expected.fingerprint());
  EXPECT_EQ(read.num_samples, 2);
  EXPECT_EQ(read.selected, expected.selected);
  EXPECT_REFUSED(finalize_calibration(*model), "finalize_calibration", "found no watcher");
}

TEST(Calibration, TheModelsEndWritesTheFiles) {
  const test::TempDir dir;
  CalibrationOptions options{.prefix = (dir / "inc_output").string()};
  {
    auto model = test::tiny_lm();
    CalibrationSession::attach(*model, options);
    model(test::token_ids());
    EXPECT_FALSE(fs::exists(dir / "inc_output_hooks_maxabs.json"));
  }
  EXPECT_EQ(read_measurements(options.prefix).modules.size(), 15u);
}

TEST(Calibration, WhenWritingFailsItGoesOn) {
  const test::TempDir dir;
  std::ofstream(dir / "file") << "in the way";
  auto model = test::tiny_lm();
  CalibrationOptions options{.prefix = (dir / "file").string() + "/inc_output"};
  const auto session = CalibrationSession::attach(*model, options);
  model(test::token_ids());
  EXPECT_REFUSED(session->finalize(), (dir / "file").string());
  EXPECT_EQ(CalibrationSession::of(*model), session);
  fs::remove(dir / "file");
  EXPECT_EQ(session->finalize().size(), 4u);
  EXPECT_EQ(read_measurements(options.prefix).modules.size(), 15u);
}

TEST(Calibration, AnEndedSessionIsLetGoThoughTheModelLives) {
  auto model = test::tiny_lm();
  std::weak_ptr<CalibrationSession> session = CalibrationSession::attach(*model, {});
  const at::Tensor plain = model(test::token_ids());
  session.lock()->finalize();  // without the model: its watchers stay, and pass everything through
  EXPECT_TRUE(session.expired());
  EXPECT_TRUE(same_bits(model(test::token_ids()), plain));
  EXPECT_EQ(runtime::find_tag(model->lm_head->weight)->handler->describe(), "measured before");
  CalibrationSession::attach(*model, {});  // and make room for the next calibration
  model(test::token_ids());
  EXPECT_EQ(CalibrationSession::of(*model)->result().modules.size(), 15u);
  finalize_calibration(*model);
}

TEST(Calibration, AnEndedModelLetsTheSessionGo) {
  std::weak_ptr<CalibrationSession> session;
  for (const bool run : {false, true}) {
    auto model = test::tiny_lm();
    session = CalibrationSession::attach(*model, {});
    if (run) model(test::token_ids());
    EXPECT_FALSE(session.expired());
    model = nullptr;
    EXPECT_TRUE(session.expired()) << "after a run: " << run;
  }
}

TEST(Calibration, NothingIsLeftInMemory) {
  auto model = test::tiny_lm();
  const at::Tensor ids = test::token_ids();
  const std::int64_t before = runtime::memory_stats().InUse;
  {
    const auto session = CalibrationSession::attach(*model, {});
    for (int i = 0; i < 3; ++i) model(ids);
    EXPECT_EQ(runtime::memory_stats().InUse, before);  // no input is kept between calls either
    session->finalize();
  }
  EXPECT_EQ(runtime::memory_stats().InUse, before);
}

TEST(Calibration, ALaterCalibrationReplacesTheFirst) {
  auto model = test::tiny_lm();
  const auto first = CalibrationSession::attach(*model, {});
  const auto second = CalibrationSession::attach(*model, {});
  first->finalize();  // takes off its own watchers only
  EXPECT_EQ(CalibrationSession::of(*model), second);
  model(test::token_ids());
  EXPECT_EQ(first->result().modules.size(), 0u);
  EXPECT_EQ(second->result().modules.size(), 15u);
  second->finalize();
}

TEST(Calibration, RefusesWhatItCannotWatchAndTouchesNothing) {
  torch::nn::Linear on_hpu(4, 4), on_cpu(4, 4);
  on_hpu->to(test::kHpu);
  torch::nn::Sequential model(on_hpu, on_cpu);
  EXPECT_REFUSED(CalibrationSession::attach(*model, {}), "[measure] 1", "on hpu", "cpu");
  EXPECT_EQ(CalibrationSession::of(*model), nullptr);
  on_cpu->to(test::kHpu);
  on_cpu->weight.set_data(on_cpu->weight.data().t());
  EXPECT_REFUSED(CalibrationSession::attach(*model, {}), "[measure] 1", "contiguous");
  on_cpu->weight.set_data(hpu(torch::zeros({4, 4}, at::kFloat8_e4m3fn)));
  EXPECT_REFUSED(CalibrationSession::attach(*model, {}), "[measure] 1", "Float8_e4m3fn already");
  EXPECT_EQ(CalibrationSession::of(*model), nullptr);
}

TEST(Calibration, ScriptedModelsAreMeasured) {
  auto model = test::script_mlp();
  const at::Tensor x = hpu(torch::randn({5, 16}));
  const torch::NoGradGuard no_grad;
  const at::Tensor plain = model.forward({x}).toTensor();
  const auto session = CalibrationSession::attach(model, {});
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(same_bits(model.forward({x}).toTensor(), plain));  // the executor optimizes from the second run on
  const auto file = session->result();
  ASSERT_EQ(file.modules.size(), 2u);
  const at::Tensor w = model.attr("up").toModule().attr("weight").toTensor(),
                   b = model.attr("up").toModule().attr("bias").toTensor();
  EXPECT_EQ(file.find("up")->inputs, (std::vector<Amax>{{largest(x)}}));
  EXPECT_EQ(*file.find("up")->outputs, (std::vector<Amax>{{largest(torch::nn::functional::linear(x, w, b))}}));
  EXPECT_EQ(*file.find("down")->outputs, (std::vector<Amax>{{largest(plain)}}));
  EXPECT_EQ(CalibrationSession::of(model), session);
  finalize_calibration(model);
  EXPECT_REFUSED(finalize_calibration(model), "found no watcher");
}

TEST(Calibration, NodesOfScriptedModelsAreMeasuredToo) {
  torch::jit::Module model("Attention");
  model.register_attribute("training", c10::BoolType::get(), false);
  model.define(
      "def forward(self, x):\n  return torch.matmul(torch.softmax(torch.matmul(x, x.transpose(-2, -1)), -1), x)\n");
  const at::Tensor x = hpu(torch::randn({2, 5, 4}));
  const torch::NoGradGuard no_grad;
  const at::Tensor plain = model.forward({x}).toTensor(), logits = torch::matmul(x, x.transpose(-2, -1)),
                   p = torch::softmax(logits, -1);
  CalibrationOptions options;
  options.select = [](const std::string&, const std::string& type) { return type == "Matmul" || type == "Softmax"; };
  const auto session = CalibrationSession::attach(model, options);
  EXPECT_EQ(CalibrationSession::of(model), session);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(model.forward({x}).toTensor(), plain));
  const auto file = session->result();
  ASSERT_EQ(file.modules.size(), 3u);
  EXPECT_EQ(file.find("matmul")->inputs, (std::vector<Amax>{{largest(x)}, {largest(x)}}));
  EXPECT_EQ(file.find("softmax")->inputs, (std::vector<Amax>{{largest(logits)}}));
  EXPECT_EQ(*file.find("softmax")->outputs, (std::vector<Amax>{{largest(p)}}));
  EXPECT_EQ(file.find("matmul_1")->inputs, (std::vector<Amax>{{largest(p)}, {largest(x)}}));
  finalize_calibration(model);
  EXPECT_EQ(CalibrationSession::of(model), nullptr);
  EXPECT_TRUE(same_bits(model.forward({x}).toTensor(), plain));
}

// What a QUANT_CONFIG asks of a calibration.

ConfiguredCalibration configured(const std::string& json, const std::map<std::string, std::string>& variables = {},
                                 recipes::Dialect device = recipes::Dialect::gaudi3) {
  const auto get = [&](const char* name) {
    const auto found = variables.find(name);
    return found != variables.end() ? found->second.c_str() : nullptr;
  };
  return calibration_options(configs::parse_quant_config(io::parse_json(json, "c.json"), "c.json", parse_options()),
                             device, configs::environment(get));
}

TEST(CalibrationOptions, ATypeWithAModulePathIsRefused) {
  EXPECT_REFUSED(configured(R"({"mode": "MEASURE", "allowlist": {"types": ["torch.nn.Linear"]}})"),
                 "key 'allowlist.types': found 'torch.nn.Linear'", "did you mean 'Linear'?");
}

TEST(CalibrationOptions, EveryKnownTypeIsMeasured) {
  const auto c = configured(R"({"mode": "MEASURE"})");
  for (const char* type : {"Linear", "Conv1d", "Conv3d", "LSTM", "Embedding", "Matmul", "Softmax", "ModuleFusedSDPA",
                           "KVCache", "VllmMixtureOfExpertsOp"})
    EXPECT_TRUE(c.options.select("m", type)) << type;
  EXPECT_FALSE(c.options.select("m", "FusedMoE"));  // INC passes it through
  EXPECT_FALSE(c.options.select("m", "LayerNorm"));
  EXPECT_EQ(c.options.observer, "maxabs");
  EXPECT_FALSE(c.options.outputs);  // measure_exclude's default
  EXPECT_FALSE(c.options.rank.has_value());
  EXPECT_EQ(c.options.sample_interval, 0);
}

TEST(CalibrationOptions, ListsSelectAndSayWhatTheyMissed) {
  const auto c = configured(R"({"mode": "MEASURE", "blocklist": {"names": ["lm_head", "nowhere"]}, )"
                            R"("allowlist": {"types": ["Linear", "Matmul"]}})");
  EXPECT_TRUE(c.options.select("a", "Linear"));
  EXPECT_TRUE(c.options.select("b", "Matmul"));
  EXPECT_FALSE(c.options.select("model.lm_head", "Linear"));
  EXPECT_FALSE(c.options.select("c", "Softmax"));
  ASSERT_EQ(c.filter->unused_entries().size(), 1u);
  EXPECT_EQ(c.filter->unused_entries()[0].entry, "nowhere");
}

TEST(CalibrationOptions, OnlyOutputAndAllExcludeAnything) {
  for (const auto& [value, outputs] :
       {std::pair{"NONE", true}, {"INPUT", true}, {"OUTPUT", false}, {"PARAMS", true}, {"ALL", false}}) {
    const auto c = configured(std::string(R"({"mode": "MEASURE", "measure_exclude": ")") + value + "\"}");
    EXPECT_EQ(c.options.outputs, outputs) << value;
    EXPECT_TRUE(c.options.inputs && c.options.weights) << value;
  }
}

TEST(CalibrationOptions, ObserversAndTheirParameters) {
  const auto c =
      configured(R"({"mode": "MEASURE", "observer": "percentile", "scale_params": {"percentile": 99.5, "bins": 4096},
                                "calibration_sample_interval": 50, "dump_stats_path": "out/x"})");
  EXPECT_EQ(c.options.observer, "percentile");
  EXPECT_EQ(c.options.parameters.find("percentile")->second, 99.5);
  EXPECT_EQ(c.options.parameters.find("bins")->second, 4096);
  EXPECT_EQ(c.options.sample_interval, 50);
  EXPECT_EQ(c.options.prefix, "out/x");
  EXPECT_EQ(configured(R"({"mode": "SHAPE", "observer": "maxabs"})").options.observer, "shape");
}

TEST(CalibrationOptions, ThresholdsAimAtTheDeviceThatWillRun) {
  EXPECT_EQ(configured(R"({"mode": "MEASURE"})").options.fp8_max, 448.0f);
  EXPECT_EQ(configured(R"({"mode": "MEASURE"})", {}, recipes::Dialect::gaudi2).options.fp8_max, 240.0f);
  EXPECT_EQ(configured(R"({"mode": "MEASURE", "device_for_scales": "GAUDI2"})").options.fp8_max, 240.0f);
  EXPECT_EQ(configured(R"({"mode": "MEASURE", "fp8_config": "E5M2"})").options.fp8_max, 57344.0f);
}

TEST(CalibrationOptions, RanksComeFromTheEnvironment) {
  const auto c = configured(R"({"mode": "MEASURE"})", {{"RANK", "3"}, {"WORLD_SIZE", "8"}});
  ASSERT_TRUE(c.options.rank.has_value());
  EXPECT_TRUE(c.options.rank->index == 3 && c.options.rank->world == 8);
  EXPECT_FALSE(
      configured(R"({"mode": "MEASURE", "seperate_measure_files": false})", {{"RANK", "3"}, {"WORLD_SIZE", "8"}})
          .options.rank.has_value());
}

TEST(CalibrationOptions, WeightsAndOperationsAreSelectedByOneRule) {
  struct AttentionImpl : torch::nn::Module {
    torch::nn::Linear q{nullptr};
    runtime::Matmul matmul_qk{nullptr};
    AttentionImpl()
        : q(register_module("q", torch::nn::Linear(4, 4))),
          matmul_qk(register_module("matmul_qk", runtime::Matmul())) {}
  };
  const auto shared = std::make_shared<AttentionImpl>();
  AttentionImpl& model = *shared;
  model.to(test::kHpu);
  const auto session = CalibrationSession::attach(model, configured(R"({"mode": "MEASURE"})").options);
  model.matmul_qk(model.q(hpu(torch::ones({2, 4}))), hpu(torch::ones({4, 2})));
  const auto file = session->result();
  EXPECT_EQ(file.selected, (std::vector<std::string>{"q", "matmul_qk"}));
  EXPECT_EQ(file.modules.size(), 2u);
  session->discard();
}

// Samples are counted; NaN and Inf are reported with module, tensor and sample, and never stored.

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

/// Linear named "m" with weight 2 * identity, so that output = 2 * input.
struct Doubling {
  torch::nn::Linear linear{torch::nn::LinearOptions(4, 4).bias(false)};
  torch::nn::Sequential model;
  std::shared_ptr<CalibrationSession> session;
  Doubling() {
    linear->weight.set_data(torch::eye(4) * 2);
    linear->to(test::kHpu);
    model->push_back("m", linear);
    session = CalibrationSession::attach(*model, {});
  }
  ~Doubling() { session->finalize(); }
  void run(at::Tensor x) { linear(hpu(x)); }
  const Measurement& record() {
    file = session->result();
    return file.modules.at(0);
  }
  MeasurementFile file;
};

TEST(CalibrationReport, CountsSamples) {
  Doubling d;
  EXPECT_FALSE(d.session->result().num_samples.has_value());
  d.session->begin_samples(0, 4);
  d.session->begin_samples(4, 2);
  EXPECT_EQ(d.session->samples(), 6);
  EXPECT_EQ(d.session->result().num_samples, 6);
}

TEST(CalibrationReport, NaNInTheInputIsNamedAndNotStored) {
  Doubling d;
  d.session->begin_samples(0, 1);
  d.run(torch::full({1, 3, 4}, 1.5));
  at::Tensor x = torch::full({2, 3, 4}, 100.0);
  x[1][2][3] = kNaN;  // the second sample of the batch
  d.session->begin_samples(7, 2);
  d.run(x);
  const auto found = d.session->non_finite();
  ASSERT_EQ(found.size(), 2u);  // the product carries it on
  EXPECT_EQ(found[0].module, "m");
  EXPECT_EQ(found[0].tensor, "input");
  EXPECT_EQ(found[0].sample, 8);
  EXPECT_TRUE(found[0].nan);
  EXPECT_EQ(found[1].tensor, "output");
  EXPECT_EQ(d.record().inputs, (std::vector<Amax>{{1.5f}}));
  EXPECT_EQ(*d.record().outputs, (std::vector<Amax>{{3.0f}}));
}

TEST(CalibrationReport, SamplesAreFoundInFlattenedBatchesToo) {
  Doubling d;
  at::Tensor x = torch::ones({6, 4});  // 3 samples of 2 tokens
  x[3][0] = kInf;
  d.session->begin_samples(10, 3);
  d.run(x);
  const auto found = d.session->non_finite();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].sample, 11);
  EXPECT_FALSE(found[0].nan);
}

TEST(CalibrationReport, AnOverflowInTheOutputLeavesTheInput) {
  Doubling d;
  d.session->begin_samples(0, 1);
  d.run(torch::full({1, 4}, 3e38f));
  const auto found = d.session->non_finite();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tensor, "output");
  EXPECT_EQ(d.record().inputs, (std::vector<Amax>{{3e38f}}));
  EXPECT_FALSE(d.record().outputs.has_value());
}

TEST(CalibrationReport, AModuleThatSawOnlyNaNIsNotMeasured) {
  Doubling d;
  d.run(torch::full({1, 4}, kNaN));
  EXPECT_TRUE(d.session->result().modules.empty());
}

TEST(CalibrationReport, NaNInAWeightIsNamed) {
  torch::nn::Linear linear(4, 4);
  linear->weight.data()[0][0] = kNaN;
  linear->to(test::kHpu);
  torch::nn::Sequential model(linear);
  const auto session = CalibrationSession::attach(*model, {});
  const auto found = session->non_finite();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].module, "0");
  EXPECT_EQ(found[0].tensor, "weight");
  EXPECT_EQ(found[0].sample, -1);
  session->finalize();
}

TEST(CalibrationReport, TheReportStaysBounded) {
  Doubling d;
  const at::Tensor x = hpu(torch::full({1, 4}, kNaN));
  for (int i = 0; i < 6000; ++i) d.linear(x);
  EXPECT_EQ(d.session->non_finite().size(), 10000u);
}

}  // namespace
}  // namespace fp8::measure
