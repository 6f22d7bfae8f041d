// SPDX-License-Identifier: Apache-2.0
// The state of delayed scaling: the ring against simulations that keep a plain list of amaxes, the vendor's tables of
// changed histories, and what several records, callables and broken values do. Then the rolled history.
#include "fp8/recipes/tensor_meta.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "support/throws_with.h"

namespace fp8::recipes {
namespace {

const float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

std::vector<float> column(const TensorMeta& meta, int tensor) {
  const Eigen::ArrayXf values = meta.amax_history.col(tensor);
  return {values.begin(), values.end()};
}

// A module's forward entry and the casts after it, in the documented order.
class HabanaModule {
 public:
  HabanaModule(const DelayedScaling& recipe, int n) : recipe_(recipe), meta(n, recipe.amax_history_len) {}

  void forward(const std::vector<float>& amaxes) {
    ++run_cnt_;
    if (measured_) {
      if (updates_scale(recipe_, run_cnt_)) update_scales(meta, recipe_, 57344.0f);
      finish_step(meta, recipe_);
    }
    measured_ = measures_amax(recipe_, run_cnt_);
    if (!measured_) return;
    for (std::size_t i = 0; i < amaxes.size(); ++i) record_amax(meta, recipe_, static_cast<int>(i), amaxes[i]);
  }

  void set_history(int history) {
    resize_history(meta, recipe_, history);
    recipe_.amax_history_len = history;
  }

 private:
  DelayedScaling recipe_;
  std::int64_t run_cnt_ = 0;
  bool measured_ = false;

