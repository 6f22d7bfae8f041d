// SPDX-License-Identifier: Apache-2.0
// convert_modules on models that were not written for it: what is converted of them, that they learn in fp8 as in bf16
// and f32, with other optimizers and odd batches too. Then what else one does with a model.

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/model/save.h"
#include "support/temp_dir.h"
#include "transformer_engine/user_models.h"

namespace fp8::te {
namespace {

using namespace test;
using recipes::DelayedScaling;

std::vector<recipes::Recipe> all_recipes() {
  return {DelayedScaling::habana(),  habana_hybrid(),         DelayedScaling::nvidia(),
          recipes::CurrentScaling{}, recipes::BlockScaling{}, recipes::MXFP8{}};
}

struct Case {
  const char* name;
  Task (*make)();
  std::size_t converted;
  double learning_rate;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};
// Attention's projections count: in_proj_weight and out_proj.
const Case kCases[] = {{"TorchEncoder", torch_encoder_task, 9, 2e-3},
                       {"Containers", container_task, 10, 2e-3},
                       {"TiedLlama", llama_task, 15, 3e-3},
                       {"SharedBlock", shared_task, 3, 3e-3},
                       {"Lstm", lstm_task, 1, 1e-2}};

class OthersModels : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(ConvertModels, OthersModels, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

std::vector<float> curve(const Case& c, const std::string& precision, const recipes::Recipe& recipe, int steps) {
  const Task task = c.make();
  torch::optim::AdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(c.learning_rate));
  HPUPrecisionPlugin plugin(precision);
  if (precision == "fp8") {
    EXPECT_EQ(plugin.convert_modules(*task.model, {.replace_layers = true, .recipe = recipe}).converted.size(),
              c.converted);
  }
  return train(task, plugin, optimizer, steps);
}

TEST_P(OthersModels, LearnInEveryPrecision) {
  const Case& c = GetParam();
  const char* more = std::getenv("FP8_TEST_STEPS");  // for longer curves by hand
  const int steps = more != nullptr ? std::atoi(more) : 40;
  const auto f32 = curve(c, "32-true", DelayedScaling{}, steps), bf16 = curve(c, "bf16-mixed", DelayedScaling{}, steps);
  const double plain = mean_of_last(f32, 5), mixed = mean_of_last(bf16, 5);
  EXPECT_LT(plain, 0.8 * f32[0]);
  EXPECT_NEAR(mixed, plain, 0.05 * plain + 0.02);
  for (const auto& recipe : all_recipes()) {
    const auto fp8 = curve(c, "fp8", recipe, steps);
    EXPECT_NEAR(mean_of_last(fp8, 5), mixed, 0.1 * mixed + 0.03) << recipes::describe(recipe);
    EXPECT_NE(fp8, bf16) << recipes::describe(recipe);
    if (more != nullptr)
      std::cout << c.name << ": f32 " << plain << ", bf16 " << mixed << ", " << recipes::describe(recipe) << ": "
                << mean_of_last(fp8, 5) << "\n";
  }
}

TEST(ConvertModels, TheReportNamesEveryMatrix) {
  const auto report_of = [](const Task& task) {
    return HPUPrecisionPlugin("fp8").convert_modules(*task.model, {.replace_layers = true});
  };
  const auto all = [](const quant::ConversionReport& report) {
    std::set<std::string> names;
    for (const auto& m : report.converted) names.insert(m.name);
    for (const auto& m : report.skipped) names.insert(m.name);
    return names;
  };
  const auto containers = report_of(container_task());
  EXPECT_TRUE(all(containers).count("blocks.1.attention.in_proj_weight") == 1 &&
              all(containers).count("blocks.0.mlp.2") == 1 && all(containers).count("heads.words") == 1);
  EXPECT_EQ(reason(containers, "embed"), "type Embedding is trained in high precision");
  EXPECT_EQ(reason(report_of(llama_task()), "embed_tokens"), "type Embedding is trained in high precision");
  EXPECT_THAT(reason(report_of(shared_task()), "mix"), HasSubstr("a parameter of "));
  EXPECT_EQ(reason(report_of(lstm_task()), "rnn.weight_hh_l0"), "type LSTM is trained in high precision");
  torch::nn::Sequential other(torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(2, 3, 2)),
                              torch::nn::Bilinear(4, 4, 4));
  other->to(kHpu);
  const auto kept = HPUPrecisionPlugin("fp8").convert_modules(*other, {.replace_layers = true});
  EXPECT_TRUE(all(kept).count("0.weight") == 1 && all(kept).count("1.weight") == 1);
}

// One product of in_proj_weight or none: cross attention multiplies slices of it.
TEST(ConvertModels, AttentionsProjectionsRunInFp8) {
  for (const auto& [self, kdim] : {std::pair(true, 32), std::pair(false, 32), std::pair(false, 24)}) {
    torch::manual_seed(31);
    torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(32, 4).kdim(kdim).vdim(kdim));
    attention->to(kHpu);
    HPUPrecisionPlugin plugin("fp8");
    const auto report =
        plugin.convert_modules(*attention, {.replace_layers = true, .recipe = recipes::CurrentScaling{}});
    EXPECT_EQ(report.converted.size(), kdim == 32 ? 2u : 4u);
    const at::Tensor x = hpu(torch::randn({5, 2, 32})), m = self ? x : hpu(torch::randn({7, 2, kdim}));
    const auto run = [&](const HPUPrecisionPlugin& p) {
      const auto region = p.forward_context();
      return std::get<0>(attention(x, m, m));
    };
    const at::Tensor fp8 = run(plugin), bf16 = run(HPUPrecisionPlugin("bf16-mixed"));
    fp8.sum().backward();
    EXPECT_LT(((fp8 - bf16).norm() / bf16.norm()).item<double>(), 0.15);
    std::map<std::string, std::int64_t> steps;
    for (const auto& [name, state] : fp8_states(*attention)) steps[name] = state->values().step;
    const std::map<std::string, std::int64_t> one{{"in_proj_weight", self ? 1 : 0}, {"out_proj", 1}};
    const std::map<std::string, std::int64_t> three{
        {"q_proj_weight", 1}, {"k_proj_weight", 1}, {"v_proj_weight", 1}, {"out_proj", 1}};
    EXPECT_EQ(steps, kdim == 32 ? one : three);
    EXPECT_EQ(plugin.restore(*attention), kdim == 32 ? 2 : 4);
  }
}

