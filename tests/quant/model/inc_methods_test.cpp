// SPDX-License-Identifier: Apache-2.0
// Every scale_method of Intel Neural Compressor (INC) on a Linear, a Conv2d and a Matmul: scales by formulas in f64,
// results within the tolerances that INC's own device tests accept, and the values its tests read off the devices.

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert.h"
#include "fp8/runtime/modules/op_modules.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

using Dialect = recipes::Dialect;

struct Method {
  const char* name;
  /// 1: one, F: first of the set, H: hardware's set, P: power of two, A: any, O/o: searched,
  /// C/c: per channel (c: searched)
  char weight, activation;
  double atol, rtol;
};
constexpr Method kStatic[] = {{"unit_scale", '1', '1', 1, .5},
                              {"hw_aligned_single_scale", 'F', 'F', 1, 1},
                              {"maxabs_hw", 'H', 'H', .022, .175},
                              {"maxabs_pow2", 'P', 'P', .022, .175},
                              {"maxabs_arbitrary", 'A', 'A', .078, .3},
                              {"maxabs_hw_opt_weight", 'O', 'H', .022, .175},
                              {"maxabs_pow2_opt_weight", 'o', 'P', .022, .175},
                              {"act_maxabs_hw_weights_pcs_maxabs_pow2", 'C', 'H', .022, .175},
                              {"act_maxabs_pow2_weights_pcs_maxabs_pow2", 'C', 'P', .022, .175},
                              {"act_maxabs_hw_weights_pcs_opt_pow2", 'c', 'H', .022, .175},
                              {"act_maxabs_pow2_weights_pcs_opt_pow2", 'c', 'P', .022, .175}};

struct Target {
  Dialect dialect;
  at::ScalarType hp;
  double max() const { return dialect == Dialect::gaudi2 ? 240.0 : 448.0; }
};
constexpr Target kTargets[] = {{Dialect::gaudi2, at::kBFloat16},
                               {Dialect::gaudi2, at::kFloat},
                               {Dialect::gaudi3, at::kBFloat16},
                               {Dialect::gaudi3, at::kFloat}};

configs::QuantConfig config(const std::string& method, at::ScalarType hp, const std::string& more = "") {
  const std::string json = R"({"scale_method": ")" + method + R"(", "hp_dtype": ")" +
                           (hp == at::kFloat ? "fp32" : "bf16") + "\"" + more + "}";
  return configs::parse_quant_config(io::parse_json(json, "q.json"), "q.json");
}

double in_hp(double v, at::ScalarType hp) {
  return hp == at::kBFloat16 ? test::to_bf16(static_cast<float>(v)) : static_cast<float>(v);
}

/// The formula, in f64 with INC's roundings to hp: of amax, of the quotient, and of its logarithm (2^-6.998 counts as
/// 2^-7 in bf16).
double expected_scale(char rule, double amax, double backoff, const Target& t) {
  const bool g2 = t.dialect == Dialect::gaudi2;
  const double raw = in_hp(in_hp(amax, t.hp) / (t.max() * backoff), t.hp),
               pow2 = std::exp2(std::ceil(in_hp(std::log2(raw), t.hp)));
  switch (rule) {
    case '1': return 1;
    case 'F': return g2 ? 16 : 128;
    case 'A': return raw;
    case 'H':
      return g2 ? std::min(16.0, std::max(0x1p-8, std::exp2(4 * std::ceil(std::log2(pow2) / 4))))
                : std::min(128.0, std::max(0x1p-55, pow2));
    default: return pow2;
  }
}

/// Sum of squares that w loses in fp8 with this scale.
double damage(const at::Tensor& w, double scale_inv, const Target& t) {
  const at::Tensor q = test::quantize_reference(w, {static_cast<float>(scale_inv)}, static_cast<float>(t.max())).values;
  return (q - w.detach().cpu().to(at::kDouble)).pow(2).sum().item<double>();
}

