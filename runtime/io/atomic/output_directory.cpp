// SPDX-License-Identifier: Apache-2.0
// OutputDirectory of atomic_file.h: states on disk and what the next run makes of them.
//
//   .out.partial-7/ (lock free)              a run died while it wrote:   removed
//   .out.partial/   (lock free)              the same, and it can be continued: Partial::now does, others remove it
//   .out.old-7/ and no out                   it died between two renames: .out.old-7 becomes out again
//   .out.old-7/ and out                      it died while cleaning up:   .out.old-7 is removed
//
// A folder that is replaced changes places with the new one in one step (renameat2), so that one of them stands under
// the name at every moment; the new one is called .out.old-7 for it, which then is the old one's name. Where the file
// system or the kernel knows no such step, two renames do it.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <vector>

#include "fp8/runtime/io/atomic/output_place.h"

namespace fp8::io {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kAnyFolder = 0777, kAnyFile = 0666, kOwnerFolder = 0700, kOwnerFile = 0600;

/// Asking umask(2) sets it, for the other threads as well.
mode_t process_umask() {
  std::ifstream status("/proc/self/status");
  constexpr std::string_view kKey = "Umask:";
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kKey))
      return static_cast<mode_t>(std::stoul(line.substr(kKey.size()), nullptr, 8)) & kAnyFolder;
  return kAnyFolder & ~kOwnerFolder;
}

/// Of what a link leads to; a folder's bits only if it is one.
std::optional<mode_t> mode_of(const fs::path& path, mode_t kind) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0 || (status.st_mode & S_IFMT) != kind) return std::nullopt;
  return status.st_mode & kAnyFolder;
}

// True for a folder of a checkpoint, a measurement or an earlier output of ours: `--overwrite` of anything else is a
// mistyped path.
bool looks_like_an_output(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == kConfigFile || name == kIndexFile || name == kShareFile || name.ends_with(".safetensors")) return true;
    if (name.find(kHooks) != std::string::npos && (name.ends_with(".json") || name.ends_with(".npz"))) return true;
    if (name.ends_with(kModuleList + std::string(".json"))) return true;
  }
  return false;
}

// True if out must be replaced, false if it is missing or an empty folder (false); throws where neither is allowed.
bool check_replaceable(const fs::path& path, bool overwrite) {
  const fs::file_status status = fs::symlink_status(path);
  if (!fs::exists(status)) return false;
  if (fs::is_symlink(status)) fail(path, "is a link to nothing, expected a new or empty folder");
  if (!fs::is_directory(status)) fail(path, "exists and is not a folder, expected a new or empty folder");
  if (fs::is_empty(path)) return false;
  if (!overwrite)
    fail(path, "exists and is not empty, expected a new or empty folder (or {})", option("overwrite", "overwrite"));
  if (!looks_like_an_output(path))
    fail(path,
         "holds no checkpoint or measurement files, so it is not overwritten; remove it yourself if that is meant");
  return true;
}

// Siblings called "<prefix><digits>".
std::vector<fs::path> numbered_siblings(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos)
      found.push_back(entry.path());
  }
  return found;
}

/// below: of the output.
void sync_tree(const fs::path& folder, const fs::path& label, const OutputModes& modes, const fs::path& below = {}) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path inside = below / entry.path().filename(), name = label / inside;
    if (entry.is_symlink()) continue;
    if (entry.is_directory()) {
      set_mode(entry.path(), modes.folder());
      sync_tree(entry.path(), label, modes, inside);
    } else if (entry.is_regular_file()) {
      set_mode(entry.path(), modes.file(inside));
      const Descriptor file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
      if (file.get() < 0) fail_errno(name, "open", errno);
      if (::fsync(file.get()) != 0) fail_errno(name, "fsync", errno, entry.file_size());
    }
  }
  sync_folder(folder);
}

