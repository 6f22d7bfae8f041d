// SPDX-License-Identifier: Apache-2.0
// The packed weight layout of gemm.h, in both directions.
//
//   byte(n, k) = (n/16)*16*K + (k/4)*64 + ((n%16)/4)*16 + ((k%4)/2)*8 + (n%4)*2 + (k%2)      K = k rounded up to 4
//
// One 64-byte line holds 16 channels x 4 k so that the byte unpacks of a decode leave lane = channel: no horizontal
// sums.
#include <algorithm>
#include <limits>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/gemm/gemm_kernels.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

// Position of (channel, k) within a line.
constexpr int in_line(int channel, int k) { return channel / 4 * 16 + k / 2 * 8 + channel % 4 * 2 + k % 2; }

std::int64_t checked_bytes(const char* who, std::int64_t rows, std::int64_t cols) {
  if (rows < 0 || cols < 0) io::fail<std::invalid_argument>("[{}] sizes must be >= 0, got {} x {}", who, rows, cols);
  constexpr std::int64_t kLimit = std::numeric_limits<std::int64_t>::max() - 64;
  if (rows > kLimit || cols > kLimit || (cols > 0 && round_up(rows, kBlockChannels) > kLimit / round_up(cols, kLineK)))
    io::fail<std::invalid_argument>("[{}] {} x {} bytes do not fit a 64-bit size", who, rows, cols);
  return round_up(rows, kBlockChannels) * round_up(cols, kLineK);
}

std::int64_t blocks_per_task(std::int64_t k) { return std::max<std::int64_t>(1, 65536 / (16 * (k + 1))); }

/// `rows` rows of `w`, up to 16, as the lines of one block.
void pack_block(const std::uint8_t* w, int rows, std::int64_t k, std::uint8_t* line) {
  for (std::int64_t k0 = 0; k0 < k; k0 += kLineK, line += kLineBytes)
    for (int c = 0; c < kBlockChannels; ++c)
      for (int j = 0; j < kLineK; ++j)
        line[in_line(c, j)] = c < rows && k0 + j < k ? w[c * k + k0 + j] : std::uint8_t{0};
}

void unpack_block(const std::uint8_t* line, int rows, std::int64_t k, std::uint8_t* w) {
  for (std::int64_t k0 = 0; k0 < k; k0 += kLineK, line += kLineBytes) {
    const int valid = static_cast<int>(std::min<std::int64_t>(kLineK, k - k0));
    for (int c = 0; c < rows; ++c)
      for (int j = 0; j < valid; ++j) w[c * k + k0 + j] = line[in_line(c, j)];
  }
}

/// work(block, its rows) for all blocks of n rows, on the threads of the pool.
template <class Work>
void for_blocks(std::int64_t n, std::int64_t k, const Work& work) {
  const std::int64_t blocks = (n + kBlockChannels - 1) / kBlockChannels;
  parallel_each(blocks, blocks_per_task(k), [&](std::int64_t block) {
    work(block, static_cast<int>(std::min<std::int64_t>(kBlockChannels, n - block * kBlockChannels)));
  });
}

using BlockPermutation = void (*)(const std::uint8_t* from, int rows, std::int64_t k, std::uint8_t* to);

/// Both layouts hold the bytes of 16 rows in the same place: block by block through a copy.
void permute_in_place(const char* who, BlockPermutation permute, std::uint8_t* codes, std::int64_t n, std::int64_t k) {
  const std::int64_t bytes = checked_bytes(who, n, k);
  if (n % kBlockChannels != 0 || k % kLineK != 0)
    io::fail<std::invalid_argument>("[{}] expected a multiple of {} rows and of {} columns, got {} x {}", who,
                                    kBlockChannels, kLineK, n, k);
  if (bytes == 0) return;
  const std::int64_t blocks = n / kBlockChannels, block_bytes = kBlockChannels * k,
                     parts = std::min<std::int64_t>(blocks, std::int64_t{4} * num_threads());
  // All of it before the first byte moves: a weight is never left half in one order.
  std::vector<std::uint8_t> scratch(static_cast<std::size_t>(parts * block_bytes));
  parallel_each(parts, 1, [&](std::int64_t part) {
    std::uint8_t* copy = scratch.data() + part * block_bytes;
    for (std::int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
      std::uint8_t* place = codes + block * block_bytes;
      std::copy_n(place, block_bytes, copy);
      permute(copy, kBlockChannels, k, place);
    }
  });
}

}  // namespace

std::int64_t packed_bytes(std::int64_t n, std::int64_t k) { return checked_bytes("packed_bytes", n, k); }

void pack_weight(const std::uint8_t* row_major, std::int64_t n, std::int64_t k, std::uint8_t* packed) {
  if (checked_bytes("pack_weight", n, k) == 0) return;
  const std::int64_t block_bytes = kBlockChannels * round_up(k, kLineK);
  for_blocks(n, k, [&](std::int64_t block, int rows) {
    pack_block(row_major + block * kBlockChannels * k, rows, k, packed + block * block_bytes);
  });
}

void unpack_weight(const std::uint8_t* packed, std::int64_t n, std::int64_t k, std::uint8_t* row_major) {
  if (checked_bytes("unpack_weight", n, k) == 0) return;
  const std::int64_t block_bytes = kBlockChannels * round_up(k, kLineK);
  for_blocks(n, k, [&](std::int64_t block, int rows) {
    unpack_block(packed + block * block_bytes, rows, k, row_major + block * kBlockChannels * k);
  });
}

void pack_weight_in_place(std::uint8_t* codes, std::int64_t n, std::int64_t k) {
  permute_in_place("pack_weight_in_place", pack_block, codes, n, k);
}

void unpack_weight_in_place(std::uint8_t* codes, std::int64_t n, std::int64_t k) {
  permute_in_place("unpack_weight_in_place", unpack_block, codes, n, k);
}

}  // namespace fp8::kernels
