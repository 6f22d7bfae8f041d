// SPDX-License-Identifier: Apache-2.0
// DType and SafetensorsFile of safetensors.h.
#include <cstring>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "runtime/io/atomic/small_disk.h"
#include "runtime/io/io_test.h"
#include "runtime/io/tensors/safetensors_bytes.h"
#include "support/enum_names.h"
#include "support/golden.h"
#include "support/threads.h"
#include "support/values.h"

namespace fp8::io {
namespace {

using SafetensorsFileTest = IoTest;
using SafetensorsWriterTest = IoTest;
using CheckpointTest = IoTest;

TEST(DType, NamesAndSizesOfTheFormat) {
  fp8::test::check_names<DType>();
  const std::map<std::string, int> expected = {
      {"BOOL", 1},    {"U8", 1},      {"I8", 1},          {"U16", 2},         {"I16", 2}, {"U32", 4}, {"I32", 4},
      {"U64", 8},     {"I64", 8},     {"F16", 2},         {"BF16", 2},        {"F32", 4}, {"F64", 8}, {"F8_E4M3", 1},
      {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"C64", 8}};
  for (const auto& [name, bytes] : expected) {
    EXPECT_STREQ(name_of(dtype_from_name(name)), name.c_str());
    EXPECT_EQ(size_of(dtype_from_name(name)), bytes) << name;
  }
  EXPECT_IO_ERROR(dtype_from_name("F4"), HasSubstr("unknown dtype 'F4', expected one of BOOL, U8,"));
}

TEST_F(SafetensorsFileTest, ReadsTensorsInFileOrder) {
  const auto name = put(
      "x", safetensors_bytes(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[8,10]},"__metadata__":{"format":"pt"},)"
                             R"("empty":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]},)"
                             R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("c":{"dtype":"BF16","shape":[1,2],"data_offsets":[4,8]}}   )",
                             std::string("\0\0\x80\x3f"
                                         "\x01\x02\x03\x04"
                                         "\x05\x06",
                                         10)));
  const SafetensorsFile file(name);
  auto names = collected(file.tensors(), [](const auto& tensor) { return tensor.name; });
  EXPECT_EQ(names, (std::vector<std::string>{"a", "c", "empty", "b"}));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  float one = 0;
  ASSERT_EQ(file.find("a")->numel(), 1);
  file.read(*file.find("a"), &one);
  EXPECT_EQ(one, 1.0f);
  EXPECT_EQ(file.find("c")->shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(file.find("c")->dtype, DType::BF16);
  char byte = 0;
  file.read(*file.find("b"), &byte, 1, 1);
  EXPECT_EQ(byte, 6);
  EXPECT_EQ(file.find("empty")->numel(), 0);
  file.read(*file.find("empty"), nullptr);
  EXPECT_EQ(file.find("d"), nullptr);
  EXPECT_IO_ERROR(file.read(*file.find("b"), &byte, 1, 2),
                  name.string() + ": tensor 'b' has 2 bytes, asked for 2 at 1");
}

std::string one(const std::string& entry, std::size_t data_bytes) {
  return safetensors_bytes("{\"w\":" + entry + "}", std::string(data_bytes, 'x'));
}

TEST_F(SafetensorsFileTest, RefusesNamingFileAndTensor) {
  // The message after the file's name.
  const auto refused = [&](const std::string& bytes) {
    const auto name = put("model.safetensors", bytes);
    const std::string error = test::one_line_error<Error>([&] { SafetensorsFile file(name); });
    EXPECT_THAT(error, StartsWith(name.string()));
    return error.substr(std::min(error.size(), name.string().size()));
  };
  EXPECT_GOLDEN(refused(one(text.substr(text.find(' ') + 1), std::stoul(text))));
  const std::pair<std::string, std::string> others[] = {
      {"", ": 0 bytes, too short"},
      {"1234567", ": 7 bytes, too short"},
      {safetensors_bytes("{}").substr(0, 9), ": header of 2 bytes in a file of 9 (cut short?)"},
      {std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), ": header of 100000001 bytes, allowed at most 100000000"},
      {std::string(8, '\xff') + "{}", ": header of 18446744073709551615 bytes, allowed at most"},
      {safetensors_bytes(""), ": header is not a JSON object"},
      {safetensors_bytes("[]"), ": header is not a JSON object"},
      {safetensors_bytes(" {}"), ": header is not a JSON object"},
      {safetensors_bytes("{\"w\":}"), " (header):1:6: expected a value, found '}'"},
      {safetensors_bytes(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                         "x"),
       " (header):1:54: duplicate key 'w'"},
      {safetensors_bytes(R"({"__metadata__":{},"__metadata__":{}})"), " (header):1:20: duplicate key '__metadata__'"},
      {safetensors_bytes("{\"\xff\":{}}"), " (header):1:3: invalid UTF-8"},
      {safetensors_bytes(std::string("{}\0\0", 4)), " (header):1:3: text after the end"},
      {safetensors_bytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                         R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                         "xxx"),
       ": tensor 'b' starts at byte 1 of the data, expected 2 (it overlaps"},
      {safetensors_bytes(R"({"__metadata__":[]})"), ": __metadata__ is not an object"},
      {safetensors_bytes(R"({"__metadata__":{"a":1}})"), ": __metadata__ key 'a' is not a string"},
      {safetensors_bytes("{\"a\\nb\":1}"), ": tensor 'a\\x0ab': is a number"},
  };
  for (const auto& [bytes, message] : others) EXPECT_THAT(refused(bytes), StartsWith(message));
}

