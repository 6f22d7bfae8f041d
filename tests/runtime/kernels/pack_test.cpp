// SPDX-License-Identifier: Apache-2.0
// The packed layout against the formula in gemm.h, both ways, and transpose_bytes.

#include "fp8/runtime/kernels/gemm.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

std::vector<std::uint8_t> random_bytes(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random() >> 7);
  return bytes;
}

// gemm.h's formula, with K rounded up to 4.
std::int64_t position(std::int64_t n, std::int64_t k, std::int64_t padded_k) {
  return (n / 16) * 16 * padded_k + (k / 4) * 64 + ((n % 16) / 4) * 16 + ((k % 4) / 2) * 8 + (n % 4) * 2 + (k % 2);
}

constexpr std::int64_t kSizes[] = {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130};

TEST(Pack, BytesAreRoundedUpTo16By4) {
  EXPECT_EQ(packed_bytes(16, 4), 64);
  EXPECT_EQ(packed_bytes(1, 1), 64);
  EXPECT_EQ(packed_bytes(17, 5), 32 * 8);
  EXPECT_EQ(packed_bytes(4096, 4096), 4096 * 4096);
  EXPECT_EQ(packed_bytes(0, 7), 0);
  EXPECT_EQ(packed_bytes(7, 0), 0);
}

TEST(Pack, ImpossibleSizesAreRefused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(packed_bytes(-1, 4), std::invalid_argument);
  EXPECT_THROW(packed_bytes(4, -1), std::invalid_argument);
  EXPECT_THROW(packed_bytes(kMost, 2), std::invalid_argument);
  EXPECT_THROW(packed_bytes(std::int64_t{1} << 32, std::int64_t{1} << 32), std::invalid_argument);
}

TEST(Pack, FollowsTheFormulaAndPadsWithZeros) {
  for (const std::int64_t n : kSizes)
    for (const std::int64_t k : kSizes) {
      const auto w = random_bytes(n * k, static_cast<unsigned>(n * 1000 + k));
      const std::int64_t padded_n = (n + 15) / 16 * 16, padded_k = (k + 3) / 4 * 4;
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(packed_bytes(n, k)), 0xEE);
      pack_weight(w.data(), n, k, packed.data());
      for (std::int64_t row = 0; row < padded_n; ++row)
        for (std::int64_t col = 0; col < padded_k; ++col) {
          const std::uint8_t expected = row < n && col < k ? w[static_cast<std::size_t>(row * k + col)] : 0;
          ASSERT_EQ(packed[static_cast<std::size_t>(position(row, col, padded_k))], expected)
              << n << "x" << k << " at " << row << "," << col;
        }
    }
}

TEST(Pack, UnpackRestoresEveryByte) {
  for (const std::int64_t n : kSizes)
    for (const std::int64_t k : kSizes) {
      const auto w = random_bytes(n * k, static_cast<unsigned>(n + k * 777));
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(packed_bytes(n, k)));
      pack_weight(w.data(), n, k, packed.data());
      std::vector<std::uint8_t> back(w.size() + 1, 0xEE);
      unpack_weight(packed.data(), n, k, back.data());
      EXPECT_EQ(back.back(), 0xEE) << n << "x" << k;
      back.pop_back();
      EXPECT_EQ(back, w) << n << "x" << k;
    }
}

TEST(Pack, InPlaceIsTheSamePermutation) {
  for (const std::int64_t n : {0, 16, 48, 1024})
    for (const std::int64_t k : {0, 4, 20, 516}) {
      const auto w = random_bytes(n * k, static_cast<unsigned>(n * 31 + k));
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(packed_bytes(n, k))), place = w;
      pack_weight(w.data(), n, k, packed.data());
      pack_weight_in_place(place.data(), n, k);
      EXPECT_EQ(place, packed) << n << "x" << k;
      unpack_weight_in_place(place.data(), n, k);
      EXPECT_EQ(place, w) << n << "x" << k;
    }
  for (const auto& [n, k] : {std::pair{15, 4}, std::pair{16, 5}, std::pair{17, 8}}) {
    EXPECT_THROW(pack_weight_in_place(nullptr, n, k), std::invalid_argument) << n << "x" << k;
    EXPECT_THROW(unpack_weight_in_place(nullptr, n, k), std::invalid_argument) << n << "x" << k;
  }
}

TEST(Pack, ManyThreadsDoTheSame) {
  const std::int64_t n = 1003, k = 517;
  const auto w = random_bytes(n * k, 3);
  std::vector<std::uint8_t> one(static_cast<std::size_t>(packed_bytes(n, k))), many(one.size());
  const Threads single(1);
  pack_weight(w.data(), n, k, one.data());
  const Threads five(5);
  pack_weight(w.data(), n, k, many.data());
  std::vector<std::uint8_t> back(w.size());
  unpack_weight(many.data(), n, k, back.data());
  EXPECT_EQ(one, many);
  EXPECT_EQ(back, w);
}

