// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/atomic/file_set.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "fp8/runtime/io/atomic/temporary.h"

namespace fp8::io {
namespace {

namespace fs = std::filesystem;

/// What stands at a path, under a second name until it is known whether it is replaced for good.
class Replaced {
 public:
  explicit Replaced(const fs::path& path)
      : path_(fs::absolute(path)), kept_(temporary_beside(path_)), listed_(kept_, TemporaryKind::file) {
    there_ = ::link(path_.c_str(), kept_.c_str()) == 0;
    if (there_ || errno == ENOENT) return;
    struct stat status;
    if (::lstat(path_.c_str(), &status) != 0 || S_ISDIR(status.st_mode)) return;  // the rename says what is wrong
    // This file system has no links: for a moment nothing stands at the path.
    if (::rename(path_.c_str(), kept_.c_str()) != 0) fail_errno(path_, "rename", errno);
    there_ = true;
  }
  ~Replaced() {
    if (there_) ::unlink(kept_.c_str());
  }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;

  /// renamed: another file stands there now.
  void put_back(bool renamed) noexcept {
    if (there_) {
      ::rename(kept_.c_str(), path_.c_str());  // two names of one file both stay
    } else if (renamed) {
      ::unlink(path_.c_str());
    }
  }

 private:
  fs::path path_, kept_;
  ListedTemporary listed_;
  bool there_ = false;
};

}  // namespace

FileSet::~FileSet() {
  for (const File& file : files_)
    if (!file.temporary.empty()) ::unlink(file.temporary.c_str());
}

void FileSet::add(fs::path path, std::string_view bytes) {
  File& file = files_.emplace_back();
  file.path = std::move(path);
  file.data = open_temporary(file.path, bytes.size(), file.temporary, file.listed);
  write_at(file.data.get(), file.path, 0, bytes.data(), bytes.size(), bytes.size());
  if (::fsync(file.data.get()) != 0) fail_errno(file.path, "fsync", errno, bytes.size());
}

void FileSet::commit() {
  std::set<fs::path> folders;
  for (const File& file : files_) folders.insert(file.temporary.parent_path());
  std::list<Replaced> replaced;
  std::size_t renamed = 0;
  try {
    for (File& file : files_) {
      replaced.emplace_back(file.path);
      if (::rename(file.temporary.c_str(), file.path.c_str()) != 0) fail_errno(file.path, "rename", errno);
      ++renamed;
      file.temporary.clear();
      file.listed.reset();
    }
    for (const fs::path& folder : folders) sync_folder(folder);
  } catch (...) {
    for (std::size_t at = 0; Replaced & one : replaced) one.put_back(at++ < renamed);
    throw;
  }
  files_.clear();
}

}  // namespace fp8::io
