// SPDX-License-Identifier: Apache-2.0
// fp8 inspect: finds out what PATH is.
#include "fp8/tools/commands/inspect.h"

#include <algorithm>
#include <memory>
#include <system_error>
#include <vector>

#include "fp8/runtime/io/error.h"
#include "fp8/tools/commands/command.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// The measurement of a folder that is no checkpoint: *_hooks_maxabs.json, else the only *_hooks_*.json.
fs::path find_measurement(const fs::path& folder) {
  std::vector<fs::path> all, plain;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (!ends_with(name, ".json") || ends_with(name, "_mod_list.json") || name.find("_hooks_") == std::string::npos) continue;
    all.push_back(entry.path());
    if (ends_with(name, "_hooks_maxabs.json")) plain.push_back(entry.path());
  }
  if (plain.size() == 1) return plain[0];
  if (all.size() == 1) return all[0];
  if (all.empty())
    throw io::Error(folder.string() + ": found neither model.safetensors, model.safetensors.index.json nor *_hooks_*.json");
  std::sort(all.begin(), all.end());
  throw io::Error(folder.string() + ": found " + std::to_string(all.size()) + " measurement files, name one: " +
                  all[0].filename().string() + ", " + all[1].filename().string() + (all.size() > 2 ? ", ..." : ""));
}

Inspection inspect(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) throw io::Error(path.string() + ": no such file or folder");
  if (fs::is_directory(path, ignored)) {
    for (const char* name : {"model.safetensors", "model.safetensors.index.json", "config.json"})
      if (fs::exists(path / name, ignored)) return inspect_checkpoint(path);
    return inspect_measurement(find_measurement(path));
  }
  const auto extension = path.extension().string();
  if (extension == ".safetensors") return inspect_checkpoint(path);
  if (extension == ".json" || extension == ".npz") return inspect_measurement(path);
  throw io::Error(path.string() + ": found a file ending in '" + extension + "', allowed: a folder, .safetensors, .json, .npz");
}

}  // namespace

Action add_inspect(Options& options) {
  auto path = std::make_shared<fs::path>();
  options.path("PATH", *path, "Checkpoint folder, .safetensors, or a measurement or scale file (.json, .npz)", Options::Need::required);
  return [path](Context& context) {
    const auto inspection = inspect(*path);
    context.result(inspection.json, inspection.text);
  };
}

}  // namespace fp8::commands
