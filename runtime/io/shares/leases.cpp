// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/shares/leases.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/json/json_edit.h"

namespace fp8::io {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostBytes = 4096, kMostBytesOfWork = std::uint64_t{16} << 20;
constexpr int kMostTakings = 99'999;
constexpr std::string_view kLease = ".lease-", kDone = ".done";

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// In a folder that other machines write into, too.
fs::path temporary_beside(const fs::path& path) {
  static std::atomic<unsigned> counter{0};
  static const std::string machine = [] {
    const Holder self = this_process();
    return checksum_text(checksum(self.host + "\n" + self.boot + "\n" + self.space));
  }();
  return path.parent_path() / message(".{}.new-{}-{}-{}", path.filename().string(), machine, ::getpid(), counter++);
}

/// Bytes of a file of at most `most`, and its status at that moment. Throws io::Error for anything else than a file.
std::string read_small(const fs::path& path, std::uint64_t most, struct stat& status) {
  std::uint64_t size = 0;
  const Descriptor file = open_regular(path, &size);
  if (::fstat(file.get(), &status) != 0) fail_errno(path, "stat", errno);
  if (size > most) fail(path, "{} bytes, allowed at most {}", size, most);
  std::string text(size, '\0');
  read_at(file.get(), path, 0, text.data(), size);
  return text;
}

/// A lease of a file system without hard links: its text may be seen half written, a mark's never.
bool write_without_links(const fs::path& temporary, const fs::path& path, std::string_view text) {
  if (path.filename().string().ends_with(kDone)) {
    if (is_there(path)) return false;
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_errno(path, "rename", errno);
    return true;
  }
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (file.get() < 0 && errno == EEXIST) return false;
  if (file.get() < 0) fail_errno(path, "create", errno);
  write_at(file.get(), path, 0, text.data(), text.size());
  return true;
}

}  // namespace

bool write_new_file(const fs::path& path, std::string_view text) {
  const fs::path temporary = temporary_beside(path);
  const ListedTemporary listed(temporary, TemporaryKind::file);
  struct Remove {
    const fs::path& path;
    ~Remove() { ::unlink(path.c_str()); }
  } const remove{temporary};
  {
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() < 0) fail_errno(path, "create", errno, text.size());
    write_at(file.get(), path, 0, text.data(), text.size(), text.size());
    if (::fsync(file.get()) != 0) fail_errno(path, "fsync", errno, text.size());
  }
  if (::link(temporary.c_str(), path.c_str()) == 0) {
    sync_folder(path.parent_path());
    return true;
  }
  const int code = errno;
  struct stat status;  // over NFS the answer to a link that was made may get lost: its second name tells
  if (::stat(temporary.c_str(), &status) == 0 && status.st_nlink == 2) return true;
  if (code == EEXIST) return false;
  if (code == EPERM || code == EOPNOTSUPP || code == ENOSYS || code == EMLINK)
    return write_without_links(temporary, path, text);
  fail_errno(path, "create", code);
}

// --- Lease

Lease::Lease(LeaseFolder& folder, std::string piece, int taking)
    : folder_(folder),
      piece_(std::move(piece)),
      taking_(taking),
      listed_(folder_.lease_path(piece_, taking_), TemporaryKind::lease) {
  const std::lock_guard lock(folder_.mutex_);
  folder_.held_.insert(this);
}

Lease::~Lease() {
  const std::lock_guard lock(folder_.mutex_);
  folder_.held_.erase(this);
  // Of a finished piece, too: should its mark be taken away it is to be made again.
  const struct timespec never[2] = {{0, 0}, {0, 0}};
  ::utimensat(AT_FDCWD, folder_.lease_path(piece_, taking_).c_str(), never, AT_SYMLINK_NOFOLLOW);
}

