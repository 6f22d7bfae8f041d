// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "fp8/runtime/io/base/reach.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::io {
namespace {

namespace fs = std::filesystem;

bool is_below(const fs::path& file, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end();
}

/// Both are canonical. A `blobs` that is itself a link leads elsewhere, so that nothing lies below that name.
bool belongs_to(const fs::path& target, const fs::path& folder) {
  if (is_below(target, folder)) return true;
  const fs::path blobs = blobs_of(folder);
  return !blobs.empty() && is_below(target, blobs);
}

// An option stands in a message as kOption ID kPart VALUE kPart NAME kOption.
constexpr char kOption = '\x1e', kPart = '\x1f';

/// Returns the text of `message` before `end`, which it has, and takes both off it.
std::string_view take_until(std::string_view& message, char end) {
  const auto text = message.substr(0, message.find(end));
  message.remove_prefix(text.size() + 1);
  return text;
}

/// Returns the length of the option that begins at `at`; 0 where the character came with a path or a name and begins
/// none.
std::size_t length_of_option(std::string_view message, std::size_t at) {
  constexpr char kMarks[] = {kOption, kPart, '\0'};
  std::size_t end = at;
  for (const char mark : {kPart, kPart, kOption}) {
    end = message.find_first_of(kMarks, end + 1);
    if (end == message.npos || message[end] != mark) return 0;
  }
  return end + 1 - at;
}

}  // namespace

std::string option(std::string_view id, std::string_view name, std::string_view value) {
  std::string text(1, kOption);
  return text.append(id).append(1, kPart).append(value).append(1, kPart).append(name).append(1, kOption);
}

std::string spelled(std::string_view message, Spelling spelling) {
  std::string text;
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t length = message[at] == kOption ? length_of_option(message, at) : 0;
    if (length == 0) {
      text += message[at++];
      continue;
    }
    std::string_view rest = message.substr(at + 1);
    const auto id = take_until(rest, kPart), value = take_until(rest, kPart), name = take_until(rest, kOption);
    const std::string own = spelling == nullptr ? "" : spelling(id, value);
    text += own.empty() ? std::string(name) : own;
    at += length;
  }
  return text;
}

