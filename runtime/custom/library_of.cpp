// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/custom/library_of.h"

#include <dlfcn.h>

namespace fp8::runtime {

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
