// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/loggers/event_file.h"

#include <array>
#include <bit>

namespace fp8::trainer {
namespace {

constexpr std::array<std::uint32_t, 256> kCrcOfByte = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    table[byte] = crc;
  }
  return table;
}();

// Protocol buffers: a field is a key (number << 3 | wire type) and its value.
enum class Wire : std::uint8_t { varint = 0, bits64 = 1, bytes = 2, bits32 = 5 };

template <class T>
void put_fixed(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> 8 * i & 0xff);
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, int number, Wire wire) {
  put_varint(out, static_cast<std::uint64_t>(number) << 3 | static_cast<std::uint64_t>(wire));
}

void put_bytes(std::string& out, int number, std::string_view value) {
  put_key(out, number, Wire::bytes);
  put_varint(out, value.size());
  out += value;
}

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

std::string record(const std::string& event) {
  std::string out;
  put_fixed(out, static_cast<std::uint64_t>(event.size()));
  put_fixed(out, masked(crc32c(out)));
  out += event;
  put_fixed(out, masked(crc32c(event)));
  return out;
}

std::string event_at(double wall_time) {
  std::string event;
  put_key(event, 1, Wire::bits64);
  put_fixed(event, std::bit_cast<std::uint64_t>(wall_time));
  return event;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes) crc = kCrcOfByte[(crc ^ static_cast<std::uint8_t>(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

std::string version_record(double wall_time) {
  std::string event = event_at(wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return record(event);
}

std::string scalars_record(double wall_time, std::int64_t step,
                           const std::vector<std::pair<std::string, float>>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, Wire::bits32);
    put_fixed(value, std::bit_cast<std::uint32_t>(number));
    put_bytes(summary, 1, value);
  }
  std::string event = event_at(wall_time);
  put_key(event, 2, Wire::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, 5, summary);
  return record(event);
}

}  // namespace fp8::trainer
