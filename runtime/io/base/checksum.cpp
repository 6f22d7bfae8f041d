// SPDX-License-Identifier: Apache-2.0
// The specification's steps: four lanes over stripes of 32 bytes, merged, then the rest in words of 8, 4 and 1 bytes.
#include "fp8/runtime/io/base/checksum.h"

#include <algorithm>
#include <cstring>

namespace fp8::io {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu, kPrime3 = 0x165667B19E3779F9u,
                        kPrime4 = 0x85EBCA77C2B2AE63u, kPrime5 = 0x27D4EB2F165667C5u;

std::uint64_t rotate(std::uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

template <class Word>
Word load(const unsigned char* bytes) {  // little endian
  Word word;
  std::memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = sizeof word == 8 ? static_cast<Word>(__builtin_bswap64(word)) : static_cast<Word>(__builtin_bswap32(word));
#endif
  return word;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t input) { return rotate(lane + input * kPrime2, 31) * kPrime1; }

void stripes(std::array<std::uint64_t, 4>& lanes, const unsigned char* bytes, std::size_t count) {
  std::uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
  for (; count > 0; --count, bytes += 32) {
    a = round(a, load<std::uint64_t>(bytes));
    b = round(b, load<std::uint64_t>(bytes + 8));
    c = round(c, load<std::uint64_t>(bytes + 16));
    d = round(d, load<std::uint64_t>(bytes + 24));
  }
  lanes = {a, b, c, d};
}

}  // namespace

void Checksum::update(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const std::size_t held = total_ % kStripe;
  total_ += size;
  if (held > 0) {
    const std::size_t taken = std::min(size, kStripe - held);
    std::memcpy(rest_.data() + held, bytes, taken);
    if (held + taken < kStripe) return;
    stripes(lanes_, rest_.data(), 1);
    bytes += taken;
    size -= taken;
  }
  stripes(lanes_, bytes, size / kStripe);
  if (size % kStripe > 0) std::memcpy(rest_.data(), bytes + size / kStripe * kStripe, size % kStripe);
}

std::uint64_t Checksum::value() const {
  std::uint64_t hash = kPrime5;  // of a seed of 0
  if (total_ >= kStripe) {
    hash = rotate(lanes_[0], 1) + rotate(lanes_[1], 7) + rotate(lanes_[2], 12) + rotate(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  const unsigned char* at = rest_.data();
  std::size_t left = total_ % kStripe;
  for (; left >= 8; left -= 8, at += 8) hash = rotate(hash ^ round(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  if (left >= 4) {
    hash = rotate(hash ^ load<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    left -= 4, at += 4;
  }
  for (; left > 0; --left, ++at) hash = rotate(hash ^ *at * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

std::uint64_t checksum(std::string_view bytes) {
  Checksum sum;
  sum.update(bytes.data(), bytes.size());
  return sum.value();
}

std::string checksum_text(std::uint64_t value) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) text[static_cast<std::size_t>(i)] = kHex[value & 15];
  return text;
}

}  // namespace fp8::io
