// SPDX-License-Identifier: Apache-2.0
// An observer of one's own: a class and a row. From then on configs name it, calibrations use it, files are called
// after it, ranks merge, and runs go on from snapshots.

#include "fp8/measure/calibration/session.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::measure {
namespace {

constexpr configs::ObserverParameter kSkipCalls{"skip_calls", 0, 0, 1000, /*integer=*/true};

/// The mean of |x|, but for the first calls.
class MeanAbs final : public Observer {
 public:
  explicit MeanAbs(const ObserverContext& context) : skip_(static_cast<std::int64_t>(context.parameter(kSkipCalls))) {}

  void observe(const Observed& x) override {
    if (calls_++ < skip_) return;
    sum_ += x.values().to(at::kDouble).abs().sum().item<double>();
    count_ += x.values().numel();
  }
  Amax result() const override { return {count_ == 0 ? 0.0f : static_cast<float>(sum_ / static_cast<double>(count_))}; }
  void merge(const Observer& other) override {
    const auto* same = dynamic_cast<const MeanAbs*>(&other);
    if (same == nullptr) throw std::invalid_argument("merge: expected an observer of the same kind");
    sum_ += same->sum_, count_ += same->count_, calls_ += same->calls_;
  }
  io::Json state() const override { return {{"sum", sum_}, {"count", count_}, {"calls", calls_}}; }
  void restore(const io::Json& state, const std::string& where) override {
    for (const char* key : {"sum", "count", "calls"}) {
      if (!state.is_object() || !state.contains(key) || !state[key].is_number())
        bad_state(where, std::string("a number '") + key + "'", state);
    }
    sum_ = state["sum"].get<double>();
    count_ = state["count"].get<std::int64_t>();
    calls_ = state["calls"].get<std::int64_t>();
  }

 private:
  std::int64_t skip_, calls_ = 0, count_ = 0;
  double sum_ = 0;
};

ObserverType mean_abs() {
  return {.name = "mean_abs",
          .help = "the mean of the magnitudes",
          .parameters = std::vector{kSkipCalls},
          .keeps_state = true,
          .make = [](const ObserverContext& context) { return std::make_unique<MeanAbs>(context); }};
}

/// y = 2 x, in one Linear "m" with a weight of 0.5.
struct Model {
  torch::nn::Linear linear{torch::nn::LinearOptions(4, 3).bias(false)};
  torch::nn::Sequential model;
  Model() {
    linear->weight.set_data(torch::full({3, 4}, 0.5));
    linear->to(test::kHpu);
    model->push_back("m", linear);
  }
  void run(float x) { linear(test::hpu(torch::full({2, 4}, x))); }
};

CalibrationOptions options_with(const std::map<std::string, double, std::less<>>& parameters = {}) {
  return {.observer = "mean_abs", .parameters = parameters};
}

void expect_means(const MeasurementFile& file, float x) {
  ASSERT_EQ(file.modules.size(), 1u);
  EXPECT_EQ(file.modules[0].inputs, (std::vector<Amax>{{x}}));
  EXPECT_EQ(file.modules[0].outputs, (std::vector<Amax>{{2 * x}}));
}

TEST(AddingAnObserver, ItsRowIsInForceWhileTheRegistrationLives) {
  {
    const ObserverRegistration sample(mean_abs());
    EXPECT_EQ(observer_names().back(), "mean_abs");
    EXPECT_REFUSED(find_observer("mean_ab"), "observer: found 'mean_ab', allowed: maxabs, ", "kl, mean_abs");
  }
  EXPECT_REFUSED(find_observer("mean_abs"), "found 'mean_abs'");
}

TEST(AddingAnObserver, AModelIsCalibratedWithIt) {
  const ObserverRegistration sample(mean_abs());
  const test::TempDir dir;
  Model m;
  auto options = options_with();
  options.prefix = (dir / "p").string();
  CalibrationSession::attach(*m.model, options);
  for (const float x : {1.0f, -3.0f}) m.run(x);
  finalize_calibration(*m.model);
  const auto file = read_measurements(StatsName{options.prefix, "mean_abs"});
  expect_means(file, 2.0f);
  EXPECT_EQ(file.modules[0].weight, Amax{0.5f});
}

TEST(AddingAnObserver, AConfigNamesItAndItsParameters) {
  const ObserverRegistration sample(mean_abs());
  const auto parse = [](const io::Json& json) { return configs::parse_quant_config(json, "q.json", parse_options()); };
  const io::Json json = {{"mode", "MEASURE"},
                         {"measure_exclude", "NONE"},
                         {"dump_stats_path", ""},
                         {"observer", "mean_abs"},
                         {"scale_params", {{"skip_calls", 1}}}};
  Model m;
  const auto session =
      CalibrationSession::attach(*m.model, calibration_options(parse(json), recipes::Dialect::ocp, {}).options);
  for (const float x : {9.0f, 1.0f, -3.0f}) m.run(x);
  expect_means(session->result(), 2.0f);
  session->discard();
  EXPECT_REFUSED(parse({{"observer", "mean_abs"}, {"scale_params", {{"skip_calls", 1.5}}}}),
                 "q.json: key 'scale_params.skip_calls': found 1.5, allowed: an integer from 0 to 1000");
  EXPECT_REFUSED(CalibrationSession::attach(*m.model, options_with({{"skip_calls", -1}})), "skip_calls: found -1");
}

TEST(AddingAnObserver, ARunGoesOnFromASnapshot) {
  const ObserverRegistration sample(mean_abs());
  const auto options = options_with({{"skip_calls", 1}});
  io::Json snapshot;
  {
    Model m;
    const auto session = CalibrationSession::attach(*m.model, options);
    for (const float x : {9.0f, 1.0f}) m.run(x);
    snapshot = io::parse_json(session->snapshot().dump(), "snapshot");  // as another process reads it
    session->discard();
  }
  Model m;
  auto resumed = options;
  resumed.resume = snapshot;
  const auto session = CalibrationSession::attach(*m.model, resumed);
  EXPECT_EQ(session->snapshot(), snapshot);
  m.run(-3.0f);
  expect_means(session->result(), 2.0f);
  session->discard();
}

TEST(AddingAnObserver, RanksAreMergedAsIfOneHadSeenAll) {
  const ObserverRegistration sample(mean_abs());
  const test::TempDir dir;
  auto options = options_with();
  options.prefix = (dir / "p").string();
  std::vector<ObserverStates> states;
  for (int rank = 0; rank < 2; ++rank) {
    Model m;
    options.rank = configs::Rank{rank, 2};
    CalibrationSession::attach(*m.model, options);
    for (int i = 0; i <= 2 * rank; ++i) m.run(rank == 0 ? 5.0f : -1.0f);
    finalize_calibration(*m.model);
    states.push_back(read_observer_states(observer_states_path({options.prefix, "mean_abs", {}, options.rank})));
  }
  merge(states[0], states[1], "rank 1");
  auto file = read_measurements(StatsName{options.prefix, "mean_abs", {}, configs::Rank{0, 2}});
  expect_means(file, 5.0f);
  apply(states[0], file, "merged");
  expect_means(file, 2.0f);  // 5 once, 1 three times
}

}  // namespace
}  // namespace fp8::measure
