// SPDX-License-Identifier: Apache-2.0
// Codes of weights against the inputs that they saw: the paper's equations in double over the tokens that count, the
// guard against worse codes, inputs that several modules share, and inputs that can't be used.
#include "fp8/quant/model/layer_rounding.h"

#include "support/fp8_reference.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

using Modules = std::vector<measure::WeightModule>;

measure::WeightModule linear(const std::string& name, std::int64_t rows, std::int64_t cols) {
  return {name, "Linear", hpu(torch::randn({rows, cols}) * 0.05), std::nullopt};
}

Plan plan_of(const Modules& modules, const PlanOptions& options = {}) {
  std::vector<ModuleInfo> infos;
  for (const auto& m : modules) infos.push_back({m.name, m.type, m.weight.sizes().vec()});
  PlanOptions o = options;
  o.dialect = recipes::Dialect::ocp;
  return make_plan(infos, o);
}

/// Tokens whose columns depend on each other.
at::Tensor tokens(std::int64_t n, std::int64_t cols) {
  return torch::randn({n, cols}).matmul(torch::eye(cols) * 0.4 + torch::randn({cols, cols}) / std::sqrt(2.0 * cols));
}

/// Those that make the matrix: seven runs of 32 of every eight.
at::Tensor seen(const at::Tensor& x) {
  std::vector<at::Tensor> runs;
  for (std::int64_t at = 0; at < x.size(0); at += 32)
    if (at / 32 % 8 != 7) runs.push_back(x.slice(0, at, std::min(at + 32, x.size(0))));
  return torch::cat(runs);
}

/// The paper over x in double: largest diagonal first, damping 0.01 of the mean.
at::Tensor by_the_paper(const at::Tensor& w, const at::Tensor& x, const at::Tensor& scale_inv) {
  const at::Tensor h = x.t().to(at::kDouble).matmul(x.to(at::kDouble));
  const at::Tensor order = h.diag().argsort(/*stable=*/true, 0, /*descending=*/false).flip(0);
  const at::Tensor damped =
      h.index_select(0, order).index_select(1, order) + 0.01 * h.diag().mean() * torch::eye(h.size(0), torch::kDouble);
  const at::Tensor u = torch::linalg_cholesky(torch::inverse(damped), /*upper=*/true);
  at::Tensor rest = w.to(at::kDouble).index_select(1, order).clone(), codes = torch::zeros(w.sizes(), at::kByte);
  for (std::int64_t i = 0; i < w.size(1); ++i)
    for (std::int64_t r = 0; r < w.size(0); ++r) {
      const float inv = scale_inv[r].item<float>();
      const auto code = test::nearest_code(static_cast<float>(rest[r][i].item<double>() / inv), 448.0f);
      codes[r][order[i].item<std::int64_t>()] = code;
      const double error = (rest[r][i].item<double>() - double{test::e4m3_value(code)} * inv) / u[i][i].item<double>();
      rest[r].slice(0, i + 1).sub_(error * u[i].slice(0, i + 1));
    }
  return codes;
}

at::Tensor codes_of(const RoundedLayer& layer, std::size_t i) {
  const auto& w = layer.weights.at(i);
  return torch::tensor(at::ArrayRef<std::uint8_t>(w.codes), at::kByte).view({w.rows, w.cols});
}