std::string raw_message(const std::exception& error) {
  const auto* named = dynamic_cast<const NamesOptions*>(&error);
  return named != nullptr ? named->message() : error.what();
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

void Descriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void fail(const std::filesystem::path& path, const std::string& what) { io::fail(path, "{}", what); }

void fail_errno(const std::filesystem::path& path, const std::string& doing, int code, std::uint64_t needed) {
  const std::string amount = needed ? message(" (needed {} bytes)", needed) : "";
  if (code == ENOSPC || code == EDQUOT) fail(path, "no space left on device" + amount);
  if (code == EFBIG) fail(path, "larger than the file size limit" + amount);
  fail(path, "can't " + doing + ": " + std::generic_category().message(code));
}

Descriptor open_regular(const std::filesystem::path& path, std::uint64_t* size) {
  // O_NONBLOCK: opening a pipe must not wait for its writer; regular files don't care.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail_errno(path, "open", errno);
  struct stat status;
  if (::fstat(file.get(), &status) != 0) fail_errno(path, "stat", errno);
  if (S_ISDIR(status.st_mode)) fail(path, "is a folder, expected a file");
  if (!S_ISREG(status.st_mode)) fail(path, "is not a regular file");
  if (size) *size = static_cast<std::uint64_t>(status.st_size);
  return file;
}

void read_at(int fd, const std::filesystem::path& path, std::uint64_t offset, void* destination, std::uint64_t size) {
  auto* out = static_cast<char*>(destination);
  constexpr std::uint64_t kChunk = 1u << 30;  // Linux reads at most 2^31 - 4096 bytes at once
  for (std::uint64_t done = 0; done < size;) {
    const ssize_t got = ::pread(fd, out + done, std::min(size - done, kChunk), static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(path, "read", errno);
    if (got == 0)
      fail(path,
           message("ends at byte {}, expected {} more (cut short while it was read?)", offset + done, size - done));
    done += static_cast<std::uint64_t>(got);
  }
}

void write_at(int fd, const std::filesystem::path& path, std::uint64_t offset, const void* data, std::uint64_t size,
              std::uint64_t needed) {
  const auto* bytes = static_cast<const char*>(data);
  constexpr std::uint64_t kChunk = 1u << 30;  // Linux writes at most 2^31 - 4096 bytes at once
  for (std::uint64_t done = 0; done < size;) {
    const ssize_t put = ::pwrite(fd, bytes + done, std::min(size - done, kChunk), static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno(path, "write", errno, needed);
    done += static_cast<std::uint64_t>(put);
  }
}

void reserve_space(int fd, const std::filesystem::path& path, std::uint64_t size, int mode) {
  struct stat status;
  if (::fstat(fd, &status) != 0) fail_errno(path, "stat", errno);
  while (::fallocate(fd, mode, 0, static_cast<off_t>(size)) != 0) {
    if (errno == EINTR) continue;
    if (errno != EOPNOTSUPP && errno != ENOSYS) fail_errno(path, "reserve space", errno, size);
    struct statvfs disk;
    const auto there = static_cast<std::uint64_t>(status.st_blocks) * 512;
    if (::fstatvfs(fd, &disk) == 0 && size > there && disk.f_bavail < (size - there) / disk.f_frsize)
      fail_errno(path, "reserve space", ENOSPC, size);
    return;
  }
}

bool is_there(const std::filesystem::path& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0;
}

std::string read_file(const std::filesystem::path& path, std::uint64_t limit) {
  std::uint64_t size = 0;
  const Descriptor file = open_regular(path, &size);
  if (size > limit) fail(path, message("{} bytes, allowed at most {}", size, limit));
  std::string text(size, '\0');
  read_at(file.get(), path, 0, text.data(), size);
  return text;
}

int unnamed_file() {
  static int kept = -1;
  if (kept >= 0) return kept;
  std::error_code error;
  std::string name = (fs::temp_directory_path(error) / "fp8-input-XXXXXX").string();
  kept = ::mkostemp(name.data(), O_CLOEXEC);
  if (kept >= 0) ::unlink(name.c_str());
  return kept;
}

fs::path blobs_of(const fs::path& folder) {
  const fs::path snapshots = folder.parent_path(), model = snapshots.parent_path();
  const bool cached = snapshots.filename() == "snapshots" && model.filename().string().starts_with("models--");
  return cached ? model / "blobs" : fs::path();
}

std::optional<fs::path> link_out_of(const fs::path& folder, const fs::path& name) {
  fs::path path = folder;
  std::error_code error;
  for (const fs::path& part : name) {
    path /= part;
    if (!fs::is_symlink(fs::symlink_status(path, error))) continue;
    const fs::path target = fs::canonical(path, error);
    if (error) return std::nullopt;
    const fs::path root = fs::canonical(folder.empty() ? "." : folder, error);  // "" of a name without a folder
    std::error_code ignored;
    if (error || fs::is_directory(target, ignored) || !belongs_to(target, root)) return target;
  }
  return std::nullopt;
}

fs::path source_file(const fs::path& folder, const fs::path& name) {
  if (const auto target = link_out_of(folder, name))
    fail(folder / name,
         "is a link to " + printable(target->string(), 4096) +
             ", allowed: a file of the model's folder itself, or a link to one; copy it there if you trust it");
  return folder / name;
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (at >= limit) return out + "...";
    const auto byte = static_cast<unsigned char>(text[at]);
    const std::size_t length = utf8_length(text, at);
    if (length == 0 || byte < 0x20 || byte == 0x7f) {
      append_hex(out += "\\x", byte, 2);
      at += 1;
    } else {
      const std::uint32_t code = utf8_decode(text, at, length);
      is_drawn(code) ? void(out += text.substr(at, length)) : append_escaped(out, code);
      at += length;
    }
  }
  return out;
}

std::string in_quotes(std::string_view text) { return "'" + printable(text) + "'"; }

void fail_at(std::string_view where, std::string_view what) { io::fail<Error>("{}: {}", where, what); }

namespace detail {

std::string filled(std::string_view sentence, std::initializer_list<Arg> values) {
  std::string out;
  for (const Arg& value : values) {
    const std::size_t place = sentence.find("{}");
    out += sentence.substr(0, place);
    sentence.remove_prefix(place + 2);
    switch (value.kind) {
      case Arg::Kind::text: out += value.text; break;
      case Arg::Kind::integer: out += std::to_string(value.integer); break;
      case Arg::Kind::count: out += std::to_string(value.count); break;
      case Arg::Kind::number: out += std::to_string(value.number); break;
    }
  }
  return out.append(sentence);
}

void fail_in(std::string_view path, std::string_view sentence, std::initializer_list<Arg> values) {
  fail_at(printable(path, 4096), filled(sentence, values));
}

}  // namespace detail

}  // namespace fp8::io
