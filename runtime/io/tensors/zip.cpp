// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/tensors/zip.h"

#include <zlib.h>

#include <algorithm>

#include "fp8/runtime/io/base/byte_reader.h"

namespace fp8::io {
namespace {

constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56;
constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{256} << 20;
constexpr std::uint32_t kLocalMark = 0x04034b50, kCentralMark = 0x02014b50, kEndMark = 0x06054b50,
                        kEnd64Mark = 0x06064b50, kLocatorMark = 0x07064b50;

// Fields of a header.
std::uint32_t u16(std::string_view bytes, std::uint64_t at) { return ByteReader(bytes).little<std::uint16_t>(at); }
std::uint32_t u32(std::string_view bytes, std::uint64_t at) { return ByteReader(bytes).little<std::uint32_t>(at); }
std::uint64_t u64(std::string_view bytes, std::uint64_t at) { return ByteReader(bytes).little<std::uint64_t>(at); }

ZipMember member_of(std::string_view central) {
  const std::string_view name = central.substr(kCentralBytes, u16(central, 28));
  return {std::string(name), u32(central, 42), u32(central, 20), u32(central, 24),
          u16(central, 8),   u16(central, 10), u32(central, 16)};
}

class ZipReader {
 public:
  ZipReader(std::string_view zip, const std::string& name) : zip_(zip), name_(name) {}

  std::string read(const std::string& wanted, std::uint64_t limit) const {
    const ZipMember member = find(wanted);
    const auto complain = [&](const std::string& what) { fail("member " + in_quotes(wanted) + ": " + what); };
    if (member.flags & 1) complain("is encrypted");
    if (member.size > limit) complain(message("{} bytes, allowed at most {}", member.size, limit));
    if (member.header > zip_.size() || zip_.size() - member.header < kLocalBytes ||
        u32(zip_, member.header) != kLocalMark)
      complain("has no header where the directory says");
    const std::uint64_t begin =
        member.header + kLocalBytes + u16(zip_, member.header + 26) + u16(zip_, member.header + 28);
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
      if (u32(zip_, at) == kEndMark && at + kEndBytes + u16(zip_, at + 20) == zip_.size()) return at;
    fail("is not a zip (npz) file, or is cut short");
  }

  ZipMember find(const std::string& wanted) const {
    const std::size_t end = end_record();
    const std::uint32_t count = u16(zip_, end + 10);
    std::uint64_t at = u32(zip_, end + 16);
    if (u16(zip_, end + 4) != 0 || u16(zip_, end + 8) != count || count == 0xffff || at == 0xffffffff)
      fail("is a zip64 or a multi-volume file, expected a plain zip");
    std::string others;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (at > end || end - at < kCentralBytes || u32(zip_, at) != kCentralMark) fail("its directory is damaged");
      const std::uint64_t name_size = u16(zip_, at + 28),
                          next = at + kCentralBytes + name_size + u16(zip_, at + 30) + u16(zip_, at + 32);
      if (next > end) fail("its directory is damaged");
      const std::string_view member = zip_.substr(at + kCentralBytes, name_size);
      if (member == wanted) {
        ZipMember found = member_of(zip_.substr(at, next - at));
        if (found.packed == 0xffffffff || found.size == 0xffffffff || found.header == 0xffffffff)
          fail("is a zip64 file, expected a plain zip");
        return found;
      }
      if (others.size() < 120) others += (others.empty() ? "" : ", ") + in_quotes(member);
      at = next;
    }
    fail("has no member " + in_quotes(wanted) + ", it holds " + (others.empty() ? "nothing" : others));
  }

