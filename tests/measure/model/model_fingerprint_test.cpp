// SPDX-License-Identifier: Apache-2.0
// Fingerprints of models: sampled values, across dtypes, in memory and in files.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/runtime/io/base/file.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::measure {
namespace {

using kernels::FloatType;
using test::throws_with;

WeightFingerprint of(const at::Tensor& t, const std::string& module = "m") {
  const FloatType type = t.scalar_type() == at::kFloat  ? FloatType::F32
                         : t.scalar_type() == at::kHalf ? FloatType::F16
                                                        : FloatType::BF16;
  return fingerprint_of(module, t.const_data_ptr(), type, t.sizes().vec());
}

TEST(ModelFingerprint, SamplesFirstLastAndEvenlyBetween) {
  EXPECT_TRUE(sampled_positions(0).empty());
  EXPECT_EQ(sampled_positions(1), std::vector<std::int64_t>{0});
  EXPECT_EQ(sampled_positions(3), (std::vector<std::int64_t>{0, 1, 2}));
  const auto positions = sampled_positions(311);
  ASSERT_EQ(positions.size(), 32u);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(positions[i], static_cast<std::int64_t>(i) * 10);
  const std::int64_t huge = (std::int64_t{1} << 60) + 7;
  const auto far = sampled_positions(huge);
  EXPECT_EQ(far.front(), 0);
  EXPECT_EQ(far.back(), huge - 1);
  for (std::size_t i = 1; i < far.size(); ++i) EXPECT_GT(far[i], far[i - 1]);
}

TEST(ModelFingerprint, TheSameModelInAnotherDtypeIsTheSame) {
  torch::manual_seed(3);
  const at::Tensor w = torch::randn({37, 53}) * 0.02;
  const ModelFingerprint f32{{of(w)}};
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) require_same_model(f32, {{of(w.to(type))}}, "x");
  require_same_model({{of(w.to(at::kHalf))}}, {{of(w.to(at::kBFloat16))}}, "x");
}

TEST(ModelFingerprint, AnotherModelIsRefusedByName) {
  const at::Tensor w = torch::randn({8, 8});
  const ModelFingerprint measured{{of(w)}};
  EXPECT_TRUE(throws_with({"x: m.weight was [8, 8] when measured and is [4, 16]", "another model"},
                          [&] { require_same_model(measured, {{of(w.view({4, 16}))}}, "x"); }));
  at::Tensor other = w.clone();
  other.view({-1})[63] *= 1.0001;  // within a dtype, every bit counts
  EXPECT_TRUE(throws_with({"x: m.weight has other values"}, [&] { require_same_model(measured, {{of(other)}}, "x"); }));
  EXPECT_TRUE(throws_with({"m.weight has other values"},
                          [&] { require_same_model(measured, {{of(torch::randn({8, 8}).to(at::kBFloat16))}}, "x"); }));
  require_same_model(measured, {{of(torch::randn({3, 3}), "not_measured")}}, "x");
}

TEST(ModelFingerprint, RoundTripsThroughJson) {
  const ModelFingerprint model{{of(torch::randn({5, 40})), of(torch::randn({2, 2}).to(at::kBFloat16), "n")}};
  const auto read = model_from_json(to_json(model), "x");
  EXPECT_EQ(read.digest(), model.digest());
  EXPECT_NE(read.find("n"), nullptr);
  for (const char* bad : {"[]", R"({"m": 1})", R"({"m": {"shape": [1], "samples": []}})",
                          R"({"m": {"dtype": "f32", "shape": [-1], "samples": []}})",
                          R"({"m": {"dtype": "f32", "shape": [1], "samples": ["x"]}})"}) {
    EXPECT_THROW(model_from_json(io::Json::parse(bad), "x"), io::Error) << bad;
  }
}

TEST(ModelFingerprint, OfACheckpointIsThatOfTheTensor) {
  const test::TempDir dir;
  const at::Tensor w = torch::randn({11, 13}).to(at::kBFloat16);
  io::SafetensorsWriter writer(dir / "model.safetensors",
                               {{"m.weight", io::DType::BF16, {11, 13}}, {"ids.weight", io::DType::I64, {1, 1}}});
  const std::int64_t id = 3;
  writer.write("m.weight", w.const_data_ptr());
  writer.write("ids.weight", &id);
  writer.commit();
  const io::Checkpoint checkpoint(dir.path());
  EXPECT_EQ((ModelFingerprint{{fingerprint_of("m", checkpoint, "m.weight")}}.digest()),
            (ModelFingerprint{{of(w)}}.digest()));
  EXPECT_TRUE(
      throws_with({"ids.weight", "F32, BF16 or F16", "I64"}, [&] { fingerprint_of("ids", checkpoint, "ids.weight"); }));
}

TEST(ModelFingerprint, GoesWithAMeasurementAsLongAsItIsOfIt) {
  const test::TempDir dir;
  MeasurementFile file;
  file.modules.push_back({"m", {{1.0f}}, std::nullopt, Amax{2.0f}});
  file.model = ModelFingerprint{{of(torch::randn({2, 2}))}};
  const std::string prefix = (dir / "p").string();
  EXPECT_EQ(write_measurements(prefix, file).back(), dir / "p_hooks_maxabs.fingerprint");
  EXPECT_EQ(read_measurements(prefix).model->digest(), file.model->digest());
  // Another tool's files in the place of ours.
  file.modules[0].inputs[0][0] = 3.0f;
  auto foreign = file;
  foreign.model.reset();
  write_measurements(prefix, foreign);
  EXPECT_FALSE(read_measurements(prefix).model.has_value());
}

}  // namespace
}  // namespace fp8::measure
