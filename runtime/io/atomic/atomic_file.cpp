// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/atomic/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>

#include "fp8/runtime/io/atomic/temporary.h"

namespace fp8::io {
namespace {

namespace fs = std::filesystem;

// A leftover has no owner if its process is gone and it is not locked; both, since another machine or container may
// write here (pid says nothing) and a file just made is not locked yet (lock says nothing).
void remove_dead_siblings(const fs::path& folder, const std::string& prefix) {
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    if (ignored) return;
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    long pid = 0;
    const auto [stop, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), pid);
    if (error != std::errc() || stop == name.data() + name.size() || *stop != '-' || pid <= 0) continue;
    if (::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH) continue;
    constexpr int kFlags = O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
    const int writable = ::open(entry->path().c_str(), O_WRONLY | kFlags);  // all that a sandbox may allow
    const Descriptor file(writable >= 0 ? writable : ::open(entry->path().c_str(), O_RDONLY | kFlags));
    if (file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(entry->path().c_str());
  }
}

std::string temporary_prefix(const fs::path& path) { return "." + path.filename().string() + ".partial-"; }

}  // namespace

void sync_folder(const fs::path& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) fail_errno(folder, "open", errno);
  // Some file systems can't sync a folder (EINVAL); the rename is as safe there as it can be.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) fail_errno(folder, "fsync", errno);
}

fs::path temporary_beside(const fs::path& path) {
  static std::atomic<unsigned> counter{0};
  return path.parent_path() / (temporary_prefix(path) + std::to_string(::getpid()) + "-" + std::to_string(counter++));
}

Descriptor open_temporary(fs::path& path, std::uint64_t reserve, fs::path& temporary,
                          std::optional<ListedTemporary>& listed) {
  if (!path.has_filename()) fail(path, "names no file, expected a path that ends in a file's name");
  if (reserve > static_cast<std::uint64_t>(INT64_MAX)) fail_errno(path, "reserve space", EFBIG, reserve);
  struct stat status;
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    fail(path, S_ISDIR(status.st_mode) ? "is a folder, expected a file" : "is not a regular file");
  std::error_code error;
  if (fs::is_symlink(path, error))
    if (const fs::path target = fs::canonical(path, error); !error) path = target;
  const fs::path absolute = fs::absolute(path, error);
  remove_dead_siblings(absolute.parent_path(), temporary_prefix(path));

  fs::path made = temporary_beside(absolute);
  listed.emplace(made, TemporaryKind::file);
  Descriptor file(::open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    const int code = errno;
    listed.reset();
    fail_errno(path, "create", code, reserve);
  }
  ::flock(file.get(), LOCK_EX | LOCK_NB);
  try {
    if (reserve > 0) reserve_space(file.get(), path, reserve, FALLOC_FL_KEEP_SIZE);
  } catch (...) {
    ::unlink(made.c_str());
    throw;
  }
  temporary = std::move(made);
  return file;
}

