// SPDX-License-Identifier: Apache-2.0
// The fp8 program: measure, quantize and run models in 8-bit floating point. Commands stand in
// tools/commands/cli/command.cpp's table.
//
// LibTorch is loaded by the commands that need it (cli/context.h). OpenMP, which comes with it, reads its environment
// then: waiting threads that spin, its default, make every command several times slower on a machine that has other
// work to do, and gain nothing on an idle one.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <new>

#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/sandbox.h"

namespace {

/// Until the commands install theirs: nothing has been written yet.
void stop_before_start(int number) {
  constexpr char kMessage[] = "fp8: error: interrupted\n";
  const int code = 128 + number;  // as shells count
  if (write(STDERR_FILENO, kMessage, sizeof kMessage - 1) < 0) _exit(code);
  _exit(code);
}

/// Sets a variable that the user has not set. Reports of flags call the value a default.
void prefer(const char* name, const char* value) {
  using namespace fp8::io;
  if (environment_value(name) != nullptr) return;
  setenv(name, value, /*overwrite=*/1);
  override_flag(name, FlagSetting{value, FlagSource::default_value, "fp8"});
}

/// Enters the sandbox, unless the user says otherwise.
fp8::commands::Sandbox sandboxed(int argc, char** argv) {
  using fp8::io::environment_value;
  const char* setting = environment_value("FP8_SANDBOX");
  if (setting != nullptr && std::string_view(setting) == "0") return {"off: FP8_SANDBOX=0"};
  char** const options_end = std::find(argv, argv + argc, std::string_view("--"));  // what follows are no options
  if (std::find(argv, options_end, std::string_view("--no-sandbox")) != options_end) return {"off: --no-sandbox"};
  bool ranks_talk = false;
  try {
    ranks_talk = fp8::io::launched().has_value();
  } catch (const fp8::io::Error&) {
    // Variables of launchers that contradict each other: the command refuses them.
  }
  return {fp8::commands::enter_sandbox(ranks_talk), fp8::commands::keep_to};
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGINT, stop_before_start);
  std::signal(SIGTERM, stop_before_start);
  int code = 1;
  try {
    prefer("OMP_WAIT_POLICY", "passive");    // threads that wait sleep
    prefer("KINETO_LOG_LEVEL", "6");         // else LibTorch's profiler says when it starts and stops
    prefer("TORCH_CPP_LOG_LEVEL", "ERROR");  // else c10d prints a backtrace for each rank that it loses
    code = fp8::commands::run(argc, argv, fp8::commands::kCommit, sandboxed(argc, argv));
  } catch (const std::bad_alloc&) {
    constexpr char kMessage[] = "fp8: error: out of memory\n";
    if (write(STDERR_FILENO, kMessage, sizeof kMessage - 1) < 0) _exit(code);
  }
  // LibTorch would take its operators back one by one before the process ends: a quarter of a short command's time.
  std::fflush(nullptr);
  _exit(code);
}