// path -> old, temporary -> path; where the second fails path is put back.
void move_in_two_steps(const fs::path& temporary, const fs::path& path, const fs::path& old) {
  if (::rename(path.c_str(), old.c_str()) != 0) fail_errno(path, "move the old folder away", errno);
  if (::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int code = errno;
  if (::rename(old.c_str(), path.c_str()) != 0)
    fail(path, "can't rename; the old folder is kept as " + printable(old.string(), 4096));
  fail_errno(path, "rename", code);
}

// std::filesystem's own errors as ours, one line.
template <class Work>
auto guarded(const fs::path& path, Work&& work) {
  try {
    return work();
  } catch (const fs::filesystem_error& error) {
    fail_errno(path, "use this output", error.code().value());
  }
}

}  // namespace

fs::path without_slash(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

fs::path final_place(const fs::path& path) {
  return fs::exists(path) ? fs::canonical(path) : fs::canonical(path.parent_path()) / path.filename();
}

fs::path beside(const fs::path& path, const std::string& ending) {
  return path.parent_path() / ("." + path.filename().string() + ending);
}

Descriptor locked(const fs::path& path, const fs::path& lock_path) {
  for (;;) {
    Descriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (lock.get() < 0) fail_errno(path, "create its lock file " + printable(lock_path.string(), 4096), errno);
    while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK)
        fail(path, "another run is writing it now (it holds " + printable(lock_path.string(), 4096) + ")");
      fail_errno(path, "lock", errno);
    }
    // The former holder may have removed the name between our open and our lock: then we hold a file that no other
    // process will find.
    struct stat ours, named;
    if (::fstat(lock.get(), &ours) == 0 && ::stat(lock_path.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
        ours.st_dev == named.st_dev)
      return lock;
  }
}

OutputModes::OutputModes(fs::path source) : source_(std::move(source)), umask_(process_umask()) {
  folder_ = (mode_of(source_, S_IFDIR).value_or(kAnyFolder) & ~umask_) | kOwnerFolder;
  others_ = mode_of(source_, S_IFREG).value_or(kAnyFile);
  std::error_code error;
  for (fs::directory_iterator entry(source_, error), end; !error && entry != end; entry.increment(error))
    others_ &= mode_of(entry->path(), S_IFREG).value_or(kAnyFile);
}

mode_t OutputModes::file(const fs::path& name) const {
  const mode_t from = source_.empty() ? kAnyFile : mode_of(source_ / name, S_IFREG).value_or(others_);
  return (from & kAnyFile & ~umask_) | kOwnerFile;
}

void set_mode(const fs::path& path, mode_t mode) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) fail_errno(path, "stat", errno);
  if ((status.st_mode & kAnyFolder) == mode) return;
  const mode_t more = status.st_mode & (S_ISUID | S_ISGID | S_ISVTX);  // a group's folder stays one
  if (::chmod(path.c_str(), mode | more) != 0) fail_errno(path, "set the mode", errno);
}

OutputDirectory::OutputDirectory(fs::path path, bool overwrite, Partial partial, const fs::path& source)
    : partial_(partial), modes_(source), overwrite_(overwrite) {
  if (path.empty()) fail(path, "no output folder named");
  guarded(path, [&] {
    path_ = without_slash(path);
    if (!path_.has_filename()) fail(path, "can't be an output folder, expected one with a name");
    fs::create_directories(path_.parent_path());
    path_ = final_place(path_);
    check_replaceable(path_, overwrite_);
    take_lock();
  });
  try {
    guarded(path_, [&] {
      clear_leftovers();
      check_replaceable(path_, overwrite_);
      make_temporary();
    });
  } catch (...) {
    ::unlink(lock_path_.c_str());
    throw;
  }
}

OutputDirectory::~OutputDirectory() {
  std::error_code ignored;
  if (!committed_) {
    if (partial_ == Partial::now)
      fs::remove(temporary_, ignored);  // if nothing was made yet
    else
      fs::remove_all(temporary_, ignored);
  }
  ::unlink(lock_path_.c_str());
}

void OutputDirectory::make_temporary() {
  temporary_ = beside(path_, partial_ == Partial::never ? ".partial-" + std::to_string(::getpid()) : ".partial");
  if (partial_ != Partial::now) listed_.emplace(temporary_, TemporaryKind::folder);
  if (OutputPlace::take_folder(path_, temporary_) || ::mkdir(temporary_.c_str(), 0700) == 0) return;
  const int code = errno;
  if (partial_ != Partial::now || code != EEXIST || !fs::is_directory(fs::symlink_status(temporary_)))
    fail_errno(path_, "create", code);
  set_mode(temporary_, 0700);
  continued_ = !fs::is_empty(temporary_);
}

