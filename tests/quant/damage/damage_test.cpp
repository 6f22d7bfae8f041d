// SPDX-License-Identifier: Apache-2.0
// Damage against sums in f64 over codes found by search, on a weight, an activation, a probed model and checkpoints.
#include "fp8/quant/damage/damage.h"

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/damage/checkpoint_damage.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/damage_probe.h"
#include "fp8/quant/model/save.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

using test::quantize_reference;

struct Expected {
  double signal = 0, noise = 0;
  std::int64_t zeros = 0, underflow = 0;
  float amax = 0;
};

Expected expected(const at::Tensor& x, const at::Tensor& values) {
  Expected e;
  const at::Tensor wide = x.to(at::kDouble).contiguous(), back = values.contiguous();
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    const double a = wide.const_data_ptr<double>()[i], b = back.const_data_ptr<double>()[i];
    e.signal += a * a;
    e.noise += (a - b) * (a - b);
    e.zeros += a == 0;
    e.underflow += a != 0 && b == 0;
    e.amax = std::max(e.amax, static_cast<float>(std::abs(a)));
  }
  return e;
}

void expect_damage(const CastDamage& d, const Expected& e) {
  EXPECT_NEAR(d.signal, e.signal, 1e-9 * e.signal);
  EXPECT_NEAR(d.noise, e.noise, 1e-6 * e.noise);
  EXPECT_EQ(d.zeros, e.zeros);
  EXPECT_EQ(d.underflow, e.underflow);
  EXPECT_EQ(d.amax, e.amax);
}

/// Magnitudes over 30 octaves, a row of zeros, an outlier.
at::Tensor wide_range(std::int64_t rows, std::int64_t cols) {
  torch::manual_seed(5);
  const at::Tensor exponents = torch::randint(-20, 10, {rows, cols});  // first: compilers order operands differently
  at::Tensor x = torch::randn({rows, cols}) * torch::pow(2.0, exponents);
  x[rows / 2].zero_();
  x[0][1] = 5000.0f;
  return x;
}

TEST(Damage, OfAWeightPerTensorAndPerChannel) {
  const at::Tensor w = wide_range(13, 37);
  for (const auto granularity : {Granularity::tensor, Granularity::channel}) {
    Scheme scheme;
    scheme.weights = granularity;
    const auto amax = test::amax_reference(w, granularity == Granularity::tensor ? 1 : 13);
    const WeightScales scales = weight_scales(amax, scheme, "w");
    const CastDamage d = weight_damage(w.const_data_ptr(), recipes::FloatType::F32, 13, 37, scales, scheme);
    expect_damage(d, expected(w, quantize_reference(w, scales.scale_inv, 448.0f).values));
    EXPECT_EQ(d.count, 13 * 37);
    EXPECT_EQ(d.saturated, 0);
    std::int64_t counted = d.zeros;
    for (auto n : d.octaves) counted += n;
    EXPECT_EQ(counted, d.count);
  }
}

TEST(Damage, CountsWhatAStaticScaleClips) {
  const at::Tensor x = torch::tensor({0.5f, -3.0f, 4.0f, 4.01f, 8.0f, -100.0f, 0.0f, 1e-9f}).view({2, 4});
  Scheme scheme;
  scheme.activations = ActivationScaling::static_tensor;
  set_input_scale(scheme, 4.0f, {}, "x");
  const CastDamage d = input_damage(x.const_data_ptr(), recipes::FloatType::F32, 2, 4, scheme);
  EXPECT_EQ(d.saturated, 2);  // 4.01 is within 2^-8 of the largest value
  EXPECT_EQ(d.underflow, 1);
  EXPECT_EQ(d.zeros, 1);
  EXPECT_EQ(d.amax, 100.0f);
  expect_damage(d, expected(x, quantize_reference(x, {scheme.input_scale_inv}, 448.0f).values));
}

TEST(Damage, OfDynamicActivationsIsPerRow) {
  const at::Tensor x = wide_range(9, 21);
  const CastDamage d = input_damage(x.const_data_ptr(), recipes::FloatType::F32, 9, 21, Scheme{});
  expect_damage(d, expected(x, test::quantize_by_amax(x, 9).values));
}

TEST(Damage, SqnrOfTheTextbook) {
  CastDamage d;
  d.signal = 1000;
  d.noise = 1;
  EXPECT_DOUBLE_EQ(d.sqnr_db(), 30.0);
  d.noise = 0;
  EXPECT_TRUE(std::isinf(d.sqnr_db()));
  EXPECT_NEAR(combined_sqnr_db(30, 30), 30 - 10 * std::log10(2.0), 1e-12);
  EXPECT_NEAR(combined_sqnr_db(30, std::numeric_limits<double>::infinity()), 30, 1e-12);
}

