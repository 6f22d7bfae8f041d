// SPDX-License-Identifier: Apache-2.0
// The engine with units made here: what it writes on any number of threads, what it keeps of a run that was cut short,
// what it does when a unit fails, and several processes' shares.
#include "fp8/quant/checkpoint/stream/stream.h"

#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <set>

#include "fp8/quant/forms/carry_through.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "support/temp_dir.h"
#include "tools/commands/run_fp8.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using io::DType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string pattern(std::size_t size, std::size_t seed) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i + seed) * (i + 3 * seed) % 241);
  return bytes;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& name : names_in(folder)) files[name] = test::read_file(folder / name);
  return files;
}

struct Work {
  test::TempDir dir;
  StreamOptions options;
  std::atomic<int> runs{0};
  int fail_at = -1;  ///< the run of this number fails
  std::vector<Unit> units;

  Work() {
    options.identity = {{"command", "test"}, {"option", {{"scheme", "channel"}}}};
    for (int i = 0; i < 8; ++i) {
      Unit unit;
      const std::string name = "m" + std::to_string(i);
      const std::size_t size = 1000 * static_cast<std::size_t>(i + 1);
      unit.name = name;
      unit.entries = {{name + ".weight", DType::U8, {static_cast<std::int64_t>(size)}},
                      {name + ".scale", DType::F32, {i}}};
      unit.source_bytes = 2 * size;
      unit.run = [this, name, size, i](UnitContext& c) {
        if (runs++ == fail_at) throw io::Error("made to fail");
        const std::string bytes = pattern(size, static_cast<std::size_t>(i));
        // The fifth is written like transposed codes: in very many pieces, out of order.
        if (i == 5) {
          for (std::size_t at = 1; at < size; at += 2) c.write(name + ".weight", bytes.data() + at, at, 1);
          for (std::size_t at = 0; at < size; at += 2) c.write(name + ".weight", bytes.data() + at, at, 1);
        } else {
          c.write(name + ".weight", bytes.data() + size / 3, size / 3, size - size / 3);
          c.write(name + ".weight", bytes.data(), 0, size / 3);
        }
        const std::vector<float> scales(static_cast<std::size_t>(i), 0.5f);
        c.write(name + ".scale", scales.data(), 0, scales.size() * 4);
        c.advance(2 * size);
      };
      units.push_back(std::move(unit));
    }
  }
  /// Three parts and what comes after them.
  void add_parts() {
    Unit unit;
    unit.name = "parts";
    unit.entries = {{"parts.weight", DType::U8, {3000}}, {"parts.scale", DType::F32, {1}}};
    unit.source_bytes = 3000;
    auto sum = std::make_shared<std::atomic<int>>(0);
    for (std::uint64_t i = 0; i < 3; ++i) {
      unit.parts.push_back([i, sum](UnitContext& c) {
        c.write("parts.weight", pattern(1000, i).data(), 1000 * i, 1000);
        *sum += static_cast<int>(i) + 1;
        c.advance(1000);
      });
    }
    unit.run = [sum](UnitContext& c) {
      const float value = static_cast<float>(sum->load());
      c.write("parts.scale", &value, 0, 4);
    };
    units.push_back(std::move(unit));
  }
  StreamResult write(const std::string& name = "out") {
    return write_checkpoint(dir / name, units, options,
                            [](OutputFolder& f) { f.write_json("config.json", {{"a", 1}}); });
  }
  void join(const std::string& name = "out") {
    join_checkpoint(dir / name, units, options, [](OutputFolder& f) { f.write_json("config.json", {{"a", 1}}); });
  }
  std::string error(const std::function<void()>& work) {
    try {
      work();
    } catch (const io::Error& e) {
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
      return e.what();
    }
    ADD_FAILURE() << "no io::Error";
    return "";
  }
  fs::path partial() const { return dir / ".out.partial"; }
};

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
    if (first.empty()) first = contents(w.dir / "out");
    EXPECT_EQ(contents(w.dir / "out"), first);
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
    EXPECT_EQ(contents(w.dir / "out"), contents(whole.dir / "out"));
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
    EXPECT_EQ(contents(w.dir / "out"), contents(whole.dir / "out")) << at;
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
    EXPECT_EQ(contents(w.dir / "out"), contents(whole.dir / "out")) << size;
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
    ASSERT_EQ(result.warnings.size(), 1u);
    EXPECT_THAT(result.warnings[0], HasSubstr("'resume' would have gone on"));
  };
  expect([](Work& w) { w.options.identity["option"]["scheme"] = "tensor"; },
         "'option: scheme' was \"channel\", is \"tensor\"");
  expect([](Work& w) { w.options.identity["option"]["block"] = 128; }, "'option: block' was nothing, is 128");
  expect([](Work& w) { w.options.shard_bytes = 9000; }, "'shard size' was 5000000000, is 9000");
  expect([](Work& w) { w.units.pop_back(); }, "'tensors'");
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
    std::vector<Unit> units;
    for (const auto& name : source.names()) units.push_back(copy_unit(source, name, name));
    write_checkpoint(dir / "out", units, {}, [](OutputFolder&) {});
  };
  run();
  EXPECT_EQ(test::read_file(dir / "out/model.safetensors"), test::read_file(dir / "in/model.safetensors"));
  fs::remove_all(dir / "out");
  const auto message = [&] {
    try {
      run();
    } catch (const io::Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  values[19'999'999] = NAN;
  write_source();
  EXPECT_THAT(message(), HasSubstr("large: expected finite weights, found NaN in 1 of 20000000 values"));
  values[3] = values[19'999'999] = -INFINITY;
  write_source();
  EXPECT_THAT(message(), HasSubstr("large: expected finite weights, found Inf in 2 of 20000000 values"));
  EXPECT_THAT(names_in(dir.path()), ElementsAre("in"));
  StreamOptions allowed;
  allowed.nonfinite = {"large"};
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
  try {
    write_checkpoint(dir / "out", {copy_unit(source, "d", "d")}, {}, [](OutputFolder&) {});
    ADD_FAILURE() << "no error";
  } catch (const io::Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("d: expected finite weights, found NaN in 2 and Inf in 1 of 4 values"));
  }
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
    EXPECT_EQ(contents(w.dir / "out"), contents(alone.dir / "out")) << world;
  }
}

