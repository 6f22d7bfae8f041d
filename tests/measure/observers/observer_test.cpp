// SPDX-License-Identifier: Apache-2.0
// Every observer against plain ATen, on ordinary and on hostile tensors; what is written beside.
#include "fp8/measure/observers/observer.h"

#include "fp8/measure/calibration/session.h"
#include "measure/amax_by_aten.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"
#include "support/threads.h"

namespace fp8::measure {
namespace {

void show(Observer& observer, const at::Tensor& t) {
  std::any memo;
  observer.observe(Observed(t, largest(t), &memo));
}

std::unique_ptr<Observer> make(const std::string& name, const ObserverContext& context = {}) {
  return find_observer(name).make(context);
}

Amax result_of(const std::string& name, const std::vector<at::Tensor>& seen, const ObserverContext& context = {}) {
  const auto observer = make(name, context);
  for (const auto& t : seen) show(*observer, t);
  return observer->result();
}

TEST(Observer, MaxabsIsTheLargestOfAll) {
  const at::Tensor a = torch::randn({4, 5}), b = torch::randn({2, 3, 5}) * 3;
  EXPECT_EQ(result_of("maxabs", {a, b}), Amax{std::max(largest(a), largest(b))});
  EXPECT_EQ(result_of("maxabs", {}), Amax{0.0f});
  EXPECT_EQ(result_of("maxabs", {torch::zeros({0, 5})}), Amax{0.0f});
}

TEST(Observer, MaxabsOfStackedExpertsIsOnePerExpert) {
  ObserverContext context{.per_expert = true};
  const at::Tensor w = torch::randn({3, 4, 5});
  EXPECT_EQ(result_of("maxabs", {w}, context), along(w, 0));
}

TEST(Observer, OfACacheKeptAsidePerChannelTooMeansPerHead) {
  ObserverContext context{.head_dim = -3};
  const at::Tensor keys = torch::randn({2, 3, 7, 8});
  for (const char* name : {"maxabs", "maxabs_per_channel"})
    EXPECT_EQ(result_of(name, {keys}, context), along(keys, 1)) << name;
}

TEST(Observer, PerChannelFollowsTheDimension) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor a = torch::randn({2, 6, 5, 3}).to(dtype), b = torch::randn({7, 6, 5, 3}).to(dtype) * 2;
    for (const std::int64_t dim : {-1, -2, -3, 0, 1}) {
      ObserverContext context{.channel_dim = dim};
      EXPECT_EQ(result_of("maxabs_per_channel", {a}, context), along(a, dim)) << dim;
      if (dim == 0) continue;
      const Amax both = along(at::cat({a, b}), dim);
      EXPECT_EQ(result_of("maxabs_per_channel", {a, b}, context), both) << dim;
      EXPECT_EQ(result_of("maxabs_per_channel", {b.transpose(0, 2).contiguous().transpose(0, 2)}, context),
                along(b, dim));
    }
  }
}

TEST(Observer, PerChannelOfStackedExpertsIsOnePerOutputChannel) {
  ObserverContext context{.channel_dim = 0, .per_expert = true};
  const at::Tensor w = torch::randn({3, 4, 5});
  EXPECT_EQ(result_of("maxabs_per_channel", {w}, context), along(w.flatten(0, 1), 0));
}

TEST(Observer, PerChannelOfGrowingTensorsKeepsAll) {  // attention's probabilities get longer token by token
  const at::Tensor a = torch::rand({2, 3}), b = torch::rand({2, 5});
  Amax expected = along(b, -1);
  for (std::size_t i = 0; i < 3; ++i) expected[i] = std::max(expected[i], along(a, -1)[i]);
  EXPECT_EQ(result_of("maxabs_per_channel", {a, b}), expected);
  EXPECT_EQ(result_of("maxabs_per_channel", {b, a}), expected);
}

TEST(Observer, ShapeIsTheLast) {
  EXPECT_EQ(result_of("shape", {torch::zeros({2, 3}), torch::zeros({4, 0, 6})}), (Amax{4, 0, 6}));
  EXPECT_FALSE(find_observer("shape").reads_values);
}

TEST(Observer, HistogramsKeepTheMaximumAndTheThresholdsClip) {
  torch::manual_seed(1);
  at::Tensor x = torch::randn({100000});
  x[5] = -300;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    EXPECT_EQ(result_of("histogram", {x.to(dtype)}), Amax{300.0f});
    EXPECT_LT(result_of("percentile", {x.to(dtype)})[0], 6.0f);
    EXPECT_LE(result_of("mse", {x.to(dtype)})[0], 300.0f);
    EXPECT_LE(result_of("kl", {x.to(dtype)})[0], 300.0f);
  }
  ObserverContext context{.parameters = {{"percentile", 50.0}, {"bins", 65536}}};
  EXPECT_NEAR(result_of("percentile", {x}, context)[0], 0.6745, 0.02);  // the normal distribution's quartile
}

