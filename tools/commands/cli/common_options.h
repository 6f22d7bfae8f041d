// SPDX-License-Identifier: Apache-2.0
// The options that every command takes, of which some have an effect in few: one table of who reads them.
#pragma once
#include <CLI/App.hpp>

namespace fp8::commands {

/// Throws UsageError for a common option that is given to a command that would not read it.
void refuse_unread(const CLI::App& app);

}  // namespace fp8::commands
