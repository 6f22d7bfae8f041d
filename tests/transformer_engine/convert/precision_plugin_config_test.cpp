// SPDX-License-Identifier: Apache-2.0
// Where a conversion takes its QUANT_CONFIG from: the environment, a path, JSON; which one wins, and which mode.
#include <ATen/autocast_mode.h>

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/transformer_engine/convert/precision_plugin.h"
#include "support/enum_names.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::te {
namespace {

/// QUANT_CONFIG=value while it lives.
struct Environment {
  explicit Environment(const std::string& value) { setenv("QUANT_CONFIG", value.c_str(), 1); }
  ~Environment() { unsetenv("QUANT_CONFIG"); }
};

io::Json config(const test::TempDir& dir, const char* mode, const char* method = "maxabs_hw") {
  return {{"mode", mode},
          {"scale_method", method},
          {"blocklist", {{"names", {"lm_head"}}}},
          {"dump_stats_path", (dir / "stats/inc_output").string()}};
}

std::string write(const test::TempDir& dir, const io::Json& json) {
  io::write_json(dir / "quant.json", json);
  return (dir / "quant.json").string();
}

ConvertOptions inference(QuantSource source) {
  ConvertOptions o{.inference = true, .quant = std::move(source)};
  o.dump_stats_path = "/nowhere/inc_output";  // must not be used: every config here names its own
  return o;
}

const quant::Scheme& scheme_of(const at::Tensor& weight) {
  return dynamic_cast<const quant::Fp8Handler&>(*runtime::find_tag(weight)->handler).scheme();
}

using PrecisionPluginConfig = InFolder;

TEST_F(PrecisionPluginConfig, TheEnvironmentAppliesWithItsModeOverruled) {
  HPUPrecisionPlugin plugin("fp8");
  const torch::NoGradGuard no_grad;
  auto model = test::tiny_lm();
  {
    const Environment environment(write(folder, config(folder, "QUANTIZE")));  // measured nevertheless: quant = false
    const auto report = plugin.convert_modules(*model, inference(false));
    EXPECT_EQ(report.converted.size(), 15u);  // the embedding too
    EXPECT_EQ(report.skipped.back().name, "lm_head");
    EXPECT_EQ(report.skipped.back().reason, "not selected by allowlist and blocklist");
    model(test::token_ids());
    measure::finalize_calibration(*model);
  }
  const auto measured = measure::read_measurements((folder / "stats/inc_output").string());
  EXPECT_FALSE(measured.modules.at(0).outputs.has_value());                 // measure_exclude is OUTPUT by default
  const Environment environment(write(folder, config(folder, "MEASURE")));  // quantized nevertheless
  EXPECT_EQ(plugin.convert_modules(*model, inference(true)).converted.size(), 14u);
  EXPECT_EQ(scheme_of(model->layers[0]->q_proj->weight).convention, quant::Convention::inc);
}

TEST_F(PrecisionPluginConfig, APathOrJsonBringsItsMode) {
  HPUPrecisionPlugin plugin("fp8");
  const torch::NoGradGuard no_grad;
  auto a = test::tiny_lm(), b = test::tiny_lm();
  EXPECT_TRUE(plugin.convert_modules(*a, inference(config(folder, "NONE"))).converted.empty());
  EXPECT_EQ(measure::CalibrationSession::of(*a), nullptr);
  plugin.convert_modules(*a, inference(write(folder, config(folder, "MEASURE"))));
  a(test::token_ids());
  measure::finalize_calibration(*a);
  plugin.convert_modules(*a, inference(config(folder, "QUANTIZE", "maxabs_pow2")));
  plugin.convert_modules(*b,
                         inference(std::filesystem::path(write(folder, config(folder, "QUANTIZE", "maxabs_pow2")))));
  for (const auto& m : measure::weight_modules(*a)) {
    const bool quantized = m.type == "Linear" && m.name != "lm_head";
    EXPECT_TRUE(!quantized || m.weight.scalar_type() == at::kFloat8_e4m3fn) << m.name;
  }
  EXPECT_TRUE(test::same_bits(a(test::token_ids()), b(test::token_ids())));
}

TEST_F(PrecisionPluginConfig, AnExplicitConfigWinsWithAWarning) {
  auto model = test::tiny_lm();
  const Environment environment("/nowhere/else.json");
  test::Warnings warnings;
  HPUPrecisionPlugin("fp8").convert_modules(*model, inference(config(folder, "QUANTIZE", "unit_scale")));
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("wins over QUANT_CONFIG=/nowhere/else.json")));
  EXPECT_EQ(scheme_of(model->layers[0]->q_proj->weight).input_scale_inv, 1.0f);
}