 public:
  TensorMeta meta;
};

// The vendor's formula in f64, for amaxes well inside of f32.
float pow2_scale(float amax, double fp8_max) {
  return static_cast<float>(std::pow(2.0, std::floor(std::log2(fp8_max / static_cast<double>(amax)))));
}

TEST(TensorMeta, BeginsWithOnesAndZeros) {
  const TensorMeta meta(3, 4);
  EXPECT_EQ(meta.tensors(), 3);
  EXPECT_EQ(meta.history(), 4);
  EXPECT_TRUE((meta.scale == 1.0f).all() && (meta.scale_inv == 1.0f).all() && (meta.amax_history == 0.0f).all());
  EXPECT_EQ(meta.amax_history_index, 0);
  validate(meta);
  validate(TensorMeta());
  EXPECT_THROW(TensorMeta(-1, 1), std::invalid_argument);
  EXPECT_THROW(TensorMeta(1, 0), std::invalid_argument);
  EXPECT_THROW(TensorMeta(1, 65537), std::invalid_argument);
  EXPECT_THROW(TensorMeta(2000000000, 65536), std::invalid_argument);
}

// Independent of rings and rows: all amaxes ever, and the documented schedule. 40 steps of every pair of the table.
TEST(HabanaHistory, ScheduleAndScalesEqualASimulation) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> exponent(-12.0f, 12.0f);
  for (const AmaxComputeAlgo algo : {AmaxComputeAlgo::max, AmaxComputeAlgo::most_recent})
    for (const int history : {1, 3, 5})
      for (const int interval : {5, 3, 1}) {
        HabanaModule module({.interval = interval, .amax_history_len = history, .amax_compute_algo = algo}, 2);
        std::vector<std::vector<float>> seen(2);
        std::vector<float> scale = {1.0f, 1.0f};
        for (int step = 1; step <= 40; ++step) {
          if (step > 1 && (step - 2) % interval == 0) {  // from what the last `history` steps saw
            for (int t = 0; t < 2; ++t) {
              const auto last = seen[t].end() - std::min<std::ptrdiff_t>(history, std::ssize(seen[t]));
              const float amax = algo == AmaxComputeAlgo::max ? *std::max_element(last, seen[t].end()) : seen[t].back();
              scale[t] = pow2_scale(amax, 57344.0);
            }
          }
          const std::vector<float> amaxes = {std::exp2(exponent(random)), std::exp2(exponent(random))};
          module.forward(amaxes);
          for (int t = 0; t < 2; ++t) {
            ASSERT_EQ(module.meta.scale[t], scale[t]) << "step " << step << ", " << history << ", " << interval;
            ASSERT_EQ(module.meta.scale_inv[t], 1.0f / scale[t]);
            seen[t].push_back(amaxes[t]);
          }
        }
      }
}

TEST(HabanaHistory, FirstStepHasScaleOneAndTheSecondIsExact) {
  HabanaModule module({}, 2);
  module.forward({0.47f, 109000.0f});
  EXPECT_THAT(std::vector<float>(module.meta.scale.begin(), module.meta.scale.end()), ElementsAre(1.0f, 1.0f));
  module.forward({1.0f, 1.0f});
  EXPECT_THAT(std::vector<float>(module.meta.scale.begin(), module.meta.scale.end()), ElementsAre(65536.0f, 0.5f));
  EXPECT_EQ(module.meta.scale_inv[0], 1.0f / 65536.0f);
}

TEST(HabanaHistory, StaleRowOnlyBehindTheFlag) {
  HabanaModule right({.amax_history_len = 3}, 1), vendor({.amax_history_len = 3, .stale_row_compat = true}, 1);
  const float amaxes[] = {1.0f, 4.0f, 16.0f, 64.0f, 256.0f};
  const float of_row_0[] = {1.0f, 1.0f, 1.0f, 64.0f};  // written in steps 1 and 4
  for (int step = 0; step < 5; ++step) {
    right.forward({amaxes[step]});
    vendor.forward({amaxes[step]});
    if (step == 0) continue;
    EXPECT_EQ(right.meta.scale[0], pow2_scale(amaxes[step - 1], 57344.0)) << step;
    EXPECT_EQ(vendor.meta.scale[0], pow2_scale(of_row_0[step - 1], 57344.0)) << step;
  }
}

TEST(HabanaHistory, SeveralRecordsOfAStepKeepTheLarger) {
  const DelayedScaling recipe{.amax_history_len = 2};
  TensorMeta meta(1, 2);
  record_amax(meta, recipe, 0, 8.0f);
  finish_step(meta, recipe);
  EXPECT_EQ(current_amax(meta, recipe, 0), 8.0f);  // known until the next cast
  record_amax(meta, recipe, 0, 2.0f);              // a new step: smaller, and yet it counts
  record_amax(meta, recipe, 0, 3.0f);
  record_amax(meta, recipe, 0, 1.0f);
  EXPECT_EQ(current_amax(meta, recipe, 0), 3.0f);
  EXPECT_THAT(column(meta, 0), UnorderedElementsAre(8.0f, 3.0f));
}

TEST(HabanaHistory, TensorThatIsNotCastKeepsItsAmaxAndScale) {
  for (const int history : {1, 3})
    for (const AmaxComputeAlgo algo : {AmaxComputeAlgo::max, AmaxComputeAlgo::most_recent}) {
      HabanaModule module({.amax_history_len = history, .amax_compute_algo = algo}, 2);
      module.forward({5.0f, 32.0f});
      for (int step = 0; step < 7; ++step) module.forward({1.0f});  // the second is a weight that stays cached
      EXPECT_EQ(module.meta.scale[1], pow2_scale(32.0f, 57344.0)) << history;
      EXPECT_EQ(module.meta.scale[0], pow2_scale(1.0f, 57344.0)) << history;
    }
}

// State written between two steps and read without `recorded` continues as if nothing had happened.
TEST(HabanaHistory, RecordedNeedNotBeStored) {
  for (const int interval : {1, 4}) {
    HabanaModule module({.interval = interval, .amax_history_len = 3, .amax_compute_algo = AmaxComputeAlgo::max}, 1);
    HabanaModule loaded = module;
    for (int step = 0; step < 30; ++step) {
      const float amax = 1.0f + static_cast<float>((step * 37) % 11);
      module.forward({amax});
      loaded.forward({amax});
      loaded.meta.recorded.setZero();
      ASSERT_TRUE((loaded.meta.amax_history == module.meta.amax_history).all()) << step;
      ASSERT_EQ(loaded.meta.scale[0], module.meta.scale[0]) << step;
      ASSERT_EQ(loaded.meta.amax_history_index, module.meta.amax_history_index) << step;
    }
  }
}

// (history, steps) one after another: after each entry the newest amaxes, as many as fit, are still there.
TEST(HabanaHistory, VendorsTablesOfChangedLengths) {
  const std::vector<std::vector<std::pair<int, int>>> tables = {
      {{3, 5}, {2, 1}, {2, 1}}, {{5, 3}, {2, 1}, {2, 1}}, {{5, 7}, {4, 1}}, {{4, 6}, {8, 4}, {8, 1}}};
  for (const auto& table : tables) {
    HabanaModule module({.amax_history_len = table[0].first}, 1);
    std::vector<float> seen;
    for (const auto& [history, steps] : table) {
      module.set_history(history);
      ASSERT_EQ(module.meta.history(), history);
      for (int i = 0; i < steps; ++i) {
        seen.push_back(static_cast<float>(seen.size() + 1));
        module.forward({seen.back()});
      }
      const std::vector<float> held = column(module.meta, 0);
      for (std::size_t back = 1; back <= std::min<std::size_t>(history, seen.size()); ++back)
        EXPECT_THAT(held, testing::Contains(seen[seen.size() - back])) << history;
    }
    // Nothing is lost and nothing stays too long: the next update sees exactly the newest.
    const int history = table.back().first;
    const float expected =
        *std::max_element(seen.end() - std::min<std::ptrdiff_t>(history, std::ssize(seen)), seen.end());
    DelayedScaling max{.amax_history_len = history, .amax_compute_algo = AmaxComputeAlgo::max};
    EXPECT_EQ(current_amax(module.meta, max, 0), expected);
  }
}

TEST(HabanaHistory, RowsAfterResizing) {
  const DelayedScaling recipe{.amax_history_len = 5};
  TensorMeta meta(1, 5);
  meta.amax_history.col(0) << 6.0f, 7.0f, 3.0f, 4.0f, 5.0f;  // 7 steps, the newest in row 1
  meta.amax_history_index = 1;
  TensorMeta shorter = meta, longer = meta;
  resize_history(shorter, recipe, 3);
  EXPECT_THAT(column(shorter, 0), ElementsAre(5.0f, 6.0f, 7.0f));
  EXPECT_EQ(shorter.amax_history_index, 2);
  resize_history(longer, recipe, 7);
  EXPECT_THAT(column(longer, 0), ElementsAre(6.0f, 7.0f, 0.0f, 0.0f, 3.0f, 4.0f, 5.0f));
  EXPECT_EQ(longer.amax_history_index, 1);
  EXPECT_THROW(resize_history(meta, recipe, 0), std::invalid_argument);
  EXPECT_THROW(resize_history(meta, recipe, 65537), std::invalid_argument);
}

// ---- values that say nothing, callables, misuse

TEST(TensorMeta, BrokenAmaxesKeepTheScale) {
  for (DelayedScaling recipe : {DelayedScaling::habana(), DelayedScaling::nvidia()})
    for (const float broken : {0.0f, kInf, kNaN})
      for (const AmaxComputeAlgo algo : {AmaxComputeAlgo::max, AmaxComputeAlgo::most_recent}) {
        recipe.amax_compute_algo = algo, recipe.amax_history_len = 1;
        TensorMeta meta(1, 1);
        meta.scale[0] = 0.25f, meta.scale_inv[0] = 4.0f;
        record_amax(meta, recipe, 0, broken);
        update_scales(meta, recipe, 448.0f);
        EXPECT_EQ(meta.scale[0], 0.25f) << broken;
        EXPECT_EQ(meta.scale_inv[0], 4.0f) << broken;
      }
}

TEST(TensorMeta, NaNIsNotHiddenByALaterRecord) {
  for (DelayedScaling recipe : {DelayedScaling::habana(), DelayedScaling::nvidia()}) {
    recipe.amax_compute_algo = AmaxComputeAlgo::max, recipe.amax_history_len = 2;
    TensorMeta meta(1, 2);
    record_amax(meta, recipe, 0, kNaN);
    record_amax(meta, recipe, 0, 2.0f);
    EXPECT_TRUE(std::isnan(current_amax(meta, recipe, 0)));
    finish_step(meta, recipe);
    record_amax(meta, recipe, 0, 2.0f);
    EXPECT_TRUE(std::isnan(current_amax(meta, recipe, 0)));  // the maximum of a history that holds it
    finish_step(meta, recipe);
    record_amax(meta, recipe, 0, 3.0f);
    EXPECT_EQ(current_amax(meta, recipe, 0), 3.0f);  // it has left
  }
}

TEST(TensorMeta, CallableSeesTheNewestFirstInBothDialects) {
  for (DelayedScaling recipe : {DelayedScaling::habana(), DelayedScaling::nvidia()}) {
    recipe.amax_history_len = 3;
    std::vector<float> rows;
    recipe.amax_compute_algo = [&](const AmaxRows& history) -> Eigen::ArrayXf {
      rows.assign(history.col(0).begin(), history.col(0).end());
      return 0.5f * history.row(0).transpose() + 0.5f * history.row(1).transpose();
    };
    TensorMeta meta(2, 3);
    for (const float amax : {1.0f, 2.0f, 3.0f, 4.0f}) {
      if (amax > 1.0f) finish_step(meta, recipe);
      record_amax(meta, recipe, 0, amax);
      record_amax(meta, recipe, 1, 10.0f * amax);
    }
    EXPECT_EQ(current_amax(meta, recipe, 1), 35.0f);
    EXPECT_THAT(rows, ElementsAre(4.0f, 3.0f, 2.0f));
    update_scales(meta, recipe, 448.0f);
    EXPECT_EQ(meta.scale[0], recipe.power_of_two_scale ? 128.0f : 448.0f / 3.5f);
  }
}

TEST(TensorMeta, ScaleCallableAndItsUnusableResults) {
  DelayedScaling recipe;
  recipe.scaling_factor_compute_algo = [](const Eigen::ArrayXf& amax, const Eigen::ArrayXf& scale, float fp8_max,
                                          const DelayedScaling&) -> Eigen::ArrayXf {
    return fp8_max / amax + 0.0f * scale;
  };
  TensorMeta meta(4, 1);
  meta.scale << 2.0f, 2.0f, 2.0f, 2.0f;
  meta.scale_inv << 0.5f, 0.5f, 0.5f, 0.5f;
  const float amaxes[] = {7.0f, 0.0f, kInf, kNaN};
  for (int i = 0; i < 4; ++i) record_amax(meta, recipe, i, amaxes[i]);
  update_scales(meta, recipe, 448.0f);
  EXPECT_THAT(std::vector<float>(meta.scale.begin(), meta.scale.end()), ElementsAre(64.0f, 2.0f, 2.0f, 2.0f));
  EXPECT_THAT(std::vector<float>(meta.scale_inv.begin(), meta.scale_inv.end()),
              ElementsAre(1.0f / 64.0f, 0.5f, 0.5f, 0.5f));

  recipe.scaling_factor_compute_algo = [](const Eigen::ArrayXf&, const Eigen::ArrayXf&, float,
                                          const DelayedScaling&) -> Eigen::ArrayXf { return Eigen::ArrayXf::Ones(3); };
  EXPECT_ERROR(std::invalid_argument, update_scales(meta, recipe, 448.0f),
               "scaling_factor_compute_algo returned 3 values, allowed: 4");
  recipe.amax_compute_algo = [](const AmaxRows&) -> Eigen::ArrayXf { return Eigen::ArrayXf::Ones(5); };
  EXPECT_ERROR(std::invalid_argument, current_amax(meta, recipe, 0), "amax_compute_algo returned 5 values");
}

TEST(TensorMeta, MisuseIsAnErrorByName) {
  TensorMeta meta(2, 3);
  EXPECT_ERROR(std::invalid_argument, record_amax(meta, {}, 2, 1.0f), "tensor is 2, allowed: 0 to 1");
  EXPECT_ERROR(std::invalid_argument, record_amax(meta, {}, -1, 1.0f), "tensor is -1");
  EXPECT_ERROR(std::invalid_argument, record_amax(meta, {}, 0, -1.0f), "amax is -1");
  EXPECT_ERROR(std::invalid_argument, current_amax(TensorMeta(), {}, 0), "no tensors");
}

TEST(TensorMeta, StateFromAFileIsChecked) {
  const auto message_with = [](auto&& change) {
    TensorMeta meta(2, 3);
    change(meta);
    return test::error_of<std::invalid_argument>([&] { validate(meta); });
  };
  EXPECT_THAT(message_with([](auto& m) { m.scale[1] = 0.0f; }), HasSubstr("scale[1] is 0"));
  EXPECT_THAT(message_with([](auto& m) { m.scale_inv[0] = kNaN; }), HasSubstr("scale_inv[0] is nan"));
  EXPECT_THAT(message_with([](auto& m) { m.scale_inv.resize(1); }), HasSubstr("scale_inv is 1 values, allowed: 2"));
  EXPECT_THAT(message_with([](auto& m) { m.amax_history.setZero(3, 1); }), HasSubstr("amax_history is 1 columns"));
  EXPECT_THAT(message_with([](auto& m) { m.amax_history.resize(0, 2); }), HasSubstr("history's length is 0"));
  EXPECT_THAT(message_with([](auto& m) { m.amax_history_index = 3; }),
              HasSubstr("amax_history_index is 3, allowed: 0 to 2"));
  EXPECT_THAT(message_with([](auto& m) { m.amax_history(1, 1) = -2.0f; }), HasSubstr("amax_history is below 0"));
  EXPECT_THAT(message_with([](auto& m) { m.recorded.resize(5); }), HasSubstr("recorded is 5 values"));
  EXPECT_EQ(message_with([](auto& m) { m.amax_history(0, 0) = kNaN; }), "");
}

// The rolled history of the nvidia dialect: by hand, against lists of amaxes, and NVIDIA's tables of the update and of
// cached weights.

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
  for (const int history : {1, 2, 31, 1024})
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

// NVIDIA's table of is_first_microbatch: the column of a weight that stays cached keeps history and scale, where the
// input's rolls. The start of both columns is arbitrary numbers above 0 behind a row of zeros.
TEST(NvidiaHistory, TensorThatIsNotCastKeepsHistoryAndScale) {
  std::mt19937 random(17);
  std::uniform_real_distribution<float> start(0.5f, 2.5f);
  for (const int history : {1, 2, 31, 1024})
    for (const bool by_callable : {false, true})
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
