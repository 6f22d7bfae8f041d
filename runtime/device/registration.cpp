// SPDX-License-Identifier: Apache-2.0
// All state stands in functions and is never destroyed: the first question comes from the first static initialiser of
// the library, the last from a thread that outlives main().
#include "fp8/runtime/device/registration.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace fp8::runtime {
namespace {

/// A library of this process: where it was loaded, and from which file.
struct Loaded {
  const void* base = nullptr;
  std::string file = "?";
};

/// Not by dladdr, which looks for the symbol, too: a scan of all that the library has.
Loaded library_of(const void* address) {
  struct Search {
    std::uintptr_t address;
    Loaded found;
  } search{reinterpret_cast<std::uintptr_t>(address), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* data) {
        auto& [wanted, found] = *static_cast<Search*>(data);
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& part = library->dlpi_phdr[i];
          const std::uintptr_t begin = library->dlpi_addr + part.p_vaddr;
          if (part.p_type != PT_LOAD || wanted - begin >= part.p_memsz) continue;
          found.base = reinterpret_cast<const void*>(library->dlpi_addr);
          found.file = *library->dlpi_name != 0 ? library->dlpi_name : "the program";
          return 1;
        }
        return 0;
      },
      &search);
  return search.found;
}

/// "libfp8_quant" of "/opt/lib/libfp8_quant.so.0".
std::string name_of(const std::string& file) {
  const std::string name = file.substr(file.rfind('/') + 1);
  return name.substr(0, name.find(".so"));
}

std::string refusal(const Loaded& own, const std::string& what, const Loaded& other) {
  return own.file + " registers nothing: " + what + " " + other.file + "; load one of the two";
}

/// Why this copy of the runtime may not have the device; empty: it may. The answer of the first call, before this
/// copy's own guard is there, counts.
const std::string& device_refusal() {
  static const std::string& reason = *new std::string([]() -> std::string {
    if (!c10::impl::hasDeviceGuardImpl(c10::kHPU)) return "";
    const auto* guard = c10::impl::getDeviceGuardImpl(c10::kHPU);
    const void* methods = *reinterpret_cast<const void* const*>(guard);  // they lie in the library that owns the device
    return refusal(library_of(reinterpret_cast<const void*>(&device_refusal)), "the hpu device belongs already to",
                   library_of(methods));
  }());
  return reason;
}

/// The first copy of each library that this runtime has seen, and those that were refused.
struct Seen {
  std::mutex mutex;
  std::map<std::string, Loaded> first;
  std::map<const void*, std::string> refused;  ///< by base
};

Seen& seen() {
  static Seen& all = *new Seen;
  return all;
}

}  // namespace

bool may_register(const void* inside) {
  const Loaded own = library_of(inside);
  Seen& all = seen();
  const std::lock_guard lock(all.mutex);
  if (all.refused.count(own.base) != 0) return false;
  std::string reason = device_refusal();
  if (reason.empty()) {
    const auto [first, added] = all.first.emplace(name_of(own.file), own);
    if (added || first->second.base == own.base) return true;
    reason = refusal(own, "this library is loaded already, from", first->second);
  }
  if (all.refused.empty()) std::fprintf(stderr, "fp8: error: %s\n", reason.c_str());
  all.refused.emplace(own.base, std::move(reason));
  return false;
}

void require_registered() { TORCH_CHECK(device_refusal().empty(), "[hpu] ", device_refusal()); }

bool add_library(torch::Library::Kind kind, const char* name, std::optional<c10::DispatchKey> key, const char* file,
                 std::uint32_t line, void (*define)(torch::Library&)) {
  if (!may_register(reinterpret_cast<const void*>(define))) return false;
  define(*new torch::Library(kind, name, key, file, line));  // lives as long as the process
  return true;
}

void add_kernel(const c10::OperatorName& op, c10::DispatchKey key, c10::BoxedKernel kernel) {
  static auto& kept = *new std::vector<c10::RegistrationHandleRAII>;  // each takes its kernel back when it ends
  static auto& mutex = *new std::mutex;
  auto handle = c10::Dispatcher::singleton().registerImpl(
      op, key, c10::KernelFunction::makeFromBoxedKernel(std::move(kernel)), std::nullopt, nullptr, "fp8 runtime");
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(handle));
}

}  // namespace fp8::runtime
