// SPDX-License-Identifier: Apache-2.0
// convert_modules on models as users write them: they train in fp8 without an edit of their code, and nothing else
// about them changes.
#include "fp8/transformer_engine/convert/convert_training.h"

#include "fp8/quant/model/save.h"
#include "support/fp8_reference.h"
#include "support/temp_dir.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;
using recipes::DelayedScaling;

int tags(const torch::nn::Module& model) {
  int n = 0;
  for (const auto& p : model.parameters()) n += runtime::find_tag(p) != nullptr;
  return n;
}

struct Case {
  const char* name;
  std::function<Task()> make;
  recipes::Recipe recipe;
  std::size_t linears;
  double learning_rate;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

const Case kCases[] = {{"MlpNvidia", [] { return mlp_task(); }, DelayedScaling::nvidia(), 3, 2e-3},
                       {"MlpHabanaHybrid", [] { return mlp_task(); }, habana_hybrid(), 3, 2e-3},
                       {"MlpHabanaE5M2", [] { return mlp_task(); }, DelayedScaling::habana(), 3, 2e-3},
                       {"MlpCurrent", [] { return mlp_task(); }, recipes::CurrentScaling{}, 3, 2e-3},
                       {"MlpBlock", [] { return mlp_task(); }, recipes::BlockScaling{}, 3, 2e-3},
                       {"MlpMxfp8", [] { return mlp_task(); }, recipes::MXFP8{}, 3, 2e-3},
                       {"ResNet", resnet_task, DelayedScaling::nvidia(), 1, 4e-3},
                       {"Bert", bert_task, DelayedScaling::nvidia(), 13, 2e-3},
                       {"LanguageModel", lm_task, habana_hybrid(4), 15, 2e-3}};

class UsersModels : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(ConvertTraining, UsersModels, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// The optimizer is built before the conversion; the curve is that of bf16-mixed within a tenth.
TEST_P(UsersModels, LearnAsInBf16) {
  const Case& c = GetParam();
  std::vector<std::vector<float>> curves;
  for (const char* precision : {"bf16-mixed", "fp8"}) {
    const Task task = c.make();
    torch::optim::AdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(c.learning_rate));
    HPUPrecisionPlugin plugin(precision);
    if (plugin.precision() == "fp8") {
      const auto before = task.model->named_parameters();
      std::vector<std::pair<void*, void*>> identity;
      for (const auto& p : before) identity.emplace_back(p.value().unsafeGetTensorImpl(), p.value().data_ptr());
      EXPECT_EQ(plugin.convert_modules(*task.model, {.replace_layers = true, .recipe = c.recipe}).converted.size(),
                c.linears);
      std::size_t i = 0;
      for (const auto& p : task.model->named_parameters()) {
        const std::pair<void*, void*> now(p.value().unsafeGetTensorImpl(), p.value().data_ptr());
        EXPECT_EQ(identity[i++], now) << p.key();
        EXPECT_TRUE(p.value().requires_grad() && p.value().scalar_type() == at::kFloat && p.value().is_hpu())
            << p.key();
      }
    }
    test::within(plugin.forward_context(), [&] { EXPECT_EQ(task.forward(task.x).scalar_type(), at::kBFloat16); });
    curves.push_back(train(task, plugin, optimizer, 40));
    for (const auto& p : task.model->parameters()) EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
  }
  const double bf16 = mean_of_last(curves[0], 5), fp8 = mean_of_last(curves[1], 5);
  EXPECT_LT(fp8, 0.75 * curves[1][0]);
  EXPECT_NEAR(fp8, bf16, 0.1 * bf16 + 0.02);
  EXPECT_NE(curves[0], curves[1]);  // it did run in fp8
}

TEST(ConvertTraining, OffIsBitEqual) {
  for (const auto& make : {std::function<Task()>(bert_task), std::function<Task()>(resnet_task)}) {
    const auto run = [](const Task& task) {
      task.model->zero_grad();
      const at::Tensor y = task.forward(task.x);
      loss_of(task, y).backward();
      auto result = gradients_of(*task.model);
      result.push_back(y.detach());
      return result;
    };
    const Task task = make(), plain = make();
    const auto expected = run(plain);
    const HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
    EXPECT_TRUE(all_same(run(task), expected));
    test::within(fp8_autocast(false), [&] { EXPECT_TRUE(all_same(run(task), expected)); });
    backward_step(task, plugin);
    EXPECT_GT(plugin.restore(*task.model), 0);
    EXPECT_TRUE(all_same(run(task), expected));
    EXPECT_EQ(tags(*task.model), 0);
    EXPECT_EQ(plugin.restore(*task.model), 0);
  }
  const Task task = bert_task(), plain = bert_task();
  const HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  plugin.restore(*task.model);
  const auto a = [&](const Task& t, const HPUPrecisionPlugin& p) {
    const auto region = p.forward_context();
    return t.forward(t.x).detach();
  };
  EXPECT_TRUE(same_bits(
      a(task, plugin), a(plain, HPUPrecisionPlugin("bf16-mixed"))));  // an fp8 region without converted modules is bf16
}

TEST(ConvertTraining, PlanOnlyAndRecipeOnlyChangeNothing) {
  const Task task = lm_task();
  HPUPrecisionPlugin plugin("fp8");
  const auto plan = plugin.convert_modules(
      *task.model, {.replace_layers = true, .recipe = DelayedScaling::nvidia(), .plan_only = true});
  EXPECT_EQ(plan.converted.size(), 15u);
  EXPECT_EQ(reason(plan, "embed_tokens"), "type Embedding is trained in high precision");
  EXPECT_THAT(plan.converted[0].scheme, HasSubstr("nvidia"));
  EXPECT_EQ(recipes::describe(plugin.recipe()), recipes::describe(DelayedScaling::habana()));
  EXPECT_EQ(tags(*task.model), 0);
  const auto only = plugin.convert_modules(*task.model, {.recipe = recipes::CurrentScaling{}});
  EXPECT_TRUE(only.converted.empty());
  EXPECT_EQ(only.warnings.size(), 1u);
  EXPECT_EQ(tags(*task.model), 0);
  EXPECT_TRUE(std::holds_alternative<recipes::CurrentScaling>(plugin.recipe()));
}

/// Relative RMS distance of a layer's fp8 product, once its scales have settled, from the product in f64.
double measured_error(const recipes::Recipe& recipe, const at::Tensor& x, torch::nn::Linear linear) {
  HPUPrecisionPlugin plugin("fp8");
  plugin.nested_bf16 = false;
  plugin.convert_modules(*linear, {.replace_layers = true, .recipe = recipe});
  at::Tensor y;
  for (int i = 0; i < 3; ++i) {
    const auto region = plugin.forward_context();
    y = linear(x);
  }
  plugin.restore(*linear);
  const at::Tensor exact = torch::matmul(x.cpu().to(at::kDouble), linear->weight.detach().cpu().to(at::kDouble).t());
  return test::relative_error(y, exact);
}

TEST(ConvertTraining, APlanForeseesTheError) {
  torch::manual_seed(12);
  torch::nn::Linear linear = hpu(torch::nn::Linear(torch::nn::LinearOptions(256, 192).bias(false)));
  const at::Tensor x = hpu(torch::randn({512, 256}));
  for (const auto& recipe : Recipes{DelayedScaling::habana(), habana_hybrid(), DelayedScaling::nvidia(),
                                    recipes::CurrentScaling{}, recipes::BlockScaling{}, recipes::MXFP8{}}) {
    HPUPrecisionPlugin plugin("fp8");
    const auto plan = plugin.convert_modules(*linear, {.recipe = recipe, .plan_only = true});
    ASSERT_EQ(plan.converted.size(), 1u);
    const auto& line = plan.converted[0];
    EXPECT_EQ(line.flops_per_row, 6.0 * 256 * 192);
    EXPECT_GE(line.operand_bytes, 256 * 192);
    EXPECT_LE(line.operand_bytes, 2.2 * 256 * 192);
    const double measured = measured_error(recipe, x, linear);
    EXPECT_NEAR(line.expected_error.value(), measured, 0.15 * measured) << recipes::describe(recipe);
  }
  const torch::NoGradGuard no_grad;
  HPUPrecisionPlugin plugin("fp8");
  linear->weight.zero_();
  EXPECT_FALSE(plugin.convert_modules(*linear, {.plan_only = true}).converted[0].expected_error.has_value());
  linear->weight.fill_(std::numeric_limits<float>::infinity());
  EXPECT_FALSE(plugin.convert_modules(*linear, {.plan_only = true}).converted[0].expected_error.has_value());
}

TEST(ConvertTraining, ListsAndRulesChoose) {
  const Task task = lm_task();
  HPUPrecisionPlugin plugin("fp8");
  ConvertOptions options{
      .replace_layers = true, .recipe = DelayedScaling::nvidia(), .allow = {"layer_", "lm_head"}, .block = {"o_proj$"}};
  options.rules = {{"layer_0.*_proj", recipes::CurrentScaling{}}, {"lm_head", std::nullopt}};
  const auto report = plugin.convert_modules(*task.model, options);
  EXPECT_EQ(report.converted.size(), 12u);
  EXPECT_EQ(reason(report, "layer_0.o_proj"), "blocked by \"o_proj$\"");
  EXPECT_EQ(reason(report, "lm_head"), "kept by \"lm_head\"");
  backward_step(task, plugin);
  int current = 0, delayed = 0;
  for (const auto& [name, state] : fp8_states(*task.model)) {
    const std::string recipe = state->values().recipe;
    EXPECT_EQ(recipe.rfind(name.rfind("layer_0", 0) == 0 ? "current" : "delayed nvidia", 0), 0u)
        << name << ": " << recipe;
    ++(recipe.rfind("current", 0) == 0 ? current : delayed);
  }
  EXPECT_EQ(current, 6);
  EXPECT_EQ(delayed, 6);
  const Task other = lm_task();
  const auto none = plugin.convert_modules(*other.model, {.replace_layers = true, .allow = {"nothing"}});
  EXPECT_EQ(reason(none, "lm_head"), "not in the allow list");
  EXPECT_EQ(none.warnings, (std::vector<std::string>{"allow[0] \"nothing\": no module has such a name",
                                                     "no module was selected: the model trains in high precision"}));
  const auto slips = plugin.convert_modules(
      *other.model,
      {.replace_layers = true, .block = {"o_porj"}, .rules = {{"lm_haed", std::nullopt}}, .plan_only = true});
  EXPECT_EQ(slips.warnings, (std::vector<std::string>{"block[0] \"o_porj\": no module has such a name",
                                                      "rules[0] \"lm_haed\": no module has such a name"}));
  EXPECT_REFUSED(plugin.convert_modules(*other.model, {.replace_layers = true, .allow = {"("}}),
                 "convert_modules: allow", "(");
  EXPECT_EQ(tags(*other.model), 0);
}

TEST(ConvertTraining, SizesThatTheTargetDoesNotTake) {
  const auto report_of = [](Alignment alignment) {
    const Task task = lm_task();
    HPUPrecisionPlugin plugin("fp8");
    auto report = plugin.convert_modules(
        *task.model, {.replace_layers = true, .recipe = DelayedScaling::nvidia(), .alignment = alignment});
    const float loss = backward_step(task, plugin);
    return std::tuple(std::move(report), loss, gradients_of(*task.model));
  };
  const auto [any, any_loss, any_gradients] = report_of(Alignment::any);
  const auto [left, left_loss, left_gradients] = report_of(Alignment::leave);
  const auto [padded, padded_loss, padded_gradients] = report_of(Alignment::pad);
  EXPECT_EQ(any.converted.size(), 15u);
  EXPECT_THAT(any.converted[4].scheme, HasSubstr(", 40x32 unpadded"));
  EXPECT_EQ(left.converted.size(), 9u);  // 40 is no multiple of 16: gate, up, down
  EXPECT_EQ(reason(left, "layer_1.down_proj"), "sizes 32x40 are no multiples of 16");
  EXPECT_EQ(padded.converted.size(), 15u);
  for (const auto& m : padded.converted) {
    const bool odd = m.name.find("gate") != std::string::npos || m.name.find("up_") != std::string::npos ||
                     m.name.find("down") != std::string::npos;
    EXPECT_EQ(m.scheme.find(m.name.find("down") != std::string::npos ? "padded to 32x48" : "padded to 48x32") !=
                  std::string::npos,
              odd)
        << m.name << ": " << m.scheme;
  }
  EXPECT_EQ(any_loss, padded_loss);  // zeros add nothing
  EXPECT_TRUE(all_same(any_gradients, padded_gradients));
  EXPECT_NE(any_loss, left_loss);
}

TEST(ConvertTraining, WarmStartSeedsTheFirstScales) {
  const TempDir dir;
  const Task task = mlp_task();
  measure::MeasurementFile file{.num_samples = 1};
  file.modules.push_back({"fc1", {{3.0f}}, std::nullopt, measure::Amax{0.5f}});
  file.selected = {"fc1"};
  measure::write_measurements((dir / "m").string(), file);
  HPUPrecisionPlugin plugin("fp8");
  const auto report = plugin.convert_modules(
      *task.model, {.replace_layers = true, .recipe = DelayedScaling::nvidia(), .warm_start = (dir / "m").string()});
  EXPECT_EQ(report.warnings.size(), 2u);
  EXPECT_THAT(report.warnings[0], HasSubstr("'fc2'"));
  const auto states = fp8_states(*task.model);
  const auto fc1 = states[0].state->values(), fc2 = states[1].state->values();
  EXPECT_EQ(fc1.forward.scale[0], 448.0f / 3.0f);
  EXPECT_EQ(fc1.forward.scale[1], 448.0f / 0.5f);
  EXPECT_EQ(fc2.forward.tensors(), 0);
  backward_step(task, plugin);
  EXPECT_EQ(states[1].state->values().step, 1);
  const auto current = plugin.convert_modules(
      *task.model, {.replace_layers = true, .recipe = recipes::CurrentScaling{}, .warm_start = (dir / "m").string()});
  ASSERT_FALSE(current.warnings.empty());
  EXPECT_EQ(current.warnings[0], "warm start: has no effect, no module has delayed scaling");
  EXPECT_REFUSED(
      plugin.convert_modules(*task.model, {.replace_layers = true, .warm_start = (dir / "nothing_here").string()}),
      "nothing_here");
  measure::write_measurements((dir / "saved").string(), file, {"save", {}});
  EXPECT_REFUSED(plugin.convert_modules(*task.model, {.replace_layers = true, .warm_start = (dir / "saved").string()}),
                 "found those of observer 'save'");
}

TEST(ConvertTraining, ExportedAmaxesQuantizeTheModel) {
  const TempDir dir;
  const Task task = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  torch::optim::AdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(1e-3));
  train(task, plugin, optimizer, 3);
  const measure::MeasurementFile amaxes = export_amax(*task.model);
  ASSERT_EQ(amaxes.modules.size(), 3u);
  EXPECT_EQ(amaxes.num_samples, 3);
  EXPECT_EQ(amaxes.modules[0].inputs[0][0], task.x.to(at::kBFloat16).abs().max().item<float>());
  EXPECT_EQ((*amaxes.modules[2].weight)[0], task.model->named_parameters()["fc3.weight"].abs().max().item<float>());
  measure::write_measurements((dir / "train").string(), amaxes);
  EXPECT_EQ(plugin.restore(*task.model), 3);
  const torch::NoGradGuard no_grad;
  task.model->eval();
  const at::Tensor before = task.forward(task.x);
  quant::PlanOptions options{.activations = quant::ActivationScaling::static_tensor,
                             .measurements = measure::read_measurements((dir / "train").string())};
  EXPECT_EQ(quant::convert(*task.model, options).converted.size(), 3u);
  EXPECT_LT(((task.forward(task.x) - before).norm() / before.norm()).item<double>(), 0.1);
}

