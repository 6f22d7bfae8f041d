// SPDX-License-Identifier: Apache-2.0
// Checkpoint of safetensors.h. model.safetensors.index.json: {"metadata": {..}, "weight_map": {tensor name: file
// name}}.
#include <numeric>
#include <unordered_set>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/io/tensors/torch_file.h"

namespace fp8::io {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{256} << 20;

struct Index {
  std::vector<std::string> shards;                             // in the order of their names
  std::vector<std::pair<std::string, std::uint32_t>> tensors;  // name and shard
};

// Entry by entry: an index of 10^6 tensors as one tree of JSON values would take half a gigabyte.
Index read_index(const fs::path& path) {
  const std::string text = read_file(path, kMaxIndexBytes);
  std::map<std::string, std::uint32_t> shards;
  Index index;
  const Json rest = parse_json_members(text, path.string(), "weight_map", [&](std::string&& tensor, Json&& file) {
    if (!file.is_string() || !is_file_name(file.get_ref<const std::string&>()))
      fail(path,
           "weight_map of " + in_quotes(tensor) + " is " + printable(file.dump()) + ", expected a plain file name");
    const auto shard =
        shards.emplace(std::move(file.get_ref<std::string&>()), static_cast<std::uint32_t>(shards.size())).first;
    index.tensors.emplace_back(std::move(tensor), shard->second);
  });
  if (!rest.is_object() || !rest.contains("weight_map") || !rest["weight_map"].is_object())
    fail(path, "has no object 'weight_map' (tensor name: file name)");
  if (index.tensors.empty()) fail(path, "weight_map is empty, expected tensor name: file name");
  // Shards are numbered by their names, tensors stand by their shards.
  std::vector<std::uint32_t> number(shards.size());
  for (const auto& [name, first_met] : shards) {
    number[first_met] = static_cast<std::uint32_t>(index.shards.size());
    index.shards.push_back(name);
  }
  for (auto& [tensor, shard] : index.tensors) shard = number[shard];
  std::sort(index.tensors.begin(), index.tensors.end());
  const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (std::adjacent_find(index.tensors.begin(), index.tensors.end(), same_name) != index.tensors.end())
    parse_json(text, path.string());  // tells where the name stands again
  std::stable_sort(index.tensors.begin(), index.tensors.end(),
                   [](const auto& a, const auto& b) { return a.second < b.second; });
  return index;
}

// Data beside a model has names without parts: "input_ids". What can't be opened may be anything.
bool holds_parameters(const fs::path& folder, const std::string& name) {
  try {
    const SafetensorsFile file(source_file(folder, name));
    return std::any_of(file.tensors().begin(), file.tensors().end(),
                       [](const TensorInfo& info) { return info.name.find('.') != std::string::npos; });
  } catch (const Error&) {
    return true;
  }
}

std::unique_ptr<TensorFile> opened(const fs::path& path, bool is_torch) {
  if (is_torch) return std::make_unique<TorchFile>(path);
  return std::make_unique<SafetensorsFile>(path);
}

}  // namespace

Checkpoint::Checkpoint(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  const fs::file_status status = fs::status(folder_, error);
  if (!fs::is_directory(status)) {
    if (!is_there(folder_)) fail(folder_, "no such folder");
    open_file(folder_, is_torch_file(folder_));
    folder_ = folder_.has_parent_path() ? folder_.parent_path() : fs::path(".");
    return;
  }
  if (!open_either(false) && !open_either(true))
    fail(folder_, "holds neither model.safetensors nor model.safetensors.index.json (nor pytorch_model.bin)");
  find_unread();
}

bool Checkpoint::open_either(bool is_torch) {
  const std::string file = is_torch ? kTorchWeightsFile : kWeightsFile, index = is_torch ? kTorchIndexFile : kIndexFile;
  const bool has_file = is_there(folder_ / file), has_index = is_there(folder_ / index);
  if (!has_file && !has_index) return false;
  if (has_file && has_index) {
    const auto shards = read_index(source_file(folder_, index)).shards;
    const auto there =
        std::count_if(shards.begin(), shards.end(), [&](const auto& s) { return is_there(folder_ / s); });
    if (there == 0) {
      notices_.push_back(index + " names shards that are not there; " + file + " is read, which it does not name");
      open_file(source_file(folder_, file), is_torch);
      return true;
    }
    if (std::find(shards.begin(), shards.end(), file) == shards.end())
      fail(folder_ / file, "lies beside the shards of " + index +
                               ", which does not name it: two sets of weights, of which readers take one or the other; "
                               "remove what is out of date");
  }
  const fs::path path = source_file(folder_, has_index ? index : file);
  has_index ? open_shards(path, is_torch) : open_file(path, is_torch);
  return true;
}

void Checkpoint::find_unread() {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> others;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    const bool is_read = std::any_of(files_.begin(), files_.end(), [&](const auto& file) {
      return file->path().filename() == entry.path().filename();
    });
    if (name.ends_with(".safetensors") && !is_read && holds_parameters(folder_, name)) others.push_back(name);
  }
  if (others.empty()) return;
  std::sort(others.begin(), others.end());
  std::string line;
  for (std::size_t i = 0; i < std::min(kShown, others.size()); ++i) line += (i == 0 ? "" : ", ") + printable(others[i]);
  if (others.size() > kShown) line += " and " + std::to_string(others.size() - kShown) + " more";
  notices_.push_back(line + (others.size() > 1 ? " are" : " is") + " not read, nor carried to an output");
}

