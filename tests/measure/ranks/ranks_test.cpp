// SPDX-License-Identifier: Apache-2.0
// Unify, expand and merge: elementwise largest values, experts side by side, and back.
#include "fp8/measure/ranks/ranks.h"

#include "support/throws_with.h"

namespace fp8::measure {
namespace {

const std::string kMoe = "model.layers.0.mlp.experts.moe_op";

/// Two experts per rank; every value is different: base + 0.01, base + 0.02, ...
MeasurementFile rank_file(float base) {
  float next = base;
  const auto v = [&] { return Amax{next += 0.01f}; };
  MeasurementFile file{.num_samples = 4};
  file.modules.push_back({"q_proj", {v()}, std::vector<Amax>{v()}, v()});
  file.modules.push_back({kMoe, {v()}, std::vector<Amax>{v(), v(), v()}, std::nullopt});
  for (const char* list : {".w13_list.", ".w2_list."})
    for (int e = 0; e < 2; ++e) file.modules.push_back({kMoe + list + std::to_string(e), {{0.0f}}, std::nullopt, v()});
  for (const auto& m : file.modules) file.selected.push_back(m.module);
  file.selected.push_back("never_called");
  return file;
}

std::vector<MeasurementFile> four_ranks() { return {rank_file(1), rank_file(2), rank_file(0.5f), rank_file(1.5f)}; }
std::vector<std::string> names(std::size_t n) {
  std::vector<std::string> list;
  for (std::size_t i = 0; i < n; ++i) list.push_back("rank" + std::to_string(i));
  return list;
}

TEST(Ranks, ExpertsAreToldByTheirNames) {
  EXPECT_TRUE(is_expert("model.layers.3.mlp.experts.moe_op.w13_list.11"));
  EXPECT_TRUE(is_expert("block_sparse_MoE.w2_list.0"));
  for (const char* name : {"model.layers.3.mlp.experts.moe_op", "x.w13_list.1", "moe.w13_list", "moe.w13_list.a",
                           "moe.w3_list.1", "moe.gate", "moe.w2_list.12345678", "11", ""})
    EXPECT_FALSE(is_expert(name)) << name;
}

TEST(Ranks, UnifyTakesTheLargestOfEveryElement) {
  std::vector<MeasurementFile> group(3);
  group[0].modules.push_back({"m", {{9, 1, 5}, {2}}, std::vector<Amax>{{1}}, Amax{3, 7}});
  group[1].modules.push_back({"m", {{10, 0, 4}, {3}}, std::vector<Amax>{{0.5f}}, Amax{4, 6}});
  group[2].modules.push_back({"m", {{2, 2, 6}, {1}}, std::vector<Amax>{{2}}, Amax{1, 1}});
  std::vector<std::string> warnings;
  const auto out = unify(group, names(3), {}, warnings);
  ASSERT_EQ(out.modules.size(), 1u);
  EXPECT_EQ(out.modules[0].inputs, (std::vector<Amax>{{10, 2, 6}, {3}}));  // no lexicographic maximum
  EXPECT_EQ(*out.modules[0].outputs, (std::vector<Amax>{{2}}));
  EXPECT_EQ(*out.modules[0].weight, (Amax{4, 7}));
  EXPECT_TRUE(warnings.empty());
}

TEST(Ranks, UnifyPutsExpertsSideBySide) {
  const auto ranks = four_ranks();
  std::vector<std::string> warnings;
  const auto out = unify({ranks[2], ranks[3]}, names(2), {true, ExpertValues::outputs}, warnings);
  EXPECT_TRUE(warnings.empty());
  const auto* moe = out.find(kMoe);
  ASSERT_NE(moe, nullptr);
  EXPECT_EQ(moe->inputs[0], ranks[3].find(kMoe)->inputs[0]);
  const auto &first = *ranks[2].find(kMoe)->outputs, &second = *ranks[3].find(kMoe)->outputs;
  EXPECT_EQ(*moe->outputs, (std::vector<Amax>{second[0], first[1], first[2], second[1], second[2]}));
  for (int e = 0; e < 2; ++e) {
    const std::string here = kMoe + ".w2_list." + std::to_string(e), there = kMoe + ".w2_list." + std::to_string(e + 2);
    EXPECT_EQ(out.find(here)->weight, ranks[2].find(here)->weight);
    EXPECT_EQ(out.find(there)->weight, ranks[3].find(here)->weight);
  }
  EXPECT_EQ(out.modules.size(), 10u);
  EXPECT_EQ(out.selected.size(), 11u);
  EXPECT_EQ(std::count(out.selected.begin(), out.selected.end(), kMoe + ".w13_list.3"), 1);
  EXPECT_EQ(out.num_samples, 4);
}

TEST(Ranks, UnifyInStepsIsUnifyAtOnce) {
  const auto ranks = four_ranks();
  std::vector<std::string> warnings;
  const RankOptions experts{true, ExpertValues::outputs};
  const auto at_once = unify(ranks, names(4), experts, warnings);
  const auto a = unify({ranks[0], ranks[1]}, names(2), experts, warnings),
             b = unify({ranks[2], ranks[3]}, names(2), experts, warnings);
  const auto in_steps = unify({a, b}, names(2), experts, warnings);
  EXPECT_EQ(in_steps.modules.size(), 2u + 2 * 8);
  for (const auto& m : at_once.modules) {
    const auto* other = in_steps.find(m.module);
    ASSERT_NE(other, nullptr) << m.module;
    EXPECT_EQ(other->inputs, m.inputs);
    EXPECT_EQ(other->outputs, m.outputs);
    EXPECT_EQ(other->weight, m.weight);
  }
}

TEST(Ranks, ExpandGivesEveryRankItsExpertsBack) {
  const auto ranks = four_ranks();
  std::vector<std::string> warnings;
  const RankOptions experts{true, ExpertValues::outputs};
  const auto unified = unify(ranks, names(4), experts, warnings);
  for (int r = 0; r < 4; ++r) {
    const auto out = expand(unified, {r, 4}, experts, "unified");
    const auto& was = ranks[static_cast<std::size_t>(r)];
    EXPECT_EQ(out.local_rank, r);
    EXPECT_TRUE(
        std::is_permutation(out.selected.begin(), out.selected.end(), was.selected.begin(), was.selected.end()));
    ASSERT_EQ(out.modules.size(), was.modules.size());
    for (const auto& m : was.modules) {
      const auto* back = out.find(m.module);
      ASSERT_NE(back, nullptr) << m.module;
      if (is_expert(m.module)) {
        EXPECT_EQ(back->weight, m.weight);
      } else {
        EXPECT_EQ(back->inputs, unified.find(m.module)->inputs);
        EXPECT_EQ((*back->outputs)[0], (*unified.find(m.module)->outputs)[0]);
      }
    }
    const auto &mine = *out.find(kMoe)->outputs, &theirs = *was.find(kMoe)->outputs;
    ASSERT_EQ(mine.size(), 3u);
    EXPECT_EQ(mine[1], theirs[1]);
    EXPECT_EQ(mine[2], theirs[2]);
  }
  EXPECT_REFUSED(expand(unified, {0, 3}, experts, "unified"), "unified: ", "8 experts can't be shared out to 3 ranks");
}

TEST(Ranks, RoutersAndSharedExpertsAreNoMixtures) {
  MeasurementFile a;
  a.modules.push_back({"layers.0.block_sparse_moe.gate", {{1.0f}}, std::vector<Amax>{{2.0f}}, Amax{1}});
  a.modules.push_back({"moe_model.attn.matmul_qk", {{1.0f}, {2.0f}}, std::vector<Amax>{{1}, {2}}, std::nullopt});
  auto b = a;
  b.modules[1].outputs = std::vector<Amax>{{3}, {1}};
  std::vector<std::string> warnings;
  const auto out = unify({a, b}, names(2), {true, ExpertValues::outputs}, warnings);
  EXPECT_EQ(*out.modules[1].outputs, (std::vector<Amax>{{3}, {2}}));
  EXPECT_EQ(expand(out, {1, 2}, {true, ExpertValues::outputs}, "x").modules[1].outputs, out.modules[1].outputs);
}

TEST(Ranks, NodesOfSomeRanksAreKeptAndReported) {
  auto ranks = four_ranks();
  ranks[0].modules.erase(ranks[0].modules.begin());  // q_proj
  std::vector<std::string> warnings;
  const auto out = unify({ranks[0], ranks[1]}, names(2), {}, warnings);
  EXPECT_EQ(out.find("q_proj")->weight, ranks[1].find("q_proj")->weight);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("1 nodes are not in every rank's file (the first is 'q_proj')")));
}

