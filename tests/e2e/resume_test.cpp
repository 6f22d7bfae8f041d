// SPDX-License-Identifier: Apache-2.0
// fp8 quantize cut short: killed at random moments, out of disk, with a source that changes or ends while it is read;
// and shared out among several processes.
#include "e2e/processes.h"
#include "runtime/io/atomic/small_disk.h"

namespace fp8::e2e {
namespace {

using std::chrono::milliseconds;

TEST(Resume, KilledQuantizeEndsWithTheSameBytes) {
  const Model model;
  write_blocks(model, 12, 512);
  std::mt19937 random(20240817);
  int kills = 0;
  for (const Arguments& way : {args("--dynamic --shard-size 3000000"), args("--weights-only --scheme tensor"),
                               args("--dynamic --scheme block --format fp8"), args("--dynamic --format inc")})
    kills += expect_survives_kills(args("quantize --model {} {}", model.name(), way), random);
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
  EXPECT_THAT(succeeded(fp8(arguments)).err, HasSubstr("--resume would have gone on with it"));
}

TEST(Resume, ASourceCutShortWhileItIsReadLeavesNothing) {
  for (const bool grow : {false, true}) {
    const Model model;
    write_blocks(model, 40, 2048);
    const test::TempDir folder;
    std::thread spoiler([&] {
      for (int i = 0; i < 60000 && !test::has_begun(folder.path()); ++i)
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

/// Whichever of its files does not fit, with an observer that keeps states beside them: none appears.
TEST(Resume, AFullDiskLeavesNoPartOfAMeasurement) {
  const test::TempDir folder;
  const auto config = folder / "histogram.json";
  write_file(config, R"({"mode": "MEASURE", "observer": "histogram", "dump_stats_path": "x/inc_output"})");
  const auto measuring = [&](const char* out) {
    return args("measure --config {} --model $DEMO --data $CALIB --samples 2 --seq-len 32 --out {}", config.string(),
                folder / out);
  };
  expect_success(fp8(measuring("whole")));
  std::set<std::uintmax_t> sizes;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "whole")) sizes.insert(entry.file_size());
  ASSERT_GE(sizes.size(), 4u);
  for (const auto size : sizes) {
    expect_refused(fp8_limited(RLIMIT_FSIZE, size - 1, measuring("out")), {"larger than the file size limit"});
    EXPECT_FALSE(std::filesystem::exists(folder / "out")) << size;
  }
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
  const std::vector<Environment> launchers = {
      {{"RANK", "0"}, {"WORLD_SIZE", "4"}},
      {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}},
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"WORLD_SIZE", "1"}},
      {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}};
  for (std::size_t i = 0; i < launchers.size(); ++i) {
    if (i == 3) expect_refused(fp8(with(args("--join 4"))), {"can't join", "4 ranks, missing: 3"});
    const auto run = succeeded(fp8(arguments, launchers[i]));
    EXPECT_THAT(run.err, AllOf(HasSubstr("warning"), HasSubstr("this is rank " + std::to_string(i) + " of 4")));
    EXPECT_FALSE(std::filesystem::exists(out));
  }
  expect_refused(fp8(with(args("--join --scheme tensor"))), {"was made from something else"});
  json_of(fp8(with({"--join"})));
  EXPECT_TRUE(contents(folder / "out") == contents(folder / "whole"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("out", "whole"));
}

// SIGINT and SIGTERM at many moments: quantize leaves nothing behind or everything; measuring keeps what it saw, and
// its NumSamples says how much that was: the files equal those of a run over that many samples.

/// Starts fp8, sends it the signal after `delay`, counted from the first file in `watched` (empty: from the start).
test::Run interrupted(const Arguments& arguments, int number, milliseconds delay, const std::filesystem::path& watched,
                      const Environment& environment = {}) {
  auto process = start_fp8(arguments, environment);
  if (!watched.empty()) wait_for([&] { return test::has_begun(watched); });
  std::this_thread::sleep_for(delay);
  process.send(number);
  return process.wait();
}

TEST(Interrupt, QuantizeLeavesNothingOrAll) {
  const Model model;
  write_blocks(model, 12, 1024);
  int stopped = 0;
  for (int i = 0; i < 14; ++i) {
    SCOPED_TRACE(i);
    const test::TempDir folder;
    const auto run = interrupted(args("quantize --json --dynamic --model {} --out {}", model.name(), folder / "out"),
                                 i % 2 == 0 ? SIGINT : SIGTERM, milliseconds(i * i), folder.path());
    if (run.code == 0) {  // it came after the last chunk
      EXPECT_THAT(names_in(folder.path()), ElementsAre("out"));
      EXPECT_EQ(names_in(folder / "out").size(), 6u);
      continue;
    }
    ++stopped;
    expect_refused(run, {"interrupted"}, i % 2 == 0 ? 130 : 143);
    EXPECT_THAT(names_in(folder.path()), IsEmpty());
  }
  EXPECT_GE(stopped, 2);
}

TEST(Interrupt, WhileStartingLeavesNothing) {
  const Model model;
  for (int i = 0; i < 6; ++i) {
    const test::TempDir folder;
    const int signal = i % 2 == 0 ? SIGINT : SIGTERM;
    const auto run = interrupted(args("quantize --dynamic --model {} --out {}", model.name(), folder / "out"), signal,
                                 milliseconds(20 + 40 * i), {});
    EXPECT_THAT(run.code, AnyOf(0, 128 + signal, -signal));  // -signal: before main()
    if (run.code == 0) continue;
    EXPECT_THAT(names_in(folder.path()), IsEmpty());
  }
}

/// The files of a measurement, whole and readable: NumSamples; 0 if there are none. The snapshot to go on from is
/// removed.
std::int64_t samples_measured(const std::filesystem::path& folder, const std::string& prefix) {
  if (!std::filesystem::exists(folder)) return 0;
  const std::string stem = prefix + "_hooks_maxabs";
  std::filesystem::remove_all(folder / ("." + stem + ".resume"));
  auto names = names_in(folder);
  std::erase(names, stem + ".kv_cache");  // without a config
  EXPECT_THAT(names, ElementsAre(stem + ".fingerprint", stem + ".json", stem + ".npz", stem + "_mod_list.json"));
  return io::read_json(folder / (prefix + "_hooks_maxabs.json"))["NumSamples"].get<std::int64_t>();
}

/// The values and names of a measurement: without how many samples there were to be, which the .npz says too.
std::map<std::string, std::string> values_in(const std::filesystem::path& folder) {
  auto files = results(folder);
  files.erase("inc_output_hooks_maxabs.npz");
  auto json = io::parse_json(files.at("inc_output_hooks_maxabs.json"), "json");
  json.erase("PlannedSamples");
  files["inc_output_hooks_maxabs.json"] = json.dump();
  return files;
}

/// Interrupts `arguments` at several moments and compares what it wrote below `out` with a whole run over as many
/// samples.
void expect_partial_measurements(const Arguments& arguments, const std::filesystem::path& out,
                                 const Environment& environment) {
  std::map<std::int64_t, std::map<std::string, std::string>> partial;
  milliseconds delay(200);
  for (int i = 0; i < 24 && partial.size() < 4; ++i) {
    std::filesystem::remove_all(out);
    const auto run = interrupted(arguments, i % 2 == 0 ? SIGINT : SIGTERM, delay, {}, environment);
    const std::int64_t samples = samples_measured(out, "inc_output");
    delay = run.code == 0 ? delay / 2 : delay + milliseconds(130);  // too late; else a little later
    if (run.code == 0 || run.code == -SIGINT || run.code == -SIGTERM) {
      EXPECT_EQ(samples, run.code == 0 ? 600 : 0);
      continue;
    }
    expect_refused(run, {"interrupted"}, i % 2 == 0 ? 130 : 143);
    if (samples == 0) continue;
    // The run's mark is that of a finished measurement: --resume goes by it.
    EXPECT_THAT(contents(out).at("inc_output_hooks_maxabs.fingerprint"), Not(HasSubstr("\"run\":")));
    EXPECT_EQ(io::read_json(out / "inc_output_hooks_maxabs.json")["PlannedSamples"], 600);
    EXPECT_THAT(run.err, HasSubstr(io::message("{} of 600 samples", samples)));
    partial[samples] = values_in(out);
  }
  ASSERT_FALSE(partial.empty()) << "no signal came while samples were measured";
  const auto& [samples, files] = *partial.begin();
  EXPECT_LT(samples, 600);
  const test::TempDir folder;
  expect_success(
      fp8("measure --model $DEMO --data $CALIB --samples {} --seq-len 256 --out {}", samples, folder / "whole"));
  auto whole = values_in(folder / "whole");
  if (environment.contains("QUANT_CONFIG"))
    whole.erase("inc_output_hooks_maxabs.kv_cache");  // its lists decide, and name no caches
  EXPECT_EQ(files, whole);
}

TEST(Interrupt, MeasureKeepsWhatItSaw) {
  const test::TempDir folder;
  const auto out = folder / "out";
  expect_partial_measurements(args("measure --model $DEMO --data $CALIB --samples 600 --seq-len 256 --out {}", out),
                              out, {});
  std::filesystem::remove_all(out);
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(Interrupt, MeasureSaysHowToGoOnAndDoes) {
  const test::TempDir folder;
  const auto out = folder / "out";
  const auto arguments = args("measure --model $DEMO --data $CALIB --samples 600 --seq-len 256 --out {}", out);
  test::Run run;
  for (milliseconds delay(600); delay < milliseconds(6000); delay += milliseconds(300)) {
    std::filesystem::remove_all(out);
    run = interrupted(arguments, SIGINT, delay, {});
    if (run.code == 0) GTEST_SKIP() << "it ended before the signal";
    if (std::filesystem::exists(out / "inc_output_hooks_maxabs.json")) break;
  }
  expect_refused(run,
                 {"interrupted after ", "of 600 samples: ", "inc_output_hooks_maxabs.json has them",
                  "the same command with --resume goes on"},
                 130);
  const auto quantized = fp8("quantize --model $DEMO --measurements {} --out {}", out, folder / "fp8");
  EXPECT_THAT(quantized.err, HasSubstr("of 600 samples were measured: the run was cut short"));
  auto more = arguments;
  more.insert(more.end(), {"--resume", "--json"});
  const auto gone_on = fp8(more);
  EXPECT_TRUE(json_of(gone_on)["resumed"]);
  EXPECT_THAT(gone_on.err, HasSubstr("fp8: note: the measurement that stood there before is in "));
  const auto json = io::read_json(out / "inc_output_hooks_maxabs.json");
  EXPECT_EQ(json["NumSamples"], 600);
  EXPECT_FALSE(json.contains("PlannedSamples"));
}

TEST(Interrupt, EvaluateUnderQuantConfigKeepsWhatItSaw) {
  const test::TempDir folder;
  const auto out = folder / "out", config = folder / "config.json";
  write_config(config, R"("mode": "MEASURE", "measure_exclude": "NONE", "allowlist": {"types": ["Linear"]})",
               out / "inc_output");
  expect_partial_measurements(args("evaluate --model $DEMO --data $CALIB --seq-len 256 --samples 600"), out,
                              {{"QUANT_CONFIG", config.string()}});
  std::filesystem::remove_all(out);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("config.json"));
}

}  // namespace
}  // namespace fp8::e2e
