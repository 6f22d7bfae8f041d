// SPDX-License-Identifier: Apache-2.0
// Scales under which most of a tensor becomes zero are warned of: in memory, in checkpoints, at the first call.
#include <gmock/gmock.h>

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/scheme/scheme.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

using test::hpu;
using ::testing::AllOf;
using ::testing::HasSubstr;

configs::QuantConfig fixed_config(const std::string& method) {
  return configs::parse_quant_config(
      io::parse_json(R"({"hp_dtype": "fp32", "scale_method": ")" + method + "\"}", "q.json"), "q.json");
}

struct NetImpl : torch::nn::Module {
  torch::nn::Linear small = register_module("small", torch::nn::Linear(torch::nn::LinearOptions(64, 32).bias(false)));
  torch::nn::Linear large = register_module("large", torch::nn::Linear(torch::nn::LinearOptions(64, 32).bias(false)));
  NetImpl() {
    torch::manual_seed(3);
    small->weight.data().copy_(torch::randn({32, 64}) * 0.05);
    large->weight.data().copy_(torch::randn({32, 64}) * 50);
    to(test::kHpu);
  }
};
TORCH_MODULE(Net);

struct Warnings final : c10::WarningHandler {
  std::vector<std::string> texts;
  c10::WarningUtils::WarningHandlerGuard guard{this};
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
};

std::string line_of(const std::vector<std::string>& lines, const std::string& text) {
  for (const auto& line : lines) {
    if (line.find(text) != std::string::npos) return line;
  }
  return "";
}

TEST(Underflow, CountsWhatBecomesZeroAndWasNot) {
  // E4M3: 2^-9 is the smallest code, 2^-10 a tie that goes to zero.
  const float values[] = {0.0f, -0.0f, 0x1p-10f, -0x1p-10f, 0x1.1p-10f, 1.0f, 0x1p-30f};
  const auto counted = underflow_of_scale(values, recipes::FloatType::F32, 7, 1.0f, recipes::Format::E4M3);
  EXPECT_EQ(counted.lost, 3);
  EXPECT_EQ(counted.values, 5);
  EXPECT_TRUE(counted.most());
  EXPECT_EQ(underflow_of_scale(values, recipes::FloatType::F32, 7, 2.0f, recipes::Format::E4M3).lost, 1);
  EXPECT_EQ(underflow_of_scale(values, recipes::FloatType::F32, 7, 0x1p-7f, recipes::Format::E5M2).lost, 3)
      << "E5M2 ends at 2^-16";
  const std::uint8_t codes[] = {0x00, 0x80, 0x00, 0x80, 0x01, 0x38, 0x00};
  const auto of_codes = underflow_of_codes(values, recipes::FloatType::F32, 7, codes);
  EXPECT_EQ(of_codes.lost, 3);
  EXPECT_EQ(of_codes.values, 5);
}

TEST(Underflow, AnAmaxAloneTellsForNormalValues) {
  EXPECT_TRUE(loses_most(0x1p-8f, 1.0f, recipes::Format::E4M3));
  EXPECT_FALSE(loses_most(0x1.2p-8f, 1.0f, recipes::Format::E4M3));
  EXPECT_FALSE(loses_most(0.0f, 1.0f, recipes::Format::E4M3));
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({1 << 16}) * (0x1p-8 / 4.5);  // amax near 2^-8
  const auto seen =
      underflow_of_scale(x.const_data_ptr(), recipes::FloatType::F32, x.numel(), 1.0f, recipes::Format::E4M3);
  EXPECT_TRUE(seen.most()) << seen.share();
}

TEST(Underflow, AFixedScaleThatLosesTheWeightsIsWarnedOf) {
  Net net;
  PlanOptions o;
  o.dialect = recipes::Dialect::gaudi3;
  o.config = fixed_config("hw_aligned_single_scale");
  const auto report = convert(*net, o);
  EXPECT_THAT(line_of(report.warnings, "most weights"),
              AllOf(HasSubstr("HW_ALIGNED_SINGLE_SCALE: in 1 of 2 modules most weights become zero"),
                    HasSubstr("the worst: small, ")));
}

TEST(Underflow, AScaleThatFitsIsNotWarnedOf) {
  Net net;
  PlanOptions o;
  const auto report = convert(*net, o);
  EXPECT_EQ(line_of(report.warnings, "become zero"), "");
}

TEST(Underflow, InputsThatWereMeasuredFarBelowTheirScaleAreWarnedOf) {
  PlanOptions o;
  o.dialect = recipes::Dialect::gaudi3;
  o.config = fixed_config("hw_aligned_single_scale");
  o.measurements.emplace();
  o.measurements->modules = {{"small", {{0.4f}}, std::nullopt, std::nullopt},
                             {"large", {{40.0f}}, std::nullopt, std::nullopt}};  // 0.4 / 128 < 2^-8
  const std::vector<ModuleInfo> modules = {{"small", "Linear", {32, 64}}, {"large", "Linear", {32, 64}}};
  EXPECT_THAT(line_of(make_plan(modules, o).warnings, "inputs"),
              AllOf(HasSubstr("in 1 of 2 modules most inputs become zero"), HasSubstr("'small'")));
}

TEST(Underflow, TheFirstInputThatIsLostIsWarnedOfOnce) {
  const torch::NoGradGuard no_grad;
  Net net;
  PlanOptions o;
  o.dialect = recipes::Dialect::gaudi3;
  o.config = fixed_config("hw_aligned_single_scale");
  convert(*net, o);
  const at::Tensor x = hpu(torch::randn({8, 64}) * 0.05);
  Warnings warnings;
  net->large->forward(hpu(torch::randn({8, 64}) * 1000));
  EXPECT_EQ(warnings.texts.size(), 0u);
  net->small->forward(x);
  net->small->forward(x);
  net->large->forward(x);
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_THAT(warnings.texts[0],
              AllOf(HasSubstr("small: "), HasSubstr("become zero under its static scale (scale_inv 128)")));
}

TEST(Underflow, ACheckpointWhoseWeightsAreLostIsWarnedOf) {
  const test::TempDir dir;
  Net net;
  test::write_tensors(dir / "in", {{"small.weight", net->small->weight.detach().cpu()},
                                   {"large.weight", net->large->weight.detach().cpu()}});
  test::write_text(dir / "in" / "config.json", R"({"model_type": "test"})");
  for (const bool per_channel : {false, true}) {
    CheckpointOptions o;
    o.overwrite = true;
    o.plan.dialect = recipes::Dialect::gaudi3;
    o.plan.config = fixed_config("hw_aligned_single_scale");
    if (per_channel) {  // one far outlier in each row, of which the scale is made
      o.plan.config.reset();
      at::Tensor w = torch::randn({32, 64}) * 1e-3;
      w.select(1, 0).fill_(1e3);
      test::write_tensors(dir / "in", {{"small.weight", w}, {"large.weight", net->large->weight.detach().cpu()}});
    }
    const auto report = quantize_checkpoint(dir / "in", dir / "out", o);
    EXPECT_THAT(line_of(report.warnings, "most weights"),
                AllOf(HasSubstr("in 1 of 2 modules"), HasSubstr("the worst: small")))
        << per_channel;
  }
}

}  // namespace
}  // namespace fp8::quant