AtomicFile::AtomicFile(fs::path path, std::uint64_t reserve) : path_(std::move(path)), reserve_(reserve) {
  file_ = open_temporary(path_, reserve_, temporary_, listed_);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::append(const void* data, std::size_t size) {
  write_at(position_, data, size);
  position_ += size;
}

void AtomicFile::write_at(std::uint64_t offset, const void* data, std::size_t size) {
  io::write_at(file_.get(), path_, offset, data, size, needed(offset + size));
}

void AtomicFile::commit() {
  if (temporary_.empty()) fail(path_, "was committed before");
  struct stat status;
  if (::fstat(file_.get(), &status) != 0) fail_errno(path_, "stat", errno);
  // Gives back what was reserved and not written.
  if (static_cast<std::uint64_t>(status.st_size) < reserve_ && ::ftruncate(file_.get(), status.st_size) != 0)
    fail_errno(path_, "truncate", errno);
  if (::fsync(file_.get()) != 0) fail_errno(path_, "fsync", errno, needed(static_cast<std::uint64_t>(status.st_size)));
  if (::close(file_.release()) != 0) fail_errno(path_, "close", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno(path_, "rename", errno);
  const fs::path folder = temporary_.parent_path();
  temporary_.clear();
  listed_.reset();
  sync_folder(folder);
}

// Only open, getdents64, unlinkat, utimensat and close are called from the handler: all of them are plain system calls.

namespace {

constexpr int kRows = 64;
constexpr int kMostFolders = 4;  // within one another, in an output folder

enum : int { kFree, kBeingFilled, kFile, kFolder, kEmptyFolder, kLease };

struct Row {
  std::atomic<int> state{kFree};
  char path[PATH_MAX];
};
Row g_rows[kRows];
static_assert(std::atomic<int>::is_always_lock_free);

struct LinuxDirent {  // getdents64's record: linux/dirent.h, which is not exported
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t length;
  std::uint8_t type;
  char name[];
};

// Removes what `parent`/`name` holds, then the folder itself. Reading starts over after each pass, because removing
// entries moves the others; a pass that removes nothing ends it.
void remove_folder(int parent, const char* name, int depth) noexcept {
  const int folder = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return;
  alignas(LinuxDirent) char buffer[2048];
  for (bool removed = true; removed;) {
    removed = false;
    ::lseek(folder, 0, SEEK_SET);
    for (long got; (got = ::syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0;) {
      for (long at = 0; at < got;) {
        const auto* entry = reinterpret_cast<const LinuxDirent*>(buffer + at);
        at += entry->length;
        if (std::strcmp(entry->name, ".") == 0 || std::strcmp(entry->name, "..") == 0) continue;
        if (::unlinkat(folder, entry->name, 0) == 0) {
          removed = true;
        } else if ((errno == EISDIR || errno == EPERM) && depth < kMostFolders) {
          remove_folder(folder, entry->name, depth + 1);
          removed = removed || ::faccessat(folder, entry->name, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
        }
      }
    }
  }
  ::close(folder);
  ::unlinkat(parent, name, AT_REMOVEDIR);
}

}  // namespace

ListedTemporary::ListedTemporary(const std::filesystem::path& path, TemporaryKind kind) noexcept {
  const auto& text = path.native();
  if (text.size() >= PATH_MAX) return;
  for (int row = 0; row < kRows; ++row) {
    int expected = kFree;
    if (!g_rows[row].state.compare_exchange_strong(expected, kBeingFilled)) continue;
    std::memcpy(g_rows[row].path, text.c_str(), text.size() + 1);
    g_rows[row].state.store(kind == TemporaryKind::file           ? kFile
                            : kind == TemporaryKind::folder       ? kFolder
                            : kind == TemporaryKind::empty_folder ? kEmptyFolder
                                                                  : kLease,
                            std::memory_order_release);
    row_ = row;
    return;
  }
}

ListedTemporary::~ListedTemporary() {
  if (row_ >= 0) g_rows[row_].state.store(kFree, std::memory_order_release);
}

void remove_temporaries() noexcept {
  const int saved = errno;
  for (Row& row : g_rows)
    if (row.state.load(std::memory_order_acquire) == kFile) ::unlink(row.path);
  for (Row& row : g_rows)
    if (row.state.load(std::memory_order_acquire) == kFolder) remove_folder(AT_FDCWD, row.path, 0);
  for (Row& row : g_rows)  // the innermost was listed first
    if (row.state.load(std::memory_order_acquire) == kEmptyFolder) ::rmdir(row.path);
  constexpr struct timespec kGivenBack[2] = {{0, 0}, {0, 0}};
  for (Row& row : g_rows)  // last: who takes it over begins anew
    if (row.state.load(std::memory_order_acquire) == kLease)
      ::utimensat(AT_FDCWD, row.path, kGivenBack, AT_SYMLINK_NOFOLLOW);
  errno = saved;
}

}  // namespace fp8::io
