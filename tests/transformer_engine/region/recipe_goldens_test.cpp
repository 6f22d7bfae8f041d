// SPDX-License-Identifier: Apache-2.0
// Recipes as a user meets them, by whole training steps: the vendor's worked numbers for every tensor and format, the
// interval's schedule, the other vendor's table of cached weights, and recipe files whose rules name single modules.

#include "fp8/transformer_engine/convert/precision_plugin.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "support/hpu_test.h"

namespace fp8::te {
namespace {

using recipes::AmaxComputeAlgo;
using recipes::DelayedScaling;
using recipes::Recipe;
using recipes::RecipeFormat;
using runtime::DeviceKind;
using runtime::DeviceKindScope;

constexpr int kSize = 16;

at::Tensor all(double value) { return torch::full({kSize, kSize}, value, on_hpu()); }

struct Products {
  at::Tensor y, dx, dw;
};

/// One step of x = all `x`, w = all `w`; the gradient of y is all `g`.
Products step(Linear& layer, double x, double w, double g, const Recipe& recipe,
              std::optional<bool> first_microbatch = {}) {
  test::within(torch::NoGradGuard(), [&] { layer->weight.fill_(w); });
  const at::Tensor input = all(x).requires_grad_(true);
  layer->zero_grad();
  const at::Tensor y = test::within(fp8_autocast(true, recipe), [&] { return layer(input, first_microbatch); });
  y.backward(all(g));
  return {y.detach(), input.grad(), layer->weight.grad().clone()};
}

Linear layer_16() { return Linear(LinearOptions{.in_features = kSize, .out_features = kSize, .bias = false}); }

/// A number as a format has it: saturated with scale 1, and with a scale that fits.
struct Rounded {
  double unscaled, scaled;
};

/// The vendor's worked numbers. E4M3 of gaudi2 ends at 240.
Rounded rounded(double value, bool e5m2, DeviceKind kind) {
  const double max = e5m2 ? 57344 : kind == DeviceKind::gaudi2 ? 240 : 448;
  if (value == 0.47) return e5m2 ? Rounded{0.5, 0.5} : Rounded{0.46875, 0.46875};
  if (value == 3.26) return e5m2 ? Rounded{3.5, 3.5} : Rounded{3.25, 3.25};
  if (value == 109000) return {max, e5m2 ? 114688.0 : 106496.0};
  return {std::min(value, max), value};  // powers of two
}

struct Golden {
  Recipe recipe;
  bool forward_e5m2, backward_e5m2;  ///< formats of x and w in the forward product, and in the two backward ones
  bool gradient_e5m2;
  int exact_from;  ///< step whose scales fit
};

std::vector<Golden> goldens() {
  const auto delayed = [](DelayedScaling d, RecipeFormat format) {
    d.fp8_format = format;
    d.power_of_two_scale = true;
    return d;
  };
  const auto habana = DelayedScaling::habana(), nvidia = DelayedScaling::nvidia();
  return {{delayed(habana, RecipeFormat::E5M2), true, true, true, 2},
          {delayed(habana, RecipeFormat::HYBRID), false, true, true, 2},  // E5M2 copies for backward
          {delayed(nvidia, RecipeFormat::E4M3), false, false, false, 2},
          {delayed(nvidia, RecipeFormat::HYBRID), false, false, true, 2},
          {recipes::CurrentScaling{RecipeFormat::E4M3, true}, false, false, false, 1},
          {recipes::CurrentScaling{RecipeFormat::HYBRID, true}, false, false, true, 1},
          {recipes::BlockScaling{}, false, false, false, 1},
          {recipes::BlockScaling{.fp8_format = RecipeFormat::HYBRID}, false, false, true, 1},
          {recipes::MXFP8{}, false, false, false, 1},
          {recipes::MXFP8{RecipeFormat::HYBRID}, false, false, true, 1}};
}

// In range, then each of input, weight and gradient beyond every format. In the first step of delayed scaling what
// reads such a tensor is wrong, by saturation at scale 1, and what does not is right; from the second step on all is
// exact.
TEST(RecipeGoldens, FirstStepWrongSecondExact) {
  const std::vector<std::array<double, 3>> cases = {
      {0.47, 3.26, 1}, {109000, 3.26, 1}, {0.47, 109000, 1}, {0.47, 3.26, 131072}};
  for (const DeviceKind kind : {DeviceKind::gaudi2, DeviceKind::gaudi3}) {
    const DeviceKindScope scope(kind);
    for (const Golden& golden : goldens())
      for (const auto& [x, w, g] : cases) {
        Linear layer = layer_16();
        for (int i = 1; i <= 4; ++i) {
          const Products found = step(layer, x, w, g, golden.recipe);
          const auto value = [&](double of, bool e5m2) {
            const Rounded r = rounded(of, e5m2, kind);
            return i < golden.exact_from ? r.unscaled : r.scaled;
          };
          const double gradient = value(g, golden.gradient_e5m2);
          const std::string where = recipes::describe(golden.recipe) + ", x " + std::to_string(x) + ", w " +
                                    std::to_string(w) + ", g " + std::to_string(g) + ", step " + std::to_string(i);
          EXPECT_TRUE(same_bits(found.y, all(kSize * value(x, golden.forward_e5m2) * value(w, golden.forward_e5m2))))
              << where;
          EXPECT_TRUE(same_bits(found.dx, all(kSize * gradient * value(w, golden.backward_e5m2)))) << where;
          EXPECT_TRUE(same_bits(found.dw, all(kSize * gradient * value(x, golden.backward_e5m2)))) << where;
        }
      }
  }
}

// f32 scales put a tensor's amax on the format's maximum: a tensor of equal numbers is exact but for the two roundings
// of scale and scale_inv, where 109000 saturated before.
TEST(RecipeGoldens, RealValuedScalesFromTheSecondStep) {
  Linear layer = layer_16();
  const DelayedScaling recipe = DelayedScaling::nvidia();
  EXPECT_TRUE(same_bits(step(layer, 109000, 3.26, 131072, recipe).y, all(kSize * 448 * 3.25)));
  const Products second = step(layer, 109000, 3.26, 131072, recipe);
  EXPECT_TRUE(torch::allclose(second.y, all(kSize * 109000.0 * 3.26), 1e-6, 0));
  EXPECT_TRUE(torch::allclose(second.dx, all(kSize * 131072.0 * 3.26), 1e-6, 0));
  EXPECT_TRUE(torch::allclose(second.dw, all(kSize * 131072.0 * 109000.0), 1e-6, 0));
}

double power_of_two_scale(double max, double amax) { return std::pow(2.0, std::floor(std::log2(max / amax))); }

/// The amax that counts after steps 1 to `last` with a history of h.
double counting(const std::vector<double>& seen, int last, int h, AmaxComputeAlgo algo) {
  if (algo == AmaxComputeAlgo::most_recent) return seen[last - 1];
  return *std::max_element(seen.begin() + std::max(0, last - h), seen.begin() + last);
}

// The vendor's grid of histories and intervals, by plain lists: scales move on entering steps 2, 2 + i, 2 + 2 i, from
// the h steps before each.
TEST(RecipeGoldens, IntervalsAndHistoriesThroughAWholeStep) {
  const std::vector<std::pair<int, int>> kGrid = {{1, 1}, {3, 1}, {5, 1}, {1, 3}, {3, 3},
                                                  {5, 3}, {1, 5}, {3, 5}, {5, 5}, {16, 1}};
  for (const AmaxComputeAlgo algo : {AmaxComputeAlgo::most_recent, AmaxComputeAlgo::max})
    for (const auto& [interval, history] : kGrid) {
      const DelayedScaling recipe{.interval = interval,
                                  .fp8_format = RecipeFormat::HYBRID,
                                  .amax_history_len = history,
                                  .amax_compute_algo = algo};
      Linear layer = layer_16();
      std::vector<double> x, w, g;
      double scales[4] = {1, 1, 1, 1};  // x and w in E4M3, x in E5M2, g in E5M2
      for (int i = 1; i <= 36; ++i) {
        if (i >= 2 && (i - 2) % interval == 0) {
          scales[0] = power_of_two_scale(448, counting(x, i - 1, history, algo));
          scales[1] = power_of_two_scale(448, counting(w, i - 1, history, algo));
          scales[2] = power_of_two_scale(57344, counting(x, i - 1, history, algo));
          scales[3] = power_of_two_scale(57344, counting(g, i - 1, history, algo));
        }
        x.push_back(std::ldexp(1.0 + (i * 5) % 7, (i * 11) % 17 - 8));
        w.push_back(std::ldexp(1.0 + (i * 3) % 5, (i * 7) % 13 - 6));
        g.push_back(std::ldexp(1.0 + (i * 2) % 3, (i * 13) % 19 - 9));
        step(layer, x.back(), w.back(), g.back(), recipe);
        const Fp8StateValues values = layer->fp8_states()[0]->values();
        const std::string where = "interval " + std::to_string(interval) + ", history " + std::to_string(history) +
                                  ", step " + std::to_string(i);
        ASSERT_EQ(values.forward.scale[0], scales[0]) << where;
        ASSERT_EQ(values.forward.scale[1], scales[1]) << where;
        ASSERT_EQ(values.hybrid.scale[0], scales[2]) << where;
        ASSERT_EQ(values.backward.scale[0], scales[3]) << where;
        ASSERT_EQ(values.forward.scale_inv[0], 1.0 / scales[0]) << where;
      }
    }
}

// The vendor's tables of (history, steps) one after another: the newest amaxes, as many as fit, are there after each
// entry.
TEST(RecipeGoldens, HistoriesThatChangeTheirLength) {
  const std::vector<std::vector<std::pair<int, int>>> tables = {
      {{3, 5}, {2, 1}, {2, 1}}, {{5, 7}, {4, 1}}, {{4, 6}, {8, 4}, {8, 1}}};
  for (const DelayedScaling& preset : {DelayedScaling::habana(), DelayedScaling::nvidia()}) {
    const bool nvidia = preset.dialect == recipes::RecipeDialect::nvidia;
    for (const auto& table : tables) {
      Linear layer = layer_16();
      std::vector<float> seen;
      for (const auto& [history, steps] : table) {
        DelayedScaling recipe = preset;
        recipe.amax_history_len = history;
        for (int i = 0; i < steps; ++i) {
          seen.push_back(static_cast<float>(seen.size() + 1));
          step(layer, seen.back(), 2.0 * seen.back(), 4.0 * seen.back(), recipe);
        }
        const Fp8StateValues values = layer->fp8_states()[0]->values();
        const auto check = [&](const recipes::TensorMeta& meta, int tensor, float factor) {
          ASSERT_EQ(meta.history(), history);
          const std::size_t rows =
              static_cast<std::size_t>(history) - (nvidia ? 1 : 0);  // row 0 waits for the coming step
          for (std::size_t back = 1; back <= std::min(rows, seen.size()); ++back)
            EXPECT_TRUE((meta.amax_history.col(tensor) == factor * seen[seen.size() - back]).any())
                << history << ", " << back << " back";
        };
        check(values.forward, 0, 1.0f);
        check(values.forward, 1, 2.0f);
        check(values.backward, 0, 4.0f);
      }
    }
  }
}

// NVIDIA's table: history {31, 1024} x {max, most_recent} x is_first_microbatch {none, true, false}, margin 2, from
// arbitrary histories. Where the weight is cached its column and scale stay; all others roll by one row.
TEST(RecipeGoldens, CachedWeightsKeepTheirHistory) {
  torch::manual_seed(5);
  for (const int history : {31, 1024})
    for (const AmaxComputeAlgo algo : {AmaxComputeAlgo::max, AmaxComputeAlgo::most_recent})
      for (const std::optional<bool> first :
           {std::optional<bool>(), std::optional<bool>(true), std::optional<bool>(false)}) {
        DelayedScaling recipe = DelayedScaling::nvidia();
        recipe.margin = 2, recipe.amax_history_len = history, recipe.amax_compute_algo = algo;
        Linear layer = layer_16();
        step(layer, 1, 1, 1, recipe, true);  // casts the weight
        const auto state = layer->fp8_states()[0];
        Fp8StateValues before = state->values();
        for (auto* meta : {&before.forward, &before.backward}) {
          meta->amax_history = (Eigen::ArrayXXf::Random(history, meta->tensors()) + 1.0f) + 0.5f;
          meta->amax_history.row(0).setZero();
        }
        const auto kept = state->kept();
        state->set_values(before);
        if (kept) state->keep(*kept);
        step(layer, 0.75, 1.5, 2.25, recipe, first);
        const Fp8StateValues after = state->values();
        const auto check = [&](const recipes::TensorMeta& from, const recipes::TensorMeta& to, int tensor, float amax,
                               float max) {
          Eigen::ArrayXf rolled(history);  // 0, the rows after the first, the new amax
          rolled << 0.0f, from.amax_history.col(tensor).tail(history - 2), amax;
          EXPECT_TRUE((to.amax_history.col(tensor) == rolled).all()) << history;
          const float largest = std::max(amax, from.amax_history.col(tensor).maxCoeff());
          EXPECT_EQ(to.scale[tensor], max / (algo == AmaxComputeAlgo::max ? largest : amax) / 4.0f) << history;
        };
        check(before.forward, after.forward, 0, 0.75f, 448.0f);
        check(before.backward, after.backward, 0, 2.25f, 57344.0f);
        if (first.value_or(true)) {
          check(before.forward, after.forward, 1, 1.5f, 448.0f);
        } else {
          EXPECT_TRUE((after.forward.amax_history.col(1) == before.forward.amax_history.col(1)).all()) << history;
          EXPECT_EQ(after.forward.scale[1], before.forward.scale[1]);
        }
      }
}

// Amaxes known from elsewhere scale the first step, and the most recent one is that step's afterwards.
TEST(RecipeGoldens, SeedsAreThePast) {
  for (const int history : {1, 4})
    for (DelayedScaling recipe : {DelayedScaling::habana(), DelayedScaling::nvidia()}) {
      recipe.amax_history_len = history;
      recipe.amax_compute_algo = AmaxComputeAlgo::most_recent;
      Linear layer = layer_16();
      const auto state = layer->fp8_states()[0];
      state->seed({8, 16}, recipe);
      const float max = recipe.fp8_format == RecipeFormat::E5M2 ? 57344.0f : 448.0f;
      const auto scale = [&](float amax) {
        return recipe.power_of_two_scale ? static_cast<float>(power_of_two_scale(max, amax)) : max / amax;
      };
      EXPECT_EQ(state->values().forward.scale[0], scale(8));
      EXPECT_EQ(state->values().forward.scale[1], scale(16));
      step(layer, 1, 2, 1, recipe);
      if (recipe.dialect == recipes::RecipeDialect::habana)
        step(layer, 1, 2, 1, recipe);  // whose scales move on entering the next step
      EXPECT_EQ(state->values().forward.scale[0], scale(1)) << recipes::describe(recipe);
      EXPECT_EQ(state->values().forward.scale[1], scale(2)) << recipes::describe(recipe);
    }
}

// ---- files

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(kSize, kSize));
    register_module("layers", layers);
    register_module("lm_head", lm_head);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::Linear>()->forward(x);
    return lm_head(x);
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear lm_head{kSize, 8};
};
TORCH_MODULE(TwoLayers);

