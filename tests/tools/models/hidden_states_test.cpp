// SPDX-License-Identifier: Apache-2.0
// Hidden states in memory and in files behave alike, and outlive their process in a snapshot.
#include "fp8/tools/models/hidden_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "fp8/runtime/io/base/file.h"
#include "support/temp_dir.h"

namespace fp8::models {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSamples = 5, kBytes = 12;

std::vector<char> pattern(std::size_t n, int seed) {
  std::vector<char> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(static_cast<int>(i) * 7 + seed);
  return bytes;
}

class States : public ::testing::TestWithParam<bool> {
 protected:
  static void fill(HiddenStates& states, int seed) {
    const auto bytes = pattern(kSamples * kBytes, seed);
    for (std::int64_t first = 0; first < kSamples; first += 2) {
      std::vector<char> old(2 * kBytes);
      const auto count = std::min<std::int64_t>(2, kSamples - first);
      if (seed > 0) states.read(first, count, old.data());
      states.write(first, count, bytes.data() + first * kBytes);
    }
    states.advance();
  }
  static std::vector<char> content(const HiddenStates& states) {
    std::vector<char> bytes(kSamples * kBytes);
    states.read(0, kSamples, bytes.data());
    return bytes;
  }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator());
  }
  test::TempDir folder;
};

TEST_P(States, EveryLayerReadsWhatTheOneBeforeWrote) {
  {
    HiddenStates states(kSamples, kBytes, folder.path(), GetParam());
    for (int layer = 0; layer < 4; ++layer) {
      fill(states, layer);
      EXPECT_EQ(content(states), pattern(kSamples * kBytes, layer));
      EXPECT_LE(files(), GetParam() ? 0 : 1);
    }
  }
  EXPECT_EQ(files(), 0);
}

TEST_P(States, ASnapshotOutlivesTheRun) {
  io::Json saved;
  {
    HiddenStates states(kSamples, kBytes, folder.path(), GetParam());
    fill(states, 0);
    states.keep_only(states.save());
    fill(states, 1);
    saved = states.save();
    states.keep_only(saved);
    EXPECT_EQ(files(), 1);
    fill(states, 2);
  }
  EXPECT_EQ(files(), 1);
  {
    HiddenStates states(kSamples, kBytes, folder.path(), !GetParam());  // a snapshot of one kind is read by the other
    states.restore(saved);
    EXPECT_EQ(content(states), pattern(kSamples * kBytes, 1));
    fill(states, 5);
    EXPECT_EQ(content(states), pattern(kSamples * kBytes, 5));
  }
  const auto file = folder / saved.at("file").get<std::string>();
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).put('!');
  HiddenStates damaged(kSamples, kBytes, folder.path(), GetParam());
  EXPECT_THROW(damaged.restore(saved), io::Error);
  fs::resize_file(file, 10);
  EXPECT_THROW(damaged.restore(saved), io::Error);
  fs::remove(file);
  EXPECT_THROW(damaged.restore(saved), io::Error);
  for (const io::Json& bad : {io::Json(), io::Json{{"file", "../x"}, {"checksum", ""}}, io::Json{{"file", 3}}})
    EXPECT_THROW(damaged.restore(bad), io::Error);
}

INSTANTIATE_TEST_SUITE_P(MemoryAndFiles, States, ::testing::Bool());

}  // namespace
}  // namespace fp8::models
