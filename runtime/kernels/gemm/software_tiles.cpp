// SPDX-License-Identifier: Apache-2.0
// SoftwareTiles: the checks of Intel's manual (ldtilecfg, exception classes AMX-E1 to E4) and the moves; the arithmetic
// is tiles_avx512.cpp's. Compiled without flags of a level: its errors are built from strings.
#include "fp8/runtime/kernels/gemm/software_tiles.h"

#include <cstring>

#include "fp8/runtime/io/base/fail.h"

namespace fp8::kernels {
namespace {

void expect(bool ok, const char* what, std::int64_t found, const char* allowed) {
  if (!ok) io::fail<std::logic_error>("[tiles] found {} {}, allowed: {}", what, found, allowed);
}

}  // namespace

SoftwareTiles::SoftwareTiles() { release(); }

void SoftwareTiles::configure(const TileConfig& config) {
  expect(config.palette == 1, "palette", config.palette, "1");
  expect(config.start_row == 0, "start_row", config.start_row, "0");
  for (const std::uint8_t byte : config.reserved) expect(byte == 0, "reserved byte", byte, "0");
  for (int t = 0; t < 16; ++t) {
    const int rows = config.rows[t], bytes = config.row_bytes[t];
    expect(t < kTiles || (rows == 0 && bytes == 0), "a shape of tile", t, "8 tiles");
    expect(rows <= kTileRows, "rows", rows, "up to 16");
    expect(bytes <= kTileRowBytes, "bytes per row", bytes, "up to 64");
    expect((rows == 0) == (bytes == 0), "rows or bytes of 0 in tile", t, "both or neither");
  }
  config_ = config;
  std::memset(tile_, 0, sizeof tile_);
}

void SoftwareTiles::release() {
  std::memset(&config_, 0, sizeof config_);
  std::memset(tile_, 0, sizeof tile_);
}

void SoftwareTiles::check(int tile) const {
  expect(config_.palette == 1, "palette", config_.palette, "1");
  expect(tile >= 0 && tile < kTiles, "tile", tile, "0 to 7");
  expect(config_.rows[tile] > 0, "a tile without rows:", tile, "those that are configured");
  expect(config_.row_bytes[tile] % 4 == 0, "bytes per row", config_.row_bytes[tile], "multiples of 4");
}

void SoftwareTiles::zero(int tile) {
  check(tile);
  std::memset(tile_[tile], 0, sizeof tile_[tile]);
}

void SoftwareTiles::load(int tile, const void* base, std::int64_t stride) {
  zero(tile);
  const auto* from = static_cast<const std::uint8_t*>(base);
  for (int r = 0; r < config_.rows[tile]; ++r) std::memcpy(tile_[tile][r], from + r * stride, config_.row_bytes[tile]);
}

void SoftwareTiles::store(int tile, void* base, std::int64_t stride) const {
  check(tile);
  auto* to = static_cast<std::uint8_t*>(base);
  for (int r = 0; r < config_.rows[tile]; ++r) std::memcpy(to + r * stride, tile_[tile][r], config_.row_bytes[tile]);
}

void SoftwareTiles::dot(int c, int a, int b) {
  for (const int tile : {c, a, b}) check(tile);
  expect(c != a && c != b && a != b, "the same tile twice:", a == b ? a : c, "three tiles");
  expect(config_.rows[c] == config_.rows[a], "rows of A", config_.rows[a], "those of C");
  expect(config_.row_bytes[c] == config_.row_bytes[b], "bytes per row of B", config_.row_bytes[b], "those of C");
  expect(config_.row_bytes[a] / 4 == config_.rows[b], "rows of B", config_.rows[b], "a quarter of A's bytes per row");
  dot_tiles_avx512(config_.rows[c], config_.rows[b], config_.row_bytes[c] / 4, tile_[a], tile_[b], tile_[c]);
}

}  // namespace fp8::kernels
