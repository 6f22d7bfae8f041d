// SPDX-License-Identifier: Apache-2.0
// fp8 measure with one decoder layer in memory at a time: the files of the whole model's run, byte for byte, of every
// kind of model and every observer, within the memory limit. And runs that are killed, and go on.
//
// FP8_TEST_KILLS: how many runs are killed in each way (4).
#include <random>

#include "e2e/e2e.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::e2e {
namespace {

namespace fs = std::filesystem;
using models::testing::TinyCheckpoint;
using models::testing::TinyMixtral;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// input_ids [chunks, length] that reach every row of a small vocabulary.
void write_ids(const fs::path& path, std::int64_t chunks, std::int64_t length, std::int64_t vocabulary) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(chunks * length));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int64_t>((i * i + 5 * i + i / 7) % static_cast<std::size_t>(vocabulary));
  io::SafetensorsWriter writer(path, {{"input_ids", io::DType::I64, {chunks, length}}});
  writer.write("input_ids", ids.data());
  writer.commit();
}

/// Every file below `folder`, but for backups of earlier ones.
std::map<std::string, std::string> all_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(entry.path(), folder).string();
    if (entry.is_regular_file() && name.rfind("backup_", 0) != 0) files[name] = test::read_file(entry.path());
  }
  return files;
}

Arguments joined(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Blocks : public ::testing::Test {
 protected:
  void SetUp() override { write_ids(folder / "ids.safetensors", 5, 24, 32); }

  Arguments command(const fs::path& model, const std::string& out) const {
    return {"measure", "--json", "--model", model.string(),         "--data", (folder / "ids.safetensors").string(),
            "--batch", "2",      "--out",   (folder / out).string()};
  }
  /// Both runs; the files must be equal, and there must be some.
  void expect_same(const fs::path& model, const Arguments& more, const Arguments& blocks = {"--block-wise"}) {
    SCOPED_TRACE(model.filename().string() + " " + (more.empty() ? "" : more.back()));
    const auto whole = json_of(fp8(joined(joined(command(model, "whole"), {"--whole"}), more)));
    const auto parts = json_of(fp8(joined(joined(command(model, "blocks"), blocks), more)));
    EXPECT_EQ(whole.value("mode", ""), "whole");
    EXPECT_EQ(parts.value("mode", ""), "block-wise");
    for (const char* key : {"modules", "tensors", "samples", "non_finite"}) EXPECT_EQ(whole[key], parts[key]) << key;
    const auto expected = all_files(folder / "whole"), found = all_files(folder / "blocks");
    EXPECT_GE(expected.size(), 4u);
    EXPECT_EQ(expected.size(), found.size());
    for (const auto& [name, bytes] : expected) EXPECT_TRUE(found.count(name) == 1 && found.at(name) == bytes) << name;
    fs::remove_all(folder / "whole");
    fs::remove_all(folder / "blocks");
  }
  /// What --memory-limit must say at least for this command, as its refusal tells: "203MB".
  static std::string least(const Arguments& command) {
    const auto run = fp8(joined(command, {"--memory-limit", "1kB"}));
    expect_refused(run, {"--memory-limit: found '1kB', but the program itself takes "}, 2);
    const std::string allowed = "allowed: ";
    const auto at = run.err.find(allowed);
    return at == std::string::npos
               ? ""
               : run.err.substr(at + allowed.size(), run.err.find(" or more", at) - at - allowed.size());
  }
  /// A QUANT_CONFIG that measures everything there is, embeddings too.
  Arguments everything(const std::string& observer) const {
    const auto path = folder / (observer + ".json");
    write_file(path, R"({"mode": "MEASURE", "measure_exclude": "NONE", "observer": ")" + observer +
                         R"(", "dump_stats_path": "s"})");
    return {"--config", path.string()};
  }
  test::TempDir folder;
};

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
  expect_same(folder / "dense", joined(everything("maxabs"), {"--attention", "eager"}));
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
  const auto limit = least(joined(command(folder / "wide", "none"), {"--block-wise"}));
  for (const std::string observer : {"maxabs", "maxabs_per_channel", "histogram", "shape", "save"})
    expect_same(folder / "wide", everything(observer), {"--block-wise", "--quiet", "--memory-limit", limit});
}

TEST_F(Blocks, StatesInFilesGiveTheSameBytes) {
  TinyCheckpoint().write(folder / "model");
  write_ids(folder / "ids.safetensors", 2000, 32, 32);  // 4 MB of hidden states
  const auto limit = least(joined(command(folder / "model", "none"), {"--block-wise"}));
  expect_same(folder / "model", {}, {"--block-wise", "--quiet", "--memory-limit", limit});
}

