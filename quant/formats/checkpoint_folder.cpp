// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/formats/checkpoint_folder.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "fp8/runtime/io/error.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCarriedNames[] = {"generation_config.json",      "tokenizer.json",          "tokenizer_config.json", "special_tokens_map.json",
                                         "added_tokens.json",           "vocab.json",              "merges.txt",            "vocab.txt",
                                         "chat_template.jinja",         "chat_template.json",      "processor_config.json", "preprocessor_config.json",
                                         "image_processor_config.json", "video_preprocessor_config.json"};
constexpr const char* kCarriedEndings[] = {".model", ".tiktoken", ".py"};
constexpr const char* kCarriedBeginnings[] = {"README", "LICENSE", "NOTICE"};
constexpr const char* kEmbeddingNames[] = {"embed_tokens", "wte", "wpe", "embeddings", "word_embeddings", "position_embeddings"};

bool is_carried(const std::string& name) {
  for (const char* n : kCarriedNames) {
    if (name == n) return true;
  }
  for (const std::string end : kCarriedEndings) {
    if (name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0) return true;
  }
  return std::any_of(std::begin(kCarriedBeginnings), std::end(kCarriedBeginnings), [&](const char* b) { return name.rfind(b, 0) == 0; });
}

void carry_file(const fs::path& from, const fs::path& to) {
  std::ifstream in(from, std::ios::binary);
  if (!in) throw io::Error(from.string() + ": can't be read");
  io::AtomicFile file(to);
  std::vector<char> buffer(1 << 20);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
    file.append(buffer.data(), static_cast<std::size_t>(in.gcount()));
  }
  file.commit();
}

std::string shard_name(std::size_t i, std::size_t n) {
  char text[64];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", i + 1, n);
  return n == 1 ? "model.safetensors" : text;
}

}  // namespace

io::Json read_model_config(const fs::path& model) {
  const fs::path path = model / "config.json";
  if (!fs::is_directory(model)) throw io::Error(model.string() + ": expected a model folder, found " + (fs::exists(model) ? "a file" : "nothing"));
  io::Json config = io::read_json(path);
  if (!config.is_object()) throw io::Error(path.string() + ": expected an object, found " + config.type_name());
  if (config.contains("quantization_config") && !config["quantization_config"].is_null()) {
    throw io::Error(path.string() + ": key 'quantization_config': the model is quantized already; expected a high precision checkpoint");
  }
  config.erase("quantization_config");
  return config;
}

std::string type_of_weight(const std::string& module, const std::vector<std::int64_t>& shape) {
  const std::string last = module.substr(module.rfind('.') + 1);
  for (const char* name : kEmbeddingNames) {
    if (last == name) return "Embedding";
  }
  return shape.size() == 2 ? "Linear" : "Conv" + std::to_string(shape.size() - 2) + "d";
}

std::uint64_t bytes_of(const io::SafetensorsWriter::Entry& e) {
  std::uint64_t n = static_cast<std::uint64_t>(io::size_of(e.dtype));
  for (auto d : e.shape) n *= static_cast<std::uint64_t>(d);
  return n;
}

void OutputFolder::write_json(const std::string& name, const io::Json& value) { io::write_json(directory_.file(name), value); }

void OutputFolder::carry_through(const fs::path& source) {
  for (const auto& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && is_carried(name)) carry_file(entry.path(), directory_.file(name));
  }
}

ShardedWriter::ShardedWriter(io::OutputDirectory& folder, const std::vector<io::SafetensorsWriter::Entry>& entries, std::uint64_t shard_bytes) : folder_(folder) {
  std::vector<std::vector<io::SafetensorsWriter::Entry>> shards(1);
  std::uint64_t in_shard = 0;
  for (const auto& e : entries) {
    const std::uint64_t bytes = bytes_of(e);
    if (in_shard > 0 && in_shard + bytes > shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    in_shard += bytes;
    total_ += bytes;
    where_[e.name] = shards.size() - 1;
    shards.back().push_back(e);
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    file_names_.push_back(shard_name(i, shards.size()));
    files_.push_back(std::make_unique<io::SafetensorsWriter>(folder_.file(file_names_[i]), shards[i]));
  }
}

void ShardedWriter::write(const std::string& tensor, const void* data, std::uint64_t offset, std::uint64_t size) {
  files_[where_.at(tensor)]->write(tensor, data, offset, size);
}

void ShardedWriter::commit() {
  for (auto& file : files_) file->commit();
  if (files_.size() == 1) return;
  io::Json map = io::Json::object();
  for (const auto& [tensor, file] : where_) map[tensor] = file_names_[file];
  io::write_json(folder_.file("model.safetensors.index.json"), io::Json{{"metadata", {{"total_size", total_}}}, {"weight_map", map}});
}

}  // namespace fp8::quant
