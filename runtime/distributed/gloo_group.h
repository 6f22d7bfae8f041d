// SPDX-License-Identifier: Apache-2.0
// Processes that talk over TCP, by the Gloo of LibTorch.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "fp8/runtime/distributed/group_options.h"
#include "fp8/runtime/distributed/process_group.h"

namespace c10d {
class ProcessGroup;
}

namespace fp8::runtime::distributed {

/// Waits until all `options.size` processes have called it. size 1: no network is used, and every call is what it is
/// for one rank. The interface is host's own where host is this machine's loopback, else what GLOO_SOCKET_IFNAME names,
/// else that of the host name. Throws c10::Error naming the option, or rank and place of meeting: an address in use, a
/// peer that does not come within the timeout.
std::shared_ptr<ProcessGroup> make_gloo_group(const GroupOptions& options);

/// The ranks of `group` in parts of `ranks`, one after the other; this is the one that this process is in. All ranks of
/// a group of make_gloo_group() call it. Its errors name ranks of the whole group, and it is of no use once that has
/// failed. Throws c10::Error for `ranks` that do not divide the size.
std::shared_ptr<ProcessGroup> make_subgroup(const std::shared_ptr<ProcessGroup>& group, int ranks);

/// What c10d's engines take: the group below one of make_gloo_group(), for calls among those of `group`, in one order
/// on all ranks. Its store takes no new connections, of a clone(). Throws c10::Error for other groups.
c10::intrusive_ptr<c10d::ProcessGroup> c10d_group(const ProcessGroup& group);

}  // namespace fp8::runtime::distributed