TEST_F(Blocks, LogitsThatAreNotFiniteAreLeftOutWhole) {
  auto wide = wide_model();
  for (std::size_t i = 19'990 * 16; i < 19'991 * 16; ++i)
    wide.tensors["lm_head.weight"].values[i] *= 60000;  // in the last part, for some samples
  wide.write(folder / "wide");
  const Arguments half = {"--block-wise", "--dtype", "f16", "--quiet"};
  expect_same(folder / "wide", {"--dtype", "f16", "--quiet"},
              {"--block-wise", "--memory-limit", least(joined(command(folder / "wide", "none"), half))});
}

TEST_F(Blocks, AModelTenTimesTheLimitIsMeasuredWithinIt) {
  constexpr std::int64_t kLayers = 30, kHidden = 512, kInner = 1408, kVocabulary = 16384;
  constexpr std::int64_t kLimit = 40'000'000;  // beyond the program itself
  TinyCheckpoint shape;
  auto config = shape.config;
  config["hidden_size"] = kHidden, config["intermediate_size"] = kInner, config["num_hidden_layers"] = kLayers;
  config["vocab_size"] = kVocabulary;
  std::vector<io::SafetensorsWriter::Entry> entries = {
      {"model.embed_tokens.weight", io::DType::F32, {kVocabulary, kHidden}},
      {"lm_head.weight", io::DType::F32, {kVocabulary, kHidden}},
      {"model.norm.weight", io::DType::F32, {kHidden}}};
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const auto p = "model.layers." + std::to_string(i) + ".";
    const auto add = [&](const std::string& name, std::vector<std::int64_t> sizes) {
      entries.push_back({p + name + ".weight", io::DType::F32, std::move(sizes)});
    };
    add("self_attn.q_proj", {kHidden, kHidden}), add("self_attn.o_proj", {kHidden, kHidden});
    add("self_attn.k_proj", {kHidden / 2, kHidden}), add("self_attn.v_proj", {kHidden / 2, kHidden});
    add("mlp.gate_proj", {kInner, kHidden}), add("mlp.up_proj", {kInner, kHidden}),
        add("mlp.down_proj", {kHidden, kInner});
    add("input_layernorm", {kHidden}), add("post_attention_layernorm", {kHidden});
  }
  fs::create_directory(folder / "large");
  write_file(folder / "large" / "config.json", config.dump());
  std::minstd_rand random(1);
  std::vector<float> values(static_cast<std::size_t>(kVocabulary * kHidden));
  for (auto& v : values) v = static_cast<float>(random() % 2001) / 10000.0f - 0.1f;
  io::SafetensorsWriter writer(folder / "large" / "model.safetensors", entries);
  std::uint64_t bytes = 0;
  for (const auto& e : entries) {
    writer.write(e.name, values.data());
    std::uint64_t size = sizeof(float);
    for (const auto n : e.shape) size *= static_cast<std::uint64_t>(n);
    bytes += size;
  }
  writer.commit();
  EXPECT_GE(bytes, std::uint64_t{10} * kLimit);
  TinyCheckpoint().write(folder / "small");
  const auto peak = [&](const fs::path& model, const std::string& out, const Arguments& more) {
    const auto json = json_of(fp8(joined(command(model, out), more)));
    return std::pair(json.value("peak_rss_bytes", std::int64_t{1} << 60), json.value("mode", ""));
  };
  const auto [base, small_mode] = peak(folder / "small", "small_out", {"--whole"});
  const auto [whole, whole_mode] = peak(folder / "large", "whole", {"--whole"});
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
  const auto run = [&](const Arguments& more) { return fp8(joined(command(folder / "model", "out"), more)); };
  expect_refused(run({"--block-wise", "--whole"}), {"--block-wise", "--whole"}, 2);
  expect_refused(run({"--memory-limit", "lots"}), {"--memory-limit", "'lots'", "GiB"}, 2);
  expect_refused(run({"--memory-limit", "0"}), {"--memory-limit", "'0'"}, 2);
  expect_refused(run({"--memory-limit", "20MB"}),
                 {"--memory-limit: found '20MB', but the program itself takes",
                  "one decoder layer with a batch of 2 samples", "MB or more"},
                 2);
  expect_refused(run({"--whole", "--memory-limit", "20MB"}),
                 {"--memory-limit: found '20MB', but the program itself takes", "and the model about"}, 2);
  EXPECT_EQ(run({"--whole", "--memory-limit", least(joined(command(folder / "model", "none"), {"--whole"}))}).code, 0);
  fs::remove_all(folder / "out");
  EXPECT_FALSE(fs::exists(folder / "out"));
  TinyCheckpoint broken;
  broken.tensors.erase("model.layers.1.mlp.up_proj.weight");
  broken.write(folder / "broken");
  expect_refused(fp8(joined(command(folder / "broken", "out"), {"--block-wise"})),
                 {"model.layers.1.mlp.up_proj.weight", "missing"});
  TinyCheckpoint nan;
  nan.tensors["model.layers.1.mlp.up_proj.weight"].values[7] = NAN;
  nan.write(folder / "nan");
  expect_refused(fp8(joined(command(folder / "nan", "out"), {"--block-wise", "--quiet"})),
                 {"model.layers.1.mlp.up_proj.weight", "NaN"});
  EXPECT_TRUE(!fs::exists(folder / "out") || names_in(folder / "out").empty());
}