TEST(Ranks, WhatDoesNotFitIsNamed) {
  std::vector<std::string> warnings;
  auto a = rank_file(1), b = rank_file(2);
  b.modules[0].inputs[0] = {1, 2};
  EXPECT_REFUSED(unify({a, b}, names(2), {}, warnings), "rank1: q_proj.inputs[0]", "1 values", "2 here");
  b = rank_file(2);
  b.modules[0].inputs.push_back({1});
  EXPECT_REFUSED(unify({a, b}, names(2), {}, warnings), "rank1: q_proj.inputs", "1 tensors", "2 here");
  b = rank_file(2);
  b.mode = MeasurementMode::shape;
  EXPECT_REFUSED(unify({a, b}, names(2), {}, warnings), "rank1", "Mode");
  b = rank_file(2);
  b.modules.pop_back();
  b.selected.erase(b.selected.end() - 2);  // w2_list.1
  EXPECT_REFUSED(unify({a, b}, names(2), {true, ExpertValues::outputs}, warnings), "rank1: " + kMoe + ".w2_list",
                 "1 experts", "rank0 has 2");
}

TEST(Merge, AddsSamplesAndTakesTheLargest) {
  auto a = rank_file(1), b = rank_file(2);
  b.num_samples = 3;
  b.modules.push_back({"only_in_b", {{1}}, std::nullopt, std::nullopt});
  b.selected.push_back("only_in_b");
  const auto out = merge({a, b}, {"a", "b"});
  EXPECT_EQ(out.num_samples, 7);
  EXPECT_EQ(out.modules.size(), 7u);
  EXPECT_EQ(out.find("q_proj")->inputs, b.find("q_proj")->inputs);
  EXPECT_EQ(out.selected.size(), a.selected.size() + 1);
  EXPECT_FALSE(out.planned_samples.has_value());
  b.planned_samples = 10;
  EXPECT_EQ(merge({a, b}, {"a", "b"}).shortage(), "7 of 14 samples") << "all 4 of the first, 3 of 10 of the second";
  b.num_samples.reset();
  EXPECT_FALSE(merge({a, b}, {"a", "b"}).num_samples.has_value());
  b.local_rank = 3;
  EXPECT_REFUSED(merge({a, b}, {"a", "b"}), "b", "LocalRank", "unify");
}

