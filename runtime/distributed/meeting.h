// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group find each other: a store of keys that all of them reach.
//
//   file            FileStore
//   host:port       TCPStore; rank 0 serves it, or the launcher does (torchrun: TORCHELASTIC_USE_AGENT_STORE)
//   every key       "fp8/attempt_<n>/...": a launcher's store still holds what a dead attempt wrote
//   every value     sealed by the job's secret, where it has one (meeting_store.h)
//
//   "here/<rank>"   who has come            "all_here"   rank 0 has seen them all; both hold the size of the group
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <exception>
#include <string>
#include <vector>

#include "fp8/runtime/distributed/group_options.h"

namespace c10d {
class Store;
}

namespace fp8::runtime::distributed {

/// Waits until all ranks have called it; a MeetingStore. Throws std::exception: an address in use, a host that cannot
/// be reached, a rank with another secret, the ranks that did not come within the timeout, by number.
c10::intrusive_ptr<c10d::Store> meet(const GroupOptions& options);

/// "rank 1", "ranks 1, 5, 6"; at most eight of them: "ranks 0, .., 7 and 3 more".
std::string rank_names(const std::vector<int>& ranks);

/// "127.0.0.1:29500" or the file.
std::string place_of(const GroupOptions& options);

/// What it says, without LibTorch's backtrace.
std::string text_of(const std::exception& error);
/// Of an error of c10d, the line that says what happened, without Gloo's source line and its advice.
std::string first_line(const std::exception& error);

}  // namespace fp8::runtime::distributed
