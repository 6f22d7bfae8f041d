// SPDX-License-Identifier: Apache-2.0
// Processes that talk over TCP, by the Gloo of LibTorch.
#pragma once
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/util/intrusive_ptr.h>
#include <pthread.h>

#include <csignal>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "fp8/runtime/distributed/process_group.h"

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

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

/// The argument of c10d's engines: the group below one of make_gloo_group(), for calls among those of `group`, in one
/// order on all ranks. Its store takes no new connections, of a clone(). Throws c10::Error for other groups.
c10::intrusive_ptr<c10d::ProcessGroup> c10d_group(const ProcessGroup& group);

// The backend "hccl": c10d's process group for tensors on hpu and on the CPU, with Gloo below.
//
//   c10d operators (collectives.cpp) --CPU aliases--> ProcessGroup --> ProcessGroupGloo
//
// It equals what torch.distributed makes of Backend.register_backend("hccl", ..., devices=["hpu", "cpu"]) in Python.
// Units that include this pay for c10d's headers; process_group.h is the interface of the rest.

/// Gloo's own backend, no other and none around it.
bool is_gloo(const c10d::Backend& backend);

/// Waits until all `options.size` processes have called it; size 1 waits for none. The interface is host's own where
/// host is this machine's loopback, else what GLOO_SOCKET_IFNAME names, else that of the host name. Throws c10::Error
/// naming rank and place, and the option, the address in use or the ranks that did not come.
c10::intrusive_ptr<c10d::ProcessGroup> make_group(const GroupOptions& options);
/// make_group() of ranks that have met in `store` already, in which no other group has its keys.
c10::intrusive_ptr<c10d::ProcessGroup> make_group(const GroupOptions& options, c10::intrusive_ptr<c10d::Store> store);

// Gloo's writes to a rank that is gone end in SIGPIPE, which by default ends the process. While this lives they are
// errors in this thread, and for good in the threads that it starts.

class NoBrokenPipes {
 public:
  NoBrokenPipes() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoBrokenPipes() {
    const std::timespec now{};
    if (sigismember(&before_, SIGPIPE) == 0) sigtimedwait(&signal_, nullptr, &now);  // what came must not come later
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipes(const NoBrokenPipes&) = delete;
  NoBrokenPipes& operator=(const NoBrokenPipes&) = delete;

 private:
  sigset_t signal_, before_;
};

/// While it lives this thread's state has no objects of Python, such as the context that torch's backward leaves there
/// for its threads. A Work of Gloo begun meanwhile copies none: Gloo's thread drops it at any time after its caller was
/// told that it is over, and ends the process if that takes the GIL of a Python that is about to end.
class WithoutPython {
 public:
  WithoutPython() : objects_(Objects::get_state()), modes_(Modes::get_state()) {
    Objects::set_state({});
    Modes::set_state({});
  }
  ~WithoutPython() {
    Objects::set_state(objects_);
    Modes::set_state(modes_);
  }
  WithoutPython& operator=(WithoutPython&&) = delete;

 private:
  using Objects = at::impl::ThreadLocalPythonObjects;
  using Modes = at::impl::PythonTorchFunctionTLS;
  const Objects objects_;
  const Modes modes_;
};

// Groups that torch.distributed made, in Python or in C++, by the name that c10d keeps of each.
//
//   group = torch.distributed.new_group(...)          group.group_name -> registered_group(name)

/// Its calls on the CPU: the group needs a backend there ("gloo", or "hccl" as it is registered for cpu and hpu). Calls
/// are not compared among the ranks: every rank makes the same ones, in the same order, and between other users of the
/// group at the same places. Throws c10::Error for a name that no group of this process has.
std::shared_ptr<ProcessGroup> registered_group(const std::string& name);
/// The group itself.
c10::intrusive_ptr<c10d::ProcessGroup> c10d_group(const std::string& name);

}  // namespace fp8::runtime::distributed
