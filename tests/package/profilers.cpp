// SPDX-License-Identifier: Apache-2.0
// The profilers and the callbacks of a Trainer in a program outside the tree: their headers are installed with all that
// they include.

#include "fp8/runtime/profile/hpu_profiler.h"
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "fp8/runtime/trainer/loggers.h"

int main() {
  fp8::runtime::SimpleProfiler simple({.log = [](const std::string&) {}});
  const fp8::runtime::HPUProfiler traced({.export_to_chrome = false});
  simple.begin_stage("fit");
  simple.start("action");
  simple.stop("action");
  simple.end_stage();
  if (simple.durations().at("action").size() == 1) return 0;
  std::fprintf(stderr, "profilers: the action is not in the table: %s\n", simple.summary().c_str());
  return 1;
}
