// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/weights/parameters.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "fp8/runtime/io/base/file.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::models {
namespace {

using ::testing::HasSubstr;

class Parameters : public ::testing::Test {
 protected:
  io::Checkpoint write(const std::map<std::string, at::Tensor>& tensors) const {
    std::vector<io::SafetensorsWriter::Entry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, io::DType::F32, tensor.sizes().vec()});
    io::SafetensorsWriter writer(folder.path() / "model.safetensors", entries);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor.contiguous().const_data_ptr());
    writer.commit();
    return io::Checkpoint(folder.path());
  }
  const test::TempDir folder;
};

at::Tensor numbered(at::IntArrayRef sizes, float first = 0) {
  std::int64_t n = 1;
  for (const auto size : sizes) n *= size;
  return (at::arange(n, at::kFloat) + first).view(sizes);
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
  EXPECT_THAT(test::error_of<io::Error>([&] { require_head(file, "lm_head"); }),
              HasSubstr("tensor 'lm_head.weight' is missing (config.json: an untied head, tie_word_embeddings)"));
}

TEST_F(Parameters, WhatIsWrongIsNamed) {
  auto spoiled = numbered({4}), large = numbered({4}, 65500);
  spoiled[2] = std::nanf("");
  const auto file = write({{"nan", spoiled}, {"large", large * 2}, {"fine", numbered({4})}});
  const auto read = [&](const std::string& name, at::IntArrayRef shape, const ReadOptions& options = {}) {
    return test::error_of<io::Error>([&] { read_parameter(file, name, shape, {}, options); });
  };
  EXPECT_THAT(read("nan", {4}), HasSubstr("tensor 'nan' holds NaN or infinity"));
  EXPECT_EQ(read("nan", {4}, {.allow_nonfinite = true}), "");
  EXPECT_THAT(read("large", {4}, {.dtype = at::kHalf}), HasSubstr("tensor 'large' passes 65504"));
  EXPECT_EQ(read("large", {4}), "");
  EXPECT_THAT(read("fine", {5}), HasSubstr("tensor 'fine': found shape [4], config.json asks for [5]"));
  EXPECT_THAT(read("absent", {2}), HasSubstr("tensor 'absent' is missing, expected shape [2]"));
  EXPECT_THAT(test::error_of<io::Error>([&] { require_promised(file, "absent", "layers 3"); }),
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
  EXPECT_THAT(test::error_of<io::Error>([] { scalar_type_of(io::DType::U16, "t"); }),
              HasSubstr("tensor 't': dtype U16"));
  EXPECT_STREQ(name_of_dtype(at::kHalf), "f16");
}

}  // namespace
}  // namespace fp8::models
