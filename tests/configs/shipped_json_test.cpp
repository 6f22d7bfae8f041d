// SPDX-License-Identifier: Apache-2.0
// The configurations in configs/json: all of them parse, and say what their names say.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "fp8/configs/configs.h"

namespace fp8::configs {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(FP8_SOURCE_DIR) / "configs/json";

TEST(ShippedJson, AllParse) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    ASSERT_EQ(entry.path().extension(), ".json");
    EXPECT_NO_THROW(read_quant_config(entry.path())) << entry.path();
    names.insert(entry.path().filename());
  }
  EXPECT_EQ(names, (std::set<std::string>{"maxabs_measure.json", "maxabs_quant.json", "unit_scale_quant.json"}));
}

TEST(ShippedJson, SayWhatTheirNamesSay) {
  EXPECT_EQ(read_quant_config(kFolder / "maxabs_measure.json").mode, QuantMode::MEASURE);
  const QuantConfig quant = read_quant_config(kFolder / "maxabs_quant.json");
  EXPECT_EQ(quant.mode, QuantMode::QUANTIZE);
  EXPECT_EQ(quant.scale_method.name, "MAXABS_HW");
  const QuantConfig unit = read_quant_config(kFolder / "unit_scale_quant.json");
  EXPECT_EQ(unit.mode, QuantMode::QUANTIZE);
  EXPECT_EQ(unit.scale_method.name, "UNIT_SCALE");
}

TEST(ShippedJson, QuantizingFindsWhatMeasuringWrote) {
  EXPECT_EQ(read_quant_config(kFolder / "maxabs_measure.json").dump_stats_path,
            read_quant_config(kFolder / "maxabs_quant.json").dump_stats_path);
}

}  // namespace
}  // namespace fp8::configs
