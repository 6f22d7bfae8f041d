// SPDX-License-Identifier: Apache-2.0
// A kind of modules of one's own: a module, its handler and a row. From then on configs select it by its class, it is
// measured and quantized, and descriptions say its name.

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/handlers/node_handler.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/modules/op_modules.h"
#include "quant/plan/find_node.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"
#include "support/threads.h"

namespace fp8::quant {
namespace {

at::Tensor scaled_sum(const at::Tensor& a, const at::Tensor& b) { return a + b * 2; }

/// y = a + 2 b.
struct ScaledAddImpl : runtime::OpModule {
  ScaledAddImpl() : OpModule("ScaledAdd") {}
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    return handled({a, b}, [&] { return std::vector<at::Tensor>{scaled_sum(a, b)}; })[0];
  }
};
TORCH_MODULE(ScaledAdd);

struct Fp8ScaledAddHandler final : NodeHandler {
  using NodeHandler::NodeHandler;
  std::vector<at::Tensor> tensors(const runtime::TensorsCall& call) override {
    return {scaled_sum(input(0).through_fp8(call.inputs[0]), input(1).through_fp8(call.inputs[1]))};
  }
};

NodeKind scaled_add() {
  return {.kind = {.name = "scaled_add", .classes = {"ScaledAdd"}, .info = {.inputs = 2, .outputs = 1}},
          .handler = {.inputs = {DynamicScale::row, DynamicScale::row}, .make = make_handler<Fp8ScaledAddHandler>}};
}

struct ScaledModelImpl : torch::nn::Module {
  ScaledAdd residual = register_module("residual", ScaledAdd());
  torch::nn::Linear proj = register_module("proj", torch::nn::Linear(torch::nn::LinearOptions(8, 4).bias(false)));
  ScaledModelImpl() { to(test::kHpu); }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) { return proj(residual(a, b)); }
  std::vector<float> input_scales() const {
    return dynamic_cast<const NodeHandler&>(*residual->handler()).scheme().input_scale_inv;
  }
};
TORCH_MODULE(ScaledModel);

/// The largest magnitudes are 3 and 12.
struct Operands {
  at::Tensor a = test::hpu(torch::linspace(-3.0, 2.5, 32).view({4, 8}));
  at::Tensor b = test::hpu(torch::linspace(-5.0, 12.0, 32).view({4, 8}));
};

/// x in E4M3 and back, by a scale that is a power of two.
at::Tensor cast_by_hand(const at::Tensor& x, float scale_inv) {
  const at::Tensor codes = (x.cpu() / scale_inv).to(at::kFloat8_e4m3fn);
  return test::hpu(codes.to(at::kFloat) * scale_inv);
}

configs::QuantConfig config_with(const io::Json& keys) {
  io::Json json = {{"hp_dtype", "fp32"}, {"scale_method", "unit_scale"}, {"dump_stats_path", ""}};
  json.update(keys);
  return configs::parse_quant_config(json, "q.json");
}

configs::QuantConfig measured_config(const test::TempDir& dir) {
  return config_with({{"scale_method", "maxabs_pow2"},
                      {"dump_stats_path", (dir / "stats").string()},
                      {"allowlist", {{"types", {"ScaledAdd"}}}}});
}

measure::MeasurementFile measure_scaled(ScaledModel& model, const test::TempDir& dir) {
  const auto session = measure::CalibrationSession::attach(
      *model, measure::calibration_options(measured_config(dir), recipes::Dialect::gaudi2, {}).options);
  const Operands x;
  model->forward(x.a, x.b);
  model->forward(x.a * 0.5, x.b * 0.5);
  session->finalize();
  return measure::read_measurements(measure::StatsName{(dir / "stats").string(), "maxabs"});
}

ConversionReport convert_scaled(const ScaledModel& model, const test::TempDir& dir) {
  return convert_with_config(*model, measured_config(dir), recipes::Dialect::gaudi2);
}

std::string reason_for(const std::string& name, const Plan& plan) {
  for (const SkippedModule& m : plan.skipped)
    if (m.name == name) return m.reason;
  return "";
}

using AddingAKind = InFolder;

