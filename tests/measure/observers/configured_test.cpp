// SPDX-License-Identifier: Apache-2.0
// What a QUANT_CONFIG's observer may be, and which measurements it reads.
#include <gtest/gtest.h>

#include <algorithm>

#include "fp8/measure/files/observer_types.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::measure {
namespace {

/// A measurement of one module with that input.
void write_one_module(const std::filesystem::path& prefix, const std::string& observer, float amax) {
  MeasurementFile file;
  file.modules = {{"a", {{amax}}, std::nullopt, std::nullopt}};
  write_measurements(prefix.string(), file, {observer, {}});
}

TEST(ConfiguredObserver, QuantizingReadsTheMeasurementOfTheConfigsObserver) {
  const test::TempDir folder;
  write_one_module(folder / "s", "maxabs", 1.0f);
  write_one_module(folder / "s", "percentile", 2.0f);
  const auto input = [&](io::Json json, const std::string& where = {}) {
    if (!json.contains("dump_stats_path")) json["dump_stats_path"] = (folder / "s").string();
    const auto file = measurements_for(configs::parse_quant_config(json, "c.json"), where);
    return std::pair(file.observer, file.modules.at(0).inputs.at(0).at(0));
  };
  const std::pair<std::string, float> maxabs{"maxabs", 1.0f}, percentile{"percentile", 2.0f};
  EXPECT_EQ(input({}), maxabs);
  EXPECT_EQ(input({{"observer", "percentile"}}), percentile);
  EXPECT_EQ(input({{"observer", "percentile"}}, folder.path().string()), percentile);
  EXPECT_TRUE(test::throws_with({"s_hooks_kl.json: no such file"}, [&] { input({{"observer", "kl"}}); }));
  EXPECT_TRUE(
      test::throws_with({"key 'dump_stats_path': found \"\", but scale_method MAXABS_HW reads measurements there"},
                        [&] { input({{"dump_stats_path", ""}}); }));
  EXPECT_EQ(input({{"dump_stats_path", ""}}, (folder / "s").string()), maxabs) << "a place that is named needs no path";
  for (const char* observer : {"shape", "save"}) {
    EXPECT_TRUE(test::throws_with({std::string("key 'observer': found \"") + observer + "\""},
                                  [&] { input({{"observer", observer}}); }));
  }
  const test::TempDir other;
  write_one_module(other / "s", "percentile", 2.0f);
  EXPECT_EQ(input({}, other.path().string()), percentile) << "the config names no observer";
  EXPECT_TRUE(test::throws_with({"key 'observer': found \"maxabs\"", "holds measurements of observer 'percentile'"},
                                [&] { input({{"observer", "maxabs"}}, other.path().string()); }));
}

TEST(ConfiguredObserver, IsOneOfTheTable) {
  const auto options = parse_options();
  const auto knows = [&](const std::string& name) {
    return std::any_of(options.observers.begin(), options.observers.end(),
                       [&](const auto& o) { return o.name == name; });
  };
  EXPECT_TRUE(knows("maxabs") && knows("kl"));
  EXPECT_FALSE(knows("kurtosis"));
}

}  // namespace
}  // namespace fp8::measure
