// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/weights/parameters.h"

#include <ATen/Functions.h>

#include <bit>

#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::models {
namespace {

struct Parameters : ::testing::Test {
  /// Each tensor in its own dtype: f32, bf16, f16, int64.
  io::Checkpoint write(const std::map<std::string, at::Tensor>& tensors) const {
    const auto dtype_of = [](const at::Tensor& tensor) {
      return tensor.scalar_type() == at::kFloat      ? io::DType::F32
             : tensor.scalar_type() == at::kBFloat16 ? io::DType::BF16
             : tensor.scalar_type() == at::kHalf     ? io::DType::F16
                                                     : io::DType::I64;
    };
    std::vector<io::SafetensorsWriter::Entry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, dtype_of(tensor), tensor.sizes().vec()});
    io::SafetensorsWriter writer(folder.path() / "model.safetensors", entries);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor.contiguous().const_data_ptr());
    writer.commit();
    return io::Checkpoint(folder.path());
  }
  std::string where(const std::string& tensor) const {
    return "[models] " + folder.path().string() + ": tensor '" + tensor + "'";
  }
  static std::string refusal_of(const io::Checkpoint& file, const std::string& name, at::IntArrayRef shape,
                                const ReadOptions& options = {}) {
    return error_of([&] { read_parameter(file, name, shape, {}, options); });
  }

  const test::TempDir folder;
};

at::Tensor numbered(at::IntArrayRef sizes, double first = 0) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) + first).to(at::kFloat).view(sizes);
}

TEST_F(Parameters, AreReadWhereTheyAreKept) {
  const std::string experts = "model.layers.0.mlp.experts.";
  const auto file = write({{"a.weight", numbered({3, 2})},
                           {experts + "gate_up_proj", numbered({2, 4, 6})},
                           {"model.layers.1.mlp.experts.1.gate_proj.weight", numbered({2, 3})},
                           {"model.layers.1.mlp.experts.1.up_proj.weight", numbered({2, 3}, 100)}});
  const auto read = [&](const std::string& name, at::IntArrayRef shape, CausalLM::Storage storage = {}) {
    check_parameter(file, name, shape, storage);
    return read_parameter(file, name, shape, storage, {});
  };
  EXPECT_TRUE(at::equal(read("a.weight", {3, 2}), numbered({3, 2})));
  EXPECT_TRUE(at::equal(read("a.weight", {2, 3}, {.transposed = true}), numbered({3, 2}).t()));
  // Matrix 1 of a stack [E, 2 I, H], and of one that is [E, H, 2 I].
  EXPECT_TRUE(at::equal(read(experts + "moe_op.w13_list.1.weight", {4, 6}), numbered({4, 6}, 24)));
  EXPECT_TRUE(
      at::equal(read(experts + "moe_op.w13_list.1.weight", {6, 4}, {.transposed = true}), numbered({4, 6}, 24).t()));
  // Two tensors, one above the other.
  EXPECT_TRUE(at::equal(read("model.layers.1.mlp.experts.moe_op.w13_list.1.weight", {4, 3}),
                        at::cat({numbered({2, 3}), numbered({2, 3}, 100)})));
}

TEST_F(Parameters, ComeInTheDtypeAskedForButWideOnes) {
  const auto file = write({{"a", numbered({5}, 0.3f)}});
  EXPECT_EQ(read_parameter(file, "a", {5}, {}, {.dtype = at::kBFloat16}).scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(read_parameter(file, "a", {5}, {.wide = true}, {.dtype = at::kBFloat16}), numbered({5}, 0.3f)));
}

/// Compared as they are stored, a megabyte at a time.
TEST_F(Parameters, HeadsAreTiedUnlessTheyDiffer) {
  const auto words = numbered({600, 500});  // more than one megabyte
  auto other = words.clone();
  other[599][499] = -1;
  const auto file = write({{"words.weight", words},
                           {"copy.weight", words},
                           {"other.weight", other},
                           {"turned.weight", words.view({500, 600})}});
  EXPECT_FALSE(has_other_weight(file, "copy", "words"));
  EXPECT_FALSE(has_other_weight(file, "absent", "words"));
  EXPECT_FALSE(has_other_weight(file, "other", "absent"));
  EXPECT_TRUE(has_other_weight(file, "other", "words"));
  EXPECT_TRUE(has_other_weight(file, "turned", "words"));
  EXPECT_ERROR(io::Error, require_head(file, "lm_head"),
               "tensor 'lm_head.weight' is missing (config.json: an untied head, tie_word_embeddings)");
}

