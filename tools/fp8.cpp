// SPDX-License-Identifier: Apache-2.0
// The fp8 program: measure, quantize and run models in 8-bit floating point. Commands stand in tools/commands/main.cpp's table.
//
// It loads the rest itself, because OpenMP reads its environment when it is loaded: waiting threads that spin, its default, make
// every command several times slower on a machine that has other work to do, and gain nothing on an idle one.
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  std::signal(SIGINT, [](int) { _exit(1); });  // until the commands install theirs
  std::signal(SIGTERM, [](int) { _exit(1); });
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  void* program = dlopen("libfp8_program.so", RTLD_NOW | RTLD_GLOBAL);
  auto* run = program != nullptr ? reinterpret_cast<int (*)(int, char**)>(dlsym(program, "fp8_run")) : nullptr;
  if (run == nullptr) {
    std::fprintf(stderr, "fp8: error: the program's library can't be loaded: %s\n", dlerror());
    return 1;
  }
  return run(argc, argv);
}