/// Searched scales: no candidate is better, but for what hp's rounding of the errors can't tell.
void expect_best(const at::Tensor& w, double scale_inv, const std::vector<double>& candidates, const Target& t,
                 const std::string& where) {
  double best = 1e300;
  bool among = false;
  for (double c : candidates) {
    best = std::min(best, damage(w, c, t));
    among = among || c == scale_inv;
  }
  EXPECT_TRUE(among) << where << ": " << scale_inv;
  EXPECT_LE(damage(w, scale_inv, t), best * 1.02 + 1e-12) << where;
}

void expect_weight_scales(const Method& m, const Target& t, const at::Tensor& w, const at::Tensor& found,
                          const std::string& where) {
  const bool per_channel = m.weight == 'C' || m.weight == 'c';
  const std::int64_t n = per_channel ? w.size(0) : 1;
  ASSERT_EQ(found.numel(), n) << where;
  for (std::int64_t i = 0; i < n; ++i) {
    const at::Tensor part = per_channel ? w.detach()[i] : w.detach();
    const double amax = part.abs().max().item<double>(), s = found.cpu()[i].item<double>();
    std::vector<double> candidates;
    if (m.weight == 'O' && t.dialect == Dialect::gaudi2) candidates = {16, 1, 0x1p-4, 0x1p-8};
    if (m.weight == 'O' && t.dialect != Dialect::gaudi2) {
      for (int e = 7; e >= -55; --e) candidates.push_back(std::exp2(e));
    }
    for (int e = -10; m.weight == 'o' && e <= 9; ++e) candidates.push_back(std::exp2(e));
    for (int e = -3; m.weight == 'c' && e <= 4; ++e)
      candidates.push_back(expected_scale('P', amax, 0.5, t) * std::exp2(e));
    if (!candidates.empty()) {
      expect_best(part, s, candidates, t, where);
    } else {
      EXPECT_EQ(s, expected_scale(per_channel ? 'P' : m.weight, amax, 0.5, t)) << where;
    }
  }
}

void expect_close(const at::Tensor& y, const at::Tensor& want, double atol, double rtol, const std::string& where) {
  const at::Tensor error = (y.detach().cpu().to(at::kDouble) - want).abs(), bound = want.abs() * rtol + atol;
  EXPECT_LE((error / bound).max().item<double>(), 1.0) << where;
}

float amax_of(const at::Tensor& t, at::ScalarType hp) {
  return static_cast<float>(in_hp(f64(t).abs().max().item<double>(), hp));
}

PlanOptions options(const configs::QuantConfig& c, const Target& t, const measure::Measurement& m) {
  PlanOptions o{.dialect = t.dialect, .config = c, .measurements = measure::MeasurementFile{}};
  o.measurements->modules.push_back(m);
  return o;
}

const Fp8Handler& handler_of(const at::Tensor& w) {
  return dynamic_cast<const Fp8Handler&>(*runtime::find_tag(w)->handler);
}

/// A model of this module, named "m".
template <class Module>
torch::nn::Sequential on_device(Module module, at::ScalarType hp) {
  module->to(hp);
  module->to(test::kHpu);
  torch::nn::Sequential model;
  model->push_back("m", module);
  return model;
}

TEST(IncMethods, LinearOnEveryDeviceAndType) {
  for (const Method& m : kStatic)
    for (const Target& t : kTargets) {
      torch::manual_seed(3);
      const std::string where = std::string(m.name) + ", " + recipes::name_of(t.dialect) + ", " + c10::toString(t.hp);
      torch::nn::Linear linear(torch::nn::LinearOptions(32, 12).bias(false));
      linear->weight.data().copy_(torch::rand({12, 32}));
      torch::nn::Sequential model = on_device(linear, t.hp);
      const at::Tensor w = linear->weight.detach().cpu().clone(), x = torch::rand({5, 32}).to(t.hp);
      convert(*model, options(config(m.name, t.hp), t,
                              {"m", {{amax_of(x, t.hp)}}, std::nullopt, measure::Amax{amax_of(w, t.hp)}}));
      const Fp8Handler& h = handler_of(linear->weight);
      EXPECT_EQ(h.scheme().input_scale_inv, expected_scale(m.activation, amax_of(x, t.hp), 0.25, t)) << where;
      expect_weight_scales(m, t, w, h.weight_scale_inv(), where);
      const torch::NoGradGuard no_grad;
      expect_close(linear(hpu(x)), f64(x).matmul(f64(w).t()), m.atol, m.rtol, where);
    }
}