TEST(ConvertTraining, ATrainedModelIsSavedAfterItsConversionForInference) {
  const TempDir dir;
  const Task task = mlp_task();
  EXPECT_REFUSED(to_inference(*task.model), "[to_inference]", "no module with recorded amaxes");
  const HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  torch::optim::AdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(1e-3));
  train(task, plugin, optimizer, 3);
  EXPECT_REFUSED(quant::save(*task.model, dir / "early", "compressed-tensors"), "[save]", "fc1", "fp8 training",
                 "restore()", "te::to_inference(model)");
  EXPECT_FALSE(std::filesystem::exists(dir / "early"));
  const torch::NoGradGuard no_grad;
  task.model->eval();
  const at::Tensor before = task.forward(task.x);  // outside of a region: high precision
  EXPECT_EQ(to_inference(*task.model).converted.size(), 3u);
  EXPECT_LT(((task.forward(task.x) - before).norm() / before.norm()).item<double>(), 0.1);
  quant::save(*task.model, dir / "model", "compressed-tensors");
  const io::SafetensorsFile file(dir / "model/model.safetensors");
  ASSERT_NE(file.find("fc1.weight"), nullptr);
  EXPECT_EQ(file.find("fc1.weight")->dtype, io::DType::F8_E4M3);
  EXPECT_NE(file.find("fc1.input_scale"), nullptr) << "static, of the amaxes of training";
}

