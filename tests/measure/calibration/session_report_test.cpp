// SPDX-License-Identifier: Apache-2.0
// Samples are counted; NaN and Inf are reported with module, tensor and sample, and never stored.
#include "fp8/measure/calibration/session.h"
#include "support/models_for_tests.h"

namespace fp8::measure {
namespace {

using test::hpu;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

/// Linear named "m" with weight 2 * identity, so that output = 2 * input.
struct Doubling {
  torch::nn::Linear linear{torch::nn::LinearOptions(4, 4).bias(false)};
  torch::nn::Sequential model;
  std::shared_ptr<CalibrationSession> session;
  Doubling() {
    linear->weight.set_data(torch::eye(4) * 2);
    linear->to(test::kHpu);
    model->push_back("m", linear);
    session = CalibrationSession::attach(*model, {});
  }
  ~Doubling() { session->finalize(); }
  void run(at::Tensor x) { linear(hpu(x)); }
  const Measurement& record() {
    file = session->result();
    return file.modules.at(0);
  }
  MeasurementFile file;
};

TEST(CalibrationReport, CountsSamples) {
  Doubling d;
  EXPECT_FALSE(d.session->result().num_samples.has_value());
  d.session->begin_samples(0, 4);
  d.session->begin_samples(4, 2);
  EXPECT_EQ(d.session->samples(), 6);
  EXPECT_EQ(d.session->result().num_samples, 6);
}

TEST(CalibrationReport, NaNInTheInputIsNamedAndNotStored) {
  Doubling d;
  d.session->begin_samples(0, 1);
  d.run(torch::full({1, 3, 4}, 1.5));
  at::Tensor x = torch::full({2, 3, 4}, 100.0);
  x[1][2][3] = kNaN;  // the second sample of the batch
  d.session->begin_samples(7, 2);
  d.run(x);
  const auto found = d.session->non_finite();
  ASSERT_EQ(found.size(), 2u);  // the product carries it on
  EXPECT_EQ(found[0].module, "m");
  EXPECT_EQ(found[0].tensor, "input");
  EXPECT_EQ(found[0].sample, 8);
  EXPECT_TRUE(found[0].nan);
  EXPECT_EQ(found[1].tensor, "output");
  EXPECT_EQ(d.record().inputs, (std::vector<Amax>{{1.5f}}));
  EXPECT_EQ(*d.record().outputs, (std::vector<Amax>{{3.0f}}));
}

TEST(CalibrationReport, SamplesAreFoundInFlattenedBatchesToo) {
  Doubling d;
  at::Tensor x = torch::ones({6, 4});  // 3 samples of 2 tokens
  x[3][0] = kInf;
  d.session->begin_samples(10, 3);
  d.run(x);
  const auto found = d.session->non_finite();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].sample, 11);
  EXPECT_FALSE(found[0].nan);
}

TEST(CalibrationReport, AnOverflowInTheOutputLeavesTheInput) {
  Doubling d;
  d.session->begin_samples(0, 1);
  d.run(torch::full({1, 4}, 3e38f));
  const auto found = d.session->non_finite();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tensor, "output");
  EXPECT_EQ(d.record().inputs, (std::vector<Amax>{{3e38f}}));
  EXPECT_FALSE(d.record().outputs.has_value());
}

TEST(CalibrationReport, AModuleThatSawOnlyNaNIsNotMeasured) {
  Doubling d;
  d.run(torch::full({1, 4}, kNaN));
  EXPECT_TRUE(d.session->result().modules.empty());
}

TEST(CalibrationReport, NaNInAWeightIsNamed) {
  torch::nn::Linear linear(4, 4);
  linear->weight.data()[0][0] = kNaN;
  linear->to(test::kHpu);
  torch::nn::Sequential model(linear);
  const auto session = CalibrationSession::attach(*model, {});
  const auto found = session->non_finite();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].module, "0");
  EXPECT_EQ(found[0].tensor, "weight");
  EXPECT_EQ(found[0].sample, -1);
  session->finalize();
}

TEST(CalibrationReport, TheReportStaysBounded) {
  Doubling d;
  const at::Tensor x = hpu(torch::full({1, 4}, kNaN));
  for (int i = 0; i < 6000; ++i) d.linear(x);
  EXPECT_EQ(d.session->non_finite().size(), 10000u);
}

}  // namespace
}  // namespace fp8::measure
