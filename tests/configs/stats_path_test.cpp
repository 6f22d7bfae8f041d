// SPDX-License-Identifier: Apache-2.0
// File names against those that Intel Neural Compressor writes.
#include "fp8/configs/stats_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace fp8::configs {
namespace {

TEST(StatsPath, MeasurementsOfOneProcess) {
  const MeasurementFiles files = measurement_files("out/inc_output", "maxabs");
  EXPECT_EQ(files.json, "out/inc_output_hooks_maxabs.json");
  EXPECT_EQ(files.npz, "out/inc_output_hooks_maxabs.npz");
  EXPECT_EQ(files.module_list, "out/inc_output_hooks_maxabs_mod_list.json");
}

TEST(StatsPath, MeasurementsOfARank) {
  const MeasurementFiles files = measurement_files("out/inc_output", "maxabs", Rank{3, 8});
  EXPECT_EQ(files.json, "out/inc_output_hooks_maxabs_3_8.json");
  EXPECT_EQ(files.npz, "out/inc_output_hooks_maxabs_3_8.npz");
  EXPECT_EQ(files.module_list, "out/inc_output_hooks_maxabs_3_8_mod_list.json");
}

TEST(StatsPath, ScalesCarryTheMethodInUpperCase) {
  EXPECT_EQ(scale_files("./hqt/measure", "maxabs", "maxabs_hw").json, "./hqt/measure_hooks_maxabs_MAXABS_HW.json");
  EXPECT_EQ(scale_files("./hqt/measure", "maxabs", "MAXABS_POW2", Rank{0, 2}).npz,
            "./hqt/measure_hooks_maxabs_MAXABS_POW2_0_2.npz");
}

TEST(StatsPath, PrefixWithoutAFolderAndWithADot) {
  EXPECT_EQ(measurement_files("stats", "maxabs").json, "stats_hooks_maxabs.json");
  EXPECT_EQ(measurement_files("out/v1.5", "maxabs").json, "out/v1.5_hooks_maxabs.json");  // no extension is cut off
  EXPECT_EQ(measurement_files("out/", "maxabs").npz, "out/_hooks_maxabs.npz");
}

TEST(StatsPath, RankMustLieInItsWorld) {
  EXPECT_EQ(rank_suffix(std::nullopt), "");
  EXPECT_EQ(rank_suffix(Rank{0, 1}), "_0_1");
  EXPECT_THROW(rank_suffix(Rank{2, 2}), std::invalid_argument);
  EXPECT_THROW(rank_suffix(Rank{-1, 2}), std::invalid_argument);
  EXPECT_THROW(rank_suffix(Rank{0, 0}), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::configs
