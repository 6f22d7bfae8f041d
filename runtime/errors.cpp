// SPDX-License-Identifier: Apache-2.0
// TORCH_CHECK of our libraries throws the message alone. Upstream's adds a backtrace to what(), a page of LibTorch's
// frames behind every mistake of a user. The linker hands over the calls of torchCheckFail (--wrap in
// fp8_library.cmake); those inside of LibTorch, and TORCH_INTERNAL_ASSERT, stay as they are.
// TORCH_SHOW_CPP_STACKTRACES=1 brings the backtrace back.
#include <c10/util/Exception.h>

#include "fp8/runtime/io/base/environment.h"

#define FP8_FAIL_STRING _ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE
#define FP8_FAIL_CHARS _ZN3c106detail14torchCheckFailEPKcS2_jS2_

namespace {

bool shows_backtrace() {
  const char* value = fp8::io::environment_value("TORCH_SHOW_CPP_STACKTRACES");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

extern "C" {

[[noreturn]] void C10_CONCATENATE(__real_, FP8_FAIL_STRING)(const char*, const char*, std::uint32_t,
                                                            const std::string&);
[[noreturn]] void C10_CONCATENATE(__real_, FP8_FAIL_CHARS)(const char*, const char*, std::uint32_t, const char*);

[[noreturn]] void C10_CONCATENATE(__wrap_, FP8_FAIL_STRING)(const char* function, const char* file, std::uint32_t line,
                                                            const std::string& message) {
  if (shows_backtrace()) C10_CONCATENATE(__real_, FP8_FAIL_STRING)(function, file, line, message);
  throw c10::Error(message, nullptr);
}

[[noreturn]] void C10_CONCATENATE(__wrap_, FP8_FAIL_CHARS)(const char* function, const char* file, std::uint32_t line,
                                                           const char* message) {
  if (shows_backtrace()) C10_CONCATENATE(__real_, FP8_FAIL_CHARS)(function, file, line, message);
  throw c10::Error(std::string(message), nullptr);
}

}  // extern "C"
