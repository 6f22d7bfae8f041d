// SPDX-License-Identifier: Apache-2.0
// SafetensorsWriter of safetensors.h.
#include <cstring>
#include <thread>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "runtime/io/atomic/small_disk.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using SafetensorsWriterTest = IoTest;
using testing::HasSubstr;

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
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t at = 9900 + 100 * static_cast<std::uint64_t>(t) - 300;; at -= 400) {
        writer.write("w", data.data() + at, at, 100);
        if (at < 400) return;
      }
    });
  for (auto& thread : threads) thread.join();
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

}  // namespace
}  // namespace fp8::io
