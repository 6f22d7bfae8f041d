// SPDX-License-Identifier: Apache-2.0
// INC checkpoints of several ranks: split, put together again, with equal and with different scales.
#include "fp8/quant/checkpoint/reform.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant::inc {
namespace {

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

using IncRanks = InFolder;

TEST_F(IncRanks, SplitByOutputAndByInput) {
  const auto tensors = model();
  write_folder(folder / "one", tensors);
  split_checkpoint(folder / "one", folder / "four", 4);
  const auto bytes = [](const at::Tensor& t) { return t.view(at::kByte); };
  for (int r = 0; r < 4; ++r) {
    const auto found = [&](const char* name) {
      return read_tensor(folder / "four", std::string("l.") + name + "_" + std::to_string(r) + "_4");
    };
    const auto part = [&](const at::Tensor& t, int dim) { return t.narrow(dim, 2 * r, 2).contiguous(); };
    EXPECT_TRUE(same_bits(found("q_proj.weight"), part(bytes(tensors[0].second), 1)));
    EXPECT_TRUE(same_bits(found("q_proj.scale_weight"), part(tensors[1].second, 0)));
    EXPECT_TRUE(same_bits(found("q_proj.bias"), part(tensors[4].second, 0)));
    EXPECT_TRUE(same_bits(found("o_proj.weight"), part(bytes(tensors[5].second), 0)));
    EXPECT_TRUE(same_bits(found("o_proj.scale_weight"), tensors[6].second));
    EXPECT_TRUE(same_bits(found("o_proj.bias"), tensors[9].second));
  }
  EXPECT_TRUE(same_bits(read_tensor(folder / "four", "norm.weight"), tensors[10].second));
  EXPECT_EQ(io::read_json(folder / "four/quantization_config.json")["world_size"], 4);
  EXPECT_EQ(io::read_json(folder / "four/config.json")["quantization_config"]["world_size"], 4);
}

TEST_F(IncRanks, UnifyGivesBackWhatWasSplit) {
  write_folder(folder / "one", model());
  split_checkpoint(folder / "one", folder / "four", 2 * 2, {}, usual_split);
  split_checkpoint(folder / "one", folder / "two", 2);
  unify_checkpoint(folder / "four", folder / "two_again", 2);
  unify_checkpoint(folder / "two_again", folder / "one_again");
  for (const auto& [name, t] : model())
    EXPECT_TRUE(same_bits(read_tensor(folder / "one_again", name), read_tensor(folder / "one", name))) << name;
  const io::Checkpoint two(folder / "two");
  for (const auto& name : two.names())
    EXPECT_TRUE(same_bits(read_tensor(folder / "two_again", name), read_tensor(folder / "two", name))) << name;
  EXPECT_EQ(io::read_json(folder / "one_again/config.json")["quantization_config"]["world_size"], -1);
}

TEST_F(IncRanks, DifferentScalesBecomeTheLargerOne) {
  torch::manual_seed(5);
  const at::Tensor a = codes(4, 6), b = codes(4, 6);
  write_folder(folder / "two",
               {{"o_proj.weight_0_2", a},
                {"o_proj.weight_1_2", b},
                {"o_proj.scale_weight_0_2", scalar(0.5)},
                {"o_proj.scale_weight_1_2", scalar(2)},
                {"o_proj.scale_input_0_2", scalar(8)},
                {"o_proj.scale_input_1_2", scalar(4)},
                {"o_proj.quant_input.scale_inv_0_2", scalar(0.125)},
                {"o_proj.quant_input.scale_inv_1_2", scalar(0.25)}},
               2);
  unify_checkpoint(folder / "two", folder / "one");
  EXPECT_EQ(read_tensor(folder / "one", "o_proj.scale_weight").item<float>(), 2.0f);
  EXPECT_EQ(read_tensor(folder / "one", "o_proj.scale_input").item<float>(), 8.0f);
  EXPECT_EQ(read_tensor(folder / "one", "o_proj.quant_input.scale_inv").item<float>(), 0.125f);
  const at::Tensor got = read_tensor(folder / "one", "o_proj.weight");
  ASSERT_EQ(got.sizes(), at::IntArrayRef({8, 6}));
  EXPECT_TRUE(same_bits(got.narrow(0, 4, 4).contiguous(), b.view(at::kByte)));
  // torch rounds to nearest even; a power of two: nothing else to round.
  const at::Tensor want = (a.to(at::kFloat) * 0.5 / 2.0).to(at::kFloat8_e4m3fn);
  EXPECT_TRUE(same_bits(got.narrow(0, 0, 4).contiguous(), want.view(at::kByte)));
}

TEST_F(IncRanks, WhatDoesNotFitIsNamed) {
  write_folder(folder / "one", model());
  EXPECT_REFUSED(split_checkpoint(folder / "one", folder / "out", 3), "l.q_proj.", "size 8", "3 ranks");
  EXPECT_REFUSED(unify_checkpoint(folder / "one", folder / "out"), "found 1 ranks to read", "smaller divisor");
  StreamOptions overwriting;
  overwriting.overwrite = true;
  EXPECT_REFUSED(split_checkpoint(folder / "one", folder / "one", 2, overwriting), "is the input itself");
  auto tensors = test::NamedTensors{{"q_proj.weight_0_2", codes(4, 6)},
                                    {"q_proj.scale_weight_0_2", scalar(1)},
                                    {"q_proj.scale_weight_1_2", scalar(1)}};
  write_folder(folder / "two", tensors, 2);
  EXPECT_REFUSED(unify_checkpoint(folder / "two", folder / "out"), "rank 1 of 2 is missing: q_proj.weight_1_2");
  tensors.push_back({"q_proj.weight_1_2", codes(5, 6)});
  write_folder(folder / "odd", tensors, 2);
  EXPECT_REFUSED(unify_checkpoint(folder / "odd", folder / "out"), "q_proj.weight", "do not fit");
  test::write_text(folder / "odd/config.json", R"({"quantization_config": {"quant_method": "fp8"}})");
  EXPECT_REFUSED(unify_checkpoint(folder / "odd", folder / "out"), "config.json", "'quantization_config'");
  EXPECT_FALSE(fs::exists(folder / "out"));
}

}  // namespace
}  // namespace fp8::quant::inc
