// SPDX-License-Identifier: Apache-2.0
// Files that change underneath are told apart, each way with its own words.
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/commands/work/process.h"
#include "fp8/tools/commands/work/snapshots.h"
#include "fp8/version.h"
#include "support/launchers.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

using test::Variables;

struct Sources : ::testing::Test {
  void SetUp() override {
    fs::create_directory(model());
    write(model() / "config.json", "{}");
    write(model() / "model.safetensors", "12345678");
    write(folder / "data.txt", "text");
  }
  fs::path model() const { return folder / "model"; }
  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string change_in(const SourceFiles& files) {
    return error_of<io::Error>([&] { files.check_unchanged(); });
  }
  test::TempDir folder;
};

TEST_F(Sources, EveryChangeIsNamed) {
  const auto look = [&] { return SourceFiles(model(), {folder / "data.txt", folder / "absent", ""}); };
  auto files = look();
  EXPECT_EQ(change_in(files), "");
  write(model() / "measurement.json", "{}");  // not a part of the model
  EXPECT_EQ(change_in(files), "");
  EXPECT_EQ(files.to_json(), look().to_json());

  write(model() / "model.safetensors", "1234");
  EXPECT_THAT(change_in(files), AllOf(HasSubstr("model.safetensors: changed"), HasSubstr("8 to 4 bytes")));
  files = look();
  write(model() / "new", "abcd");
  fs::rename(model() / "new", model() / "model.safetensors");
  EXPECT_THAT(change_in(files), HasSubstr("model.safetensors: was replaced"));
  files = look();
  fs::last_write_time(folder / "data.txt", fs::last_write_time(folder / "data.txt") + std::chrono::seconds(2));
  EXPECT_THAT(change_in(files), HasSubstr("data.txt: was written to"));
  EXPECT_NE(files.to_json(), look().to_json());
  files = look();
  fs::remove(model() / "config.json");
  EXPECT_THAT(change_in(files), HasSubstr("config.json: was removed"));
}

