// SPDX-License-Identifier: Apache-2.0
// Whether scales can be made of what an observer kept is asked of the table.
#include <gtest/gtest.h>

#include "fp8/measure/files/observer_types.h"
#include "support/throws_with.h"

namespace fp8::measure {
namespace {

configs::QuantConfig config_with(const std::string& observer, io::Json keys = io::Json::object()) {
  keys["observer"] = observer;
  return configs::parse_quant_config(keys, "q.json", parse_options());
}

MeasurementFile file_of(const std::string& observer, std::vector<Amax> inputs = {{1.0f}}) {
  MeasurementFile file;
  file.observer = observer;
  file.modules = {{"m", std::move(inputs), std::nullopt, std::nullopt}};
  return file;
}

TEST(Kept, NoScaleIsMadeOfTheFilesOfShapeAndSave) {
  for (const auto& [observer, keeps] : {std::pair{"shape", "sizes"}, std::pair{"save", "tensors for a look at them"}}) {
    EXPECT_EQ(observer_problem(config_with(observer)),
              std::string("q.json: key 'observer': found \"") + observer + "\", which keeps " + keeps +
                  " and is no ground for scales, allowed where scales are made of measurements: maxabs, "
                  "maxabs_per_channel, histogram, percentile, mse, kl");
    EXPECT_EQ(observer_problem(config_with(observer, {{"scale_method", "unit_scale"}})), "");
    EXPECT_EQ(
        observer_problem(config_with(observer, {{"scale_method", "maxabs_pow2"}, {"dynamic_quantization", true}})), "");
    EXPECT_TRUE(test::throws_with({"key 'observer'"}, [&observer = observer] {
      refuse_observer_without_amax(config_with(observer, {{"mode", "AUTO"}}));
    }));
    EXPECT_TRUE(test::throws_with(
        {"measurements: found those of observer '", keeps,
         "is no ground for scales; measure with maxabs, maxabs_per_channel, histogram, percentile, mse or kl"},
        [&observer = observer] {
          MeasurementFile file = file_of(observer);
          if (file.observer == "shape") file.mode = MeasurementMode::shape;
          require_amax(file);
        }));
  }
  for (const char* observer : {"maxabs", "maxabs_per_channel", "histogram", "percentile", "mse", "kl"}) {
    EXPECT_EQ(observer_problem(config_with(observer)), "") << observer;
    EXPECT_NO_THROW(require_amax(file_of(observer))) << observer;
  }
  EXPECT_TRUE(test::throws_with({"measurements: m.inputs[0]: expected one amax, found 2"},
                                [] { require_amax(file_of("maxabs", {{1.0f, 2.0f}})); }));
}

TEST(Kept, ThresholdsAndHeads) {
  for (const char* observer : {"", "maxabs", "maxabs_per_channel", "histogram", "shape", "save"})
    EXPECT_FALSE(has_thresholds(file_of(observer))) << observer;
  for (const char* observer : {"percentile", "mse", "kl", "of_my_own"})
    EXPECT_TRUE(has_thresholds(file_of(observer))) << observer;
  for (const char* observer : {"", "maxabs", "maxabs_per_channel"})
    EXPECT_TRUE(has_heads(file_of(observer))) << observer;
  for (const char* observer : {"histogram", "percentile", "of_my_own"})
    EXPECT_FALSE(has_heads(file_of(observer))) << observer;
}

}  // namespace
}  // namespace fp8::measure