TEST(ConvertModels, OtherOptimizers) {
  for (const auto& recipe : all_recipes()) {
    const Task task = mlp_task();
    HPUPrecisionPlugin plugin = converted(task, recipe);
    torch::optim::LBFGS lbfgs(task.model->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4));
    const auto closure = [&] {
      lbfgs.zero_grad();
      const at::Tensor loss = within(plugin.forward_context(), [&] { return loss_of(task, task.forward(task.x)); });
      loss.backward();
      return loss;
    };
    std::vector<float> losses;
    for (int i = 0; i < 5; ++i) losses.push_back(lbfgs.step(closure).item<float>());
    EXPECT_LT(losses.back(), 0.8f * losses.front()) << recipes::describe(recipe);
    const Task sgd_task = mlp_task();
    HPUPrecisionPlugin sgd_plugin = converted(sgd_task, recipe);
    torch::optim::SGD sgd(sgd_task.model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const auto curve = train(sgd_task, sgd_plugin, sgd, 20);
    EXPECT_LT(curve.back(), 0.8f * curve.front()) << recipes::describe(recipe);
  }
}

/// One forward and backward of a Linear [N, K] with M rows of input under a recipe: y, dx, dw, db.
std::vector<at::Tensor> products(std::int64_t m, std::int64_t k, std::int64_t n, const recipes::Recipe& recipe,
                                 Alignment alignment, std::int64_t pad = 0) {
  torch::manual_seed(41);
  torch::nn::Linear linear(k, n);
  at::Tensor x = torch::randn({m, k}), g = torch::randn({m, n});
  torch::nn::Linear wide(k + pad, n + pad);
  {
    const torch::NoGradGuard no_grad;
    wide->weight.zero_();
    wide->bias.zero_();
    wide->weight.narrow(0, 0, n).narrow(1, 0, k).copy_(linear->weight);
    wide->bias.narrow(0, 0, n).copy_(linear->bias);
  }
  torch::nn::Linear used = pad == 0 ? linear : wide;
  used->to(kHpu);
  const at::Tensor input = hpu(torch::constant_pad_nd(x, {0, pad})).set_requires_grad(true);
  HPUPrecisionPlugin plugin("fp8");
  plugin.convert_modules(*used, {.replace_layers = true, .recipe = recipe, .alignment = alignment});
  const at::Tensor y = test::within(plugin.forward_context(), [&] { return used(input); });
  y.backward(hpu(torch::constant_pad_nd(g, {0, pad})).to(y.scalar_type()));
  const auto cut = [](at::Tensor t, std::int64_t rows, std::int64_t cols) {
    return t.narrow(0, 0, rows).narrow(1, 0, cols).contiguous();
  };
  return {cut(y.detach(), m, n), cut(input.grad(), m, k), cut(used->weight.grad(), n, k),
          used->bias.grad().narrow(0, 0, n).contiguous()};
}

