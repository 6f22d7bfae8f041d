// SPDX-License-Identifier: Apache-2.0
// Scale files of several ranks: the larger scale_inv, per channel element by element, experts by their inputs.
#include <gtest/gtest.h>

#include "fp8/quant/scale_file/scale_file.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::quant {
namespace {

const std::string kMoe = "mlp.moe_op";

ScaleFile rank_file(float base) {
  ScaleFile file;
  file.modules.push_back({"q",
                          {StoredScale::of(base)},
                          {StoredScale::channels({base, 4 - base})},
                          StoredScale::channels({9 - base, base}, 3)});
  file.modules.push_back({kMoe,
                          {StoredScale::of(base), StoredScale::of(base + 0.25f), StoredScale::of(base + 0.5f)},
                          {StoredScale::of(base)},
                          std::nullopt});
  for (int e = 0; e < 2; ++e) {
    file.modules.push_back({kMoe + ".w13_list." + std::to_string(e),
                            {StoredScale::of(1)},
                            {},
                            StoredScale::channels({base + static_cast<float>(e)}, 2)});
  }
  return file;
}

TEST(ScaleRanks, TheLargerScaleInvOfEveryChannelWins) {
  std::vector<std::string> warnings;
  const auto out = unify({rank_file(1), rank_file(2)}, {"a", "b"}, false, warnings);
  EXPECT_EQ(
      *out.find("q"),
      (ModuleScales{"q", {StoredScale::of(2)}, {StoredScale::channels({2, 3})}, StoredScale::channels({8, 2}, 3)}));
  EXPECT_EQ(out.find(kMoe)->inputs,
            (std::vector<StoredScale>{StoredScale::of(2), StoredScale::of(2.25f), StoredScale::of(2.5f)}));
  EXPECT_EQ(out.modules.size(), 4u);
}

TEST(ScaleRanks, ExpertsStandSideBySideAndGoBack) {
  const ScaleFile a = rank_file(1), b = rank_file(2);
  std::vector<std::string> warnings;
  const auto out = unify({a, b}, {"a", "b"}, true, warnings);
  EXPECT_EQ(out.find(kMoe)->inputs,
            (std::vector<StoredScale>{StoredScale::of(2), StoredScale::of(1.25f), StoredScale::of(1.5f),
                                      StoredScale::of(2.25f), StoredScale::of(2.5f)}));
  EXPECT_EQ(out.find(kMoe + ".w13_list.3")->weight, StoredScale::channels({3}, 2));  // a list of one stays a list
  const auto back = expand(out, {1, 2}, "out");
  EXPECT_EQ(back.local_rank, 1);
  ASSERT_EQ(back.modules.size(), 4u);
  EXPECT_EQ(back.find(kMoe)->inputs,
            (std::vector<StoredScale>{StoredScale::of(2), StoredScale::of(2.25f), StoredScale::of(2.5f)}));
  EXPECT_EQ(back.find(kMoe + ".w13_list.1")->weight, b.find(kMoe + ".w13_list.1")->weight);
  EXPECT_EQ(back.find("q")->weight, out.find("q")->weight);
}

TEST(ScaleRanks, DifferentSizesAreAnError) {
  auto b = rank_file(2);
  b.modules[0].weight->values.push_back(1);
  std::vector<std::string> warnings;
  EXPECT_THROW(unify({rank_file(1), b}, {"a", "b"}, false, warnings), io::Error);
}

TEST(ScaleRanks, CacheRangesReachTheOutputOfTheProduct) {
  ScaleFile file;
  file.modules.push_back(
      {"l.matmul_qk", {StoredScale::of(0.5f), StoredScale::of(2)}, {StoredScale::of(1)}, std::nullopt});
  file.modules.push_back(
      {"l.matmul_av", {StoredScale::of(0.5f), StoredScale::of(2)}, {StoredScale::of(7)}, std::nullopt});
  file.modules.push_back({"l.k_cache", {StoredScale::of(4)}, {StoredScale::of(4)}, std::nullopt});
  file.modules.push_back({"l.v_cache", {StoredScale::of(8)}, {StoredScale::of(8)}, std::nullopt});
  EXPECT_EQ(apply_cache_ranges(file).size(), 2u);
  EXPECT_EQ(file.modules[0].inputs[1], StoredScale::of(4));
  EXPECT_EQ(file.modules[0].outputs[0], StoredScale::of(2));
  EXPECT_EQ(file.modules[1].inputs[1], StoredScale::of(8));
  EXPECT_EQ(file.modules[1].outputs[0], StoredScale::of(7));  // was not the product
}

}  // namespace
}  // namespace fp8::quant