/// in[r, c] lies at r * stride + c and ends where the memory does, 0x7F (NaN) between rows; 0xEE follows the result.
void check_transpose(std::int64_t rows, std::int64_t cols, std::int64_t stride, std::int64_t misaligned) {
  const auto bytes = random_bytes(rows * cols, static_cast<unsigned>(rows + cols));
  test::GuardedBuffer<std::uint8_t> in(static_cast<std::size_t>((rows - 1) * stride + cols));
  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy_n(bytes.data() + r * cols, cols, in.data() + r * stride);
    if (r + 1 < rows) std::fill_n(in.data() + r * stride + cols, stride - cols, std::uint8_t{0x7F});
  }
  std::vector<std::uint8_t> out(bytes.size() + 128, 0xEE);
  const auto past_line = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out.data()) % 64);
  std::uint8_t* to = out.data() + (64 - past_line) % 64 + misaligned;
  transpose_bytes(in.data(), rows, cols, to, stride);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      ASSERT_EQ(to[c * rows + r], bytes[static_cast<std::size_t>(r * cols + c)])
          << name_of(simd_level()) << ": " << rows << "x" << cols << " at " << r << ", " << c;
  EXPECT_TRUE(std::all_of(out.data(), to, [](std::uint8_t byte) { return byte == 0xEE; }));
  EXPECT_TRUE(std::all_of(to + rows * cols, out.data() + out.size(), [](std::uint8_t byte) { return byte == 0xEE; }));
}

TEST(Pack, TransposeSwapsIndicesOnEveryLevel) {
  for (const SimdLevel level : every_level()) {
    SCOPED_TRACE(name_of(level));
    for (const std::int64_t rows : kSizes)
      for (const std::int64_t cols : {1, 7, 64, 65, 200}) check_transpose(rows, cols, cols + rows % 3, cols % 2);
    check_transpose(192, 320, 320, 0);
    check_transpose(257, 321, 400, 3);
  }
  transpose_bytes(nullptr, 0, 5, nullptr);
}

TEST(Pack, TransposeOfMoreThanTheCachesHold) {
  const std::int64_t cols = 1088, rows = (streaming_bytes() / cols + 64) / 64 * 64;
  for (const SimdLevel level : levels()) {
    if (level != SimdLevel::avx2 && level != SimdLevel::avx512) continue;  // others stream as these do, or not at all
    const ScopedSimdLevel scoped(level);
    const auto in = random_bytes(rows, 1);  // each row is one byte again and again: a column of the result is `in`
    std::vector<std::uint8_t> wide(static_cast<std::size_t>(rows * cols)), space(wide.size() + 64);
    for (std::int64_t r = 0; r < rows; ++r) std::fill_n(wide.data() + r * cols, cols, in[static_cast<std::size_t>(r)]);
    std::uint8_t* out = space.data() + (64 - reinterpret_cast<std::uintptr_t>(space.data()) % 64) % 64;
    transpose_bytes(wide.data(), rows, cols, out);
    for (std::int64_t c = 0; c < cols; ++c) ASSERT_TRUE(std::equal(in.begin(), in.end(), out + c * rows)) << c;
  }
}

TEST(Pack, TransposeOfLargeAndStridedMatrices) {
  const Threads pool(3);
  for (const auto& [rows, cols, stride] :
       {std::array<std::int64_t, 3>{256, 512, 512}, {600, 300, 300}, {257, 321, 400}, {70, 64, 1000}}) {
    const auto in = random_bytes(rows * stride, static_cast<unsigned>(rows + cols));
    std::vector<std::uint8_t> out(static_cast<std::size_t>(rows * cols) + 1, 0xEE);
    transpose_bytes(in.data(), rows, cols, out.data(), stride);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c)
        ASSERT_EQ(out[static_cast<std::size_t>(c * rows + r)], in[static_cast<std::size_t>(r * stride + c)])
            << rows << "x" << cols;
    EXPECT_EQ(out.back(), 0xEE);
  }
  std::vector<std::uint8_t> one(1);
  EXPECT_THROW(transpose_bytes(nullptr, 2, 2, one.data()), std::invalid_argument);
  EXPECT_THROW(transpose_bytes(one.data(), -1, 2, one.data()), std::invalid_argument);
  EXPECT_THROW(transpose_bytes(one.data(), 2, 5, one.data(), 4), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::kernels