TEST(RecipeFiles, RulesChooseByModule) {
  TwoLayers model;
  model->to(test::kHpu);
  const auto config = configs::parse_recipe(io::parse_json(R"({"recipe": "mxfp8", "modules": [
      {"match": "lm_head$", "keep": "bf16"},
      {"match": "^layers\\.0$", "recipe": "current", "fp8_format": "E4M3"},
      {"match": "layers\\.[01]", "recipe": "delayed", "preset": "nvidia", "amax_history_len": 4},
      {"match": "^layer\\.2$", "keep": "bf16"},
      {"match": "lm_hed", "recipe": "block"}]})",
                                                           "r.json"),
                                            "r.json");
  HPUPrecisionPlugin plugin("fp8");
  const auto report =
      plugin.convert_modules(*model, {.replace_layers = true, .recipe = config.recipe, .rules = config.rules});
  ASSERT_EQ(report.converted.size(), 3u);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_EQ(report.skipped[0].name, "lm_head");
  EXPECT_EQ(report.skipped[0].reason, "kept by \"lm_head$\"");
  ASSERT_EQ(report.warnings.size(), 2u);  // rules that no module meets, most often a slip
  EXPECT_EQ(report.warnings[0], "rules[3] \"^layer\\.2$\": no module has such a name");
  EXPECT_EQ(report.warnings[1], "rules[4] \"lm_hed\": no module has such a name");
  test::within(plugin.forward_context(), [&] { model(torch::randn({4, kSize}, on_hpu())).sum().backward(); });
  std::map<std::string, std::string> used;
  for (const auto& [name, state] : fp8_states(*model)) used[name] = state->values().recipe;
  const std::map<std::string, std::string> expected = {
      {"layers.0", "current E4M3"}, {"layers.1", "delayed nvidia HYBRID"}, {"layers.2", "mxfp8 E4M3"}};
  EXPECT_EQ(used, expected);
}

