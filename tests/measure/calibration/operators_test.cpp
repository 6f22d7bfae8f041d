// SPDX-License-Identifier: Apache-2.0
// Calibration by operators, as Python and TorchScript call them: what is measured is what PyTorch says of the same
// tensors.

#include "fp8/measure/calibration/session.h"
#include "measure/amax_by_aten.h"
#include "support/hpu_test.h"
#include "support/launchers.h"
#include "support/operator_call.h"
#include "support/temp_dir.h"
#include "support/threads.h"

namespace fp8::test {
namespace {

using measure::largest;

/// Two linear weights with biases, and an embedding that the default does not select.
struct Model {
  at::Tensor a = at::randn({16, 8}, on_hpu()), b = at::randn({4, 16}, on_hpu()), e = at::randn({5, 8}, on_hpu());
  at::Tensor a_bias = at::randn({16}, on_hpu()), b_bias = at::randn({4}, on_hpu());
  at::Tensor forward(const at::Tensor& x) const { return at::linear(at::relu(at::linear(x, a, a_bias)), b, b_bias); }
  Tensors weights() const { return {a, b, e}; }
  Words names = {"fc1", "layers.0.fc2", "embed"}, types = {"Linear", "Linear", "Embedding"};
  c10::List<std::optional<at::Tensor>> biases() const {
    c10::List<std::optional<at::Tensor>> list;
    list.push_back(a_bias);
    list.push_back(b_bias);
    list.push_back(std::nullopt);
    return list;
  }
  std::int64_t begin(const std::string& prefix = "", const std::string& config = "") const {
    return call_fp8("measure_begin", {weights(), names, types, biases(), prefix, config}).toInt();
  }
};

using MeasureOperators = InFolder;

TEST_F(MeasureOperators, RanksOfALauncherWriteFilesOfTheirOwn) {
  const Model m;
  for (const auto& [launcher, variables] : launchers(1, 2)) {
    const LauncherEnvironment environment(variables);
    const std::int64_t s = m.begin((folder / launcher).string());
    m.forward(at::randn({3, 8}, on_hpu()));
    call_fp8("measure_end", {s});
    EXPECT_TRUE(std::filesystem::exists(folder / (launcher + "_hooks_maxabs_1_2.json"))) << launcher;
    EXPECT_FALSE(std::filesystem::exists(folder / (launcher + "_hooks_maxabs.json"))) << launcher;
  }
}

TEST_F(MeasureOperators, MeasureWhatPassesAndChangeNoBit) {
  const Model m;
  const at::Tensor x = at::randn({3, 8}, on_hpu()), y = m.forward(x);
  const std::int64_t s = m.begin((folder / "stats/p").string());
  EXPECT_EQ(json_of(call_fp8("tag_of", {m.a}))["handler"], "measured");
  EXPECT_EQ(call_fp8("tag_of", {m.e}).toStringRef(), "null");
  call_fp8("measure_samples", {s, 0, 3});
  EXPECT_TRUE(same_bits(m.forward(x), y));
  const io::Json result = json_of(call_fp8("measure_result", {s}));
  const at::Tensor h = at::linear(x.cpu(), m.a.cpu(), m.a_bias.cpu());
  EXPECT_EQ(result["samples"], 3);
  EXPECT_EQ(result["modules"]["fc1"]["inputs"][0][0].get<float>(), largest(x));
  EXPECT_EQ(result["modules"]["fc1"]["weight"][0].get<float>(), largest(m.a));
  EXPECT_NEAR(result["modules"]["fc1"]["outputs"][0][0].get<float>(), largest(h), 1e-5);
  EXPECT_EQ(result["modules"]["layers.0.fc2"]["outputs"][0][0].get<float>(), largest(y));
  EXPECT_EQ(result["non_finite"], io::Json::array());
  EXPECT_EQ(call_fp8("measure_end", {s}).toListRef().vec().size(), 4u);
  EXPECT_EQ(call_fp8("tag_of", {m.a}).toStringRef(), "null");
  const auto file = measure::read_measurements((folder / "stats/p").string());
  ASSERT_NE(file.find("fc1"), nullptr);
  EXPECT_EQ(file.find("fc1")->inputs[0][0], largest(x));
  EXPECT_EQ(file.num_samples, 3);
  EXPECT_REFUSED(call_fp8("measure_end", {s}), "fp8::measure_end", "session", "found " + std::to_string(s));
}

TEST_F(MeasureOperators, CountTheBiasThatIsAddedAfterTheProduct) {
  const at::Tensor w = at::zeros({4, 8}, on_hpu()), bias = at::full({4}, 7.0, on_hpu());
  c10::List<std::optional<at::Tensor>> biases;
  biases.push_back(bias);
  const auto s = call_fp8("measure_begin", {Tensors{w}, Words{"fc"}, Words{"Linear"}, biases}).toInt();
  at::matmul(at::ones({2, 3, 8}, on_hpu()), w.t()).add_(bias);  // what C++ nn::Linear does
  EXPECT_EQ(json_of(call_fp8("measure_result", {s}))["modules"]["fc"]["outputs"][0][0], 7.0);
  EXPECT_TRUE(call_fp8("measure_end", {s}).toListRef().empty());
}

TEST_F(MeasureOperators, NameTheSampleOfANaN) {
  const Model m;
  const auto s = m.begin();
  at::Tensor x = at::ones({4, 8});
  x[2][1] = std::numeric_limits<float>::quiet_NaN();
  call_fp8("measure_samples", {s, 10, 4});
  m.forward(x.to(kHpu));
  EXPECT_EQ(json_of(call_fp8("measure_result", {s}))["non_finite"].at(0), io::Json({"fc1", "input", 12, "nan"}));
  call_fp8("measure_end", {s, false});
}

TEST_F(MeasureOperators, CountTheSamplesOfForwards) {
  const Model m;
  const auto s = m.begin();
  call_fp8("measure_forward_done", {s});  // of a forward that began before
  for (const at::Tensor& x : {at::ones({4, 8}), at::ones({8}), at::ones({2, 8})}) {
    call_fp8("measure_forward", {s, x});
    at::Tensor bad = x.clone();
    if (x.size(0) == 2) bad[1][0] = std::numeric_limits<float>::quiet_NaN();
    m.forward(bad.to(kHpu));
    call_fp8("measure_forward_done", {s});
  }
  call_fp8("measure_forward", {s});
  const io::Json result = json_of(call_fp8("measure_result", {s}));
  EXPECT_EQ(result["samples"], 4 + 1 + 2 + 1);
  EXPECT_EQ(result["non_finite"].at(0), io::Json({"fc1", "input", 6, "nan"}));
  call_fp8("measure_end", {s, false});
  EXPECT_REFUSED(call_fp8("measure_forward", {s}), "fp8::measure_forward", "session");
}

TEST_F(MeasureOperators, TakeAQuantConfigAsTextAndAsAFile) {
  const Model m;
  const std::string config =
      R"({"mode": "MEASURE", "observer": "maxabs", "blocklist": {"types": [], "names": ["fc2"]}, )"
      R"("dump_stats_path": ")" +
      (folder / "a/p").string() + "\"}";
  std::ofstream(folder / "config.json") << config;
  for (const std::string& given : {config, (folder / "config.json").string()}) {
    const auto s = m.begin("", given);
    m.forward(at::ones({2, 8}, on_hpu()));
    const io::Json modules = json_of(call_fp8("measure_result", {s}))["modules"];
    EXPECT_TRUE(modules.contains("fc1") && !modules.contains("layers.0.fc2")) << modules;
    EXPECT_FALSE(call_fp8("measure_end", {s}).toListRef().empty());
  }
  EXPECT_TRUE(measure::read_measurements((folder / "a/p").string()).find("embed") != nullptr);
  EXPECT_REFUSED(m.begin("", R"({"mode": "MEASUR"})"), "config", "'mode'", "MEASUR");
  EXPECT_REFUSED(m.begin("", (folder / "nowhere.json").string()), "nowhere.json");
}

TEST_F(MeasureOperators, LeaveTheModelAsItWasWhenTheyThrow) {
  const Model m;
  const auto begin = [](const Tensors& w, const Words& n, const Words& t) { call_fp8("measure_begin", {w, n, t}); };
  EXPECT_REFUSED(begin(m.weights(), {"a"}, m.types), "fp8::measure_begin", "modules", "found 1", "expected 3");
  EXPECT_REFUSED(begin(m.weights(), m.names, {"Linear", "Linear"}), "fp8::measure_begin", "types", "found 2",
                 "expected 3");
  EXPECT_REFUSED(begin({m.a, m.b}, {"a", "a"}, {"Linear", "Linear"}), "fp8::measure_begin", "modules", "\"a\" twice");
  EXPECT_REFUSED(begin({m.a}, {"a"}, {"Linera"}), "fp8::measure_begin", "types", "\"Linera\"", "Linear");
  EXPECT_REFUSED(begin({m.a, at::ones({2, 2})}, {"a", "cpu_one"}, {"Linear", "Linear"}), "cpu_one", "hpu", "cpu");
  std::ofstream(folder / "file") << "x";
  EXPECT_REFUSED(m.begin((folder / "file/p").string()), "file");
  EXPECT_EQ(call_fp8("tag_of", {m.a}).toStringRef(), "null");
  const auto s = m.begin();
  EXPECT_REFUSED(call_fp8("measure_samples", {s, -1, 1}), "first", "found -1");
  EXPECT_REFUSED(call_fp8("measure_samples", {s, 0, 0}), "count", "found 0");
  EXPECT_REFUSED(call_fp8("measure_result", {999999}), "fp8::measure_result", "session", "found 999999",
                 "open are " + std::to_string(s));
  call_fp8("measure_end", {s, false});
}

TEST_F(MeasureOperators, ASessionOutlivesItsModelAndIsEndedOnce) {
  std::int64_t s = 0;
  {
    const Model m;
    s = m.begin((folder / "p").string());
    m.forward(at::ones({2, 8}, on_hpu()));
  }
  std::atomic<int> written = 0;
  test::on_threads(
      4, [&](int) { error_of<c10::Error>([&] { written += !call_fp8("measure_end", {s}).toListRef().empty(); }); });
  EXPECT_EQ(written, 1);
  EXPECT_TRUE(measure::read_measurements((folder / "p").string()).find("fc1") != nullptr);
}

TEST_F(MeasureOperators, RunFromTorchScript) {
  torch::jit::CompilationUnit unit;
  auto& f = compile(unit, R"(
def f(w : Tensor, x : Tensor):
    s = fp8.measure_begin([w], ["fc"], ["Linear"])
    fp8.measure_samples(s, 0, 2)
    y = torch.linear(x, w)
    seen = fp8.measure_result(s)
    fp8.measure_end(s, False)
    return (y, seen)
)");
  for (int run = 0; run < 3; ++run) {
    const at::Tensor w = at::randn({4, 8}, on_hpu()), x = at::randn({2, 8}, on_hpu());
    const auto result = f({w, x}).toTuple();
    EXPECT_TRUE(same_bits(result->elements()[0].toTensor(), at::linear(x, w)));
    EXPECT_EQ(json_of(result->elements()[1])["modules"]["fc"]["inputs"][0][0].get<float>(), largest(x));
    EXPECT_EQ(call_fp8("tag_of", {w}).toStringRef(), "null");
  }
}

}  // namespace
}  // namespace fp8::test