/// Runs that are killed.
class Killed : public Blocks {
 protected:
  Arguments demo_command(const std::string& samples) const {
    return {"measure",          "--block-wise", "--model", demo_model(), "--data",
            calibration_text(), "--samples",    samples,   "--out",      (folder / "none").string()};
  }
  /// Starts the program and kills it after `delay`; true if it was still running.
  static bool killed_after(const Arguments& arguments, std::chrono::microseconds delay, std::string* error) {
    const test::TempDir streams;
    test::RunOptions options;
    options.environment = clean({});
    const std::string out = (streams / "out").string(), err = (streams / "err").string();
    const pid_t child = fork();
    if (child == 0) test::become_fp8(arguments, options, out, err);
    std::this_thread::sleep_for(delay);
    kill(child, SIGKILL);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    *error = test::read_file(err);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << *error;
    return WIFSIGNALED(status);
  }

  void expect_survives(const Arguments& command, const fs::path& out,
                       const std::map<std::string, std::string>& expected, std::chrono::microseconds whole) {
    const char* wanted = std::getenv("FP8_TEST_KILLS");
    const int kills = wanted != nullptr ? std::atoi(wanted) : 4;
    std::mt19937_64 random(static_cast<std::uint64_t>(getpid()));
    int resumed = 0;
    for (int killed = 0; killed < kills;) {
      std::string error;
      const auto delay = std::chrono::microseconds(random() % static_cast<std::uint64_t>(whole.count()));
      const bool stopped = killed_after(command, delay, &error);
      killed += stopped ? 1 : 0;
      EXPECT_EQ(error, "");
      if (stopped && killed % 4 != 0) continue;  // four kills in a row, then the run may end
      const auto json = json_of(fp8(command));
      resumed += json.value("resumed", false) ? 1 : 0;
      auto found = all_files(out);
      EXPECT_EQ(found, expected) << "after " << killed << " kills";
      fs::remove_all(out);
    }
    std::printf("%d runs killed, %d of the runs that ended had gone on from a snapshot\n", kills, resumed);
  }

  void expect_survives(const Arguments& how) {
    const auto arguments = [&](const std::string& out) {
      return joined({"measure", "--json", "--model", demo_model(), "--data", calibration_text(), "--samples", "96",
                     "--snapshot-seconds", "0", "--out", (folder / out).string()},
                    how);
    };
    const auto start = std::chrono::steady_clock::now();
    expect_success_json(fp8(arguments("expected")));
    const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
    expect_survives(joined(arguments("out"), {"--resume"}), folder / "out", all_files(folder / "expected"), whole);
  }
  static void expect_success_json(const test::Run& run) { EXPECT_EQ(run.code, 0) << run.err; }
};

TEST_F(Killed, WholeModelGoesOn) { expect_survives({"--whole"}); }
TEST_F(Killed, BlocksGoOn) { expect_survives({"--block-wise"}); }
TEST_F(Killed, BlocksWithStatesInFilesGoOn) {
  expect_survives({"--block-wise", "--memory-limit", least(demo_command("96")), "--quiet"});
}

TEST_F(Killed, CtrlCLeavesNothingBeforeTheFirstSnapshot) {
  const fs::path out = folder / "out", snapshots = out / ".inc_output_hooks_maxabs.resume";
  const auto limit = least(demo_command("1500"));
  for (const int signals : {1, 2}) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGINT, SIG_DFL);
      test::RunOptions options;
      options.environment = clean({});
      test::become_fp8({"measure", "--quiet", "--model", demo_model(), "--data", calibration_text(), "--samples",
                        "1500", "--memory-limit", limit, "--block-wise", "--out", out.string()},
                       options, (folder / "o").string(), (folder / "e").string());
    }
    for (int k = 0; k < 60000 && !fs::exists(snapshots / "hidden-1"); ++k)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < signals; ++i) kill(child, SIGINT);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    EXPECT_THAT(names_in(out), ::testing::IsEmpty());
  }
}

