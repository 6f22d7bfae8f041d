// SPDX-License-Identifier: Apache-2.0
// The fixtures were written by numpy (fixtures/make_npz.py).
#include "fp8/runtime/io/tensors/npz.h"

#include <cmath>

#include "fp8/runtime/io/tensors/zip.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using NpzTest = IoTest;
using testing::HasSubstr;

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
