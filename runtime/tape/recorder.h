// SPDX-License-Identifier: Apache-2.0
// Recording a tape. While a recording runs, its thread, and the threads of autograd that it sends work to, have a
// dispatch key that nothing else uses (c10::DispatchKey::Fake), below autograd and above all backends:
//
//   at::mm -> AutogradHPU -> Fake: on_call()  -> HPU: the kernel, in which the key is off
//                              `- a node, if it was work
//
// So a recording hears what the dispatcher hears, and costs nothing where there is none. Work that reaches kernels by
// another way is a leaf (leaf/leaf.h) that begins with the key on: it takes run_node(), or the recording is no use and
// says why. What can't be done again is likewise refused with its name:
//
//   a value that the host reads        item(), nonzero, .cpu(), masked_select: what follows may depend on it, unless it
//                                      is the same each time (of arange, ones, ... alone)
//   a random number of the host        torch.rand on the CPU
//   random numbers that begin again    manual_seed, the state of a generator set (activation checkpointing), another
//                                      generator than the default one
//   memory that grows or is replaced   resize_, set_
//   memory whose making was not heard
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/tape/tape.h"

namespace fp8::runtime {

/// True on a thread whose work is being recorded, outside of nodes.
bool is_recording();

/// One recording of the process at a time.
class Recorder final : LeafListener {
 public:
  /// Begins on this thread. Throws c10::Error where a recording runs.
  Recorder();
  /// Ends it, where end() has not. Must be on the same thread.
  ~Recorder() override;
  Recorder& operator=(Recorder&&) = delete;

  /// The window of a tensor that each run is given anew. Before its first use.
  std::int32_t given(const at::Tensor& tensor);
  /// The window of a tensor that has been made, or that was there before.
  std::int32_t window_of(const at::Tensor& tensor);
  /// How many nodes there are: a place in the order.
  std::size_t position() const { return tape_.nodes.size(); }

  /// Stops listening, and goes on: what is heard later comes behind, also on another thread. In between the process may
  /// record something else.
  void pause();
  void resume();

  /// Tensors that were there before, as their owners have them now: those alive. After end().
  struct Outside {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    c10::StorageImpl* memory;
    bool requires_grad;
  };
  std::vector<Outside> take_outside() { return std::move(outside_); }
  /// Tensors with requires_grad that were there before and were read while gradients were off. To be compared alone.
  const std::unordered_set<const c10::TensorImpl*>& read_without_gradients() const { return read_without_gradients_; }

  /// Its backward is autograd::grad(): what a backward() inside of that adds to .grad would be lost.
  void take_gradients_apart() { gradients_apart_ = true; }
  bool takes_gradients_apart() const { return gradients_apart_; }

  /// The recording is of use for as long as `holds` says true.
  void depends_on(std::function<bool()> holds) { conditions_.push_back(std::move(holds)); }
  std::vector<std::function<bool()>> take_conditions() { return std::move(conditions_); }

  /// Ends. hold: memory of made slots that somebody has stays where it is. The tape has no windows that go (finish()).
  /// Where it can't be done again it is of no use, and refusal() says why.
  Tape end(bool hold);
  /// Why it can't be done again; "": it can. After end() for good.
  const std::string& refusal() const { return refusal_; }
  /// The first reason stays.
  void refuse(const std::string& reason);

  /// The first operation that took a tensor on the CPU which was there before: each run takes that one. "": none did.
  const std::string& host_operand() const { return host_operand_; }

  /// From the dispatcher.
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  /// A function of ours as one node: takes its arguments off the stack and puts results there. What changes from one
  /// run to the next it reads anew. Capsules among the results are this run's; a later node may take them.
  void call(const char* name, const std::function<void(torch::jit::Stack&)>& run, torch::jit::Stack& stack);

  static bool is_any_on();     ///< a recording of the process that is not paused, on whatever thread
  static Recorder* current();  ///< of this thread; null without, and within a node

 private:
  struct Seen {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    std::size_t bytes;
  };
  void leaf_begins(const LeafRecord& leaf) override;
  std::int32_t slot_of(const at::Tensor& tensor, TapeSlot::Kind kind);
  std::int32_t window_on(std::int32_t slot, const at::Tensor& tensor);
  void add_operands(TapeNode& node, torch::jit::Stack& arguments);
  void add_results(TapeNode& node, at::ArrayRef<c10::IValue> results, bool varies);
  void mark_written(TapeNode& node, const at::Tensor& tensor, bool varies);
  void check_random(const std::string& what, const at::Tensor& state, const torch::jit::Stack& arguments);
  bool reads_what_varies(const torch::jit::Stack& arguments) const;
  void settle(bool hold);

  Tape tape_;
  std::string refusal_;
  std::unordered_map<c10::StorageImpl*, std::int32_t> by_memory_;
  std::vector<Seen> seen_;                          // by slot
  std::vector<std::vector<std::int32_t>> on_slot_;  // by slot: its windows
  at::Tensor random_state_;                         // after the last random node
  std::vector<bool> varies_;                        // by slot: from one run to the next
  std::vector<c10::IValue> host_objects_;
  std::unordered_set<c10::StorageImpl*> made_on_host_;                  // during the recording
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> host_memory_;  // so that no address is given twice
  std::string host_operand_;
  std::vector<Outside> outside_;
  std::vector<std::function<bool()>> conditions_;
  std::unordered_set<c10::TensorImpl*> outside_known_;
  std::unordered_set<const c10::TensorImpl*> read_without_gradients_;
  bool gradients_apart_ = false;
  std::unique_ptr<Listening> listening_;
};

/// f(inputs), a tensor or an undefined one: one node where this thread's work is recorded. For functions that reach
/// kernels without the dispatcher; f runs again in each replay, so it holds what it needs by value.
template <class F>
at::Tensor run_node(const char* name, at::TensorList inputs, const F& f) {
  Recorder* recorder = Recorder::current();
  if (recorder == nullptr) [[likely]]
    return f(inputs);
  torch::jit::Stack stack(inputs.begin(), inputs.end());
  recorder->call(
      name,
      [f](torch::jit::Stack& s) {
        std::vector<at::Tensor> given;
        for (const c10::IValue& value : s) given.push_back(value.toTensor());
        s.assign(1, f(at::TensorList(given)));
      },
      stack);
  return std::move(stack.front()).toTensor();
}

/// While it lives, this thread's work is not recorded.
class NotRecorded {
 public:
  NotRecorded() : guard_(c10::DispatchKey::Fake) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace fp8::runtime