TEST(LayerRounding, ThePapersCodesOfTheTokensThatCount) {
  torch::manual_seed(1);
  const Modules modules = {linear("a", 24, 96)};
  const at::Tensor x = tokens(700, 96);
  LayerRounding rounding(modules, plan_of(modules), {.method = "gptq"});
  for (std::int64_t at = 0; at < 700; at += 100) {  // as batches may cut them
    rounding.begin_samples(at, 100);
    const at::Tensor y = at::linear(hpu(x.slice(0, at, at + 100)), modules[0].weight);
    EXPECT_TRUE(same_bits(y.cpu(), at::linear(x.slice(0, at, at + 100), modules[0].weight.cpu())))
        << "probes change nothing";
  }
  const RoundedLayer layer = rounding.finish();
  EXPECT_EQ(runtime::find_tag(modules[0].weight), nullptr);
  ASSERT_EQ(layer.modules.size(), 1u);
  const RoundedModule& m = layer.modules[0];
  EXPECT_EQ(m.kept, "");
  EXPECT_EQ(m.tokens, 636);
  EXPECT_EQ(m.held, 64);
  EXPECT_EQ(m.damping, 0.01);
  EXPECT_GT(m.written_db(), m.nearest_db());
  const at::Tensor inv = torch::tensor(at::ArrayRef<float>(layer.weights[0].scale_inv), at::kFloat);
  const at::Tensor w = modules[0].weight.cpu();
  EXPECT_TRUE(same_bits(inv, w.abs().amax(1) / 448.0f));
  const double equal = codes_of(layer, 0).eq(by_the_paper(w, seen(x), inv)).to(at::kDouble).mean().item<double>();
  EXPECT_GE(equal, 0.999);
}

TEST(LayerRounding, ModulesOfOneInputShareIt) {
  torch::manual_seed(2);
  const Modules modules = {linear("q", 32, 64), linear("k", 16, 64), linear("o", 64, 32)};
  const auto run = [&](const Modules& some, bool copies) {
    LayerRounding rounding(some, plan_of(some), {.method = "gptq"});
    torch::manual_seed(3);
    for (int i = 0; i < 4; ++i) {
      rounding.begin_samples(i, 1);
      const at::Tensor x = hpu(tokens(256, 64));
      const at::Tensor y = at::linear(x, modules[0].weight);
      at::linear(copies ? x.clone() : x, modules[1].weight);
      at::linear(y, modules[2].weight);
    }
    return rounding.finish();
  };
  const RoundedLayer shared = run(modules, false), apart = run(modules, true);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(shared.modules[i].tokens, 896);
    EXPECT_EQ(shared.weights[i].codes, apart.weights[i].codes) << modules[i].name;
  }
}

TEST(LayerRounding, AnInputThatIsSharedAtTimesIsRefused) {
  torch::manual_seed(4);
  const Modules modules = {linear("q", 8, 16), linear("k", 8, 16)};
  for (const bool owner_again : {false, true}) {
    LayerRounding rounding(modules, plan_of(modules), {.method = "gptq"});
    const at::Tensor x = hpu(tokens(32, 16));
    at::linear(x, modules[0].weight);
    at::linear(x, modules[1].weight);
    EXPECT_TRUE(rounding.shares_all());
    at::linear(hpu(tokens(32, 16)), modules[owner_again ? 0 : 1].weight);
    EXPECT_FALSE(rounding.shares_all());
    EXPECT_REFUSED(rounding.finish(), "k", "q", "another one later");
  }
  LayerRounding apart(modules, plan_of(modules), {.method = "gptq"}, /*share=*/false);
  const at::Tensor x = hpu(tokens(300, 16));
  at::linear(x, modules[0].weight);
  at::linear(x, modules[1].weight);
  at::linear(hpu(tokens(300, 16)), modules[0].weight);
  const RoundedLayer layer = apart.finish();
  EXPECT_EQ(layer.modules[0].tokens + layer.modules[0].held, 600);
  EXPECT_EQ(layer.modules[1].tokens + layer.modules[1].held, 300);
}

TEST(LayerRounding, WorseOnTokensHeldBackStaysNearest) {
  torch::manual_seed(5);
  const Modules modules = {linear("a", 16, 64)};
  LayerRounding rounding(modules, plan_of(modules), {.method = "gptq"});
  at::Tensor x = torch::zeros({256, 64});
  x.slice(0, 0, 224).copy_(torch::randn({224, 1}).matmul(torch::randn({1, 64})));  // one direction
  x.slice(0, 224).copy_(torch::randn({32, 64}));                                   // all others
  at::linear(hpu(x), modules[0].weight);
  const RoundedLayer layer = rounding.finish();
  EXPECT_TRUE(layer.weights.empty());
  EXPECT_THAT(layer.modules[0].kept, HasSubstr("as good"));
  EXPECT_EQ(layer.modules[0].written_db(), layer.modules[0].nearest_db());
}