/// "/logs, environment"
std::string flag(const char* name) {
  const io::Flag flag = io::RuntimeFlags::from_env()[name];
  return flag.value + ", " + flag.source_text();
}

TEST_F(PrecisionPluginConfig, FlagsSayWhichConfigTheLastConversionTook) {
  const std::string prefix = (folder / "stats/inc_output").string(), path = write(folder, config(folder, "NONE"));
  setenv("HABANA_LOGS", "/logs", 1);
  HPUPrecisionPlugin plugin("fp8");
  auto model = test::tiny_lm();
  {
    const Environment environment(path);
    plugin.convert_modules(*model, inference(false));
    measure::CalibrationSession::of(*model)->discard();
    EXPECT_EQ(flag("QUANT_CONFIG"), path + ", environment");
    EXPECT_EQ(flag("HABANA_LOGS"), prefix + ", config file: " + path);
    plugin.convert_modules(*model, inference(config(folder, "NONE")));
    EXPECT_EQ(flag("QUANT_CONFIG"), "quant, call: convert_modules()");
    EXPECT_EQ(flag("HABANA_LOGS"), prefix + ", call: quant");
  }
  plugin.convert_modules(*model, inference(false));  // to dump_stats_path
  measure::CalibrationSession::of(*model)->discard();
  EXPECT_EQ(flag("QUANT_CONFIG"), "none, default");
  EXPECT_EQ(flag("HABANA_LOGS"), "/nowhere/inc_output, call: convert_modules()");
  unsetenv("HABANA_LOGS");
}

TEST_F(PrecisionPluginConfig, FixedScalesNeedNoFiles) {
  auto model = test::tiny_lm();
  const auto report = HPUPrecisionPlugin("fp8").convert_modules(
      *model, inference(config(folder, "QUANTIZE", "hw_aligned_single_scale")));
  EXPECT_EQ(report.converted.size(), 14u);
  EXPECT_FALSE(std::filesystem::exists(folder / "stats"));
  EXPECT_EQ(scheme_of(model->layers[0]->q_proj->weight).input_scale_inv, 128.0f);  // gaudi3's first
}

TEST_F(PrecisionPluginConfig, EntriesThatMatchNothingAreReported) {
  auto model = test::tiny_lm();
  auto json = config(folder, "MEASURE");
  json["blocklist"]["names"].push_back("no_such_module");
  const auto report = HPUPrecisionPlugin("fp8").convert_modules(*model, inference(json));
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("no_such_module")));
}

TEST_F(PrecisionPluginConfig, BadConfigsAreNamed) {
  auto model = test::tiny_lm();
  HPUPrecisionPlugin plugin("fp8");
  EXPECT_REFUSED(plugin.convert_modules(*model, inference((folder / "missing.json").string())), "missing.json");
  EXPECT_REFUSED(plugin.convert_modules(*model, inference(config(folder, "MEASUR"))), "'mode'", "MEASUR", "QUANTIZE");
  const Environment environment((folder / "missing.json").string());
  EXPECT_REFUSED(plugin.convert_modules(*model, inference(true)), "missing.json");
  for (const auto& m : measure::weight_modules(*model)) EXPECT_EQ(m.weight.scalar_type(), at::kFloat);
}