TEST_F(Parameters, WhatIsWrongIsNamed) {
  auto spoiled = numbered({4}), large = numbered({4}, 65500);
  spoiled[2] = std::nanf("");
  const auto file = write({{"nan", spoiled}, {"large", large * 2}, {"fine", numbered({4})}});
  const auto read = [&](const std::string& name, at::IntArrayRef shape, const ReadOptions& options = {}) {
    return error_of<io::Error>([&] { read_parameter(file, name, shape, {}, options); });
  };
  EXPECT_THAT(read("nan", {4}), HasSubstr("tensor 'nan' holds NaN or infinity"));
  EXPECT_EQ(read("nan", {4}, {.allow_nonfinite = true}), "");
  EXPECT_THAT(read("large", {4}, {.dtype = at::kHalf}), HasSubstr("tensor 'large' passes 65504"));
  EXPECT_EQ(read("large", {4}), "");
  EXPECT_THAT(read("fine", {5}), HasSubstr("tensor 'fine': found shape [4], config.json asks for [5]"));
  EXPECT_THAT(read("absent", {2}), HasSubstr("tensor 'absent' is missing, expected shape [2]"));
  EXPECT_ERROR(io::Error, require_promised(file, "absent", "layers 3"),
               "tensor 'absent' is missing (config.json: layers 3)");
}

TEST_F(Parameters, RowsOfAMatrix) {
  const auto file = write({{"table", numbered({7, 3})}});
  EXPECT_TRUE(
      at::equal(read_weight_rows(file, "table", {7, 3}, 2, 4, at::kFloat, at::kCPU), numbered({7, 3}).narrow(0, 2, 4)));
  EXPECT_EQ(read_weight_rows(file, "table", {7, 3}, 7, 0, at::kFloat, at::kCPU).numel(), 0);
}

TEST_F(Parameters, DtypesOfFiles) {
  EXPECT_EQ(scalar_type_of(io::DType::BF16, "t"), at::kBFloat16);
  EXPECT_EQ(scalar_type_of(io::DType::F8_E4M3, "t"), at::kFloat8_e4m3fn);
  EXPECT_ERROR(io::Error, scalar_type_of(io::DType::U16, "t"), "tensor 't': dtype U16");
  EXPECT_STREQ(name_of_dtype(at::kHalf), "f16");
}

// Parameters of each dtype, in more than one piece, at the end of f16, and with NaN and infinity; whole messages.

constexpr float kEdgeNaN = std::numeric_limits<float>::quiet_NaN(), kEdgeInf = std::numeric_limits<float>::infinity();

using ParametersEdges = Parameters;

TEST_F(ParametersEdges, AnyFloatingDtypeBecomesAnyOther) {
  const at::Tensor values = numbered({2, 4}, -3);  // exact in all
  const auto file = write({{"f32", values}, {"bf16", values.to(at::kBFloat16)}, {"f16", values.to(at::kHalf)}});
  for (const char* name : {"f32", "bf16", "f16"}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor found = read_parameter(file, name, {2, 4}, {}, {.dtype = dtype});
      EXPECT_EQ(found.scalar_type(), dtype);
      EXPECT_TRUE(found.to(at::kFloat).equal(values)) << name;
    }
    EXPECT_TRUE(read_tensor(file, name).to(at::kFloat).equal(values));
    const at::Tensor wide = read_parameter(file, name, {2, 4}, {.wide = true}, {.dtype = at::kHalf});
    EXPECT_EQ(wide.scalar_type(), at::kFloat);
  }
}

TEST_F(ParametersEdges, OtherDtypesAreNoWeights) {
  const auto file = write({{"ids", at::arange(3, at::kLong)}});
  EXPECT_EQ(refusal_of(file, "ids", {3}), where("ids") + ": found dtype I64, allowed: F32, BF16, F16");
  EXPECT_TRUE(read_tensor(file, "ids").equal(at::arange(3, at::kLong)));
  for (const auto dtype :
       {io::DType::U16, io::DType::U32, io::DType::U64, io::DType::F8_E8M0, io::DType::F8_E4M3FNUZ, io::DType::C64})
    EXPECT_EQ(error_of([&] { scalar_type_of(dtype, "t"); }),
              std::string("[models] tensor 't': dtype ") + io::name_of(dtype) + " is not supported");
  EXPECT_STREQ(name_of_dtype(at::kFloat), "f32");
  EXPECT_STREQ(name_of_dtype(at::kBFloat16), "bf16");
}