TEST_F(AddingAKind, IsMeasuredAndQuantizedFromTheMeasurement) {
  const NodeKindRegistration sample(scaled_add());
  ScaledModel model;
  const auto file = measure_scaled(model, folder);
  ASSERT_EQ(file.modules.size(), 1u);
  EXPECT_EQ(file.modules[0].module, "residual");
  EXPECT_EQ(file.modules[0].inputs, (std::vector<measure::Amax>{{3.0f}, {12.0f}}));
  EXPECT_FALSE(file.modules[0].outputs.has_value()) << "configs leave outputs out";

  const auto report = convert_scaled(model, folder);
  ASSERT_EQ(report.converted.size(), 1u);
  EXPECT_EQ(report.converted[0].name, "residual");
  EXPECT_EQ(report.converted[0].type, "ScaledAdd");
  EXPECT_EQ(report.converted[0].scheme, "E4M3 scaled_add, static scales, gaudi2");
  const std::vector<float> scales = {0x1p-4f, 0x1p-2f};  // 3 / 60 and 12 / 60, up to a power of two
  EXPECT_EQ(model->input_scales(), scales);

  const Operands x;
  const at::Tensor y = model->residual(x.a, x.b);
  EXPECT_TRUE(test::same_bits(y, scaled_sum(cast_by_hand(x.a, scales[0]), cast_by_hand(x.b, scales[1]))));
  EXPECT_FALSE(test::same_bits(y, scaled_sum(x.a, x.b)));
  EXPECT_THAT(describe(*model), HasSubstr("[E4M3 scaled_add, static scales, gaudi2]"));

  ScaledModel stored;
  convert_scaled(stored, folder);  // by the scale file that the first one wrote
  EXPECT_EQ(stored->input_scales(), scales);

  set_scale(*model, "residual", ScaleOf::input, 1, 0.5f);
  EXPECT_TRUE(
      test::same_bits(model->residual(x.a, x.b), scaled_sum(cast_by_hand(x.a, scales[0]), cast_by_hand(x.b, 0.5f))));
}

TEST_F(AddingAKind, WhatIsShownAndHowScalesAreMadeIsItsOwn) {
  NodeKind row = scaled_add();
  row.kind.info.inputs = 1;
  row.show = [](const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs) {
    return measure::Shown{{inputs[0]}, outputs};
  };
  row.scales = [](NodeScheme& scheme, const NodeMeasurement& from) {
    scheme.input_scale_inv = {from.input(0), 4 * from.input(0)};
  };
  const NodeKindRegistration sample(row);
  ScaledModel model;
  EXPECT_EQ(measure_scaled(model, folder).modules.at(0).inputs, (std::vector<measure::Amax>{{3.0f}}));
  convert_scaled(model, folder);
  EXPECT_EQ(model->input_scales(), (std::vector<float>{0x1p-4f, 0x1p-2f}));
}

TEST_F(AddingAKind, AsManyTensorsAreShownAsItsRowSays) {
  NodeKind row = scaled_add();
  row.kind.info.inputs = 1;
  const NodeKindRegistration sample(row);
  ScaledModel model;
  EXPECT_REFUSED(measure_scaled(model, folder),
                 "a module of kind scaled_add: expected 1 inputs and 1 outputs, found 2 and 1");
}

TEST_F(AddingAKind, ListsOfAConfigSelectItByItsClass) {
  const NodeKindRegistration sample(scaled_add());
  const ScaledModel model;
  const auto plan_with = [&](const io::Json& keys) {
    return plan_with_config(*model, config_with(keys), recipes::Dialect::gaudi2);
  };
  const Plan allowed = plan_with({{"allowlist", {{"types", {"ScaledAdd"}}}}});
  ASSERT_NE(test::find_node(allowed, "residual"), nullptr);
  EXPECT_EQ(test::find_node(allowed, "residual")->scheme.kind, sample.kind());
  EXPECT_EQ(allowed.find("proj"), nullptr);

  const Plan blocked = plan_with({{"blocklist", {{"types", {"ScaledAdd"}}}}});
  EXPECT_EQ(test::find_node(blocked, "residual"), nullptr);
  EXPECT_THAT(reason_for("residual", blocked), HasSubstr("not selected by allowlist and blocklist"));
  EXPECT_NE(blocked.find("proj"), nullptr);

  const Plan dynamic = plan_with({{"scale_method", "maxabs_pcs_pow2"}, {"dynamic_quantization", true}});
  EXPECT_EQ(reason_for("residual", dynamic), "type ScaledAdd has no dynamic scales (dynamic_quantization)");
  const Plan own = plan_for(measure::weight_modules(*model), measure::op_nodes(*model), {});
  EXPECT_EQ(reason_for("residual", own), "type ScaledAdd is quantized where a QUANT_CONFIG selects it");
}

