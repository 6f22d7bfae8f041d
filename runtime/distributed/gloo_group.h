// SPDX-License-Identifier: Apache-2.0
// Processes that talk over TCP, by the Gloo of LibTorch.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/intrusive_ptr.h>
#include <pthread.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

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

/// The argument of c10d's engines: the group below one of make_gloo_group(), for calls among those of `group`, in one
/// order on all ranks. Its store takes no new connections, of a clone(). Throws c10::Error for other groups.
c10::intrusive_ptr<c10d::ProcessGroup> c10d_group(const ProcessGroup& group);

// The backend "hccl": c10d's process group for tensors on hpu and on the CPU, with Gloo below.
//
//   c10d operators (collectives.cpp) --CPU aliases--> ProcessGroup --> ProcessGroupGloo
//
// It equals what torch.distributed makes of Backend.register_backend("hccl", ..., devices=["hpu", "cpu"]) in Python.
// Units that include this pay for c10d's headers; process_group.h is the interface of the rest.

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

// The calls of ProcessGroup by a backend of c10d, of this process' memory: what groups of our own and those that
// torch.distributed made have in common. Not for users.

/// The tensor's own memory as a CPU tensor. What is written there is seen by autograd's version check. Throws
/// c10::Error unless it is dense, on hpu or cpu.
at::Tensor on_cpu(const at::Tensor& tensor, const char* call);
/// Throws c10::Error for a dtype that is not reduced.
void check_reducible(const at::Tensor& tensor);
void check_root(int root, int size);

class BackendGroup : public ProcessGroup {
 public:
  void all_reduce_max(float* values, std::size_t count) override;
  void barrier() override;
  void all_reduce(const at::Tensor& tensor, ReduceOp op) override;
  void all_reduce_in_dtype(const at::Tensor& tensor) override;
  void broadcast(const at::Tensor& tensor, int root) override;

 protected:
  enum class Kind : std::int64_t { barrier, sum, max, broadcast };
  struct Call {
    Kind kind;
    at::ScalarType type = at::kByte;
    std::int64_t elements = 0;
    int root = 0;
  };
  using Start = c10::function_ref<c10::intrusive_ptr<c10d::Work>()>;

  static const char* name_of(Kind kind);
  /// "all_reduce sum of 4 elements of Float"
  static std::string describe(const Call& call);

  virtual c10d::Backend& backend() = 0;
  /// Before each call. True: all ranks are known to have come to it.
  virtual bool agree(const Call& call);
  /// start(), and waits for it; c10::Error says what failed.
  virtual void wait(const Call& call, Start start) = 0;

  /// Without asking agree(); not of 0 elements.
  void reduce_now(const Call& call, const at::Tensor& flat, c10d::ReduceOp::RedOpType op);

 private:
  void reduce(const Call& call, const at::Tensor& flat);
};

// Integers in the order of their floats: -inf < -1 < -0 < 0 < 1 < inf < NaN. So a maximum has the same bits in every
// order, and a NaN is not lost.

inline std::int32_t to_ordered(float value) {
  if (std::isnan(value)) return 0x7FC00000;
  const auto bits = std::bit_cast<std::int32_t>(value);
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}
inline float from_ordered(std::int32_t bits) { return std::bit_cast<float>(bits < 0 ? bits ^ 0x7FFFFFFF : bits); }

// Groups that torch.distributed made, in Python or in C++, by the name that c10d keeps of each.
//
//   group = torch.distributed.new_group(...)          group.group_name -> registered_group(name)

/// Its calls on the CPU: the group needs a backend there ("gloo", or "hccl" as it is registered for cpu and hpu). Calls
/// are not compared among the ranks: every rank makes the same ones, in the same order, and between other users of the
/// group at the same places. Throws c10::Error for a name that no group of this process has.
std::shared_ptr<ProcessGroup> registered_group(const std::string& name);

}  // namespace fp8::runtime::distributed
