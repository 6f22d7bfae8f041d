// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "fp8/measure/calibration/recorder.h"

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
  FolderLock& operator=(FolderLock&&) = delete;

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
    const bool taken = std::ranges::any_of(
        files, [&](const fs::path& file) { return fs::exists(it->path() / file.filename(), gone); });
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
  Backup& operator=(Backup&&) = delete;
  void keep() { moved_.clear(), made_ = false; }
  const fs::path& folder() const { return backup_; }

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

const std::string kWhere = "snapshot of a calibration";

/// A key of the snapshot; is(value) says whether it is of the right type.
template <class Is>
const io::Json& member(const io::Json& json, const char* key, const char* expected, Is is) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (!json.is_object() || found == json.end() || !is(*found))
    bad_state(kWhere + ": key '" + key + "'", expected, json.is_object() && found != json.end() ? *found : io::Json());
  return *found;
}

std::int64_t count_in(const io::Json& json, const char* key) {
  return member(json, key, "an integer >= 0",
                [](const io::Json& v) { return v.is_number_integer() && v.get<std::int64_t>() >= 0; })
      .get<std::int64_t>();
}

const io::Json& list_in(const io::Json& json, const char* key) {
  return member(json, key, "a list", [](const io::Json& v) { return v.is_array(); });
}

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
    const auto text = [&] { return FileBytes(states_file, io::json_text(states_file, states, -1)); };
    auto paths = write_together(measurement_bytes({prefix_, name_.observer, "", name_.rank}, file),
                                states.is_null() ? std::function<FileBytes()>() : text);
    backup.keep();
    if (!backup.folder().empty()) backup_ = backup.folder();
    written_ = true;
    return paths;
  } catch (const fs::filesystem_error& error) {
    io::fail(error.path1(), "can't be moved to a backup: {}", error.code().message());
  }
}

// Snapshots of a calibration, from which another process resumes.
//
//   {"samples", "forwards", "bytes_saved", "watch_seconds",
//    "nodes": [{"module", "looked_at", "inputs", "outputs", "weight"}, ...]    in the order of the records
//    "model": fingerprint, "non_finite": [[module, tensor, sample, nan], ...]}

io::Json Recorder::snapshot() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  io::Json nodes = io::Json::array(), non_finite = io::Json::array();
  ModelFingerprint model;
  for (const auto& [watched, looked_at, weight] : records_) {
    io::Json node = watched.snapshot();
    if (node.is_null()) return nullptr;
    node["module"] = watched.module();
    node["looked_at"] = looked_at;
    nodes.push_back(std::move(node));
    if (weight.has_value()) model.weights.push_back(*weight);
  }
  for (const auto& f : non_finite_) non_finite.push_back({f.module, f.tensor, f.sample, f.nan});
  return {{"samples", samples_},
          {"forwards", forwards_},
          {"bytes_saved", observers_.context.bytes_saved->load()},
          {"watch_seconds", watch_seconds_},
          {"nodes", std::move(nodes)},
          {"model", to_json(model)},
          {"non_finite", std::move(non_finite)}};
}

void Recorder::resume() {
  const io::Json snapshot = std::exchange(options_.resume, nullptr);
  if (snapshot.is_null()) return;
  samples_ = count_in(snapshot, "samples");
  forwards_ = count_in(snapshot, "forwards");
  writes_ = options_.sample_interval > 0 ? samples_ / options_.sample_interval : 0;
  observers_.context.bytes_saved->store(count_in(snapshot, "bytes_saved"));
  watch_seconds_ =
      member(snapshot, "watch_seconds", "a number", [](const io::Json& v) { return v.is_number(); }).get<double>();
  const io::Json& nodes = list_in(snapshot, "nodes");
  if (nodes.size() != records_.size())
    io::fail<io::Error>("{}: expected {} modules, found {}", kWhere, records_.size(), nodes.size());
  const ModelFingerprint model =
      model_from_json(member(snapshot, "model", "an object", [](const io::Json& v) { return v.is_object(); }),
                      kWhere + ": key 'model'");
  for (std::size_t i = 0; i < records_.size(); ++i) {
    auto& [node, looked_at, weight] = records_[i];
    const std::string& name = node.module();
    if (!nodes[i].is_object() || nodes[i].value("module", io::Json()) != name)
      bad_state(io::message("{}: nodes[{}]", kWhere, i), io::in_quotes(name), nodes[i]);
    node.restore(nodes[i], observers_, kWhere + ": " + io::printable(name));
    if (!node.has_weight()) continue;
    looked_at = nodes[i].value("looked_at", io::Json()) == true;
    if (const auto* found = model.find(name)) weight = *found;
  }
  for (const auto& f : list_in(snapshot, "non_finite")) {
    if (!f.is_array() || f.size() != 4 || !f[0].is_string() || !f[1].is_string() || !f[2].is_number_integer() ||
        !f[3].is_boolean()) {
      bad_state(kWhere + ": key 'non_finite'", "[module, tensor, sample, nan]", f);
    }
    non_finite_.push_back(
        {f[0].get<std::string>(), f[1].get<std::string>(), f[2].get<std::int64_t>(), f[3].get<bool>()});
  }
}

io::Json join_snapshots(const std::vector<io::Json>& parts,
                        const std::function<std::size_t(const std::string&)>& owner) {
  io::Json joined = parts.at(0);
  joined["model"] = io::Json::object();
  joined["non_finite"] = io::Json::array();
  std::int64_t bytes_saved = 0;
  double watch_seconds = 0;
  for (const auto& part : parts) {
    if (list_in(part, "nodes").size() != joined["nodes"].size() ||
        part.value("samples", io::Json()) != joined["samples"])
      io::fail<io::Error>("{}: expected {} samples in {} modules, found {} in {}", kWhere, joined["samples"].dump(),
                          joined["nodes"].size(), part.value("samples", io::Json()).dump(), part["nodes"].size());
    bytes_saved += count_in(part, "bytes_saved");
    watch_seconds += part.at("watch_seconds").get<double>();
    for (const auto& f : list_in(part, "non_finite")) joined["non_finite"].push_back(f);
  }
  for (std::size_t i = 0; i < joined["nodes"].size(); ++i) {
    const auto module = joined["nodes"][i].at("module").get<std::string>();
    const io::Json& of_owner = parts.at(owner(module));
    const io::Json& node = of_owner["nodes"][i];
    if (node.value("module", io::Json()) != module)
      bad_state(io::message("{}: nodes[{}]", kWhere, i), io::in_quotes(module), node);
    joined["nodes"][i] = node;
    if (const auto weight = of_owner.at("model").find(module); weight != of_owner.at("model").end())
      joined["model"][module] = *weight;
  }
  joined["bytes_saved"] = bytes_saved;
  joined["watch_seconds"] = watch_seconds;
  return joined;
}

}  // namespace fp8::measure