// Training knows the linear layers' amaxes only: the convolutions stay in high precision, and the report says why.
TEST(ConvertTraining, ExportedAmaxesQuantizeAModelWithConvolutions) {
  const TempDir dir;
  const Task task = resnet_task();
  const HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  torch::optim::AdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(1e-3));
  train(task, plugin, optimizer, 2);
  measure::write_measurements((dir / "train").string(), export_amax(*task.model));
  plugin.restore(*task.model);
  const torch::NoGradGuard no_grad;
  task.model->eval();
  const at::Tensor before = task.forward(task.x);
  quant::PlanOptions options{.activations = quant::ActivationScaling::static_tensor,
                             .measurements = measure::read_measurements((dir / "train").string())};
  const auto report = quant::convert(*task.model, options);
  EXPECT_EQ(report.converted.size(), 1u);
  int convolutions = 0;
  for (const auto& item : task.model->named_modules()) {
    if (dynamic_cast<const torch::nn::Conv2dImpl*>(item.value().get()) == nullptr) continue;
    ++convolutions;
    EXPECT_EQ(reason(report, item.key()), "no measurement of its input, which was not to be measured") << item.key();
  }
  EXPECT_GT(convolutions, 0);
  EXPECT_LT(((task.forward(task.x) - before).norm() / before.norm()).item<double>(), 0.1);
}

