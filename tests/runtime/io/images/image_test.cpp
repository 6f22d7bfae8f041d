// SPDX-License-Identifier: Apache-2.0
// PNG and JPEG against Pillow's values (fixtures/make_images.py), and files that are no images, or less than one.
#include "fp8/runtime/io/images/image.h"

#include <zlib.h>

#include <cstring>

#include "fp8/runtime/io/idx/idx.h"
#include "fp8/runtime/io/json/json.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

using namespace std::string_literals;

const std::filesystem::path kImages = std::filesystem::path(FP8_SOURCE_DIR) / "tests/runtime/io/fixtures/images";

std::string image_bytes(const std::string& name) { return bytes_of(kImages / name); }

std::string hex_of(const std::vector<std::uint8_t>& bytes) {
  std::string out;
  for (const std::uint8_t byte : bytes) out += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  return out;
}

TEST(Image, AsPillowReadsThem) {
  const Json expected = parse_json(image_bytes("expected.json"), "expected.json");
  int count = 0;
  for (const auto& [name, of] : expected.items()) {
    if (!of.contains("rgb")) continue;
    ++count;
    const Image image = read_image(kImages / name);
    EXPECT_EQ(image.width, of.at("width").get<std::int64_t>()) << name;
    EXPECT_EQ(image.height, of.at("height").get<std::int64_t>()) << name;
    EXPECT_EQ(hex_of(image.pixels), of.at("rgb").get<std::string>()) << name;
  }
  EXPECT_EQ(count, 11);
}

/// A PNG by its specification: signature, chunks of length, type, data, CRC-32.
std::string big_endian(std::uint32_t value) {
  std::string out;
  for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(value >> shift & 0xff);
  return out;
}
std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const auto crc = ::crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + body + big_endian(static_cast<std::uint32_t>(crc));
}
std::string png(std::uint32_t width, std::uint32_t height, char depth, char color, char interlace,
                const std::string& rows) {
  uLongf size = ::compressBound(static_cast<uLong>(rows.size()));
  std::string packed(size, '\0');
  ::compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()),
             static_cast<uLong>(rows.size()));
  packed.resize(size);
  return "\x89PNG\r\n\x1a\n" +
         chunk("IHDR", big_endian(width) + big_endian(height) + depth + color + std::string(2, '\0') + interlace) +
         chunk("IDAT", packed) + chunk("IEND", "");
}

TEST(Image, SixteenBitsAreCutAndInterlacedRowsSorted) {
  // Each row begins with its filter, 0: none.
  const Image deep = decode_image(
      png(2, 1, 16, 2, 0, std::string("\0\x12\x34\x56\xff\x80\x00\xff\xff\x00\x00\x01\x00", 13)), "deep.png");
  EXPECT_EQ(hex_of(deep.pixels), "125680ff0001");
  // Adam7 of 2 x 2 gray pixels: pass 1 has (0, 0), pass 6 (1, 0), pass 7 the second row.
  const Image mixed = decode_image(png(2, 2, 8, 0, 1, std::string("\0\x01\0\x02\0\x03\x04", 7)), "mixed.png");
  EXPECT_EQ(hex_of(mixed.pixels), "010101020202030303040404");
}

TEST(Image, DamagedFilesAreNamed) {
  EXPECT_IO_ERROR(decode_image("", "a.png"), "a.png: is neither PNG nor JPEG");
  EXPECT_IO_ERROR(decode_image("GIF89a", "a.gif"), "a.gif: is neither PNG nor JPEG");
  std::string bytes = image_bytes("rgb.png");
  bytes[60] ^= 1;
  EXPECT_IO_ERROR(decode_image(bytes, "b.png"), HasSubstr("b.png: a damaged PNG ("));
  bytes = image_bytes("rgb.jpg");
  EXPECT_IO_ERROR(decode_image(bytes.substr(0, bytes.size() / 2), "c.jpg"), HasSubstr("c.jpg: a damaged JPEG ("));
  EXPECT_IO_ERROR(read_image("/nonexistent/d.png"), HasSubstr("/nonexistent/d.png: "));
}