  static bool inflate_to(std::string_view packed, std::uint64_t size, std::string& data) {
    data.resize(std::max<std::size_t>(size, 1));  // zlib wants somewhere to point to
    z_stream stream{};
    if (::inflateInit2(&stream, -MAX_WBITS) != Z_OK) return false;
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream.avail_in = static_cast<uInt>(packed.size());
    stream.next_out = reinterpret_cast<Bytef*>(data.data());
    stream.avail_out = static_cast<uInt>(size);
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
  append(out, 4, kLocalMark);
  common(out);
  out += member;
  out += data;

  const std::size_t directory = out.size();
  append(out, 4, kCentralMark);
  append(out, 2, 3 << 8 | 20);  // made by: Unix
  common(out);
  append(out, 2, 0), append(out, 2, 0), append(out, 2, 0);          // comment, volume, internal attributes
  append(out, 4, std::uint64_t{0100644} << 16), append(out, 4, 0);  // rw-r--r--; offset of the local header
  out += member;

  const std::size_t directory_bytes = out.size() - directory;
  append(out, 4, kEndMark);
  append(out, 2, 0), append(out, 2, 0), append(out, 2, 1), append(out, 2, 1);
  append(out, 4, directory_bytes), append(out, 4, directory), append(out, 2, 0);
  return out;
}

namespace {

// Sizes and offset that did not fit 32 bits: extra field 1 has those that are 0xffffffff, in this order.
bool widen(ZipMember& member, std::string_view extra) {
  std::uint64_t* const wide[] = {&member.size, &member.packed, &member.header};
  const auto is_open = [](const std::uint64_t* value) { return *value == 0xffffffff; };
  if (std::none_of(std::begin(wide), std::end(wide), is_open)) return true;
  while (extra.size() >= 4) {
    const std::uint32_t id = u16(extra, 0), size = u16(extra, 2);
    if (size > extra.size() - 4) return false;
    std::string_view data = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != 1) continue;
    for (std::uint64_t* value : wide) {
      if (!is_open(value)) continue;
      if (data.size() < 8) return false;
      *value = u64(data, 0);
      data.remove_prefix(8);
    }
    return true;
  }
  return false;
}

}  // namespace

ZipFile::ZipFile(std::filesystem::path path) : path_(std::move(path)) {
  file_ = open_regular(path_, &file_size_);
  read_members(find_directory());
}

ZipFile::Directory ZipFile::find_directory() const {
  if (file_size_ < kEndBytes) fail(path_, "{} bytes, too short for a zip file", file_size_);
  const std::uint64_t tail_size = std::min<std::uint64_t>(file_size_, kEndBytes + 65535 + kLocatorBytes);
  std::string tail(tail_size, '\0');
  read_at(file_.get(), path_, file_size_ - tail_size, tail.data(), tail_size);
  for (std::uint64_t at = tail_size - kEndBytes + 1; at-- > 0;) {
    if (u32(tail, at) != kEndMark || at + kEndBytes + u16(tail, at + 20) != tail_size) continue;
    Directory found{u16(tail, at + 10), u32(tail, at + 12), u32(tail, at + 16)};
    if (u16(tail, at + 4) != 0 && u16(tail, at + 4) != 0xffff) fail(path_, "is a zip of several volumes, expected one");
    const bool wide = found.count == 0xffff || found.size == 0xffffffff || found.at == 0xffffffff;
    if (wide && at >= kLocatorBytes && u32(tail, at - kLocatorBytes) == kLocatorMark) {
      const std::uint64_t end64 = u64(tail, at - kLocatorBytes + 8);
      std::string record(kEnd64Bytes, '\0');
      if (file_size_ < kEnd64Bytes || end64 > file_size_ - kEnd64Bytes) fail(path_, "its zip directory is damaged");
      read_at(file_.get(), path_, end64, record.data(), record.size());
      if (u32(record, 0) != kEnd64Mark) fail(path_, "its zip directory is damaged");
      found = {u64(record, 32), u64(record, 40), u64(record, 48)};
    }
    if (found.size > file_size_ || found.at > file_size_ - found.size) fail(path_, "its zip directory is damaged");
    if (found.size > kMaxDirectoryBytes)
      fail(path_, "a zip directory of {} bytes, allowed at most {}", found.size, kMaxDirectoryBytes);
    return found;
  }
  fail(path_, "is not a zip file, or is cut short");
}

void ZipFile::read_members(const Directory& directory) {
  std::string bytes(directory.size, '\0');
  read_at(file_.get(), path_, directory.at, bytes.data(), bytes.size());
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    if (bytes.size() - at < kCentralBytes || u32(bytes, at) != kCentralMark)
      fail(path_, "its zip directory is damaged");
    const std::uint64_t name_size = u16(bytes, at + 28), extra_size = u16(bytes, at + 30),
                        all = kCentralBytes + name_size + extra_size + u16(bytes, at + 32);
    if (all > bytes.size() - at) fail(path_, "its zip directory is damaged");
    const std::string_view entry = std::string_view(bytes).substr(at, all);
    ZipMember member = member_of(entry);
    if (!widen(member, entry.substr(kCentralBytes + name_size, extra_size)))
      fail(path_, "member {}: lacks its zip64 sizes", in_quotes(member.name));
    members_.push_back(std::move(member));
    at += all;
  }
  if (at != bytes.size()) fail(path_, "its zip directory is damaged");
  std::sort(members_.begin(), members_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(members_.begin(), members_.end(),
                                        [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != members_.end()) fail(path_, "two members are named {}", in_quotes(twice->name));
}

const ZipMember* ZipFile::find(const std::string& name) const {
  const auto found = std::lower_bound(members_.begin(), members_.end(), name,
                                      [](const ZipMember& m, const std::string& n) { return m.name < n; });
  return found == members_.end() || found->name != name ? nullptr : &*found;
}

std::uint64_t ZipFile::stored_at(const ZipMember& member) const {
  const auto complain = [&](const std::string& what) { fail(path_, "member {}: {}", in_quotes(member.name), what); };
  if (member.flags & 1) complain("is encrypted");
  if (member.method != 0) complain(message("is compressed (method {}), expected stored bytes", member.method));
  if (member.packed != member.size) complain("is stored, but its two sizes differ");
  if (file_size_ < kLocalBytes || member.header > file_size_ - kLocalBytes)
    complain("has no header where the directory says");
  std::string local(kLocalBytes, '\0');
  read_at(file_.get(), path_, member.header, local.data(), local.size());
  if (u32(local, 0) != kLocalMark) complain("has no header where the directory says");
  const std::uint64_t begin = member.header + kLocalBytes + u16(local, 26) + u16(local, 28);
  if (begin > file_size_ || member.size > file_size_ - begin) complain("reaches past the end of the file (cut short?)");
  return begin;
}

std::string ZipFile::read(const ZipMember& member, std::uint64_t limit) const {
  const std::uint64_t begin = stored_at(member);
  const auto complain = [&](const std::string& what) { fail(path_, "member {}: {}", in_quotes(member.name), what); };
  if (member.size > limit) complain(message("{} bytes, allowed at most {}", member.size, limit));
  std::string bytes(member.size, '\0');
  read_at(file_.get(), path_, begin, bytes.data(), bytes.size());
  if (::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()) != member.crc)
    complain("its checksum (CRC-32) is wrong");
  return bytes;
}

}  // namespace fp8::io
