// SPDX-License-Identifier: Apache-2.0
// Loaded before libc: whoever opens a file whose name ends as FP8_TEST_TURNS_AT says opens FP8_TEST_OPENS instead, as a
// reader might that a file's bytes have taken over. With FP8_TEST_CHANGES it writes into it as well.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <string_view>

namespace {

bool is_turned(std::string_view path) {
  const char* end = std::getenv("FP8_TEST_TURNS_AT");
  return end != nullptr && path.ends_with(end);
}

int open_other(int (*real)(const char*, int, ...)) {
  const bool changes = std::getenv("FP8_TEST_CHANGES") != nullptr;
  const int file = real(std::getenv("FP8_TEST_OPENS"), (changes ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (file >= 0 && changes && write(file, "changed", 7) != 7) std::abort();
  return file;
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  static const auto real = reinterpret_cast<int (*)(const char*, int, ...)>(dlsym(RTLD_NEXT, "open"));
  va_list more;
  va_start(more, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, unsigned) : 0;
  va_end(more);
  return is_turned(path) ? open_other(real) : real(path, flags, mode);
}

extern "C" int open64(const char* path, int flags, ...) __attribute__((alias("open")));
