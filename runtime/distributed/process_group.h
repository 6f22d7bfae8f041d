// SPDX-License-Identifier: Apache-2.0
// Several processes that train one model: what amax reduction and data parallel training need of them.
//
//   auto group = make_gloo_group(group_options_from_environment());       gloo_group.h, process_group.h
//   broadcast_parameters(model->parameters(), *group);               data_parallel.h
//   each step: loss.backward(); all_reduce_gradients(model->parameters(), *group); optimizer.step();
//
// Every rank makes the same calls in the same order. A rank that does not, one that died and one that is late are
// errors, never a hang.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>

#include "fp8/runtime/io/json/json.h"

namespace at {
class Tensor;
}

namespace fp8::runtime::distributed {

enum class ReduceOp : std::uint8_t { sum, max };

/// A call that a rank waits in, as messages describe it; "": none. computes: it may be at work there, too, and waits
/// while the process uses no CPU time.
struct Wait {
  std::string call = {};
  bool computes = false;
  std::int64_t number = 0;  ///< of the call among those of this rank; 0: it is not counted
};

/// All calls throw c10::Error naming call and rank when a peer fails, calls something else, or does not answer within
/// the timeout; the group is of no use after that, and every later call throws at once. Not for use by several threads
/// at a time.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// values[i] becomes the largest values[i] of all ranks (NaN if any is NaN). Every rank calls it with the same count,
  /// in the same order.
  virtual void all_reduce_max(float* values, std::size_t count) = 0;
  virtual void barrier() = 0;
  /// In place; tensor: f32, bf16, f16 or int64 on hpu or cpu, any strides. Sums of bf16 and f16 are taken in f32 and
  /// rounded once; max as all_reduce_max(). The same bits on every rank, and in every run of as many ranks.
  virtual void all_reduce(const at::Tensor& tensor, ReduceOp op) = 0;
  /// The sum of contiguous tensors on the CPU, sent and added in their own dtype (f32, bf16, f16): half of the bytes,
  /// of sums that are rounded on the way. The same bits on every rank.
  virtual void all_reduce_in_dtype(const at::Tensor& tensor) { all_reduce(tensor, ReduceOp::sum); }
  /// Every rank's tensor gets root's bytes; any dtype, on hpu or cpu.
  virtual void broadcast(const at::Tensor& tensor, int root) = 0;

  /// Of this process among all that train, also where the group has some of them only.
  virtual int world_rank() const { return rank(); }
  /// After a failure: "rank 1 does not answer", as far as that is known. Takes up to 2 seconds.
  virtual std::string who_is_gone() { return {}; }
  /// Before calls that a user's code makes on every rank, or on one alone: throws c10::Error where another rank is
  /// known to be elsewhere, "rank 1 waits in broadcast of 8 elements".
  virtual void meet(const std::string& /*what*/) {}
  /// Sets the call that this rank waits in; returns the one before.
  virtual Wait waits_in(Wait /*next*/) { return {}; }
  /// Once for a group, however many objects stand for it, before its first message: what every rank said, in the order
  /// of the ranks; "" of one that has not come within seconds. Afterwards nothing. say: not empty.
  virtual std::vector<std::string> introduce(const std::string& /*say*/) { return {}; }
};

/// While one lives, this rank waits in `wait`.
class Waits {
 public:
  Waits(ProcessGroup& group, Wait wait) : group_(group), before_(group.waits_in(std::move(wait))) {}
  ~Waits() { group_.waits_in(std::move(before_)); }
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

 private:
  ProcessGroup& group_;
  Wait before_;
};

// The members of a group of processes, and where they meet.

struct GroupOptions {
  int rank = 0, size = 1;
  std::string host = "127.0.0.1";  ///< rank 0 listens at host:port
  std::uint16_t port = 29500;
  std::string file =
      {};  ///< if set they meet in this file instead, which no other run may have used; its folder must exist
  bool launcher_serves = false;  ///< rank 0 does not serve the meeting: torchrun's agent does, or who asked for it
  int attempt = 0;               ///< restarts so far; keys of dead attempts are not this one's
  std::string secret = {};       ///< known to all ranks and to no other process, 16 characters or more; "": none
  std::string said_by = {};      ///< the variables that rank, size and place are from; "" where they are not
  bool agree = false;            ///< before each call of ProcessGroup the ranks compare what they are about to do
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< of meeting, and of each call; 1 ms to 30 days
  /// Asked while a call waits: true: this process was asked to end. Where it then waits for ranks that wait in
  /// another call, are silent or have left, give_up(why) is called within seconds, by a thread of the group. Nothing
  /// ends a call of Gloo before its timeout, so give_up() must end the process.
  std::function<bool()> stop_asked = {};
  std::function<void(const std::string& why)> give_up = {};
};