TEST(LayerRounding, WhatNoTokenOrOnlyZerosReachStaysNearest) {
  torch::manual_seed(6);
  const Modules modules = {linear("never", 8, 16), linear("zeros", 8, 16), linear("few", 8, 16)};
  LayerRounding rounding(modules, plan_of(modules), {.method = "gptq"});
  at::linear(hpu(torch::zeros({256, 16})), modules[1].weight);
  at::linear(hpu(tokens(224, 16)), modules[2].weight);
  const RoundedLayer layer = rounding.finish();
  EXPECT_TRUE(layer.weights.empty());
  EXPECT_THAT(layer.modules[0].kept, HasSubstr("no token"));
  EXPECT_THAT(layer.modules[1].kept, HasSubstr("zero"));
  EXPECT_THAT(layer.modules[2].kept, HasSubstr("none is left to judge"));
}

TEST(LayerRounding, DeadInputsAreRoundedToNearest) {
  torch::manual_seed(7);
  const Modules modules = {linear("a", 16, 48)};
  LayerRounding rounding(modules, plan_of(modules), {.method = "gptq"});
  at::Tensor x = tokens(512, 48);
  x.slice(1, 10, 20).zero_();
  at::linear(hpu(x), modules[0].weight);
  const RoundedLayer layer = rounding.finish();
  ASSERT_EQ(layer.weights.size(), 1u);
  const at::Tensor w = modules[0].weight.cpu(), codes = codes_of(layer, 0),
                   nearest = test::quantize_by_amax(w, 16).codes;
  EXPECT_TRUE(same_bits(codes.slice(1, 10, 20), nearest.slice(1, 10, 20)));
  EXPECT_FALSE(codes.equal(nearest));
}