/// Larger than one piece of 8 MiB: the rows behind it, and what is wrong in them.
TEST_F(ParametersEdges, LargeOnesAreReadInPieces) {
  constexpr std::int64_t kWidth = std::int64_t{3} << 18;  // 3 MiB a row
  at::Tensor values = at::full({3, kWidth}, 0.5f);
  for (std::int64_t row = 0; row < 3; ++row) values[row][kWidth - 1 - row] = static_cast<float>(row + 2);
  values[2][7] = kEdgeNaN;
  const auto file = write({{"large", values}});
  EXPECT_TRUE(read_weight_rows(file, "large", {3, kWidth}, 0, 2, at::kFloat, at::kCPU).equal(values.narrow(0, 0, 2)));
  EXPECT_THAT(refusal_of(file, "large", {3, kWidth}), HasSubstr("NaN in 1 of 2359296 values"));
  const at::Tensor all = read_parameter(file, "large", {3, kWidth}, {}, {.allow_nonfinite = true});
  EXPECT_TRUE(all.nan_to_num(9.0).equal(values.nan_to_num(9.0)));
}

TEST_F(ParametersEdges, NaNAndInfinityAreCounted) {
  const at::Tensor values = at::tensor({1.0f, kEdgeNaN, -kEdgeInf, 0.0f, kEdgeInf, 2.0f});
  const auto file = write({{"f32", values}, {"bf16", values.to(at::kBFloat16)}, {"f16", values.to(at::kHalf)}});
  for (const char* name : {"f32", "bf16", "f16"})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      EXPECT_EQ(refusal_of(file, name, {6}, {.dtype = dtype}),
                where(name) +
                    " holds NaN or infinity: NaN in 1 and Inf in 2 of 6 values, allowed: finite weights "
                    "(--allow-nonfinite takes them as they are)");
      const at::Tensor found = read_parameter(file, name, {6}, {}, {.dtype = dtype, .allow_nonfinite = true});
      EXPECT_TRUE(at::equal(found.to(at::kFloat).nan_to_num(9.0), values.nan_to_num(9.0))) << name;
    }
  EXPECT_NE(error_of([&] { read_weight_rows(file, "f32", {6}, 1, 1, at::kFloat, at::kCPU); }), "");
  EXPECT_EQ(error_of([&] { read_weight_rows(file, "f32", {6}, 5, 1, at::kFloat, at::kCPU); }), "");
}

/// 65520 is half way to the next value and becomes infinity.
TEST_F(ParametersEdges, TheEndOfF16) {
  const float below = std::nextafter(65520.0f, 0.0f);
  const auto file = write({{"below", at::tensor({1.0f, below, -below})},
                           {"at", at::tensor({1.0f, 65520.0f})},
                           {"negative", at::tensor({-65520.0f, 1.0f})},
                           {"bf16", at::tensor({65536.0f}).to(at::kBFloat16)},
                           {"both", at::tensor({kEdgeNaN, 1e6f})},
                           {"nonfinite", at::tensor({kEdgeNaN, kEdgeInf, 65504.0f})}});
  EXPECT_TRUE(read_parameter(file, "below", {3}, {}, {.dtype = at::kHalf})
                  .to(at::kFloat)
                  .equal(at::tensor({1.0f, 65504.0f, -65504.0f})));
  const std::string allowed = " passes 65504, the largest f16, allowed here: --dtype f32 or bf16";
  EXPECT_EQ(refusal_of(file, "at", {2}, {.dtype = at::kHalf}), where("at") + allowed);
  EXPECT_EQ(refusal_of(file, "negative", {2}, {.dtype = at::kHalf}), where("negative") + allowed);
  EXPECT_EQ(refusal_of(file, "bf16", {1}, {.dtype = at::kHalf}), where("bf16") + allowed);
  EXPECT_EQ(refusal_of(file, "both", {2}, {.dtype = at::kHalf, .allow_nonfinite = true}), where("both") + allowed);
  EXPECT_EQ(refusal_of(file, "nonfinite", {3}, {.dtype = at::kHalf, .allow_nonfinite = true}), "");
  for (const char* name : {"at", "negative"})
    for (const auto dtype : {at::kFloat, at::kBFloat16}) EXPECT_EQ(refusal_of(file, name, {2}, {.dtype = dtype}), "");
}

TEST_F(ParametersEdges, TransposedOnesAreDense) {
  const at::Tensor stored = numbered({4, 6}, 0);
  const std::string expert = "model.layers.0.mlp.experts.0.";
  const auto file = write({{"h.weight", stored},
                           {"h.bias", numbered({6}, 1)},
                           {expert + "gate_proj.weight", numbered({3, 4}, 0)},
                           {expert + "up_proj.weight", numbered({3, 4}, 50)},
                           {expert + "down_proj.weight", numbered({4, 3}, 9)}});
  const CausalLM::Storage transposed = {.transposed = true};
  const at::Tensor found = read_parameter(file, "h.weight", {6, 4}, transposed, {});
  EXPECT_TRUE(found.is_contiguous() && found.equal(stored.t()));
  EXPECT_TRUE(read_parameter(file, "h.bias", {6}, transposed, {}).equal(numbered({6}, 1)));
  EXPECT_EQ(error_of([&] { check_parameter(file, "h.weight", {4, 6}, transposed); }),
            where("h.weight") + ": found shape [4, 6], config.json asks for [6, 4]");
  // Experts that stand one by one are never transposed.
  const std::string op = "model.layers.0.mlp.experts.moe_op.";
  EXPECT_TRUE(read_parameter(file, op + "w13_list.0.weight", {6, 4}, transposed, {})
                  .equal(at::cat({numbered({3, 4}, 0), numbered({3, 4}, 50)})));
  EXPECT_TRUE(read_parameter(file, op + "w2_list.0.weight", {4, 3}, transposed, {}).equal(numbered({4, 3}, 9)));
}

