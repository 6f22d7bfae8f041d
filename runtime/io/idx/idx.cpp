// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/idx/idx.h"

#include <zlib.h>

#include <bit>
#include <limits>

#include "fp8/runtime/io/base/byte_reader.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::io {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 32;
constexpr std::size_t kMagicBytes = 4, kLargestHeader = kMagicBytes + 4 * 255;
// Deflate shrinks at most 1032:1: sizes that promise more are lying about what to allocate.
constexpr std::uint64_t kMostDeflated = 1032;

/// To or from big-endian.
void swap_elements(std::string& elements, std::size_t size) {
  if (size == 1 || std::endian::native == std::endian::big) return;
  for (std::size_t at = 0; at + size <= elements.size(); at += size)
    std::reverse(elements.begin() + static_cast<std::ptrdiff_t>(at),
                 elements.begin() + static_cast<std::ptrdiff_t>(at + size));
}

bool is_type(std::uint8_t byte) { return byte == 0x08 || byte == 0x09 || (byte >= 0x0b && byte <= 0x0e); }

struct Header {
  IdxType type = IdxType::u8;
  std::vector<std::int64_t> shape;
  std::size_t bytes = 0;       ///< of itself
  std::uint64_t elements = 0;  ///< their bytes
};

Header header_of(std::string_view bytes, const std::string& where) {
  if (bytes.size() < kMagicBytes) fail_at(where, "{} bytes, too short for an IDX file", bytes.size());
  const auto type = static_cast<std::uint8_t>(bytes[2]), dimensions = static_cast<std::uint8_t>(bytes[3]);
  if (bytes[0] != 0 || bytes[1] != 0 || !is_type(type)) fail_at(where, "is no IDX file");
  Header header{static_cast<IdxType>(type), {}, kMagicBytes + 4 * std::size_t{dimensions}, 0};
  if (bytes.size() < header.bytes) fail_at(where, "ends within its {} sizes (cut short?)", dimensions);
  header.elements = size_of(header.type);
  for (std::size_t i = 0; i < dimensions; ++i) {
    const std::uint64_t size = ByteReader(bytes).big<std::uint32_t>(kMagicBytes + 4 * i);
    header.shape.push_back(static_cast<std::int64_t>(size));
    header.elements *= size;  // at most 2^32 before, so at most 2^64 - 2^32
    if (header.elements > kMostBytes) fail_at(where, "sizes {} and more, allowed are 4 GiB", shape_text(header.shape));
  }
  return header;
}

/// The content of a gzip stream, piece by piece.
class Gunzip {
 public:
  Gunzip(std::string_view bytes, const std::string& where) : where_(where), left_(bytes) {
    // 16: gzip's header and checksum.
    ensure(::inflateInit2(&stream_, MAX_WBITS + 16) == Z_OK, "zlib to begin");
  }
  ~Gunzip() { ::inflateEnd(&stream_); }
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

  /// The next bytes: `size` of them, or fewer at the end.
  std::string read(std::uint64_t size) {
    std::string out(size, '\0');
    std::uint64_t done = 0;
    while (done < size && !ended_) {
      feed();
      const auto room = static_cast<uInt>(std::min<std::uint64_t>(size - done, std::numeric_limits<uInt>::max()));
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      stream_.avail_out = room;
      step();
      done += room - stream_.avail_out;
    }
    out.resize(done);
    return out;
  }

  /// Past the last byte: whether the checksum is right and nothing follows.
  void finish() {
    while (!ended_) {
      feed();
      Bytef more = 0;
      stream_.next_out = &more;
      stream_.avail_out = 1;
      step();
      if (stream_.avail_out == 0) fail_at(where_, "holds more than its sizes say");
    }
    if (!left_.empty() || stream_.avail_in > 0) fail_at(where_, "bytes follow the end of the compressed data");
  }

 private:
  void feed() {
    if (stream_.avail_in > 0 || left_.empty()) return;
    const auto count = std::min<std::size_t>(left_.size(), std::numeric_limits<uInt>::max());
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(left_.data()));  // zlib does not write to it
    stream_.avail_in = static_cast<uInt>(count);
    left_.remove_prefix(count);
  }

  void step() {
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    ended_ = code == Z_STREAM_END;
    if (code == Z_BUF_ERROR) fail_at(where_, "its compressed data is cut short");
    if (code != Z_OK && !ended_) fail_at(where_, "its compressed data is damaged");
  }

  const std::string& where_;
  std::string_view left_;
  z_stream stream_{};
  bool ended_ = false;
};

void check_size(std::uint64_t found, const Header& header, const std::string& where) {
  if (found == header.elements) return;
  fail_at(where, "{} bytes of elements, its sizes {} need {}{}", found, shape_text(header.shape), header.elements,
          found < header.elements ? " (cut short?)" : "");
}

IdxArray from_gzip(std::string_view bytes, const std::string& where) {
  // Twice from the start: the sizes say how much there is to come.
  const Header header = header_of(Gunzip(bytes, where).read(kLargestHeader), where);
  if (header.elements / kMostDeflated > bytes.size())
    fail_at(where, "can't inflate to the {} bytes of its sizes {}", header.elements, shape_text(header.shape));
  Gunzip stream(bytes, where);
  stream.read(header.bytes);
  IdxArray array{header.type, header.shape, stream.read(header.elements)};
  check_size(array.elements.size(), header, where);
  stream.finish();
  return array;
}

}  // namespace

std::size_t size_of(IdxType type) {
  switch (type) {
    case IdxType::u8:
    case IdxType::i8: return 1;
    case IdxType::i16: return 2;
    case IdxType::i32:
    case IdxType::f32: return 4;
    case IdxType::f64: return 8;
  }
  ensure(false, "one of IDX's types");
  return 0;
}

std::int64_t IdxArray::numel() const { return static_cast<std::int64_t>(elements.size() / size_of(type)); }

IdxArray parse_idx(std::string_view bytes, const std::string& name) {
  const std::string where = printable(name, 4096);
  IdxArray array;
  if (bytes.starts_with("\x1f\x8b")) {
    array = from_gzip(bytes, where);
  } else {
    const Header header = header_of(bytes, where);
    check_size(bytes.size() - header.bytes, header, where);
    array = {header.type, header.shape, std::string(bytes.substr(header.bytes))};
  }
  swap_elements(array.elements, size_of(array.type));
  return array;
}

IdxArray read_idx(const std::filesystem::path& path) {
  return parse_idx(read_file(path, kMostBytes + kLargestHeader), path.string());
}

std::string idx_bytes(const IdxArray& array) {
  ensure(array.shape.size() <= 255, "an IDX array of at most 255 dimensions");
  std::string out{0, 0, static_cast<char>(array.type), static_cast<char>(array.shape.size())};
  std::int64_t count = 1;
  for (const std::int64_t size : array.shape) {
    ensure(size >= 0 && size <= std::numeric_limits<std::uint32_t>::max(), "sizes of 32 bits");
    for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(size >> shift & 0xff);
    count *= size;
  }
  ensure(count == array.numel() && array.elements.size() % size_of(array.type) == 0,
         "as many elements as the sizes say");
  std::string elements = array.elements;
  swap_elements(elements, size_of(array.type));
  return out + elements;
}

}  // namespace fp8::io
