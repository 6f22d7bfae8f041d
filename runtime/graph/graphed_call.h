// SPDX-License-Identifier: Apache-2.0
// One call of a function of tensors, captured with its backward.
//
//   first call      f runs, and is recorded; backward runs, and is recorded behind it   (nothing runs twice)
//   later calls     nodes [0, backward) and, within a node of autograd, [backward, end)
//
// Each call has memory of its own for what its backward reads, so several may come before the first backward. Gradients
// are given to autograd as eager mode's are: it adds them up. A function whose backward runs a backward() of its own
// (activation checkpointing) adds to .grad where no recording hears of it: it runs as it is.
#pragma once

#include "fp8/runtime/tape/recorder.h"

namespace fp8::runtime {

using GraphFunction = std::function<std::vector<at::Tensor>(at::TensorList)>;

/// What libraries above have that decides how a call runs.
struct GraphHooks {
  /// Appends to the key of a kind of call.
  void (*key)(std::string& bytes) = nullptr;
  /// At the call: what is to be held while its first backward runs within the caller's.
  std::function<std::shared_ptr<void>()> (*backward)() = nullptr;
};
void set_graph_hooks(const GraphHooks& hooks);
const GraphHooks& graph_hooks();

class GraphedCall : public std::enable_shared_from_this<GraphedCall> {
 public:
  GraphedCall();
  ~GraphedCall();
  GraphedCall& operator=(GraphedCall&&) = delete;

  /// Runs f and records it; its results, within the graph of the caller. inputs: on hpu.
  std::vector<at::Tensor> first(const GraphFunction& f, at::TensorList inputs);
  /// Its two halves, for who calls f by himself in between, with begin()'s tensors. Without an end() the object goes.
  const std::vector<at::Tensor>& begin(at::TensorList inputs);
  std::vector<at::Tensor> end(at::TensorList inputs, std::vector<at::Tensor> results);
  /// Runs what was recorded. inputs: as the first call's but for their values.
  std::vector<at::Tensor> again(at::TensorList inputs);

  /// Between begin() and end(): it can't be done again.
  void refuse(const std::string& reason) { recorder_->refuse(reason); }

  /// True if again() may be called: with gradients, once the first call's backward has been.
  bool is_ready() const { return ready_; }
  /// Why it never will be; "": it may.
  const std::string& refusal() const { return refusal_; }
  /// False where a tensor that was no input has other memory, or another meaning, than then.
  bool is_current() const;
  std::size_t nodes() const { return tape_.nodes.size(); }

 private:
  friend struct GraphedFunction;
  struct Frame;
  void finish();
  void find_what_backward_reads();
  void find_leaves(at::TensorList results);
  /// Refuses where a parameter's gradient may come by another way than the graph of the results.
  void refuse_hidden_gradients();
  std::vector<at::Tensor> backward_as_it_is(at::TensorList gradients);
  std::vector<at::Tensor> first_backward(at::TensorList gradients);
  std::vector<at::Tensor> backward(Frame& frame, at::TensorList gradients);
  at::Tensor as_recorded(const at::Tensor& gradient, const TapeWindow& like) const;
  void note_versions(Frame& frame) const;
  /// The results of a call as those of a node of autograd.
  std::vector<at::Tensor> in_graph(const c10::intrusive_ptr<Frame>& frame, at::TensorList inputs,
                                   const std::vector<at::Tensor>& results) const;

  Tape tape_;
  struct Capturing;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Capturing> capturing_;
  std::size_t backward_begins_ = 0;
  std::vector<std::int32_t> inputs_, results_, gradients_in_, gradients_out_, read_in_backward_;
  std::vector<std::size_t> with_gradient_;  // results
  std::vector<bool> input_needs_;           // a gradient
  std::vector<at::Tensor> leaves_;          // that were no input
  std::vector<at::Tensor> first_inputs_, first_results_;
  std::vector<Recorder::Outside> outside_;
  std::vector<std::function<bool()>> conditions_;
  std::vector<const void*> tags_;  // of outside slots
  std::function<std::shared_ptr<void>()> around_backward_;
  std::string refusal_;
  bool ready_ = false;
};

}  // namespace fp8::runtime