TEST(Damage, DoesNotDependOnThreads) {
  torch::manual_seed(6);
  const at::Tensor w = torch::randn({301, 4001});
  Scheme scheme;
  const WeightScales scales = weight_scales(test::amax_reference(w, 301), scheme, "w");
  const int before = kernels::num_threads();
  std::vector<double> noise;
  for (int threads : {1, 2, 3}) {
    kernels::set_num_threads(threads);
    noise.push_back(weight_damage(w.const_data_ptr(), recipes::FloatType::F32, 301, 4001, scales, scheme).noise);
  }
  kernels::set_num_threads(before);
  EXPECT_EQ(noise[0], noise[1]);
  EXPECT_EQ(noise[0], noise[2]);
}

TEST(Damage, OctavesCountPowersOfTwo) {
  const at::Tensor x = torch::tensor({1.0f, 1.99f, 2.0f, -3.0f, 0.25f, 1e30f, 1e-30f});
  Scheme scheme;
  scheme.activations = ActivationScaling::none;
  const CastDamage d = input_damage(x.const_data_ptr(), recipes::FloatType::F32, 1, 7, scheme);
  const auto at = [&](int exponent) {
    return d.octaves[static_cast<std::size_t>(exponent - CastDamage::kFirstExponent)];
  };
  EXPECT_EQ(at(0), 2);
  EXPECT_EQ(at(1), 2);
  EXPECT_EQ(at(-2), 1);
  EXPECT_EQ(d.octaves.front(), 1);  // beyond the ends
  EXPECT_EQ(d.octaves.back(), 1);
  EXPECT_EQ(d.noise, 0);
}

TEST(DamageProbe, SeesInputsAndChangesNothing) {
  const torch::NoGradGuard no_grad;
  auto model = test::tiny_lm();
  const at::Tensor ids = test::token_ids(), before = model(ids);
  const auto modules = measure::weight_modules(*model);
  const Plan plan = plan_for(modules, {});
  {
    const DamageProbe probe(modules, plan);
    EXPECT_TRUE(test::same_bits(model(ids), before));
    auto damage = probe.result();
    ASSERT_EQ(damage.size(), 14u);  // 7 of each of 2 layers
    const at::Tensor x = model->embed_tokens(ids).cpu().view({-1, 32});
    EXPECT_EQ(damage[0].name, "layer_0.q_proj");
    const auto e = expected(x, test::quantize_by_amax(x, x.size(0)).values);
    EXPECT_NEAR(damage[0].input->noise, 1 * e.noise, 1e-6 * e.noise);
    const at::Tensor w = model->layers[0]->q_proj->weight.cpu();
    expect_damage(damage[0].weight, expected(w, test::quantize_by_amax(w, 32).values));
    sort_by_damage(damage);
    for (std::size_t i = 1; i < damage.size(); ++i) EXPECT_LE(damage[i - 1].sqnr_db(), damage[i].sqnr_db());
    EXPECT_REFUSED(DamageProbe(modules, plan),
                   "layer_0.q_proj: expected a model that is neither measured nor converted");
  }
  EXPECT_NO_THROW(DamageProbe(modules, plan));  // the first took its probes off
}

TEST(DamageProbe, TakesTheScalesThatConvertingTakes) {
  const torch::NoGradGuard no_grad;
  auto model = test::tiny_lm(1, at::kBFloat16);
  PlanOptions o{.dialect = recipes::Dialect::gaudi2,
                .config = configs::parse_quant_config(io::Json{{"scale_method", "maxabs_hw_opt_weight"},
                                                               {"dump_stats_path", "x/y"},
                                                               {"blocklist", {{"names", {"lm_head"}}}}},
                                                      "q")};
  const auto session = measure::CalibrationSession::attach(*model, {});
  model(test::token_ids());
  o.measurements = session->result();
  measure::finalize_calibration(*model);
  const auto modules = measure::weight_modules(*model);
  const Plan plan = plan_for(modules, o);
  const std::vector<ModuleDamage> damage = DamageProbe(modules, plan).result();
  std::vector<ModuleScales> used;
  convert_by(plan, modules, {}, &used);
  ASSERT_EQ(used.size(), damage.size());
  for (std::size_t i = 0; i < used.size(); ++i)
    EXPECT_EQ(used[i].weight->values[0], damage[i].weight_scale_inv) << used[i].module;
}

