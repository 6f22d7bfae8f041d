// SPDX-License-Identifier: Apache-2.0
// The profiler that --profile asks for.
#pragma once
#include <memory>

#include "fp8/runtime/profile/profiler.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/inputs/profile_options.h"

namespace fp8::commands {

/// Null without --profile. What it has to say are warnings of `context`, which must outlive it.
std::shared_ptr<runtime::Profiler> profiler_of(const ProfileOptions& options, const Context& context);

}  // namespace fp8::commands
