// SPDX-License-Identifier: Apache-2.0
// The rolled history of the nvidia dialect: by hand, against lists of amaxes, and NVIDIA's tables of the update and of
// cached weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "fp8/recipes/tensor_meta.h"

namespace fp8::recipes {
namespace {

using testing::ElementsAre;

std::vector<float> column(const TensorMeta& meta, int tensor) {
  const Eigen::ArrayXf values = meta.amax_history.col(tensor);
  return {values.begin(), values.end()};
}

TEST(NvidiaHistory, FourStepsByHand) {
  DelayedScaling recipe = DelayedScaling::nvidia();
  recipe.amax_history_len = 3;
  TensorMeta meta(1, 3);
  const std::vector<std::vector<float>> during = {{1, 0, 0}, {4, 0, 1}, {2, 1, 4}, {3, 4, 2}};
  const std::vector<std::vector<float>> after = {{0, 0, 1}, {0, 1, 4}, {0, 4, 2}, {0, 2, 3}};
  const float amaxes[] = {1.0f, 4.0f, 2.0f, 3.0f}, maxima[] = {1.0f, 4.0f, 4.0f, 4.0f};
  for (int step = 0; step < 4; ++step) {
    record_amax(meta, recipe, 0, amaxes[step]);
    EXPECT_EQ(column(meta, 0), during[step]) << step;
    update_scales(meta, recipe, 448.0f);
    EXPECT_EQ(meta.scale[0], 448.0f / maxima[step]) << step;
    EXPECT_EQ(meta.scale_inv[0], 1.0f / (448.0f / maxima[step])) << step;
    finish_step(meta, recipe);
    EXPECT_EQ(column(meta, 0), after[step]) << step;
    EXPECT_EQ(meta.amax_history_index, 0);
  }
}

// As NVIDIA's test of the update: history {31, 1024} x {max, most_recent}, margin 2, constant inputs step + .25/.5/.75.
TEST(NvidiaHistory, EqualsAListOfAmaxes) {
  for (const int history : {1, 2, 31, 1024}) {
    for (const AmaxComputeAlgo algo : {AmaxComputeAlgo::max, AmaxComputeAlgo::most_recent}) {
      DelayedScaling recipe = DelayedScaling::nvidia();
      recipe.margin = 2, recipe.amax_history_len = history, recipe.amax_compute_algo = algo;
      TensorMeta meta(3, history);
      std::vector<std::vector<float>> seen(3, std::vector<float>(history, 0.0f));
      for (int step = 0; step < 70; ++step) {
        for (int t = 0; t < 3; ++t) {
          const float amax = static_cast<float>((step * 29) % 53) + 0.25f * static_cast<float>(t + 1);
          record_amax(meta, recipe, t, amax * 0.5f);
          record_amax(meta, recipe, t, amax);
          record_amax(meta, recipe, t, amax * 0.25f);
          seen[t].push_back(amax);
        }
        update_scales(meta, recipe, 448.0f);
        finish_step(meta, recipe);
        for (int t = 0; t < 3; ++t) {
          const float largest = *std::max_element(seen[t].end() - history, seen[t].end());
          const float amax = algo == AmaxComputeAlgo::max ? largest : seen[t].back();
          ASSERT_EQ(meta.scale[t], 448.0f / amax / 4.0f) << step;
          std::vector<float> expected(seen[t].end() - history, seen[t].end());
          expected[0] = 0.0f;
          ASSERT_EQ(column(meta, t), expected) << step;
        }
      }
    }
  }
}

// NVIDIA's table of is_first_microbatch: the column of a weight that stays cached keeps history and scale, where the
// input's rolls. The start of both columns is arbitrary numbers above 0 behind a row of zeros.
TEST(NvidiaHistory, TensorThatIsNotCastKeepsHistoryAndScale) {
  std::mt19937 random(17);
  std::uniform_real_distribution<float> start(0.5f, 2.5f);
  for (const int history : {1, 2, 31, 1024}) {
    for (const bool by_callable : {false, true}) {
      for (const AmaxComputeAlgo algo : {AmaxComputeAlgo::max, AmaxComputeAlgo::most_recent}) {
        DelayedScaling recipe = DelayedScaling::nvidia();
        recipe.margin = 2, recipe.amax_history_len = history, recipe.amax_compute_algo = algo;
        if (by_callable) {
          recipe.scaling_factor_compute_algo = [](const Eigen::ArrayXf& amax, const Eigen::ArrayXf&, float fp8_max,
                                                  const DelayedScaling&) -> Eigen::ArrayXf {
            return fp8_max / amax / 4.0f;
          };
        }
        TensorMeta meta(2, history);
        for (int row = 1; row < history; ++row) meta.amax_history.row(row) << start(random), start(random);
        meta.scale << 3.0f, 5.0f;
        meta.scale_inv << 1.0f / 3.0f, 0.2f;
        const std::vector<float> weight = column(meta, 1);
        std::vector<float> input = column(meta, 0);
        for (int step = 0; step < 40; ++step) {
          const float amax = start(random);
          record_amax(meta, recipe, 0, amax);
          if (step % 2 == 1) record_amax(meta, recipe, 1, 0.0f);  // a weight of zeros says as little
          update_scales(meta, recipe, 448.0f);
          finish_step(meta, recipe);
          input.push_back(amax);
          const float largest = *std::max_element(input.end() - history, input.end());
          EXPECT_EQ(meta.scale[0], 448.0f / (algo == AmaxComputeAlgo::max ? largest : amax) / 4.0f)
              << history << " " << step;
          EXPECT_EQ(meta.scale[1], 5.0f) << history << " " << step;
          EXPECT_EQ(meta.scale_inv[1], 0.2f);
          ASSERT_EQ(column(meta, 1), weight) << history << " " << step;
        }
        const float before = meta.scale[0];
        record_amax(meta, recipe, 1, 7.0f);  // cast again, larger than all that it has seen; now the input is not
        update_scales(meta, recipe, 448.0f);
        finish_step(meta, recipe);
        EXPECT_EQ(meta.scale[1], 448.0f / 7.0f / 4.0f);
        EXPECT_EQ(column(meta, 1).back(), history > 1 ? 7.0f : 0.0f);
        EXPECT_EQ(meta.scale[0], before);
      }
    }
  }
}

TEST(NvidiaHistory, ResizingKeepsTheNewest) {
  DelayedScaling recipe = DelayedScaling::nvidia();
  recipe.amax_history_len = 4;
  TensorMeta meta(1, 4);
  meta.amax_history.col(0) << 0.0f, 1.0f, 2.0f, 3.0f;  // 3 is the newest
  TensorMeta shorter = meta, longer = meta;
  resize_history(shorter, recipe, 3);
  EXPECT_THAT(column(shorter, 0), ElementsAre(0.0f, 2.0f, 3.0f));
  resize_history(longer, recipe, 6);
  EXPECT_THAT(column(longer, 0), ElementsAre(0.0f, 0.0f, 0.0f, 1.0f, 2.0f, 3.0f));
  resize_history(meta, recipe, 1);
  EXPECT_THAT(column(meta, 0), ElementsAre(0.0f));
  EXPECT_EQ(shorter.amax_history_index, 0);
}

}  // namespace
}  // namespace fp8::recipes
