// SPDX-License-Identifier: Apache-2.0
// Shares that processes take one after the other: the bytes of one process, whoever made which, and what happens to
// shares that fail, are damaged, or are of something else.
#include <gmock/gmock.h>

#include <fstream>
#include <thread>

#include "quant/checkpoint/stream/stream_work.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using test::contents;
using test::names_in;
using test::Work;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// What finish() writes, with the mark by which a finished output is known.
StreamResult make(Work& w, bool join) {
  return make_checkpoint(w.dir / "out", w.units, w.options, join, [&](OutputFolder& f) {
    f.write_json("config.json", {{"a", 1}});
    f.write_json("fp8.json", {{"run", run_mark(w.units, w.options)}});
  });
}

io::SharesOptions shares_of(std::int64_t count, std::optional<double> wait = std::nullopt) {
  io::SharesOptions o;
  o.count = count;
  o.wait = wait;
  return o;
}

std::map<std::string, std::string> alone(std::uint64_t shard_bytes) {
  Work w;
  w.options.shard_bytes = shard_bytes;
  make(w, false);
  return contents(w.dir / "out");
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
      EXPECT_EQ(contents(w.dir / "out"), expected);
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
  EXPECT_EQ(contents(w.dir / "out"), alone(w.options.shard_bytes));
}

TEST(CheckpointShares, TwoAtOnce) {
  Work w;
  w.options.shares = shares_of(5, 0);
  StreamResult other;
  std::thread thread([&] { other = make(w, true); });
  const auto result = make(w, true);
  thread.join();
  EXPECT_NE(result.shares.joined, other.shares.joined);
  EXPECT_EQ(contents(w.dir / "out"), alone(w.options.shard_bytes));
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
  const auto again = make(w, false);
  EXPECT_THAT(again.shares.made, ElementsAre(1));
  EXPECT_TRUE(fs::exists(folder / "1.part-1"));
  make(w, true);
  EXPECT_EQ(contents(w.dir / "out"), alone(w.options.shard_bytes));
}

}  // namespace
}  // namespace fp8::quant
