// SPDX-License-Identifier: Apache-2.0
// libfp8_program.so: what the fp8 executable loads.
#include "fp8/tools/commands/cli/command.h"

extern "C" int fp8_run(int argc, char** argv) { return fp8::commands::run(argc, argv); }