TEST(CheckpointDamage, IsWhatQuantizingDoes) {
  const test::TempDir dir;
  const auto tensors = test::small_llama(at::kBFloat16);
  test::write_llama(dir / "m", tensors);
  auto options = options_with({.weights = Granularity::tensor});
  const auto report = damage_of_checkpoint(dir / "m", options);
  ASSERT_EQ(report.modules.size(), 7u);
  EXPECT_EQ(report.skipped.size(), 2u);
  float group = 0;
  for (const std::string name : {"q_proj", "k_proj", "v_proj"}) {
    const at::Tensor w = test::find(tensors, "model.layers.0.self_attn." + name + ".weight");
    group = std::max(group, test::amax_reference(w, 1)[0]);
  }
  for (const auto& m : report.modules) {
    const at::Tensor w = test::find(tensors, m.name + ".weight");
    const bool in_group = m.name.find("q_proj") != std::string::npos;
    const float scale_inv = in_group ? group / 448.0f : m.weight_scale_inv;
    EXPECT_EQ(m.weight_scale_inv, scale_inv) << m.name;
    expect_damage(m.weight, expected(w, quantize_reference(w, {scale_inv}, 448.0f).values));
  }
  options.stop = [] { return true; };
  EXPECT_REFUSED(damage_of_checkpoint(dir / "m", options), "interrupted");
}

TEST(CheckpointDamage, OfCodesWithAndWithoutTheirSource) {
  const torch::NoGradGuard no_grad;
  const test::TempDir dir;
  auto model = test::tiny_lm();
  test::NamedTensors source;
  for (const auto& item : model->named_parameters()) source.emplace_back(item.key(), item.value().cpu().clone());
  test::write_tensors(dir / "source", source);
  convert(*model, {});
  save(*model, dir / "fp8", "compressed-tensors");
  const auto plain = damage_of_fp8_checkpoint(dir / "fp8", {}),
             compared = compare_checkpoints(dir / "fp8", dir / "source", {});
  ASSERT_EQ(plain.modules.size(), 14u);
  for (std::size_t i = 0; i < plain.modules.size(); ++i) {
    const at::Tensor w = test::find(source, plain.modules[i].name + ".weight");
    EXPECT_EQ(plain.modules[i].weight.signal, 0);     // nothing to compare with
    EXPECT_EQ(plain.modules[i].weight.saturated, 0);  // each channel's largest value has the largest code, rightly
    expect_damage(compared.modules[i].weight, expected(w, test::quantize_by_amax(w, w.size(0)).values));
  }
  const auto swapped = compare_checkpoints(dir / "source", dir / "fp8", {});  // of all matrices, also those kept
  EXPECT_EQ(std::ssize(swapped.modules),
            std::ranges::count_if(source, [](const auto& tensor) { return tensor.second.dim() == 2; }));
  for (const auto& m : swapped.modules) {
    const auto same = std::ranges::find(compared.modules, m.name, &ModuleDamage::name);
    const double noise = same == compared.modules.end() ? 0 : same->weight.noise;
    EXPECT_NEAR(m.weight.noise, noise, 1e-6 * noise) << m.name;
  }
  EXPECT_EQ(compare_checkpoints(dir / "fp8", dir / "fp8", {}).modules[0].weight.noise, 0);
  test::write_tensors(dir / "other", {{"layer_0.q_proj.weight", torch::zeros({2, 2})}});
  EXPECT_REFUSED(compare_checkpoints(dir / "fp8", dir / "other", {}), "of the same shape");
}

io::Json fp8_config(const char* strategy) {
  const io::Json weights = {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", strategy}};
  return {{"quantization_config",
           {{"quant_method", "compressed-tensors"},
            {"format", "float-quantized"},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}}}};
}

/// Scales of amax leave the largest codes to amax; halved, a part of the values is beyond them.
TEST(Damage, CodesAloneTellClippedFromScaledByAmax) {
  torch::manual_seed(11);
  const at::Tensor w = torch::randn({64, 96});
  for (const bool per_channel : {false, true})
    for (const float factor : {1.0f, 0.5f}) {
      const test::TempDir dir;
      const std::int64_t scales = per_channel ? 64 : 1;
      const at::Tensor scale_inv = w.view({scales, -1}).abs().amax(1, true) * (factor / 448.0f);
      const at::Tensor codes =
          torch::clamp(w.view({scales, -1}) / scale_inv, -448, 448).to(at::kFloat8_e4m3fn).view({64, 96});
      test::write_tensors(dir / "fp8",
                          {{"a.weight", codes}, {"a.weight_scale", per_channel ? scale_inv : scale_inv.view({1})}});
      io::write_json(dir / "fp8/config.json", fp8_config(per_channel ? "channel" : "tensor"));
      const auto damage = damage_of_fp8_checkpoint(dir / "fp8", {}).modules.at(0).weight;
      const auto clipped = (w.view({scales, -1}).abs() > scale_inv * 448.0f * (1 + 0x1p-8f)).sum().item<std::int64_t>();
      EXPECT_LE(damage.saturated, clipped) << per_channel << factor;
      EXPECT_TRUE(factor == 1.0f ? damage.saturated == 0 : damage.saturated > (per_channel ? clipped / 2 : 0))
          << damage.saturated << per_channel << factor;
    }
}

}  // namespace
}  // namespace fp8::quant
