// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "fp8/measure/files/backup_path.h"
#include "fp8/measure/observers/states.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::measure {
namespace {

namespace fs = std::filesystem;

/// When this library was loaded: about when the process began.
const fs::file_time_type kProcessBegan = fs::file_time_type::clock::now();

/// The calling process alone writes in `folder` while it lives (among those that ask). A folder that can't be locked
/// (some network file systems) is not.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder) : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

bool take_suffix(std::string_view& text, std::string_view end) {
  if (text.size() < end.size() || text.substr(text.size() - end.size()) != end) return false;
  text.remove_suffix(end.size());
  return true;
}

/// "..._0_8.json" -> "_0_8"; "" for a file without a rank.
std::string_view rank_of(std::string_view name) {
  name = name.substr(0, name.rfind('.'));
  take_suffix(name, "_mod_list");
  const auto number_before = [&](std::size_t end) {  // where "_123" that ends at `end` begins; npos: it does not
    std::size_t at = end;
    while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9') --at;
    return at < end && at > 0 && name[at - 1] == '_' ? at - 1 : std::string_view::npos;
  };
  const std::size_t world = number_before(name.size());
  if (world == std::string_view::npos) return {};
  const std::size_t rank = number_before(world);
  return rank == std::string_view::npos ? std::string_view() : name.substr(rank);
}

/// Files of `folder` whose names begin with `stem` and that are in the way of a rank's first write (see the header).
std::vector<fs::path> in_the_way(const fs::path& folder, const std::string& stem,
                                 const std::optional<configs::Rank>& rank) {
  const std::string own = configs::rank_suffix(rank);
  const std::string world = rank.has_value() ? "_" + std::to_string(rank->world) : "";
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code gone;  // another rank may be at work
    if (!name.starts_with(stem) || !it->is_regular_file(gone) || gone) continue;
    const std::string_view theirs = rank_of(name);
    const bool together = rank.has_value() && !theirs.empty() && theirs.substr(theirs.rfind('_')) == world;
    const auto written = fs::last_write_time(it->path(), gone);
    const bool new_one = !gone && written > kProcessBegan;
    if (theirs == own || (!together && !new_one)) paths.push_back(it->path());
  }
  return paths;
}

/// The newest backup of `prefix` in `folder` if it has no file of one of these names, else it is of an earlier run.
/// Empty: none.
fs::path shared_backup(const std::vector<fs::path>& files, const fs::path& folder, const std::string& prefix) {
  fs::path found;
  auto when = fs::file_time_type::min(), earlier_run = when;
  std::error_code error, gone;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with("backup_" + prefix + "_") || !it->is_directory(gone)) continue;
    const auto written = fs::last_write_time(it->path(), gone);
    if (gone) continue;
    const bool taken = std::any_of(files.begin(), files.end(), [&](const fs::path& file) {
      return fs::exists(it->path() / file.filename(), gone);
    });
    if (taken) earlier_run = std::max(earlier_run, written);
    if (taken || written < when) continue;
    found = it->path();
    when = written;
  }
  return when >= earlier_run ? found : fs::path();
}

/// Moves files away; puts them back unless keep() is called.
class Backup {
 public:
  /// shared: the ranks of one run have one backup.
  Backup(const std::vector<fs::path>& files, const fs::path& folder, const std::string& prefix, bool shared) {
    if (files.empty()) return;
    if (shared) backup_ = shared_backup(files, folder, prefix);
    made_ = backup_.empty();
    while (made_ &&
           !fs::create_directory(backup_ = backup_path(folder, prefix))) {  // another may have been made in between
    }
    try {
      for (const auto& file : files) {
        fs::rename(file, backup_ / file.filename());
        moved_.push_back(file);
      }
    } catch (...) {
      put_back();
      throw;
    }
  }
  ~Backup() { put_back(); }
  Backup(const Backup&) = delete;
  Backup& operator=(const Backup&) = delete;
  void keep() { moved_.clear(), made_ = false; }

 private:
  void put_back() noexcept {
    std::error_code ignored;  // what can't be moved back is in the backup, and safe there
    for (const auto& file : moved_) fs::rename(backup_ / file.filename(), file, ignored);
    if (made_) fs::remove(backup_, ignored);
    keep();
  }
  fs::path backup_;
  bool made_ = false;
  std::vector<fs::path> moved_;
};

}  // namespace

std::vector<fs::path> CalibrationFiles::write(const MeasurementFile& file, const io::Json& states) {
  if (prefix_.empty()) return {};
  const fs::path states_file = observer_states_path({prefix_, name_.observer, {}, name_.rank});
  const std::string prefix = fs::path(prefix_).filename().string();
  const fs::path folder = states_file.has_parent_path() ? states_file.parent_path() : fs::path(".");
  try {
    const FolderLock lock(folder);
    Backup backup(written_ ? std::vector<fs::path>{} : in_the_way(folder, prefix + "_hooks_", name_.rank), folder,
                  prefix, name_.rank.has_value());
    auto paths = write_measurements(prefix_, file, name_);
    if (!states.is_null()) {
      io::write_json(states_file, states, -1);
      paths.push_back(states_file);
    }
    backup.keep();
    written_ = true;
    return paths;
  } catch (const fs::filesystem_error& error) {
    throw io::Error(io::printable(error.path1().string(), 4096) +
                    ": can't be moved to a backup: " + error.code().message());
  }
}

}  // namespace fp8::measure