// What the report calls "padded": a layer whose sizes were rounded up with zeros by hand has the same codes and scales,
// and so the same results up to the order of sums.
TEST(ConvertModels, OddSizesGiveWhatZeroPaddingGives) {
  for (const auto& recipe : all_recipes()) {
    const auto* delayed = std::get_if<DelayedScaling>(&recipe);
    // Stochastic rounding draws by the element's position, which padding moves.
    if (delayed != nullptr && delayed->dialect == recipes::RecipeDialect::habana &&
        delayed->fp8_format == recipes::RecipeFormat::HYBRID)
      continue;
    for (const std::int64_t m : {1, 7, 32}) {
      const auto odd = products(m, 40, 24, recipe, Alignment::any), said = products(m, 40, 24, recipe, Alignment::pad);
      const auto wide = products(m, 40, 24, recipe, Alignment::any, /*pad=*/8);
      EXPECT_TRUE(all_same(odd, said));
      for (std::size_t i = 0; i < odd.size(); ++i) {
        const at::Tensor a = odd[i].cpu().to(at::kDouble), b = wide[i].cpu().to(at::kDouble);
        EXPECT_LE((a - b).norm().item<double>(), 1e-3 * a.norm().item<double>())
            << recipes::describe(recipe) << ", " << m << " rows, result " << i;
      }
    }
  }
}

TEST(ConvertModels, OneRowNoRowsAndOddSizes) {
  for (const auto& recipe : all_recipes())
    for (const auto& [m, k, n] :
         {std::tuple(1, 1, 1), std::tuple(1, 33, 17), std::tuple(0, 33, 17), std::tuple(13, 129, 1)}) {
      const auto r = products(m, k, n, recipe, Alignment::any);
      ASSERT_EQ(r[0].sizes(), (at::IntArrayRef{m, n}));
      EXPECT_EQ(r[1].sizes(), (at::IntArrayRef{m, k}));
      for (const auto& t : r)
        EXPECT_TRUE(t.isfinite().all().item<bool>()) << recipes::describe(recipe) << " " << m << "x" << k << "x" << n;
      if (m == 0) {
        EXPECT_EQ(r[2].abs().max().item<float>(), 0.0f);
      }
      torch::manual_seed(41);  // the same Linear and operands, in f64
      torch::nn::Linear linear(k, n);
      const at::Tensor x = torch::randn({m, k}, at::kFloat).to(at::kDouble),
                       g = torch::randn({m, n}, at::kFloat).to(at::kDouble), w = linear->weight.to(at::kDouble);
      const auto near = [&](const at::Tensor& got, const at::Tensor& expected, double bound) {
        if (m == 0) return;
        EXPECT_LE(((got.cpu().to(at::kDouble) - expected).norm() / expected.norm()).item<double>(), bound)
            << recipes::describe(recipe) << " " << m << "x" << k << "x" << n;
      };
      near(r[1], g.matmul(w), 0.35);
      near(r[2], g.t().matmul(x), 0.35);
      near(r[3], g.sum(0), 0.02);
    }
}

