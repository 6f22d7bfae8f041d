// SPDX-License-Identifier: Apache-2.0
// Checkpoint of safetensors.h. model.safetensors.index.json: {"metadata": {..}, "weight_map": {tensor name: file
// name}}.
#include <algorithm>
#include <numeric>

#include "fp8/runtime/io/base/ensure.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/file_names.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/json/json_members.h"
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
  for (const bool is_torch : {false, true}) {
    const fs::path file = folder_ / (is_torch ? kTorchWeightsFile : kWeightsFile),
                   index = folder_ / (is_torch ? kTorchIndexFile : kIndexFile);
    if (!is_there(index) && !is_there(file)) continue;
    const fs::path opened = source_file(folder_, is_there(index) ? index.filename() : file.filename());
    is_there(index) ? open_shards(opened, is_torch) : open_file(opened, is_torch);
    return;
  }
  fail(folder_, "holds neither model.safetensors nor model.safetensors.index.json (nor pytorch_model.bin)");
}

void Checkpoint::open_file(const fs::path& path, bool is_torch) {
  if (is_torch)
    files_.push_back(std::make_unique<TorchFile>(path));
  else
    files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (std::uint32_t i = 0; i < files_[0]->tensors().size(); ++i) order_.push_back({0, i});
}

void Checkpoint::open_shards(const fs::path& path, bool is_torch) {
  const Index index = read_index(path);
  auto tensor = index.tensors.begin();
  for (std::uint32_t shard = 0; shard < index.shards.size(); ++shard) {
    const std::string& name = index.shards[shard];
    if (!is_there(folder_ / name)) fail(path, "names the shard " + in_quotes(name) + ", which is missing");
    const fs::path opened = source_file(folder_, name);
    if (is_torch)
      files_.push_back(std::make_unique<TorchFile>(opened));
    else
      files_.push_back(std::make_unique<SafetensorsFile>(opened));
    const TensorFile& file = *files_.back();
    const std::size_t first = order_.size();
    for (; tensor != index.tensors.end() && tensor->second == shard; ++tensor) {
      const TensorInfo* found = file.find(tensor->first);
      if (!found) fail(path, "tensor " + in_quotes(tensor->first) + " is not in its shard " + in_quotes(name));
      order_.push_back({shard, static_cast<std::uint32_t>(found - file.tensors().data())});
    }
    std::sort(order_.begin() + static_cast<std::ptrdiff_t>(first), order_.end(),
              [](const Where& a, const Where& b) { return a.tensor < b.tensor; });
  }
  ensure(tensor == index.tensors.end(), "the index's tensors by their shards");
  by_name_.resize(order_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return info(a).name < info(b).name; });
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
