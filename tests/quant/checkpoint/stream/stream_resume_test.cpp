// SPDX-License-Identifier: Apache-2.0
// What the engine keeps of a run that was cut short, and when it goes on: every unit that is still whole, of the same
// work, and an output that is finished already.

#include "quant/checkpoint/stream/stream_work.h"

namespace fp8::quant {
namespace {

using test::Work;

TEST(CheckpointStream, ResumeRedoesOnlyWhatIsMissing) {
  Work whole;
  whole.write();
  for (int at = 0; at < 8; ++at) {
    Work w;
    w.options.resume = true;
    w.fail_at = at;
    EXPECT_THAT(w.error([&] { w.write(); }), AllOf(HasSubstr("made to fail; what was finished is kept in"),
                                                   HasSubstr(".out.partial, 'resume' goes on")));
    EXPECT_THAT(names_in(w.dir.path()), ElementsAre(".out.partial"));
    w.fail_at = -1;
    const int before = w.runs;
    const auto result = w.write();
    EXPECT_EQ(result.kept + static_cast<std::size_t>(w.runs - before), 8u);
    EXPECT_GE(result.kept + 4, static_cast<std::size_t>(at));  // beside the failing one, others were in the making
    EXPECT_EQ(folder_bytes(w.dir / "out"), folder_bytes(whole.dir / "out"));
    EXPECT_THAT(names_in(w.dir.path()), ElementsAre("out"));
  }
}

/// Leaves a partial folder with every unit finished.
void leave_all(Work& w) {
  w.options.resume = true;
  EXPECT_THAT(w.error([&] {
    write_checkpoint(w.dir / "out", w.units, w.options, [](OutputFolder&) { throw io::Error("no config"); });
  }),
              HasSubstr("no config"));
}

TEST(CheckpointStream, ResumeVerifiesWhatItKeeps) {
  Work whole;
  whole.write();
  const std::string file = test::read_file(whole.dir / "out/model.safetensors");
  std::size_t redone = 0;
  for (std::size_t at = 0; at < file.size(); at += 997) {
    Work w;
    leave_all(w);
    std::string damaged = test::read_file(w.partial() / "model.safetensors");
    ASSERT_EQ(damaged, file);
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    std::ofstream(w.partial() / "model.safetensors", std::ios::binary) << damaged;
    redone += 8 - w.write().kept;
    EXPECT_EQ(folder_bytes(w.dir / "out"), folder_bytes(whole.dir / "out")) << at;
  }
  EXPECT_GT(redone, 20u);
}

TEST(CheckpointStream, ResumeOutlivesATornOrDamagedJournal) {
  Work whole;
  whole.write();
  Work first;
  leave_all(first);
  const std::string journal = test::read_file(first.partial() / "journal.jsonl");
  for (std::size_t size = 0; size <= journal.size(); size += 1 + journal.size() / 40) {
    Work w;
    leave_all(w);
    std::ofstream(w.partial() / "journal.jsonl", std::ios::binary) << journal.substr(0, size);
    std::ofstream(w.partial() / ".config.json.partial-1-0") << "a killed run's";
    const auto kept = w.write().kept;
    EXPECT_LE(kept, 8u);
    EXPECT_EQ(kept == 8, size == journal.size());
    EXPECT_EQ(folder_bytes(w.dir / "out"), folder_bytes(whole.dir / "out")) << size;
  }
}

TEST(CheckpointStream, ResumeNamesWhatDiffers) {
  const auto expect = [](const std::function<void(Work&)>& change, const std::string& text) {
    Work w;
    leave_all(w);
    change(w);
    const std::string message = w.error([&] { w.write(); });
    EXPECT_THAT(message,
                AllOf(HasSubstr("can't resume"), HasSubstr(text), HasSubstr("without 'resume' it begins anew")));
    EXPECT_THAT(names_in(w.dir.path()), ElementsAre(".out.partial"));
    w.options.resume = false;
    const auto result = w.write();
    EXPECT_EQ(result.kept, 0u);
    EXPECT_THAT(result.warnings, ElementsAre(HasSubstr("'resume' would have gone on")));
  };
  expect([](Work& w) { w.options.identity["option"]["scheme"] = "tensor"; },
         "'option: scheme' was \"channel\", is \"tensor\"");
  expect([](Work& w) { w.options.identity["option"]["block"] = 128; }, "'option: block' was nothing, is 128");
  expect([](Work& w) { w.options.shard_bytes = 9000; }, "'shard size' was 5000000000, is 9000");
  expect([](Work& w) { w.units.pop_back(); }, "'tensors'");
}

/// As the commands do it: fp8.json with the mark.
void finish(const Work& w, OutputFolder& folder) {
  folder.write_json("config.json", {{"a", 1}});
  folder.write_sidecar({{"run", run_mark(w.units, w.options)}});
}

TEST(CheckpointStream, ResumeOfAFinishedOutputSaysSo) {
  Work w;
  const auto write = [&] {
    return write_checkpoint(w.dir / "out", w.units, w.options, [&](OutputFolder& f) { finish(w, f); });
  };
  EXPECT_FALSE(write().finished_before);
  const auto before = folder_bytes(w.dir / "out");
  w.options.resume = true;
  for (const bool overwrite : {false, true}) {
    w.options.overwrite = overwrite;
    const auto result = write();
    EXPECT_TRUE(result.finished_before);
    EXPECT_EQ(result.kept, 8u);
  }
  EXPECT_EQ(w.runs, 8);
  EXPECT_EQ(folder_bytes(w.dir / "out"), before);
  EXPECT_THAT(names_in(w.dir.path()), ElementsAre("out"));
  w.options.overwrite = false;
  // Of another work it is not.
  const auto other = [&](const std::function<void()>& change, const std::string& text) {
    const auto options = w.options;
    change();
    EXPECT_THAT(w.error([&] { write(); }), HasSubstr(text));
    w.options = options;
  };
  other([&] { w.options.identity["option"]["scheme"] = "tensor"; }, "not what this run would write");
  other([&] { w.options.shard_bytes = 9000; }, "not what this run would write");
  other([&] { w.options.resume = false; }, "exists and is not empty");
  const std::string file = test::read_file(w.dir / "out/model.safetensors");
  std::ofstream(w.dir / "out/model.safetensors", std::ios::binary) << file.substr(1);
  EXPECT_THAT(w.error([&] { write(); }), HasSubstr("bytes, expected"));
  // The ranks' output is known to ranks, and to who joins.
  w.options.world_size = 2;
  fs::remove_all(w.dir / "out");
  const auto join = [&] {
    return join_checkpoint(w.dir / "out", w.units, w.options, [&](OutputFolder& f) { finish(w, f); });
  };
  for (int rank : {0, 1}) {
    w.options.rank = rank;
    EXPECT_FALSE(write().finished_before);
  }
  EXPECT_FALSE(join().finished_before);
  EXPECT_TRUE(join().finished_before);
  EXPECT_TRUE(write().finished_before);
  EXPECT_THAT(names_in(w.dir.path()), ElementsAre("out"));
}

TEST(CheckpointStream, ACutShortOverwriteGoesOnInsteadOfBeingFinished) {
  Work w;
  const auto write = [&] {
    return write_checkpoint(w.dir / "out", w.units, w.options, [&](OutputFolder& f) { finish(w, f); });
  };
  write();
  w.options.resume = w.options.overwrite = true;
  fs::create_directory(w.dir / ".out.partial");  // what a cut-short run that is to replace it left
  EXPECT_FALSE(write().finished_before);
  EXPECT_EQ(w.runs, 16);
  EXPECT_THAT(names_in(w.dir.path()), ElementsAre("out"));
}

// Shares that processes take one after the other: the bytes of one process, whoever made which, and what happens to
// shares that fail, are damaged, or are of something else.

/// What finish() writes, with the mark by which a finished output is known.
StreamResult make(Work& w, bool join) {
  return make_checkpoint(w.dir / "out", w.units, w.options, join, [&](OutputFolder& f) { finish(w, f); });
}

io::SharesOptions shares_of(std::int64_t count, std::optional<double> wait = std::nullopt) {
  return {.count = count, .wait = wait};
}

std::map<std::string, std::string> alone(std::uint64_t shard_bytes) {
  Work w;
  w.options.shard_bytes = shard_bytes;
  make(w, false);
  return folder_bytes(w.dir / "out");
}

TEST(CheckpointShares, AnyNumberHasTheBytesOfOneProcess) {
  for (const std::uint64_t shard : {std::uint64_t{5'000'000'000}, std::uint64_t{9000}}) {
    const auto expected = alone(shard);
    for (const std::int64_t count : {1, 2, 5, 8, 30}) {
      SCOPED_TRACE(std::to_string(count) + " of " + std::to_string(shard));
      Work w;
      w.options.shard_bytes = shard;
      w.options.shares = shares_of(count);
      EXPECT_THAT(w.error([&] { make(w, true); }), HasSubstr("no shares to join stand beside it (.out.shares)"));
      const auto made = make(w, false);
      EXPECT_EQ(std::ssize(made.shares.made), count);
      EXPECT_THAT(made.shares.missing, IsEmpty());
      EXPECT_FALSE(fs::exists(w.dir / "out"));
      EXPECT_EQ(w.runs, 8);
      EXPECT_TRUE(make(w, true).shares.joined);
      EXPECT_EQ(folder_bytes(w.dir / "out"), expected);
      EXPECT_THAT(names_in(w.dir.path()), ElementsAre("out"));
      EXPECT_TRUE(make(w, true).finished_before);
      EXPECT_TRUE(make(w, false).finished_before);
      EXPECT_EQ(w.runs, 8);
    }
  }
}

TEST(CheckpointShares, WhatFailsIsTakenByTheNext) {
  Work w;
  w.options.shares = shares_of(4, 0);
  w.fail_at = 3;
  EXPECT_EQ(w.error([&] { make(w, true); }), "made to fail");
  const auto result = make(w, true);
  EXPECT_TRUE(result.shares.joined);
  EXPECT_LT(result.shares.made.size(), 4u);
  EXPECT_EQ(folder_bytes(w.dir / "out"), alone(w.options.shard_bytes));
}

TEST(CheckpointShares, TwoAtOnce) {
  Work w;
  w.options.shares = shares_of(5, 0);
  StreamResult other;
  std::thread thread([&] { other = make(w, true); });
  const auto result = make(w, true);
  thread.join();
  EXPECT_NE(result.shares.joined, other.shares.joined);
  EXPECT_EQ(folder_bytes(w.dir / "out"), alone(w.options.shard_bytes));
  EXPECT_THAT(names_in(w.dir.path()), ElementsAre("out"));
}

TEST(CheckpointShares, OfSomethingElse) {
  Work w;
  w.options.shares = shares_of(3);
  make(w, false);
  w.options.identity["option"]["scheme"] = "tensor";
  for (const bool join : {false, true})
    EXPECT_THAT(w.error([&] { make(w, join); }),
                HasSubstr("is of other work: 'option: scheme' was \"channel\", is \"tensor\""));
  w.options.identity["option"]["scheme"] = "channel";
  w.options.shares = shares_of(4);
  EXPECT_THAT(w.error([&] { make(w, true); }), HasSubstr("was 3, is 4"));
  w.options.shares = shares_of(3);
  fs::create_directory(w.dir / "out");
  std::ofstream(w.dir / "out/file") << "x";
  EXPECT_THAT(w.error([&] { make(w, false); }), HasSubstr("exists and is not empty"));
}

TEST(CheckpointShares, AFolderThatIsMovedAwayIsNoCheckpoint) {
  for (const bool join : {false, true}) {
    Work w;
    w.options.shares = shares_of(3, join ? std::optional<double>(0) : std::nullopt);
    w.options.shares->stop = [&w] {
      if (w.runs > 0 && fs::exists(w.dir / ".out.shares")) fs::rename(w.dir / ".out.shares", w.dir / "elsewhere");
      return false;
    };
    EXPECT_THAT(w.error([&] { make(w, join); }),
                HasSubstr("is gone, and its shares were not joined: out does not stand"));
    EXPECT_FALSE(fs::exists(w.dir / "out"));
  }
}

TEST(CheckpointShares, EveryByteIsChecked) {
  Work w;
  w.options.shares = shares_of(3);
  make(w, false);
  const fs::path folder = w.dir / ".out.shares", part = folder / "1.part-0";
  std::string file;
  for (const auto& name : names_in(part)) file = name != "share.json" ? name : file;
  std::string bytes = test::read_file(part / file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(part / file, std::ios::binary) << bytes;
  EXPECT_THAT(w.error([&] { make(w, true); }),
              AllOf(HasSubstr("by their checksum"), HasSubstr(".out.shares/1.done for that")));
  EXPECT_FALSE(fs::exists(w.dir / "out"));
  fs::remove(folder / "1.done");
  EXPECT_THAT(w.error([&] { make(w, true); }), HasSubstr("missing: 1"));
  EXPECT_THAT(make(w, false).shares.made, ElementsAre(1));
  EXPECT_TRUE(fs::exists(folder / "1.part-1"));
  make(w, true);
  EXPECT_EQ(folder_bytes(w.dir / "out"), alone(w.options.shard_bytes));
}

}  // namespace
}  // namespace fp8::quant