/// As the commands do it: fp8.json with the mark.
void finish(const Work& w, OutputFolder& folder) {
  folder.write_json("config.json", {{"a", 1}});
  folder.write_json("fp8.json", {{"run", run_mark(w.units, w.options)}});
}

TEST(CheckpointStream, ResumeOfAFinishedOutputSaysSo) {
  Work w;
  const auto write = [&] {
    return write_checkpoint(w.dir / "out", w.units, w.options, [&](OutputFolder& f) { finish(w, f); });
  };
  EXPECT_FALSE(write().finished_before);
  const auto before = contents(w.dir / "out");
  w.options.resume = true;
  for (const bool overwrite : {false, true}) {
    w.options.overwrite = overwrite;
    const auto result = write();
    EXPECT_TRUE(result.finished_before);
    EXPECT_EQ(result.kept, 8u);
  }
  EXPECT_EQ(w.runs, 8);
  EXPECT_EQ(contents(w.dir / "out"), before);
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
  whole.options.world_size = 2;
  for (int rank : {0, 1}) {
    whole.options.rank = rank;
    whole.write();
  }
  const fs::path share = whole.dir / "out.rank-1-of-2";
  std::string file;
  for (const auto& name : names_in(share)) file = name != "share.json" ? name : file;
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
  io::write_json(share / "share.json", one_less);
  EXPECT_THAT(whole.error([&] { whole.join(); }), HasSubstr("no checksums of it"));
  std::ofstream(share / "share.json") << json;
  whole.join();
  EXPECT_THAT(names_in(whole.dir.path()), ElementsAre("out"));
}

TEST(CheckpointStream, AShareWithADamagedFileIsNotJoined) {
  Work w;
  w.options.world_size = 2;
  for (int rank : {0, 1}) {
    w.options.rank = rank;
    w.write();
  }
  const fs::path share = w.dir / "out.rank-1-of-2";
  std::string file;
  for (const auto& name : names_in(share)) file = name != "share.json" ? name : file;
  fs::resize_file(share / file, fs::file_size(share / file) - 1);
  EXPECT_THAT(w.error([&] { w.join(); }), AllOf(HasSubstr(file), HasSubstr("bytes, expected")));
  fs::remove(share / file);
  EXPECT_THAT(w.error([&] { w.join(); }), HasSubstr(file));
  EXPECT_FALSE(fs::exists(w.dir / "out"));
  w.options.rank = 2;
  EXPECT_THAT(w.error([&] { w.write(); }), HasSubstr("rank 2 of 2"));
}

}  // namespace
}  // namespace fp8::quant