// The calls of training and serving code, as the design fixes them.
TEST(ConvertModels, TheApiAsItIsWritten) {
  const TempDir dir;
  const Task task = mlp_task();
  const auto& model = task.model;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  at::Tensor loss;
  fp8::te::HPUPrecisionPlugin plugin("fp8");
  auto report = plugin.convert_modules(*model, {.replace_layers = true, .recipe = fp8::recipes::DelayedScaling{}});
  {
    auto region = plugin.forward_context();
    loss = loss_of(task, task.forward(task.x));
  }
  loss.backward();
  optimizer.step();
  EXPECT_EQ(report.converted.size(), 3u);

  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  plugin.convert_modules(*model, {.inference = true, .quant = false});
  task.forward(task.x);
  fp8::measure::finalize_calibration(*model);
  plugin.convert_modules(*model, {.inference = true, .quant = true});
  fp8::quant::save(*model, "out", "compressed-tensors");
  EXPECT_TRUE(std::filesystem::exists("out/model.safetensors"));
  std::filesystem::current_path(before);
  EXPECT_EQ(model->parameters()[0].scalar_type(), at::kFloat8_e4m3fn);
}

// A step with a NaN in its loss: gradients say so; once the input is sound again, so is training, with every recipe.
TEST(ConvertModels, ANanLossDoesNotPoisonWhatComesAfter) {
  for (const auto& recipe : all_recipes()) {
    const Task task = mlp_task();
    const HPUPrecisionPlugin plugin = converted(task, recipe);
    const float before = backward_step(task, plugin);
    task.model->zero_grad();
    const Task bad{task.model, task.forward, torch::full_like(task.x, std::numeric_limits<double>::quiet_NaN()),
                   task.labels};
    EXPECT_TRUE(std::isnan(backward_step(bad, plugin))) << recipes::describe(recipe);
    EXPECT_TRUE(task.model->parameters()[0].grad().isnan().any().item<bool>()) << recipes::describe(recipe);
    task.model->zero_grad();
    for (int i = 0; i < 3; ++i) {
      task.model->zero_grad();
      EXPECT_NEAR(backward_step(task, plugin), before, 0.1f) << recipes::describe(recipe);
    }
    for (const auto& p : task.model->parameters())
      EXPECT_TRUE(p.grad().isfinite().all().item<bool>()) << recipes::describe(recipe);
  }
}

// What one does with a converted model goes on working: another dtype or device, converting again, save, load, clone,
// clipping, hooks.

int handlers(const torch::nn::Module& model) {
  int n = 0;
  for (const auto& p : model.parameters()) n += training_handler(p) != nullptr;
  return n;
}

