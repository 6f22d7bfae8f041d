// SPDX-License-Identifier: Apache-2.0
// The table of observers: what stands in it, what documents say of it, rows that come and go.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "fp8/measure/calibration/recorder.h"
#include "fp8/measure/files/observer_types.h"
#include "fp8/measure/observers/observer.h"
#include "fp8/runtime/io/base/file.h"
#include "support/hpu_test.h"

namespace fp8::measure {
namespace {

using test::throws_with;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of(const char* file) {
  std::ifstream in(std::filesystem::path(FP8_SOURCE_DIR) / file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

ObserverType mine(const std::string& name) {
  ObserverType type = find_observer("maxabs");
  type.name = name;
  return type;
}

TEST(ObserverTable, RowsStandInTheOrderOfMessages) {
  EXPECT_THAT(observer_names(),
              ElementsAre("maxabs", "maxabs_per_channel", "save", "shape", "histogram", "percentile", "mse", "kl"));
  EXPECT_THAT(observer_names([](const ObserverType& type) { return type.keeps_heads; }),
              ElementsAre("maxabs", "maxabs_per_channel"));
  EXPECT_TRUE(
      throws_with({"'maxab'", "allowed: maxabs, maxabs_per_channel, save, shape, histogram, percentile, mse, kl"},
                  [] { find_observer("maxab"); }));
}

TEST(ObserverTable, AQuantConfigMaySayWhatTheRowsSay) {
  const auto parse = [](const io::Json& json) { return configs::parse_quant_config(json, "q.json", parse_options()); };
  for (const auto& name : observer_names()) EXPECT_EQ(parse({{"observer", name}}).observer, name);
  EXPECT_TRUE(throws_with({"q.json: key 'observer': found \"maxab\", allowed: maxabs, maxabs_per_channel, save, shape, "
                           "histogram, percentile, mse, kl; did you mean 'maxabs'?"},
                          [&] { parse({{"observer", "maxab"}}); }));
  const auto with = [&](const char* observer, const io::Json& parameters) {
    return [&parse, json = io::Json{{"observer", observer}, {"scale_params", parameters}}] { parse(json); };
  };
  EXPECT_NO_THROW(with("percentile", {{"percentile", 100}, {"bins", 16}})());
  EXPECT_TRUE(throws_with({"'scale_params.percentile': found 101, allowed: a number above 0, up to 100"},
                          with("percentile", {{"percentile", 101}})));
  EXPECT_TRUE(throws_with({"'scale_params.bins': found 20.5, allowed: an integer from 16 to 65536"},
                          with("histogram", {{"bins", 20.5}})));
  EXPECT_TRUE(throws_with({"'scale_params.save_mib': found 0, allowed: a number above 0, up to 1e9"},
                          with("save", {{"save_mib", 0}})));
  EXPECT_TRUE(throws_with({"unknown key 'percentile' with observer kl", "allowed: input_backoff, weight_backoff, bins"},
                          with("kl", {{"percentile", 99}})));
}

TEST(ObserverTable, ParametersOutOfRangeAreRefusedAtOnce) {
  ObserverContext context;
  context.parameters = {{"percentile", 101.0}};
  EXPECT_TRUE(throws_with({"percentile", "101", "allowed"}, [&] { find_observer("percentile").make(context); }));
  context.parameters = {{"bins", 15.5}};
  EXPECT_TRUE(throws_with({"bins", "15.5", "allowed"}, [&] { find_observer("histogram").make(context); }));
}

TEST(ObserverTable, DocumentsHaveEveryRow) {
  const std::string readme = text_of("measure/README.md");
  const io::Json schema = io::parse_json(text_of("configs/json/quant_config.schema.json"), "schema")["properties"];
  EXPECT_EQ(schema["observer"]["examples"], io::Json(observer_names()));
  for (const ObserverType& type : observer_types()) {
    EXPECT_THAT(readme, HasSubstr("| `" + type.name + "` | " + type.help + " |"));
    ASSERT_TRUE(type.parameters.has_value()) << type.name;
    for (const auto& parameter : *type.parameters)
      EXPECT_TRUE(schema["scale_params"]["properties"].contains(std::string(parameter.name))) << parameter.name;
  }
}

// The example of registry.h.
struct FirstCall final : fp8::measure::Observer {
  std::optional<float> amax;
  void observe(const fp8::measure::Observed& x) override {
    if (!amax) amax = x.amax();
  }
  fp8::measure::Amax result() const override { return {amax.value_or(0.0f)}; }
};

TEST(ObserverRegistration, IsInForceWhileItLives) {
  {
    const fp8::measure::ObserverRegistration first(
        {.name = "first_call", .make = [](const auto&) { return std::make_unique<FirstCall>(); }});
    EXPECT_EQ(observer_names().back(), "first_call");
    const auto own = find_observer("first_call").make({});
    for (const float value : {3.0f, 4.0f}) {
      std::any memo;
      own->observe(Observed(torch::full({2}, value), value, &memo));
    }
    EXPECT_EQ(own->result(), Amax{3.0f});
    EXPECT_TRUE(own->state().is_null());
    EXPECT_TRUE(throws_with({"does not merge"}, [&] { own->merge(*own); }));
    EXPECT_TRUE(throws_with({"F: ", "no state"}, [&] { own->restore({}, "F"); }));
    EXPECT_TRUE(throws_with({"taken"}, [] { const ObserverRegistration twice(mine("first_call")); }));
  }
  EXPECT_TRUE(throws_with({"first_call"}, [] { find_observer("first_call"); }));
}

TEST(ObserverRegistration, RowsThatCannotStandAreRefused) {
  for (const char* name : {"", "Mine", "a/b", "a b", "maxabs"})
    EXPECT_THROW(ObserverRegistration{mine(name)}, std::invalid_argument) << name;
  EXPECT_THROW(ObserverRegistration({.name = "mine"}), std::invalid_argument);
}

TEST(ObserverRegistration, IsThreadSafe) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([name = "mine_" + std::to_string(i)] {
      for (int k = 0; k < 300; ++k) {
        const ObserverRegistration one(mine(name));
        find_observer(name).make({});
        observer_names();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(observer_names().size(), 8u);
}

TEST(ObserverRegistry, WhatAConfigMayUseIsAskedOfRegisteredRowsToo) {
  ObserverType mine = find_observer("shape");
  mine.name = "mine";
  const ObserverRegistration registration(mine);
  const auto config = configs::parse_quant_config({{"observer", "mine"}}, "q.json", parse_options());
  EXPECT_NE(observer_problem(config).find("found \"mine\", which keeps sizes"), std::string::npos);
  MeasurementFile file;
  file.observer = "mine";
  EXPECT_FALSE(has_thresholds(file));
}

}  // namespace
}  // namespace fp8::measure
