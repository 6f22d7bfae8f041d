// SPDX-License-Identifier: Apache-2.0
// IDX files as MNIST's page describes them, bytes written down by hand; compressed ones; damaged ones.
#include "fp8/runtime/io/idx/idx.h"

#include <zlib.h>

#include <cstring>

#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using namespace std::string_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kBytes = "\0\0\x08\x02\0\0\0\x02\0\0\0\x03"s + "abcdef";

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  ::deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(bytes.size() + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

using Idx = IoTest;

TEST_F(Idx, PlainAndCompressed) {
  for (const std::string& bytes : {kBytes, gzip(kBytes)}) {
    const IdxArray array = read_idx(put("train-images", bytes));
    EXPECT_EQ(array.type, IdxType::u8);
    EXPECT_THAT(array.shape, ElementsAre(2, 3));
    EXPECT_EQ(array.elements, "abcdef");
    EXPECT_EQ(array.numel(), 6);
    EXPECT_EQ(idx_bytes(array), kBytes);
  }
}

TEST_F(Idx, LargerElementsAreBigEndian) {
  const IdxArray shorts = parse_idx("\0\0\x0b\x01\0\0\0\x02\x01\x02\xff\xfe"s, "shorts");
  std::int16_t values[2];
  ASSERT_EQ(shorts.elements.size(), sizeof values);
  std::memcpy(values, shorts.elements.data(), sizeof values);
  EXPECT_THAT(values, ElementsAre(0x0102, -2));
  const IdxArray number = parse_idx("\0\0\x0e\0\x3f\xf8\0\0\0\0\0\0"s, "number");
  double value = 0;
  ASSERT_EQ(number.elements.size(), sizeof value);
  std::memcpy(&value, number.elements.data(), sizeof value);
  EXPECT_EQ(value, 1.5);
  EXPECT_TRUE(number.shape.empty());
  EXPECT_EQ(idx_bytes(number), "\0\0\x0e\0\x3f\xf8\0\0\0\0\0\0"s);
}

TEST_F(Idx, DamagedFilesAreNamed) {
  const auto said = [](const std::string& bytes) {
    return test::one_line_error<Error>([&] { parse_idx(bytes, "labels"); });
  };
  EXPECT_EQ(said(""), "labels: 0 bytes, too short for an IDX file");
  EXPECT_EQ(said("\0\0\x0a\x01\0\0\0\0"s), "labels: is no IDX file");
  EXPECT_EQ(said("\x89PNG\r\n"s), "labels: is no IDX file");
  EXPECT_EQ(said(kBytes.substr(0, 9)), "labels: ends within its 2 sizes (cut short?)");
  EXPECT_EQ(said(kBytes + "g"), "labels: 7 bytes of elements, its sizes [2, 3] need 6");
  EXPECT_EQ(said(kBytes.substr(0, 17)), "labels: 5 bytes of elements, its sizes [2, 3] need 6 (cut short?)");
  EXPECT_THAT(said("\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"s), HasSubstr("allowed are 4 GiB"));
  EXPECT_EQ(said(gzip(kBytes + "g")), "labels: holds more than its sizes say");
  EXPECT_THAT(said(gzip("\0\0\x08\x01\x40\0\0\0"s)), HasSubstr("can't inflate to the 1073741824 bytes"));
  EXPECT_EQ(said(gzip(kBytes).substr(0, 20)), "labels: its compressed data is cut short");
  EXPECT_EQ(said(gzip(kBytes) + "x"), "labels: bytes follow the end of the compressed data");
  std::string wrong = gzip(kBytes);
  wrong[wrong.size() - 6] ^= 1;  // of the checksum
  EXPECT_EQ(said(wrong), "labels: its compressed data is damaged");
}

}  // namespace
}  // namespace fp8::io