// What is no bool, path or dictionary, in the vendor's words.
TEST_F(PrecisionPluginConfig, QuantIsABoolAPathOrADictionary) {
  auto model = test::tiny_lm();
  HPUPrecisionPlugin plugin("fp8");
  const char* nothing = nullptr;
  const std::pair<QuantSource, const char*> wrong[] = {
      {nothing, "Got null"},       {io::Json(nullptr), "Got null"}, {io::Json::array({1}), "Got array"},
      {io::Json(3), "Got number"}, {"", "Got an empty path"},       {io::Json(""), "Got an empty path"}};
  for (const auto& [source, got] : wrong)
    EXPECT_REFUSED(plugin.convert_modules(*model, inference(source)),
                   "`quant` must be either a bool, file path or a dictionary.", got);
  EXPECT_TRUE(std::holds_alternative<bool>(QuantSource(io::Json(true)).value()));
  EXPECT_TRUE(std::holds_alternative<std::filesystem::path>(QuantSource(io::Json("a.json")).value()));
  EXPECT_REFUSED(plugin.convert_modules(*model, inference(config(folder, "QUANTIZE"))),
                 "Failed to load file " + (folder / "stats/inc_output_hooks_maxabs.json").string());
}

TEST_F(PrecisionPluginConfig, ListsAndPlansWithAConfig) {
  HPUPrecisionPlugin plugin("fp8");
  auto model = test::tiny_lm();
  ConvertOptions o = inference(config(folder, "QUANTIZE", "unit_scale"));
  o.block = {"^layer_1"};
  o.plan_only = true;
  EXPECT_EQ(plugin.convert_modules(*model, o).converted.size(), 7u);
  EXPECT_EQ(runtime::find_tag(model->layers[0]->q_proj->weight), nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder / "stats"));
  o.plan_only = false;
  EXPECT_EQ(plugin.convert_modules(*model, o).converted.size(), 7u);
  EXPECT_EQ(model->layers[0]->q_proj->weight.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(model->layers[1]->q_proj->weight.scalar_type(), at::kFloat);
}

// Which operations each backend casts, against LibTorch's own autocast on the CPU.

struct Dtypes {
  at::ScalarType mm, quotient;
  bool operator==(const Dtypes&) const = default;
};

/// Of a product of f32, and of a quotient of bf16, which only the device's list runs in f32.
Dtypes of(const at::Tensor& x) {
  const at::Tensor half = x.to(at::kBFloat16);
  return {at::mm(x, x).scalar_type(), at::div(half, half).scalar_type()};
}

constexpr Dtypes kNone = {at::kFloat, at::kBFloat16}, kCpuRegion = {at::kBFloat16, at::kBFloat16},
                 kHpuRegion = {at::kBFloat16, at::kFloat};

TEST(HalfPrecision, EachBackendCastsItsOwnDevicesOperations) {
  const at::Tensor host = at::ones({2, 2}), device = hpu(host);
  {
    const HalfPrecisionContext region(true);
    EXPECT_EQ(of(host), kNone);
    EXPECT_EQ(of(device), kHpuRegion);
  }
  {
    const HalfPrecisionContext region(true, HalfPrecisionBackend::cpu_amp);
    EXPECT_EQ(of(host), kCpuRegion);
    EXPECT_EQ(of(device), kNone);
  }
  for (const auto& row : enum_names<HalfPrecisionBackend>) {
    const HalfPrecisionContext region(false, row.value);
    EXPECT_EQ(of(host), kNone);
    EXPECT_EQ(of(device), kNone);
  }
}

