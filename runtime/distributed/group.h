// SPDX-License-Identifier: Apache-2.0
// The backend "hccl": c10d's process group for tensors on hpu and on the CPU, with Gloo below.
//
//   c10d operators (collectives.cpp) --CPU aliases--> ProcessGroup --> ProcessGroupGloo
//
// The same as torch.distributed makes of Backend.register_backend("hccl", ..., devices=["hpu", "cpu"]) in Python. Units
// that include this pay for c10d's headers; process_group.h is the interface of the rest.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "fp8/runtime/distributed/group_options.h"

namespace fp8::runtime::distributed {

/// Waits until all `options.size` processes have called it; size 1 meets nobody. The interface is host's own where host
/// is this machine's loopback, else what GLOO_SOCKET_IFNAME names, else that of the host name. Throws c10::Error naming
/// rank and place, and the option, the address in use or the ranks that did not come.
c10::intrusive_ptr<c10d::ProcessGroup> make_group(const GroupOptions& options);
/// The same of ranks that have met in `store` already, in which no other group has its keys.
c10::intrusive_ptr<c10d::ProcessGroup> make_group(const GroupOptions& options, c10::intrusive_ptr<c10d::Store> store);

}  // namespace fp8::runtime::distributed
