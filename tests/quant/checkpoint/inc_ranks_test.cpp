// SPDX-License-Identifier: Apache-2.0
// INC checkpoints of several ranks: split, put together again, with equal and with different scales.
#include <torch/torch.h>

#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/forms/form.h"
#include "fp8/runtime/io/base/file.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant::inc {
namespace {

namespace fs = std::filesystem;
using test::read_tensor;
using test::same_bits;

void write_folder(const fs::path& folder, const test::NamedTensors& tensors, int world = -1) {
  test::write_tensors(folder, tensors);
  io::write_json(folder / "config.json", {{"quantization_config",
                                           {{"mode", "LOAD"},
                                            {"fp8_config", "E4M3"},
                                            {"hp_dtype", "bf16"},
                                            {"scale_method", "maxabs_pow2"},
                                            {"world_size", world}}}});
}

at::Tensor codes(std::int64_t in, std::int64_t out) { return torch::randn({in, out}).to(at::kFloat8_e4m3fn); }
at::Tensor scalar(float v) { return torch::tensor(v).to(at::kBFloat16); }

test::NamedTensors model() {
  torch::manual_seed(4);
  return {{"l.q_proj.weight", codes(6, 8)},
          {"l.q_proj.scale_weight", torch::rand({8}) + 0.5},
          {"l.q_proj.scale_input", scalar(2)},
          {"l.q_proj.quant_input.scale_inv", scalar(0.5)},
          {"l.q_proj.bias", torch::randn({8})},
          {"l.o_proj.weight", codes(8, 6)},
          {"l.o_proj.scale_weight", scalar(0.25)},
          {"l.o_proj.scale_input", scalar(4)},
          {"l.o_proj.quant_input.scale_inv", scalar(0.25)},
          {"l.o_proj.bias", torch::randn({6})},
          {"norm.weight", torch::randn({6})}};
}

TEST(IncRanks, SplitByOutputAndByInput) {
  const test::TempDir dir;
  const auto tensors = model();
  write_folder(dir / "one", tensors);
  split_checkpoint(dir / "one", dir / "four", 4);
  const auto bytes = [](const at::Tensor& t) { return t.view(at::kByte); };
  for (int r = 0; r < 4; ++r) {
    const auto found = [&](const char* name) {
      return read_tensor(dir / "four", std::string("l.") + name + "_" + std::to_string(r) + "_4");
    };
    const auto part = [&](const at::Tensor& t, int dim) { return t.narrow(dim, 2 * r, 2).contiguous(); };
    EXPECT_TRUE(same_bits(found("q_proj.weight"), part(bytes(tensors[0].second), 1)));
    EXPECT_TRUE(same_bits(found("q_proj.scale_weight"), part(tensors[1].second, 0)));
    EXPECT_TRUE(same_bits(found("q_proj.bias"), part(tensors[4].second, 0)));
    EXPECT_TRUE(same_bits(found("o_proj.weight"), part(bytes(tensors[5].second), 0)));
    EXPECT_TRUE(same_bits(found("o_proj.scale_weight"), tensors[6].second));
    EXPECT_TRUE(same_bits(found("o_proj.bias"), tensors[9].second));
  }
  EXPECT_TRUE(same_bits(read_tensor(dir / "four", "norm.weight"), tensors[10].second));
  EXPECT_EQ(io::read_json(dir / "four/quantization_config.json")["world_size"], 4);
  EXPECT_EQ(io::read_json(dir / "four/config.json")["quantization_config"]["world_size"], 4);
}

TEST(IncRanks, UnifyGivesBackWhatWasSplit) {
  const test::TempDir dir;
  write_folder(dir / "one", model());
  split_checkpoint(dir / "one", dir / "four", 2 * 2, {}, usual_split);
  split_checkpoint(dir / "one", dir / "two", 2);
  unify_checkpoint(dir / "four", dir / "two_again", 2);
  unify_checkpoint(dir / "two_again", dir / "one_again");
  for (const auto& [name, t] : model())
    EXPECT_TRUE(same_bits(read_tensor(dir / "one_again", name), read_tensor(dir / "one", name))) << name;
  const io::Checkpoint two(dir / "two");
  for (const auto& name : two.names())
    EXPECT_TRUE(same_bits(read_tensor(dir / "two_again", name), read_tensor(dir / "two", name))) << name;
  EXPECT_EQ(io::read_json(dir / "one_again/config.json")["quantization_config"]["world_size"], -1);
}

TEST(IncRanks, DifferentScalesBecomeTheLargerOne) {
  const test::TempDir dir;
  torch::manual_seed(5);
  const at::Tensor a = codes(4, 6), b = codes(4, 6);
  write_folder(dir / "two",
               {{"o_proj.weight_0_2", a},
                {"o_proj.weight_1_2", b},
                {"o_proj.scale_weight_0_2", scalar(0.5)},
                {"o_proj.scale_weight_1_2", scalar(2)},
                {"o_proj.scale_input_0_2", scalar(8)},
                {"o_proj.scale_input_1_2", scalar(4)},
                {"o_proj.quant_input.scale_inv_0_2", scalar(0.125)},
                {"o_proj.quant_input.scale_inv_1_2", scalar(0.25)}},
               2);
  unify_checkpoint(dir / "two", dir / "one");
  EXPECT_EQ(read_tensor(dir / "one", "o_proj.scale_weight").item<float>(), 2.0f);
  EXPECT_EQ(read_tensor(dir / "one", "o_proj.scale_input").item<float>(), 8.0f);
  EXPECT_EQ(read_tensor(dir / "one", "o_proj.quant_input.scale_inv").item<float>(), 0.125f);
  const at::Tensor got = read_tensor(dir / "one", "o_proj.weight");
  ASSERT_EQ(got.sizes(), at::IntArrayRef({8, 6}));
  EXPECT_TRUE(same_bits(got.narrow(0, 4, 4).contiguous(), b.view(at::kByte)));
  // torch rounds to nearest even; a power of two: nothing else to round.
  const at::Tensor want = (a.to(at::kFloat) * 0.5 / 2.0).to(at::kFloat8_e4m3fn);
  EXPECT_TRUE(same_bits(got.narrow(0, 0, 4).contiguous(), want.view(at::kByte)));
}

TEST(IncRanks, WhatDoesNotFitIsNamed) {
  const test::TempDir dir;
  write_folder(dir / "one", model());
  EXPECT_REFUSED(split_checkpoint(dir / "one", dir / "out", 3), "l.q_proj.", "size 8", "3 ranks");
  EXPECT_REFUSED(unify_checkpoint(dir / "one", dir / "out"), "found 1 ranks to read", "smaller divisor");
  StreamOptions overwriting;
  overwriting.overwrite = true;
  EXPECT_REFUSED(split_checkpoint(dir / "one", dir / "one", 2, overwriting), "is the input itself");
  auto tensors = test::NamedTensors{{"q_proj.weight_0_2", codes(4, 6)},
                                    {"q_proj.scale_weight_0_2", scalar(1)},
                                    {"q_proj.scale_weight_1_2", scalar(1)}};
  write_folder(dir / "two", tensors, 2);
  EXPECT_REFUSED(unify_checkpoint(dir / "two", dir / "out"), "rank 1 of 2 is missing: q_proj.weight_1_2");
  tensors.push_back({"q_proj.weight_1_2", codes(5, 6)});
  write_folder(dir / "odd", tensors, 2);
  EXPECT_REFUSED(unify_checkpoint(dir / "odd", dir / "out"), "q_proj.weight", "do not fit");
  test::write_text(dir / "odd/config.json", R"({"quantization_config": {"quant_method": "fp8"}})");
  EXPECT_REFUSED(unify_checkpoint(dir / "odd", dir / "out"), "config.json", "'quantization_config'");
  EXPECT_FALSE(fs::exists(dir / "out"));
}

}  // namespace
}  // namespace fp8::quant::inc
