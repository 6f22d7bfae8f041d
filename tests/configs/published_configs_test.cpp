// SPDX-License-Identifier: Apache-2.0
// Every published configuration is accepted, except those that are right to be refused.
// (tests/e2e/published_configs_test.cpp runs them.)
#include "configs/published_configs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "configs/quant_config_text.h"
#include "fp8/configs/configs.h"
#include "fp8/runtime/io/base/file.h"
#include "support/throws_with.h"

namespace fp8::configs {
namespace {

/// What a command that uses the config would say: reading it, the rules, type names.
std::string config_error(const test::PublishedConfig& published) {
  return test::error_of<io::Error>([&] {
    check_rules(parse_quant_config(published.keys, "q.json", test::with_observers()), recipes::Dialect::gaudi3, {});
  });
}

TEST(PublishedConfigs, AreAcceptedExceptThoseThatAreRightToBeRefused) {
  std::set<std::string> refused;
  for (const auto& config : test::published_configs()) {
    const auto known = test::refused_configs().find(config.name());
    if (known == test::refused_configs().end()) {
      EXPECT_EQ(config_error(config), "") << config.name();
      continue;
    }
    EXPECT_THAT(config_error(config), testing::HasSubstr(known->second)) << config.name();
    refused.insert(config.name());
  }
  EXPECT_EQ(refused.size(), test::refused_configs().size());
}

TEST(PublishedConfigs, TheTableHasEachOnceAndOfEveryProject) {
  std::map<std::string, std::size_t> count;
  std::set<std::string> names;
  for (const auto& config : test::published_configs()) {
    ++count[config.repository];
    EXPECT_TRUE(names.insert(config.name()).second) << config.name();
  }
  EXPECT_EQ(count,
            (std::map<std::string, std::size_t>{
                {"huggingface/optimum-habana", 27}, {"intel/neural-compressor", 20}, {"vllm-project/vllm-gaudi", 24}}));
}

TEST(PublishedConfigs, WithoutAPathAreThoseThatNeedNone) {
  std::size_t without = 0;
  for (const auto& config : test::published_configs()) {
    if (config.keys.value("dump_stats_path", io::Json("stats")) != io::Json("")) continue;
    EXPECT_FALSE(parse_quant_config(config.keys, "q.json").needs_measurements()) << config.name();
    ++without;
  }
  EXPECT_EQ(without, 8u);
}

}  // namespace
}  // namespace fp8::configs
