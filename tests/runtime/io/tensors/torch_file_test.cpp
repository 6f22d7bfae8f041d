// SPDX-License-Identifier: Apache-2.0
// TorchFile of torch_file.h: files that PyTorch wrote (fixtures/make_torch.py), files written by hand, and refusals.
#include "fp8/runtime/io/tensors/torch_file.h"

#include <cstring>
#include <random>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/npz.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "runtime/io/io_test.h"
#include "runtime/io/tensors/safetensors_bytes.h"
#include "runtime/io/tensors/torch_bytes.h"
#include "support/golden.h"
#include "support/values.h"

namespace fp8::io {
namespace {

using NpzTest = IoTest;

using namespace torch_bytes;  // NOLINT: only the words of the format
using TorchFileTest = IoTest;

std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(FP8_SOURCE_DIR) / "tests/runtime/io/fixtures" / name;
}

template <class T>
std::vector<T> values_of(const TensorFile& file, const std::string& name) {
  const TensorInfo* info = file.find(name);
  EXPECT_NE(info, nullptr) << name;
  std::vector<T> values(static_cast<std::size_t>(info->numel()));
  EXPECT_EQ(info->bytes(), values.size() * sizeof(T)) << name;
  file.read(*info, values.data());
  return values;
}

/// cube[i, j, k] = 35 i + 7 j + k
float cube(int i, int j, int k) { return static_cast<float>(35 * i + 7 * j + k); }

class SavedByTorch : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, SavedByTorch, testing::Values("torch_state.bin", "torch_nested.bin"),
                         [](const auto& i) { return std::string(i.param).substr(6, 5); });

