// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/tensors/zip.h"

#include <cmath>

#include "fp8/runtime/io/tensors/npz.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using NpzTest = IoTest;

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

// The fixtures were written by numpy (fixtures/make_npz.py).

std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(FP8_SOURCE_DIR) / "tests/runtime/io/fixtures" / name;
}

// make_npz.py's measurement().
PyValue measurement() {
  const NdArray one{{1, 1}, {1.5f}};
  PyDict weights, params, q_proj, umlaut, nodes, root;
  weights.insert(std::int64_t{0}, NdArray{{3}, {1, 2, 3}});
  weights.insert(std::int64_t{1}, NdArray{{0, 2}, {}});
  params.insert("weight", weights);
  q_proj.insert("inputs", PyList{{one}});
  q_proj.insert("outputs", PyTuple{{NdArray{{}, {0.25f}}, one}});
  q_proj.insert("params", params);
  umlaut.insert("inputs", PyList{{NdArray{{2, 3}, {0, 1, 2, 3, 4, 5}}}});
  umlaut.insert("outputs", PyList{});
  nodes.insert("model.layers.0.q_proj", q_proj);
  nodes.insert(
      "gr\xc3\xb6\xc3\x9f"
      "e",
      umlaut);
  root.insert("NumSamples", 3);
  root.insert("GlobalRank", PyValue());
  root.insert("LocalRank", -70000);
  root.insert("Mode", "DynamicRange");
  root.insert("Flag", true);
  root.insert("Ratio", 0.1);
  root.insert("Large", std::int64_t{1} << 40);
  root.insert("Nodes", nodes);
  return root;
}

class NpzReads : public testing::TestWithParam<const char*> {};

TEST_P(NpzReads, WhatNumpyWrote) { EXPECT_EQ(read_npz(fixture(std::string(GetParam()) + ".npz")), measurement()); }

INSTANTIATE_TEST_SUITE_P(, NpzReads,
                         testing::Values("numpy1_measurement", "numpy1_compressed", "numpy2_measurement",
                                         "numpy2_compressed", "protocol2", "protocol3", "protocol4", "protocol5"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Npz, ReadsScalarsAndOtherTypesOfNumpy) {
  for (const char* name : {"numpy1_scalars.npz", "numpy2_scalars.npz"}) {
    const PyValue value = read_npz(fixture(name));
    const auto& dict = *value.get_if<PyDict>();
    EXPECT_EQ(dict.at("f4"), PyValue(static_cast<double>(0.1f)));
    EXPECT_EQ(dict.at("f8"), PyValue(0.1));
    EXPECT_EQ(dict.at("i8"), PyValue(-5));
    EXPECT_EQ(dict.at("ints"), PyValue(NdArray{{1, 2}, {128, 256}}));
    // 6e-8 is nearest to 2^-24, binary16's smallest.
    const auto& half = *dict.at("half").get_if<NdArray>();
    EXPECT_EQ(half.data, (std::vector<float>{1.5f, 0, 0x1p-24f, INFINITY}));
    EXPECT_TRUE(std::signbit(half.data[1]));
  }
}

TEST(Npz, RefusesWhatWouldRunCodeOrFillTheMemory) {
  const std::pair<const char*, const char*> refused[] = {
      {"refused_system", "asks for 'posix.system', which is not allowed (numpy arrays only)"},
      {"refused_eval", "asks for 'builtins.eval', which is not allowed"},
      {"refused_set", "opcode EMPTY_SET (0x8f) is not allowed"},
      {"refused_complex", "dtype 'c8' is not allowed, expected one of f2, f4, f8, i4, i8"},
      {"refused_loop", "nested deeper than 64 levels"},
      {"refused_bomb", "names the same objects so often that they would fill the memory"},
      {"refused_plain_array",
       "arr_0.npy: holds {'descr':'<f4','fortran_order':False,'shape':(3,),}, expected one Python object"},
      {"refused_no_member", "has no member 'arr_0.npy', it holds 'other.npy'"}};
  for (const auto& [name, message] : refused) {
    const auto file = fixture(std::string(name) + ".npz");
    const std::string what = test::one_line_error<Error>([&] { read_npz(file); });
    EXPECT_THAT(what, testing::StartsWith(file.string() + ": "));
    EXPECT_THAT(what, HasSubstr(message));
  }
}

TEST_F(NpzTest, WhatIsWrittenIsRead) {
  write_npz(path("m.npz"), measurement());
  EXPECT_EQ(read_npz(path("m.npz")), measurement());
  EXPECT_EQ(names_in(folder_), std::set<std::string>{"m.npz"});
}

TEST_F(NpzTest, TheHeaderIsNumpys) {
  write_npz(path("m.npz"), PyValue());
  const std::string ours = unzip_member(bytes_of(path("m.npz")), "arr_0.npy", 1 << 20, "m");
  const std::string numpys = unzip_member(bytes_of(fixture("numpy1_measurement.npz")), "arr_0.npy", 1 << 20, "n");
  EXPECT_EQ(ours.substr(0, 128), numpys.substr(0, 128));
  // numpy 1's first opcodes, up to the dict, are ours except for its memo numbers.
  EXPECT_EQ(ours.substr(128, 44), numpys.substr(128, 44));
}

TEST(Npz, RefusesDamagedArrays) {
  const auto refusal = [](std::string npy) {
    return test::one_line_error<Error>([&] { parse_npz(zip_of("arr_0.npy", npy), "f"); });
  };
  const std::string magic = "\x93NUMPY";
  EXPECT_EQ(refusal(""), "f: arr_0.npy: is not a numpy array");
  EXPECT_EQ(refusal(magic + std::string("\x04\0\0\0\0\0", 6)), "f: arr_0.npy: npy version 4, expected 1 to 3");
  EXPECT_EQ(refusal(magic + std::string("\x01\0\xff\xff\0\0", 6)), "f: arr_0.npy: its header reaches past the end");
  EXPECT_EQ(refusal(magic + std::string("\x02\0\xff\xff\xff\xff", 6)), "f: arr_0.npy: its header reaches past the end");
  EXPECT_THAT(refusal(magic + std::string("\x01\0\x04\0{ }\n", 8)),
              HasSubstr("arr_0.npy: holds {}, expected one Python object"));
  EXPECT_IO_ERROR(parse_npz("PK", "f"), "f: 2 bytes, too short for a zip (npz) file");
}

}  // namespace
}  // namespace fp8::io
