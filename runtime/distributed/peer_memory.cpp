// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/peer_memory.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "fp8/runtime/distributed/following_work.h"
#include "fp8/runtime/distributed/of_group.h"
#include "fp8/runtime/distributed/peer_pages.h"

namespace fp8::runtime::distributed {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using Timeout = std::chrono::milliseconds;

constexpr std::int64_t kPieceBytes = 128 << 10;  // of a sum: it stays in the cache between being read and being added

/// Of another process. Returns what failed, 0: nothing.
int read_memory(pid_t process, std::int64_t address, void* to, std::size_t bytes) {
  auto* next = static_cast<char*>(to);
  while (bytes > 0) {
    iovec here{next, bytes}, there{reinterpret_cast<void*>(address), bytes};
    const ssize_t count = process_vm_readv(process, &here, 1, &there, 1, 0);
    if (count <= 0) return count < 0 ? errno : EFAULT;
    next += count;
    address += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return 0;
}

/// The processes of a group, once they have tried to read each other.
struct Peers {
  std::once_flag tried;
  std::vector<pid_t> processes;  ///< empty: they may not
  std::unique_ptr<PeerPages> pages;
  Timeout timeout{0};  ///< of calls that have none
  PeerThread thread;   ///< on which calls are made, in their order
};

/// Every rank shows a random number of its own, which the others look for in its memory: process ids of another
/// machine, or of another container, lead elsewhere.
void try_out(Peers& peers, c10d::Backend& backend) {
  constexpr int kRow = 4;
  const int ranks = backend.getSize();
  std::random_device random;
  const std::int64_t secret = (static_cast<std::int64_t>(random()) << 32) | random();
  auto pages = std::make_unique<PeerPages>(backend.getRank(), ranks);
  at::Tensor mine = at::empty({kRow}, at::kLong), all = at::empty({kRow * ranks}, at::kLong);
  auto* row = mine.mutable_data_ptr<std::int64_t>();
  row[0] = getpid();
  row[1] = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(&secret));
  row[2] = secret;
  row[3] = pages->descriptor();
  backend._allgather_base(all, mine)->wait();
  std::vector<pid_t> processes;
  bool readable = pages->descriptor() >= 0;
  for (int r = 0; r < ranks; ++r) {
    const auto* place = all.const_data_ptr<std::int64_t>() + kRow * r;
    std::int64_t found = 0;
    processes.push_back(static_cast<pid_t>(place[0]));
    readable = readable && read_memory(processes.back(), place[1], &found, sizeof found) == 0 && found == place[2];
    if (r != backend.getRank()) readable = readable && pages->open(r, processes.back(), static_cast<int>(place[3]));
  }
  at::Tensor verdict = at::empty({1}, at::kLong);
  *verdict.mutable_data_ptr<std::int64_t>() = readable ? 1 : 0;
  std::vector<at::Tensor> verdicts = {verdict};
  c10d::AllreduceOptions least;
  least.reduceOp = c10d::ReduceOp::MIN;
  backend.allreduce(verdicts, least)->wait();  // also: nobody looks for the number any more
  if (*verdict.const_data_ptr<std::int64_t>() != 1) return;
  peers.processes = std::move(processes);
  peers.pages = std::move(pages);
  peers.timeout = backend.getBackendOptions()->timeout;
}

/// One call on this rank.
class PeerCall : public std::enable_shared_from_this<PeerCall> {
 public:
  /// Null where it is Gloo's. bytes: of the whole.
  static std::shared_ptr<PeerCall> of(const GroupPtr& group, std::size_t bytes, Timeout timeout) {
    if (group->getSize() == 1 || bytes < kPeerBytes) return nullptr;
    const auto backend = group->getBackend(at::kCPU);
    if (!is_gloo(*backend)) return nullptr;
    auto peers = of_group<Peers>(group);
    std::call_once(peers->tried, [&] { try_out(*peers, *backend); });
    if (peers->processes.empty()) return nullptr;
    const Timeout own = timeout == c10d::kUnsetTimeout ? peers->timeout : timeout;
    return std::make_shared<PeerCall>(backend->getRank(), std::move(peers), own);
  }

