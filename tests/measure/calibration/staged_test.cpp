// SPDX-License-Identifier: Apache-2.0
// A model that is watched piece by piece, or by two processes one after the other, gives what the whole one gives at
// once.

#include "fp8/measure/calibration/session.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::measure {
namespace {

CalibrationOptions everything(const std::string& observer) {
  CalibrationOptions options{.observer = observer};
  options.select = [](const std::string&, const std::string&) { return true; };
  return options;
}

void expect_equal(const MeasurementFile& a, const MeasurementFile& b) {
  EXPECT_EQ(a.selected, b.selected);
  EXPECT_EQ(a.num_samples, b.num_samples);
  ASSERT_EQ(a.modules.size(), b.modules.size());
  for (std::size_t i = 0; i < a.modules.size(); ++i) {
    SCOPED_TRACE(a.modules[i].module);
    EXPECT_EQ(a.modules[i].module, b.modules[i].module);
    EXPECT_EQ(a.modules[i].inputs, b.modules[i].inputs);
    EXPECT_EQ(a.modules[i].outputs, b.modules[i].outputs);
    EXPECT_EQ(a.modules[i].weight, b.modules[i].weight);
  }
  ASSERT_EQ(a.model.has_value(), b.model.has_value());
  if (a.model) {
    EXPECT_EQ(a.model->digest(), b.model->digest());
  }
}

MeasurementFile measured_whole(test::TinyLm& model, const at::Tensor& ids, const std::string& observer) {
  const auto session = CalibrationSession::attach(*model, everything(observer));
  session->begin_samples(0, 3);
  model(ids);
  const auto result = session->result();
  finalize_calibration(*model);
  return result;
}

const std::vector<std::string> kObservers = {"maxabs", "maxabs_per_channel", "shape", "histogram", "percentile", "mse",
                                             "kl"};

TEST(CalibrationStages, WeightsMayComeOneAfterTheOther) {
  const at::NoGradGuard no_grad;
  for (const auto& observer : kObservers) {
    SCOPED_TRACE(observer);
    auto model = test::tiny_lm();
    const auto ids = test::token_ids();
    const auto modules = weight_modules(*model);
    const auto expected = measured_whole(model, ids, observer);

    const auto session = StagedCalibration::plan(modules, {}, everything(observer));
    session->begin_samples(0, 3);
    // The embedding in parts, layers in reverse order of the model, the head whole.
    const auto& table = modules[0].weight;
    for (std::int64_t row = 0; row < table.size(0); row += 20)
      session->look_at_part(modules[0], table.narrow(0, row, std::min<std::int64_t>(20, table.size(0) - row)), row);
    const auto of = [&](const std::string& prefix) {
      std::vector<WeightModule> found;
      std::copy_if(modules.begin(), modules.end(), std::back_inserter(found),
                   [&](const auto& m) { return m.name.rfind(prefix, 0) == 0; });
      return found;
    };
    const auto h0 = model->embed_tokens(ids), h1 = model->layers[0](h0), h2 = model->layers[1](h1);
    const auto stage = [&](const std::string& prefix, const std::function<void()>& run) {
      session->enter(of(prefix));
      run();
      session->leave(of(prefix));
      run();  // unwatched
    };
    stage("layer_1", [&] { model->layers[1](h1); });
    stage("layer_0", [&] { model->layers[0](h0); });
    stage("lm_head", [&] { model->lm_head(h2); });
    expect_equal(session->result(), expected);
    EXPECT_EQ(CalibrationSession::of(*model), nullptr);
    session->discard();
  }
}

TEST(CalibrationStages, AProductMayComeInParts) {
  const at::NoGradGuard no_grad;
  for (const auto& observer : kObservers) {
    SCOPED_TRACE(observer);
    auto model = test::tiny_lm();
    std::vector<WeightModule> head = weight_modules(*model->lm_head);
    head[0].name = "lm_head";
    const auto x = hpu(torch::randn({3, 5, 32})), y = model->lm_head(x);
    const auto whole = CalibrationSession::attach(head, {}, everything(observer));
    model->lm_head(x);
    const auto expected = whole->result();
    whole->discard();
    runtime::untag_weight(head[0].weight);

    const auto session = StagedCalibration::plan(head, {}, everything(observer));
    const auto record = session->record_of("lm_head");
    ASSERT_TRUE(record.has_value());
    EXPECT_FALSE(session->record_of("other").has_value());
    session->observe_input(*record, x);
    for (std::int64_t row = 0; row < 48; row += 32) {
      const auto rows = std::min<std::int64_t>(32, 48 - row);
      session->look_at_part(head[0], head[0].weight.narrow(0, row, rows), row);
      EXPECT_TRUE(session->observe_output_part(*record, y.narrow(-1, row, rows).contiguous(), row, 48));
    }
    expect_equal(session->result(), expected);
    auto spoiled = y.cpu().clone();
    spoiled[1][2][40] = INFINITY;
    EXPECT_EQ(session->observe_output_part(*record, hpu(spoiled), 0, 48), observer == "shape");
    EXPECT_EQ(session->non_finite().size(), observer == "shape" ? 0u : 1u);
    session->forget_outputs(*record);
    EXPECT_FALSE(session->result().modules.at(0).outputs.has_value());
    session->discard();
  }
}

/// Each of two processes runs the same samples through its part of the model.
TEST(CalibrationStages, SnapshotsOfPartsOfTheModelAreJoined) {
  const at::NoGradGuard no_grad;
  const auto ids = test::token_ids();
  for (const auto& observer : kObservers) {
    SCOPED_TRACE(observer);
    auto model = test::tiny_lm();
    const auto modules = weight_modules(*model);
    const auto expected = measured_whole(model, ids, observer);

    const auto owner = [](const std::string& name) -> std::size_t {
      return name.starts_with("layer_1") || name == "lm_head" ? 1 : 0;
    };
    std::vector<io::Json> parts;
    for (std::size_t part = 0; part < 2; ++part) {
      std::vector<WeightModule> mine;
      for (const auto& m : modules)
        if (owner(m.name) == part) mine.push_back(m);
      const auto session = StagedCalibration::plan(modules, {}, everything(observer));
      EXPECT_TRUE(session->keeps_states());
      session->begin_samples(0, 3);
      session->enter(mine);
      model(ids);  // the other part is not watched
      session->leave(mine);
      parts.push_back(io::parse_json(session->snapshot().dump(), "snapshot"));
      session->discard();
    }
    auto options = everything(observer);
    options.resume = join_snapshots(parts, owner);
    const auto joined = StagedCalibration::plan(modules, {}, options);
    expect_equal(joined->result(), expected);
    joined->discard();
    if (observer != "maxabs") continue;
    auto other = parts;
    other[1]["samples"] = 4;
    EXPECT_REFUSED(join_snapshots(other, owner), "expected 3 samples in", "found 4 in");
    other = parts;
    other[1]["nodes"].erase(other[1]["nodes"].size() - 1);
    EXPECT_REFUSED(join_snapshots(other, owner), "expected 3 samples in");
    other = parts;
    for (auto& node : other[1]["nodes"]) node["module"] = "another";
    EXPECT_REFUSED(join_snapshots(other, owner), "nodes[", "expected 'layer_1");
  }
  EXPECT_FALSE(StagedCalibration::plan({}, {}, everything("save"))->keeps_states());
}

TEST(CalibrationStages, ASnapshotIsGoneOnFrom) {
  const at::NoGradGuard no_grad;
  const auto ids = test::token_ids();
  for (const auto& observer : kObservers) {
    SCOPED_TRACE(observer);
    const auto calibrate = [&](bool interrupted) {
      auto model = test::tiny_lm();
      auto session = CalibrationSession::attach(*model, everything(observer));
      session->begin_samples(0, 3);
      model(ids);
      if (interrupted) {
        const io::Json snapshot =
            io::parse_json(session->snapshot().dump(), "snapshot");  // as another process reads it
        finalize_calibration(*model);
        model = test::tiny_lm();
        auto options = everything(observer);
        options.resume = snapshot;
        session = CalibrationSession::attach(*model, options);
        EXPECT_EQ(session->snapshot(), snapshot);
      }
      session->begin_samples(3, 3);
      model(ids.flip({1}));
      const auto result = std::pair(session->result(), session->snapshot());
      finalize_calibration(*model);
      return result;
    };
    auto [expected, expected_state] = calibrate(false);
    auto [found, state] = calibrate(true);
    expect_equal(found, expected);
    expected_state.erase("watch_seconds"), state.erase("watch_seconds");
    EXPECT_EQ(state, expected_state);
  }
}

TEST(CalibrationStages, NonFiniteReportsAreKept) {
  const at::NoGradGuard no_grad;
  auto model = test::tiny_lm();
  auto session = CalibrationSession::attach(*model, {});
  session->begin_samples(7, 1);
  auto x = torch::ones({1, 32});
  x[0][3] = NAN;
  model->lm_head(hpu(x));
  CalibrationOptions options{.resume = session->snapshot()};
  finalize_calibration(*model);
  session = CalibrationSession::attach(*model, options);
  const auto found = session->non_finite();
  ASSERT_GE(found.size(), 1u);
  EXPECT_EQ(found[0].module, "lm_head");
  EXPECT_EQ(found[0].tensor, "input");
  EXPECT_EQ(found[0].sample, 7);
  EXPECT_TRUE(found[0].nan);
  session->discard();
}

TEST(CalibrationStages, ForeignSnapshotsAreRefusedAndNothingIsWritten) {
  const test::TempDir dir;
  auto model = test::tiny_lm();
  auto session = CalibrationSession::attach(*model, {});
  const io::Json good = session->snapshot();
  finalize_calibration(*model);
  const auto attach = [&](const std::function<void(io::Json&)>& spoil) {
    CalibrationOptions options{.prefix = (dir / "p").string(), .resume = good};
    spoil(options.resume);
    CalibrationSession::attach(*model, options)->discard();
  };
  EXPECT_REFUSED(attach([](io::Json& s) { s = "text"; }), "samples");
  EXPECT_REFUSED(attach([](io::Json& s) { s["samples"] = -1; }), "samples");
  EXPECT_REFUSED(attach([](io::Json& s) { s["nodes"].erase(0); }), "15 modules, found 14");
  EXPECT_REFUSED(attach([](io::Json& s) { s["nodes"][2]["module"] = "other"; }), "nodes[2]");
  EXPECT_REFUSED(attach([](io::Json& s) { s["nodes"][2]["inputs"] = 3; }), "inputs");
  EXPECT_REFUSED(attach([](io::Json& s) { s["nodes"][2]["inputs"] = {{{"amax", {-1}}}}; }), "amax");
  EXPECT_REFUSED(attach([](io::Json& s) { s.erase("model"); }), "model");
  EXPECT_REFUSED(attach([](io::Json& s) { s["non_finite"] = {{1, 2}}; }), "non_finite");
  EXPECT_EQ(CalibrationSession::of(*model), nullptr);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(CalibrationStages, ObserversWithoutStateGiveNoSnapshot) {
  struct Count final : Observer {
    void observe(const Observed&) override { ++calls; }
    Amax result() const override { return {calls}; }
    float calls = 0;
  };
  const ObserverRegistration registration(
      {.name = "count_calls", .make = [](const auto&) { return std::make_unique<Count>(); }});
  auto model = test::tiny_lm();
  CalibrationOptions options{.observer = "count_calls"};
  EXPECT_TRUE(CalibrationSession::attach(*model, options)->snapshot().is_null());
  finalize_calibration(*model);
  EXPECT_FALSE(StagedCalibration::plan(weight_modules(*model), {}, options)->takes_parts());
  Count alone;
  EXPECT_THROW(alone.observe_part(Observed(at::ones({1}), 1, nullptr), {}), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::measure
