// SPDX-License-Identifier: Apache-2.0
// fp8 measure with one decoder layer in memory at a time: the files of the whole model's run, byte for byte, of every
// kind of model and every observer, within the memory limit. Runs that are killed: measure_blocks_resume_test.
#include "e2e/measure_blocks.h"

#include <cmath>

namespace fp8::e2e {
namespace {

namespace fs = std::filesystem;
using models::testing::TinyCheckpoint;
using models::testing::TinyMixtral;

TEST_F(Blocks, EveryKindOfModelGivesTheSameBytes) {
  TinyCheckpoint dense;
  dense.write(folder / "dense");
  TinyCheckpoint tied;
  tied.config["tie_word_embeddings"] = true;
  tied.tensors.erase("lm_head.weight");
  tied.write(folder / "tied");
  TinyMixtral().write(folder / "mixtral");
  TinyMixtral stacked;
  stacked.stack();
  stacked.write(folder / "stacked");
  for (const std::string model : {"dense", "tied", "mixtral", "stacked"}) {
    expect_same(folder / model, {});
    expect_same(folder / model, everything("maxabs"));
  }
  expect_same(folder / "dense", {"--dtype", "bf16"});
  expect_same(folder / "dense", args("{} --attention eager", everything("maxabs")));
  expect_same(folder / "dense", {"--exclude", "lm_head|layers.1"});  // nothing after layer 0 needs to run
}

TEST_F(Blocks, EveryObserverGivesTheSameBytes) {
  TinyMixtral().write(folder / "model");
  for (const std::string observer : {"maxabs_per_channel", "histogram", "percentile", "mse", "kl", "shape", "save"})
    expect_same(folder / "model", everything(observer));
}

/// A vocabulary whose logits are more than the least limit leaves: the head is run in parts.
TinyCheckpoint wide_model() {
  constexpr std::int64_t kRows = 20'000;
  TinyCheckpoint wide;
  wide.config["vocab_size"] = kRows;
  wide.add("model.embed_tokens.weight", {kRows, 16});
  wide.add("lm_head.weight", {kRows, 16});
  return wide;
}

TEST_F(Blocks, AHeadInPartsGivesTheSameBytes) {
  wide_model().write(folder / "wide");
  const auto limit = least(args("{} --block-wise", command(folder / "wide", "none")));
  for (const std::string observer : {"maxabs", "maxabs_per_channel", "histogram", "shape", "save"})
    expect_same(folder / "wide", everything(observer), {"--block-wise", "--quiet", "--memory-limit", limit});
}

TEST_F(Blocks, StatesInFilesGiveTheSameBytes) {
  TinyCheckpoint().write(folder / "model");
  write_ids(folder / "ids.safetensors", 2000, 32, 32);  // 4 MB of hidden states
  const auto limit = least(args("{} --block-wise", command(folder / "model", "none")));
  expect_same(folder / "model", {}, {"--block-wise", "--quiet", "--memory-limit", limit});
}

TEST_F(Blocks, LogitsThatAreNotFiniteAreLeftOutWhole) {
  auto wide = wide_model();
  for (std::size_t i = 19'990 * 16; i < 19'991 * 16; ++i)
    wide.tensors["lm_head.weight"].values[i] *= 60000;  // in the last part, for some samples
  wide.write(folder / "wide");
  const Arguments half = args("--block-wise --dtype f16 --quiet");
  expect_same(folder / "wide", {"--dtype", "f16", "--quiet"},
              {"--block-wise", "--memory-limit", least(args("{} {}", command(folder / "wide", "none"), half))});
}

TEST_F(Blocks, AModelTenTimesTheLimitIsMeasuredWithinIt) {
  constexpr std::int64_t kLayers = 34, kVocabulary = 16384;
  constexpr std::int64_t kLimit = 44'000'000;  // beyond the program itself
  const auto bytes = write_layers(folder / "large", kLayers, kVocabulary);
  EXPECT_GE(bytes, std::uint64_t{10} * kLimit);
  TinyCheckpoint().write(folder / "small");
  const std::vector<char> mine(10 * kLimit, 1);  // what started the program has memory of its own
  const auto peak = [&](const fs::path& model, const std::string& out, const Arguments& more) {
    const auto json = json_of(fp8("{} {}", command(model, out), more));
    return std::pair(json.value("peak_rss_bytes", std::int64_t{1} << 60), json.value("mode", ""));
  };
  const auto [base, small_mode] = peak(folder / "small", "small_out", {"--whole"});
  const auto [whole, whole_mode] = peak(folder / "large", "whole", {"--whole"});
  EXPECT_LT(base, static_cast<std::int64_t>(mine.size()));
  const std::int64_t limit = base + kLimit;
  const auto [blocks, mode] = peak(folder / "large", "blocks", {"--memory-limit", std::to_string(limit)});
  EXPECT_EQ(mode, "block-wise");
  EXPECT_LE(blocks, limit);
  EXPECT_GE(whole, base + 8 * kLimit);
  EXPECT_EQ(all_files(folder / "whole"), all_files(folder / "blocks"));
  const auto least_limit = least(command(folder / "large", "least"));  // what a refusal names works, and is kept to
  fs::remove_all(folder / "blocks");
  const auto [tight, tight_mode] = peak(folder / "large", "blocks", {"--memory-limit", least_limit});
  EXPECT_EQ(tight_mode, "block-wise");
  EXPECT_LE(tight, std::stoll(least_limit) * 1'000'000);
  EXPECT_EQ(all_files(folder / "whole"), all_files(folder / "blocks"));
}

TEST_F(Blocks, RefusesWhatCannotBe) {
  TinyCheckpoint().write(folder / "model");
  const auto run = [&](const Arguments& more) { return fp8("{} {}", command(folder / "model", "out"), more); };
  expect_refused(run({"--block-wise", "--whole"}), {"--block-wise", "--whole"}, 2);
  expect_refused(run({"--memory-limit", "lots"}), {"--memory-limit", "'lots'", "GiB"}, 2);
  expect_refused(run({"--memory-limit", "0"}), {"--memory-limit", "'0'"}, 2);
  expect_refused(run({"--memory-limit", "20MB"}),
                 {"--memory-limit: found '20MB', but the program itself takes",
                  "one decoder layer with a batch of 2 samples", "MB or more"},
                 2);
  expect_refused(run(args("--whole --memory-limit 20MB")),
                 {"--memory-limit: found '20MB', but the program itself takes", "and the model about"}, 2);
  EXPECT_EQ(run(args("--whole --memory-limit {}", least(args("{} --whole", command(folder / "model", "none"))))).code,
            0);
  fs::remove_all(folder / "out");
  EXPECT_FALSE(fs::exists(folder / "out"));
  TinyCheckpoint broken;
  broken.tensors.erase("model.layers.1.mlp.up_proj.weight");
  broken.write(folder / "broken");
  expect_refused(fp8("{} --block-wise", command(folder / "broken", "out")),
                 {"model.layers.1.mlp.up_proj.weight", "missing"});
  TinyCheckpoint nan;
  nan.tensors["model.layers.1.mlp.up_proj.weight"].values[7] = NAN;
  nan.write(folder / "nan");
  expect_refused(fp8("{} --block-wise --quiet", command(folder / "nan", "out")),
                 {"model.layers.1.mlp.up_proj.weight", "NaN"});
  EXPECT_TRUE(!fs::exists(folder / "out") || names_in(folder / "out").empty());
}

}  // namespace
}  // namespace fp8::e2e