TEST(ConvertModels, AnotherDtypeOrDeviceKeepsHandlersAndState) {
  const Task task = mlp_task();
  HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  backward_step(task, plugin);
  const auto scale = [&] { return fp8_states(*task.model).at(0).state->values().forward.scale[1]; };
  const float before = scale();
  EXPECT_NE(before, 1.0f);
  std::int64_t steps = 1;
  const auto goes_on = [&](const char* what) {
    EXPECT_TRUE(std::isfinite(backward_step(task, plugin))) << what;
    ASSERT_EQ(handlers(*task.model), 3) << what;
    EXPECT_EQ(fp8_states(*task.model).at(0).state->values().step, ++steps) << what;
    EXPECT_EQ(scale(), before) << what;  // the weights have not changed
  };
  task.model->to(at::kCPU);
  EXPECT_EQ(handlers(*task.model), 0);
  task.model->to(kHpu);
  goes_on("cpu and back");
  for (auto& p : task.model->parameters()) p.set_data(p.detach().clone());
  goes_on("set_data");
  task.model->zero_grad(/*set_to_none=*/true);
  task.model->to(at::kBFloat16);
  EXPECT_TRUE(std::isfinite(backward_step(task, plugin)));
  EXPECT_EQ(handlers(*task.model), 3);
  EXPECT_EQ(fp8_states(*task.model).at(0).state->values().step, ++steps);
  EXPECT_EQ(task.model->parameters()[0].grad().scalar_type(), at::kBFloat16);
  // On purpose is on purpose: nothing comes back.
  task.model->to(at::kFloat);
  { const auto region = plugin.forward_context(); }
  EXPECT_EQ(handlers(*task.model), 3);
  EXPECT_EQ(restore(*task.model), 3);
  { const auto region = plugin.forward_context(); }
  EXPECT_EQ(handlers(*task.model), 0);
}

TEST(ConvertModels, ConvertingAgainAfterAMoveKeepsTheState) {
  const Task task = mlp_task();
  HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  backward_step(task, plugin);
  task.model->to(at::kCPU);
  task.model->to(kHpu);
  plugin.convert_modules(*task.model, {.replace_layers = true, .recipe = DelayedScaling::nvidia()});
  EXPECT_EQ(fp8_states(*task.model).at(0).state->values().step, 1);
}

TEST(ConvertModels, ArchivesRoundTrip) {
  const Task task = mlp_task(), other = mlp_task(/*seed=*/9);
  HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  torch::optim::AdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(1e-3));
  train(task, plugin, optimizer, 3);
  std::stringstream model, state;
  torch::save(std::static_pointer_cast<MnistNetImpl>(task.model), model);
  torch::save(optimizer, state);
  const HPUPrecisionPlugin second = converted(other, DelayedScaling::nvidia());
  auto loaded = std::static_pointer_cast<MnistNetImpl>(other.model);
  torch::load(loaded, model);
  EXPECT_EQ(handlers(*other.model), 3);
  EXPECT_TRUE(all_same(values_of(*task.model), values_of(*other.model)));
  torch::optim::AdamW again(other.model->parameters(), torch::optim::AdamWOptions(1e-3));
  torch::load(again, state);
  EXPECT_TRUE(set_extra_state(*other.model, get_extra_state(*task.model)).missing.empty());
  const Task resumed{other.model, other.forward, task.x, task.labels};
  EXPECT_EQ(train(task, plugin, optimizer, 3), train(resumed, second, again, 3));
  EXPECT_TRUE(all_same(values_of(*task.model), values_of(*other.model)));
}

