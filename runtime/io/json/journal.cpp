// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/json/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>

#include "fp8/runtime/io/atomic/placed_file.h"
#include "fp8/runtime/io/base/checksum.h"

namespace fp8::io {
namespace {

constexpr std::string_view kBegin = "{\"xxh64\":\"", kMiddle = "\",\"entry\":", kEnd = "}";
constexpr std::size_t kDigits = 16, kFrame = kBegin.size() + kDigits + kMiddle.size() + kEnd.size();
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;

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
  const std::string text = read_file(path_, kMaxBytes);
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

}  // namespace fp8::io
