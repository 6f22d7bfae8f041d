// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/carry_through.h"

#include <sys/stat.h>

#include <algorithm>
#include <string_view>
#include <system_error>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/file_names.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNames[] = {"generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "chat_template.json",
                                       "normalizer.json",
                                       "tekken.json",
                                       "bpe.codes",
                                       "spk_dict.pt"};  // Qwen2.5-Omni's voices, which its class asks for
constexpr std::string_view kEndings[] = {
    ".model", ".tiktoken", ".spm", ".jinja", ".txt", "processor_config.json", "extractor_config.json"};
constexpr std::string_view kBeginnings[] = {"README", "LICENSE", "LICENCE", "NOTICE", "USE_POLICY"};
constexpr std::string_view kTemplateFolders[] = {"chat_templates", "additional_chat_templates"};
constexpr std::string_view kConfigs[] = {io::kConfigFile, "tokenizer_config.json", "processor_config.json",
                                         "preprocessor_config.json"};

bool is_carried(const std::string& name, bool remote_code) {
  const auto is = [&](std::string_view n) { return name == n; };
  const auto ends = [&](std::string_view e) { return name.ends_with(e); };
  const auto begins = [&](std::string_view b) { return name.starts_with(b); };
  if (ends(".safetensors") || ends(".bin") || ends(".gguf") || ends(".index.json"))
    return false;  // whatever they begin with
  return std::any_of(std::begin(kNames), std::end(kNames), is) ||
         std::any_of(std::begin(kEndings), std::end(kEndings), ends) ||
         std::any_of(std::begin(kBeginnings), std::end(kBeginnings), begins) || (remote_code && ends(".py"));
}

/// Whether some config names classes of the folder's own Python files. They import one another, so all of them go
/// along.
bool has_remote_code(const fs::path& source) {
  std::error_code ignored;
  return std::any_of(std::begin(kConfigs), std::end(kConfigs), [&](std::string_view name) {
    if (!fs::is_regular_file(source / name, ignored)) return false;
    try {
      const io::Json config = io::read_json(io::source_file(source, name));
      return config.is_object() && config.contains("auto_map") && !config["auto_map"].empty();
    } catch (const io::Error&) {
      return true;  // can't be told; a file too many does no harm
    }
  });
}

void carry_file(const fs::path& from, const fs::path& to) {
  std::uint64_t size = 0;
  const io::Descriptor in = io::open_regular(from, &size);
  io::AtomicFile file(to, size);
  std::string buffer;
  for (std::uint64_t at = 0; at < size; at += buffer.size()) {
    buffer.resize(std::min<std::uint64_t>(io::kChunkBytes, size - at));
    io::read_at(in.get(), from, at, buffer.data(), buffer.size());
    file.append(buffer);
  }
  file.commit();
}

/// What a reader of the output takes: its configs and its tokenizer. Without them the output would be another model.
bool is_needed(std::string_view name) {
  constexpr std::string_view kNeeded[] = {".json", ".jinja", ".model", ".tiktoken", ".spm", "vocab.txt", "merges.txt"};
  return std::ranges::any_of(kNeeded, [&](std::string_view ending) { return name.ends_with(ending); });
}

struct Carried {
  std::vector<std::string> names;  ///< of files below the source
  std::vector<std::string> left;   ///< what has a carried name and stays behind: its path, and why
};

/// Takes source/name, or says why not. Throws io::Error for what is needed and lies elsewhere.
void take(const fs::path& source, const std::string& name, Carried& carried) {
  const auto leave = [&](const std::string& what) {
    carried.left.push_back(io::printable((source / name).string(), 4096) + ": " + what + ", not carried through");
  };
  if (const auto target = io::link_out_of(source, name)) {
    const bool folder = fs::is_directory(*target);
    if (!folder && is_needed(name)) io::source_file(source, name);
    return leave("a link to " + io::printable(target->string(), 4096) +
                 (folder ? ", a folder" : ", which is no file of the model's folder"));
  }
  std::error_code error;
  const fs::file_status status = fs::status(source / name, error);  // follows links; a loop is an error, not a hang
  if (fs::is_regular_file(status)) return carried.names.push_back(name);
  if (fs::is_directory(status)) return;
  if (!fs::is_symlink(fs::symlink_status(source / name, error))) return leave("not a regular file");
  leave(fs::exists(status) ? "a link to something that is no file" : "a link that leads nowhere");
}

/// In the order of their names.
Carried carried_of(const fs::path& source) {
  const bool remote_code = has_remote_code(source);
  Carried carried;
  for (const auto& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (is_carried(name, remote_code)) take(source, name, carried);
  }
  for (const std::string_view folder : kTemplateFolders) {
    std::error_code error;
    if (!fs::is_directory(source / folder, error)) continue;
    if (io::link_out_of(source, folder)) {
      take(source, std::string(folder), carried);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(source / folder))
      take(source, std::string(folder) + "/" + entry.path().filename().string(), carried);
  }
  std::ranges::sort(carried.names);
  std::ranges::sort(carried.left);
  return carried;
}

}  // namespace

io::Json identity_of_file(const fs::path& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return nullptr;
  return {{"size", status.st_size},
          {"modified", std::to_string(status.st_mtim.tv_sec) + "." +
                           std::to_string(1'000'000'000 + status.st_mtim.tv_nsec).substr(1)}};
}

io::Json carried_identity_of(const fs::path& source) {
  io::Json files = io::Json::object();
  std::error_code error;
  if (!fs::is_directory(source, error)) return files;
  for (const auto& name : carried_of(source).names) files[name] = identity_of_file(source / name);
  return files;
}

void require_carried_unchanged(const fs::path& source, const io::Json& carried) {
  if (!carried.is_object()) return;
  for (const auto& [name, before] : carried.items()) {
    const io::Json now = identity_of_file(source / name);
    if (now == before) continue;
    io::fail(source / name, now.is_null() ? "was removed while the checkpoint was made, of which it is a part"
                                          : "changed while the checkpoint was made, of which it is a part");
  }
}

std::vector<std::string> carry_files(const fs::path& source, const io::OutputDirectory& out) {
  Carried carried = carried_of(source);
  for (const auto& name : carried.names) carry_file(source / name, out.file(name));
  return std::move(carried.left);
}

}  // namespace fp8::quant