TEST(IncMethods, ConvolutionOnEveryDeviceAndType) {
  for (const Method& m : kStatic)
    for (const Target& t : kTargets) {
      torch::manual_seed(4);
      const std::string where = std::string(m.name) + ", " + recipes::name_of(t.dialect) + ", " + c10::toString(t.hp);
      torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 6, 3).bias(false));
      conv->weight.data().copy_(torch::rand({6, 4, 3, 3}) *
                                torch::tensor({1.0, .5, 2.0, .3, 1.5, .1}).view({6, 1, 1, 1}));
      torch::nn::Sequential model = on_device(conv, t.hp);
      const at::Tensor w = conv->weight.detach().cpu().clone(), x = torch::rand({2, 4, 6, 6}).to(t.hp);
      convert(*model, options(config(m.name, t.hp), t,
                              {"m", {{amax_of(x, t.hp)}}, std::nullopt, measure::Amax{amax_of(w, t.hp)}}));
      expect_weight_scales(m, t, w, handler_of(conv->weight).weight_scale_inv(), where);
      const torch::NoGradGuard no_grad;
      expect_close(conv(hpu(x)), at::conv2d(f64(x), f64(w)), std::max(m.atol, .2), m.rtol, where);
    }
}

struct OneMatmulImpl : torch::nn::Module {
  runtime::Matmul m = register_module("m", runtime::Matmul());
};
TORCH_MODULE(OneMatmul);

const NodeScheme& scheme_of(const runtime::Matmul& m) {
  return dynamic_cast<const NodeHandler&>(*m->handler()).scheme();
}

TEST(IncMethods, MatmulOnEveryDeviceAndType) {
  for (const Method& m : kStatic)
    for (const Target& t : kTargets) {
      torch::manual_seed(5);
      const std::string where = std::string(m.name) + ", " + recipes::name_of(t.dialect) + ", " + c10::toString(t.hp);
      const at::Tensor a = torch::rand({2, 5, 16}).to(t.hp), b = (torch::rand({2, 16, 7}) * 3).to(t.hp);
      OneMatmul model;
      convert(*model, options(config(m.name, t.hp), t,
                              {"m", {{amax_of(a, t.hp)}, {amax_of(b, t.hp)}}, std::nullopt, std::nullopt}));
      const NodeScheme& s = scheme_of(model->m);
      const double sa = expected_scale(m.activation, amax_of(a, t.hp), 0.25, t),
                   sb = expected_scale(m.activation, amax_of(b, t.hp), 0.25, t);
      EXPECT_EQ(s.input_scale_inv, (std::vector<float>{static_cast<float>(sa), static_cast<float>(sb)})) << where;
      EXPECT_EQ(s.output_scale_inv, (std::vector<float>{static_cast<float>(in_hp(sa * sb, t.hp))})) << where;
      expect_close(model->m(hpu(a), hpu(b)), f64(a).matmul(f64(b)), std::max(m.atol, .2), m.rtol, where);
    }
}

TEST(IncMethods, DynamicMethodsAreForDynamicQuantizationOnly) {
  for (const char* name : {"maxabs_pcs_pow2", "act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw"})
    EXPECT_REFUSED(config(name, at::kBFloat16), "dynamic_quantization") << name;
  EXPECT_REFUSED(config("maxabs_hw", at::kBFloat16, R"(, "dynamic_quantization": true)"), "dynamic_quantization");
}