TEST(Observer, HistogramsOfViewsCountTheViewsValues) {
  const at::Tensor t = torch::randn({6, 7, 8});
  const auto state = [](const at::Tensor& x) {
    const auto observer = make("histogram");
    show(*observer, x);
    return observer->state();
  };
  for (const at::Tensor& view : {t.transpose(0, 2), t.narrow(1, 2, 3), t.select(2, 1),
                                 t.narrow(0, 1, 2).transpose(1, 2), t.expand({2, 6, 7, 8})})
    EXPECT_EQ(state(view), state(view.clone(at::MemoryFormat::Contiguous))) << view.sizes();
}

TEST(Observer, HostileTensorsGiveFiniteResults) {
  const std::vector<at::Tensor> hostile = {
      torch::zeros({3, 4}),     torch::zeros({0}),       torch::zeros({2, 0, 3}),
      torch::tensor(5.0f),      torch::tensor(0),        torch::full({3}, 3.4e38f),
      torch::full({3}, 1e-45f), torch::ones({4, 4}).t(), torch::ones({1, 1}).expand({3, 4})};
  for (const auto& name : observer_names()) {
    if (name == "save") continue;
    for (const auto& t : hostile)
      for (float v : result_of(name, {t, t})) EXPECT_TRUE(std::isfinite(v) && v >= 0) << name << t.sizes();
  }
}

TEST(Observer, MergedIsAsIfOneHadSeenAll) {
  const std::vector<at::Tensor> first = {torch::randn({4, 8}), torch::randn({4, 8}) * 9},
                                second = {torch::randn({3, 8}) * 2};
  for (const auto& name : observer_names()) {
    if (name == "save") continue;
    const auto all = make(name), a = make(name), b = make(name), restored = make(name);
    for (const auto& t : first) show(*all, t), show(*a, t);
    for (const auto& t : second) show(*all, t), show(*b, t);
    restored->restore(io::parse_json(b->state().dump(), "state"), "state");
    EXPECT_EQ(restored->result(), b->result()) << name;
    a->merge(*restored);
    EXPECT_EQ(a->result(), all->result()) << name;
    EXPECT_EQ(a->state(), all->state()) << name;
  }
  EXPECT_REFUSED(make("maxabs")->merge(*make("kl")), "same kind");
  EXPECT_REFUSED(make("maxabs")->restore({{"amax", {-1.0}}}, "F"), "F", "amax");
}

TEST(Observer, SaveWritesWhatTorchLoads) {
  const test::TempDir dir;
  ObserverContext context{
      .module = "model.q_proj", .tensor = "input0", .folder = dir.path(), .rank = configs::Rank{1, 2}};
  const at::Tensor whole = torch::randn({4, 6}), view = whole.t().narrow(0, 1, 2),
                   half = torch::randn({3}).to(at::kBFloat16);
  EXPECT_EQ(result_of("save", {view, half}, context), Amax{std::max(largest(view), largest(half))});
  int n = 0;
  for (const auto& t : {view, half}) {
    const auto path = dir / "tensors_1_2" / ("model.q_proj_input0_iter" + std::to_string(n++) + ".pt");
    const std::string bytes = io::read_file(path, 1 << 20);
    EXPECT_TRUE(test::same_bits(torch::pickle_load({bytes.begin(), bytes.end()}).toTensor(), t)) << path;
    EXPECT_LT(bytes.size(), 2000u);  // the view, not what it is a view of
  }
}

TEST(Observer, SaveKeepsToItsLimit) {
  const test::TempDir dir;
  ObserverContext context{.module = "m",
                          .tensor = "weight",
                          .parameters = {{"save_mib", 0.5}},
                          .folder = dir.path(),
                          .bytes_saved = std::make_shared<std::atomic<std::int64_t>>(0)};
  const at::Tensor t = torch::ones({50000}) * 2;  // 195 KiB
  EXPECT_EQ(result_of("save", {t, t, t, t}, context), Amax{2.0f});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir / "tensors"), {}), 2);
  EXPECT_EQ(*context.bytes_saved, 400000);
}

TEST(Observer, SavedTensorsOfAnEarlierRunAreMovedAside) {
  const test::TempDir dir;
  ObserverContext context{.module = "m", .tensor = "input0", .folder = dir.path()};
  const at::Tensor t = torch::ones({3});
  result_of("save", {t, t, t}, context);
  result_of("save", {t}, context);
  std::map<std::string, std::ptrdiff_t> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    files[entry.path().filename().string().substr(0, 15)] =
        std::distance(std::filesystem::directory_iterator(entry.path()), {});
  EXPECT_EQ(files, (std::map<std::string, std::ptrdiff_t>{{"backup_tensors_", 3}, {"tensors", 1}}));
}

// The table of observers: what stands in it, what documents say of it, rows that come and go.

std::string text_of(const char* file) { return io::read_file(std::filesystem::path(FP8_SOURCE_DIR) / file, 1 << 20); }

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
  EXPECT_REFUSED(find_observer("maxab"), "'maxab'",
                 "allowed: maxabs, maxabs_per_channel, save, shape, histogram, percentile, mse, kl");
}

