// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM at many moments: quantize leaves nothing behind or everything; measuring keeps what it saw, and
// its NumSamples says how much that was: the files equal those of a run over that many samples.
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

using std::chrono::milliseconds;

/// Starts fp8, sends it the signal after `delay`, counted from the first file in `watched` (empty: from the start).
test::Run interrupted(const Arguments& arguments, int number, milliseconds delay, const std::filesystem::path& watched,
                      const Environment& environment = {}) {
  const test::TempDir folder;
  test::RunOptions options;
  options.environment = clean(environment);
  const std::string out = (folder / "out").string(), err = (folder / "err").string();
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGINT, SIG_DFL);  // the test itself may run in the background
    test::become_fp8(arguments, options, out, err);
  }
  for (int i = 0; !watched.empty() && i < 60000 && std::filesystem::is_empty(watched); ++i)
    std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(delay);
  kill(child, number);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read_file(out), read_file(err)};
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
      EXPECT_EQ(names_in(folder / "out").size(), 5u);
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

/// The files of a measurement, whole and readable: NumSamples; 0 if there are none.
std::int64_t samples_measured(const std::filesystem::path& folder, const std::string& prefix) {
  if (!std::filesystem::exists(folder)) return 0;
  const std::string stem = prefix + "_hooks_maxabs";
  auto names = names_in(folder);
  std::erase(names, stem + ".kv_cache");  // without a config
  EXPECT_THAT(names, ElementsAre(stem + ".fingerprint", stem + ".json", stem + ".npz", stem + "_mod_list.json"));
  return io::read_json(folder / (prefix + "_hooks_maxabs.json"))["NumSamples"].get<std::int64_t>();
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
    partial[samples] = results(out);
  }
  ASSERT_FALSE(partial.empty()) << "no signal came while samples were measured";
  const auto& [samples, files] = *partial.begin();
  EXPECT_LT(samples, 600);
  const test::TempDir folder;
  expect_success(
      fp8("measure --model $DEMO --data $CALIB --samples {} --seq-len 256 --out {}", samples, folder / "whole"));
  auto whole = results(folder / "whole");
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

TEST(Interrupt, EvaluateUnderQuantConfigKeepsWhatItSaw) {
  const test::TempDir folder;
  const auto out = folder / "out", config = folder / "config.json";
  write_config(config, R"("mode": "MEASURE", "measure_exclude": "NONE", "allowlist": {"types": ["Linear"]})",
               out / "inc_output");
  expect_partial_measurements(args("evaluate --model $DEMO --data $CALIB --samples 600"), out,
                              {{"QUANT_CONFIG", config.string()}});
  std::filesystem::remove_all(out);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("config.json"));
}

}  // namespace
}  // namespace fp8::e2e
