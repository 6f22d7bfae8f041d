// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/tensors/zip.h"

#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

std::string unzip(const std::string& zip, const std::string& member = "arr_0.npy", std::uint64_t limit = 1 << 20) {
  return unzip_member(zip, member, limit, "f.npz");
}

// Bit by bit, from the definition: polynomial 0xedb88320, reflected, inverted at both ends.
std::uint32_t crc_of(const std::string& data) {
  std::uint32_t crc = ~0u;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

void set(std::string& bytes, std::size_t at, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes[at + static_cast<std::size_t>(i)] = static_cast<char>(value >> (8 * i));
}

TEST(Zip, HeadersAsTheFormatHasThem) {
  const std::string data = "hello";
  const std::string zip = zip_of("arr_0.npy", data);
  const std::uint32_t crc = crc_of(data);
  const std::string crc_bytes = {static_cast<char>(crc), static_cast<char>(crc >> 8), static_cast<char>(crc >> 16),
                                 static_cast<char>(crc >> 24)};
  const std::string common =
      std::string("\x14\0\0\0\0\0\0\0\x21\0", 10) + crc_bytes + std::string("\5\0\0\0\5\0\0\0\x09\0\0\0", 12);
  EXPECT_EQ(zip.substr(0, 44), "PK\x03\x04" + common + "arr_0.npy" + "hello");
}

TEST(Zip, ThereAndBack) {
  std::string data;
  for (int i = 0; i < 100'000; ++i) data += static_cast<char>(i * i);
  EXPECT_EQ(unzip(zip_of("arr_0.npy", data)), data);
  EXPECT_EQ(unzip(zip_of("arr_0.npy", "")), "");
}

TEST(Zip, AComment) {
  std::string zip = zip_of("arr_0.npy", "hello");
  set(zip, zip.size() - 2, 300, 2);
  EXPECT_EQ(unzip(zip + std::string(300, 'c')), "hello");
}

// Offsets of zip_of("arr_0.npy", "hello"): local header 0, data 39, central header 44, end record 99.
struct Damage {
  const char* label;
  std::size_t at;
  std::uint64_t value;
  int size;
  const char* message;
};
class ZipRefuses : public testing::TestWithParam<Damage> {};

TEST_P(ZipRefuses, Damage) {
  const Damage& damage = GetParam();
  std::string zip = zip_of("arr_0.npy", "hello");
  ASSERT_EQ(zip.size(), 121u);
  set(zip, damage.at, damage.value, damage.size);
  EXPECT_IO_ERROR(unzip(zip), std::string("f.npz: ") + damage.message);
}

const Damage kDamages[] = {
    {"Data", 40, 'a', 1, "member 'arr_0.npy': its checksum (CRC-32) is wrong"},
    {"Crc", 60, 1, 4, "member 'arr_0.npy': its checksum (CRC-32) is wrong"},
    {"LocalSignature", 0, 0, 4, "member 'arr_0.npy': has no header where the directory says"},
    {"LocalName", 26, 65535, 2, "member 'arr_0.npy': reaches past the end of the file (cut short?)"},
    {"Offset", 44 + 42, 120, 4, "member 'arr_0.npy': has no header where the directory says"},
    {"OffsetFar", 44 + 42, 0xfffffffe, 4, "member 'arr_0.npy': has no header where the directory says"},
    {"Encrypted", 44 + 8, 1, 2, "member 'arr_0.npy': is encrypted"},
    {"Method", 44 + 10, 12, 2, "member 'arr_0.npy': compression method 12, expected 0 (stored) or 8 (deflated)"},
    {"NotDeflated", 44 + 10, 8, 2, "member 'arr_0.npy': its deflated data is damaged"},
    {"Packed", 44 + 20, 500, 4, "member 'arr_0.npy': reaches past the end of the file (cut short?)"},
    {"Sizes", 44 + 20, 4, 4, "member 'arr_0.npy': is stored, but its two sizes differ"},
    {"TooLarge", 44 + 24, 0xfffffffe, 4, "member 'arr_0.npy': 4294967294 bytes, allowed at most 1048576"},
    {"Zip64", 44 + 24, 0xffffffff, 4, "is a zip64 file, expected a plain zip"},
    {"Name", 44 + 46, 'b', 1, "has no member 'arr_0.npy', it holds 'brr_0.npy'"},
    {"NameSize", 44 + 28, 65535, 2, "its directory is damaged"},
    {"CentralSignature", 44, 0, 4, "its directory is damaged"},
    {"DirectoryOffset", 99 + 16, 98, 4, "its directory is damaged"},
    {"DirectoryFar", 99 + 16, 0xfffffffe, 4, "its directory is damaged"},
    {"Count", 99 + 8, 0, 4, "has no member 'arr_0.npy', it holds nothing"},
    {"Volumes", 99 + 4, 1, 2, "is a zip64 or a multi-volume file, expected a plain zip"},
    {"EndSignature", 99, 0, 4, "is not a zip (npz) file, or is cut short"},
};
INSTANTIATE_TEST_SUITE_P(, ZipRefuses, testing::ValuesIn(kDamages), [](const auto& info) { return info.param.label; });

TEST(Zip, APromiseDeflateCannotKeepIsNotAllocated) {
  std::string zip = zip_of("arr_0.npy", "hello");
  set(zip, 44 + 10, 8, 2);
  set(zip, 44 + 24, 1 << 20, 4);
  EXPECT_IO_ERROR(unzip(zip), "f.npz: member 'arr_0.npy': can't inflate to 1048576 bytes");
}

TEST(Zip, WhatIsNone) {
  EXPECT_IO_ERROR(unzip(""), "f.npz: 0 bytes, too short for a zip (npz) file");
  EXPECT_IO_ERROR(unzip(std::string(100'000, 'P')), "f.npz: is not a zip (npz) file, or is cut short");
}

}  // namespace
}  // namespace fp8::io
