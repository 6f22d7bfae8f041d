// SPDX-License-Identifier: Apache-2.0
// The fp8 program: measure, quantize and run models in 8-bit floating point. Commands stand in tools/commands/main.cpp's table.
#include "fp8/tools/commands/command.h"

int main(int argc, char** argv) { return fp8::commands::run(argc, argv); }
