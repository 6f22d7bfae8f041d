// SPDX-License-Identifier: Apache-2.0
// Checkpoint of safetensors.h. model.safetensors.index.json: {"metadata": {..}, "weight_map": {tensor name: file
// name}}.
#include "fp8/runtime/io/json.h"
#include "fp8/runtime/io/safetensors.h"

namespace fp8::io {
namespace {

namespace fs = std::filesystem;

// A name within the folder and nothing else: no path can lead a reader out of the checkpoint.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of("/\\") == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// file name -> the tensors it must hold.
std::map<std::string, std::vector<std::string>> read_index(const fs::path& path) {
  const Json index = read_json(path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object())
    fail(path, "has no object 'weight_map' (tensor name: file name)");
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, file] : map->get_ref<const Json::object_t&>()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>()))
      fail(path,
           "weight_map of " + in_quotes(tensor) + " is " + printable(file.dump()) + ", expected a plain file name");
    shards[file.get_ref<const std::string&>()].push_back(tensor);
  }
  return shards;
}

}  // namespace

Checkpoint::Checkpoint(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::map<std::string, std::vector<std::string>> shards;
  const fs::path index = folder_ / "model.safetensors.index.json";
  const bool is_file = fs::exists(folder_, error) && !fs::is_directory(folder_, error);
  if (is_file) {
    files_.push_back(std::make_unique<SafetensorsFile>(folder_));
    folder_ = folder_.has_parent_path() ? folder_.parent_path() : fs::path(".");
  } else if (!fs::is_directory(folder_, error)) {
    fail(folder_, "no such folder");
  } else if (fs::exists(index, error)) {
    shards = read_index(index);
  } else if (fs::exists(folder_ / "model.safetensors", error)) {
    files_.push_back(std::make_unique<SafetensorsFile>(folder_ / "model.safetensors"));
  } else {
    fail(folder_, "holds neither model.safetensors nor model.safetensors.index.json");
  }
  for (const auto& [name, tensors] : shards) {
    if (!fs::exists(folder_ / name, error)) fail(index, "names the shard " + in_quotes(name) + ", which is missing");
    files_.push_back(std::make_unique<SafetensorsFile>(folder_ / name));
    for (const auto& tensor : tensors) {
      const TensorInfo* found = files_.back()->find(tensor);
      if (!found) fail(index, "tensor " + in_quotes(tensor) + " is not in its shard " + in_quotes(name));
      where_.emplace(tensor,
                     std::pair(files_.size() - 1, static_cast<std::size_t>(found - files_.back()->tensors().data())));
    }
  }
  for (std::size_t file = 0; file < files_.size(); ++file) {
    const auto& tensors = files_[file]->tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (shards.empty()) where_.emplace(tensors[i].name, std::pair(file, i));
      const auto found = where_.find(tensors[i].name);
      if (found != where_.end() && found->second == std::pair(file, i)) names_.push_back(tensors[i].name);
    }
  }
}

bool Checkpoint::contains(const std::string& name) const { return where_.count(name) != 0; }

const TensorInfo& Checkpoint::info(const std::string& name) const {
  const auto found = where_.find(name);
  if (found == where_.end()) fail(folder_, "has no tensor " + in_quotes(name));
  return files_[found->second.first]->tensors()[found->second.second];
}

void Checkpoint::read(const std::string& name, void* destination, std::uint64_t offset, std::uint64_t size) const {
  const TensorInfo& tensor = info(name);
  files_[where_.at(name).first]->read(tensor, destination, offset, size);
}

void Checkpoint::read(const std::string& name, void* destination) const {
  read(name, destination, 0, info(name).bytes());
}

std::optional<Place> Checkpoint::place(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  return files_[where_.at(name).first]->place(tensor);
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& name : names_) sum += info(name).bytes();
  return sum;
}

}  // namespace fp8::io
