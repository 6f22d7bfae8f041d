// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/files/stats_files.h"

#include <set>
#include <system_error>
#include <tuple>

#include "fp8/runtime/io/atomic/file_set.h"
#include "fp8/runtime/io/tensors/npz.h"

namespace fp8::measure {
namespace {

namespace fs = std::filesystem;
using io::Json, io::PyValue;

constexpr int kMaxWorld = 1'000'000;

/// Takes "_N" off the end of `text`; -1 if there is none.
int take_number(std::string& text) {
  std::size_t at = text.size();
  while (at > 0 && text[at - 1] >= '0' && text[at - 1] <= '9') --at;
  if (at == text.size() || at == 0 || text[at - 1] != '_' || text.size() - at > 7) return -1;
  const int number = std::stoi(text.substr(at));
  text.resize(at - 1);
  return number;
}

std::optional<configs::Rank> take_rank(std::string& text) {
  std::string rest = text;
  const int world = take_number(rest), index = world < 0 ? -1 : take_number(rest);
  if (index < 0 || index >= world || world > kMaxWorld) return std::nullopt;
  text = rest;
  return configs::Rank{index, world};
}

/// Scale methods are written in upper case behind the observer: where they begin.
std::size_t method_at(const std::string& text) {
  for (std::size_t at = text.find('_'); at != std::string::npos; at = text.find('_', at + 1)) {
    const std::string rest = text.substr(at + 1);
    const bool upper = !rest.empty() && rest[0] >= 'A' && rest[0] <= 'Z' && std::ranges::all_of(rest, [](char c) {
      return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    });
    if (upper) return at;
  }
  return std::string::npos;
}

/// An array as nested lists. `at` walks through the data.
Json nested(const io::NdArray& array, std::size_t dim, std::size_t& at) {
  if (dim == array.shape.size()) {
    io::ensure(at < array.data.size(), "as many values as an array's shape says");
    return array.data[at++];
  }
  Json list = Json::array();
  for (std::int64_t i = 0; i < array.shape[dim]; ++i) list.push_back(nested(array, dim + 1, at));
  return list;
}

/// Returns the first difference of two trees as "key.key: a and b"; empty if they are equal. Numbers are compared as
/// float32, the type in the .npz.
std::string difference(const Json& a, const Json& b, const std::string& where) {
  if (a.is_number() && b.is_number())
    return a.get<float>() == b.get<float>() ? "" : where + ": " + in_message(a) + " and " + in_message(b);
  if (a.empty() && b.empty()) return "";  // null, [] and {}: nothing there
  if (a.is_object() && b.is_object()) {
    for (const auto& [key, value] : a.items()) {
      const auto found = b.find(key);
      if (found == b.end() && value.empty()) continue;
      if (found == b.end()) return where + ": '" + io::printable(key) + "' is in the first only";
      if (auto d = difference(value, *found, where + "." + io::printable(key)); !d.empty()) return d;
    }
    for (const auto& [key, value] : b.items())
      if (!a.contains(key) && !value.empty()) return where + ": '" + io::printable(key) + "' is in the second only";
    return "";
  }
  if (a.is_array() && b.is_array()) {
    if (a.size() != b.size()) return io::message("{}: {} and {} values", where, a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      if (auto d = difference(a[i], b[i], where + "[" + std::to_string(i) + "]"); !d.empty()) return d;
    return "";
  }
  return a == b ? "" : where + ": " + in_message(a) + " and " + in_message(b);
}

/// Makes a folder and its parents; takes back what it made unless keep() is called.
class MadeFolders {
 public:
  void make(const fs::path& folder) {
    std::error_code error;
    std::vector<fs::path> missing;
    for (fs::path at = folder; !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
      missing.push_back(at);
      if (at == at.parent_path()) break;
    }
    made_.insert(made_.end(), missing.begin(), missing.end());
    if (folder.empty()) return;
    fs::create_directories(folder, error);
    if (!error && !fs::is_directory(folder, error)) error = std::make_error_code(std::errc::not_a_directory);
    if (!error) return;
    remove();
    io::fail(folder, "can't be created: {}", error.message());
  }
  MadeFolders() = default;
  ~MadeFolders() { remove(); }
  MadeFolders& operator=(MadeFolders&&) = delete;
  void keep() { made_.clear(); }

 private:
  void remove() noexcept {
    std::error_code ignored;  // a folder that is not empty holds another program's files by now, and stays
    for (const auto& path : made_) fs::remove(path, ignored);
    made_.clear();
  }
  std::vector<fs::path> made_;  // the deepest first
};

std::optional<std::int64_t> integer_or_null(const Json& json, const char* key, const std::string& name) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return std::nullopt;
  if (it->is_number_integer() &&
      (!it->is_number_unsigned() || it->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)))
    return it->get<std::int64_t>();
  io::fail_at(name, "key '{}': expected an integer or null, found {}", key, in_message(*it));
}

}  // namespace

