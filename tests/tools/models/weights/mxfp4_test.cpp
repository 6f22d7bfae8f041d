// SPDX-License-Identifier: Apache-2.0
// All codes with many exponents, against the OCP Microscaling specification's E2M1 and E8M0.
#include <ATen/Functions.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <tuple>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/models/weights/parameters.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::models {
namespace {

constexpr std::int64_t kExperts = 2, kIn = 64, kOut = 3;

/// Of the Microscaling specification 1.0, section 5.3.3: 1 sign, 2 exponent bits with bias 1, 1 mantissa bit.
double e2m1(unsigned code) {
  const unsigned exponent = code >> 1 & 3, mantissa = code & 1;
  const double magnitude =
      exponent == 0 ? 0.5 * mantissa : std::ldexp(1 + 0.5 * mantissa, static_cast<int>(exponent) - 1);
  return std::copysign(magnitude, (code & 8) != 0 ? -1.0 : 1.0);
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
  EXPECT_THAT(mxfp4_tensors(io::Checkpoint(mxfp4.path())), ElementsAre("e_blocks", "e_scales"));
  EXPECT_THAT(mxfp4_tensors(io::Checkpoint(plain.path())), IsEmpty());
}

TEST(Mxfp4, OtherShapesAreRefused) {
  const test::TempDir folder;
  Stack().write(folder.path(), kMxfp4);
  const io::Checkpoint checkpoint(folder.path());
  const auto message = [&](std::vector<std::int64_t> shape) -> std::string {
    return error_of<io::Error>([&] { check_mxfp4(checkpoint, "e", shape); });
  };
  EXPECT_EQ(message({kExperts, kIn, kOut}), "");
  EXPECT_THAT(message({kExperts + 1, kIn, kOut}),
              HasSubstr("tensor 'e_blocks': found U8 [2, 3, 2, 16], config.json asks for U8 [3, 3, 2, 16]"));
  EXPECT_THAT(message({kExperts, 33, kOut}), HasSubstr("a multiple of 32 columns"));
  EXPECT_THROW(read_mxfp4(checkpoint, "absent", {kExperts, kIn, kOut}, at::kFloat, at::kCPU), io::Error);
}

// All codes with all exponents whose values are f32's, to the bit; every message about what does not fit.

struct BytesTensor {
  io::DType dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
};

io::Checkpoint write_bytes(const std::filesystem::path& folder, const std::map<std::string, BytesTensor>& tensors) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.dtype, tensor.shape});
  io::SafetensorsWriter writer(folder / "model.safetensors", entries);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor.bytes.data());
  writer.commit();
  return io::Checkpoint(folder);
}

/// Block b holds each code twice, from code b on, and exponent b modulo kExponents: 6 * 2^125 is the largest f32.
struct AllExponents {
  static constexpr std::int64_t kStacked = 2, kRows = 128, kColumns = 64;
  static constexpr std::size_t kExponents = 253;
  BytesTensor blocks{io::DType::U8, {kStacked, kRows, kColumns / 32, 16}, {}};
  BytesTensor scales{io::DType::U8, {kStacked, kRows, kColumns / 32}, {}};

  AllExponents() {
    for (std::size_t b = 0; b < static_cast<std::size_t>(kStacked * kRows * kColumns / 32); ++b) {
      scales.bytes.push_back(static_cast<std::uint8_t>(b % kExponents));
      for (std::size_t k = 0; k < 32; k += 2)
        blocks.bytes.push_back(static_cast<std::uint8_t>((b + k) % 16 | (b + k + 1) % 16 << 4));
    }
  }
  static double value(std::int64_t expert, std::int64_t out, std::int64_t in) {
    const auto b = static_cast<std::size_t>((expert * kRows + out) * (kColumns / 32) + in / 32);
    const auto code = static_cast<unsigned>((b + static_cast<std::size_t>(in % 32)) % 16);
    return std::ldexp(e2m1(code), static_cast<int>(b % kExponents) - 127);
  }
};

TEST(Mxfp4Exponents, AllCodesWithEachToTheBit) {
  using All = AllExponents;
  const test::TempDir folder;
  const All all;
  const auto checkpoint = write_bytes(folder.path(), {{"w_blocks", all.blocks}, {"w_scales", all.scales}});
  const std::array<std::int64_t, 3> shape = {All::kStacked, All::kColumns, All::kRows};
  const at::Tensor found = read_mxfp4(checkpoint, "w", shape, at::kFloat, at::kCPU).contiguous();
  const float* at = found.const_data_ptr<float>();
  for (std::int64_t e = 0; e < All::kStacked; ++e)
    for (std::int64_t in = 0; in < All::kColumns; ++in)
      for (std::int64_t out = 0; out < All::kRows; ++out, ++at)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(*at),
                  std::bit_cast<std::uint32_t>(static_cast<float>(All::value(e, out, in))))
            << *at << " for " << All::value(e, out, in) << ", " << e << ", " << in << ", " << out;
  // A parameter that is kept in these codes is read as any other.
  check_parameter(checkpoint, "w", shape);
  EXPECT_TRUE(read_parameter(checkpoint, "w", shape, {}, {}).equal(found));
  EXPECT_TRUE(read_parameter(checkpoint, "w", shape, {.wide = true}, {.dtype = at::kBFloat16}).equal(found));
  // bf16, whose exponents are f32's, holds all 2 bits of significand; a CPU may take what is less than normal as 0.
  const at::Tensor narrow = read_mxfp4(checkpoint, "w", shape, at::kBFloat16, at::kCPU).to(at::kFloat);
  EXPECT_TRUE(at::where(found.abs() >= 0x1p-126, narrow, found).equal(found));
}

