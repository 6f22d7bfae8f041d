// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/json/resumable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "fp8/runtime/io/base/checksum.h"

namespace fp8::io {
namespace {

constexpr std::string_view kBegin = "{\"xxh64\":\"", kMiddle = "\",\"entry\":", kEnd = "}";
constexpr std::size_t kDigits = 16, kFrame = kBegin.size() + kDigits + kMiddle.size() + kEnd.size();
constexpr std::uint64_t kMaxJournalBytes = std::uint64_t{1} << 30;

/// The entry's text; empty for a damaged line.
std::string_view entry_of(std::string_view line) {
  if (line.size() <= kFrame || line.substr(0, kBegin.size()) != kBegin) return {};
  if (line.substr(kBegin.size() + kDigits, kMiddle.size()) != kMiddle || line.back() != '}') return {};
  const std::string_view text = line.substr(kFrame - kEnd.size(), line.size() - kFrame);
  return line.substr(kBegin.size(), kDigits) == checksum_text(checksum(text)) ? text : std::string_view();
}

}  // namespace

Journal::Journal(std::filesystem::path path) : path_(std::move(path)) {
  file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (file_.get() < 0) fail_errno(path_, "open", errno);
  struct stat status;
  if (::fstat(file_.get(), &status) != 0) fail_errno(path_, "stat", errno);
  if (!S_ISREG(status.st_mode)) fail(path_, "is not a regular file");
  const std::string text = read_file(path_, kMaxJournalBytes);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const std::string_view found = entry_of(std::string_view(text).substr(at, end - at));
    if (found.empty()) {
      ++damaged_;
    } else {
      entries_.push_back(parse_json(found, path_.string()));
    }
    end_ = at = end + 1;
  }
  if (::ftruncate(file_.get(), static_cast<off_t>(end_)) != 0) fail_errno(path_, "truncate", errno);
}

void Journal::clear() {
  const std::lock_guard lock(mutex_);
  if (::ftruncate(file_.get(), 0) != 0) fail_errno(path_, "truncate", errno);
  end_ = 0;
  damaged_ = 0;
  entries_.clear();
}

void Journal::append(const Json& entry) {
  const std::string text = entry.dump();
  const std::string line = std::string(kBegin) + checksum_text(checksum(text)) + std::string(kMiddle) + text + "}\n";
  const std::lock_guard lock(mutex_);
  write_at(file_.get(), path_, end_, line.data(), line.size());
  end_ += line.size();
}

namespace {

// Written bytes go to the disk while the rest is made: the sync at the end finds little left to do. Where that
// can't be asked for (other systems than Linux's disks) it does all.
void begin_writeback(int fd, std::uint64_t offset, std::uint64_t size) {
  constexpr std::uint64_t kLeast = std::uint64_t{64} << 10;
  if (size >= kLeast)
    ::sync_file_range(fd, static_cast<off64_t>(offset), static_cast<off64_t>(size), SYNC_FILE_RANGE_WRITE);
}

}  // namespace

PlacedFile::PlacedFile(std::filesystem::path path, std::uint64_t size, std::filesystem::path label)
    : shown_(std::move(label)), size_(size) {
  if (size > static_cast<std::uint64_t>(INT64_MAX)) fail_errno(shown_, "reserve space", EFBIG, size);
  file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (file_.get() < 0) fail_errno(shown_, "create", errno, size);
  struct stat status;
  if (::fstat(file_.get(), &status) != 0) fail_errno(shown_, "stat", errno);
  if (!S_ISREG(status.st_mode)) fail(shown_, "is not a regular file");
  // Blocks for all of the file and its final size, so that writing them is cheap and a full disk is found now.
  if (size > 0) reserve_space(file_.get(), shown_, size, /*mode=*/0);
  if (::ftruncate(file_.get(), static_cast<off_t>(size)) != 0) fail_errno(shown_, "reserve space", errno, size);
}

void PlacedFile::write(std::uint64_t offset, const void* data, std::uint64_t size) {
  write_at(file_.get(), shown_, offset, data, size, size_);
  begin_writeback(file_.get(), offset, size);
}

void PlacedFile::read(std::uint64_t offset, void* data, std::uint64_t size) const {
  read_at(file_.get(), shown_, offset, data, size);
}

bool PlacedFile::copy(int from, std::uint64_t from_offset, std::uint64_t offset, std::uint64_t size) {
  auto in = static_cast<off64_t>(from_offset);
  auto out = static_cast<off64_t>(offset);
  while (size > 0) {
    const ssize_t got = ::copy_file_range(from, &in, file_.get(), &out, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) fail_errno(shown_, "write", errno, size_);
    if (got <= 0) return false;  // another file system, an old kernel, an input that ended: the caller reads and writes
    begin_writeback(file_.get(), static_cast<std::uint64_t>(out - got), static_cast<std::uint64_t>(got));
    size -= static_cast<std::uint64_t>(got);
  }
  return true;
}

}  // namespace fp8::io