TEST_F(AddingAKind, DynamicScalesAreThoseOfItsRow) {
  NodeKind row = scaled_add();
  row.kind.dynamic = true;
  row.handler.inputs = {DynamicScale::row, DynamicScale::tensor};
  const NodeKindRegistration sample(row);
  NodeScheme scheme;
  scheme.kind = sample.kind();
  scheme.dynamic = true;
  ScaledAdd module;
  module->slot()->handler = make_node_handler(scheme);
  // A row of small values comes through only with a scale of its own.
  const at::Tensor small = torch::tensor({448.0f, 1.0f}).mul(0x1p-20f), large = torch::tensor({448.0f, 1.0f});
  const at::Tensor x = test::hpu(torch::stack({large, small})), zero = test::hpu(torch::zeros({2, 2}));
  EXPECT_TRUE(test::same_bits(module(x, zero), x));
  EXPECT_TRUE(test::same_bits(module(zero, x).cpu()[1], torch::zeros({2})));
}

TEST_F(AddingAKind, IsKnownWhileItsRegistrationLives) {
  const ScaledModel model;
  const auto classes = configs::module_types().size();
  NodeScheme scheme;
  {
    const NodeKindRegistration sample(scaled_add());
    scheme.kind = sample.kind();
    EXPECT_STREQ(configs::name_of(sample.kind()), "scaled_add");
    EXPECT_EQ(configs::info_of(sample.kind()).inputs, 2);
    EXPECT_EQ(configs::module_types().size(), classes + 1);
    EXPECT_TRUE(configs::is_of_kind("ScaledAdd", sample.kind()));
    EXPECT_REFUSED(make_node_handler(scheme), "scaled_add: expected 2 input and 0 output scales, found 0 and 0");
  }
  EXPECT_STREQ(configs::name_of(scheme.kind), "unknown");
  EXPECT_EQ(configs::find_kind(scheme.kind), nullptr);
  EXPECT_EQ(configs::find_module_type("ScaledAdd"), nullptr);
  EXPECT_EQ(configs::module_types().size(), classes);
  EXPECT_REFUSED(configs::info_of(scheme.kind), "its registration has ended");
  EXPECT_REFUSED(make_node_handler(scheme), "no handler for modules of kind unknown");
  EXPECT_EQ(reason_for("residual", plan_with_config(*model, config_with(io::Json::object()), recipes::Dialect::gaudi2)),
            "type ScaledAdd is not quantized");
  const NodeKindRegistration again(scaled_add());
  EXPECT_NE(again.kind(), scheme.kind) << "no number is given twice";
}

TEST_F(AddingAKind, RowsThatCannotStandAreRefused) {
  const NodeKindRegistration sample(scaled_add());
  const auto refused = [](const std::string& why, const std::string& name, const std::string& class_name) {
    NodeKind row = scaled_add();
    row.kind.name = name;
    row.kind.classes = {class_name};
    return test::throws_with({why}, [&] { const NodeKindRegistration bad(row); });
  };
  for (const char* name : {"", "Mine", "a b", "a-b"}) EXPECT_TRUE(refused("found the name", name, "Mine")) << name;
  for (const char* name : {"", "a.Mine", "a b"}) EXPECT_TRUE(refused("found the class", "mine", name)) << name;
  for (const char* name : {"scaled_add", "linear"}) EXPECT_TRUE(refused("the name is taken", name, "Mine")) << name;
  for (const char* name : {"ScaledAdd", "Matmul"}) EXPECT_TRUE(refused("is taken", "mine", name)) << name;

  const auto without = [](const auto& change) {
    NodeKind row = scaled_add();
    row.kind.name = "mine";
    row.kind.classes = {"Mine"};
    change(row.kind, row.handler);
    return test::error_of([&] { const NodeKindRegistration bad(row); });
  };
  const std::string mine = "module kind 'mine': ";
  EXPECT_EQ(without([](auto& kind, auto&) { kind.info.weight = true; }),
            mine + "found one with a weight, allowed: without");
  EXPECT_EQ(without([](auto& kind, auto&) { kind.info.inputs = 0; }), mine + "expected an input or more, found 0");
  EXPECT_EQ(without([](auto& kind, auto&) { kind.classes.clear(); }), mine + "expected a class or more, found none");
  EXPECT_EQ(without([](auto&, auto& handler) { handler.make = {}; }), mine + "handler.make is missing");
  EXPECT_EQ(configs::find_module_type("Mine"), nullptr);
}

TEST_F(AddingAKind, RegistrationIsThreadSafe) {
  const auto classes = configs::module_types().size();
  test::on_threads(8, [](int i) {
    NodeKind row = scaled_add();
    row.kind.name = "mine_" + std::to_string(i);
    row.kind.classes = {"Mine" + std::to_string(i)};
    for (int k = 0; k < 100; ++k) {
      const NodeKindRegistration mine(row);
      EXPECT_TRUE(configs::is_of_kind(row.kind.classes[0], mine.kind()));
      EXPECT_EQ(configs::name_of(mine.kind()), row.kind.name);
    }
  });
  EXPECT_EQ(configs::module_types().size(), classes);
}

}  // namespace
}  // namespace fp8::quant
