// SPDX-License-Identifier: Apache-2.0
// Processes that talk over TCP, by the Gloo of LibTorch.
#pragma once
#include <memory>

#include "fp8/runtime/distributed/group_options.h"
#include "fp8/runtime/distributed/process_group.h"

namespace fp8::runtime::distributed {

/// Waits until all `options.size` processes have called it. size 1: no network is used, and every call is what it is
/// for one rank. The interface is host's own where host is this machine's loopback, else what GLOO_SOCKET_IFNAME names,
/// else that of the host name. Throws c10::Error naming the option, or rank and place of meeting: an address in use, a
/// peer that does not come within the timeout.
std::shared_ptr<ProcessGroup> make_gloo_group(const GroupOptions& options);

}  // namespace fp8::runtime::distributed