void OutputDirectory::take_lock() {
  lock_path_ = beside(path_, ".lock");
  lock_ = OutputPlace::take_lock(path_);
  if (lock_.get() < 0) lock_ = locked(path_, lock_path_);
  listed_lock_.emplace(lock_path_, TemporaryKind::file);
}

void OutputDirectory::clear_leftovers() {
  const std::string hidden = "." + path_.filename().string();
  for (const auto& old : numbered_siblings(path_.parent_path(), hidden + ".old-")) {
    if (!fs::exists(fs::symlink_status(path_)))
      fs::rename(old, path_);
    else
      fs::remove_all(old);
  }
  for (const auto& partial : numbered_siblings(path_.parent_path(), hidden + ".partial-"))
    if (!OutputPlace::has_folder(partial)) fs::remove_all(partial);
  if (partial_ == Partial::now) return;
  discarded_ = fs::remove_all(path_.parent_path() / (hidden + ".partial")) > 0;
}

fs::path OutputDirectory::file(const std::string& name) const {
  const fs::path relative(name);
  const bool climbs = std::any_of(relative.begin(), relative.end(), [](const fs::path& part) { return part == ".."; });
  if (name.empty() || relative.is_absolute() || climbs || !relative.has_filename() ||
      name.find('\0') != std::string::npos)
    fail(path_, "can't hold a file named " + in_quotes(name) + ", expected a relative name without '..'");
  const fs::path place = temporary_ / relative;
  if (relative.has_parent_path()) guarded(path_ / relative, [&] { fs::create_directories(place.parent_path()); });
  return place;
}

void OutputDirectory::put_in_place() {
  if (!check_replaceable(path_, overwrite_)) {
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno(path_, "rename", errno);
    return;
  }
  const fs::path old = beside(path_, ".old-" + std::to_string(::getpid()));
  // The new folder until they change places, then the old one: neither is wanted.
  std::optional<ListedTemporary> listed(std::in_place, old, TemporaryKind::folder);
  if (::rename(temporary_.c_str(), old.c_str()) != 0) fail_errno(path_, "rename", errno);
  if (::renameat2(AT_FDCWD, old.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
    if (::rename(old.c_str(), temporary_.c_str()) != 0) fail_errno(path_, "rename", errno);
    listed.reset();
    move_in_two_steps(temporary_, path_, old);
  }
  sync_folder(path_.parent_path());
  std::error_code ignored;
  fs::remove_all(old, ignored);  // the next run removes what stays
}

void OutputDirectory::sync() {
  guarded(path_, [&] { sync_tree(temporary_, path_, modes_); });
  synced_ = true;
}

void OutputDirectory::commit() {
  if (committed_) fail(path_, "was committed before");
  if (!synced_) sync();
  set_mode(temporary_, modes_.folder());
  guarded(path_, [&] { put_in_place(); });
  committed_ = true;
  listed_.reset();
  sync_folder(path_.parent_path());
}

void refuse_same_path(const fs::path& input, const fs::path& output) {
  const auto inside = [](const fs::path& inner, const fs::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
  };
  guarded(output, [&] {
    const auto plain = [](const fs::path& path) {
      const fs::path whole = fs::weakly_canonical(fs::absolute(path));
      return whole.has_filename() ? whole : whole.parent_path();
    };
    const fs::path from = plain(input), to = plain(output);
    const std::string label = printable(input.string(), 4096);
    if (from == to || (fs::exists(from) && fs::exists(to) && fs::equivalent(from, to)))
      fail(output, "is the input itself, expected another path");
    if (inside(to, from)) fail(output, "lies inside the input " + label + ", expected a path outside it");
    if (inside(from, to)) fail(output, "holds the input " + label + ", expected a path outside it");
  });
}

}  // namespace fp8::io
