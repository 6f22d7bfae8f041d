// SPDX-License-Identifier: Apache-2.0
// Conversion of typed models in memory: codes and scales, what is kept of the parameters, refusals that change nothing,
// the report.
#include "fp8/quant/model/convert.h"

#include <sstream>

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/io/base/file.h"
#include "support/fp8_reference.h"
#include "support/models_for_tests.h"

namespace fp8::quant {
namespace {

using test::hpu;
using test::same_bits;
using test::throws_with;

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
  for (auto granularity : {WeightGranularity::channel, WeightGranularity::tensor}) {
    for (auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2}) {
      auto model = test::tiny_lm(1, at::kBFloat16);
      PlanOptions o;
      o.weights = granularity;
      o.dialect = dialect;
      o.fuse_scales = false;
      const float max = dialect == recipes::Dialect::ocp ? 448.0f : 240.0f;
      std::map<std::string, at::Tensor> before;
      for (const auto& m : measure::weight_modules(*model)) before[m.name] = m.weight.detach().cpu().clone();
      const auto report = convert(*model, o);
      EXPECT_EQ(report.converted.size(), 14u);
      for (const auto& m : measure::weight_modules(*model)) {
        if (m.name == "embed_tokens" || m.name == "lm_head") {
          EXPECT_EQ(m.weight.scalar_type(), at::kBFloat16);
          continue;
        }
        const std::int64_t rows = granularity == WeightGranularity::channel ? m.weight.size(0) : 1;
        EXPECT_EQ(m.weight.scalar_type(), at::kFloat8_e4m3fn);
        EXPECT_TRUE(same_bits(test::code_bytes(m.weight), test::quantize_by_amax(before[m.name], rows, max).codes))
            << m.name;
        std::vector<float> expected;
        for (float a : test::amax_reference(before[m.name], rows)) expected.push_back(a / max);
        EXPECT_EQ(scale_inv(m.weight), expected) << m.name;
      }
    }
  }
}

TEST(Convert, FusedModulesShareTheLargestScale) {
  auto model = test::tiny_lm();
  auto& l = *model->layers[0];
  const float q = test::amax_reference(l.q_proj->weight, 1)[0], k = test::amax_reference(l.k_proj->weight, 1)[0],
              v = test::amax_reference(l.v_proj->weight, 1)[0];
  const float gate = test::amax_reference(l.gate_proj->weight, 1)[0],
              up = test::amax_reference(l.up_proj->weight, 1)[0];
  const at::Tensor k_before = l.k_proj->weight.detach().cpu().clone();
  PlanOptions o;
  o.weights = WeightGranularity::tensor;
  convert(*model, o);
  const float qkv = std::max({q, k, v}) / 448.0f, mlp = std::max(gate, up) / 448.0f;
  for (const auto& linear : {l.q_proj, l.k_proj, l.v_proj})
    EXPECT_EQ(scale_inv(linear->weight), std::vector<float>{qkv});
  for (const auto& linear : {l.gate_proj, l.up_proj}) EXPECT_EQ(scale_inv(linear->weight), std::vector<float>{mlp});
  EXPECT_TRUE(same_bits(test::code_bytes(l.k_proj->weight), test::quantize_reference(k_before, {qkv}, 448.0f).codes));
}

TEST(Convert, StaticScalesComeFromTheMeasurement) {
  auto model = test::tiny_lm();
  PlanOptions o;
  o.activations = ActivationScaling::static_tensor;
  o.measurements = measured(model);
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
  EXPECT_LT(((quantized - plain).norm() / plain.norm()).item<double>(),
            0.08);  // E4M3 has 3 bits: 2^-4 per operand at most
}

TEST(Convert, FailuresChangeNothing) {
  auto model = test::tiny_lm();
  auto& last = model->layers[1]->down_proj->weight;
  const auto unchanged = [&] {
    for (const auto& m : measure::weight_modules(*model)) {
      if (m.weight.scalar_type() != at::kFloat) return false;
    }
    return true;
  };
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (auto granularity : {WeightGranularity::tensor, WeightGranularity::channel}) {
      const at::Tensor good = last.detach().clone();
      last.data()[3][2].fill_(bad);
      PlanOptions o;
      o.weights = granularity;
      EXPECT_TRUE(throws_with({"layer_1.down_proj.weight"}, [&] { convert(*model, o); }));
      EXPECT_TRUE(unchanged());
      last.data().copy_(good);
    }
  }
  PlanOptions o;
  o.measurements = measured(model);
  last.data().mul_(2);
  EXPECT_TRUE(throws_with({"layer_1.down_proj", "another model"}, [&] { convert(*model, o); }));
  EXPECT_TRUE(unchanged());
  o.measurements->modules[0].module = "layer_9.q_proj";
  EXPECT_TRUE(throws_with({"layer_9.q_proj", "another model"}, [&] { convert(*model, o); }));
  o.activations = ActivationScaling::static_tensor;
  o.measurements->modules.erase(o.measurements->modules.begin());
  EXPECT_TRUE(throws_with({"no measurement of module 'layer_0.q_proj'"}, [&] { convert(*model, o); }));
  EXPECT_TRUE(unchanged());
}

