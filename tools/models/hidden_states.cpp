// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/hidden_states.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fp8/runtime/io/base/checksum.h"

namespace fp8::models {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = std::size_t{1} << 20;

}  // namespace

HiddenStates::HiddenStates(std::int64_t samples, std::int64_t sample_bytes, fs::path folder, bool in_memory)
    : samples_(samples),
      sample_bytes_(sample_bytes),
      folder_(fs::absolute(folder)),
      memory_(in_memory ? new char[total()] : nullptr) {}

HiddenStates::~HiddenStates() {
  drop(current_);
  drop(next_);
}

HiddenStates::File HiddenStates::make_file() {
  File file;
  // Names of a killed run's files may be there: the snapshot's must not be touched.
  do {
    file.path = folder_ / ("hidden-" + std::to_string(made_++));
    file.fd = io::Descriptor(::open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  } while (file.fd.get() < 0 && errno == EEXIST);
  if (file.fd.get() < 0) io::fail_errno(file.path, "create", errno);
  file.listed = std::make_unique<io::ListedTemporary>(file.path, io::TemporaryKind::file);
  while (::fallocate(file.fd.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(total())) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;
    const int code = errno;
    drop(file);
    io::fail_errno(folder_, "reserve space", code, total());
  }
  return file;
}

/// Closes the file and, unless the snapshot needs it, removes it.
void HiddenStates::drop(File& file) {
  if (file.fd.get() < 0) return;
  file.fd.reset();
  if (file.path.filename() != kept_) ::unlink(file.path.c_str());
  file.listed.reset();
}

void HiddenStates::read(std::int64_t first, std::int64_t count, void* data) const {
  const auto offset = static_cast<std::uint64_t>(first * sample_bytes_),
             size = static_cast<std::uint64_t>(count * sample_bytes_);
  if (memory_ != nullptr)
    std::memcpy(data, memory_.get() + offset, size);
  else
    io::read_at(current_.fd.get(), current_.path, offset, data, size);
}

void HiddenStates::write(std::int64_t first, std::int64_t count, const void* data) {
  const auto offset = static_cast<std::uint64_t>(first * sample_bytes_),
             size = static_cast<std::uint64_t>(count * sample_bytes_);
  if (memory_ != nullptr) {
    std::memcpy(memory_.get() + offset, data, size);
    return;
  }
  if (next_.fd.get() < 0) next_ = make_file();
  io::write_at(next_.fd.get(), next_.path, offset, data, size, total());
}

void HiddenStates::advance() {
  if (memory_ != nullptr) return;
  drop(current_);
  current_ = std::exchange(next_, File());
}

std::string HiddenStates::checksum_of(const File& file) const {
  io::Checksum checksum;
  std::vector<char> block(kBlock);
  for (std::uint64_t at = 0; at < total(); at += kBlock) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, total() - at));
    io::read_at(file.fd.get(), file.path, at, block.data(), size);
    checksum.update(block.data(), size);
  }
  return io::checksum_text(checksum.value());
}

io::Json HiddenStates::save() {
  if (memory_ != nullptr) {
    drop(current_);
    current_ = make_file();
    io::write_at(current_.fd.get(), current_.path, 0, memory_.get(), total(), total());
  }
  if (::fsync(current_.fd.get()) != 0) io::fail_errno(current_.path, "fsync", errno, total());
  return {{"file", current_.path.filename().string()},
          {"bytes", total()},
          {"checksum", memory_ != nullptr
                           ? io::checksum_text(io::checksum({memory_.get(), static_cast<std::size_t>(total())}))
                           : checksum_of(current_)}};
}

void HiddenStates::keep_only(const io::Json& saved) {
  const std::string before = std::exchange(kept_, saved.at("file").get<std::string>());
  current_.listed.reset();
  if (!before.empty() && before != kept_) ::unlink((folder_ / before).c_str());
}

void HiddenStates::restore(const io::Json& saved) {
  const auto text = [&](const char* key) {
    const io::Json value = saved.is_object() ? saved.value(key, io::Json()) : io::Json();
    if (!value.is_string()) io::fail(folder_, "snapshot: expected the text '{}' of the hidden states", key);
    return value.get<std::string>();
  };
  const std::string name = text("file"), checksum = text("checksum");
  if (!name.starts_with("hidden-") || name.find('/') != std::string::npos)
    io::fail(folder_, "snapshot: expected a file 'hidden-<n>', found {}", io::in_quotes(name));
  std::uint64_t size = 0;
  File file{folder_ / name, {}, {}};
  file.fd = io::open_regular(file.path, &size);
  if (size != total()) io::fail(file.path, "found {} bytes, the snapshot says {}", size, total());
  if (checksum_of(file) != checksum) io::fail(file.path, "is damaged: its checksum is not the snapshot's");
  kept_ = name;
  if (memory_ != nullptr) {
    io::read_at(file.fd.get(), file.path, 0, memory_.get(), total());
    return;
  }
  current_ = std::move(file);
}

}  // namespace fp8::models