std::string in_message(const Json& value) {
  return io::printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 40);
}

std::string StatsName::base() const {
  return prefix + io::kHooks + observer + (method.empty() ? "" : "_" + method) + configs::rank_suffix(rank);
}

bool StatsName::exists() const {
  std::error_code ignored;
  return fs::exists(json(), ignored) || fs::exists(npz(), ignored);
}

StatsName StatsName::with_rank(std::optional<configs::Rank> other) const {
  StatsName copy = *this;
  copy.rank = other;
  return copy;
}

bool StatsName::same_set(const StatsName& other) const {
  return prefix == other.prefix && observer == other.observer && method == other.method;
}

std::optional<StatsName> parse_stats_name(const std::string& path) {
  const fs::path file(path);
  const std::string extension = file.extension().string();
  if (extension != ".json" && extension != ".npz") return std::nullopt;
  const std::string stem = path.substr(0, path.size() - extension.size());
  if (stem.ends_with(io::kModuleList)) return std::nullopt;
  const auto hooks = stem.rfind(io::kHooks);
  const auto slash = stem.rfind('/');
  if (hooks == std::string::npos || (slash != std::string::npos && hooks < slash)) return std::nullopt;
  StatsName name;
  name.prefix = stem.substr(0, hooks);
  name.observer = stem.substr(hooks + sizeof io::kHooks - 1);
  name.rank = take_rank(name.observer);
  if (const auto at = method_at(name.observer); at != std::string::npos) {
    name.method = name.observer.substr(at + 1);
    name.observer.resize(at);
  }
  if (name.observer.empty()) return std::nullopt;
  return name;
}

std::vector<StatsName> list_stats(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error) io::fail(folder, "can't be read: {}", error.message());
  const auto key = [](const StatsName& n) {
    return std::tuple(n.prefix, n.observer, n.method, n.rank.has_value() ? n.rank->world : 0,
                      n.rank.has_value() ? n.rank->index : 0);
  };
  const auto less = [&](const StatsName& a, const StatsName& b) { return key(a) < key(b); };
  std::set<StatsName, decltype(less)> found(less);
  for (const auto& entry : entries)
    if (auto name = parse_stats_name(entry.path().string()); name.has_value() && !entry.is_directory(error))
      found.insert(*name);
  std::vector<StatsName> names;
  for (const auto& name : found) {
    const fs::path prefix(name.prefix);
    const std::string last = prefix.filename().string();
    if (last.starts_with("orig_")) {
      StatsName changed = name;
      changed.prefix = (prefix.parent_path() / last.substr(5)).string();
      if (found.contains(changed)) continue;
    }
    names.push_back(name);
  }
  return names;
}