/// A model that can clone().
struct CloneableNetImpl : torch::nn::Cloneable<CloneableNetImpl> {
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
  CloneableNetImpl() { reset(); }
  void reset() override {
    fc1 = register_module("fc1", torch::nn::Linear(16, 32));
    fc2 = register_module("fc2", torch::nn::Linear(32, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return fc2(torch::relu(fc1(x))); }
};
TORCH_MODULE(CloneableNet);

TEST(ConvertModels, AClonesFp8IsItsOwn) {
  CloneableNet net;
  net->to(kHpu);
  HPUPrecisionPlugin plugin("fp8");
  plugin.convert_modules(*net, {.replace_layers = true, .recipe = DelayedScaling::nvidia()});
  const auto copy = std::static_pointer_cast<CloneableNetImpl>(net->clone());
  const at::Tensor x = hpu(torch::randn({4, 16}));
  const auto steps = [](auto& model) { return training_handler(model->fc1->weight)->state()->step(); };
  EXPECT_EQ(handlers(*net), 2);
  EXPECT_EQ(handlers(*copy), 2);
  const auto run = [&](bool trains) {
    const at::AutoGradMode mode(trains);
    const auto region = plugin.forward_context();
    const at::Tensor a = net(x), b = copy->forward(x);
    return same_bits(a.detach(), b.detach());
  };
  const at::Tensor high = net(x).detach();
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(run(false)) << "its scales follow while it does not train itself";
    const auto region = plugin.forward_context();
    EXPECT_FALSE(same_bits(net(x).detach(), high));
  }
  EXPECT_EQ(steps(net), 3);
  EXPECT_EQ(steps(copy), 0);
  EXPECT_TRUE(run(true));
  EXPECT_EQ(steps(copy), 5) << "now they are its own";
  EXPECT_EQ(steps(net), 4);
  test::within(plugin.forward_context(), [&] { copy->forward(x); });
  EXPECT_EQ(steps(copy), 6);
  EXPECT_EQ(steps(net), 4);
  // A copy of a weight that is made for a gradient is none of the weight's.
  EXPECT_EQ(training_handler(net->fc1->weight.clone()), nullptr);
  // A conversion of its own begins anew.
  const auto other = std::static_pointer_cast<CloneableNetImpl>(net->clone());
  EXPECT_EQ(
      plugin.convert_modules(*other, {.replace_layers = true, .recipe = DelayedScaling::nvidia()}).converted.size(),
      2u);
  EXPECT_EQ(fp8_states(*other).at(0).state->values().step, 0);
}

// LibTorch's own kernel fills masked places of f32 and f64 alone: the page of limits says what to give instead.
TEST(ConvertModels, PaddingOfTorchsAttentionGoesAsAnAddedMask) {
  torch::manual_seed(2);
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(32, 4));
  attention->to(kHpu);
  const at::Tensor x = hpu(torch::randn({6, 2, 32}));
  at::Tensor padding = torch::zeros({6}, at::kBool);
  padding[4] = padding[5] = true;
  const at::Tensor of_keys = hpu(padding.expand({2, 6}).contiguous());
  const at::Tensor expected = std::get<0>(attention->forward(x, x, x, of_keys, /*need_weights=*/false));
  const at::Tensor added =
      torch::zeros({6, 6}).masked_fill(padding.view({1, 6}), -std::numeric_limits<float>::infinity());
  for (const char* precision : {"bf16-mixed", "16-mixed", "fp8"}) {
    HPUPrecisionPlugin plugin(precision);
    if (precision == std::string("fp8")) plugin.convert_modules(*attention, {.replace_layers = true});
    const auto region = plugin.forward_context();
    EXPECT_REFUSED(attention->forward(x, x, x, of_keys, false), "masked_fill") << precision;
    const at::Tensor y = std::get<0>(attention->forward(x, x, x, {}, /*need_weights=*/false, hpu(added)));
    const double error = ((y.to(at::kFloat) - expected).norm() / expected.norm()).item<double>();
    EXPECT_LT(error, precision == std::string("fp8") ? 0.2 : 0.02) << precision;
  }
}

TEST(ConvertModels, ClippingHooksAndFlagsStay) {
  const Task task = mlp_task();
  int calls = 0;
  auto first = task.model->named_parameters()["fc1.weight"], frozen = task.model->named_parameters()["fc2.weight"];
  first.register_hook([&](const at::Tensor& g) {
    ++calls;
    return g * 2;
  });
  frozen.set_requires_grad(false);
  task.model->eval();
  const HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  EXPECT_FALSE(task.model->is_training());
  EXPECT_FALSE(frozen.requires_grad());
  backward_step(task, plugin);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(frozen.grad().defined());
  double squares = 0;
  for (const auto& p : task.model->parameters())
    if (p.grad().defined()) squares += std::pow(p.grad().norm().item<double>(), 2);
  const double norm = torch::nn::utils::clip_grad_norm_(task.model->parameters(), 1e-3);
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-4 * norm);
  EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(task.model->parameters(), 1e9), 1e-3, 1e-5);
  task.model->zero_grad();
  EXPECT_FALSE(first.grad().defined());
}

}  // namespace
}  // namespace fp8::te