TEST(ObserverTable, AQuantConfigMaySayWhatTheRowsSay) {
  const auto parse = [](const io::Json& json) { return configs::parse_quant_config(json, "q.json", parse_options()); };
  for (const auto& name : observer_names()) EXPECT_EQ(parse({{"observer", name}}).observer, name);
  EXPECT_REFUSED(parse({{"observer", "maxab"}}),
                 "q.json: key 'observer': found \"maxab\", allowed: maxabs, maxabs_per_channel, save, shape, "
                 "histogram, percentile, mse, kl; did you mean 'maxabs'?");
  const auto with = [&](const char* observer, const io::Json& parameters) {
    parse({{"observer", observer}, {"scale_params", parameters}});
  };
  EXPECT_NO_THROW(with("percentile", {{"percentile", 100}, {"bins", 16}}));
  EXPECT_REFUSED(with("percentile", {{"percentile", 101}}),
                 "'scale_params.percentile': found 101, allowed: a number above 0, up to 100");
  EXPECT_REFUSED(with("histogram", {{"bins", 20.5}}),
                 "'scale_params.bins': found 20.5, allowed: an integer from 16 to 65536");
  EXPECT_REFUSED(with("save", {{"save_mib", 0}}),
                 "'scale_params.save_mib': found 0, allowed: a number above 0, up to 1e9");
  EXPECT_REFUSED(with("kl", {{"percentile", 99}}), "unknown key 'percentile' with observer kl",
                 "allowed: input_backoff, weight_backoff, bins");
}

TEST(ObserverTable, ParametersOutOfRangeAreRefusedAtOnce) {
  ObserverContext context{.parameters = {{"percentile", 101.0}}};
  EXPECT_REFUSED(find_observer("percentile").make(context), "percentile", "101", "allowed");
  context.parameters = {{"bins", 15.5}};
  EXPECT_REFUSED(find_observer("histogram").make(context), "bins", "15.5", "allowed");
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
    EXPECT_REFUSED(own->merge(*own), "does not merge");
    EXPECT_REFUSED(own->restore({}, "F"), "F: ", "no state");
    EXPECT_REFUSED(const ObserverRegistration twice(mine("first_call")), "taken");
  }
  EXPECT_REFUSED(find_observer("first_call"), "first_call");
}

TEST(ObserverRegistration, RowsThatCannotStandAreRefused) {
  for (const char* name : {"", "Mine", "a/b", "a b", "maxabs"})
    EXPECT_THROW(ObserverRegistration{mine(name)}, std::invalid_argument) << name;
  EXPECT_THROW(ObserverRegistration({.name = "mine"}), std::invalid_argument);
}

TEST(ObserverRegistration, IsThreadSafe) {
  test::on_threads(8, [](int i) {
    const std::string name = "mine_" + std::to_string(i);
    for (int k = 0; k < 300; ++k) {
      const ObserverRegistration one(mine(name));
      find_observer(name).make({});
      observer_names();
    }
  });
  EXPECT_EQ(observer_names().size(), 8u);
}

TEST(ObserverRegistry, WhatAConfigMayUseIsAskedOfRegisteredRowsToo) {
  ObserverType mine = find_observer("shape");
  mine.name = "mine";
  const ObserverRegistration registration(mine);
  const auto config = configs::parse_quant_config({{"observer", "mine"}}, "q.json", parse_options());
  EXPECT_THAT(observer_problem(config), HasSubstr("found \"mine\", which keeps sizes"));
  EXPECT_FALSE(has_thresholds({.observer = "mine"}));
}

// What two ranks know, merged, is what one would know that had seen all: bit for bit, in either order.

/// Files of a calibration of the same model on `data`.
void calibrate(const test::TempDir& dir, const std::string& observer, std::optional<configs::Rank> rank,
               const std::vector<at::Tensor>& data, const std::string& prefix = "p") {
  auto model = test::tiny_lm();
  CalibrationOptions options{
      .prefix = (dir / prefix).string(), .observer = observer, .parameters = {{"percentile", 99.0}}, .rank = rank};
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
    for (auto* states : {&ab, &ba})
      for (auto& [module, node] : states->nodes) node["weight"] = all.nodes.at(module)["weight"];
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
  EXPECT_REFUSED(merge(a, b, "F"), "F: ", "'percentile'", "'kl'");
  b = a;
  b.parameters["percentile"] = 98;
  EXPECT_REFUSED(merge(a, b, "F"), "F: ", "parameters differ");
  b = a;
  a.nodes["m"] = {{"inputs", {nullptr}}};
  b.nodes["m"] = {{"inputs", {nullptr, nullptr}}};
  EXPECT_REFUSED(merge(a, b, "F"), "F: Nodes.m.inputs", "expected 1 tensors, found 2");
  a.nodes["m"] = b.nodes["m"] = {{"inputs", {"no histogram"}}};
  EXPECT_REFUSED(merge(a, b, "F"), "F: Nodes.m.inputs[0]");
  MeasurementFile file;
  file.modules.push_back({"m", {{1.0f}}, std::nullopt, std::nullopt});
  EXPECT_REFUSED(apply(a, file, "F"), "F: Nodes.m.inputs[0]");
}

}  // namespace
}  // namespace fp8::measure
