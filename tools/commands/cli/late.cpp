// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fp8/tools/commands/cli/output.h"

namespace fp8::commands {
namespace {

constexpr char kProgram[] = "libfp8_program.so";
constexpr char kTraining[] = "libfp8_train_program.so";

/// LibTorch's start runs through 47 MB of its code, most of it never again. The pages of an object's code leave this
/// process; what is called again comes back from the file's cache, 16 pages at a time.
int give_back_code(dl_phdr_info* object, std::size_t, void*) {
  if (std::string_view(object->dlpi_name).find("libtorch_cpu.so") == std::string_view::npos) return 0;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & (PF_X | PF_W)) != PF_X) continue;
    const std::uintptr_t begin = (object->dlpi_addr + part.p_vaddr) / page * page;
    const std::uintptr_t end = object->dlpi_addr + part.p_vaddr + part.p_memsz;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  return 1;
}

/// The LibTorch of FP8_LIBTORCH; what is loaded later takes it instead of looking for one. Nothing where it is not set.
void load_named_torch() {
  const char* folder = io::environment_value("FP8_LIBTORCH");
  if (folder == nullptr) return;
  if (dlopen((std::string(folder) + "/lib/libtorch_cpu.so").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const char* reason = dlerror();
  io::fail<io::Error>("FP8_LIBTORCH: found '{}', allowed: a folder with lib/libtorch_cpu.so: {}", io::printable(folder),
                      one_line(reason != nullptr ? reason : "no reason given"));
}

/// The reason why `library` can't be loaded; "" where it is now.
std::string load(const char* library) {
  // Global: what it registers with LibTorch is seen by every library that comes later. Functions are looked for when
  // they are called first, which takes half as long; all at once where LibTorch may be another than that of our build.
  const int when = io::environment_value("FP8_LIBTORCH") != nullptr ? RTLD_NOW : RTLD_LAZY;
  if (dlopen(library, when | RTLD_GLOBAL) != nullptr) return "";
  const char* reason = dlerror();
  return one_line(reason != nullptr ? reason : "no reason given");
}

/// The outermost "lib" of a folder, where a whole installation has its libraries: "env/lib" of "env/lib/python3/
/// site-packages/torch/lib". What LibTorch needs may stand in any folder of it.
std::filesystem::path installation_of(const std::filesystem::path& folder) {
  std::filesystem::path found;
  for (auto part = folder.begin(); part != folder.end() && found.filename() != "lib"; ++part) found /= *part;
  return found;
}

}  // namespace

std::vector<std::filesystem::path> library_folders() {
  std::vector<std::filesystem::path> folders;
  Dl_info own;  // this library is looked for, and looks for others, in the same folders as those that come later
  void* library = dladdr(kProgram, &own) != 0 ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  Dl_serinfo size;
  if (library != nullptr && dlinfo(library, RTLD_DI_SERINFOSIZE, &size) == 0) {
    std::vector<std::max_align_t> buffer(size.dls_size / sizeof(std::max_align_t) + 1);
    auto* info = reinterpret_cast<Dl_serinfo*>(buffer.data());
    if (dlinfo(library, RTLD_DI_SERINFOSIZE, info) == 0 && dlinfo(library, RTLD_DI_SERINFO, info) == 0)
      for (unsigned i = 0; i < info->dls_cnt; ++i) folders.emplace_back(info->dls_serpath[i].dls_name);
  }
  if (const char* torch = io::environment_value("FP8_LIBTORCH")) folders.emplace_back(std::string(torch) + "/lib");
  std::error_code missing;
  for (auto& folder : folders) folder = installation_of(std::filesystem::canonical(folder, missing));
  return folders;
}

void load_program() {
  load_named_torch();
  const std::string reason = load(kProgram);
  if (!reason.empty()) io::fail<io::Error>("LibTorch is needed here and can't be loaded: {}", reason);
  dl_iterate_phdr(give_back_code, nullptr);
}

void load_training() {
  load_program();
  const std::string reason = load(kTraining);
  if (reason.empty()) return;
  if (reason.starts_with(std::string(kTraining) + ": cannot open"))
    throw io::Error("training is not built; this builds it: cmake --build build --target fp8_train");
  io::fail<io::Error>("training can't be loaded: {}", reason);
}

void fail_not_provided() {
  io::fail<io::Error>("{}: found that of another version; install all of fp8's libraries together", kProgram);
}

}  // namespace fp8::commands
