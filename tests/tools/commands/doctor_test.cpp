// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "fp8/runtime/io/json.h"
#include "support/temp_dir.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

using ::testing::HasSubstr;

TEST(Doctor, SaysWhatIsInForceAndWhereItCameFrom) {
  const auto run = test::run_fp8({"doctor", "--json", "--threads", "3"}, {.environment = {{"FP8_SIMD", "scalar"}, {"FP8_HPU_DEVICE", "gaudi2"}}});
  EXPECT_EQ(run.code, 0) << run.err;
  const auto json = io::parse_json(run.out, "stdout");
  EXPECT_EQ(json["simd_level"], "scalar");
  EXPECT_EQ(json["threads"], 3);
  EXPECT_EQ(json["libtorch_threads"], 3);
  EXPECT_THAT(json["libtorch"].get<std::string>(), ::testing::StartsWith("2."));
  EXPECT_EQ(json["environment"]["FP8_HPU_DEVICE"]["value"], "gaudi2");
  EXPECT_EQ(json["environment"]["FP8_HPU_DEVICE"]["from"], "environment");
  EXPECT_EQ(json["environment"]["FP8_TRACE"]["from"], "default");
  EXPECT_TRUE(json["problems"].empty());
}

TEST(Doctor, TableForPeople) {
  const auto run = test::run_fp8({"doctor"}, {.environment = {{"FP8_SIMD", "scalar"}}});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("SIMD level in use"));
  EXPECT_EQ(run.out.find('\x1b'), std::string::npos);
}

TEST(Doctor, WrongSettingsAreProblems) {
  const auto run = test::run_fp8({"doctor", "--json"}, {.environment = {{"FP8_SIMD", "avx9"}, {"FP8_HPU_DEVICE", "gaudi7"}, {"FP8_HPU_DEVICES", "x"},
                                                                       {"QUANT_CONFIG", "/no/such.json"}}});
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(run.error_lines(), 1);
  const auto json = io::parse_json(run.out, "stdout");
  ASSERT_EQ(json["problems"].size(), 4u) << json["problems"];
  EXPECT_THAT(json["problems"][0].get<std::string>(), HasSubstr("avx9"));
  EXPECT_EQ(json["problems"][1], "FP8_HPU_DEVICE: found 'gaudi7', allowed: gaudi, gaudi2, gaudi3");
  EXPECT_THAT(json["problems"][2].get<std::string>(), HasSubstr("FP8_HPU_DEVICES: found 'x'"));
  EXPECT_THAT(json["problems"][3].get<std::string>(), HasSubstr("QUANT_CONFIG: /no/such.json"));
}

TEST(Doctor, AutocastListsAndWhereTheyCameFrom) {
  const test::TempDir dir;
  std::ofstream(dir / "lower", std::ios::binary) << "add\r\nmm\r\n# comment\r\n";
  const auto run = test::run_fp8({"doctor", "--json"}, {.environment = {{"LOWER_LIST", (dir / "lower").string()}}});
  EXPECT_EQ(run.code, 0) << run.err;
  const auto json = io::parse_json(run.out, "stdout");
  EXPECT_EQ(json["autocast"]["lower"], io::Json({"add", "mm"}));
  EXPECT_EQ(json["autocast"]["lower_from"], "LOWER_LIST (" + (dir / "lower").string() + ")");
  EXPECT_EQ(json["autocast"]["fp32"].size(), 49u);
  EXPECT_EQ(json["autocast"]["fp32_from"], "default");
}

TEST(Doctor, WrongAutocastListsAreWarningsAndProblems) {
  const test::TempDir dir;
  std::ofstream(dir / "lower") << "mm\nsofmax\n";
  const auto run = test::run_fp8({"doctor", "--json"}, {.environment = {{"PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", (dir / "lower").string()},
                                                                       {"FP32_LIST", (dir / "none").string()}}});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("fp8: warning: FP32_LIST: "));
  EXPECT_THAT(run.err, HasSubstr("nearest: 'softmax'"));
  const auto json = io::parse_json(run.out, "stdout");
  ASSERT_EQ(json["problems"].size(), 2u) << json["problems"];
  EXPECT_THAT(json["problems"][0].get<std::string>(), HasSubstr((dir / "none").string()));
  EXPECT_THAT(json["problems"][1].get<std::string>(), HasSubstr("found 'sofmax'"));
  EXPECT_EQ(json["autocast"]["fp32"].size(), 49u);
}

}  // namespace
}  // namespace fp8
