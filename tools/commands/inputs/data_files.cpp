// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/data_files.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "fp8/tools/commands/cli/context.h"

namespace fp8::commands {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostFiles = 100'000;

bool is_pattern(const std::string& name) { return name.find_first_of("*?[") != std::string::npos; }

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> names;
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename());
  std::ranges::sort(names, {}, [](const fs::path& name) -> const std::string& { return name.native(); });
  return names;
}

/// Adds what fits the parts from `part` on below `folder`.
void find_files(const fs::path& folder, const std::vector<std::string>& parts, std::size_t part,
                std::vector<fs::path>& found) {
  std::error_code error;
  if (found.size() > kMostFiles) return;
  if (part == parts.size()) {
    if (!fs::is_directory(folder, error)) found.push_back(folder);
    return;
  }
  if (parts[part] == "**") {
    find_files(folder, parts, part + 1, found);
    for (const auto& name : entries_of(folder)) {
      const fs::path inner = folder / name;
      if (name.native()[0] != '.' && fs::is_directory(inner, error) && !fs::is_symlink(inner, error))
        find_files(inner, parts, part, found);
    }
  } else if (!is_pattern(parts[part])) {
    if (fs::exists(folder / parts[part], error)) find_files(folder / parts[part], parts, part + 1, found);
  } else {
    for (const auto& name : entries_of(folder))
      if (::fnmatch(parts[part].c_str(), name.c_str(), FNM_PERIOD) == 0)
        find_files(folder / name, parts, part + 1, found);
  }
}

}  // namespace

text::DataFiles data_files(const std::string& option, const std::vector<std::string>& names) {
  text::DataFiles files;
  std::error_code error;
  for (const auto& name : names) {
    if (!is_pattern(name) || fs::exists(name, error)) {
      files.emplace_back(name);
      continue;
    }
    const fs::path pattern(name);
    std::vector<std::string> parts;
    for (const auto& part : pattern.relative_path()) parts.push_back(part.string());
    std::vector<fs::path> found;
    find_files(pattern.root_path(), parts, 0, found);
    if (found.empty()) throw UsageError(option + ": found '" + name + "', which no file fits");
    if (found.size() > kMostFiles)
      throw UsageError(option + ": '" + name + "' fits more than " + std::to_string(kMostFiles) + " files");
    files.insert(files.end(), found.begin(), found.end());
  }
  if (std::ranges::count(files, fs::path(text::kStandardInput)) > 1)
    throw UsageError(option + ": found - (standard input) twice, allowed: once");
  return files;
}

}  // namespace fp8::commands
