// SPDX-License-Identifier: Apache-2.0
// The specification's steps: four lanes over stripes of 32 bytes, merged, then the rest in words of 8, 4 and 1 bytes.
#include "fp8/runtime/io/base/checksum.h"

#include <bit>
#include <cstring>

#include "fp8/runtime/io/base/text.h"

namespace fp8::io {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu, kPrime3 = 0x165667B19E3779F9u,
                        kPrime4 = 0x85EBCA77C2B2AE63u, kPrime5 = 0x27D4EB2F165667C5u;

template <class Word>
Word load(const unsigned char* bytes) {  // little endian
  Word word;
  std::memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = sizeof word == 8 ? static_cast<Word>(__builtin_bswap64(word)) : static_cast<Word>(__builtin_bswap32(word));
#endif
  return word;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t input) { return std::rotl(lane + input * kPrime2, 31) * kPrime1; }

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
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  const unsigned char* at = rest_.data();
  std::size_t left = total_ % kStripe;
  for (; left >= 8; left -= 8, at += 8)
    hash = std::rotl(hash ^ round(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  if (left >= 4) {
    hash = std::rotl(hash ^ load<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    left -= 4, at += 4;
  }
  for (; left > 0; --left, ++at) hash = std::rotl(hash ^ *at * kPrime5, 11) * kPrime1;
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
  std::string text;
  append_hex(text, value, 16);
  return text;
}

// SHA-256 and HMAC.

namespace {

constexpr std::size_t kBlock = 64;

constexpr std::array<std::uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;

void add_block(State& state, const char* block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < kBlock; ++i) w[i / 4] = w[i / 4] << 8 | static_cast<unsigned char>(block[i]);
  for (std::size_t i = 16; i < 64; ++i)
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3) +
           (std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t first =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const std::uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const State more = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += more[i];
}

}  // namespace

std::string sha256(std::string_view text) {
  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded = std::string(text) + '\x80';
  padded.resize((padded.size() + 8 + kBlock - 1) / kBlock * kBlock);
  for (std::size_t i = 0; i < 8; ++i)
    padded[padded.size() - 1 - i] = static_cast<char>(std::uint64_t{text.size()} * 8 >> 8 * i);
  for (std::size_t i = 0; i < padded.size(); i += kBlock) add_block(state, padded.data() + i);
  std::string bytes;
  for (const std::uint32_t word : state)
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(word >> shift);
  return bytes;
}

std::string hmac_sha256(std::string_view secret, std::string_view text) {
  std::string inner(secret.size() > kBlock ? sha256(secret) : secret);
  inner.resize(kBlock);
  std::string outer = inner;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  std::string digits;
  for (const char byte : sha256(outer + sha256(inner.append(text))))
    append_hex(digits, static_cast<unsigned char>(byte), 2);
  return digits;
}

}  // namespace fp8::io
