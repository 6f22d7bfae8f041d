// SPDX-License-Identifier: Apache-2.0
// Environment variables that would give other numbers than were asked for.
#pragma once
#include <string>
#include <vector>

namespace fp8::commands {

/// What is wrong with FP8_SIMD and those that decide what the device is and how it rounds (io::variables() of
/// runtime/device), one line each.
std::vector<std::string> environment_problems();

}  // namespace fp8::commands