TEST(LayerRounding, NaNIsRefusedByModuleAndSample) {
  const Modules modules = {linear("layers.0.q", 8, 16)};
  LayerRounding rounding(modules, plan_of(modules), {.method = "gptq"});
  rounding.begin_samples(4, 4);
  at::Tensor x = torch::ones({4, 10, 16});
  x[2][3][5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_REFUSED(at::linear(hpu(x), modules[0].weight), "layers.0.q", "NaN or Inf in sample 6");
  EXPECT_REFUSED(at::linear(hpu(x[2]), modules[0].weight), "layers.0.q", "NaN or Inf in sample 4 to 7");
}

TEST(LayerRounding, FilesOfLayersComeBackAndTellWhoseTheyAre) {
  const test::TempDir folder;
  RoundedLayer layer;
  layer.weights.push_back({"m", 2, 3, {1, 2, 3, 4, 5, 6}, {0.5f, 0.25f}});
  layer.modules.push_back({"m", 100, 2, 1, 3, 7, 1, 0.01, ""});
  layer.modules.push_back({"n", 100, 2, 3, 3, 7, 1, 0.1, "why"});
  layer.write(folder.path(), "layers.0", {{"a", 1}});
  RoundedCodes codes(folder.path(), {{"a", 1}});
  EXPECT_FALSE(RoundedCodes(folder.path(), {{"a", 2}}).has("layers.0"));
  EXPECT_FALSE(codes.has("layers.1"));
  EXPECT_REFUSED(codes.add("layers.1"), "layers.1", "is gone, or of another run");
  EXPECT_TRUE(codes.has("layers.0"));
  codes.add("layers.0");
  EXPECT_TRUE(codes.contains("m"));
  EXPECT_FALSE(codes.contains("n"));
  std::uint8_t row[3];
  codes.read("m", 1, 1, 3, row);
  EXPECT_EQ(row[2], 6);
  Scheme channels;
  codes.require_scales("m", 0, 2, 3, channels, {0.5f, 0.25f});
  codes.require_scales("m", 1, 1, 3, channels, {0.25f});
  EXPECT_REFUSED(codes.require_scales("m", 0, 2, 3, channels, {0.5f, 0.5f}), "m", "other sizes or scales");
  EXPECT_REFUSED(codes.require_scales("m", 0, 2, 2, channels, {0.5f, 0.25f}), "m", "other sizes or scales");
  EXPECT_REFUSED(codes.require_scales("m", 1, 2, 3, channels, {0.5f, 0.25f}), "m", "other sizes or scales");
  Scheme tensor;
  tensor.weights = Granularity::tensor;
  EXPECT_REFUSED(codes.require_scales("m", 0, 2, 3, tensor, {0.5f}), "m", "other sizes or scales");
  layer.modules[1].kept = "";  // of which no codes are there
  layer.write(folder.path(), "layers.2", {{"a", 1}});
  EXPECT_REFUSED(codes.add("layers.2"), "layers.2", "no codes and scales of n");
  ASSERT_EQ(codes.modules().size(), 2u);
  EXPECT_NEAR(codes.modules()[0].written_db(), 20, 1e-12);
  EXPECT_EQ(codes.modules()[1].kept, "why");
  EXPECT_EQ(codes.modules()[1].json()["nearest_because"], "why");
  const auto summary = RoundingSummary::of(codes.json());
  ASSERT_TRUE(summary.has_value());
  EXPECT_EQ(summary->text(), "17.0 -> 18.5 dB, 1 kept nearest, 8 tokens");
  EXPECT_FALSE(RoundingSummary::of({{"modules", {1, 2}}}).has_value());
  EXPECT_FALSE(RoundingSummary::of(nullptr).has_value());
  codes.erase([](const std::string& module) { return module == "m"; });
  EXPECT_FALSE(codes.contains("m"));
  EXPECT_EQ(codes.modules().size(), 1u);
}

TEST(LayerRounding, ColumnsAsTheyStandBeginWithTheFirst) {
  torch::manual_seed(8);
  const Modules modules = {linear("a", 16, 48)};
  const at::Tensor x = tokens(512, 48);
  const auto codes = [&](bool by_diagonal) {
    LayerRounding rounding(modules, plan_of(modules), {.method = "gptq", .by_diagonal = by_diagonal});
    at::linear(hpu(x), modules[0].weight);
    return codes_of(rounding.finish(), 0);
  };
  const at::Tensor first = codes(false).select(1, 0),
                   nearest = test::quantize_by_amax(modules[0].weight.cpu(), 16).codes.select(1, 0);
  EXPECT_TRUE(same_bits(first, nearest)) << "no error was moved to it";
  EXPECT_FALSE(codes(true).select(1, 0).equal(nearest));
}

/// Down to the next code: of half of the values a code too low.
void round_down(const kernels::CompensatedRounding& a) {
  for (std::int64_t r = 0; r < a.rows; ++r)
    for (std::int64_t k = 0; k < a.cols; ++k) {
      const std::int64_t i = r * a.cols + k, scale = a.group[k] * a.rows + r;
      float value = -448.0f;
      for (int code = 0; code < 256; ++code) {
        const float v = test::e4m3_value(static_cast<std::uint8_t>(code));
        if (v <= a.w[i] * a.scale[scale]) value = std::max(value, v);
      }
      a.rounded[i] = value;
      a.error[i] = a.w[i] - value * a.scale_inv[scale];
    }
}

TEST(LayerRounding, AMethodOfOnesOwnIsGuardedToo) {
  torch::manual_seed(9);
  const Modules modules = {linear("a", 16, 48)};
  const auto round = [&](const std::string& method) {
    LayerRounding rounding(modules, plan_of(modules), {.method = method});
    at::linear(hpu(tokens(512, 48)), modules[0].weight);
    return rounding.finish();
  };
  EXPECT_REFUSED(round("mine"), "rounding: found 'mine', allowed: nearest, gptq");
  EXPECT_REFUSED(round("nearest"), "rounding nearest: needs no inputs");
  const RoundingRegistration down({"down", round_down}), same({"same", kernels::round_compensated});
  const RoundedLayer worse = round("down");
  EXPECT_TRUE(worse.weights.empty());
  EXPECT_GT(worse.modules[0].rounded, worse.modules[0].nearest);
  torch::manual_seed(10);
  const RoundedLayer a = round("same");
  torch::manual_seed(10);
  EXPECT_EQ(a.weights.at(0).codes, round("gptq").weights.at(0).codes);
  EXPECT_REFUSED(RoundingRegistration({"gptq", round_down}), "gptq", "is taken");
  EXPECT_REFUSED(RoundingRegistration({"Mine", round_down}), "Mine", "lower case");
  EXPECT_REFUSED(RoundingRegistration({"mine", nullptr}), "mine", "no function");
}

TEST(LayerRounding, AModelInMemoryTakesTheCodes) {
  torch::manual_seed(11);
  Modules modules = {linear("a", 16, 48), linear("b", 16, 48)};
  const test::TempDir folder;
  const io::Json identity = {{"a", 1}};
  {
    LayerRounding rounding({modules[0]}, plan_of({modules[0]}), {.method = "gptq"});
    at::linear(hpu(tokens(512, 48)), modules[0].weight);
    rounding.finish().write(folder.path(), "layers.0", identity);
  }
  RoundedCodes codes(folder.path(), identity);
  codes.add("layers.0");
  PlanOptions options{.dialect = recipes::Dialect::ocp};
  const at::Tensor b = modules[1].weight.cpu().clone();
  options.weights = Granularity::tensor;
  EXPECT_REFUSED(convert(modules, {}, options, &codes), "a", "other sizes or scales");
  options.weights = Granularity::channel;
  convert(modules, {}, options, &codes);
  std::vector<std::uint8_t> expected(16 * 48);
  codes.read("a", 0, 16, 48, expected.data());
  EXPECT_TRUE(same_bits(modules[0].weight.cpu().view(at::kByte).flatten(),
                        torch::tensor(at::ArrayRef<std::uint8_t>(expected), at::kByte)));
  EXPECT_TRUE(same_bits(modules[1].weight.cpu().view(at::kByte), test::quantize_by_amax(b, 16).codes)) << "nearest";
}

/// vLLM's requantize_with_max_scale(): per_tensor_dequantize() in f16, then scaled_fp8_quant() by the largest scale.
at::Tensor as_vllm_requantizes(const at::Tensor& codes, float scale, float largest) {
  const at::Tensor values = codes.to(at::kHalf) * torch::tensor(scale);
  return (values.to(at::kFloat) / largest).clamp(-448, 448).to(at::kFloat8_e4m3fn);
}

TEST(LayerRounding, EqualScalesKeepTheirCodesInVllm) {
  at::Tensor codes = torch::arange(256, at::kByte);
  codes = codes.masked_select(codes.bitwise_and(127).ne(127)).view(at::kFloat8_e4m3fn);
  for (float scale = 1e-4f; scale < 0.1f; scale *= 1.003f)
    ASSERT_TRUE(same_bits(as_vllm_requantizes(codes, scale, scale), codes)) << scale;
  const at::Tensor changed = as_vllm_requantizes(codes, 0.01f, 0.013f);  // what the rounding chose is lost
  EXPECT_GT(changed.to(at::kFloat).mul(0.013f).sub(codes.to(at::kFloat).mul(0.01f)).abs().ge(1e-3f).sum().item<int>(),
            50);
}

}  // namespace
}  // namespace fp8::quant