TEST(IncMethods, ConsecutiveInputsHaveScalesOfTheirOwn) {
  for (const char* name : {"maxabs_pcs_pow2", "act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw", "maxabs_pow2",
                           "act_maxabs_pow2_weights_pcs_maxabs_pow2"})
    for (const Target& t : kTargets) {
      torch::manual_seed(6);
      torch::nn::Linear linear(torch::nn::LinearOptions(32, 12).bias(false));
      linear->weight.data().copy_(torch::rand({12, 32}));
      torch::nn::Sequential model = on_device(linear, t.hp);
      const at::Tensor w = linear->weight.detach().cpu().clone();
      model->push_back("product", runtime::Matmul());
      model->push_back("conv", torch::nn::Conv2d(1, 1, 1));
      PlanOptions o{.dialect = t.dialect, .config = config(name, t.hp, R"(, "dynamic_quantization": true)")};
      const auto report = convert(*model, o);
      ASSERT_EQ(report.converted.size(), 2u);
      ASSERT_EQ(report.skipped.size(), 1u);
      EXPECT_THAT(report.skipped[0].reason, HasSubstr("Conv2d has no dynamic scales"));
      const torch::NoGradGuard no_grad;
      const auto& product = *model[1]->as<runtime::MatmulImpl>();
      for (double size : {1.0, 1e-3, 5e4}) {  // one static scale would lose or saturate two of them
        const at::Tensor x = (torch::rand({5, 32}) * size).to(t.hp), b = (torch::rand({32, 3}) / size).to(t.hp);
        expect_close(linear(hpu(x)), f64(x).matmul(f64(w).t()), .022 * size, .175, name);
        expect_close(const_cast<runtime::MatmulImpl&>(product).forward(hpu(x), hpu(b)), f64(x).matmul(f64(b)), .022,
                     .175, name);
      }
    }
}

TEST(IncMethods, GoldenDeviceValuesThroughAConvertedLinear) {
  struct Golden {
    const char* method;
    Dialect dialect;
    std::array<float, 3> first, second;
  };
  // Measured on 232, 240, 248, then on 3720, 3721, 13721. With unit scales Gaudi3's format reaches 448; that row is the
  // format's own.
  const Golden golden[] = {{"maxabs_hw", Dialect::gaudi2, {224, 240, 256}, {3584, 3840, 3840}},
                           {"maxabs_hw", Dialect::gaudi3, {224, 240, 256}, {3584, 3840, 13312}},
                           {"maxabs_pow2", Dialect::gaudi2, {224, 240, 256}, {3584, 3840, 13312}},
                           {"maxabs_pow2", Dialect::gaudi3, {224, 240, 256}, {3584, 3840, 13312}},
                           {"unit_scale", Dialect::gaudi2, {224, 240, 240}, {240, 240, 240}},
                           {"unit_scale", Dialect::gaudi3, {224, 240, 256}, {448, 448, 448}}};
  for (const Golden& g : golden)
    for (int i = 0; i < 4; ++i) {
      const bool second = i % 2 == 1;
      torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
      linear->weight.data().fill_(1);
      torch::nn::Sequential model = on_device(linear, at::kBFloat16);
      const std::optional<measure::Amax> measured_weight =
          i < 2 ? std::nullopt : std::optional<measure::Amax>(measure::Amax{1.0f});
      const at::Tensor x = (second ? torch::tensor({3720.f, 3721.f, 13721.f}) : torch::tensor({232.f, 240.f, 248.f}))
                               .view({3, 1})
                               .to(at::kBFloat16);
      convert(*model, options(config(g.method, at::kBFloat16), {g.dialect, at::kBFloat16},
                              {"m", {{amax_of(x, at::kBFloat16)}}, std::nullopt, measured_weight}));
      const torch::NoGradGuard no_grad;
      const at::Tensor y = linear(hpu(x)).cpu().to(at::kFloat);
      for (int k = 0; k < 3; ++k)
        EXPECT_EQ(y[k].item<float>(), (second ? g.second : g.first)[k])
            << g.method << ", " << recipes::name_of(g.dialect) << ", input " << k;
    }
}

}  // namespace
}  // namespace fp8::quant
