// SPDX-License-Identifier: Apache-2.0
// What two ranks know, merged, is what one would know that had seen all: bit for bit, in either order.
#include "fp8/measure/calibration/session.h"
#include "fp8/measure/observers/observer.h"
#include "fp8/runtime/io/base/file.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::measure {
namespace {

using test::throws_with;

/// Files of a calibration of the same model on `data`.
void calibrate(const test::TempDir& dir, const std::string& observer, std::optional<configs::Rank> rank,
               const std::vector<at::Tensor>& data, const std::string& prefix = "p") {
  auto model = test::tiny_lm();
  CalibrationOptions options;
  options.observer = observer;
  options.rank = rank;
  options.prefix = (dir / prefix).string();
  options.parameters = {{"percentile", 99.0}};
  const auto session = CalibrationSession::attach(*model, options);
  for (const auto& ids : data) model(ids);
  finalize_calibration(*model);
}

StatsName name_of(const test::TempDir& dir, const std::string& observer, std::optional<configs::Rank> rank,
                  const std::string& prefix = "p") {
  return {(dir / prefix).string(), observer, {}, rank};
}

TEST(ObserverStates, RanksMergeToWhatOneWouldHaveSeen) {
  torch::manual_seed(2);
  std::vector<at::Tensor> first, second, both;
  for (int i = 0; i < 3; ++i) {
    first.push_back(test::hpu(torch::randint(48, {2, 5}, at::kLong)));
    second.push_back(test::hpu(torch::randint(48, {1, 7}, at::kLong)));
  }
  both = first;
  both.insert(both.end(), second.begin(), second.end());
  for (const std::string observer : {"histogram", "percentile", "mse", "kl"}) {
    const test::TempDir dir;
    calibrate(dir, observer, configs::Rank{0, 2}, first);
    calibrate(dir, observer, configs::Rank{1, 2}, second);
    calibrate(dir, observer, {}, both, "all");
    const auto a = read_observer_states(observer_states_path(name_of(dir, observer, configs::Rank{0, 2})));
    const auto b = read_observer_states(observer_states_path(name_of(dir, observer, configs::Rank{1, 2})));
    const auto all = read_observer_states(observer_states_path(name_of(dir, observer, {}, "all")));
    auto ab = a, ba = b;
    merge(ab, b, "b");
    merge(ba, a, "a");
    // Weights were seen twice; everything else must be the same.
    for (auto* states : {&ab, &ba}) {
      for (auto& [module, node] : states->nodes) node["weight"] = all.nodes.at(module)["weight"];
    }
    EXPECT_EQ(to_json(ab), to_json(all)) << observer;
    EXPECT_EQ(to_json(ba), to_json(all)) << observer;
    auto file = read_measurements(name_of(dir, observer, configs::Rank{0, 2}));
    apply(ab, file, "ab");
    EXPECT_EQ(file.fingerprint(), read_measurements(name_of(dir, observer, {}, "all")).fingerprint()) << observer;
  }
}

TEST(ObserverStates, ObserversWithoutStateHaveNoFile) {
  const test::TempDir dir;
  calibrate(dir, "maxabs", {}, {test::token_ids()});
  EXPECT_FALSE(std::filesystem::exists(observer_states_path(name_of(dir, "maxabs", {}))));
}

TEST(ObserverStates, WhatDoesNotBelongTogetherIsRefused) {
  ObserverStates a{"percentile", recipes::Format::E4M3, 448, {{"percentile", 99.0}}, {}}, b = a;
  b.observer = "kl";
  EXPECT_TRUE(throws_with({"F: ", "'percentile'", "'kl'"}, [&] { merge(a, b, "F"); }));
  b = a;
  b.parameters["percentile"] = 98;
  EXPECT_TRUE(throws_with({"F: ", "parameters differ"}, [&] { merge(a, b, "F"); }));
  b = a;
  a.nodes["m"] = {{"inputs", {nullptr}}};
  b.nodes["m"] = {{"inputs", {nullptr, nullptr}}};
  EXPECT_TRUE(throws_with({"F: Nodes.m.inputs", "expected 1 tensors, found 2"}, [&] { merge(a, b, "F"); }));
  a.nodes["m"] = b.nodes["m"] = {{"inputs", {"no histogram"}}};
  EXPECT_TRUE(throws_with({"F: Nodes.m.inputs[0]"}, [&] { merge(a, b, "F"); }));
  MeasurementFile file;
  file.modules.push_back({"m", {{1.0f}}, std::nullopt, std::nullopt});
  EXPECT_TRUE(throws_with({"F: Nodes.m.inputs[0]"}, [&] { apply(a, file, "F"); }));
}

}  // namespace
}  // namespace fp8::measure
