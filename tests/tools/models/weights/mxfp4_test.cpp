// SPDX-License-Identifier: Apache-2.0
// All codes with many exponents, against the OCP Microscaling specification's E2M1 and E8M0.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/models/weights/parameters.h"
#include "support/temp_dir.h"

namespace fp8::models {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kExperts = 2, kIn = 64, kOut = 3;

double e2m1(unsigned code) {
  const double magnitude =
      (code & 6) == 0 ? (code & 1) * 0.5 : std::ldexp(1 + (code & 1) * 0.5, static_cast<int>(code >> 1 & 3) - 1);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

struct Stack {
  std::vector<std::uint8_t> blocks = std::vector<std::uint8_t>(kExperts * kOut * kIn / 2);
  std::vector<std::uint8_t> scales = std::vector<std::uint8_t>(kExperts * kOut * kIn / 32);

  Stack() {
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::uint8_t>(i * 37 + i / 16);
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(110 + 3 * i);
  }
  void write(const std::filesystem::path& folder, const std::string& config,
             std::vector<std::int64_t> shape = {kExperts, kOut, kIn / 32, 16}) const {
    std::ofstream(folder / "config.json") << config;
    io::SafetensorsWriter writer(folder / "model.safetensors", {{"e_blocks", io::DType::U8, shape},
                                                                {"e_scales", io::DType::U8, {kExperts, kOut, kIn / 32}},
                                                                {"other", io::DType::F32, {1}}});
    writer.write("e_blocks", blocks.data());
    writer.write("e_scales", scales.data());
    const float one = 1;
    writer.write("other", &one);
    writer.commit();
  }
  double at(std::int64_t expert, std::int64_t in, std::int64_t out) const {
    const auto row = static_cast<std::size_t>(expert * kOut + out), i = static_cast<std::size_t>(in);
    const unsigned byte = blocks[row * kIn / 2 + i / 2];
    return std::ldexp(e2m1(i % 2 == 0 ? byte & 15 : byte >> 4), scales[row * kIn / 32 + i / 32] - 127);
  }
};

constexpr const char* kMxfp4 = R"({"quantization_config": {"quant_method": "mxfp4"}})";

TEST(Mxfp4, AllCodesHaveTheirValues) {
  const test::TempDir folder;
  const Stack stack;
  stack.write(folder.path(), kMxfp4);
  const io::Checkpoint checkpoint(folder.path());
  ASSERT_TRUE(has_mxfp4(checkpoint, "e"));
  EXPECT_FALSE(has_mxfp4(checkpoint, "other"));
  const auto found = read_mxfp4(checkpoint, "e", {kExperts, kIn, kOut}, at::kFloat, at::kCPU);
  for (std::int64_t e = 0; e < kExperts; ++e)
    for (std::int64_t i = 0; i < kIn; ++i)
      for (std::int64_t o = 0; o < kOut; ++o)
        ASSERT_EQ(found[e][i][o].item<double>(), stack.at(e, i, o)) << e << ", " << i << ", " << o;
  EXPECT_EQ(read_mxfp4(checkpoint, "e", {kExperts, kIn, kOut}, at::kBFloat16, at::kCPU).scalar_type(), at::kBFloat16);
}

TEST(Mxfp4, ConfigTells) {
  const test::TempDir mxfp4, fp8, plain;
  const Stack stack;
  stack.write(mxfp4.path(), kMxfp4);
  stack.write(fp8.path(), R"({"quantization_config": {"quant_method": "fp8"}})");
  stack.write(plain.path(), "{}");
  EXPECT_FALSE(is_quantized(mxfp4.path()));
  EXPECT_TRUE(is_quantized(fp8.path()));
  EXPECT_FALSE(is_quantized(plain.path()));
  EXPECT_THAT(mxfp4_tensors(io::Checkpoint(mxfp4.path())), ::testing::ElementsAre("e_blocks", "e_scales"));
  EXPECT_THAT(mxfp4_tensors(io::Checkpoint(plain.path())), ::testing::IsEmpty());
}

TEST(Mxfp4, OtherShapesAreRefused) {
  const test::TempDir folder;
  Stack().write(folder.path(), kMxfp4);
  const io::Checkpoint checkpoint(folder.path());
  const auto message = [&](std::vector<std::int64_t> shape) -> std::string {
    try {
      check_mxfp4(checkpoint, "e", shape);
    } catch (const io::Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message({kExperts, kIn, kOut}), "accepted");
  EXPECT_THAT(message({kExperts + 1, kIn, kOut}),
              HasSubstr("tensor 'e_blocks': found U8 [2, 3, 2, 16], config.json asks for U8 [3, 3, 2, 16]"));
  EXPECT_THAT(message({kExperts, 33, kOut}), HasSubstr("a multiple of 32 columns"));
  EXPECT_THROW(read_mxfp4(checkpoint, "absent", {kExperts, kIn, kOut}, at::kFloat, at::kCPU), io::Error);
}

}  // namespace
}  // namespace fp8::models
