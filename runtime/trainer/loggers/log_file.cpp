// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/loggers/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::trainer {

LogFile::LogFile(std::filesystem::path path) : path_(std::move(path)) {
  if (io::is_first_process()) reopen();
}

void LogFile::reopen() {
  file_ = io::Descriptor(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (file_.get() < 0) io::fail_errno(path_, "open", errno);
}

void LogFile::append(std::string_view bytes) {
  if (!writes()) return;
  for (std::size_t done = 0; done < bytes.size();) {
    const auto n = write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io::fail_errno(path_, "write", errno, bytes.size());
    done += static_cast<std::size_t>(n);
  }
}

void LogFile::sync() {
  if (writes() && fsync(file_.get()) != 0) io::fail_errno(path_, "sync", errno);
}

std::uint64_t LogFile::size() const {
  struct stat now {};
  if (!writes()) return 0;
  if (fstat(file_.get(), &now) != 0) io::fail_errno(path_, "stat", errno);
  return static_cast<std::uint64_t>(now.st_size);
}

void LogFile::truncate(std::uint64_t size) {
  if (!writes()) return;
  if (const auto found = this->size(); found < size)
    io::fail(path_, "holds " + std::to_string(found) + " bytes, but had " + std::to_string(size) +
                        " when the checkpoint was written");
  if (ftruncate(file_.get(), static_cast<off_t>(size)) != 0) io::fail_errno(path_, "truncate", errno);
}

}  // namespace fp8::trainer