TEST(HalfPrecision, TheStateBeforeComesBack) {
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  try {
    const HalfPrecisionContext outer(true, HalfPrecisionBackend::cpu_amp);
    { const HalfPrecisionContext inner(true, HalfPrecisionBackend::cpu_amp); }
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}

/// LibTorch keeps what it cast of a weight: the next step must not compute with the one before.
TEST(HalfPrecision, AStepOnTheCpuSeesTheNewWeights) {
  const at::Tensor w = at::full({2, 2}, 3.0f).requires_grad_(), x = at::eye(2);
  const auto step = [&] {
    const HalfPrecisionContext region(true, HalfPrecisionBackend::cpu_amp);
    return at::mm(x, w).to(at::kFloat).detach().clone();
  };
  EXPECT_TRUE(at::equal(step(), at::full({2, 2}, 3.0f)));
  test::within(at::NoGradGuard(), [&] { w.mul_(2); });
  EXPECT_TRUE(at::equal(step(), at::full({2, 2}, 6.0f)));
}

TEST(HalfPrecision, Names) { test::check_names<HalfPrecisionBackend>(); }

// The plugin for ZeRO engines with an engine that notes what it is told: deferred conversion, who runs backward and
// step, and what is refused.

/// Keeps the model's parameters f32 and steps with plain SGD, as an engine without ZeRO would.
class NotingEngine final : public ZeroEngine {
 public:
  explicit NotingEngine(test::TinyLm model) : model_(std::move(model)) {}
  torch::nn::Module& module() override { return *model_; }
  void backward(const at::Tensor& loss) override {
    calls += "backward ";
    loss.backward();
  }
  void step() override {
    calls += "step ";
    const torch::NoGradGuard no_grad;
    for (auto& p : model_->parameters())
      if (p.grad().defined()) p.sub_(p.grad(), 0.1);
    model_->zero_grad();
  }
  std::string calls;

 private:
  test::TinyLm model_;
};

bool converted(const test::TinyLm& model) { return training_handler(model->lm_head->weight) != nullptr; }

TEST(DeepSpeedPlugin, ConvertsWhenTheEngineIsAttached) {
  auto model = test::tiny_lm();
  model->train();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  const auto early =
      plugin.convert_modules(*model, {.replace_layers = true, .recipe = recipes::DelayedScaling::nvidia()});
  EXPECT_TRUE(early.converted.empty());
  EXPECT_THAT(early.warnings, ElementsAre(HasSubstr("deferred")));
  EXPECT_FALSE(converted(model));
  EXPECT_EQ(recipes::describe(plugin.recipe()), recipes::describe(recipes::DelayedScaling::nvidia()));
  EXPECT_EQ(plugin.convert_modules(*model, {.replace_layers = true, .plan_only = true}).converted.size(), 15u);
  EXPECT_FALSE(converted(model));

  NotingEngine engine(model);
  EXPECT_EQ(plugin.attach(engine).converted.size(), 15u);
  EXPECT_TRUE(converted(model));
  EXPECT_REFUSED(plugin.attach(engine), "attached already", "detach");
  plugin.detach();
  EXPECT_FALSE(plugin.attached());
}

TEST(DeepSpeedPlugin, DefersInferenceToo) {
  auto model = test::tiny_lm();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  EXPECT_TRUE(plugin.convert_modules(*model, {.inference = true, .quant = "/no/such/config.json"}).converted.empty());
  NotingEngine engine(model);
  EXPECT_REFUSED(plugin.attach(engine), "/no/such/config.json");
  EXPECT_FALSE(plugin.attached());
}

TEST(DeepSpeedPlugin, RefusesABadRecipeAtOnce) {
  auto model = test::tiny_lm();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  recipes::DelayedScaling wrong{.interval = 0};
  EXPECT_REFUSED(plugin.convert_modules(*model, {.replace_layers = true, .recipe = wrong}), "interval", "0");
}

// The parent insists on precision fp8; this one takes any, as the vendor's does.
TEST(DeepSpeedPlugin, TakesAnyPrecision) {
  auto model = test::tiny_lm();
  HPUDeepSpeedPrecisionPlugin plugin("bf16-mixed");
  NotingEngine engine(model);
  plugin.convert_modules(*model, {.replace_layers = true});
  EXPECT_EQ(plugin.attach(engine).converted.size(), 15u);
  EXPECT_REFUSED(HPUPrecisionPlugin("bf16-mixed").convert_modules(*model, {.replace_layers = true}), "precision=`fp8`");
}

TEST(DeepSpeedPlugin, TheEngineRunsBackwardAndStep) {
  auto model = test::tiny_lm();
  model->train();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  plugin.convert_modules(*model, {.replace_layers = true, .recipe = recipes::DelayedScaling::nvidia()});
  NotingEngine engine(model);
  plugin.attach(engine);
  torch::optim::SGD optimizer(model->parameters(), 1e9);  // only looked at
  const at::Tensor ids = test::token_ids(4, 9);
  std::vector<float> losses;
  for (int step = 0; step < 30; ++step) {
    plugin.optimizer_step(optimizer, [&] {
      at::Tensor loss;
      {
        const auto region = plugin.forward_context();
        const at::Tensor logits = model(ids.narrow(1, 0, 8));
        EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
        loss = torch::nn::functional::cross_entropy(logits.view({-1, 48}).to(at::kFloat),
                                                    ids.narrow(1, 1, 8).reshape({-1}));
      }
      plugin.backward(loss);
      losses.push_back(loss.item<float>());
      return loss;
    });
    if (step == 0) {
      EXPECT_EQ(engine.calls, "backward step ");
    }
  }
  EXPECT_LT(losses.back(), losses.front() - 0.5f);
  const at::Tensor before = model->lm_head->weight.detach().clone();
  model->lm_head->weight.mutable_grad() = torch::full_like(before, 1e6);
  plugin.clip_gradients(optimizer, 1.0);
  EXPECT_EQ(model->lm_head->weight.grad().abs().max().item<float>(), 1e6f);
}

TEST(DeepSpeedPlugin, RefusesWhatEnginesCannot) {
  auto model = test::tiny_lm();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  torch::optim::SGD sgd(model->parameters(), 0.1);
  torch::optim::LBFGS lbfgs(model->parameters());
  bool ran = false;
  const auto closure = [&] {
    ran = true;
    return at::Tensor();
  };
  EXPECT_REFUSED(plugin.optimizer_step(sgd, closure), "optimizer_step", "no engine");
  EXPECT_REFUSED(plugin.backward(torch::ones({})), "backward", "no engine");
  NotingEngine engine(model);
  plugin.attach(engine);
  EXPECT_REFUSED(plugin.optimizer_step(lbfgs, closure), "DeepSpeed and the LBFGS optimizer are not compatible.");
  EXPECT_FALSE(ran);
  EXPECT_REFUSED(plugin.optimizer_step(sgd, closure), "undefined loss",
                 "Skipping backward by returning `None` from your `training_step` is not supported by `DeepSpeed`");
  EXPECT_REFUSED(plugin.backward(at::Tensor()), "undefined loss");
  EXPECT_EQ(engine.calls, "");
  plugin.optimizer_step(sgd, closure, /*manual_optimization=*/true);
  EXPECT_EQ(engine.calls, "step ");
}

TEST(DeepSpeedPlugin, WarnsOnceOfABackwardThatIsNotCalled) {
  struct Own {
    bool called = false;
    void backward(const at::Tensor&) { called = true; }
  } own;
  struct Plain {
  } plain;
  const test::Warnings warnings;
  const auto told = [&] {
    return std::count_if(warnings.texts.begin(), warnings.texts.end(), [](const std::string& text) {
      return text.find("You have overridden the `backward` hook") != std::string::npos;
    });
  };
  auto model = test::tiny_lm();
  HPUDeepSpeedPrecisionPlugin plugin("fp8");
  NotingEngine engine(model);
  plugin.attach(engine);
  const at::Tensor loss = torch::ones({}, test::on_hpu()).requires_grad_();
  plugin.backward(loss, plain);
  EXPECT_EQ(told(), 0);
  plugin.backward(loss, own);
  plugin.backward(loss, own);
  EXPECT_EQ(told(), 1);
  EXPECT_FALSE(own.called);
  EXPECT_EQ(engine.calls, "backward backward backward ");
}

}  // namespace
}  // namespace fp8::te
