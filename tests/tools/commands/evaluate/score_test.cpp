// SPDX-License-Identifier: Apache-2.0
// Scores against the formulas written out in double with plain loops.
#include "fp8/tools/commands/evaluate/score.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace fp8::commands {
namespace {

std::vector<double> softmax(const at::Tensor& row) {
  std::vector<double> p;
  double sum = 0;
  for (std::int64_t v = 0; v < row.size(0); ++v) {
    p.push_back(std::exp(row[v].item<double>()));
    sum += p.back();
  }
  for (auto& value : p) value /= sum;
  return p;
}

ChunkScore expected_score(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& reference) {
  ChunkScore score;
  for (std::int64_t t = 0; t < logits.size(0); ++t) {
    const auto q = softmax(logits[t]), p = softmax(reference[t]);
    if (t + 1 < logits.size(0)) score.nll -= std::log(q[static_cast<std::size_t>(ids[t + 1].item<std::int64_t>())]);
    for (std::size_t v = 0; v < p.size(); ++v) score.kl += p[v] * std::log(p[v] / q[v]);
    score.agree += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
  }
  return score;
}

TEST(ScoreChunks, EqualsTheFormulas) {
  at::manual_seed(3);
  const auto logits = at::randn({3, 7, 11}) * 2, reference = logits + at::randn({3, 7, 11});
  const auto ids = at::randint(0, 11, {3, 7}, at::kLong);
  const auto scores = score_chunks(logits, ids, reference);
  ASSERT_EQ(scores.size(), 3u);
  std::int64_t agree = 0;
  for (int b = 0; b < 3; ++b) {
    const auto expected = expected_score(logits[b], ids[b], reference[b]);
    EXPECT_NEAR(scores[b].nll, expected.nll, 1e-5);
    EXPECT_NEAR(scores[b].kl, expected.kl, 1e-10);
    EXPECT_EQ(scores[b].agree, expected.agree);
    agree += scores[b].agree;
  }
  EXPECT_GT(agree, 0);
  EXPECT_LT(agree, 21);
}

TEST(ScoreChunks, SlicesOfLargeVocabulariesChangeNothing) {
  at::manual_seed(4);
  const std::int64_t vocabulary = 400'000;  // two rows a slice
  const auto logits = at::randn({1, 5, vocabulary});
  const auto ids = at::randint(0, vocabulary, {1, 5}, at::kLong);
  const auto log_p = at::log_softmax(logits.to(at::kDouble), -1);
  double nll = 0;
  for (int t = 0; t < 4; ++t) nll -= log_p[0][t][ids[0][t + 1].item<std::int64_t>()].item<double>();
  const auto score = score_chunks(logits, ids, logits)[0];
  EXPECT_NEAR(score.nll, nll, 1e-4);
  EXPECT_NEAR(score.kl, 0, 1e-12);
  EXPECT_EQ(score.agree, 5);
}

TEST(ScoreChunks, NaNIsNotHidden) {
  auto logits = at::zeros({2, 3, 4});
  logits[1][0][2] = std::numeric_limits<float>::quiet_NaN();
  const auto scores = score_chunks(logits, at::zeros({2, 3}, at::kLong), {});
  EXPECT_NEAR(scores[0].nll, 2 * std::log(4.0), 1e-6);
  EXPECT_TRUE(std::isnan(scores[1].nll));
  EXPECT_EQ(scores[0].kl, 0);
}

TEST(Score, WithoutIdsThereIsADistanceAlone) {
  const auto a = at::tensor({0.0f, 1.0f, 2.0f, 3.0f}).view({1, 2, 2}),
             b = at::tensor({0.0f, 2.0f, 3.0f, 2.0f}).view({1, 2, 2});
  const auto with = score_chunks(a, at::tensor({0, 1}, at::kLong).view({1, 2}), b), without = score_chunks(a, {}, b);
  EXPECT_EQ(without[0].nll, 0);
  EXPECT_EQ(without[0].kl, with[0].kl);
  EXPECT_EQ(without[0].agree, 1);
}

TEST(Score, CosinesOfMeans) {
  const auto a = at::tensor({1.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}).view({2, 2, 2});
  const auto b = at::tensor({3.0f, 3.0f, 3.0f, 5.0f, 0.0f, 0.0f, 0.0f, 0.0f}).view({2, 2, 2});
  const auto found = cosines(a, b);  // (1, 0) and (3, 4); 0 and 0
  EXPECT_DOUBLE_EQ(found[0], 0.6);
  EXPECT_DOUBLE_EQ(found[1], 1);
}

}  // namespace
}  // namespace fp8::commands