  PeerCall(int rank, std::shared_ptr<Peers> peers, Timeout timeout)
      : rank_(rank), peers_(std::move(peers)), timeout_(timeout) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_->processes.size()); }

  /// Tells the others where this rank's tensor is. read: what is done once all have, on the group's thread.
  c10::intrusive_ptr<c10d::Work> begin(const at::Tensor& shown, const at::Tensor& result, c10d::OpType type,
                                       std::function<void()> read) {
    auto done = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    const PeerRow mine{static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(shown.const_data_ptr())),
                       static_cast<std::int64_t>(shown.nbytes())};
    const auto made = [call = shared_from_this(), mine, read = std::move(read), done, result,
                       threads = at::get_num_threads()] {
      try {
        if (at::get_num_threads() != threads) at::set_num_threads(threads);  // of this thread
        const at::AutoDispatchBelowADInplaceOrView values_only;              // also of inference tensors
        call->places_ = call->peers_->pages->arrive(mine, call->timeout_);
        read();
      } catch (const std::exception&) {
        return done->setError(std::current_exception());
      }
      done->markCompleted(c10::List<at::Tensor>({result}));
    };
    peers_->thread.run(made);
    return c10::make_intrusive<FutureWork>(std::move(done), type);
  }

  /// Throws where the ranks gave tensors of different sizes; then all of them do.
  void check_sizes() const {
    for (std::size_t r = 1; r < places_.size(); ++r)
      TORCH_CHECK(places_[r].bytes == places_[0].bytes, "rank ", r, " came with ", places_[r].bytes,
                  " bytes, rank 0 with ", places_[0].bytes);
  }

  /// `bytes` of what rank r showed, from `offset` on.
  void read(int r, std::int64_t offset, void* to, std::int64_t bytes) const {
    const auto peer = static_cast<std::size_t>(r);
    const int error =
        read_memory(peers_->processes[peer], places_[peer].address + offset, to, static_cast<std::size_t>(bytes));
    TORCH_CHECK(error == 0, "rank ", rank(), " can't read the memory of rank ", r, ": ", std::strerror(error));
  }

  /// step() here; returns when it is done on all ranks. Throws what failed here, or that it did elsewhere.
  template <class F>
  void together(const F& step) {
    std::exception_ptr failure;
    try {
      step();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    const auto said = peers_->pages->arrive({.failed = failure != nullptr}, timeout_);
    if (failure != nullptr) std::rethrow_exception(failure);
    for (std::size_t r = 0; r < said.size(); ++r)
      TORCH_CHECK(said[r].failed == 0, "rank ", r, " of ", size(), " failed in it");
  }

 private:
  const int rank_;
  const std::shared_ptr<Peers> peers_;
  const Timeout timeout_;
  std::vector<PeerRow> places_;  // of the ranks
};

char* memory_of(const at::Tensor& t) { return static_cast<char*>(t.mutable_data_ptr()); }

/// The input that the others may read while this rank writes its output: a copy where they share memory otherwise than
/// as input = output[rank], or output = input[rank].
at::Tensor shown_input(const at::Tensor& input, const at::Tensor& output, int rank) {
  const at::Tensor dense = input.contiguous();
  const char *in = memory_of(dense), *out = memory_of(output);
  const auto in_bytes = static_cast<std::ptrdiff_t>(dense.nbytes()),
             out_bytes = static_cast<std::ptrdiff_t>(output.nbytes());
  const bool apart = in + in_bytes <= out || out + out_bytes <= in;
  const bool in_place = in_bytes < out_bytes ? in == out + rank * in_bytes : out == in + rank * out_bytes;
  return apart || in_place ? dense : dense.clone();
}

/// out [n] = the sum of all ranks' values of its dtype from the byte `offset` of what they showed on; mine: this
/// rank's, out itself or apart from it.
void reduce_shown(const PeerCall& call, c10d::ReduceOp::RedOpType op, std::int64_t offset, const at::Tensor& mine,
                  const at::Tensor& out) {
  const at::NoGradGuard no_grad;
  const std::int64_t item = static_cast<std::int64_t>(out.element_size()), most = kPieceBytes / item;
  const at::Tensor sums = at::empty({most}, out.options()), next_of_others = at::empty_like(sums);
  for (std::int64_t i = 0; i < out.numel(); i += most) {
    const std::int64_t count = std::min(most, out.numel() - i);
    at::Tensor so_far;
    for (int r = 0; r < call.size(); ++r) {
      at::Tensor next =
          r == call.rank() ? mine.narrow(0, i, count) : (r == 0 ? sums : next_of_others).narrow(0, 0, count);
      if (r != call.rank()) call.read(r, offset + i * item, next.mutable_data_ptr(), count * item);
      // This rank's own values are read before their place is written.
      at::Tensor to = r < call.rank() ? sums.narrow(0, 0, count) : out.narrow(0, i, count);
      if (r > 0) combine(op, to, so_far, next);
      so_far = r > 0 ? to : next;
    }
    if (op == c10d::ReduceOp::AVG) so_far.div_(call.size());
  }
}