TEST_F(SafetensorsFileTest, TooManyDimensions) {
  std::string shape = "1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  const auto name = put("x", one("{\"dtype\":\"U8\",\"shape\":[" + shape + "],\"data_offsets\":[0,1]}", 1));
  EXPECT_IO_ERROR(SafetensorsFile file(name), HasSubstr("tensor 'w': has 65 dimensions, allowed at most 64"));
}

TEST_F(SafetensorsFileTest, AFileWithoutTensorsIsOne) {
  EXPECT_TRUE(SafetensorsFile(put("x", safetensors_bytes("{}"))).tensors().empty());
}

TEST_F(SafetensorsFileTest, AFileCutShortWhileOpenIsAnErrorNotASignal) {
  const auto name = put("x", one(R"({"dtype":"U8","shape":[8192],"data_offsets":[0,8192]})", 8192));
  const SafetensorsFile file(name);
  fs::resize_file(name, 4096);
  std::string data(8192, '\0');
  EXPECT_IO_ERROR(file.read(*file.find("w"), data.data()), HasSubstr("ends at byte 4096"));
}

TEST_F(SafetensorsFileTest, ManyTensorsTakeNoQuadraticTime) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i)
    header += (i ? "," : "") + ("\"t" + std::to_string(i)) + "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" +
              std::to_string(i) + "," + std::to_string(i + 1) + "]}";
  const SafetensorsFile file(put("x", safetensors_bytes(header + "}", std::string(100'000, 'x'))));
  EXPECT_EQ(file.tensors().size(), 100'000u);
  EXPECT_EQ(file.find("t99999")->begin, 99'999u);
}

TEST_F(SafetensorsFileTest, ReadsFromManyThreads) {
  std::string data;
  for (int i = 0; i < 4096; ++i) data += static_cast<char>(i * 7);
  const SafetensorsFile file(
      put("x", safetensors_bytes(R"({"w":{"dtype":"U8","shape":[4096],"data_offsets":[0,4096]}})", data)));
  test::on_threads(4, [&](int t) {
    for (std::size_t i = static_cast<std::size_t>(t); i + 16 <= 4096; i += 3) {
      char bytes[16];
      file.read(file.tensors()[0], bytes, i, 16);
      ASSERT_EQ(std::string(bytes, 16), data.substr(i, 16));
    }
  });
}

// Files of other tools: what their config.json promises must be found.
TEST(SafetensorsOfOtherTools, AreRead) {
  const char* root = std::getenv("FP8_TEST_DATA");
  if (!root) GTEST_SKIP() << "FP8_TEST_DATA names no data folder";
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    const SafetensorsFile file(entry.path());
    ASSERT_FALSE(file.tensors().empty()) << entry.path();
    for (const auto& tensor : file.tensors()) {
      std::string data(tensor.bytes(), '\0');
      file.read(tensor, data.data());
      if (tensor.dtype != DType::F32) continue;
      for (std::int64_t i = 0; i < tensor.numel(); ++i) {
        float value;
        std::memcpy(&value, data.data() + 4 * i, 4);
        ASSERT_TRUE(std::isfinite(value)) << entry.path() << tensor.name;
      }
    }
    if (!fs::exists(entry.path().parent_path() / "config.json") || entry.path().filename() != "model.safetensors")
      continue;
    const Json config = read_json(entry.path().parent_path() / "config.json");
    if (const auto* embedding = file.find("model.embed_tokens.weight")) {
      EXPECT_EQ(embedding->shape, (std::vector<std::int64_t>{config["vocab_size"], config["hidden_size"]}))
          << entry.path();
    }
    if (!config.contains("quantization_config")) continue;
    const auto* weight = file.find("model.layers.0.mlp.down_proj.weight");
    ASSERT_NE(weight, nullptr) << entry.path();
    EXPECT_EQ(weight->dtype, DType::F8_E4M3);
    EXPECT_EQ(weight->shape, (std::vector<std::int64_t>{config["hidden_size"], config["intermediate_size"]}));
  }
  EXPECT_GE(files, 8u);
}

// SafetensorsWriter of safetensors.h.

TEST_F(SafetensorsWriterTest, TheBytesAreThoseOfTheFormat) {
  SafetensorsWriter writer(
      path("x"), {{"b", DType::U8, {3}}, {"s", DType::F32, {}}, {"a", DType::BF16, {1, 2}}, {"e", DType::I64, {0}}});
  writer.write("a", "wxyz");
  writer.write("b", "123");
  const float one = 1;
  writer.write("s", &one);
  writer.commit();
  std::string header =
      R"({"__metadata__":{"format":"pt"},"e":{"dtype":"I64","shape":[0],"data_offsets":[0,0]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[4,8]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  while (header.size() % 8) header += ' ';
  const std::string bytes = bytes_of(path("x"));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length, header.size());
  EXPECT_EQ(bytes.substr(8), header + std::string("\0\0\x80\x3fwxyz123", 11));
}

TEST_F(SafetensorsWriterTest, WhatIsWrittenIsRead) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (int i = 0; i < 19; ++i) entries.push_back({"t" + std::to_string(i), static_cast<DType>(i), {i, 5}});
  entries.push_back(
      {"gr\xc3\xb6\xc3\x9f"
       "e \"quoted\" \\ \n",
       DType::U8,
       {2}});
  SafetensorsWriter writer(path("x"), entries, {{"key", "value \"1\""}});
  std::map<std::string, std::string> data;
  for (const auto& entry : entries) {
    const auto bytes =
        static_cast<std::size_t>(entry.shape[0] * (entry.shape.size() > 1 ? 5 : 1) * size_of(entry.dtype));
    for (std::size_t i = 0; i < bytes; ++i) data[entry.name] += static_cast<char>(i * 31 + entry.name.size());
    writer.write(entry.name, data[entry.name].data());
  }
  writer.commit();
  const SafetensorsFile file(path("x"));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"key", "value \"1\""}}));
  ASSERT_EQ(file.tensors().size(), entries.size());
  for (const auto& entry : entries) {
    const TensorInfo* tensor = file.find(entry.name);
    ASSERT_NE(tensor, nullptr) << entry.name;
    EXPECT_EQ(tensor->dtype, entry.dtype);
    EXPECT_EQ(tensor->shape, entry.shape);
    EXPECT_EQ(tensor->begin % static_cast<std::uint64_t>(size_of(tensor->dtype)), 0u) << "aligned";
    std::string read(tensor->bytes(), '\0');
    file.read(*tensor, read.data());
    EXPECT_EQ(read, data[entry.name]);
  }
}