TEST_F(ParametersEdges, ExpertsThatDoNotFit) {
  const std::string one = "model.layers.0.mlp.experts.", stack = "model.layers.1.mlp.experts.";
  const auto file = write({{one + "0.w1.weight", numbered({3, 4}, 0)},
                           {one + "0.w3.weight", numbered({3, 5}, 50)},
                           {one + "1.w1.weight", numbered({3, 4}, 0)},
                           {stack + "gate_up_proj", numbered({2, 6, 4}, 0)},
                           {stack + "down_proj", numbered({2, 4, 3}, 0)}});
  const auto message = [&](const std::string& name, at::IntArrayRef shape) {
    const std::string read = refusal_of(file, name, shape);
    EXPECT_EQ(read, error_of([&] { check_parameter(file, name, shape); }));
    return read;
  };
  EXPECT_EQ(message(one + "moe_op.w13_list.0.weight", {6, 4}),
            where(one + "0.w3.weight") + ": found shape [3, 5], config.json asks for [3, 4]");
  EXPECT_EQ(message(one + "moe_op.w13_list.1.weight", {6, 4}),
            where(one + "1.w3.weight") + " is missing, expected shape [3, 4]");
  EXPECT_EQ(
      message(stack + "moe_op.w13_list.2.weight", {6, 4}),
      where(stack + "gate_up_proj") + ": found shape [2, 6, 4], config.json asks for matrix 2 of a stack of [6, 4]");
  EXPECT_EQ(message(stack + "moe_op.w2_list.0.weight", {3, 4}),
            where(stack + "down_proj") + ": found shape [2, 4, 3], config.json asks for matrix 0 of a stack of [3, 4]");
  EXPECT_EQ(message(stack + "moe_op.w13_list.1.weight", {6, 4}), "");
}

TEST_F(ParametersEdges, RowsAreOfTheWholeShape) {
  const auto file = write({{"table", numbered({7, 3}, 0).to(at::kBFloat16)}});
  const at::Tensor rows = read_weight_rows(file, "table", {7, 3}, 4, 3, at::kFloat, at::kCPU);
  EXPECT_TRUE(rows.equal(numbered({3, 3}, 12)));
  EXPECT_EQ(error_of([&] { read_weight_rows(file, "table", {3, 3}, 0, 3, at::kFloat, at::kCPU); }),
            where("table") + ": found shape [7, 3], config.json asks for [3, 3]");
  EXPECT_NE(error_of([&] { read_weight_rows(file, "table", {7, 3}, 5, 3, at::kFloat, at::kCPU); }), "");
}

// All codes with many exponents, against the OCP Microscaling specification's E2M1 and E8M0.

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

using Mxfp4Exponents = InFolder;

TEST_F(Mxfp4Exponents, AllCodesWithEachToTheBit) {
  using All = AllExponents;
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

TEST_F(Mxfp4Exponents, EachMessageNamesTensorFoundAndAllowed) {
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
    EXPECT_THAT(text, StartsWith(where + "good_blocks': expected a stack of matrices of a multiple of 32 columns, "));
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

TEST_F(Mxfp4Exponents, AStackThatIsThereItselfIsTaken) {
  const BytesTensor blocks = {io::DType::U8, {1, 2, 1, 16}, std::vector<std::uint8_t>(32)};
  const auto checkpoint = write_bytes(folder.path(), {{"w", {io::DType::F32, {1}, {0, 0, 0, 0}}},
                                                      {"w_blocks", blocks},
                                                      {"w_scales", {io::DType::U8, {1, 2, 1}, {127, 127}}}});
  EXPECT_FALSE(has_mxfp4(checkpoint, "w"));
  EXPECT_FALSE(has_mxfp4(checkpoint, "w_blocks"));
  EXPECT_FALSE(has_mxfp4(checkpoint, "absent"));
}

/// Names alone say nothing: config.json must.
TEST_F(Mxfp4Exponents, ConfigsThatTellOfOthers) {
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
