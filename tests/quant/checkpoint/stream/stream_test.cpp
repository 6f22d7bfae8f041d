// SPDX-License-Identifier: Apache-2.0
// The engine with units made here: what it writes on any number of threads, what it does when a unit fails or a source
// changes, and several processes' shares. Runs that were cut short: stream_resume_test.
#include "fp8/quant/checkpoint/stream/stream.h"

#include "fp8/quant/checkpoint/stream/files.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "quant/checkpoint/stream/stream_work.h"
#include "support/values.h"

namespace fp8::quant {
namespace {

using io::DType;
using test::pattern;
using test::Work;

TEST(CheckpointStream, WritesEveryTensorOnAnyNumberOfThreads) {
  const int before = kernels::num_threads();
  std::map<std::string, std::string> first;
  for (int threads : {1, 2, 5}) {
    kernels::set_num_threads(threads);
    Work w;
    w.add_parts();
    EXPECT_EQ(w.write().kept, 0u);
    EXPECT_THAT(names_in(w.dir.path()), ElementsAre("out"));
    EXPECT_THAT(names_in(w.dir / "out"), ElementsAre("config.json", "model.safetensors"));
    const io::Checkpoint out(w.dir / "out");
    std::string bytes(6000, '\0');
    out.read("m5.weight", bytes.data());
    EXPECT_EQ(bytes, pattern(6000, 5));
    EXPECT_EQ(out.info("m0.scale").bytes(), 0u);
    bytes.resize(3000);
    out.read("parts.weight", bytes.data());
    EXPECT_EQ(bytes, pattern(1000, 0) + pattern(1000, 1) + pattern(1000, 2));
    float sum = 0;
    out.read("parts.scale", &sum);
    EXPECT_EQ(sum, 6.0f);
    if (first.empty()) first = folder_bytes(w.dir / "out");
    EXPECT_EQ(folder_bytes(w.dir / "out"), first);
  }
  kernels::set_num_threads(before);
}

TEST(CheckpointStream, ProgressReachesItsEndInOrder) {
  Work w;
  std::uint64_t last = 0, total = 0;
  w.options.progress = [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GE(done, last);
    last = done, total = all;
  };
  w.write();
  EXPECT_EQ(total, 72000u);
  EXPECT_EQ(last, total);
}

TEST(CheckpointStream, AFailureLeavesNothing) {
  for (int at : {0, 4, 7}) {
    Work w;
    w.fail_at = at;
    EXPECT_EQ(w.error([&] { w.write(); }), "made to fail");
    EXPECT_THAT(names_in(w.dir.path()), ElementsAre());
  }
}

TEST(CheckpointStream, AUnitMustWriteAllOfItsTensorsAndNoOther) {
  Work w;
  w.units[3].run = [](UnitContext& c) { c.write("m3.weight", "abc", 0, 3); };
  EXPECT_THAT(w.error([&] { w.write(); }), HasSubstr("tensor 'm3.weight': 3 of 4000 bytes written"));
  w.units[3].run = [](UnitContext& c) { c.write("m2.weight", "abc", 0, 3); };
  EXPECT_THAT(w.error([&] { w.write(); }), HasSubstr("unit 'm3' has no tensor 'm2.weight' to write"));
  w.units[3].run = [](UnitContext& c) { c.write("m3.weight", "abc", 3998, 3); };
  EXPECT_THAT(w.error([&] { w.write(); }), HasSubstr("can't write 3 at 3998"));
  w.units[3].entries = w.units[2].entries;
  EXPECT_THAT(w.error([&] { w.write(); }), HasSubstr("two tensors are named"));
}

TEST(CheckpointStream, WhatCannotBeginLeavesNothingEvenToResume) {
  Work w;
  w.options.resume = true;
  w.units[3].entries = w.units[2].entries;
  EXPECT_THAT(w.error([&] { w.write(); }), HasSubstr("two tensors are named"));
  EXPECT_THAT(names_in(w.dir.path()), ElementsAre());
}

TEST(CheckpointStream, CopiesTensorsAndRefusesNonFiniteOnesWithTheirNumber) {
  test::TempDir dir;
  fs::create_directory(dir / "in");
  std::vector<float> values(20'000'000, 1.5f);  // 80 MB: in parts
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto write_source = [&] {
    io::SafetensorsWriter writer(
        dir / "in/model.safetensors",
        {{"large", DType::F32, {20'000'000}}, {"odd", DType::U8, {3}}, {"none", DType::F32, {0, 4}}});
    writer.write("large", values.data());
    writer.write("odd", "abc");
    writer.commit();
  };
  write_source();
  const auto run = [&] {
    const io::Checkpoint source(dir / "in");
    auto units = collected(source.names(), [&](const auto& name) { return copy_unit(source, name, name); });
    write_checkpoint(dir / "out", units, {}, [](OutputFolder&) {});
  };
  run();
  EXPECT_EQ(test::read_file(dir / "out/model.safetensors"), test::read_file(dir / "in/model.safetensors"));
  fs::remove_all(dir / "out");
  values[19'999'999] = NAN;
  write_source();
  EXPECT_THAT(test::error_of<io::Error>(run),
              HasSubstr("large: expected finite weights, found NaN in 1 of 20000000 values"));
  values[3] = values[19'999'999] = -INFINITY;
  write_source();
  EXPECT_THAT(test::error_of<io::Error>(run),
              HasSubstr("large: expected finite weights, found Inf in 2 of 20000000 values"));
  EXPECT_THAT(names_in(dir.path()), ElementsAre("in"));
  StreamOptions allowed{.nonfinite = {"large"}};
  const io::Checkpoint source(dir / "in");
  write_checkpoint(dir / "out", {copy_unit(source, "large", "large")}, allowed, [](OutputFolder&) {});
  std::vector<float> copied(values.size());
  io::Checkpoint(dir / "out").read("large", copied.data());
  EXPECT_EQ(copied, values);
}

TEST(CheckpointStream, RefusesInfinityInDoubles) {
  test::TempDir dir;
  fs::create_directory(dir / "in");
  const std::vector<double> values = {1.0, INFINITY, NAN, NAN};
  io::SafetensorsWriter writer(dir / "in/model.safetensors", {{"d", DType::F64, {4}}});
  writer.write("d", values.data());
  writer.commit();
  const io::Checkpoint source(dir / "in");
  EXPECT_ERROR(io::Error, write_checkpoint(dir / "out", {copy_unit(source, "d", "d")}, {}, [](OutputFolder&) {}),
               "d: expected finite weights, found NaN in 2 and Inf in 1 of 4 values");
}

TEST(CheckpointStream, ASourceThatChangesIsNoticed) {
  Work w;
  fs::create_directory(w.dir / "in");
  std::ofstream(w.dir / "in/model.safetensors") << "1234";
  w.options.source = w.dir / "in";
  w.options.identity["source"] = identity_of(w.options.source);
  w.write("first");
  const auto run = w.units[0].run;
  w.units[0].run = [&w, run](UnitContext& c) {
    std::ofstream(w.dir / "in/model.safetensors") << "12345";
    run(c);
  };
  EXPECT_THAT(w.error([&] { w.write(); }),
              AllOf(HasSubstr("changed while it was read"), HasSubstr("model.safetensors: size' was 4, is 5")));
  EXPECT_THAT(names_in(w.dir.path()), ElementsAre("first", "in"));
}

TEST(CheckpointStream, RanksShareFilesAndJoinToTheSameBytes) {
  for (int world : {2, 3, 8, 11}) {
    Work w;
    w.options.world_size = world;
    for (int rank = 0; rank < world; ++rank) {
      if (rank == 1) {
        EXPECT_THAT(w.error([&] { w.join(); }),
                    AllOf(HasSubstr("missing: 1"), HasSubstr(std::to_string(world) + " ranks")));
        w.options.resume = true;
        w.options.rank = 0;
        EXPECT_GT(w.write().kept, 0u);  // finished already
        w.options.resume = false;
      }
      w.options.rank = rank;
      w.write();
      EXPECT_FALSE(fs::exists(w.dir / "out"));
    }
    EXPECT_EQ(w.runs, 8);
    w.options.rank = 0;
    auto changed = w.options;
    std::swap(changed, w.options);
    w.options.identity["option"]["scheme"] = "tensor";
    EXPECT_THAT(w.error([&] { w.join(); }), HasSubstr("scheme"));
    w.options = changed;
    w.join();
    EXPECT_THAT(names_in(w.dir.path()), ElementsAre("out"));
    Work alone;
    std::uint64_t total = 0;
    for (const auto& unit : w.units) total += bytes_of(unit.entries[0]) + bytes_of(unit.entries[1]);
    alone.options.shard_bytes = (total + static_cast<std::uint64_t>(world) - 1) / static_cast<std::uint64_t>(world);
    alone.write();
    EXPECT_EQ(folder_bytes(w.dir / "out"), folder_bytes(alone.dir / "out")) << world;
  }
}

TEST(CheckpointStream, CarriedFilesThatChangeOrVanishAreNoticed) {
  for (const bool vanish : {false, true}) {
    Work w;
    fs::create_directories(w.dir / "in/chat_templates");
    std::ofstream(w.dir / "in/model.safetensors") << "1234";
    for (const char* name : {"in/tokenizer.json", "in/chat_templates/a.jinja", "in/LICENSE"})
      std::ofstream(w.dir / name) << "{}";
    w.options.source = w.dir / "in";
    w.options.identity["source"] = identity_of(w.options.source);
    w.options.carried = carried_identity_of(w.options.source);
    EXPECT_EQ(w.options.carried.size(), 3u);
    w.write("first");
    for (const std::string name : {"tokenizer.json", "chat_templates/a.jinja"}) {
      const auto run = w.units[0].run;
      w.units[0].run = [&w, run, vanish, name](UnitContext& c) {
        if (vanish)
          fs::remove(w.dir / "in" / name);
        else
          std::ofstream(w.dir / "in" / name) << "{\"other\": 1}";
        run(c);
      };
      EXPECT_THAT(w.error([&] { w.write(); }),
                  AllOf(HasSubstr((w.dir / "in" / name).string()), HasSubstr(vanish ? "was removed" : "changed")));
      EXPECT_THAT(names_in(w.dir.path()), ElementsAre("first", "in"));
      w.units[0].run = run;
      std::ofstream(w.dir / "in" / name) << "{}";
      w.options.carried = carried_identity_of(w.options.source);
    }
  }
}

TEST(CheckpointStream, JoinVerifiesEveryByteOfTheShares) {
  Work whole;
  const auto [share, file] = whole.write_two_shares();
  const std::string good = test::read_file(share / file), json = test::read_file(share / "share.json");
  for (std::size_t at = 0; at < good.size(); at += 499) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    std::ofstream(share / file, std::ios::binary) << bad;
    EXPECT_THAT(whole.error([&] { whole.join(); }), HasSubstr(file)) << at;
    EXPECT_FALSE(fs::exists(whole.dir / "out"));
  }
  std::string last = good;
  last.back() = static_cast<char>(last.back() ^ 1);
  std::ofstream(share / file, std::ios::binary) << last;
  EXPECT_THAT(whole.error([&] { whole.join(); }),
              AllOf(HasSubstr(file), HasSubstr("tensor 'm"), HasSubstr("by their checksum"),
                    HasSubstr("write the share again")));
  whole.options.resume = true;  // a rank that goes on finds it too
  EXPECT_THAT(whole.error([&] { whole.write(); }), HasSubstr("by their checksum"));
  whole.options.resume = false;
  std::ofstream(share / file, std::ios::binary) << good;
  io::Json without = io::parse_json(json, "share.json");
  without.erase("checksums");
  io::write_json(share / "share.json", without);
  EXPECT_THAT(whole.error([&] { whole.join(); }), HasSubstr("has no checksums"));
  io::Json one_less = io::parse_json(json, "share.json");
  one_less["checksums"].erase(one_less["checksums"].begin());
  one_less.erase("as_written");  // or nobody asks for them
  io::write_json(share / "share.json", one_less);
  EXPECT_THAT(whole.error([&] { whole.join(); }), HasSubstr("no checksums of it"));
  std::ofstream(share / "share.json") << json;
  whole.join();
  EXPECT_THAT(names_in(whole.dir.path()), ElementsAre("out"));
}

TEST(CheckpointStream, AShareWithADamagedFileIsNotJoined) {
  Work w;
  const auto [share, file] = w.write_two_shares();
  fs::resize_file(share / file, fs::file_size(share / file) - 1);
  EXPECT_THAT(w.error([&] { w.join(); }), AllOf(HasSubstr(file), HasSubstr("bytes, expected")));
  fs::remove(share / file);
  EXPECT_THAT(w.error([&] { w.join(); }), HasSubstr(file));
  EXPECT_FALSE(fs::exists(w.dir / "out"));
  w.options.rank = 2;
  EXPECT_THAT(w.error([&] { w.write(); }), HasSubstr("rank 2 of 2"));
}

TEST(CheckpointStream, WhatThisMachineWroteIsKnownByHowItStands) {
  const test::TempDir dir;
  const fs::path file = dir / "a";
  const auto write = [&](char c) { std::ofstream(file, std::ios::binary) << std::string(100, c); };
  const auto known = [&](const io::Json& record) {
    return stream::is_as_written(record, "a", io::open_regular(file).get());
  };
  write('x');
  io::Json at_once = stream::as_written(dir.path(), {"a"});
  EXPECT_TRUE(known(at_once));
  at_once["at"] = at_once["files"]["a"][3].get<std::int64_t>() + 1'000'000;
  EXPECT_FALSE(known(at_once));  // a write in the same tick would not show
  const io::Json record = stream::as_written(dir.path(), {"a"});
  EXPECT_TRUE(known(record));
  EXPECT_FALSE(stream::is_as_written(record, "b", io::open_regular(file).get()));
  for (const char* change : {R"({"boot": "another"})", R"({"boot": ""})", R"({"at": "1"})", R"({"at": 0})",
                             R"({"at": 9000000000000000000})", R"({"files": []})", R"({"files": {"a": [100]}})"}) {
    io::Json other = record;
    other.update(io::Json::parse(change));
    EXPECT_FALSE(known(other)) << change;
  }
  EXPECT_FALSE(known(nullptr));
  const auto before = fs::last_write_time(file);
  write('y');
  EXPECT_FALSE(known(record));
  fs::last_write_time(file, before);
  EXPECT_FALSE(known(record));  // who puts a time back is found
  io::Json shorter = stream::as_written(dir.path(), {"a"});
  EXPECT_TRUE(known(shorter));
  shorter["files"]["a"][0] = 99;
  EXPECT_FALSE(known(shorter));
  const io::Json again = stream::as_written(dir.path(), {"a"});
  fs::copy_file(file, dir / "b");
  fs::rename(dir / "b", file);
  EXPECT_FALSE(known(again));  // another file
  EXPECT_THROW(stream::as_written(dir.path(), {"missing"}), io::Error);
}

TEST(CheckpointStream, JoinReadsAgainWhatWasTouched) {
  for (const bool touched : {false, true}) {
    Work w;
    const auto [share, file] = w.write_two_shares();
    io::Json json = io::read_json(share / "share.json");
    for (auto& tensors : json["checksums"])
      for (auto& sums : tensors) sums = std::string(sums.get<std::string>().size(), '0');  // seen where bytes are read
    io::write_json(share / "share.json", json);
    if (touched) {
      fs::last_write_time(share / file, fs::last_write_time(share / file));
      EXPECT_THAT(w.error([&] { w.join(); }), HasSubstr("by their checksum"));
    } else {
      w.join();
    }
  }
}

}  // namespace
}  // namespace fp8::quant
