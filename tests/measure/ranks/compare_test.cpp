// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "fp8/measure/ranks/ranks.h"

namespace fp8::measure {
namespace {

TEST(Compare, SortsByChangeInEitherDirection) {
  const std::vector<Measurement> before = {{"a", {{1.0f}}, std::nullopt, Amax{2.0f}},
                                           {"b", {{8.0f}}, std::nullopt, std::nullopt},
                                           {"c", {{0.0f}, {0.0f}}, std::nullopt, std::nullopt}};
  const std::vector<Measurement> after = {{"c", {{0.0f}, {1.0f}}, std::nullopt, std::nullopt},
                                          {"b", {{1.0f}}, std::nullopt, std::nullopt},
                                          {"a", {{1.5f}}, std::nullopt, Amax{2.0f}}};
  const auto d = compare(before, after);
  ASSERT_EQ(d.changes.size(), 5u);
  EXPECT_EQ(d.changes[0].module + "." + d.changes[0].tensor, "c.inputs[1]");
  EXPECT_TRUE(std::isinf(d.changes[0].ratio));
  EXPECT_EQ(d.changes[1].module, "b");
  EXPECT_EQ(d.changes[1].ratio, 0.125);
  EXPECT_EQ(d.changes[2].ratio, 1.5);
  EXPECT_EQ(d.changes[4].ratio, 1.0);
  EXPECT_EQ(d.beyond(0.0), 3u);
  EXPECT_EQ(d.beyond(0.5), 2u);
  EXPECT_EQ(d.beyond(7.0), 1u);
  EXPECT_FALSE(d.same(7.0));
  EXPECT_TRUE(compare(before, before).same(0));
}

TEST(Compare, ChannelsAreComparedOneByOne) {
  const auto d = compare({{"a", {{1.0f, 2.0f, 4.0f}}, std::nullopt, std::nullopt}},
                         {{"a", {{1.0f, 0.5f, 4.0f}}, std::nullopt, std::nullopt}});
  EXPECT_EQ(d.changes[0].before, 2.0f);
  EXPECT_EQ(d.changes[0].after, 0.5f);
  const auto mixed =
      compare({{"a", {{1.0f, 2.0f}}, std::nullopt, std::nullopt}}, {{"a", {{4.0f}}, std::nullopt, std::nullopt}});
  EXPECT_EQ(mixed.changes[0].ratio, 2.0);
}

TEST(Compare, MissingAndAddedAreNamed) {
  const auto d =
      compare({{"a", {{1.0f}}, std::vector<Amax>{{1.0f}}, std::nullopt}, {"gone", {}, std::nullopt, std::nullopt}},
              {{"a", {{1.0f}, {2.0f}}, std::nullopt, std::nullopt}, {"new", {}, std::nullopt, std::nullopt}});
  EXPECT_EQ(d.missing, (std::vector<std::string>{"a.outputs[0]", "gone"}));
  EXPECT_EQ(d.added, (std::vector<std::string>{"a.inputs[1]", "new"}));
  EXPECT_FALSE(d.same(1e6));
}

TEST(CacheRanges, ProductsTakeTheirCachesRange) {
  const std::string p = "model.layers.0.self_attn.attn.impl.";
  std::vector<Measurement> m = {{p + "matmul_qk", {{1.0f}, {2.0f}}, std::nullopt, std::nullopt},
                                {p + "matmul_av", {{3.0f}, {4.0f}}, std::nullopt, std::nullopt},
                                {p + "k_cache", {{5.0f}}, std::nullopt, std::nullopt},
                                {p + "v_cache", {{6.0f}}, std::nullopt, std::nullopt},
                                {"other.matmul_qk", {{1.0f}, {2.0f}}, std::nullopt, std::nullopt}};
  EXPECT_EQ(apply_cache_ranges(m), (std::vector<std::string>{p + "matmul_qk", p + "matmul_av"}));
  EXPECT_EQ(m[0].inputs, (std::vector<Amax>{{1.0f}, {5.0f}}));
  EXPECT_EQ(m[1].inputs, (std::vector<Amax>{{3.0f}, {6.0f}}));
  EXPECT_EQ(m[4].inputs, (std::vector<Amax>{{1.0f}, {2.0f}}));
  EXPECT_TRUE(apply_cache_ranges(m).empty());
}

TEST(CacheRanges, DeepSeeksLatentCacheIsBoth) {
  const std::string p = "model.layers.12.self_attn.mla_attn.mla_attn.impl.";
  std::vector<Measurement> m = {{p + "matmul_qk", {{1.0f}, {2.0f}}, std::nullopt, std::nullopt},
                                {p + "matmul_av", {{3.0f}, {4.0f}}, std::nullopt, std::nullopt},
                                {p + "latent_cache_k", {{7.0f}}, std::nullopt, std::nullopt}};
  apply_cache_ranges(m);
  EXPECT_EQ(m[0].inputs[1], Amax{7.0f});
  EXPECT_EQ(m[1].inputs[1], Amax{7.0f});
}

}  // namespace
}  // namespace fp8::measure
