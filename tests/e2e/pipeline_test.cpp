// SPDX-License-Identifier: Apache-2.0
// fp8 measure with decoder layers divided over ranks: the files of one process, byte for byte, in the memory of the
// layers that a rank has; what can't be is refused by every rank, and one that dies is named by the others.
#include "e2e/measure_blocks.h"
#include "e2e/processes.h"

namespace fp8::e2e {
namespace {

using models::testing::TinyCheckpoint;
using models::testing::TinyMixtral;

class Pipeline : public Blocks {
 protected:
  const Arguments ranks = args("--pipeline --rank-timeout 60");
  static Arguments demo(const fs::path& out, const Arguments& more = {}) {
    return args("measure --json --model $DEMO --data $CALIB --samples 7 --seq-len 32 --batch 2 --out {} {}", out, more);
  }
  static Arguments instead(Arguments arguments, const std::string& option, const std::string& value) {
    *(std::find(arguments.begin(), arguments.end(), option) + 1) = value;
    return arguments;
  }
  /// Rank 0's result; the others say nothing.
  static io::Json result_of(const std::vector<test::Run>& runs) {
    for (std::size_t rank = 1; rank < runs.size(); ++rank) {
      EXPECT_EQ(runs[rank].code, 0) << runs[rank].err;
      EXPECT_EQ(runs[rank].out + runs[rank].err, "");
    }
    return json_of(runs[0]);
  }
  /// Layers of each rank: [first, end).
  static std::vector<std::pair<int, int>> layers_of(const io::Json& result) {
    std::vector<std::pair<int, int>> layers;
    for (const auto& rank : result.value("ranks", io::Json::array()))
      layers.emplace_back(rank["layers"][0].get<int>(), rank["layers"][1].get<int>());
    return layers;
  }
  /// One process and two ranks. Sums in f32 are those of as many threads.
  void expect_same_as_one(const fs::path& model, const Arguments& options) {
    SCOPED_TRACE(model.filename().string() + " " + (options.empty() ? "" : options.back()));
    const Arguments more = args("{} --threads 1", options);
    const auto whole = json_of(fp8("{} --whole {}", command(model, "whole"), more));
    const auto parts = result_of(on_ranks(2, args("{} {} {}", command(model, "parts"), ranks, more)));
    for (const char* key : {"modules", "tensors", "samples", "kv_caches", "non_finite"})
      EXPECT_EQ(whole[key], parts[key]) << key;
    EXPECT_GE(all_files(folder / "whole").size(), 4u);
    EXPECT_TRUE(all_files(folder / "whole") == all_files(folder / "parts"));
    fs::remove_all(folder / "whole");
    fs::remove_all(folder / "parts");
  }
};

TEST_F(Pipeline, AnyNumberOfRanksMeasuresWhatOneProcessDoes) {
  const auto whole = json_of(fp8(demo(folder / "whole")));
  for (const int world : {2, 3}) {
    SCOPED_TRACE(world);
    const auto out = folder / std::to_string(world);
    const auto result = result_of(on_ranks(world, demo(out, ranks)));
    EXPECT_EQ(result["mode"], "pipeline");
    for (const char* key : {"modules", "tensors", "samples", "kv_caches"}) EXPECT_EQ(result[key], whole[key]) << key;
    const auto layers = layers_of(result);
    ASSERT_EQ(layers.size(), static_cast<std::size_t>(world));
    EXPECT_EQ(layers.back().second, 4);
    for (std::size_t rank = 0; rank < layers.size(); ++rank) {
      EXPECT_LT(layers[rank].first, layers[rank].second);
      EXPECT_EQ(layers[rank].first, rank > 0 ? layers[rank - 1].second : 0);
    }
    EXPECT_TRUE(all_files(out) == all_files(folder / "whole"));
  }
  // A backup of another measurement is rank 0's to make, as one process does.
  result_of(on_ranks(2, args("{} --exclude lm_head", demo(folder / "2", ranks))));
  EXPECT_TRUE(fs::exists(folder / "2/inc_output_hooks_maxabs.json"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "2"), {}), 6);
}

TEST_F(Pipeline, EveryKindOfModelGivesTheSameBytes) {
  TinyCheckpoint tied;
  tied.config["tie_word_embeddings"] = true;
  tied.tensors.erase("lm_head.weight");
  tied.write(folder / "tied");
  TinyMixtral().write(folder / "mixtral");
  expect_same_as_one(folder / "tied", args("{} --dtype bf16", everything("histogram")));
  expect_same_as_one(folder / "mixtral", everything("maxabs_per_channel"));
}

TEST_F(Pipeline, ARankHoldsItsLayers) {
  constexpr std::int64_t kLayers = 12;
  const auto bytes = static_cast<std::int64_t>(write_layers(folder / "large", kLayers, 64));
  TinyCheckpoint().write(folder / "small");
  const Arguments f32 = {"--dtype", "f32"};
  const auto base = json_of(start_fp8(args("{} {}", command(folder / "small", "small"), f32)).wait())
                        .value("peak_rss_bytes", std::int64_t{0});
  // Sums in f32 are those of as many threads.
  const auto whole = json_of(
      start_fp8(args("{} {} --whole", command(folder / "large", "whole"), f32), {{"OMP_NUM_THREADS", "1"}}).wait());
  EXPECT_GE(whole.value("peak_rss_bytes", std::int64_t{0}), base + bytes * 4 / 5);
  const auto result = result_of(on_ranks(3, args("{} {} {}", command(folder / "large", "parts"), f32, ranks)));
  EXPECT_EQ(layers_of(result), (std::vector<std::pair<int, int>>{{0, 4}, {4, 8}, {8, 12}}));
  for (const auto& rank : result.value("ranks", io::Json::array()))
    EXPECT_LE(rank["peak_rss_bytes"].get<std::int64_t>(), base + bytes / 3 + bytes / 6) << rank;
  EXPECT_TRUE(all_files(folder / "whole") == all_files(folder / "parts"));
}

TEST_F(Pipeline, RefusesWhatCannotBe) {
  const auto alone = [&](const Arguments& more) { return fp8(demo(folder / "out", args("--pipeline {}", more))); };
  const Environment second = rank_variables(1, 2, "29500");
  for (const auto& more : std::vector<Arguments>{
           {"--block-wise"}, {"--whole"}, {"--resume"}, {"--rank", "0/2"}, {"--shares", "3"}, {"--join"}})
    expect_refused(fp8(demo(folder / "out", args("--pipeline {}", more)), second), {"--pipeline: excludes " + more[0]},
                   2);
  expect_refused(alone({}), {"--pipeline: found one process, allowed: several"}, 2);
  expect_refused(fp8(demo(folder / "out", {"--rank-timeout", "5"})), {"--rank-timeout: found without --pipeline"}, 2);
  expect_refused(fp8(args("measure --model m.pt --data d --out {} --pipeline", folder / "out"), second),
                 {"--pipeline: a TorchScript model is measured whole"}, 2);
  // Too many for the model, and for what is measured of it.
  TinyCheckpoint().write(folder / "model");
  for (const auto& run : on_ranks(3, args("{} {}", command(folder / "model", "out"), ranks)))
    expect_refused(run, {"--pipeline: found 3 processes", "2 decoder layers"}, 2);
  for (const auto& run : on_ranks(2, demo(folder / "out", args("{} --exclude lm_head|layers.[123]", ranks))))
    expect_refused(run, {"--pipeline: found 2 processes", "1 decoder layers"}, 2);
  for (const auto& run : on_ranks(2, demo(folder / "out", args("{} {}", everything("save"), ranks))))
    expect_refused(run, {"observer 'save'", "--pipeline", "allowed: maxabs"});
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST_F(Pipeline, RanksThatDifferAreRefusedAtTheStart) {
  const auto first = demo(folder / "out", ranks);
  const auto other = [&](const Arguments& second, const Environment& variables, const std::string& message) {
    SCOPED_TRACE(message);
    for (const auto& run : on_ranks(2, first, {{1, second}}, {{1, variables}}))
      expect_refused(run, {"rank 1 differs from rank 0: ", message});
  };
  other(instead(first, "--seq-len", "16"), {}, "data: seq-len: found 16, rank 0 has 32");
  other(first, {{"FP8_SIMD", "scalar"}}, "instruction set: found \"scalar\"");
  const Model model;
  model.edit("config.json", [](io::Json& config) { config["rms_norm_eps"] = 1e-3; });
  other(instead(first, "--model", model.name()), {}, "files: config.json: found");
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST_F(Pipeline, ARankThatFailsIsNamedByTheOthers) {
  // The second rank's copy of the model has a NaN, far from where the ranks compare their files.
  const Model model;
  auto tensors = Tensors::read(model.path() / "model.safetensors");
  tensors.poke("model.layers.2.mlp.up_proj.weight", std::string("\xc0\x7f", 2));
  model.write("model.safetensors", tensors.bytes());
  const Model sound;
  const auto command = instead(demo(folder / "out", ranks), "--model", sound.name());
  const auto runs = on_ranks(2, command, {{1, instead(command, "--model", model.name())}});
  expect_refused(runs[1], {"model.layers.2.mlp.up_proj.weight", "NaN"});
  expect_refused(runs[0], {"rank 0 of 2", "rank 1"});

  Processes processes;
  const std::string port = free_port();
  for (int rank = 0; rank < 3; ++rank)
    processes.start(instead(command, "--samples", "4000"), rank_variables(rank, 3, port));
  processes.let_compute(1, 0.8);  // the start takes less
  EXPECT_TRUE(processes.kill(1));
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) expect_refused(processes.wait(rank), {"rank 1"});
  EXPECT_TRUE(!fs::exists(folder / "out") || names_in(folder / "out").empty());
}

}  // namespace
}  // namespace fp8::e2e