/// From the variables that launchers set: rank and size as io::launched() finds them; alone (size 1) where no launcher
/// says otherwise. Where they meet: MASTER_ADDR and MASTER_PORT, else
///
///   srun     the first host of SLURM_STEP_NODELIST (SLURM_JOB_NODELIST), 15000 + the last four digits of SLURM_JOB_ID;
///            also where PMI_RANK and PMI_SIZE are read and Slurm's say the same (srun --mpi=pmi2)
///   mpirun   127.0.0.1 where OMPI_COMM_WORLD_LOCAL_SIZE or MPI_LOCALNRANKS says that all are on one machine, and
///            15000 + a checksum of PMIX_NAMESPACE, the job's name, modulo 10000
///
/// FP8_JOB_SECRET is the secret. TORCHELASTIC_USE_AGENT_STORE: torchrun serves the meeting; TORCHELASTIC_RESTART_COUNT
/// is the attempt. Throws c10::Error naming the variable, what it holds and what is allowed.
GroupOptions group_options_from_environment();

/// "n1" of "n[1-3,7],m2"; none where it is no such list.
std::optional<std::string> first_host(std::string_view slurm_list);

/// Throws c10::Error "[GroupOptions] rank: found 2, allowed: 0 to 1".
void check(const GroupOptions& options);

// Messages between ranks beside tensors: rows of numbers, texts, and checks that all are about to do the same.

/// Bit patterns that one rank has and the others hold as 0 become the same on all ranks: -0.0, NaN and all.
void merge(std::span<double> values, ProcessGroup& group);

/// Every rank's row, one after the other in the order of the ranks; rows are of one length.
std::vector<double> all_gather(std::span<const double> row, ProcessGroup& group);

/// root's text on every rank.
std::string broadcast_text(std::string text, ProcessGroup& group, int root = 0);

/// f() runs on rank 0 alone, the others wait for it. Returns what it returned on every rank; what it throws is thrown
/// there, and is an io::Error "rank 0: ..." on the others, so that all of them end.
std::string from_first(const std::function<std::string()>& f, ProcessGroup& group);

/// f() on rank 0 alone, as from_first(). group null or of one rank: f().
void on_first(const std::function<void()>& f, ProcessGroup* group);

/// Dtype and sizes of a tensor, for a rank that makes one like it on the CPU to receive it.
io::Json form_of(const at::Tensor& tensor);
at::Tensor empty_of_form(const io::Json& form);

/// Throws c10::Error on every rank, "[where] rank 1 differs from rank 0: lr: found 0.1, rank 0 has 0.01", unless all
/// have the same object.
void check_same(const io::Json& values, ProcessGroup& group, const char* where);

// One value of all ranks, as strategies of training loops ask for it: by the operation's name, as a new tensor.

/// tensor: f32, bf16, f16 or int64 on hpu or cpu; it stays as it is. op: "sum", "min", "max", "mean" or "avg" (the sum
/// divided by the number of ranks). Returns its sizes and dtype, but for the mean of int64, which is made f32 before it
/// is summed. Throws c10::TypeError for any other op, in the vendor's words; c10::Error as the group does.
at::Tensor reduce(const at::Tensor& tensor, std::string_view op, ProcessGroup& group);

// From one rank to another, while the rest of the group does something else: tensors, which travel while both ranks go
// on with their work, and texts.
//
//   rank 0: auto sent = send(h, 1, group);  ...  sent.wait();
//   rank 1: auto next = receive(h, 0, group);  ...  next.wait();

/// A tensor in transit. Destroying it before wait() gives up on its arrival.
class Transfer {
 public:
  ~Transfer();
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;

  /// Returns when all bytes have left, or are there; at once the second time. Throws c10::Error naming call, both ranks
  /// and who is gone, as far as that is known; the group is of no use after that.
  void wait();

 private:
  struct State;
  explicit Transfer(std::unique_ptr<State> state);
  friend Transfer send(const at::Tensor& tensor, int to, ProcessGroup& group);
  friend Transfer receive(const at::Tensor& tensor, int from, ProcessGroup& group);

  std::unique_ptr<State> state_;  ///< null: it is over
};

/// tensor: dense, contiguous, of any dtype, on hpu or cpu. It is kept until it has left; until then its memory must not
/// be written. Tensors from one rank to another arrive in the order of the calls. Both sides have as many bytes:
/// nothing checks that. The group is one of make_gloo_group() and outlives the transfer. Throws c10::Error for a rank
/// that is no other of the group's, and for a weight that was converted to fp8: its scales would stay behind.
Transfer send(const at::Tensor& tensor, int to, ProcessGroup& group);
/// Into the tensor's memory, which must not be read or written before.
Transfer receive(const at::Tensor& tensor, int from, ProcessGroup& group);

/// A text of any length, between transfers of tensors too. Both wait.
void send_text(const std::string& text, int to, ProcessGroup& group);
std::string receive_text(int from, ProcessGroup& group);

}  // namespace fp8::runtime::distributed
