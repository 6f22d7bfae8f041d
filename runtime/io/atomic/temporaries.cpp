// SPDX-License-Identifier: Apache-2.0
// Only open, getdents64, unlinkat, utimensat and close are called from the handler: all of them are plain system calls.
#include "fp8/runtime/io/atomic/temporaries.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

#include "fp8/runtime/io/atomic/atomic_file.h"

namespace fp8::io {
namespace {

constexpr int kRows = 64;
constexpr int kMostFolders = 4;  // within one another, in an output folder

enum : int { kFree, kBeingFilled, kFile, kFolder, kLease };

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
    g_rows[row].state.store(kind == TemporaryKind::file     ? kFile
                            : kind == TemporaryKind::folder ? kFolder
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
  constexpr struct timespec kGivenBack[2] = {{0, 0}, {0, 0}};
  for (Row& row : g_rows)  // last: who takes it over begins anew
    if (row.state.load(std::memory_order_acquire) == kLease)
      ::utimensat(AT_FDCWD, row.path, kGivenBack, AT_SYMLINK_NOFOLLOW);
  errno = saved;
}

}  // namespace fp8::io
