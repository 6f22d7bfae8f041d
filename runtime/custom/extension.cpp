// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/custom/extension.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "fp8/runtime/custom/library_of.h"
#include "fp8/runtime/io/base/environment.h"

namespace fp8::runtime {
namespace {

/// Where errors of a library that this thread is loading go; null: nobody here loads one.
thread_local std::vector<std::string>* t_load_errors = nullptr;

std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::set<std::string> operators() {
  std::set<std::string> names;
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames())
    names.insert(op.overload_name.empty() ? op.name : op.name + "." + op.overload_name);
  return names;
}

struct Extensions {
  std::mutex mutex;
  std::vector<LoadedExtension> all;
};

Extensions& loaded_extensions() {
  static Extensions& extensions = *new Extensions;
  return extensions;
}

/// dlopen() that hears of errors of FP8_EXTENSION. Throws.
void open_library(const std::string& file) {
  std::vector<std::string> errors;
  t_load_errors = &errors;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  t_load_errors = nullptr;
  if (library == nullptr) {
    const char* said = dlerror();
    std::string_view reason = said != nullptr ? said : "no reason given";
    if (reason.starts_with(file + ": ")) reason.remove_prefix(file.size() + 2);
    TORCH_CHECK(false, "[extension] found '", file, "', which can't be loaded: ", in_one_line(std::string(reason)));
  }
  if (errors.empty()) return;
  dlclose(library);
  TORCH_CHECK(false, "[extension] '", file, "': ", errors.front());
}

}  // namespace

Extension::Extension(void (*define)(ExtensionOps&)) {
  std::string error;
  try {
    define(ops_);
    return;
  } catch (const c10::Error& caught) {
    error = caught.what_without_backtrace();
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  ops_.ops_.clear();
  error = in_one_line(std::move(error));
  if (t_load_errors != nullptr) {
    t_load_errors->push_back(std::move(error));
  } else {
    const std::string file = library_of(reinterpret_cast<const void*>(define));
    std::fprintf(stderr, "fp8: error: %s: %s\n", file.c_str(), error.c_str());
  }
}

LoadedExtension load_extension(const std::filesystem::path& file) {
  auto& [mutex, all] = loaded_extensions();
  const std::lock_guard lock(mutex);
  std::error_code unreadable;
  const auto canonical = std::filesystem::canonical(file, unreadable);
  const std::string path = unreadable ? std::filesystem::absolute(file).string() : canonical.string();
  const auto same = std::find_if(all.begin(), all.end(), [&](const LoadedExtension& e) { return e.file == path; });
  if (same != all.end()) return *same;
  const std::set<std::string> before = operators();
  open_library(path);
  LoadedExtension extension{path, {}};
  for (const std::string& name : operators())
    if (before.count(name) == 0) extension.ops.push_back(name);
  all.push_back(extension);
  return extension;
}

void load_extensions_from_environment() {
  const char* value = io::environment_value("FP8_EXTENSIONS");
  for (std::string_view rest = value != nullptr ? value : ""; !rest.empty();) {
    const auto colon = rest.find(':');
    if (const std::string_view file = rest.substr(0, colon); !file.empty()) load_extension(std::filesystem::path(file));
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
  }
}

std::vector<LoadedExtension> extensions() {
  auto& [mutex, all] = loaded_extensions();
  const std::lock_guard lock(mutex);
  return all;
}

}  // namespace fp8::runtime
