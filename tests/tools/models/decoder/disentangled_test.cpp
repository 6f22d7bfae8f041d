// SPDX-License-Identifier: Apache-2.0
// Buckets of distances against transformers' (make_log_bucket_position), scores against their formula in loops.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fp8/tools/models/decoder/deberta.h"
#include "fp8/tools/models/decoder/decoder.h"

namespace fp8::models {
namespace {

/// Rows of the table for query i = 0, 1, ... and key 0, less S: buckets of the distances 0, 1, ...
std::vector<std::int64_t> buckets_of(const DistanceSpec& spec, std::int64_t length) {
  const auto column = (distance_rows(spec, length).select(1, 0) - spec.span).contiguous();
  return {column.const_data_ptr<std::int64_t>(), column.const_data_ptr<std::int64_t>() + length};
}

TEST(DistanceRows, BucketsAreThoseOfTransformers) {
  std::vector<std::int64_t> expected = {0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5};
  expected.resize(26, 6);
  expected.resize(64, 7);
  EXPECT_EQ(buckets_of({.span = 8, .buckets = 8, .reach = 64}, 64), expected);
  const auto large = buckets_of({.span = 256, .buckets = 256, .reach = 512}, 512);  // DeBERTa-v3's
  EXPECT_EQ(std::accumulate(large.begin(), large.end(), std::int64_t{0}), 87297);
  for (const auto& [distance, bucket] :
       {std::pair(128, 128), {130, 130}, {200, 169}, {300, 207}, {400, 233}, {511, 255}})
    EXPECT_EQ(large[static_cast<std::size_t>(distance)], bucket) << distance;
}

TEST(DistanceRows, KeysBehindTheQueryAreMirrored) {
  for (const std::int64_t buckets : {0, 8}) {
    const DistanceSpec spec{.span = 8, .buckets = buckets, .reach = 12};
    const auto from_middle = distance_rows(spec, 41) - spec.span;
    for (std::int64_t i = 0; i < 41; ++i)
      for (std::int64_t j = 0; j < 41; ++j) {
        const auto there = from_middle[i][j].item<std::int64_t>(), back = from_middle[j][i].item<std::int64_t>();
        EXPECT_TRUE(there == -back || (std::max(there, back) == 7 && std::min(there, back) == -8)) << i << " " << j;
      }
  }
}

TEST(DistanceRows, WithoutBucketsFarDistancesShareTheLastRow) {
  EXPECT_EQ(buckets_of({.span = 3}, 6), (std::vector<std::int64_t>{0, 1, 2, 2, 2, 2}));
  EXPECT_EQ(distance_rows({.span = 3}, 6)[0][5].item<std::int64_t>(), 0);
}

class DistanceScores : public ::testing::TestWithParam<std::tuple<bool, bool, bool>> {
 protected:
  static constexpr std::int64_t kBatch = 2, kHeads = 3, kLength = 7, kWidth = 4, kHidden = kHeads * kWidth;
};

TEST_P(DistanceScores, AreTheFormula) {
  const c10::NoGradGuard no_grad;
  at::manual_seed(5);
  const auto [c2p, p2c, own] = GetParam();
  DecoderConfig config;
  config.shape.hidden = kHidden, config.shape.heads = kHeads, config.attend.head_dim = kWidth;
  config.distances = {.span = 4, .buckets = 4, .reach = 16, .c2p = c2p, .p2c = p2c, .own_projections = own};
  config.names.distance_key = "self.pos_key", config.names.distance_query = "self.pos_query";
  torch::nn::Module attention("Attention");
  torch::nn::Linear query(kHidden, kHidden), key(kHidden, kHidden);
  DisentangledScores scores(config, attention, query, key);
  for (auto& item : attention.named_parameters()) item.value().set_data(at::randn(item.value().sizes()));
  EXPECT_EQ(attention.named_parameters().size(), own ? 2u * (c2p + p2c) : 0u);
  const auto q = at::randn({kBatch, kHeads, kLength, kWidth}), k = at::randn(q.sizes()),
             table = at::randn({1, 8, kHidden});
  const Distances distances{table, distance_rows(*config.distances, kLength)};
  const auto found = scores.forward(q, k, distances);

  const auto projected = [&](torch::nn::Linear& shared, const char* name) {
    const auto parameters = attention.named_parameters();
    const std::string at = std::string("self.") + name + ".";
    const auto& weight = own ? parameters[at + "weight"] : shared->weight;
    const auto& bias = own ? parameters[at + "bias"] : shared->bias;
    return (at::matmul(table[0], weight.t()) + bias).view({8, kHeads, kWidth});
  };
  at::Tensor keys, queries;
  if (c2p) keys = projected(key, "pos_key");
  if (p2c) queries = projected(query, "pos_query");
  ASSERT_EQ(found.sizes(), (std::vector<std::int64_t>{kBatch, kHeads, kLength, kLength}));
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (std::int64_t a = 0; a < kHeads; ++a)
      for (std::int64_t i = 0; i < kLength; ++i)
        for (std::int64_t j = 0; j < kLength; ++j) {
          const auto row = distances.rows[i][j].item<std::int64_t>();
          double expected = 0;
          if (c2p) expected += q[b][a][i].dot(keys[row][a]).item<double>();
          if (p2c) expected += k[b][a][j].dot(queries[row][a]).item<double>();
          ASSERT_NEAR(found[b][a][i][j].item<double>(), expected, 1e-5);
        }
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<bool, bool, bool>>& info) {
  const auto [c2p, p2c, own] = info.param;
  return std::string(c2p ? "c2p_" : "") + (p2c ? "p2c_" : "") + (own ? "own" : "shared");
}

INSTANTIATE_TEST_SUITE_P(All, DistanceScores,
                         ::testing::Values(std::tuple(true, true, false), std::tuple(true, true, true),
                                           std::tuple(true, false, true), std::tuple(false, true, false)),
                         name_of);

}  // namespace
}  // namespace fp8::models