TEST_F(SafetensorsWriterTest, PiecesInAnyOrderFromAnyThread) {
  std::string data;
  for (int i = 0; i < 10'000; ++i) data += static_cast<char>(i * 13);
  SafetensorsWriter writer(path("x"), {{"w", DType::U8, {10'000}}});
  test::on_threads(4, [&](int t) {
    for (std::uint64_t at = 9900 + 100 * static_cast<std::uint64_t>(t) - 300;; at -= 400) {
      writer.write("w", data.data() + at, at, 100);
      if (at < 400) return;
    }
  });
  writer.commit();
  std::string read(10'000, '\0');
  const SafetensorsFile file(path("x"));
  file.read(*file.find("w"), read.data());
  EXPECT_EQ(read, data);
}

TEST_F(SafetensorsWriterTest, CommitWantsEveryByteOnce) {
  SafetensorsWriter writer(path("x"), {{"w", DType::U8, {10}}, {"empty", DType::F32, {0}}});
  writer.write("w", "0123", 0, 4);
  writer.write("w", "2345", 2, 4);  // overlaps: six bytes are there, not eight
  EXPECT_IO_ERROR(writer.commit(), path("x").string() + ": tensor 'w': 6 of 10 bytes written");
  writer.write("w", "89", 8, 2);
  EXPECT_IO_ERROR(writer.commit(), path("x").string() + ": tensor 'w': 8 of 10 bytes written");
  EXPECT_FALSE(std::filesystem::exists(path("x")));
  writer.write("w", "67", 6, 2);
  writer.commit();
  EXPECT_THAT(bytes_of(path("x")), testing::EndsWith("0123456789"));
}

TEST_F(SafetensorsWriterTest, RefusesWhatItCannotWrite) {
  const std::string name = path("x").string();
  const auto refusal = [&](std::vector<SafetensorsWriter::Entry> entries) {
    return test::one_line_error<Error>([&] { SafetensorsWriter writer(name, entries); });
  };
  EXPECT_EQ(refusal({{"w", DType::U8, {1}}, {"w", DType::F32, {1}}}), name + ": two tensors are named 'w'");
  EXPECT_EQ(refusal({{"w", DType::U8, {-1}}}), name + ": tensor 'w': negative size -1");
  EXPECT_EQ(refusal({{"w", DType::F32, {1LL << 62}}}), name + ": tensor 'w': shape overflows 64 bits");
  EXPECT_EQ(refusal({{"a", DType::U8, {1LL << 62}}, {"b", DType::U8, {1LL << 62}}}),
            name + ": the tensors together overflow 64 bits");
  EXPECT_EQ(refusal({{"__metadata__", DType::U8, {1}}}), name + ": a tensor can't be named '__metadata__'");
  EXPECT_EQ(refusal({{"\xff", DType::U8, {1}}}), name + ": name or metadata '\\xff' is not UTF-8");
  EXPECT_EQ(refusal({{std::string(100'000'000, 'n'), DType::U8, {1}}}).substr(0, name.size() + 11),
            name + ": header of");
  SafetensorsWriter writer(name, {{"w", DType::U8, {2}}});
  EXPECT_IO_ERROR(writer.write("v", "x"), name + ": has no tensor 'v' to write");
  EXPECT_IO_ERROR(writer.write("w", "xx", 1, 2), name + ": tensor 'w' has 2 bytes, can't write 2 at 1");
}

TEST_F(SafetensorsWriterTest, AFullDiskShowsBeforeTheFirstTensor) {
  const auto message = on_small_disk(folder_, [&] {
    return test::one_line_error<Error>([&] { SafetensorsWriter writer(path("x"), {{"w", DType::F32, {1 << 20}}}); });
  });
  if (!message) GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_THAT(*message, HasSubstr(path("x").string() + ": no space left on device (needed 41944"));
}

// Checkpoint of safetensors.h.

const std::string kIndex = "model.safetensors.index.json";

// One tensor of two bytes.
std::string shard(const std::string& tensor, const std::string& data) {
  return safetensors_bytes("{\"" + tensor + "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", data);
}

TEST_F(CheckpointTest, OneFile) {
  put("model.safetensors", shard("a", "12"));
  put("consolidated.safetensors", "not a safetensors file, and none that is read");
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.folder(), folder_);
  EXPECT_EQ(checkpoint.names(), std::vector<std::string>{"a"});
  EXPECT_TRUE(checkpoint.contains("a"));
  EXPECT_FALSE(checkpoint.contains("b"));
  std::string data(2, '\0');
  checkpoint.read("a", data.data());
  EXPECT_EQ(data, "12");
  checkpoint.read("a", data.data(), 1, 1);
  EXPECT_EQ(data, "22");
  EXPECT_EQ(checkpoint.total_bytes(), 2u);
  EXPECT_IO_ERROR(checkpoint.info("b"), folder_.string() + ": has no tensor 'b'");
}

TEST_F(CheckpointTest, AFileInsteadOfAFolder) {
  const Checkpoint checkpoint(put("sub/any.safetensors", shard("a", "12")));
  EXPECT_EQ(checkpoint.folder(), path("sub"));
  EXPECT_EQ(checkpoint.names(), std::vector<std::string>{"a"});
}

TEST_F(CheckpointTest, ShardsOfTheIndexWithAllTheirTensors) {
  put("m-2.safetensors", shard("b", "34"));
  put("m-1.safetensors", safetensors_bytes(R"({"extra":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                                           "x12"));
  put("mtp.safetensors", shard("mtp.fc.weight", "56"));
  put("rows.safetensors", shard("input_ids", "56"));
  put(kIndex, R"({"metadata":{"total_size":5},"weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors"}})");
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"extra", "a", "b"}));
  EXPECT_EQ(checkpoint.total_bytes(), 5u);
  EXPECT_EQ(checkpoint.notices(),
            (std::vector<std::string>{
                "1 tensor of the shards that model.safetensors.index.json does not name, read as other readers do, "
                "the first is extra",
                "mtp.safetensors is not read, nor carried to an output"}));
  std::string data(2, '\0');
  checkpoint.read("a", data.data());
  EXPECT_EQ(data, "12");
  checkpoint.read("b", data.data());
  EXPECT_EQ(data, "34");
}

TEST_F(CheckpointTest, ATensorInTwoShardsComesFromTheOneInTheIndex) {
  put("m-1.safetensors", shard("a", "11"));
  put("m-2.safetensors", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                           "22"));
  put(kIndex, R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  const Checkpoint checkpoint(folder_);
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(checkpoint.info("a").bytes(), 2u);
  EXPECT_THAT(checkpoint.notices().at(0), HasSubstr("1 tensor of the shards that another shard has too"));
  put("m-1.safetensors", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                           "12"));
  put("m-2.safetensors", safetensors_bytes(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                           R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                           "34"));
  EXPECT_IO_ERROR(Checkpoint c(folder_), HasSubstr("tensor 'c' stands in two shards"));
}

TEST_F(CheckpointTest, OneFileBesideAnIndex) {
  put("model.safetensors", shard("a", "12"));
  put(kIndex, R"({"weight_map":{"b":"m-1.safetensors"}})");
  const Checkpoint gone(folder_);
  EXPECT_EQ(gone.names(), std::vector<std::string>{"a"});
  EXPECT_THAT(gone.notices().at(0), HasSubstr("names shards that are not there; model.safetensors is read"));
  put("m-1.safetensors", shard("b", "34"));
  EXPECT_IO_ERROR(Checkpoint c(folder_),
                  HasSubstr("model.safetensors: lies beside the shards of model.safetensors.index.json"));
  put(kIndex, R"({"weight_map":{"a":"model.safetensors","b":"m-1.safetensors"}})");
  EXPECT_EQ(Checkpoint(folder_).names(), (std::vector<std::string>{"b", "a"}));
}

TEST_F(CheckpointTest, NamesWhatIsMissing) {
  EXPECT_IO_ERROR(Checkpoint c(path("none")), path("none").string() + ": no such folder");
  EXPECT_IO_ERROR(
      Checkpoint c(folder_),
      folder_.string() + ": holds neither model.safetensors nor model.safetensors.index.json (nor pytorch_model.bin)");
  put(kIndex, R"({"weight_map":{"a":"m-1.safetensors"}})");
  EXPECT_IO_ERROR(Checkpoint c(folder_),
                  path(kIndex).string() + ": names the shard 'm-1.safetensors', which is missing");
  put("m-1.safetensors", shard("b", "12"));
  EXPECT_IO_ERROR(Checkpoint c(folder_), path(kIndex).string() + ": tensor 'a' is not in its shard 'm-1.safetensors'");
}

TEST_F(CheckpointTest, AnIndexLeadsNowhereElse) {
  put("outside.safetensors", shard("a", "12"));
  for (const char* name : {"\"../outside.safetensors\"", "\"/etc/passwd\"", "\"sub/x\"", "\"..\"", "\"\"", "\"a\\\\b\"",
                           "\"a\\u0000b\"", "3"}) {
    put("model/" + kIndex, std::string("{\"weight_map\":{\"a\":") + name + "}}");
    EXPECT_IO_ERROR(Checkpoint c(path("model")), HasSubstr(": weight_map of 'a' is ")) << name;
  }
}

TEST_F(CheckpointTest, AnIndexWithoutItsMap) {
  for (const char* text : {"{}", "[]", "3", R"({"weight_map":[]})"}) {
    put(kIndex, text);
    EXPECT_IO_ERROR(Checkpoint c(folder_),
                    path(kIndex).string() + ": has no object 'weight_map' (tensor name: file name)");
  }
  put(kIndex, R"({"weight_map":{"a":"x","a":"y"}})");
  EXPECT_IO_ERROR(Checkpoint c(folder_), HasSubstr(kIndex + ":1:24: duplicate key 'a'"));
}

}  // namespace
}  // namespace fp8::io
