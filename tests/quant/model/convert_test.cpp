// SPDX-License-Identifier: Apache-2.0
// Conversion of typed models in memory: codes and scales, what is kept of the parameters, refusals that change nothing,
// the report.
#include "fp8/quant/model/convert.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/script.h>

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/device/allocator.h"
#include "support/fp8_reference.h"
#include "support/models_for_tests.h"
#include "support/values.h"

namespace fp8::quant {
namespace {

const Fp8Handler& handler(const at::Tensor& weight) {
  const auto* tag = runtime::find_tag(weight);
  TORCH_CHECK(tag != nullptr, "not tagged");
  return dynamic_cast<const Fp8Handler&>(*tag->handler);
}

std::vector<float> scale_inv(const at::Tensor& weight) {
  const at::Tensor s = handler(weight).weight_scale_inv().cpu();
  return {s.const_data_ptr<float>(), s.const_data_ptr<float>() + s.numel()};
}

measure::MeasurementFile measured(test::TinyLm& model) {
  const auto session = measure::CalibrationSession::attach(*model, {});
  model(test::token_ids());
  session->finalize();
  return session->result();
}

TEST(Convert, CodesAndScalesFollowTheFormulas) {
  for (auto granularity : {Granularity::channel, Granularity::tensor})
    for (auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2}) {
      auto model = test::tiny_lm(1, at::kBFloat16);
      PlanOptions o{.weights = granularity, .dialect = dialect, .fuse_scales = false};
      const float max = dialect == recipes::Dialect::ocp ? 448.0f : 240.0f;
      std::map<std::string, at::Tensor> before;
      for (const auto& m : measure::weight_modules(*model)) before[m.name] = m.weight.detach().cpu().clone();
      EXPECT_EQ(convert(*model, o).converted.size(), 14u);
      for (const auto& m : measure::weight_modules(*model)) {
        if (m.name == "embed_tokens" || m.name == "lm_head") {
          EXPECT_EQ(m.weight.scalar_type(), at::kBFloat16);
          continue;
        }
        const std::int64_t rows = granularity == Granularity::channel ? m.weight.size(0) : 1;
        EXPECT_EQ(m.weight.scalar_type(), at::kFloat8_e4m3fn);
        EXPECT_TRUE(same_bits(test::code_bytes(m.weight), test::quantize_by_amax(before[m.name], rows, max).codes))
            << m.name;
        auto expected = collected(test::amax_reference(before[m.name], rows), [&](float a) { return a / max; });
        EXPECT_EQ(scale_inv(m.weight), expected) << m.name;
      }
    }
}

TEST(Convert, FusedModulesShareTheLargestScale) {
  auto model = test::tiny_lm();
  auto& l = *model->layers[0];
  const auto amax = [](const torch::nn::Linear& m) { return test::amax_reference(m->weight, 1)[0]; };
  const float qkv = std::max({amax(l.q_proj), amax(l.k_proj), amax(l.v_proj)}) / 448.0f,
              mlp = std::max(amax(l.gate_proj), amax(l.up_proj)) / 448.0f;
  const at::Tensor k_before = l.k_proj->weight.detach().cpu().clone();
  convert(*model, {.weights = Granularity::tensor});
  for (const auto& linear : {l.q_proj, l.k_proj, l.v_proj})
    EXPECT_EQ(scale_inv(linear->weight), std::vector<float>{qkv});
  for (const auto& linear : {l.gate_proj, l.up_proj}) EXPECT_EQ(scale_inv(linear->weight), std::vector<float>{mlp});
  EXPECT_TRUE(same_bits(test::code_bytes(l.k_proj->weight), test::quantize_reference(k_before, {qkv}, 448.0f).codes));
}

TEST(Convert, StaticScalesComeFromTheMeasurement) {
  auto model = test::tiny_lm();
  PlanOptions o{.activations = ActivationScaling::static_tensor, .measurements = measured(model)};
  convert(*model, o);
  const Scheme& s = handler(model->layers[1]->up_proj->weight).scheme();
  const float amax = o.measurements->find("layer_1.up_proj")->inputs[0][0];
  EXPECT_EQ(s.input_scale_inv, amax / 448.0f);
  EXPECT_EQ(s.input_scale, 1.0f / (amax / 448.0f));
  EXPECT_EQ(s.activations, ActivationScaling::static_tensor);
}

TEST(Convert, KeepsTheParameterAndGivesUpItsMemory) {
  auto model = test::tiny_lm(1, at::kBFloat16);
  model->train();
  auto& linear = model->layers[0]->up_proj;
  model->layers[0]->down_proj->weight.set_requires_grad(false);
  const auto* impl = linear->weight.unsafeGetTensorImpl();
  std::int64_t weight_bytes = 0, rows = 0;
  for (const auto& m : measure::weight_modules(*model)) {
    if (m.type == "Linear" && m.name != "lm_head")
      weight_bytes += static_cast<std::int64_t>(m.weight.nbytes()), rows += m.weight.size(0);
  }
  const std::int64_t before = runtime::memory_stats().InUse;
  const auto report = convert(*model, {});
  const std::int64_t saved = before - runtime::memory_stats().InUse;
  EXPECT_EQ(saved, weight_bytes / 2 - rows * 4) << "half the bytes, less the f32 scales";
  EXPECT_EQ(linear->weight.unsafeGetTensorImpl(), impl);
  EXPECT_EQ(model->named_parameters()["layer_0.up_proj.weight"].scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(linear->weight.requires_grad());
  EXPECT_FALSE(model->layers[0]->down_proj->weight.requires_grad());
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(linear->weight.device().is_hpu());
  std::int64_t reported = 0;
  for (const auto& m : report.converted) {
    EXPECT_EQ(m.bytes_before, 2 * m.bytes_after);
    reported += m.bytes_before;
  }
  EXPECT_EQ(reported, weight_bytes);
}

TEST(Convert, TheModelStillComputesWhatItDid) {
  auto model = test::tiny_lm();
  const at::Tensor ids = test::token_ids();
  const torch::NoGradGuard no_grad;
  const at::Tensor plain = model(ids);
  convert(*model, {});
  const at::Tensor quantized = model(ids);
  EXPECT_FALSE(same_bits(quantized, plain));
  // E4M3 has 3 bits: 2^-4 per operand at most.
  EXPECT_LT(((quantized - plain).norm() / plain.norm()).item<double>(), 0.08);
}

TEST(Convert, FailuresChangeNothing) {
  auto model = test::tiny_lm();
  auto& last = model->layers[1]->down_proj->weight;
  const auto unchanged = [&] {
    for (const auto& m : measure::weight_modules(*model))
      if (m.weight.scalar_type() != at::kFloat) return false;
    return true;
  };
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (auto granularity : {Granularity::tensor, Granularity::channel}) {
      const at::Tensor good = last.detach().clone();
      last.data()[3][2].fill_(bad);
      EXPECT_REFUSED(convert(*model, {.weights = granularity}), "layer_1.down_proj.weight");
      EXPECT_TRUE(unchanged());
      last.data().copy_(good);
    }
  PlanOptions o{.measurements = measured(model)};
  last.data().mul_(2);
  EXPECT_REFUSED(convert(*model, o), "layer_1.down_proj", "another model");
  EXPECT_TRUE(unchanged());
  o.measurements->modules[0].module = "layer_9.q_proj";
  EXPECT_REFUSED(convert(*model, o), "layer_9.q_proj", "another model");
  o.activations = ActivationScaling::static_tensor;
  o.measurements->modules.erase(o.measurements->modules.begin());
  EXPECT_REFUSED(convert(*model, o), "no measurement of module 'layer_0.q_proj'");
  EXPECT_TRUE(unchanged());
}

TEST(Convert, RefusesWhatIsNotThere) {
  torch::nn::Sequential on_cpu(torch::nn::Linear(4, 4));
  EXPECT_REFUSED(convert(*on_cpu, {}), "[convert] 0", "on hpu", "cpu");
  torch::nn::Sequential twice(torch::nn::Linear(4, 4)), wide(torch::nn::Linear(4, 4));
  twice->to(test::kHpu);
  convert(*twice, {});
  EXPECT_REFUSED(convert(*twice, {}), "[convert] 0", "Float8_e4m3fn (converted already)");
  wide->to(at::kDouble);
  wide->to(test::kHpu);
  EXPECT_REFUSED(convert(*wide, {}), "[convert] 0", "Double");
  const runtime::DeviceKindScope first_generation(runtime::DeviceKind::gaudi);
  EXPECT_REFUSED(convert(*wide, {}), "fp8 is not supported on GAUDI", "gaudi2, gaudi3");
}

TEST(Convert, CodesNeverChangeTypeUnnoticed) {
  torch::nn::Sequential model;
  model->push_back("proj", torch::nn::Linear(4, 4));
  model->to(test::kHpu);
  convert(*model, {});
  EXPECT_REFUSED(model->to(at::kFloat), "proj", "Float8_e4m3fn");
  auto& weight = model->ptr<torch::nn::LinearImpl>(0)->weight;
  EXPECT_EQ(weight.scalar_type(), at::kFloat8_e4m3fn);
  const torch::NoGradGuard no_grad;
  EXPECT_REFUSED(weight.to(at::kFloat), "proj");
  EXPECT_REFUSED(weight.copy_(hpu(torch::zeros({4, 4}))), "proj");
  EXPECT_REFUSED(at::cat({weight, weight}), "proj");
}

TEST(Convert, ZeroRowsGiveScaleOneAndZeroResults) {
  torch::nn::Linear linear(torch::nn::LinearOptions(6, 3).bias(false));
  linear->weight.data()[1].zero_();
  torch::nn::Sequential model(linear);
  model->to(test::kHpu);
  convert(*model, {});
  EXPECT_EQ(scale_inv(linear->weight)[1], 1.0f);
  const torch::NoGradGuard no_grad;
  const at::Tensor y = linear(hpu(torch::randn({4, 6}))).cpu();
  EXPECT_TRUE(y.select(1, 1).eq(0).all().item<bool>());
  EXPECT_TRUE(y.isfinite().all().item<bool>());
  EXPECT_TRUE(linear(hpu(torch::zeros({2, 6}))).cpu().eq(0).all().item<bool>());
}

TEST(Convert, TiedModulesAreConvertedOnceAndReported) {
  auto model = test::tiny_lm();
  model->lm_head->weight = model->embed_tokens->weight;
  const at::Tensor before = model->embed_tokens->weight.detach().cpu().clone();
  const auto report = convert(*model, {.include = {"lm_head"}});
  const auto tied = std::find_if(report.converted.begin(), report.converted.end(),
                                 [](const auto& m) { return m.name == "embed_tokens"; });
  ASSERT_NE(tied, report.converted.end());
  EXPECT_THAT(tied->scheme, HasSubstr("(tied to lm_head)"));
  EXPECT_TRUE(report.skipped.empty());
  EXPECT_THAT(report.warnings, ElementsAre("embed_tokens shares the weight of lm_head and became fp8 with it"));
  EXPECT_EQ(runtime::find_tag(model->lm_head->weight)->module_names(), "lm_head, embed_tokens");
  const at::Tensor ids = hpu(torch::tensor({5, 0, 47}, at::kLong));
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(same_bits(model->embed_tokens(ids),
                        test::quantize_by_amax(before, 48).values.index_select(0, ids.cpu()).to(at::kFloat)));
}

TEST(Convert, AnUnfinishedCalibrationEnds) {
  auto model = test::tiny_lm();
  measure::CalibrationSession::attach(*model, {});
  convert(*model, {});
  const auto session = measure::CalibrationSession::of(*model);  // lm_head alone is watched still
  ASSERT_NE(session, nullptr);
  session->finalize();
  EXPECT_EQ(handler(model->layers[0]->q_proj->weight).describe(),
            "E4M3 channel weights, dynamic token activations, ocp");
}

TEST(Convert, TheReportAndTheTreeCanBePrinted) {
  auto model = test::tiny_lm();
  PlanOptions o{.dialect = recipes::Dialect::gaudi2};
  std::ostringstream text;
  text << convert(*model, o);
  const std::string scheme = "E4M3 channel weights, dynamic token activations, gaudi2";
  EXPECT_THAT(text.str(), HasSubstr("converted  layer_0.q_proj (Linear): " + scheme + "\n"));
  EXPECT_THAT(text.str(),
              HasSubstr("kept       lm_head: kept in high precision by default ('include' quantizes it)\n"));
  const std::string tree = describe(*model);
  EXPECT_THAT(tree, HasSubstr("(q_proj): torch::nn::LinearImpl [32, 32] Float8_e4m3fn [" + scheme + "]\n"));
  EXPECT_THAT(tree, HasSubstr("(lm_head): torch::nn::LinearImpl [48, 32] Float\n"));
}

// TorchScript models: scripted code, traced graphs and frozen ones compute what the typed module computes after
// conversion.

/// The MLP of script_mlp() as typed modules, converted.
at::Tensor typed_result(const torch::jit::Module& script, const at::Tensor& x, const PlanOptions& options) {
  torch::nn::Linear up(16, 24), down(torch::nn::LinearOptions(24, 8).bias(false));
  up->to(test::kHpu), down->to(test::kHpu);
  up->weight.data().copy_(script.attr("up").toModule().attr("weight").toTensor());
  up->bias.data().copy_(script.attr("up").toModule().attr("bias").toTensor());
  down->weight.data().copy_(script.attr("down").toModule().attr("weight").toTensor());
  torch::nn::Sequential model;
  model->push_back("up", up);
  model->push_back("down", down);
  convert(*model, options);
  return down(torch::relu(up(x)));
}

TEST(ConvertScript, ScriptedModulesComputeWhatTypedOnesDo) {
  for (auto activations : {ActivationScaling::none, ActivationScaling::dynamic_token}) {
    PlanOptions o{.activations = activations};
    const torch::NoGradGuard no_grad;
    auto model = test::script_mlp();
    const at::Tensor x = hpu(torch::randn({5, 16}));
    const at::Tensor expected = typed_result(model, x, o);
    EXPECT_EQ(convert(model, o).converted.size(), 2u);
    EXPECT_EQ(model.attr("up").toModule().attr("weight").toTensor().scalar_type(), at::kFloat8_e4m3fn);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(model.forward({x}).toTensor(), expected)) << "run " << i;
  }
}

TEST(ConvertScript, FrozenAfterConversion) {
  const torch::NoGradGuard no_grad;
  auto model = test::script_mlp();
  const at::Tensor x = hpu(torch::randn({5, 16}));
  convert(model, {});
  model.eval();
  const at::Tensor expected = model.forward({x}).toTensor();
  auto frozen = torch::jit::freeze(model);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(frozen.forward({x}).toTensor(), expected)) << "run " << i;
}