void Checkpoint::open_file(const fs::path& path, bool is_torch) {
  files_.push_back(opened(path, is_torch));
  for (std::uint32_t i = 0; i < files_[0]->tensors().size(); ++i) order_.push_back({0, i});
}

void Checkpoint::open_shards(const fs::path& path, bool is_torch) {
  const Index index = read_index(path);
  auto tensor = index.tensors.begin();
  std::unordered_set<std::string_view> named;  // of all tensors that the index names, once a shard has others
  std::vector<std::string> more, twice;
  for (std::uint32_t shard = 0; shard < index.shards.size(); ++shard) {
    const std::string& name = index.shards[shard];
    if (!is_there(folder_ / name)) fail(path, "names the shard " + in_quotes(name) + ", which is missing");
    files_.push_back(opened(source_file(folder_, name), is_torch));
    const TensorFile& file = *files_.back();
    const std::size_t first = order_.size();
    for (; tensor != index.tensors.end() && tensor->second == shard; ++tensor) {
      const TensorInfo* found = file.find(tensor->first);
      if (!found) fail(path, "tensor " + in_quotes(tensor->first) + " is not in its shard " + in_quotes(name));
      order_.push_back({shard, static_cast<std::uint32_t>(found - file.tensors().data())});
    }
    if (file.tensors().size() > order_.size() - first) {
      if (named.empty())
        for (const auto& [indexed, of_shard] : index.tensors) named.insert(indexed);
      std::unordered_set<std::uint32_t> known;
      for (std::size_t i = first; i < order_.size(); ++i) known.insert(order_[i].tensor);
      for (std::uint32_t i = 0; i < file.tensors().size(); ++i) {
        if (known.contains(i)) continue;
        const std::string& found = file.tensors()[i].name;
        (named.contains(found) ? twice : more).push_back(found);
        if (!named.contains(found)) order_.push_back({shard, i});
      }
    }
    std::sort(order_.begin() + static_cast<std::ptrdiff_t>(first), order_.end(),
              [](const Where& a, const Where& b) { return a.tensor < b.tensor; });
  }
  ensure(tensor == index.tensors.end(), "the index's tensors by their shards");
  by_name_.resize(order_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return info(a).name < info(b).name; });
  const auto same = [&](std::uint32_t a, std::uint32_t b) { return info(a).name == info(b).name; };
  if (const auto found = std::adjacent_find(by_name_.begin(), by_name_.end(), same); found != by_name_.end())
    fail(path, "tensor " + in_quotes(info(*found).name) + " stands in two shards, and the index does not name it");
  const auto note = [&](const std::vector<std::string>& tensors, const std::string& what) {
    if (!tensors.empty())
      notices_.push_back(io::message("{}{} of the shards that {}, the first is {}", tensors.size(),
                                     tensors.size() == 1 ? " tensor" : " tensors", what, printable(tensors.front())));
  };
  note(more, path.filename().string() + " does not name, read as other readers do");
  note(twice, "another shard has too, which is read, as " + path.filename().string() + " says");
}

const Checkpoint::Where* Checkpoint::find(const std::string& name) const {
  if (by_name_.empty()) {
    const TensorInfo* found = files_[0]->find(name);
    return found == nullptr ? nullptr : &order_[static_cast<std::size_t>(found - files_[0]->tensors().data())];
  }
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [&](std::uint32_t i, const std::string& n) { return info(i).name < n; });
  return found == by_name_.end() || info(*found).name != name ? nullptr : &order_[*found];
}

const Checkpoint::Where& Checkpoint::where(const std::string& name) const {
  const Where* found = find(name);
  if (found == nullptr) fail(folder_, "has no tensor " + in_quotes(name));
  return *found;
}

bool Checkpoint::contains(const std::string& name) const { return find(name) != nullptr; }

const TensorInfo& Checkpoint::info(std::size_t i) const { return files_[order_[i].file]->tensors()[order_[i].tensor]; }

const TensorInfo& Checkpoint::info(const std::string& name) const {
  const Where& at = where(name);
  return files_[at.file]->tensors()[at.tensor];
}

void Checkpoint::read(const std::string& name, void* destination, std::uint64_t offset, std::uint64_t size) const {
  const Where& at = where(name);
  files_[at.file]->read(files_[at.file]->tensors()[at.tensor], destination, offset, size);
}

void Checkpoint::read(const std::string& name, void* destination) const {
  read(name, destination, 0, info(name).bytes());
}

std::optional<Place> Checkpoint::place(const std::string& name) const {
  const Where& at = where(name);
  return files_[at.file]->place(files_[at.file]->tensors()[at.tensor]);
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < order_.size(); ++i) sum += info(i).bytes();
  return sum;
}

std::size_t TensorNames::size() const { return checkpoint_->order_.size(); }
const std::string& TensorNames::operator[](std::size_t i) const { return checkpoint_->info(i).name; }
const std::string& TensorNames::Iterator::operator*() const { return checkpoint_->info(i_).name; }

}  // namespace fp8::io
