// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/custom/extension.h"

#include <c10/util/ScopeExit.h>
#include <dlfcn.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::runtime {
namespace {

/// Collects what happens while this thread opens a library, which may load others.
struct Loading {
  Loading() : outer(std::exchange(innermost, this)) {}
  ~Loading() { innermost = outer; }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  std::vector<std::string> errors;
  std::vector<Extension*> extensions;
  Loading* outer;
  static thread_local Loading* innermost;  ///< null: this thread loads none
};
thread_local Loading* Loading::innermost = nullptr;

std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// The message of the exception that is being caught.
std::string caught_error() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return in_one_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return in_one_line(error.what());
  } catch (...) {
    return "threw what is no std::exception";
  }
}

std::set<std::string> operators() {
  std::set<std::string> names;
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames())
    names.insert(op.overload_name.empty() ? op.name : op.name + "." + op.overload_name);
  return names;
}

struct Parts {
  std::mutex mutex;
  std::set<std::string> names;
};

/// Never destroyed: registrations of libraries end when the process does.
Parts& registered_parts() {
  static auto* const all = new Parts;
  return *all;
}

std::set<std::string> parts() {
  auto& all = registered_parts();
  const std::lock_guard lock(all.mutex);
  return all.names;
}

std::vector<std::string> added(const std::set<std::string>& before, const std::set<std::string>& after) {
  std::vector<std::string> names;
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(), std::back_inserter(names));
  return names;
}

/// Its mutex is never held while a library opens: one may ask for others, in threads of its own too.
struct Extensions {
  std::mutex mutex;
  std::condition_variable opened;
  std::map<std::string, std::thread::id> opening;
  std::map<std::string, std::string> failed;  ///< with what error
  std::vector<LoadedExtension> all;
};

Extensions& loaded_extensions() {
  static Extensions& extensions = *new Extensions;
  return extensions;
}

/// dlopen(). Returns what its FP8_EXTENSION, or another static of it, threw; "": nothing. Throws where it can't be
/// loaded.
std::string open_library(const std::string& file) {
  Loading loading;
  void* library = nullptr;
  void* (*volatile open)(const char*, int) = dlopen;  // declared to throw nothing, which its library's start may do
  try {
    library = open(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  } catch (...) {
    loading.errors.push_back(caught_error());
  }
  if (library == nullptr && loading.errors.empty()) {
    const char* said = dlerror();
    std::string_view reason = said != nullptr ? said : "no reason given";
    if (reason.starts_with(file + ": ")) reason.remove_prefix(file.size() + 2);
    TORCH_CHECK(false, "[extension] found '", file, "', which can't be loaded: ", in_one_line(std::string(reason)));
  }
  if (loading.errors.empty()) return "";
  for (Extension* extension : loading.extensions) extension->take_back();
  if (library != nullptr) dlclose(library);
  return loading.errors.front();
}

/// load_extension() of a file that `known` marks as opening.
LoadedExtension open_extension(Extensions& known, const std::string& path) {
  const std::set<std::string> ops_before = operators(), parts_before = parts();
  const std::string error = open_library(path);
  const std::lock_guard lock(known.mutex);
  if (!error.empty()) known.failed.emplace(path, error);
  TORCH_CHECK(error.empty(), "[extension] '", path, "': ", error);
  const LoadedExtension extension{path, added(ops_before, operators()), added(parts_before, parts())};
  known.all.push_back(extension);
  return extension;
}

}  // namespace

void note_part(const std::string& part, bool registered) {
  auto& all = registered_parts();
  const std::lock_guard lock(all.mutex);
  if (registered)
    all.names.insert(part);
  else
    all.names.erase(part);
}

Extension::Extension(void (*define)(ExtensionOps&)) {
  Loading* const loading = Loading::innermost;
  try {
    define(ops_);
    if (loading != nullptr) loading->extensions.push_back(this);
    return;
  } catch (...) {
    take_back();
    std::string error = caught_error();
    if (loading != nullptr) {
      loading->errors.push_back(std::move(error));
    } else {
      const std::string file = library_of(reinterpret_cast<const void*>(define));
      std::fprintf(stderr, "fp8: error: %s: %s\n", file.c_str(), error.c_str());
    }
  }
}

LoadedExtension load_extension(const std::filesystem::path& file) {
  TORCH_CHECK(!file.empty(), "[extension] found '', allowed: the file of a library");
  std::error_code unreadable;
  const auto canonical = std::filesystem::canonical(file, unreadable);
  const std::string path = unreadable ? std::filesystem::absolute(file).string() : canonical.string();
  Extensions& known = loaded_extensions();
  {
    std::unique_lock lock(known.mutex);
    for (auto at = known.opening.find(path); at != known.opening.end(); at = known.opening.find(path)) {
      TORCH_CHECK(at->second != std::this_thread::get_id(), "[extension] '", path, "' loads itself");
      known.opened.wait(lock);
    }
    const auto same = std::find_if(known.all.begin(), known.all.end(), [&](const auto& e) { return e.file == path; });
    if (same != known.all.end()) return *same;
    const auto failed = known.failed.find(path);
    TORCH_CHECK(failed == known.failed.end(), "[extension] '", path, "': ", failed->second);
    known.opening.emplace(path, std::this_thread::get_id());
  }
  const auto done = c10::make_scope_exit([&] {
    const std::lock_guard lock(known.mutex);
    known.opening.erase(path);
    known.opened.notify_all();
  });
  return open_extension(known, path);
}

std::vector<std::filesystem::path> extensions_of_environment() {
  std::vector<std::filesystem::path> files;
  const char* value = io::environment_value("FP8_EXTENSIONS");
  for (std::string_view rest = value != nullptr ? value : ""; !rest.empty();) {
    const auto colon = rest.find(':');
    if (const std::string_view file = rest.substr(0, colon); !file.empty()) files.emplace_back(file);
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
  }
  return files;
}

std::vector<LoadedExtension> extensions() {
  Extensions& known = loaded_extensions();
  const std::lock_guard lock(known.mutex);
  return known.all;
}

std::string library_of(const void* address) {
  Dl_info info{};
  const bool found = dladdr(address, &info) != 0 && info.dli_fname != nullptr;
  const std::string file = found ? info.dli_fname : "";
  return file.find(".so") != std::string::npos ? file : "the program";
}

void keep_library(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) != 0 && info.dli_fname != nullptr)
    dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);  // null for the program itself, which stays anyway
}

}  // namespace fp8::runtime
