// SPDX-License-Identifier: Apache-2.0
// Work on the device that can be done again: its calls in order, without the code that made them.
//
//   y = x.mm(w.t()); y.add_(b); z = y.relu()          x, w, b: made before; w.t() is no work
//
//   slot     memory             window  what a call reads or writes      node        windows
//   0  outside   x              0  slot 0 [8, 64]                        aten::mm    (0, 1) -> 3
//   1  outside   w              1  slot 1 [64, 32] strides (1, 64)       aten::add_  (3, 2) -> 3
//   2  outside   b              2  slot 2 [32]                           aten::relu  (3) -> 4
//   3  made by mm               3  slot 3 [8, 32]
//   4  made by relu             4  slot 4 [8, 32]
//
// A node calls the kernel that was called when it was recorded, with all that is no tensor as it was; what it makes is
// fresh, and goes after its last use. So a slot is memory and not a tensor: autograd keeps an operation's result under
// another TensorImpl, a view writes what another reads.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fp8::runtime {

/// Memory that nodes share.
struct TapeSlot {
  enum class Kind { outside, given, made };
  Kind kind = Kind::outside;
  c10::Storage memory = {};  ///< of outside; of made: where it stays what it was in the recording (held)
  bool held = false;         ///< somebody had it when the recording ended: each run writes to the same address
  std::size_t bytes = 0;
  c10::VariableVersion version = {};  ///< of outside: what its owner's tensors count
  std::int32_t made_as = -1;          ///< of made: the window of the result, which has the memory while that is needed
};

/// A tensor on a slot's memory. offset: in elements, of the slot's own first tensor's where that is given.
struct TapeWindow {
  std::int32_t slot = -1;
  caffe2::TypeMeta dtype;
  c10::DispatchKeySet keys;
  at::DimVector sizes, strides;
  std::int64_t offset = 0;
  at::Tensor fixed = {};  ///< where the memory is the same in each run
};

/// One call. run: takes the arguments off the stack and puts the results there.
struct TapeNode {
  /// A result, or one of a list of results, that is memory of its own. list: -1, it is no list.
  struct Result {
    std::int32_t result = 0, list = -1, window = -1;
  };
  std::string name, module;
  std::function<void(torch::jit::Stack&)> run;
  torch::jit::Stack arguments;         ///< tensors on the device are undefined in it
  std::vector<std::int32_t> operands;  ///< windows of the arguments' tensors, in their order; -1: as it stands there
  std::vector<Result> results;
  /// Of the operands: the arguments that are such a tensor themselves, and their windows; true: others are in lists.
  std::vector<std::pair<std::int32_t, std::int32_t>> tensors;
  bool has_lists = false;
  /// Of arguments and results that are objects of the host which nodes hand on (IValue capsules): where, and which.
  std::vector<std::pair<std::int32_t, std::int32_t>> host_operands, host_results;
  std::vector<std::int32_t> written;  ///< slots
  std::vector<std::int32_t> last;     ///< slots that no later node reads
  std::vector<std::int32_t> gone;     ///< the windows on them
};

/// Says in the message what was replayed.
void add_replayed(c10::Error& error, const std::string& name, const std::string& module);

class Tape;

/// One run's memory, on its way through the nodes.
class TapeFrame {
 public:
  explicit TapeFrame(const Tape& tape);
  /// Gives a slot of kind given its memory: that of `tensor`, which is what `window` was in the recording.
  void give(std::int32_t window, const at::Tensor& tensor);
  /// The tensor; undefined memory is an error of the caller.
  const at::Tensor& at(std::int32_t window);
  /// How often the window's memory has been written since it counts; none: it does not.
  std::optional<std::uint32_t> version(std::int32_t window);
  /// Lets go of all windows but these.
  void keep_only(at::ArrayRef<std::int32_t> kept);

 private:
  friend class Tape;
  /// Memory of a slot of kind given.
  struct Given {
    c10::Storage memory;
    std::int64_t shift = 0;  // of its offsets, in bytes
    c10::VariableVersion version;
  };
  at::Tensor make(const TapeWindow& window) const;

  const Tape* tape_;
  std::vector<at::Tensor> tensors_;  // by window
  std::vector<Given> given_;         // by slot
  std::vector<c10::IValue> host_;
};

class Tape {
 public:
  std::vector<TapeSlot> slots;
  std::vector<TapeWindow> windows;
  std::vector<TapeNode> nodes;
  std::int32_t host_objects = 0;

  std::int32_t slot_of(std::int32_t window) const { return windows[static_cast<std::size_t>(window)].slot; }

  /// After all nodes are there: when each slot's memory goes, but for that of `kept` windows.
  void finish(at::ArrayRef<std::int32_t> kept);
  /// Nodes [first, end). Throws what a kernel throws, with the node's name and module.
  void run(TapeFrame& frame, std::size_t first, std::size_t end) const;

 private:
  void run(TapeFrame& frame, const TapeNode& node, torch::jit::Stack& stack) const;
  void set_arguments(TapeFrame& frame, const TapeNode& node, torch::jit::Stack& stack) const;
  void take(TapeFrame& frame, const TapeNode& node, torch::jit::Stack& stack) const;
  void take(TapeFrame& frame, std::int32_t window, at::Tensor made) const;
  void count_writes(TapeFrame& frame, const TapeNode& node) const;
  void find_lifetimes(at::ArrayRef<std::int32_t> kept);
};

}  // namespace fp8::runtime