/// freeze() merges constants that are equal; the codes of these are, their scales are not.
TEST(ConvertScript, FreezingKeepsWeightsApartWhoseCodesAgree) {
  const torch::NoGradGuard no_grad;
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const at::Tensor w = torch::randn({8, 8});
  torch::jit::Module model(c10::QualifiedName("__torch__.Pair"), unit);
  model.register_module("a", test::script_linear(hpu(w), at::Tensor(), unit));
  model.register_module("b", test::script_linear(hpu(w * 4), at::Tensor(), unit));
  model.register_attribute("training", c10::BoolType::get(), false);
  model.define("def forward(self, x):\n  return self.a.forward(x), self.b.forward(x)\n");
  convert(model, {});
  const auto modules = measure::weight_modules(model);
  ASSERT_TRUE(same_bits(test::code_bytes(modules[0].weight), test::code_bytes(modules[1].weight)));
  EXPECT_FALSE(at::equal(modules[0].weight, modules[1].weight));
  EXPECT_TRUE(at::equal(modules[0].weight, modules[0].weight));
  model.eval();
  auto frozen = torch::jit::freeze(model);
  const at::Tensor x = hpu(torch::randn({3, 8}));
  for (int i = 0; i < 3; ++i) {
    const auto y = frozen.forward({x}).toTuple()->elements();
    EXPECT_TRUE(same_bits(y[0].toTensor() * 4, y[1].toTensor()));
  }
}