Json stats_json(const PyValue& value) {
  if (const auto* dict = value.get_if<io::PyDict>()) {
    Json out = Json::object();
    for (const auto& [key, item] : dict->items()) {
      const auto* text = std::get_if<std::string>(&key);
      out[text != nullptr ? *text : std::to_string(std::get<std::int64_t>(key))] = stats_json(item);
    }
    return out;
  }
  const auto list = [](const std::vector<PyValue>& items) {
    Json out = Json::array();
    for (const auto& item : items) out.push_back(stats_json(item));
    return out;
  };
  if (const auto* items = value.get_if<io::PyList>()) return list(items->items);
  if (const auto* items = value.get_if<io::PyTuple>()) return list(items->items);
  if (const auto* array = value.get_if<io::NdArray>()) {
    std::size_t at = 0;
    return array->data.empty() ? Json::array() : nested(*array, 0, at);  // a shape like [10^9, 0] makes no lists
  }
  if (const auto* text = value.get_if<std::string>()) return *text;
  if (const auto* integer = value.get_if<std::int64_t>()) return *integer;
  if (const auto* real = value.get_if<double>()) return *real;
  if (const auto* flag = value.get_if<bool>()) return *flag;
  return nullptr;
}

Json read_stats(const StatsName& name) {
  const bool has_json = fs::exists(name.json()), has_npz = fs::exists(name.npz());
  if (!has_json && !has_npz) io::fail_at(name.json().string(), "no such file (nor {})", name.npz().filename().string());
  Json json = has_json ? io::read_json(name.json()) : stats_json(io::read_npz(name.npz()));
  if (!has_json || !has_npz) return json;
  const Json other = stats_json(io::read_npz(name.npz()));
  if (!json.is_object() || !json.contains("Nodes") || !other.is_object() || !other.contains("Nodes"))
    return json;  // the caller says what it is
  if (const auto d = difference(json["Nodes"], other["Nodes"], "Nodes"); !d.empty())
    io::fail_at(name.json().string(), "and {} disagree: {}; remove the one that is out of date",
                name.npz().filename().string(), d);
  return json;
}

std::vector<FileBytes> stats_bytes(const StatsName& name, const PyValue& tree) {
  return {{name.json(), io::json_text(name.json(), stats_json(tree), 4)},
          {name.npz(), io::npz_bytes(name.npz(), tree)}};
}

std::vector<fs::path> write_together(std::vector<FileBytes> contents, const std::function<FileBytes()>& last) {
  MadeFolders folders;
  for (const auto& [path, bytes] : contents) folders.make(path.parent_path());
  io::FileSet files;
  std::vector<fs::path> paths;
  const auto add = [&](const FileBytes& content) {
    files.add(content.first, content.second);
    paths.push_back(content.first);
  };
  for (auto& content : contents) add(std::exchange(content, {}));
  if (last) add(last());
  files.commit();
  folders.keep();
  return paths;
}

io::PyDict header_of(const StatsHeader& header) {
  const auto value = [](const std::optional<std::int64_t>& v) { return v.has_value() ? PyValue(*v) : PyValue(); };
  io::PyDict out;
  if (header.num_samples.has_value()) out.insert("NumSamples", *header.num_samples);
  if (header.planned_samples.has_value()) out.insert("PlannedSamples", *header.planned_samples);
  out.insert("GlobalRank", value(header.global_rank));
  out.insert("LocalRank", value(header.local_rank));
  out.insert("Mode", header.mode);
  return out;
}

StatsHeader read_header(const Json& json, const std::string& name, const std::vector<std::string>& allowed) {
  if (!json.is_object()) io::fail_at(name, "expected an object, found {}", json.type_name());
  if (!json.contains("Nodes") || !json["Nodes"].is_object())
    io::fail_at(name, "expected a measurement, found no object 'Nodes'");
  io::ensure(!allowed.empty(), "a mode that is allowed");
  StatsHeader header;
  const Json mode = json.value("Mode", Json(allowed.front()));
  const auto word = std::ranges::find_if(allowed, [&](const std::string& one) { return mode == one; });
  if (word == allowed.end())
    io::fail_at(name, "key 'Mode': found {}, allowed: {}", in_message(mode), io::joined(allowed));
  header.mode = *word;
  header.num_samples = integer_or_null(json, "NumSamples", name);
  header.planned_samples = integer_or_null(json, "PlannedSamples", name);
  header.global_rank = integer_or_null(json, "GlobalRank", name);
  header.local_rank = integer_or_null(json, "LocalRank", name);
  return header;
}

}  // namespace fp8::measure
