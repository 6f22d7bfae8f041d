// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/late.h"

#include <dlfcn.h>

#include <string>

#include "fp8/runtime/io/base/error.h"
#include "fp8/tools/commands/cli/output.h"

namespace fp8::commands {
namespace {

constexpr char kProgram[] = "libfp8_program.so";

}  // namespace

void load_program() {
  // Global: what it registers with LibTorch is seen by every library that comes later.
  if (dlopen(kProgram, RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const char* reason = dlerror();
  throw io::Error(std::string("LibTorch is needed here and can't be loaded: ") +
                  one_line(reason != nullptr ? reason : "no reason given"));
}

void fail_not_provided() {
  throw io::Error(std::string(kProgram) + ": found that of another version; install all of fp8's libraries together");
}

}  // namespace fp8::commands