TEST(ConvertScript, FrozenOrOptimizedBeforeConversionIsRefused) {
  const torch::NoGradGuard no_grad;
  auto model = test::script_mlp();
  model.eval();
  auto frozen = torch::jit::freeze(model);
  EXPECT_REFUSED(convert(frozen, {}), "[convert]", "freeze", "optimize_for_inference", "convert first");
}

TEST(ConvertScript, OptimizeForInferenceIsRefusedByName) {
  const torch::NoGradGuard no_grad;
  auto model = test::script_mlp();
  model.eval();
  convert(model, {});
  EXPECT_REFUSED(torch::jit::optimize_for_inference(model), "module 'up'", "Float8_e4m3fn",
                 "torch::jit::optimize_for_inference()", "torch::jit::freeze()");
  EXPECT_REFUSED(measure::weight_modules(model)[0].weight.t().contiguous(), "module 'up'", "transposed copy");
  // The host may look at codes.
  EXPECT_EQ(measure::weight_modules(model)[0].weight.t().cpu().sizes(), (std::vector<std::int64_t>{16, 24}));
}

/// A traced module as Python's torch.jit.trace makes it: ops recorded with the weights as attributes.
TEST(ConvertScript, TracedGraphsMeetTheHandler) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(9);
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module conv(c10::QualifiedName("__torch__.torch.nn.modules.conv.Conv2d"), unit);
  conv.register_parameter("weight", hpu(torch::randn({6, 3, 3, 3})), false);
  conv.register_parameter("bias", hpu(torch::randn({6})), false);
  conv.register_attribute("training", c10::BoolType::get(), false);
  conv.define(
      "def forward(self, x):\n  return torch._convolution(x, self.weight, self.bias, [2, 2], [1, 1], [1, 1], False, "
      "[0, 0], 1, False, False, True, True)\n");
  torch::nn::Conv2d typed(torch::nn::Conv2dOptions(3, 6, 3).stride(2).padding(1));
  typed->to(test::kHpu);
  typed->weight.data().copy_(conv.attr("weight").toTensor());
  typed->bias.data().copy_(conv.attr("bias").toTensor());
  torch::nn::Sequential holder(typed);
  convert(*holder, {});
  torch::jit::Module root(c10::QualifiedName("__torch__.Root"), unit);
  root.register_module("conv", conv);
  root.register_attribute("training", c10::BoolType::get(), false);
  root.define("def forward(self, x):\n  return self.conv.forward(x)\n");
  EXPECT_EQ(convert(root, {}).converted.at(0).type, "Conv2d");
  const at::Tensor x = hpu(torch::randn({2, 3, 8, 8}));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(root.forward({x}).toTensor(), typed(x)));
}

}  // namespace
}  // namespace fp8::quant
