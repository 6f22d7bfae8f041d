// SPDX-License-Identifier: Apache-2.0
// Environment variables: typed values, errors, and who stands in file names.
#include "fp8/configs/environment.h"

#include "fp8/configs/quant_config.h"
#include "support/launchers.h"
#include "support/throws_with.h"

namespace fp8::configs {
namespace {

using Variables = std::map<std::string, std::string>;

Environment read(const Variables& variables) {
  return environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Environment, NothingSet) {
  const Environment e = read({});
  EXPECT_EQ(e.quant_config, std::nullopt);
  EXPECT_EQ(e.process(), std::nullopt);
  EXPECT_FALSE(e.runtime_scale_patching);
  EXPECT_TRUE(e.calc_scale_with_cguid);
  EXPECT_FALSE(e.calc_rounding_with_cguid);
  EXPECT_FALSE(e.vllm_dynamic_kv_quant);
  EXPECT_EQ(e.measurement_dump_method, 1);
  EXPECT_EQ(e.log_level, std::nullopt);
  EXPECT_TRUE(e.report.empty());
  EXPECT_TRUE(read({{"WORLD_SIZE", ""}, {"LOG_LEVEL_INC", ""}}).report.empty());  // empty is unset
}

TEST(Environment, EveryVariable) {
  const Environment e = read({{"QUANT_CONFIG", "a/b.json"},
                              {"LOCAL_RANK", "1"},
                              {"RANK", "5"},
                              {"WORLD_SIZE", "8"},
                              {"INC_TARGET_DEVICE", "CPU"},
                              {"RUNTIME_SCALE_PATCHING", "1"},
                              {"CALC_SCALE_WITH_CGUID", "False"},
                              {"CALC_ROUNDING_WITH_CGUID", "true"},
                              {"SCALE_METHOD_CONFIG_DUMP_PATH", "m.json"},
                              {"MEASUREMENT_DUMP_METHOD", "5"},
                              {"VLLM_DYNAMIC_KV_QUANT", "0"},
                              {"LOG_LEVEL_ALL", "3"},
                              {"ENABLE_CONSOLE", "1"}});
  EXPECT_EQ(e.quant_config, "a/b.json");
  ASSERT_TRUE(e.process().has_value());
  EXPECT_EQ(e.process()->index, 5);
  EXPECT_EQ(e.process()->world, 8);
  EXPECT_EQ(e.target_device, "cpu");
  EXPECT_TRUE(e.runtime_scale_patching);
  EXPECT_FALSE(e.calc_scale_with_cguid);
  EXPECT_TRUE(e.calc_rounding_with_cguid);
  EXPECT_EQ(e.scale_method_dump, "m.json");
  EXPECT_EQ(e.measurement_dump_method, 5);
  EXPECT_TRUE(e.vllm_dynamic_kv_quant);  // set is enough
  EXPECT_EQ(e.log_level, 3);
  EXPECT_EQ(e.report.size(), 13u);
  std::map<std::string, bool> in_effect;
  for (const EnvironmentVariable& variable : e.report) {
    in_effect[variable.name] = variable.in_effect;
    EXPECT_FALSE(variable.effect.empty()) << variable.name;
  }
  EXPECT_TRUE(in_effect.at("WORLD_SIZE"));
  EXPECT_FALSE(in_effect.at("CALC_SCALE_WITH_CGUID"));
  EXPECT_FALSE(in_effect.at("INC_TARGET_DEVICE"));
  EXPECT_FALSE(in_effect.at("ENABLE_CONSOLE"));
}

TEST(Environment, RankAndWorldSizeFromTheEnvironmentWork) {
  const auto process = read({{"LOCAL_RANK", "1"}, {"WORLD_SIZE", "8"}}).process();
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(rank_suffix(process), "_1_8");
  EXPECT_EQ(rank_suffix(read({{"LOCAL_RANK", "1"}, {"RANK", "5"}, {"WORLD_SIZE", "8"}}).process()),
            "_5_8");  // across machines
  EXPECT_EQ(rank_suffix(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).process()), "_0_1");
}

TEST(Environment, EveryLauncherNamesTheFilesOfItsRanks) {
  for (const auto& [name, variables] : test::launchers(1, 4))
    EXPECT_EQ(rank_suffix(read(variables).process()), "_1_4") << name;
  EXPECT_EQ(read({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).process(),
            std::nullopt);  // the shell of an sbatch script
}

TEST(Environment, FilesAreNotSeparateIfTheConfigSaysSo) {
  const Environment e = read({{"LOCAL_RANK", "1"}, {"WORLD_SIZE", "8"}});
  QuantConfig config;
  EXPECT_EQ(rank_suffix(file_rank(config, e)), "_1_8");
  config.separate_measure_files = false;
  EXPECT_EQ(rank_suffix(file_rank(config, e)), "");
}

TEST(Environment, BadValuesNameTheVariable) {
  EXPECT_ERROR(io::Error, read({{"WORLD_SIZE", "eight"}}).process(),
               "environment variable 'WORLD_SIZE': found 'eight', allowed: an integer from 1");
  EXPECT_ERROR(io::Error, read({{"WORLD_SIZE", "8"}}).process(),
               "environment variable 'RANK': found nothing, but WORLD_SIZE is 8");
  EXPECT_EQ(error_of<io::Error>([] { read({{"RUNTIME_SCALE_PATCHING", "yes"}}); }),
            "environment variable 'RUNTIME_SCALE_PATCHING': found 'yes', allowed: true, 1, false, 0");
  EXPECT_EQ(error_of<io::Error>([] { read({{"MEASUREMENT_DUMP_METHOD", "4"}}); }),
            "environment variable 'MEASUREMENT_DUMP_METHOD': found '4', allowed: 1, 2, 3, 5");
  EXPECT_EQ(error_of<io::Error>([] { read({{"LOG_LEVEL_INC", "7"}}); }),
            "environment variable 'LOG_LEVEL_INC': found '7', allowed: an integer from 0 to 6");
  EXPECT_ERROR(io::Error, read({{"INC_TARGET_DEVICE", "hpux"}}),
               "found 'hpux', allowed: cpu, hpu, cuda, xpu; did you mean 'hpu'?");
  EXPECT_ERROR(io::Error, read({{"RANK", "1"}}).process(), "'WORLD_SIZE': found nothing, but RANK is 1");
  EXPECT_ERROR(io::Error, read({{"RANK", "8"}, {"WORLD_SIZE", "8"}}).process(),
               "'RANK': found '8', allowed: an integer from 0 to 7");
}

TEST(Environment, OfThisProcess) {
  ASSERT_EQ(setenv("LOG_LEVEL_INC", "3", 1), 0);
  EXPECT_EQ(environment().log_level, 3);
  ASSERT_EQ(unsetenv("LOG_LEVEL_INC"), 0);
  EXPECT_EQ(environment().log_level, std::nullopt);
}

}  // namespace
}  // namespace fp8::configs