/// Where the caller's tensor has gaps, a dense one takes its place until finish() copies it there.
struct Dense {
  explicit Dense(const at::Tensor& t) : callers(t), values(t.is_contiguous() ? t : at::empty(t.sizes(), t.options())) {}
  void finish() const {
    const at::NoGradGuard no_grad;
    if (!values.is_same(callers)) callers.copy_(values);
  }
  at::Tensor callers, values;
};

}  // namespace

void combine(c10d::ReduceOp::RedOpType op, at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  using Op = c10d::ReduceOp;
  if (op == Op::MIN)
    at::minimum_out(out, a, b);
  else if (op == Op::MAX)
    at::maximum_out(out, a, b);
  else
    at::add_out(out, a, b);
}

c10::intrusive_ptr<c10d::Work> all_gather_of_peers(const at::Tensor& output, const at::Tensor& input,
                                                   const GroupPtr& group, Timeout timeout) {
  if (input.scalar_type() != output.scalar_type() || output.numel() != group->getSize() * input.numel()) return nullptr;
  const auto call = PeerCall::of(group, output.nbytes(), timeout);
  if (call == nullptr) return nullptr;
  const Dense to(output);
  const at::Tensor shown = shown_input(input, to.values, call->rank());
  return call->begin(shown, output, c10d::OpType::_ALLGATHER_BASE, [call, to, shown] {
    const auto bytes = static_cast<std::int64_t>(shown.nbytes());
    char* const out = memory_of(to.values);
    call->check_sizes();
    call->together([&] {
      char* const own = out + call->rank() * bytes;
      if (own != memory_of(shown)) std::memcpy(own, memory_of(shown), shown.nbytes());
      for (int next = 1; next < call->size(); ++next) {
        const int r = (call->rank() + next) % call->size();  // not all at the same one
        call->read(r, 0, out + r * bytes, bytes);
      }
    });
    to.finish();
  });
}

c10::intrusive_ptr<c10d::Work> reduce_scatter_of_peers(const at::Tensor& output, const at::Tensor& input,
                                                       c10d::ReduceOp::RedOpType op, const GroupPtr& group,
                                                       Timeout timeout) {
  if (!output.is_floating_point() || input.scalar_type() != output.scalar_type() ||
      input.numel() != group->getSize() * output.numel())
    return nullptr;
  const auto call = PeerCall::of(group, input.nbytes(), timeout);
  if (call == nullptr) return nullptr;
  const Dense to(output);
  const at::Tensor shown = shown_input(input, to.values, call->rank());
  return call->begin(shown, output, c10d::OpType::_REDUCE_SCATTER_BASE, [call, op, to, shown] {
    call->check_sizes();
    call->together([&] {
      const std::int64_t part = to.values.numel();
      const auto offset = static_cast<std::int64_t>(to.values.nbytes()) * call->rank();
      reduce_shown(*call, op, offset, shown.view({-1}).narrow(0, call->rank() * part, part), to.values.view({-1}));
    });
    to.finish();
  });
}

c10::intrusive_ptr<c10d::Work> all_reduce_of_peers(const at::Tensor& tensor, c10d::ReduceOp::RedOpType op,
                                                   const GroupPtr& group, Timeout timeout) {
  if (!tensor.is_floating_point()) return nullptr;
  const auto call = PeerCall::of(group, tensor.nbytes(), timeout);
  if (call == nullptr) return nullptr;
  const Dense all(tensor);
  if (!all.values.is_same(tensor)) all.values.copy_(tensor);
  return call->begin(all.values, tensor, c10d::OpType::ALLREDUCE, [call, op, all] {
    const at::Tensor values = all.values.view({-1});
    const std::int64_t part = (values.numel() + call->size() - 1) / call->size();
    const auto item = static_cast<std::int64_t>(values.element_size());
    const auto part_of = [&](int r) {
      const std::int64_t first = std::min(r * part, values.numel());
      return values.narrow(0, first, std::min(part, values.numel() - first));
    };
    call->check_sizes();
    call->together([&] {
      const at::Tensor own = part_of(call->rank());
      reduce_shown(*call, op, item * std::min(call->rank() * part, values.numel()), own, own);
    });
    call->together([&] {
      for (int next = 1; next < call->size(); ++next) {
        const int r = (call->rank() + next) % call->size();
        const at::Tensor theirs = part_of(r);
        call->read(r, memory_of(theirs) - memory_of(values), memory_of(theirs),
                   static_cast<std::int64_t>(theirs.nbytes()));
      }
    });
    all.finish();
  });
}

}  // namespace fp8::runtime::distributed