TEST(Merge, TakesTheLargestOfEachHead) {
  auto a = rank_file(1), b = rank_file(2);
  a.kv_cache = {{"k_cache", {{1, 5}}, std::nullopt, std::nullopt}};
  b.kv_cache = {{"k_cache", {{2, 3}}, std::nullopt, std::nullopt}, {"v_cache", {{4, 4}}, std::nullopt, std::nullopt}};
  std::vector<std::string> warnings;
  for (const auto& out : {merge({a, b}, {"a", "b"}), unify({a, b}, {"a", "b"}, {}, warnings)}) {
    ASSERT_EQ(out.kv_cache.size(), 2u);
    EXPECT_EQ(out.kv_cache[0].inputs, (std::vector<Amax>{{2, 5}}));
    EXPECT_EQ(out.kv_cache[1].inputs, (std::vector<Amax>{{4, 4}}));
  }
  b.kv_cache[0].inputs = {{1}};
  EXPECT_REFUSED(merge({a, b}, {"a", "b"}), "b: k_cache");
}

TEST(Merge, RefusesAnotherModel) {
  auto a = rank_file(1), b = rank_file(2);
  a.model = ModelFingerprint{{{"q_proj", "bf16", {4, 8}, {1.0f, 2.0f}}}};
  b.model = a.model;
  EXPECT_EQ(merge({a, b}, {"a", "b"}).model->digest(), a.model->digest());
  b.model->weights[0].samples[1] = 3.0f;
  EXPECT_REFUSED(merge({a, b}, {"a", "b"}), "b: q_proj.weight has other values", "another model");
}

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
