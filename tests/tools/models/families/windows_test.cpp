// SPDX-License-Identifier: Apache-2.0
// Mistral with a sliding window: one that is longer than the text is none, and those of which something is out of sight
// are not.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fp8/tools/models/load.h"
#include "support/in_process.h"
#include "support/temp_dir.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

using testing::Fixture;

constexpr std::int64_t kLongest = 40;  // of the fixtures' texts

class Windows : public ::testing::Test {
 protected:
  /// The checkpoint of a fixture with another window; 0: none.
  std::string write(const std::string& name, std::int64_t window) {
    Fixture fixture(name);
    fixture.config["sliding_window"] = window > 0 ? io::Json(window) : io::Json();
    const auto model = name + "-" + std::to_string(window);
    fixture.write(folder / model);
    return (folder / model).string();
  }
  static at::Tensor logits(const std::string& model, const at::Tensor& ids,
                           AttentionKind attention = AttentionKind::fused) {
    return load_model(model, {.dtype = at::kFloat, .attention = attention}).model->forward(ids);
  }
  io::Json json_of(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--json", "--quiet"});
    const auto run = test::fp8_in_process(arguments);
    EXPECT_EQ(run.code, 0) << run.err;
    return run.code == 0 ? io::parse_json(run.out, "stdout") : io::Json();
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  const at::NoGradGuard no_grad;
  const test::TempDir folder;
};

/// fixtures/mistral.json has transformers' logits of the model without a window.
TEST_F(Windows, LongerThanTheTextAreNone) {
  const Fixture fixture("mistral");
  for (const auto attention : {AttentionKind::fused, AttentionKind::eager}) {
    for (const auto& run : fixture.runs) {
      const auto none = logits(write("mistral", 0), run.ids, attention);
      for (const std::int64_t window : {kLongest, kLongest + 1, std::int64_t{4096}, std::int64_t{1} << 30}) {
        const auto found = logits(write("mistral", window), run.ids, attention);
        EXPECT_TRUE(at::equal(found, none)) << window;
        const auto chosen = found.index_select(1, at::tensor(run.positions, at::kLong));
        EXPECT_LE((chosen - run.logits).abs().max().item<float>(), 3e-4f) << window;
      }
    }
  }
}

/// The last token of 40 does not see the first through 39 places; fixtures/mistral-window.json has the logits of 16.
TEST_F(Windows, ShorterOnesHideWhatIsFar) {
  const auto ids = Fixture("mistral").runs.back().ids;
  const auto none = logits(write("mistral", 0), ids), short_of = logits(write("mistral", kLongest - 1), ids);
  EXPECT_TRUE(at::equal(short_of.narrow(1, 0, kLongest - 1), none.narrow(1, 0, kLongest - 1)));
  EXPECT_GT((short_of.select(1, kLongest - 1) - none.select(1, kLongest - 1)).abs().max().item<float>(), 1e-3f);
  const Fixture fixture("mistral-window");
  for (const auto& run : fixture.runs) {
    const auto positions = at::tensor(run.positions, at::kLong);
    const auto found = logits(write("mistral-window", 16), run.ids), free = logits(write("mistral-window", 0), run.ids);
    EXPECT_LE((found.index_select(1, positions) - run.logits).abs().max().item<float>(), 3e-4f);
    EXPECT_EQ(at::equal(found, free), run.ids.size(1) <= 16);
  }
}

TEST_F(Windows, LongerOnesChangeNothingInFp8) {
  const auto ids = (at::arange(8 * kLongest, at::kLong).square() * 7 + 3).remainder(48).view({8, kLongest});
  io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, ids.sizes().vec()}});
  writer.write("input_ids", ids.contiguous().const_data_ptr());
  writer.commit();
  const auto in_fp8 = [&](std::int64_t window) {
    const auto model = write("mistral", window), end = std::to_string(window);
    json_of({"measure", "--model", model, "--data", path("ids.safetensors"), "--out", path("stats" + end)});
    json_of({"quantize", "--model", model, "--out", path("fp8" + end), "--measurements", path("stats" + end),
             "--kv-cache", "fp8"});
    EXPECT_EQ(io::read_json(folder / ("fp8" + end) / "config.json")["sliding_window"],
              window > 0 ? io::Json(window) : io::Json());
    return json_of({"evaluate", "--model", path("fp8" + end), "--reference", model, "--data", path("ids.safetensors"),
                    "--seq-len", std::to_string(kLongest)});
  };
  const auto none = in_fp8(0), found = in_fp8(4096);
  ASSERT_TRUE(none.is_object() && found.is_object());
  for (const char* name : {"inc_output_hooks_maxabs.json", "inc_output_hooks_maxabs.kv_cache"})
    EXPECT_EQ(io::read_json(folder / "stats4096" / name), io::read_json(folder / "stats0" / name)) << name;
  EXPECT_GT(none["kl"].get<double>(), 0) << "nothing is in fp8";
  for (const char* key : {"kl", "perplexity", "top1_agreement", "tokens"}) EXPECT_EQ(found[key], none[key]) << key;
}

}  // namespace
}  // namespace fp8::models