TEST_P(SavedByTorch, EveryKindOfTensor) {
  const TorchFile file(fixture(GetParam()));
  auto names = collected(file.tensors(), [](const auto& t) { return t.name; });
  EXPECT_EQ(names, (std::vector<std::string>{"matrix", "tied", "transposed", "permuted", "sliced", "parameter",
                                             "scalar", "fp8", "empty", "tail"}));
  EXPECT_EQ(values_of<double>(file, "matrix"), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values_of<double>(file, "tied"), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(file.find("transposed")->shape, (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(values_of<double>(file, "transposed"), (std::vector<double>{0, 3, 1, 4, 2, 5}));
  std::vector<float> permuted, sliced;
  for (int k = 0; k < 7; ++k)
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 5; ++j) permuted.push_back(cube(i, j, k));
  for (int i = 1; i < 3; ++i)
    for (int j = 0; j < 5; j += 2)
      for (int k = 1; k < 6; k += 2) sliced.push_back(cube(i, j, k));
  EXPECT_EQ(values_of<float>(file, "permuted"), permuted);
  EXPECT_EQ(values_of<float>(file, "sliced"), sliced);
  EXPECT_EQ(file.find("parameter")->dtype, DType::BF16);
  EXPECT_EQ(values_of<std::uint16_t>(file, "parameter"), (std::vector<std::uint16_t>{0x3FC0, 0xC000}));
  EXPECT_TRUE(file.find("scalar")->shape.empty());
  EXPECT_EQ(values_of<std::int64_t>(file, "scalar"), (std::vector<std::int64_t>{7}));
  EXPECT_EQ(file.find("fp8")->dtype, DType::F8_E4M3);
  EXPECT_EQ(values_of<std::uint8_t>(file, "fp8"), (std::vector<std::uint8_t>{0x38, 0x40, 0xFE}));
  EXPECT_EQ(file.find("empty")->shape, (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(file.find("empty")->bytes(), 0u);
  EXPECT_EQ(values_of<std::uint16_t>(file, "tail"), (std::vector<std::uint16_t>{0x3C00, 0x4000, 0x4200}));
  EXPECT_FALSE(file.place(*file.find("transposed")).has_value());
  const auto place = file.place(*file.find("tail"));
  ASSERT_TRUE(place.has_value());
  std::uint16_t first = 0;
  ASSERT_EQ(pread(place->fd, &first, 2, static_cast<off_t>(place->offset)), 2);
  EXPECT_EQ(first, 0x3C00);
}

TEST(TorchFile, RefusesWhatIsNotADictOfTensorsByName) {
  const auto message = [](const char* name) {
    return test::one_line_error<Error>([&] { TorchFile file(fixture(name)); });
  };
  EXPECT_THAT(message("torch_module.bin"), HasSubstr("asks for 'torch.nn.modules.linear.Linear', which is not allowed: "
                                                     "a pickle is a program, and this reader runs none of it"));
  EXPECT_THAT(message("torch_old_form.bin"), HasSubstr("was saved in the form before PyTorch 1.6"));
  EXPECT_THAT(message("numpy2_scalars.npz"), HasSubstr("holds no data.pkl"));
  EXPECT_THAT(message("make_torch.py"), HasSubstr("is not a file of torch.save"));
}

std::string floats(int n) {
  std::vector<float> values;
  for (int i = 0; i < n; ++i) values.push_back(static_cast<float>(i));
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST_F(TorchFileTest, DictsWithinDictsAndWhatIsNoTensor) {
  const Tensor w{"0", "FloatStorage", 4, 1, {3}, {1}};
  const std::string state = ordered_dict() + "(" + text("w") + pickled(w) + text("none") + "N" + text("n") +
                            integer(3) + "u" + dict(text("_metadata") + ordered_dict()) + "b";  // BUILD
  for (const char* key : {"state_dict", "model", "model_state_dict", "module"}) {
    const std::string outer = dict(text("epoch") + integer(2) + text(key) + state);
    const TorchFile file(put("x", zip({{"a/data.pkl", pickle(outer)}, {"a/data/0", floats(4)}})));
    ASSERT_EQ(file.tensors().size(), 1u);
    EXPECT_EQ(values_of<float>(file, "w"), (std::vector<float>{1, 2, 3}));
  }
  const auto message = [&](const std::string& value) {
    return test::one_line_error<Error>(
        [&] { TorchFile file(put("x", zip({{"a/data.pkl", pickle(value)}, {"a/data/0", floats(4)}}))); });
  };
  EXPECT_THAT(message(dict(text("generator") + state)),
              HasSubstr("holds no tensors under its keys 'generator', expected a state_dict"));
  EXPECT_THAT(message(pickled(w)), HasSubstr("holds something other than a dict of tensors"));
  EXPECT_THAT(message(dict(integer(3) + pickled(w))), HasSubstr("a key that is not a string"));
  EXPECT_THAT(message(dict(text("w") + pickled(w) + text("w") + pickled(w))), HasSubstr("two tensors have one name"));
  EXPECT_THAT(message(dict(text("w") + "cos\nsystem\n(" + text("true") + "tR")),
              HasSubstr("asks for 'os.system', which is not allowed"));
  EXPECT_THAT(message(dict(text("w") + text("x") + "Q")), HasSubstr("a persistent id that is not"));
  EXPECT_TRUE(TorchFile(put("x", zip({{"a/data.pkl", pickle("}")}}))).tensors().empty());
}

TEST_F(TorchFileTest, RefusesViewsWithTheTensorsName) {
  const auto refused = [&](const Tensor& tensor) {
    const auto name = put("x", file_of(tensor, floats(4)));
    return test::one_line_error<Error>([&] { TorchFile file(name); });
  };
  const auto tensor_of = [](const std::string& list) {
    const Json t = parse_json(list, "tensor");
    return Tensor{t[0], t[1], t[2], t[3], t[4], t[5]};
  };
  EXPECT_GOLDEN(refused(tensor_of(text)));
  const std::vector<std::int64_t> ones(65, 1);
  EXPECT_THAT(refused({"0", "FloatStorage", 4, 0, ones, ones}), HasSubstr("has 65 dimensions, allowed at most 64"));
}

TEST_F(TorchFileTest, RefusesDamagedZips) {
  const Tensor w{"0", "FloatStorage", 4, 0, {4}, {1}};
  const std::string pkl = pickle(dict(text("w") + pickled(w))), data = floats(4);
  const auto message = [&](const std::string& bytes) {
    return test::one_line_error<Error>([&] { TorchFile file(put("x", bytes)); });
  };
  EXPECT_THAT(message(zip({{"a/data.pkl", pkl}, {"a/byteorder", "big"}, {"a/data/0", data}})),
              HasSubstr("was saved big-endian"));
  EXPECT_THAT(message(zip({{"a/data.pkl", pkl}, {"b/data.pkl", pkl}})), HasSubstr("two folders with a data.pkl"));
  EXPECT_THAT(message(zip({{"a/data.pkl", pkl}, {"a/data.pkl", pkl}})),
              HasSubstr("two members are named 'a/data.pkl'"));
  EXPECT_THAT(message(zip({{"a/data.pkl", pkl}, {"a/data/0", data}}, false, 8)),
              HasSubstr("is compressed (method 8), expected stored bytes"));
  EXPECT_THAT(message(zip({{"a/data.pkl", pkl}, {"a/constants.pkl", pkl}})), HasSubstr("is a TorchScript archive"));
  const std::string good = zip({{"a/data.pkl", pkl}, {"a/data/0", data}});
  std::string changed = good;
  changed[good.find("FloatStorage")] = 'f';
  EXPECT_THAT(message(changed), HasSubstr("its checksum (CRC-32) is wrong"));
  for (const std::size_t size : {good.size() - 1, good.size() / 2, std::size_t{30}})
    EXPECT_THAT(message(good.substr(0, size)), HasSubstr("is not a zip file, or is cut short"));
  EXPECT_THAT(message(good.substr(0, 10)), HasSubstr("too short for a zip file"));
  EXPECT_THAT(message(""), HasSubstr("is not a file of torch.save"));
}

TEST_F(TorchFileTest, Zip64AndSharedStorages) {
  const Tensor w{"0", "FloatStorage", 6, 0, {2, 3}, {3, 1}}, part{"0", "FloatStorage", 6, 3, {3}, {1}};
  const std::string pkl = pickle(dict(text("w") + pickled(w) + text("part") + pickled(part)));
  const TorchFile file(put("x", zip({{"a/data.pkl", pkl}, {"a/data/0", floats(6)}}, true)));
  EXPECT_EQ(values_of<float>(file, "w"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values_of<float>(file, "part"), (std::vector<float>{3, 4, 5}));
}

// Larger than what is read at once, in every layout, whole and in random parts.
TEST_F(TorchFileTest, LargeStridedTensors) {
  constexpr int kElements = 6'000'000;  // 24 MB
  std::vector<std::uint32_t> numbers(kElements);
  for (std::uint32_t i = 0; i < kElements; ++i) numbers[i] = i;
  const std::string data(reinterpret_cast<const char*>(numbers.data()), numbers.size() * 4);
  const std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> views[] = {
      {{3000, 2000}, {1, 3000}},
      {{2000, 2500}, {3000, 1}},
      {{2, 1500, 1000}, {1, 4, 6000}},
      {{5, 7, 100'000}, {700'000, 100'000, 1}},
      {{3'000'000}, {2}},
      {{3, 1, 1000, 2}, {1, 1, 6000, 3}},
      {{2000, 1500}, {3000, 2}}};
  std::mt19937 random(5);
  for (const auto& [sizes, strides] : views) {
    const TorchFile file(put("x", file_of({"0", "IntStorage", kElements, 0, sizes, strides}, data)));
    const TensorInfo& info = *file.find("w");
    const auto expected = [&](std::int64_t i) {
      std::int64_t at = 0;
      for (std::size_t d = sizes.size(); d-- > 0; i /= sizes[d]) at += i % sizes[d] * strides[d];
      return static_cast<std::uint32_t>(at);
    };
    std::vector<std::uint32_t> want;
    for (std::int64_t i = 0; i < info.numel(); ++i) want.push_back(expected(i));
    ASSERT_EQ(values_of<std::uint32_t>(file, "w"), want);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t offset = random() % info.bytes(), size = random() % (info.bytes() - offset) % 10'000'000;
      std::string part(size, '\0');
      file.read(info, part.data(), offset, size);
      ASSERT_EQ(std::memcmp(part.data(), reinterpret_cast<const char*>(want.data()) + offset, size), 0)
          << offset << " " << size;
    }
    EXPECT_IO_ERROR(file.read(info, nullptr, info.bytes(), 1), HasSubstr("asked for 1 at"));
  }
}

TEST_F(TorchFileTest, ACheckpointOfEitherKind) {
  const Tensor w{"0", "FloatStorage", 2, 0, {2}, {1}};
  const std::string bin = file_of(w, floats(2));
  put("one/pytorch_model.bin", bin);
  EXPECT_EQ(Checkpoint(path("one")).names(), std::vector<std::string>{"w"});
  put("one/consolidated.00.pth", bin);
  EXPECT_EQ(Checkpoint(path("one/consolidated.00.pth")).info("w").dtype, DType::F32);
  put("one/model.safetensors", safetensors_bytes(R"({"s":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  EXPECT_EQ(Checkpoint(path("one")).names(), std::vector<std::string>{"s"});  // safetensors first

  const std::string pkl = pickle(dict(text("b") + pickled(w) + text("a") + pickled(w)));
  put("many/pytorch_model-00001-of-00002.bin", bin);
  put("many/pytorch_model-00002-of-00002.bin", zip({{"x/data.pkl", pkl}, {"x/data/0", floats(2)}}));
  put("many/pytorch_model.bin.index.json",
      R"({"weight_map":{"a":"pytorch_model-00002-of-00002.bin","w":"pytorch_model-00001-of-00002.bin",)"
      R"("b":"pytorch_model-00002-of-00002.bin"}})");
  const Checkpoint many(path("many"));
  EXPECT_EQ(many.names(), (std::vector<std::string>{"w", "b", "a"}));
  EXPECT_EQ(many.total_bytes(), 24u);
  float values[2] = {9, 9};
  many.read("a", values);
  EXPECT_EQ(values[1], 1);
  EXPECT_TRUE(many.place("a").has_value());
}

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
  const auto refused = [](const std::string& name) {
    const auto file = fixture(name + ".npz");
    const std::string what = test::one_line_error<Error>([&] { read_npz(file); });
    EXPECT_THAT(what, StartsWith(file.string() + ": "));
    return what;
  };
  EXPECT_GOLDEN(refused(text));
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
