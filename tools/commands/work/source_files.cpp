// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/work/source_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <system_error>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::commands {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view kNames[] = {io::kConfigFile,      "generation_config.json",
                                       io::kIndexFile,       io::kTorchIndexFile,
                                       "tokenizer.json",     "tokenizer_config.json",
                                       "tekken.json",        "special_tokens_map.json",
                                       "chat_template.json", "chat_template.jinja",
                                       "added_tokens.json",  "vocab.json",
                                       "merges.txt",         "vocab.txt"};
constexpr std::string_view kEndings[] = {".safetensors", ".bin", ".model", ".tiktoken"};
}  // namespace

SourceFiles::File SourceFiles::look_at(const fs::path& path) {
  struct stat status = {};
  File file{path};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return file;
  file.exists = true;
  file.bytes = static_cast<std::uint64_t>(status.st_size);
  file.device = status.st_dev, file.inode = status.st_ino;
  file.modified = io::modified(status);
  return file;
}

SourceFiles::SourceFiles(const fs::path& model, const std::vector<fs::path>& more) {
  std::vector<fs::path> paths = more;
  std::error_code error;
  if (fs::is_directory(model, error)) {
    for (fs::directory_iterator it(model, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      const auto in = [](const auto& list, std::string_view what) {
        return std::find(std::begin(list), std::end(list), what) != std::end(list);
      };
      // Measurements may lie there as well.
      if (in(kNames, name) || in(kEndings, it->path().extension().string())) paths.push_back(it->path());
    }
  } else {
    paths.push_back(model);
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    if (path.empty()) continue;  // an option that was not given
    const auto file = look_at(fs::absolute(path));
    if (file.exists) files_.push_back(file);
  }
}

void SourceFiles::check_unchanged() const {
  for (const auto& before : files_) {
    const auto now = look_at(before.path);
    if (now == before) continue;
    const std::string name = io::printable(before.path.string(), 4096);
    if (!now.exists) throw io::Error(name + ": was removed while it was being read");
    if (now.bytes != before.bytes)
      throw io::Error(name + ": changed while it was being read, from " + std::to_string(before.bytes) + " to " +
                      std::to_string(now.bytes) + " bytes");
    throw io::Error(name + ": was " +
                    (now.inode != before.inode || now.device != before.device ? "replaced" : "written to") +
                    " while it was being read");
  }
}

io::Json SourceFiles::to_json() const {
  io::Json json = io::Json::object();
  for (const auto& f : files_) json[io::printable(f.path.string(), 4096)] = {f.bytes, f.modified};
  return json;
}

io::Json SourceFiles::ends() const {
  constexpr std::uint64_t kEnd = std::uint64_t{64} << 10;
  io::Json json = io::Json::object();
  for (const auto& f : files_) {
    const io::Descriptor file = io::open_regular(f.path);
    io::Checksum checksum;
    std::string part(std::min(kEnd, f.bytes), '\0');
    for (const std::uint64_t at : {std::uint64_t{0}, f.bytes - part.size()}) {
      io::read_at(file.get(), f.path, at, part.data(), part.size());
      checksum.update(part.data(), part.size());
    }
    json[io::printable(f.path.filename().string(), 4096)] = {f.bytes, io::checksum_text(checksum.value())};
  }
  return json;
}

}  // namespace fp8::commands
