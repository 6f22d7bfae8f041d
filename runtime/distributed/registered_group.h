// SPDX-License-Identifier: Apache-2.0
// Groups that torch.distributed made, in Python or in C++, by the name that c10d keeps of each.
//
//   group = torch.distributed.new_group(...)          group.group_name -> registered_group(name)
#pragma once
#include <memory>
#include <string>

#include "fp8/runtime/distributed/process_group.h"

namespace fp8::runtime::distributed {

/// Its calls on the CPU: the group needs a backend there ("gloo", or "hccl" as it is registered for cpu and hpu). Calls
/// are not compared among the ranks: every rank makes the same ones, in the same order, and between other users of the
/// group at the same places. Throws c10::Error for a name that no group of this process has.
std::shared_ptr<ProcessGroup> registered_group(const std::string& name);

}  // namespace fp8::runtime::distributed