void Lease::touch() const {
  // Of the file server's own clock; a lease that can't be touched expires.
  ::utimensat(AT_FDCWD, folder_.lease_path(piece_, taking_).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

bool Lease::finish() {
  ensure(!finished_, "a lease is finished once");
  const Json mark = {{"work", folder_.work_}, {"piece", piece_}, {"taking", taking_}};
  const bool first = write_new_file(folder_.done_path(piece_), mark.dump() + "\n");
  finished_ = true;
  return first;
}

// --- LeaseFolder

LeaseFolder::LeaseFolder(fs::path folder, const Json& work, LeaseOptions options)
    : folder_(fs::absolute(folder)), options_(std::move(options)) {
  if (!options_.clock) options_.clock = steady_seconds;
  settle_work(work);
  work_ = checksum_text(checksum(work.dump()));
  if (options_.beats) beats_ = std::thread([this] { beat(); });
}

LeaseFolder::~LeaseFolder() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ends_.notify_all();
  if (beats_.joinable()) beats_.join();
}

void LeaseFolder::settle_work(const Json& work) const {
  const fs::path path = folder_ / "work";
  for (int attempt = 0;; ++attempt) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) fail(folder_, "can't be made: {}", error.message());
    try {
      if (write_new_file(path, work.dump() + "\n")) return;
      break;
    } catch (const Error&) {
      if (is_there(folder_) || attempt == 2) throw;  // else removed between the two by who had joined what was in it
    }
  }
  struct stat status;
  const std::string text = read_small(path, kMostBytesOfWork, status);
  Json found;
  try {
    found = parse_json(text, path.string());
  } catch (const Error& error) {
    fail<Error>("{}; remove {}, nothing can go on from it", error.what(), printable(folder_.string(), 4096));
  }
  const std::string other = difference(found, work);
  if (!other.empty())
    fail(folder_, "is of other work: {}; expected the same in all processes (or another output, or remove it)", other);
}

fs::path LeaseFolder::lease_path(const std::string& piece, int taking) const {
  return folder_ / (piece + std::string(kLease) + std::to_string(taking));
}

fs::path LeaseFolder::done_path(const std::string& piece) const { return folder_ / (piece + std::string(kDone)); }

bool LeaseFolder::removed() const { return !is_there(folder_ / "work"); }

/// By piece, its highest taking. Other names than a lease's are passed over.
std::map<std::string, int> LeaseFolder::takings() const {
  std::map<std::string, int> highest;
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const auto at = name.find(kLease);
    if (at == std::string::npos || !is_name(std::string_view(name).substr(0, at), "")) continue;
    const auto taking = parse_integer(name.substr(at + kLease.size()), 0, kMostTakings);
    if (!taking) continue;
    auto& known = highest.emplace(name.substr(0, at), static_cast<int>(*taking)).first->second;
    known = std::max(known, static_cast<int>(*taking));
  }
  return highest;
}

std::unique_ptr<Lease> LeaseFolder::try_to_take(const std::string& piece, int taking) {
  if (taking > kMostTakings) fail(lease_path(piece, taking - 1), "the last that can be; remove the folder");
  Json lease = to_json(this_process());
  lease["work"] = work_;
  try {
    if (!write_new_file(lease_path(piece, taking), lease.dump() + "\n")) return nullptr;
  } catch (const Error&) {
    if (removed()) return nullptr;
    throw;
  }
  std::unique_ptr<Lease> taken(new Lease(*this, piece, taking));
  // Finished since we looked, or before in what another machine's folder has not shown us yet: it is given back.
  return finished(piece).has_value() ? nullptr : std::move(taken);
}

std::unique_ptr<Lease> LeaseFolder::take(const std::vector<std::string>& pieces) {
  const auto seen = takings();
  std::vector<std::pair<std::string, int>> held;
  for (const std::string& piece : pieces) {
    if (finished(piece).has_value()) continue;
    if (const auto known = seen.find(piece); known != seen.end()) {
      held.emplace_back(*known);
    } else if (auto lease = try_to_take(piece, 0)) {
      return lease;
    }
  }
  for (const auto& [piece, taking] : held) {
    if (!is_over(piece, taking)) continue;
    if (auto lease = try_to_take(piece, taking + 1)) return lease;
  }
  return nullptr;
}

void LeaseFolder::warn_once(const fs::path& path, const std::string& what) {
  if (!warned_.insert(path.string()).second || !options_.warn) return;
  options_.warn(message("{}: {}; taken for a lease of nobody known, which expires in {} s",
                        printable(path.string(), 4096), what, static_cast<std::int64_t>(options_.expiry)));
}

void LeaseFolder::read_lease(const fs::path& path, Watched& watched) {
  struct stat status = {};
  std::string problem;
  try {
    const Json json = parse_json(read_small(path, kMostBytes, status), path.filename().string());
    watched.holder = holder_from_json(json);
    if (!watched.holder) problem = "names no process";
    if (watched.holder && json.value("work", Json()) != work_) {
      watched.holder.reset();
      problem = "is of other work";
    }
  } catch (const Error& error) {
    problem = std::string("can't be read: ") + error.what();
  }
  if (!problem.empty() && is_there(path)) warn_once(path, problem);
  if (status.st_ino == 0) ::lstat(path.c_str(), &status);
  watched.inode = status.st_ino;
  watched.touched = modified(status);
}