// A layer that stayed in high precision, or never ran.
TEST(ConvertTraining, ExportedAmaxesLeaveOutWhatWasNotTrainedInFp8) {
  const Task task = mlp_task();
  HPUPrecisionPlugin plugin("fp8");
  plugin.convert_modules(*task.model, {.replace_layers = true, .recipe = DelayedScaling::nvidia(), .block = {"fc2"}});
  backward_step(task, plugin);
  quant::PlanOptions options{.activations = quant::ActivationScaling::static_tensor,
                             .measurements = export_amax(*task.model)};
  plugin.restore(*task.model);
  const auto report = quant::convert(*task.model, options);
  EXPECT_EQ(report.converted.size(), 2u);
  EXPECT_EQ(reason(report, "fc2"), "no measurement of its input, which was not to be measured");
}

TEST(ConvertTraining, RefusesWhatItCannotConvert) {
  HPUPrecisionPlugin plugin("fp8");
  torch::nn::Sequential on_cpu(torch::nn::Linear(16, 16));
  EXPECT_REFUSED(plugin.convert_modules(*on_cpu, {.replace_layers = true}), "'0'", "on hpu", "cpu");
  const Task task = mlp_task();
  quant::convert(*task.model, quant::PlanOptions{});
  EXPECT_REFUSED(plugin.convert_modules(*task.model, {.replace_layers = true}), "'fc1'", "another handler");
  torch::nn::Embedding no_linear = hpu(torch::nn::Embedding(4, 16));
  torch::nn::Sequential embedding(no_linear);
  const auto none = plugin.convert_modules(*embedding, {.replace_layers = true});
  EXPECT_THAT(none.warnings, ElementsAre(HasSubstr("no module was selected")));
}

TEST(ConvertTraining, AgainKeepsTheState) {
  const Task task = mlp_task();
  HPUPrecisionPlugin plugin = converted(task, DelayedScaling::nvidia());
  backward_step(task, plugin);
  const float scale = fp8_states(*task.model)[0].state->values().forward.scale[0];
  EXPECT_NE(scale, 1.0f);
  plugin.convert_modules(*task.model, {.replace_layers = true, .recipe = DelayedScaling::nvidia()});
  EXPECT_EQ(fp8_states(*task.model)[0].state->values().forward.scale[0], scale);
  EXPECT_EQ(tags(*task.model), 3);
}

}  // namespace
}  // namespace fp8::te
