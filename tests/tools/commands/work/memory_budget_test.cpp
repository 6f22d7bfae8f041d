// SPDX-License-Identifier: Apache-2.0
// Sizes as users write them, and what made-up machines have left.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "fp8/tools/commands/work/process.h"
#include "support/temp_dir.h"

namespace fp8::commands {
namespace {

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

class Machine : public ::testing::Test {
 protected:
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
  const auto touched = [](std::size_t bytes) { return std::memset(std::malloc(bytes), 1, bytes); };
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

}  // namespace
}  // namespace fp8::commands
