// SPDX-License-Identifier: Apache-2.0
// The fp8 program: measure, quantize and run models in 8-bit floating point. Commands stand in
// tools/commands/cli/main.cpp's table.
//
// It loads the rest itself, because OpenMP reads its environment when it is loaded: waiting threads that spin, its
// default, make every command several times slower on a machine that has other work to do, and gain nothing on an idle
// one.
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace {

/// Until the commands install theirs: nothing has been written yet.
void stop_before_start(int) {
  constexpr char kMessage[] = "fp8: error: interrupted\n";
  if (write(STDERR_FILENO, kMessage, sizeof kMessage - 1) < 0) _exit(1);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGINT, stop_before_start);
  std::signal(SIGTERM, stop_before_start);
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  void* program = dlopen("libfp8_program.so", RTLD_NOW | RTLD_GLOBAL);
  auto* run = program != nullptr ? reinterpret_cast<int (*)(int, char**)>(dlsym(program, "fp8_run")) : nullptr;
  if (run == nullptr) {
    std::fprintf(stderr, "fp8: error: the program's library can't be loaded: %s\n", dlerror());
    return 1;
  }
  return run(argc, argv);
}