/// Of every image, every beginning: refused, but for what follows the last row of a JPEG.
TEST(Image, CutShortAnywhere) {
  for (const char* name : {"rgb.png", "palette.png", "rgb.jpg", "progressive.jpg", "cmyk.jpg"}) {
    const std::string bytes = image_bytes(name);
    const Image whole = decode_image(bytes, name);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      try {
        EXPECT_EQ(decode_image(bytes.substr(0, size), name).pixels, whole.pixels) << name << " " << size;
        EXPECT_GE(size + 4, bytes.size()) << name;
      } catch (const Error&) {  // as it should be
      }
    }
  }
}

TEST(Image, SizesThatCanNotBe) {
  const std::string row(4, '\0');  // one row of one RGB pixel
  EXPECT_IO_ERROR(decode_image(png(1, 1 << 30, 8, 2, 0, row), "e.png"),
                  HasSubstr("e.png: 1 x 1073741824 pixels, allowed are 67108864 in all"));
  EXPECT_IO_ERROR(decode_image(png(8000, 8000, 8, 2, 0, row), "f.png"),
                  HasSubstr("bytes can't hold 8000 x 8000 pixels"));
  EXPECT_IO_ERROR(decode_image(png(0, 1, 8, 2, 0, row), "g.png"), HasSubstr("g.png: "));
  EXPECT_IO_ERROR(decode_image(image_bytes("rgb.jpg"), "h.jpg", 900),
                  HasSubstr("h.jpg: 40 x 24 pixels, allowed are 900 in all"));
  std::string wide = image_bytes("rgb.jpg");  // frame header: FF C0, length, precision, height, width
  const std::size_t frame = wide.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  wide.replace(frame + 5, 4, "\x1f\x40\x1f\x40");
  EXPECT_IO_ERROR(decode_image(wide, "i.jpg"), HasSubstr("bytes can't hold 8000 x 8000 pixels"));
}

TEST(Image, NamesOfImages) {
  for (const char* name : {"a.png", "b.JPG", "c/d.jpeg"}) EXPECT_TRUE(has_image_name(name)) << name;
  for (const char* name : {"a", "png", "b.gif", "c.png/d"}) EXPECT_FALSE(has_image_name(name)) << name;
}

// Sizes against Pillow's (fixtures/make_images.py); parts and mirror images by hand.

TEST(Resized, HasPillowsBits) {
  const Image image = read_image(kImages / "rgb.png");
  const Json all = parse_json(image_bytes("expected.json"), "expected.json").at("resized rgb.png");
  EXPECT_EQ(all.size(), 7u);
  for (const auto& [size, rgb] : all.items()) {
    const std::size_t x = size.find('x');
    const std::int64_t width = std::stoll(size), height = std::stoll(size.substr(x + 1));
    const Image found = resized(image, width, height);
    EXPECT_EQ(found.width, width);
    EXPECT_EQ(found.height, height);
    EXPECT_EQ(hex_of(found.pixels), rgb.get<std::string>()) << size;
  }
}

/// Pixel (x, y) is [x, y, 7].
Image grid(std::int64_t width, std::int64_t height) {
  Image image{width, height, {}};
  for (std::uint8_t y = 0; y < height; ++y)
    for (std::uint8_t x = 0; x < width; ++x) image.pixels.insert(image.pixels.end(), {x, y, 7});
  return image;
}

TEST(Cropped, TakesTheBoxAndBlackAround) {
  EXPECT_EQ(hex_of(cropped(grid(4, 3), {1, 2, 2, 1}).pixels), "010207020207");
  EXPECT_EQ(hex_of(cropped(grid(2, 2), {-1, 1, 2, 2}).pixels), "000000000107000000000000");
  EXPECT_EQ(hex_of(cropped(grid(2, 2), {5, 0, 1, 1}).pixels), "000000");
}

TEST(Mirrored, ExchangesLeftAndRight) { EXPECT_EQ(hex_of(mirrored(grid(3, 1)).pixels), "020007010007000007"); }

// IDX files as MNIST's page describes them, bytes written down by hand; compressed ones; damaged ones.

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