/// A snapshot that a killed run left.
class Resumed : public Killed {
 protected:
  void SetUp() override {
    Killed::SetUp();
    fs::create_directory(folder / "model");
    for (const auto& name : names_in(demo_model()))
      if (name != "reference.safetensors") fs::copy_file(fs::path(demo_model()) / name, folder / "model" / name);
    leave_snapshot();
  }
  Arguments measuring(const Arguments& more, bool resume = true) const {
    auto all = joined({"measure", "--json", "--model", (folder / "model").string(), "--data", calibration_text(),
                       "--block-wise", "--snapshot-seconds", "0", "--out", (folder / "out").string()},
                      more);
    if (resume) all.push_back("--resume");
    return all;
  }
  fs::path snapshot() const { return folder / "out" / ".inc_output_hooks_maxabs.resume"; }
  void leave_snapshot() {
    for (int i = 0; i < 50; ++i) {
      std::string error;
      const pid_t child = fork();
      if (child == 0) {
        test::RunOptions options;
        options.environment = clean({});
        test::become_fp8(measuring({"--samples", "400"}, false), options, (folder / "o").string(),
                         (folder / "e").string());
      }
      for (int k = 0; k < 60000 && !fs::exists(snapshot() / "state") && kill(child, 0) == 0 &&
                      waitpid(child, nullptr, WNOHANG) == 0;
           ++k)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      if (fs::exists(snapshot() / "state")) return;
    }
    FAIL() << "no run left a snapshot";
  }
};

TEST_F(Resumed, WhatChangedIsNamed) {
  expect_refused(fp8(measuring({"--samples", "401"})), {"--resume", "data samples", "400", "401"});
  expect_refused(fp8(measuring({"--samples", "400", "--exclude", "lm_head"})), {"--resume", "options exclude"});
  expect_refused(fp8(measuring({"--samples", "400", "--dtype", "bf16"})), {"--resume", "options dtype", "bf16"});
  const auto weights = folder / "model" / "model.safetensors";
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(5));
  expect_refused(fp8(measuring({"--samples", "400"})), {"--resume", "model.safetensors"});
  EXPECT_TRUE(fs::exists(snapshot() / "state"));  // still there for who asks the right thing
}

TEST_F(Resumed, ADamagedSnapshotIsRefused) {
  const auto hidden = [&] {
    for (const auto& name : names_in(snapshot()))
      if (name.rfind("hidden-", 0) == 0) return snapshot() / name;
    return snapshot() / "none";
  }();
  auto bytes = test::read_file(hidden);
  ASSERT_GT(bytes.size(), 1000u);
  auto damaged = bytes;
  damaged[damaged.size() / 2] ^= 1;
  write_file(hidden, damaged);
  expect_refused(fp8(measuring({"--samples", "400"})), {hidden.filename().string(), "checksum"});
  write_file(hidden, bytes.substr(1));
  expect_refused(fp8(measuring({"--samples", "400"})), {hidden.filename().string(), "bytes"});
  write_file(hidden, bytes);
  auto state = test::read_file(snapshot() / "state");
  state[state.size() - 9] ^= 1;
  write_file(snapshot() / "state", state);
  expect_refused(fp8(measuring({"--samples", "400"})), {"state", "checksum"});
}

TEST_F(Resumed, WithoutResumeItIsRemoved) {
  const auto json = json_of(fp8(measuring({"--samples", "8"}, false)));
  EXPECT_EQ(json.value("resumed", true), false);
  EXPECT_EQ(json.value("samples", 0), 8);
  EXPECT_FALSE(fs::exists(snapshot()));
}

TEST_F(Resumed, ASourceThatChangesIsReported) {
  const auto weights = folder / "model" / "model.safetensors";
  const auto bytes = test::read_file(weights);
  for (const bool cut : {false, true}) {
    SCOPED_TRACE(cut ? "cut short" : "replaced");
    fs::remove_all(folder / "out");
    const pid_t child = fork();
    if (child == 0) {
      test::RunOptions options;
      options.environment = clean({});
      test::become_fp8(measuring({"--samples", "1500", "--batch", "2"}, false), options, (folder / "o").string(),
                       (folder / "e").string());
    }
    for (int k = 0; k < 60000 && !fs::exists(snapshot() / "state"); ++k)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (cut) {
      fs::resize_file(weights, bytes.size() / 2);
    } else {
      write_file(folder / "model" / "new", bytes);
      fs::rename(folder / "model" / "new", weights);
    }
    int status = 0;
    waitpid(child, &status, 0);
    write_file(weights, bytes);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    EXPECT_EQ(test::read_file(folder / "o"), "");
    EXPECT_THAT(test::read_file(folder / "e"),
                ::testing::AllOf(StartsWith("fp8: error: "), HasSubstr("model.safetensors")));
    for (const auto& name : names_in(folder / "out"))
      EXPECT_THAT(name, StartsWith(".inc_output"));  // no measurement, half or whole
  }
}

}  // namespace
}  // namespace fp8::e2e
