// SPDX-License-Identifier: Apache-2.0
// fp8 quantize cut short: killed at random moments, out of disk, with a source that changes or ends while it is read;
// and shared out among several processes.
#include "e2e/e2e.h"
#include "runtime/io/atomic/small_disk.h"
#include "support/kill_runs.h"

namespace fp8::e2e {
namespace {

TEST(Resume, KilledQuantizeEndsWithTheSameBytes) {
  const Model model;
  write_blocks(model, 12, 512);
  std::mt19937 random(20240817);
  int kills = 0;
  for (const Arguments& way : {args("--dynamic --shard-size 3000000"), args("--weights-only --scheme tensor"),
                               args("--dynamic --scheme block --format fp8"), args("--dynamic --format inc")}) {
    const test::TempDir folder;
    Arguments arguments = args("quantize --model {} --out {} {}", model.name(), folder / "out", way);
    test::KillRuns runs(arguments, folder.path(), folder / "out", clean({}));
    runs.whole();
    const auto expected = contents(folder / "out");
    const int trials = test::KillRuns::count(4);
    for (int i = 0; i < trials; ++i) {
      kills += runs.trial(random);
      EXPECT_EQ(names_in(folder / "out").size(), expected.size());
      EXPECT_TRUE(contents(folder / "out") == expected) << "trial " << i;
    }
  }
  EXPECT_GE(kills, 1);
  std::printf("%d kills\n", kills);
}

/// Stops it while it works (SIGINT); false if it was too fast.
bool interrupted(const Model& model, const std::filesystem::path& folder, const Arguments& more) {
  test::RunOptions options;
  options.environment = clean({});
  options.signals_after_start = {SIGINT};
  options.started_file = folder.string();
  Arguments arguments = args("quantize --dynamic --model {} --out {} {}", model.name(), folder / "out", more);
  const auto run = run_fp8(arguments, options);
  if (run.code == 0) return false;
  expect_refused(run, {"interrupted"}, 130);
  EXPECT_EQ(run.err.find("--resume goes on with it") != std::string::npos, !more.empty());
  return true;
}

TEST(Resume, InterruptedItKeepsItsPartsOnlyIfAsked) {
  const Model model;
  write_blocks(model, 40, 2048);
  const test::TempDir folder;
  if (!interrupted(model, folder.path(), {})) GTEST_SKIP() << "it ended before the signal";
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
  if (!interrupted(model, folder.path(), {"--resume"})) GTEST_SKIP() << "it ended before the signal";
  EXPECT_THAT(names_in(folder.path()), ElementsAre(".out.partial"));
  const Arguments arguments =
      args("quantize --json --dynamic --model {} --out {} --resume", model.name(), folder / "out");
  Arguments other = arguments;
  other.insert(other.end(), {"--exclude", "layers\\.3\\."});
  expect_refused(fp8(other), {"can't resume", "modules and their scales"});
  other = arguments;
  other.insert(other.end(), {"--scheme", "tensor"});
  expect_refused(fp8(other), {"can't resume", "scheme", "channel", "tensor", "without --resume it begins anew"});
  const auto result = json_of(fp8(arguments));
  EXPECT_EQ(result["units"], 80);
  EXPECT_LE(result["units_kept"], 80);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("out"));
  expect_success(fp8("quantize --quiet --dynamic --model {} --out {}", model.name(), folder / "whole"));
  EXPECT_TRUE(contents(folder / "out") == contents(folder / "whole"));
}

TEST(Resume, AChangedSourceIsNotResumed) {
  const Model model;
  write_blocks(model, 40, 2048);
  const test::TempDir folder;
  if (!interrupted(model, folder.path(), {"--resume"})) GTEST_SKIP() << "it ended before the signal";
  std::filesystem::last_write_time(model.path() / "model.safetensors",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  const Arguments arguments = args("quantize --dynamic --model {} --out {}", model.name(), folder / "out");
  Arguments resumed = arguments;
  resumed.push_back("--resume");
  expect_refused(fp8(resumed), {"can't resume", "source: model.safetensors: modified"});
  const auto anew = fp8(arguments);
  EXPECT_EQ(anew.code, 0);
  EXPECT_THAT(anew.err, HasSubstr("--resume would have gone on with it"));
}

TEST(Resume, ASourceCutShortWhileItIsReadLeavesNothing) {
  for (const bool grow : {false, true}) {
    const Model model;
    write_blocks(model, 40, 2048);
    const test::TempDir folder;
    std::thread spoiler([&] {
      for (int i = 0; i < 60000 && std::filesystem::is_empty(folder.path()); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto file = model.path() / "model.safetensors";
      std::filesystem::resize_file(file,
                                   grow ? std::filesystem::file_size(file) + 8 : std::filesystem::file_size(file) / 3);
    });
    const auto run = fp8("quantize --dynamic --model {} --out {}", model.name(), folder / "out");
    spoiler.join();
    if (run.code == 0) continue;  // it had read all of it
    expect_refused(run, {"model.safetensors"});
    EXPECT_THAT(run.err, AnyOf(HasSubstr("cut short while it was read"), HasSubstr("changed while it was read")));
    EXPECT_THAT(names_in(folder.path()), IsEmpty());
  }
}

TEST(Resume, AFullDiskIsNamedAndLeavesNothing) {
  const Model model;
  write_blocks(model, 2, 512);  // 8 MiB, 2 MiB of codes
  const test::TempDir folder;
  std::filesystem::create_directory(folder / "disk");
  const Arguments arguments = args("quantize --dynamic --model {} --out {}", model.name(), folder / "disk/out");
  const auto answer = io::on_small_disk(folder / "disk", [&] {
    const auto run = fp8(arguments);
    return std::to_string(run.code) + " " + run.err + std::to_string(names_in(folder / "disk").size());
  });
  if (answer.has_value()) {
    EXPECT_THAT(*answer, AllOf(StartsWith("1 fp8: error: "),
                               HasSubstr("disk/out/model.safetensors: no space left on device (needed 2"),
                               ::testing::EndsWith("\n0")));
  }
  const auto run = fp8_limited(RLIMIT_FSIZE, 1 << 20, arguments);
  expect_refused(run, {"model.safetensors: larger than the file size limit (needed 2"});
  EXPECT_THAT(names_in(folder / "disk"), IsEmpty());
}

TEST(Resume, RanksOfEveryLauncherShareTheWork) {
  const Model model;
  write_blocks(model, 6, 256);
  const test::TempDir folder;
  expect_success(
      fp8("quantize --quiet --dynamic --model {} --out {} --shard-size 400000", model.name(), folder / "whole"));
  const std::string out = (folder / "out").string();
  const Arguments arguments =
      args("quantize --json --dynamic --model {} --out {} --shard-size 400000", model.name(), out);
  const auto with = [&](Arguments more) {
    Arguments all = arguments;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect_refused(fp8(with({"--join"})), {"no shares to join"});
  const std::vector<Environment> launchers = {
      {{"RANK", "0"}, {"WORLD_SIZE", "4"}},
      {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}},
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"WORLD_SIZE", "1"}},
      {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}};
  for (std::size_t i = 0; i < launchers.size(); ++i) {
    if (i == 3) expect_refused(fp8(with(args("--join --world-size 4"))), {"can't join", "4 ranks, missing: 3"});
    const auto run = fp8(arguments, launchers[i]);
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_THAT(run.err, AllOf(HasSubstr("warning"), HasSubstr("this is rank " + std::to_string(i) + " of 4")));
    EXPECT_FALSE(std::filesystem::exists(out));
  }
  expect_refused(fp8(with(args("--join --scheme tensor"))), {"was made from something else"});
  json_of(fp8(with({"--join"})));
  EXPECT_TRUE(contents(folder / "out") == contents(folder / "whole"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("out", "whole"));
  expect_refused(fp8(with({"--rank", "1"})), {"--rank needs --world-size"}, 2);
  expect_refused(fp8(with({"--world-size", "2"})), {"--world-size needs --rank"}, 2);
  expect_refused(fp8(with(args("--rank 2 --world-size 2"))), {"--rank: found 2, allowed: 0 to 1"}, 2);
  expect_refused(fp8(arguments, {{"RANK", "x"}, {"WORLD_SIZE", "2"}}), {"'RANK'", "found 'x'"});
  expect_refused(fp8(arguments, {{"WORLD_SIZE", "2"}}), {"'RANK'", "found nothing"});
}

}  // namespace
}  // namespace fp8::e2e
