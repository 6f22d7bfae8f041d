// SPDX-License-Identifier: Apache-2.0
// fp8_bench_load LIBRARY: loads a shared library and ends without taking it back, as fp8 does. What that takes is what
// a program waits for before its first line.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc == 2 && dlopen(argv[1], RTLD_LAZY | RTLD_GLOBAL) != nullptr) _exit(0);
  std::fprintf(stderr, "fp8_bench_load: error: %s\n", argc == 2 ? dlerror() : "found no library");
  return 1;
}
