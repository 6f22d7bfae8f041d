// SPDX-License-Identifier: Apache-2.0
// fp8 evaluate as several processes: all of them refuse, by name, a rank that would score something else. That the
// numbers are those of one process: e2e/shares_test.cpp.
#include "tools/commands/train/train_ranks_run.h"

namespace fp8 {
namespace {

class EvaluateRanks : public ::testing::Test {
 protected:
  static std::vector<std::string> command(const std::string& model = demo("kjv-byte-1.7M"),
                                          const std::string& data = demo("kjv_heldout_16k.txt"),
                                          const std::vector<std::string>& more = {}) {
    std::vector<std::string> all =
        args("evaluate --json --device cpu --seq-len 32 --rank-timeout 20 --model {} --data {}", model, data);
    const bool samples = std::find(more.begin(), more.end(), "--samples") != more.end();
    if (!samples) all.insert(all.end(), {"--samples", "4"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static void expect_refused(test::RankProcesses processes, const std::string& message) {
    for (const auto& run : processes.wait()) {
      expect_failed(run);
      EXPECT_EQ(run.out, "");
      EXPECT_THAT(run.err, HasSubstr("rank 1 differs from rank 0: " + message));
    }
  }
  static void expect_refused(const std::vector<std::string>& second, const std::string& message, int ranks = 2) {
    expect_refused({[&](int rank) { return rank == 1 ? second : command(); }, ranks}, message);
  }
  /// A copy of the model in another place.
  fs::path copy(const std::string& name) const {
    fs::copy(demo("kjv-byte-1.7M"), folder_ / name);
    return folder_ / name;
  }
  const test::TempDir folder_;
};

TEST_F(EvaluateRanks, WhoDiffersIsRefusedByAll) {
  const auto model = demo("kjv-byte-1.7M"), data = demo("kjv_heldout_16k.txt");
  expect_refused(command(model, data, {"--samples", "5"}), "data: samples: found 5, rank 0 has 4", 3);
  expect_refused(command(model, data, {"--attention", "eager"}), "attention: found \"eager\"");
  expect_refused({command(), 2, {{}, {{"FP8_SIMD", "scalar"}}}}, "instruction set: found \"scalar\"");

  const auto other = copy("other");
  auto config = io::read_json(other / "config.json");
  config["rms_norm_eps"] = 1e-3;
  io::write_json(other / "config.json", config);
  expect_refused(command(other.string()), "model: config.json: found");
  expect_refused(command(model, data, {"--reference", other.string()}), "reference: found");

  std::ofstream(folder_ / "text.txt") << read_file(data).replace(100, 1, "#");
  expect_refused(command(model, (folder_ / "text.txt").string()), "samples: found [4,");
}

/// Far from the ends of its file, which are compared before the model is read.
TEST_F(EvaluateRanks, OneWeightIsAnotherModel) {
  const auto other = copy("other");
  const auto file = other / "model.safetensors";
  auto bytes = read_file(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  expect_refused(command(other.string()), "weights: found");
}

/// Copies of the model and the text in other places.
TEST_F(EvaluateRanks, WhereFilesLieMakesNoDifference) {
  const auto other = copy("other");
  fs::copy_file(demo("kjv_heldout_16k.txt"), folder_ / "text.txt");
  const auto elsewhere = command(other.string(), (folder_ / "text.txt").string());
  const auto json = test::expect_trained({[&](int rank) { return rank == 1 ? elsewhere : command(); }, 2});
  EXPECT_EQ(json.value("ranks", 0), 2);
  EXPECT_EQ(json.value("tokens", 0), 4 * 32);
}

TEST_F(EvaluateRanks, ARankThatDoesNotComeIsNamed) {
  auto environment = test::no_launcher();
  for (const auto& [name, value] : test::launchers(0, 2).at("torchrun")) environment[name] = value;
  environment["MASTER_PORT"] = test::free_port();
  auto alone = command();
  *(std::find(alone.begin(), alone.end(), "--rank-timeout") + 1) = "1";
  expect_failed(run_fp8(alone, {.environment = environment}),
                {"rank 1 did not come within 1000 ms", "(by RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)"});
}

}  // namespace
}  // namespace fp8