TEST_F(Sources, CopiesHaveTheSameEnds) {
  std::string large(200'000, 'a');
  write(model() / "model.safetensors", large);
  fs::create_directory(folder / "there");
  fs::copy(model(), folder / "there/model", fs::copy_options::recursive);
  fs::copy(folder / "data.txt", folder / "there/data.txt");
  const auto ends_here = SourceFiles(model(), {folder / "data.txt"}).ends();
  const auto ends_there = [&] { return SourceFiles(folder / "there/model", {folder / "there/data.txt"}).ends(); };
  EXPECT_EQ(ends_here.size(), 3u);
  EXPECT_EQ(ends_here, ends_there());
  for (const std::size_t at : {std::size_t{0}, std::size_t{65'535}, large.size() - 65'536, large.size() - 1}) {
    auto other = large;
    other[at] = 'b';
    write(folder / "there/model/model.safetensors", other);
    EXPECT_NE(ends_here, ends_there()) << at;
  }
  write(folder / "there/model/model.safetensors", large + "a");
  EXPECT_NE(ends_here, ends_there());
}

TEST_F(Sources, OneFileIsAModelToo) {
  const SourceFiles files(folder / "data.txt", {});
  EXPECT_EQ(files.to_json().size(), 1u);
  write(folder / "data.txt", "longer text");
  EXPECT_THAT(change_in(files), HasSubstr("data.txt: changed"));
}

TEST(Fingerprint, AnotherVersionIsAnotherProgram) {
  const io::Json own = with_program({{"batch", 8}});
  EXPECT_EQ(
      own,
      (io::Json{{"batch", 8}, {"version", FP8_VERSION}, {"instruction set", kernels::name_of(kernels::simd_level())}}));
  auto other = own;
  other["version"] = "0.0.1";
  EXPECT_EQ(io::difference(other, own), "'version' was \"0.0.1\", is \"" FP8_VERSION "\"");
}

TEST(Fingerprint, TheInstructionSetIsTheOneInForce) {
  const kernels::ScopedSimdLevel scalar(kernels::SimdLevel::scalar);
  EXPECT_EQ(with_program({})["instruction set"], "scalar");
}

// Snapshots as another process finds them.

const io::Json kIdentity = {{"mode", "whole"}, {"files", {{"a", {1, 2}}}}};

struct SnapshotsTest : ::testing::Test {
  fs::path place() const { return folder / ".x.resume"; }
  void leave(const io::Json& progress) const {
    Snapshots snapshots(place(), 0);
    snapshots.identify(kIdentity);
    EXPECT_TRUE(snapshots.begin(false).is_null());
    EXPECT_TRUE(snapshots.save([&] { return progress; }));
  }
  test::TempDir folder;
};

TEST_F(SnapshotsTest, TheLastOneIsFound) {
  leave({{"n", 1}});
  leave({{"n", 2}});  // begin(false) removed the first
  std::ofstream(place() / "hidden-7") << "stray";
  std::ofstream(place() / ".state.partial-99999999-0") << "half";
  Snapshots snapshots(place(), 0);
  EXPECT_EQ(snapshots.stored_identity(), kIdentity);
  snapshots.identify(kIdentity);
  EXPECT_EQ(snapshots.begin(true), (io::Json{{"n", 2}}));
  EXPECT_FALSE(fs::exists(place() / "hidden-7"));
  EXPECT_TRUE(snapshots.saved());
  snapshots.remove();
  EXPECT_FALSE(fs::exists(place()));
}

TEST_F(SnapshotsTest, NothingIsMadeBeforeTheFirst) {
  {
    Snapshots snapshots(place(), 0);
    snapshots.identify(kIdentity);
    EXPECT_TRUE(snapshots.begin(true).is_null());
    EXPECT_FALSE(fs::exists(place()));
    EXPECT_FALSE(snapshots.save([] { return io::Json(); }));
    EXPECT_FALSE(fs::exists(place()));
    snapshots.folder();  // for files of the run
    EXPECT_TRUE(fs::exists(place()));
  }
  EXPECT_FALSE(fs::exists(place()));  // an error before the first snapshot leaves nothing
}

TEST_F(SnapshotsTest, AnotherRunIsNamedByWhatDiffers) {
  leave({{"n", 1}});
  const auto resumed = [&](io::Json identity) {
    return error_of<io::Error>([&] {
      Snapshots snapshots(place(), 0);
      snapshots.identify(std::move(identity));
      snapshots.begin(true);
    });
  };
  EXPECT_THAT(resumed({{"mode", "block-wise"}, {"files", {{"a", {1, 2}}}}}),
              AllOf(HasSubstr("mode was \"whole\""), HasSubstr("found \"block-wise\"")));
  EXPECT_THAT(resumed({{"mode", "whole"}, {"files", {{"a", {1, 3}}}}}), HasSubstr("files a was [1,2], found [1,3]"));
  EXPECT_THAT(resumed({{"mode", "whole"}, {"files", io::Json::object()}}), HasSubstr("files a was [1,2], found null"));
  EXPECT_EQ(resumed(kIdentity), "");
}

TEST_F(SnapshotsTest, DamageIsFound) {
  leave({{"n", 1}});
  const std::string text = read_file(place() / "state");
  const auto resumed = [&](const std::string& bytes) {
    std::ofstream(place() / "state", std::ios::binary | std::ios::trunc) << bytes;
    return error_of<io::Error>([&] {
      Snapshots snapshots(place(), 0);
      snapshots.identify(kIdentity);
      snapshots.begin(true);
    });
  };
  for (std::size_t i = 0; i < text.size(); i += 3) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    EXPECT_THAT(resumed(damaged), HasSubstr("state: is damaged")) << i;
  }
  EXPECT_THAT(resumed(text.substr(0, text.size() - 1)), HasSubstr("is damaged"));
  EXPECT_THAT(resumed(""), HasSubstr("is damaged"));
  EXPECT_EQ(resumed(text), "");
}

TEST_F(SnapshotsTest, OneRunAtATime) {
  Snapshots first(place(), 0);
  first.identify(kIdentity);
  first.begin(false);
  first.folder();
  Snapshots second(place(), 0);
  second.identify(kIdentity);
  EXPECT_ERROR(io::Error, second.begin(false), "another run");
  EXPECT_TRUE(fs::exists(place()));
}

TEST_F(SnapshotsTest, TheyAreAsRareAsTheyAreExpensive) {
  Snapshots snapshots(place(), 0.02);
  snapshots.identify(kIdentity);
  EXPECT_FALSE(snapshots.due());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_TRUE(snapshots.due());
  snapshots.save([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return io::Json{{"n", 1}};
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  EXPECT_FALSE(snapshots.due());  // 20 ms: not again for a second
}

// Sizes as users write them, and what made-up machines have left.

TEST(MemoryBudget, SizesAsUsersWriteThem) {
  EXPECT_EQ(parse_bytes("300000000"), 300000000);
  EXPECT_EQ(parse_bytes("500MB"), 500'000'000);
  EXPECT_EQ(parse_bytes("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_bytes("1.5 gb"), 1'500'000'000);
  EXPECT_EQ(parse_bytes("4k"), 4096);
  EXPECT_EQ(parse_bytes("12B"), 12);
  for (const char* bad : {"", "GB", "-1", "0", "0.2", "1e9", "5 apples", "5GBs", "nan", "inf", "99999999TB", "1 2"})
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
}

struct Machine : ::testing::Test {
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((folder / file).parent_path());
    std::ofstream(folder / file) << text;
  }
  test::TempDir folder;
};

TEST_F(Machine, HasWhatIsAvailable) {
  EXPECT_EQ(available_memory(folder.path()), std::int64_t{1} << 62);  // nothing is known
  write("proc/meminfo", "MemTotal:       100 kB\nMemFree:    10 kB\nMemAvailable:   64 kB\n");
  EXPECT_EQ(available_memory(folder.path()), 65536);
}

TEST_F(Machine, CgroupsV2OfAnyHeightLimitIt) {
  write("proc/meminfo", "MemAvailable:   1000000 kB\n");
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "5000\n");
  write("sys/fs/cgroup/a/memory.max", "90000\n");
  write("sys/fs/cgroup/a/memory.current", "50000\n");
  write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 20000\nactive_file 3\n");
  EXPECT_EQ(available_memory(folder.path()), 90000 - (50000 - 20000));
  write("sys/fs/cgroup/a/memory.current", "200000\n");
  EXPECT_EQ(available_memory(folder.path()), 0);
}

TEST_F(Machine, CgroupsV1LimitIt) {
  write("proc/meminfo", "MemAvailable:   1000000 kB\n");
  write("proc/self/cgroup", "3:cpu,cpuacct:/x\n9:memory:/docker/3f\n");
  write("sys/fs/cgroup/memory/docker/3f/memory.limit_in_bytes", "70000\n");
  write("sys/fs/cgroup/memory/docker/3f/memory.usage_in_bytes", "30000\n");
  EXPECT_EQ(available_memory(folder.path()), 40000);
}

TEST(MemoryBudget, OfThisProcess) {
  EXPECT_GT(resident_bytes(), 1 << 20);
  EXPECT_GE(peak_resident_bytes(), resident_bytes() / 2);
  EXPECT_GT(available_memory(), 1 << 20);
}

/// Bytes that stay resident of blocks that were freed, between small ones that are kept.
std::int64_t left_behind() {
  constexpr std::size_t kLarge = 2 << 20, kKept = 100 << 10, kCount = 16;
  [[maybe_unused]] static void* volatile kept;  // a compiler may leave out blocks that nothing sees
  const auto touched = [](std::size_t bytes) {
    void* const block = std::memset(std::malloc(bytes), 1, bytes);
    kept = block;
    return block;
  };
  const std::int64_t before = resident_bytes();
  std::free(touched(2 * kLarge));  // from which on glibc by itself keeps blocks of that size
  std::array<void*, kCount> blocks = {};
  for (auto& block : blocks) {
    block = touched(kLarge);
    touched(kKept);
  }
  for (void* const block : blocks) std::free(block);
  return resident_bytes() - before - static_cast<std::int64_t>(kCount * kKept);
}

TEST(MemoryBudget, LargeBlocksGoBack) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer has an allocator of its own";
#endif
  // For a whole process, so in one of its own, which begins with an empty heap.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const auto kept = left_behind();
        return_large_blocks();
        std::exit(kept > (16 << 20) && left_behind() < (1 << 20) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// Which share of the work a process takes: options, launchers' variables, shares on disk.

Share share(const ShareOptions& options, const Variables& variables = {}, const std::filesystem::path& out = "out") {
  return find_share(options, out, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect(const Share& found, std::int64_t rank, std::int64_t size, bool warned) {
  EXPECT_EQ(found.rank, rank);
  EXPECT_EQ(found.world_size, size);
  EXPECT_EQ(!found.warning.empty(), warned);
}

ShareOptions given(std::int64_t rank, std::int64_t size) { return {.rank = rank, .world_size = size}; }

TEST(Share, AloneUnlessTold) {
  expect(share({}), 0, 1, false);
  expect(
      share(
          {},
          {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"PMI_SIZE", ""}}),
      0, 1, false);
  expect(share({}, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), 0, 1,
         false);  // the shell of an sbatch script does all of the work
}

TEST(Share, EveryLauncher) {
  for (const auto& [name, variables] : test::launchers(2, 3)) {
    SCOPED_TRACE(name);
    expect(share({}, variables), 2, 3, true);
  }
  const auto pmi = share({}, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}});
  expect(pmi, 0, 2, true);
  EXPECT_THAT(pmi.warning, AllOf(HasSubstr("rank 0 of 2"), HasSubstr("PMI_RANK")));
}

TEST(Share, OptionsWin) {
  const Variables launcher = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  expect(share(given(2, 3), launcher), 2, 3, false);
  expect(share(given(-1, 1), launcher), 0, 1, false);
  EXPECT_ERROR(UsageError, share(given(1, 0), launcher), "--rank: found 1, allowed: with the number of ranks, 1/2");
  EXPECT_ERROR(UsageError, share(given(-1, 2), launcher), "--world-size needs --rank");
  EXPECT_ERROR(UsageError, share(given(3, 3)), "--rank: found 3 of 3, allowed: 0 to 2");
}

TEST(Share, BadVariablesAreNamed) {
  EXPECT_ERROR(io::Error, share({}, {{"WORLD_SIZE", "two"}}), "'WORLD_SIZE': found 'two', allowed: an integer from 1",
               "--rank wins over it");
  EXPECT_ERROR(io::Error, share({}, {{"WORLD_SIZE", "2"}}), "'RANK': found nothing, but WORLD_SIZE is 2");
  EXPECT_ERROR(io::Error, share({}, {{"RANK", "7"}}), "'WORLD_SIZE': found nothing, but RANK is 7");
}

TEST(Share, JoinLooksForTheSharesOnDisk) {
  const test::TempDir dir;
  ShareOptions join{.join = true};
  const auto out = dir / "out";
  EXPECT_ERROR(io::Error, share(join, {}, out), "no shares to join");
  for (const char* name :
       {"out.rank-0-of-3", "out.rank-2-of-3", "out.rank-x-of-9", "out.rank-0-of-9x", "other.rank-0-of-5"})
    std::filesystem::create_directory(dir / name);
  expect(share(join, {{"RANK", "1"}, {"WORLD_SIZE", "4"}}, out), 0, 3, false);
  std::filesystem::create_directory(dir / "out.rank-0-of-4");
  EXPECT_ERROR(UsageError, share(join, {}, out), "say which with --join N");
  join.world_size = 4;
  expect(share(join, {}, out), 0, 4, false);
  join.rank = 1;
  EXPECT_ERROR(UsageError, share(join, {}, out), "exclude each other");
}

ShareOptions in_shares(std::int64_t count, bool join, std::optional<double> wait = std::nullopt) {
  return {.shares = count, .wait = wait, .lease_seconds = 7, .join = join};
}

TEST(Share, SharesThatAreTaken) {
  const Variables launcher = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  const auto alone = share(in_shares(16, false));
  ASSERT_TRUE(alone.shares.has_value());
  EXPECT_EQ(alone.shares->count, 16);
  EXPECT_EQ(alone.shares->first, 0);
  EXPECT_EQ(alone.shares->lease.expiry, 7);
  EXPECT_FALSE(alone.shares->wait.has_value());
  const auto second = share(in_shares(16, true, 30), launcher);
  EXPECT_EQ(second.warning, "");
  ASSERT_TRUE(second.shares.has_value());
  EXPECT_EQ(second.shares->first, 4);
  EXPECT_EQ(second.shares->wait, 30);
  // --join --wait alone: one for each process, whichever takes it.
  const auto each = share(in_shares(0, true, 0), launcher);
  ASSERT_TRUE(each.shares.has_value());
  EXPECT_EQ(each.shares->count, 4);
  EXPECT_EQ(each.shares->first, 1);
  EXPECT_ERROR(UsageError, share(in_shares(3, false, 0)), "--wait is --join wait");
}

TEST(Share, JoinFindsTheSharesThatWereTaken) {
  const test::TempDir dir;
  const auto out = dir / "out";
  EXPECT_EQ(share(in_shares(5, true), {}, out).shares.value().count, 5);
  const io::Shares shares(dir / ".out.shares", {{"work", 1}}, {.count = 3});
  EXPECT_EQ(share(in_shares(0, true), {}, out).shares.value().count, 3);
  EXPECT_EQ(share(in_shares(0, true), {}, out / "").shares.value().count, 3);
  std::filesystem::create_directory(dir / "out.rank-0-of-4");
  EXPECT_ERROR(UsageError, share(in_shares(0, true), {}, out), "say which with --join N or --shares K");
}

TEST(Share, InWords) {
  io::SharesOptions o{.count = 4};
  EXPECT_EQ(shares_text(o, {0, 2}, {1}, false), "2 of 4 made here, 1 are held by others");
  EXPECT_EQ(shares_text(o, {0}, {}, true), "1 of 4 made here, all joined here");
  EXPECT_EQ(shares_text(o, {0}, {}, false), "1 of 4 made here, none is missing; --join puts all together");
  o.wait = 0;
  EXPECT_EQ(shares_text(o, {}, {}, false), "0 of 4 made here, all joined by another process");
  EXPECT_EQ(shares_json(o, {3}, {1, 2}, false).dump(), R"({"count":4,"made":[3],"missing":[1,2],"joined":false})");
}

// Layers of ranks against all ways to cut them.

using Numbers = std::vector<std::int64_t>;

/// The bytes of the largest rank.
std::int64_t most_of(const Numbers& bytes, std::int64_t after, const Numbers& starts) {
  std::int64_t most = 0;
  for (std::size_t r = 0; r + 1 < starts.size(); ++r)
    most = std::max(most, std::accumulate(bytes.begin() + starts[r], bytes.begin() + starts[r + 1],
                                          r + 2 == starts.size() ? after : std::int64_t{0}));
  return most;
}

/// The least that there is among all ways to cut.
std::int64_t least(const Numbers& bytes, std::int64_t after, std::int64_t ranks) {
  const auto layers = static_cast<std::int64_t>(bytes.size());
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  Numbers starts = {0};
  const std::function<void()> cut = [&] {
    if (static_cast<std::int64_t>(starts.size()) == ranks) {
      starts.push_back(layers);
      best = std::min(best, most_of(bytes, after, starts));
      starts.pop_back();
      return;
    }
    for (std::int64_t next = starts.back() + 1; next < layers; ++next) {
      starts.push_back(next);
      cut();
      starts.pop_back();
    }
  };
  cut();
  return best;
}

TEST(LayerRanges, OfEqualLayers) {
  EXPECT_EQ(layer_ranges({5, 5, 5, 5}, 0, 2), (Numbers{0, 2, 4}));
  EXPECT_EQ(layer_ranges({5, 5, 5, 5}, 5, 2), (Numbers{0, 3, 4}));  // the head is as large as a layer
  EXPECT_EQ(layer_ranges({5, 5, 5, 5}, 100, 3), (Numbers{0, 2, 3, 4}));
  EXPECT_EQ(layer_ranges({5}, 3, 1), (Numbers{0, 1}));
  EXPECT_EQ(layer_ranges({0, 0, 0}, 0, 3), (Numbers{0, 1, 2, 3}));
}

TEST(LayerRanges, NoOtherWayHasASmallerLargestRank) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    Numbers bytes(1 + random() % 8);
    for (auto& b : bytes) b = random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % 1000);
    const auto after = static_cast<std::int64_t>(random() % 3 == 0 ? 0 : random() % 2000);
    const auto ranks = static_cast<std::int64_t>(1 + random() % bytes.size());
    const auto starts = layer_ranges(bytes, after, ranks);
    ASSERT_EQ(static_cast<std::int64_t>(starts.size()), ranks + 1);
    EXPECT_EQ(starts.front(), 0);
    EXPECT_EQ(starts.back(), static_cast<std::int64_t>(bytes.size()));
    for (std::size_t r = 0; r + 1 < starts.size(); ++r) EXPECT_LT(starts[r], starts[r + 1]);
    EXPECT_EQ(most_of(bytes, after, starts), least(bytes, after, ranks));
  }
}

}  // namespace
}  // namespace fp8::commands
