// SPDX-License-Identifier: Apache-2.0
// Commands write equal bytes every time: twice, on 1 and 2 threads, in any batch, and codes and scales on every SIMD
// level of this machine.
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

TEST(Determinism, MeasureWritesTheSameBytes) {
  const test::TempDir folder;
  const Arguments base = args("measure --model $DEMO --data $CALIB --samples 9 --out");
  const std::vector<Arguments> ways = {{}, {}, {"--threads", "1"}, {"--threads", "2"}, {"--batch", "2"}};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    Arguments arguments = base;
    arguments.push_back((folder / std::to_string(i)).string());
    arguments.insert(arguments.end(), ways[i].begin(), ways[i].end());
    expect_success(fp8(arguments));
    EXPECT_EQ(contents(folder / std::to_string(i)), contents(folder / "0")) << i;
  }
  EXPECT_EQ(names_in(folder / "0").size(), 5u);
}

/// Quantizes in several ways that must not matter.
void expect_same_checkpoints(const Arguments& arguments) {
  const test::TempDir folder;
  const std::vector<std::pair<Arguments, Environment>> ways = {
      {{}, {}}, {{"--threads", "2"}, {}}, {{"--threads", "1"}, {{"FP8_SIMD", "scalar"}}}, {{}, {{"FP8_SIMD", "avx2"}}}};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    Arguments more = arguments;
    more.insert(more.end(), ways[i].first.begin(), ways[i].first.end());
    const std::string name = std::to_string(i);
    const auto run = [&] {
      Arguments all = args("quantize --quiet --model $DEMO --out {} {}", folder / name, more);
      return fp8(all, ways[i].second);
    }();
    if (run.code != 0 && run.err.find("FP8_SIMD") != std::string::npos) continue;  // a level that this CPU has not
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(contents(folder / name), contents(folder / "0")) << i;
  }
  EXPECT_EQ(names_in(folder / "0").size(), 5u);
}

class DeterminismOfScales : public ::testing::Test {
 protected:
  void SetUp() override { measure(demo_model(), calibration_text(), folder_ / "stats", "2"); }
  std::string stats() const { return (folder_ / "stats").string(); }
  std::string config(const std::string& method, const std::string& device) const {
    return write_config(
        folder_ / "config.json",
        R"("mode": "QUANTIZE", "scale_method": ")" + method + R"(", "device_for_scales": ")" + device + "\"",
        folder_ / "stats/inc_output");
  }
  test::TempDir folder_;
};

TEST_F(DeterminismOfScales, QuantizeWritesTheSameBytes) {
  expect_same_checkpoints({"--measurements", stats()});
  expect_same_checkpoints({"--measurements", stats(), "--scheme", "channel", "--dialect", "gaudi2"});
  expect_same_checkpoints({"--dynamic", "--dialect", "gaudi3"});
  expect_same_checkpoints({"--weights-only"});
}

TEST_F(DeterminismOfScales, QuantizeWithAConfigWritesTheSameBytes) {
  expect_same_checkpoints({"--config", config("maxabs_hw", "GAUDI2")});
  expect_same_checkpoints({"--config", config("maxabs_arbitrary", "GAUDI3")});
  expect_same_checkpoints({"--config", config("act_maxabs_hw_weights_pcs_maxabs_pow2", "GAUDI2")});
}

TEST_F(DeterminismOfScales, LogitsAreTheSameBits) {
  quantize(demo_model(), folder_ / "static", {"--measurements", stats()});
  quantize(demo_model(), folder_ / "dynamic", {"--dynamic"});
  quantize(demo_model(), folder_ / "weights", {"--weights-only"});
  for (const std::string& model :
       {demo_model(), (folder_ / "static").string(), (folder_ / "dynamic").string(), (folder_ / "weights").string()}) {
    const std::string first = logits(model, heldout_text(), "5");
    EXPECT_GT(first.size(), 5u * 256 * 256 * 4);
    EXPECT_TRUE(logits(model, heldout_text(), "5", {"--threads", "1"}) == first) << model;
    EXPECT_TRUE(logits(model, heldout_text(), "5", {"--threads", "2", "--batch", "2"}) == first) << model;
  }
}

}  // namespace
}  // namespace fp8::e2e
