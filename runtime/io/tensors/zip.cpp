// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/tensors/zip.h"

#include <zlib.h>

#include <algorithm>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::io {
namespace {

constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22;

// Little-endian fields of a header.
std::uint32_t u16(std::string_view bytes, std::size_t at) {
  ensure(at + 2 <= bytes.size(), "a header that lies within the file");
  return static_cast<std::uint8_t>(bytes[at]) | static_cast<std::uint32_t>(static_cast<std::uint8_t>(bytes[at + 1]))
                                                    << 8;
}
std::uint32_t u32(std::string_view bytes, std::size_t at) { return u16(bytes, at) | u16(bytes, at + 2) << 16; }

struct Member {
  std::uint32_t flags, method, crc, packed, size, offset;
};

class ZipReader {
 public:
  ZipReader(std::string_view zip, const std::string& name) : zip_(zip), name_(name) {}

  std::string read(const std::string& wanted, std::uint64_t limit) const {
    const Member member = find(wanted);
    const auto complain = [&](const std::string& what) { fail("member " + in_quotes(wanted) + ": " + what); };
    if (member.flags & 1) complain("is encrypted");
    if (member.size > limit) complain(message("{} bytes, allowed at most {}", member.size, limit));
    if (member.offset > zip_.size() || zip_.size() - member.offset < kLocalBytes ||
        u32(zip_, member.offset) != 0x04034b50)
      complain("has no header where the directory says");
    const std::uint64_t begin =
        std::uint64_t{member.offset} + kLocalBytes + u16(zip_, member.offset + 26) + u16(zip_, member.offset + 28);
    if (begin > zip_.size() || member.packed > zip_.size() - begin)
      complain("reaches past the end of the file (cut short?)");
    const std::string_view packed = zip_.substr(begin, member.packed);
    std::string data;
    if (member.method == 0) {
      if (member.packed != member.size) complain("is stored, but its two sizes differ");
      data = packed;
    } else if (member.method == 8) {
      // Deflate shrinks at most 1032:1; a directory that promises more is lying about what to allocate.
      if (member.size / 1032 > member.packed) complain(message("can't inflate to {} bytes", member.size));
      if (!inflate_to(packed, member.size, data)) complain("its deflated data is damaged");
    } else {
      complain(message("compression method {}, expected 0 (stored) or 8 (deflated)", member.method));
    }
    if (::crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())) != member.crc)
      complain("its checksum (CRC-32) is wrong");
    return data;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { io::fail<Error>("{}: {}", printable(name_, 4096), what); }

  // Offset of the end record: the last one, at most a comment's length before the end.
  std::size_t end_record() const {
    if (zip_.size() < kEndBytes) fail(message("{} bytes, too short for a zip (npz) file", zip_.size()));
    const std::size_t last = zip_.size() - kEndBytes, first = last > 65535 ? last - 65535 : 0;
    for (std::size_t at = last + 1; at-- > first;)
      if (u32(zip_, at) == 0x06054b50 && at + kEndBytes + u16(zip_, at + 20) == zip_.size()) return at;
    fail("is not a zip (npz) file, or is cut short");
  }

  Member find(const std::string& wanted) const {
    const std::size_t end = end_record();
    const std::uint32_t count = u16(zip_, end + 10);
    std::uint64_t at = u32(zip_, end + 16);
    if (u16(zip_, end + 4) != 0 || u16(zip_, end + 8) != count || count == 0xffff || at == 0xffffffff)
      fail("is a zip64 or a multi-volume file, expected a plain zip");
    std::string others;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (at > end || end - at < kCentralBytes || u32(zip_, at) != 0x02014b50) fail("its directory is damaged");
      const std::uint64_t name_size = u16(zip_, at + 28),
                          next = at + kCentralBytes + name_size + u16(zip_, at + 30) + u16(zip_, at + 32);
      if (next > end) fail("its directory is damaged");
      const std::string_view member = zip_.substr(at + kCentralBytes, name_size);
      if (member == wanted) {
        const Member found{u16(zip_, at + 8),  u16(zip_, at + 10), u32(zip_, at + 16),
                           u32(zip_, at + 20), u32(zip_, at + 24), u32(zip_, at + 42)};
        if (found.packed == 0xffffffff || found.size == 0xffffffff || found.offset == 0xffffffff)
          fail("is a zip64 file, expected a plain zip");
        return found;
      }
      if (others.size() < 120) others += (others.empty() ? "" : ", ") + in_quotes(member);
      at = next;
    }
    fail("has no member " + in_quotes(wanted) + ", it holds " + (others.empty() ? "nothing" : others));
  }

  static bool inflate_to(std::string_view packed, std::uint32_t size, std::string& data) {
    data.resize(std::max<std::size_t>(size, 1));  // zlib wants somewhere to point to
    z_stream stream{};
    if (::inflateInit2(&stream, -MAX_WBITS) != Z_OK) return false;
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream.avail_in = static_cast<uInt>(packed.size());
    stream.next_out = reinterpret_cast<Bytef*>(data.data());
    stream.avail_out = size;
    const int result = ::inflate(&stream, Z_FINISH);
    const bool whole = result == Z_STREAM_END && stream.avail_in == 0 && stream.total_out == size;
    ::inflateEnd(&stream);
    data.resize(size);
    return whole;
  }

  std::string_view zip_;
  const std::string& name_;
};

void append(std::string& out, int bytes, std::uint64_t value) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

}  // namespace

std::string unzip_member(std::string_view zip, const std::string& member, std::uint64_t limit,
                         const std::string& name) {
  return ZipReader(zip, name).read(member, limit);
}

std::string zip_of(const std::string& member, std::string_view data) {
  const std::uint64_t crc = ::crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size()));
  const auto common =
      [&](std::string& out) {  // version needed 2.0, no flags, stored, 00:00, 1980-01-01, sizes, name, no extra
        append(out, 2, 20), append(out, 2, 0), append(out, 2, 0), append(out, 2, 0), append(out, 2, 1 << 5 | 1);
        append(out, 4, crc), append(out, 4, data.size()), append(out, 4, data.size());
        append(out, 2, member.size()), append(out, 2, 0);
      };
  std::string out;
  out.reserve(data.size() + kLocalBytes + kCentralBytes + kEndBytes + 2 * member.size());
  append(out, 4, 0x04034b50);
  common(out);
  out += member;
  out += data;

  const std::size_t directory = out.size();
  append(out, 4, 0x02014b50);
  append(out, 2, 3 << 8 | 20);  // made by: Unix
  common(out);
  append(out, 2, 0), append(out, 2, 0), append(out, 2, 0);          // comment, volume, internal attributes
  append(out, 4, std::uint64_t{0100644} << 16), append(out, 4, 0);  // rw-r--r--; offset of the local header
  out += member;

  const std::size_t directory_bytes = out.size() - directory;
  append(out, 4, 0x06054b50);
  append(out, 2, 0), append(out, 2, 0), append(out, 2, 1), append(out, 2, 1);
  append(out, 4, directory_bytes), append(out, 4, directory), append(out, 2, 0);
  return out;
}

}  // namespace fp8::io