TEST(Convert, RefusesWhatIsNotThere) {
  torch::nn::Sequential on_cpu(torch::nn::Linear(4, 4));
  EXPECT_TRUE(throws_with({"[convert] 0", "on hpu", "cpu"}, [&] { convert(*on_cpu, {}); }));
  torch::nn::Sequential twice(torch::nn::Linear(4, 4)), wide(torch::nn::Linear(4, 4));
  twice->to(test::kHpu);
  convert(*twice, {});
  EXPECT_TRUE(throws_with({"[convert] 0", "Float8_e4m3fn (converted already)"}, [&] { convert(*twice, {}); }));
  wide->to(at::kDouble);
  wide->to(test::kHpu);
  EXPECT_TRUE(throws_with({"[convert] 0", "Double"}, [&] { convert(*wide, {}); }));
  const runtime::DeviceKindScope first_generation(runtime::DeviceKind::gaudi);
  EXPECT_TRUE(throws_with({"fp8 is not supported on GAUDI", "gaudi2, gaudi3"}, [&] { convert(*wide, {}); }));
}

TEST(Convert, CodesNeverChangeTypeUnnoticed) {
  torch::nn::Sequential model;
  model->push_back("proj", torch::nn::Linear(4, 4));
  model->to(test::kHpu);
  convert(*model, {});
  EXPECT_TRUE(throws_with({"proj", "Float8_e4m3fn"}, [&] { model->to(at::kFloat); }));
  auto& weight = model->ptr<torch::nn::LinearImpl>(0)->weight;
  EXPECT_EQ(weight.scalar_type(), at::kFloat8_e4m3fn);
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(throws_with({"proj"}, [&] { weight.to(at::kFloat); }));
  EXPECT_TRUE(throws_with({"proj"}, [&] { weight.copy_(hpu(torch::zeros({4, 4}))); }));
  EXPECT_TRUE(throws_with({"proj"}, [&] { at::cat({weight, weight}); }));
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
  PlanOptions o;
  o.include = {"lm_head"};
  const auto report = convert(*model, o);
  const auto tied = std::find_if(report.converted.begin(), report.converted.end(),
                                 [](const auto& m) { return m.name == "embed_tokens"; });
  ASSERT_NE(tied, report.converted.end());
  EXPECT_NE(tied->scheme.find("(tied to lm_head)"), std::string::npos);
  EXPECT_TRUE(report.skipped.empty());
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_EQ(report.warnings[0], "embed_tokens shares the weight of lm_head and became fp8 with it");
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

/// The vendor's own device results, measured on a Gaudi2 and a Gaudi3: one weight of 1, inputs in bf16, each triple
/// calibrated on its largest. Order of x: 232, 240, 248 and 3720, 3721, 13721.
TEST(Convert, IncConventionGivesTheDevicesResults) {
  struct Row {
    const char* method;
    recipes::Dialect dialect;
    std::vector<float> small, large;
  };
  using recipes::Dialect;
  const Row rows[] = {{"maxabs_hw", Dialect::gaudi2, {224, 240, 256}, {3584, 3840, 3840}},
                      {"maxabs_hw", Dialect::gaudi3, {224, 240, 256}, {3584, 3840, 13312}},
                      {"maxabs_pow2", Dialect::gaudi2, {224, 240, 256}, {3584, 3840, 13312}},
                      {"maxabs_pow2", Dialect::gaudi3, {224, 240, 256}, {3584, 3840, 13312}},
                      {"unit_scale", Dialect::gaudi2, {224, 240, 240}, {240, 240, 240}}};
  for (const Row& row : rows) {
    for (const bool large : {false, true}) {
      const std::vector<float> in = large ? std::vector<float>{3720, 3721, 13721} : std::vector<float>{232, 240, 248};
      torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
      linear->weight.data().fill_(1);
      linear->to(at::kBFloat16);
      linear->to(test::kHpu);
      torch::nn::Sequential model;
      model->push_back("m", linear);
      PlanOptions o;
      o.dialect = row.dialect;
      o.config = configs::parse_quant_config(io::Json{{"scale_method", row.method}}, "q");
      o.measurements = measure::MeasurementFile{};
      o.measurements->modules.push_back({"m", {{test::to_bf16(in[2])}}, std::nullopt, measure::Amax{1.0f}});
      convert(*model, o);
      for (std::size_t i = 0; i < 3; ++i) {
        const torch::NoGradGuard no_grad;
        const at::Tensor y = linear(hpu(torch::full({1, 1}, in[i], at::kBFloat16)));
        EXPECT_EQ(y.item<float>(), (large ? row.large : row.small)[i])
            << row.method << " " << recipes::name_of(row.dialect) << " x " << in[i];
      }
    }
  }
}

TEST(Convert, TheReportAndTheTreeCanBePrinted) {
  auto model = test::tiny_lm();
  PlanOptions o;
  o.dialect = recipes::Dialect::gaudi2;
  std::ostringstream text;
  text << convert(*model, o);
  EXPECT_NE(
      text.str().find("converted  layer_0.q_proj (Linear): E4M3 channel weights, dynamic token activations, gaudi2\n"),
      std::string::npos);
  EXPECT_NE(text.str().find("kept       lm_head: kept in high precision by default ('include' quantizes it)\n"),
            std::string::npos);
  const std::string tree = describe(*model);
  EXPECT_NE(tree.find("(q_proj): torch::nn::LinearImpl [32, 32] Float8_e4m3fn [E4M3 channel weights, dynamic token "
                      "activations, gaudi2]\n"),
            std::string::npos)
      << tree;
  EXPECT_NE(tree.find("(lm_head): torch::nn::LinearImpl [48, 32] Float\n"), std::string::npos) << tree;
}

}  // namespace
}  // namespace fp8::quant
