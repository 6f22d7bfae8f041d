// SPDX-License-Identifier: Apache-2.0
// Calls that wait, and those that are on their way. Not thread-safe, but for the worker, which runs what is submitted:
//
//   add()      a call beside those of the same circumstances
//   submit()   they are the worker's (or run here)
//   finish()   all have run, and their results have memory
//
// While the worker runs, memory of results is known to it alone (pending.h): operands of its calls are set to it.
#pragma once

#include <exception>

#include "fp8/runtime/kernels/work_queue.h"
#include "fp8/runtime/lazy/known_calls.h"

namespace fp8::runtime {

/// Which tensor of the program an operand is, as it was at the call.
struct LazyOrigin {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  std::uint32_t version;

  bool operator==(const LazyOrigin& other) const {
    return tensor._unsafe_get_target() == other.tensor._unsafe_get_target() && version == other.version;
  }
};

struct LazyNode {
  std::optional<c10::OperatorHandle> op = {};  ///< none: `call`, or `work`, is all
  c10::DispatchKeySet keys = {};
  torch::jit::Stack arguments = {};  ///< tensors of its own, with the sizes that they had at the call
  const KnownCall* known = nullptr;
  c10::SmallVector<c10::weak_intrusive_ptr<c10::StorageImpl>, 3> made = {};  ///< results' memory
  std::function<void()> work = {};
  std::size_t place = 0;
  const char* name = nullptr;                         ///< of `call`
  std::function<void(torch::jit::Stack&)> call = {};  ///< takes the arguments off and puts the results there
  std::shared_ptr<const KnownCall> own = {};          ///< what `known` is, where no table has it
  std::optional<LazyOrigin> first = {};               ///< of the first argument of `call`
};

/// A result as it will be; its memory is noted in `node`.
at::Tensor promised(const KnownResult& like, LazyNode& node);

class LazyWork {
 public:
  void add(LazyNode&& node, const Circumstances& at);
  std::size_t queued() const { return open_ == nullptr ? 0 : open_->nodes.size(); }
  bool has_work() const { return open_ != nullptr || !submitted_.empty(); }
  void submit(bool to_worker);
  /// Throws the first exception of a call, with its name. All is run or dropped then.
  void finish();
  /// True on a thread that runs a call.
  static bool is_running();
  /// Makes it so.
  class Running {
   public:
    Running();
    ~Running();
    Running& operator=(Running&&) = delete;

   private:
    bool before_;
  };

  kernels::WorkQueue& worker() { return worker_; }

 private:
  struct Place {
    std::string module;
    const char* phase;
  };
  struct Batch {
    Circumstances at;
    std::vector<LazyNode> nodes;
    std::vector<Place> places;
    std::exception_ptr error = nullptr;
    std::string failure = {};
  };
  void run(Batch& batch, bool on_worker);
  void run(LazyNode& node, const Place& place);
  void share_first(const LazyNode& node, torch::jit::Stack& stack);
  static void keep_promise(LazyNode& node, const torch::jit::Stack& results);
  std::exception_ptr settle_all();

  std::unique_ptr<Batch> open_;
  std::vector<std::unique_ptr<Batch>> submitted_;
  std::vector<LazyNode> room_;  // for the nodes of the next batch, from one that is over
  std::string failure_;         // of the batches since the last finish(); what runs them has it
  std::optional<std::pair<LazyOrigin, at::Tensor>> first_;  // of the call before, within a batch
  kernels::WorkQueue worker_;
};

namespace detail {
/// No CPU tensor that somebody holds is on the memory of these.
bool is_written_unseen(at::ArrayRef<const c10::TensorImpl*> written);
/// Behind what this thread called before.
void queue_node(LazyNode node);
}  // namespace detail

}  // namespace fp8::runtime
