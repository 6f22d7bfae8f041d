// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/weights/parameters.h"

#include <ATen/Functions.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>

#include "fp8/runtime/io/base/file.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::models {
namespace {

class Parameters : public ::testing::Test {
 protected:
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
  EXPECT_THAT(error_of<io::Error>([&] { require_head(file, "lm_head"); }),
              HasSubstr("tensor 'lm_head.weight' is missing (config.json: an untied head, tie_word_embeddings)"));
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
  EXPECT_THAT(error_of<io::Error>([&] { require_promised(file, "absent", "layers 3"); }),
              HasSubstr("tensor 'absent' is missing (config.json: layers 3)"));
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
  EXPECT_THAT(error_of<io::Error>([] { scalar_type_of(io::DType::U16, "t"); }), HasSubstr("tensor 't': dtype U16"));
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
  EXPECT_NE(refusal_of(file, "large", {3, kWidth}).find("NaN in 1 of 2359296 values"), std::string::npos);
  const at::Tensor all = read_parameter(file, "large", {3, kWidth}, {}, {.allow_nonfinite = true});
  EXPECT_TRUE(all.nan_to_num(9.0).equal(values.nan_to_num(9.0)));
}

TEST_F(ParametersEdges, NaNAndInfinityAreCounted) {
  const at::Tensor values = at::tensor({1.0f, kEdgeNaN, -kEdgeInf, 0.0f, kEdgeInf, 2.0f});
  const auto file = write({{"f32", values}, {"bf16", values.to(at::kBFloat16)}, {"f16", values.to(at::kHalf)}});
  for (const char* name : {"f32", "bf16", "f16"}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      EXPECT_EQ(refusal_of(file, name, {6}, {.dtype = dtype}),
                where(name) +
                    " holds NaN or infinity: NaN in 1 and Inf in 2 of 6 values, allowed: finite weights "
                    "(--allow-nonfinite takes them as they are)");
      const at::Tensor found = read_parameter(file, name, {6}, {}, {.dtype = dtype, .allow_nonfinite = true});
      EXPECT_TRUE(at::equal(found.to(at::kFloat).nan_to_num(9.0), values.nan_to_num(9.0))) << name;
    }
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

}  // namespace
}  // namespace fp8::models