/// True if no process works on the piece under this lease any more, as far as this one knows.
bool LeaseFolder::is_over(const std::string& piece, int taking) {
  Watched now;
  now.taking = taking;
  read_lease(lease_path(piece, taking), now);
  if (now.inode == 0) return false;  // gone since we looked: so is the folder, or it will be
  if (now.touched == 0) return true;
  if (now.holder && options_.gone && options_.gone(*now.holder)) return true;
  Watched& before = watched_[piece];
  const bool same = before.taking == now.taking && before.inode == now.inode && before.touched == now.touched;
  now.since = same ? before.since : options_.clock();
  before = now;
  return options_.clock() - now.since >= options_.expiry;
}

std::optional<int> LeaseFolder::finished(const std::string& piece) const {
  const fs::path path = done_path(piece);
  if (!is_there(path)) return std::nullopt;
  struct stat status;
  const std::string remedy = "; expected the mark of a finished piece of this work: remove it, and it is made again";
  Json mark;
  try {
    mark = parse_json(read_small(path, kMostBytes, status), path.string());
  } catch (const Error& error) {
    if (removed()) return std::nullopt;
    throw Error(error.what() + remedy);
  }
  const bool ours = mark.is_object() && mark.value("work", Json()) == work_ && mark.value("piece", Json()) == piece &&
                    mark.contains("taking") && mark["taking"].is_number_unsigned() &&
                    mark["taking"].get<std::uint64_t>() <= kMostTakings;
  if (!ours) fail(path, "is something else{}", remedy);
  return mark["taking"].get<int>();
}

std::string LeaseFolder::holder_of(const std::string& piece) const {
  const auto known = watched_.find(piece);
  return known != watched_.end() && known->second.holder ? known->second.holder->text() : "";
}

void LeaseFolder::beat() {
  std::unique_lock lock(mutex_);
  const auto period = std::chrono::duration<double>(options_.expiry / 4);
  while (!ends_.wait_for(lock, period, [&] { return end_; })) {
    for (const Lease* lease : held_) lease->touch();
  }
}

// Holders of leases.

namespace {

constexpr std::size_t kLongest = 256;

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// Of /proc/PID/stat, whose second field is a name in brackets that may hold anything.
struct Stat {
  char state = '?';
  std::uint64_t began = 0;
};

std::optional<Stat> stat_of(std::int64_t pid) {
  const std::string text = first_line(message("/proc/{}/stat", pid));
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  Stat stat;
  std::string skipped;
  fields >> stat.state;  // field 3
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.began;  // field 22
  return fields ? std::optional(stat) : std::nullopt;
}

}  // namespace

std::string Holder::text() const { return message("{}, process {}", printable(host), pid); }

Holder this_process() {
  Holder self;
  char name[kLongest] = {};
  if (::gethostname(name, sizeof name - 1) == 0) self.host = printable(name);
  self.boot = first_line("/proc/sys/kernel/random/boot_id");
  std::error_code error;
  self.space = fs::read_symlink("/proc/self/ns/pid", error).string();
  self.pid = ::getpid();
  if (const auto stat = stat_of(self.pid)) self.began = stat->began;
  return self;
}

bool is_gone(const Holder& holder) {
  const Holder self = this_process();
  if (self.boot.empty() || self.space.empty() || holder.boot != self.boot || holder.space != self.space) return false;
  if (holder.pid == self.pid) return holder.began != self.began;
  if (::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH) return true;
  const auto stat = stat_of(holder.pid);
  if (!stat) return false;  // hidden from us (hidepid), or it ends just now: the next look tells
  return stat->state == 'Z' || stat->state == 'X' || (holder.began != 0 && stat->began != holder.began);
}

Json to_json(const Holder& holder) {
  return {{"host", holder.host},
          {"boot", holder.boot},
          {"space", holder.space},
          {"pid", static_cast<std::uint64_t>(holder.pid)},
          {"began", holder.began}};
}

std::optional<Holder> holder_from_json(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  Holder holder;
  for (const auto& [key, text] :
       {std::pair{"host", &holder.host}, std::pair{"boot", &holder.boot}, std::pair{"space", &holder.space}}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) return std::nullopt;
    *text = found->get<std::string>();
    if (text->size() > kLongest) return std::nullopt;
  }
  const auto pid = json.find("pid"), began = json.find("began");
  if (pid == json.end() || began == json.end() || !pid->is_number_unsigned() || !began->is_number_unsigned())
    return std::nullopt;
  if (pid->get<std::uint64_t>() < 1 || pid->get<std::uint64_t>() > INT32_MAX) return std::nullopt;
  holder.pid = pid->get<std::int64_t>();
  holder.began = began->get<std::uint64_t>();
  return holder;
}

}  // namespace fp8::io