TEST(Mxfp4Exponents, EachMessageNamesTensorFoundAndAllowed) {
  const test::TempDir folder;
  const BytesTensor blocks = {io::DType::U8, {1, 2, 1, 16}, std::vector<std::uint8_t>(32)};
  const BytesTensor scales = {io::DType::U8, {1, 2, 1}, {127, 127}};
  const auto checkpoint = write_bytes(folder.path(), {{"good_blocks", blocks},
                                                      {"good_scales", scales},
                                                      {"bare_blocks", blocks},
                                                      {"signed_blocks", {io::DType::I8, blocks.shape, blocks.bytes}},
                                                      {"signed_scales", scales},
                                                      {"e8m0_blocks", blocks},
                                                      {"e8m0_scales", {io::DType::F8_E8M0, scales.shape, scales.bytes}},
                                                      {"flat_blocks", {io::DType::U8, {1, 2, 16}, blocks.bytes}},
                                                      {"flat_scales", scales},
                                                      {"wide_blocks", blocks},
                                                      {"wide_scales", {io::DType::U8, {1, 1, 2}, scales.bytes}}});
  const std::string where = "[models] " + folder.path().string() + ": tensor '";
  const auto message = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    const std::string read = error_of([&] { read_mxfp4(checkpoint, name, shape, at::kFloat, at::kCPU); });
    EXPECT_EQ(read, error_of([&] { check_mxfp4(checkpoint, name, shape); }));
    EXPECT_EQ(read, error_of([&] { check_parameter(checkpoint, name, shape); }));
    return read;
  };
  EXPECT_EQ(message("good", {1, 32, 2}), "");
  EXPECT_EQ(message("good", {1, 32, 3}),
            where + "good_blocks': found U8 [1, 2, 1, 16], config.json asks for U8 [1, 3, 1, 16]");
  EXPECT_EQ(message("good", {1, 64, 2}),
            where + "good_blocks': found U8 [1, 2, 1, 16], config.json asks for U8 [1, 2, 2, 16]");
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{1, 48, 2}, {32, 2}, {1, 1, 32, 2}, {}}) {
    std::string text = error_of([&] { check_mxfp4(checkpoint, "good", shape); });
    EXPECT_EQ(text.find(where + "good_blocks': expected a stack of matrices of a multiple of 32 columns, "), 0) << text;
  }
  EXPECT_EQ(message("bare", {1, 32, 2}), where + "bare_scales' is missing, expected U8 [1, 2, 1]");
  EXPECT_EQ(message("signed", {1, 32, 2}),
            where + "signed_blocks': found I8 [1, 2, 1, 16], config.json asks for U8 [1, 2, 1, 16]");
  EXPECT_EQ(message("e8m0", {1, 32, 2}),
            where + "e8m0_scales': found F8_E8M0 [1, 2, 1], config.json asks for U8 [1, 2, 1]");
  EXPECT_EQ(message("flat", {1, 32, 2}),
            where + "flat_blocks': found U8 [1, 2, 16], config.json asks for U8 [1, 2, 1, 16]");
  EXPECT_EQ(message("wide", {1, 32, 2}), where + "wide_scales': found U8 [1, 1, 2], config.json asks for U8 [1, 2, 1]");
}

TEST(Mxfp4Exponents, AStackThatIsThereItselfIsTaken) {
  const test::TempDir folder;
  const BytesTensor blocks = {io::DType::U8, {1, 2, 1, 16}, std::vector<std::uint8_t>(32)};
  const auto checkpoint = write_bytes(folder.path(), {{"w", {io::DType::F32, {1}, {0, 0, 0, 0}}},
                                                      {"w_blocks", blocks},
                                                      {"w_scales", {io::DType::U8, {1, 2, 1}, {127, 127}}}});
  EXPECT_FALSE(has_mxfp4(checkpoint, "w"));
  EXPECT_FALSE(has_mxfp4(checkpoint, "w_blocks"));
  EXPECT_FALSE(has_mxfp4(checkpoint, "absent"));
}

/// Names alone say nothing: config.json must.
TEST(Mxfp4Exponents, ConfigsThatTellOfOthers) {
  const test::TempDir folder;
  const auto checkpoint =
      write_bytes(folder.path(), {{"w_blocks", {io::DType::U8, {1, 1, 1, 16}, std::vector<std::uint8_t>(16)}},
                                  {"w_scales", {io::DType::U8, {1, 1, 1}, {127}}}});
  EXPECT_FALSE(is_quantized(folder.path()));  // no config.json at all
  EXPECT_TRUE(mxfp4_tensors(checkpoint).empty());
  for (const auto& [config, quantized, tensors] : std::vector<std::tuple<const char*, bool, std::size_t>>{
           {R"({"quantization_config": null})", false, 0},
           {R"({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}})", false, 2},
           {R"({"quantization_config": {"quant_method": "MXFP4"}})", true, 0},
           {R"({"quantization_config": {"quant_method": 4}})", true, 0},
           {R"({"quantization_config": {}})", false, 0}}) {
    std::ofstream(folder / "config.json") << config;
    EXPECT_EQ(is_quantized(folder.path()), quantized) << config;
    EXPECT_EQ(mxfp4_tensors(checkpoint).size(), tensors) << config;
  }
}

}  // namespace
}  // namespace fp8::models
