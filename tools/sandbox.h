// SPDX-License-Identifier: Apache-2.0
// What the program gives up before it reads a byte that somebody else wrote. Checkpoints, tokenizers and chat templates
// come from strangers; if one of their readers can be made to misbehave, what it reaches is bounded by the kernel.
#pragma once
#include "fp8/tools/commands/cli/context.h"

namespace fp8::commands {

/// Gives up for good, for this process and all its threads, what no command does: to run another program, to look into
/// another process, to mount, to load code into the kernel, io_uring (which goes past such filters), and sockets. Such
/// a call fails with EPERM. Before the first thread is started.
/// ranks_talk: sockets stay, which ranks find each other by.
/// Returns what is in force, for doctor: "no other program, no network", or why nothing is.
std::string enter_sandbox(bool ranks_talk);

/// Gives up for good, for this process and all its threads, to open any file but these, and what the system's own
/// libraries read; such a call fails with EACCES. Before the first thread is started. What is open stays open.
/// Returns what is in force: "no other file", or why it is not.
std::string keep_to(const std::vector<Place>& places);

}  // namespace fp8::commands