TEST(RecipeFiles, RulesReachModulesOfTransformerEngine) {
  torch::nn::Sequential model;
  model->push_back("first", Linear(kSize, kSize));
  model->push_back("second", Linear(kSize, kSize));
  model->push_back("third", Linear(kSize, kSize));
  HPUPrecisionPlugin plugin("fp8");
  ConvertOptions options{.replace_layers = true, .recipe = DelayedScaling::nvidia()};
  options.rules = {{"^second$", recipes::MXFP8{}}, {"third", std::nullopt}};
  const auto report = plugin.convert_modules(*model, options);
  EXPECT_TRUE(report.warnings.empty()) << report.warnings[0];
  ASSERT_EQ(report.skipped.size(), 3u);
  EXPECT_EQ(report.skipped[1].reason, "a module of transformer_engine runs in fp8 by itself");
  EXPECT_EQ(report.skipped[2].reason, "kept by \"third\"");
  test::within(plugin.forward_context(), [&] { model->forward(torch::randn({4, kSize}, on_hpu())).sum().backward(); });
  std::map<std::string, std::string> used;
  for (const auto& [name, state] : fp8_states(*model)) used[name] = state->values().recipe;
  const std::map<std::string, std::string> expected = {
      {"first", "delayed nvidia HYBRID"}, {"second", "mxfp8 E4M3"}, {"third", ""}};
  EXPECT_EQ(used, expected);
  // Kept: torch's bits in the region's dtype.
  auto third = std::dynamic_pointer_cast<LinearImpl>(model->ptr(2));
  const at::Tensor x = torch::randn({4, kSize}, on_hpu());
  const auto in_region = [&] {
    const auto region = plugin.forward_context();
    return third->forward(x);
  };
  const at::Tensor kept = in_region();
  test::within(runtime::autocast::AutocastGuard(at::kBFloat16),
               [&] { EXPECT_TRUE(same_bits(kept, torch::nn::functional::linear(x, third->weight, third->bias))); });
  options.rules = {};
  plugin.convert_modules(*model, options);
  EXPECT_FALSE(same_bits(in_region(), kept));
  options.block = {"third"};
  plugin.convert_modules(*model, options);
  EXPECT_TRUE(same_bits(in_region(), kept));
  plugin.restore(*model);
  EXPECT_FALSE(same_bits(in_region(), kept));
}

}  // namespace
}  // namespace fp8::te
