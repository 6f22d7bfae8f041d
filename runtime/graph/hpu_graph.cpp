// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/graph/hpu_graph.h"

#include <algorithm>
#include <exception>

#include "fp8/runtime/device/block.h"

namespace fp8::runtime {

void HPUGraph::capture_begin(bool) {
  TORCH_CHECK(!tape_.has_value(), "[graph] capture_begin: this graph has a capture; reset() it first");
  TORCH_CHECK(recorder_ == nullptr, "[graph] capture_begin: this graph's capture has not ended");
  recorder_ = std::make_unique<Recorder>();
  thread_ = std::this_thread::get_id();
}

void HPUGraph::capture_end() {
  TORCH_CHECK(recorder_ != nullptr, "[graph] capture_end: expected capture_begin() before it");
  TORCH_CHECK(thread_ == std::this_thread::get_id(), "[graph] capture_end: expected the thread of capture_begin()");
  const auto recorder = std::move(recorder_);
  Tape tape = recorder->end(/*hold=*/true);
  TORCH_CHECK(recorder->refusal().empty(), "[graph] can't be captured: ", recorder->refusal());
  tape_ = std::move(tape);
  tape_->finish({});
}

void HPUGraph::replay(bool asynchronous) {
  TORCH_CHECK(inputs_.empty() || !given_.empty(), "[graph] replay: the inputs were cleared: replay(inputs)");
  replay(given_, asynchronous);
}

void HPUGraph::replay(at::TensorList inputs, bool) {
  TORCH_CHECK(tape_.has_value(),
              "[graph] replay: found an empty graph, expected capture_begin() and capture_end() before");
  TORCH_CHECK(inputs.size() == inputs_.size(), "[graph] replay: found ", inputs.size(), " inputs, expected ",
              inputs_.size(), ", as many as are marked");
  TapeFrame frame(*tape_);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TapeWindow& window = tape_->windows[static_cast<std::size_t>(inputs_[i])];
    TORCH_CHECK(inputs[i].defined() && inputs[i].sizes() == window.sizes && inputs[i].strides() == window.strides &&
                    inputs[i].dtype() == window.dtype && inputs[i].is_hpu(),
                "[graph] replay: inputs[", i, "]: found ", inputs[i].toString(), " ", inputs[i].sizes(), ", expected ",
                window.dtype.name(), " ", window.sizes, " with strides ", window.strides, " on hpu");
    frame.give(inputs_[i], inputs[i]);
  }
  tape_->run(frame, 0, tape_->nodes.size());
}

void HPUGraph::mark_user_inputs(at::TensorList inputs) {
  TORCH_CHECK(tape_.has_value(), "[graph] mark_user_inputs: found an empty graph, expected it after capture_end()");
  std::vector<std::int32_t> marked;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& t = inputs[i];
    const auto found = std::ranges::find_if(tape_->windows, [&](const TapeWindow& w) {
      const TapeSlot& slot = tape_->slots[static_cast<std::size_t>(w.slot)];
      return slot.kind == TapeSlot::Kind::outside && slot.memory.unsafeGetStorageImpl() == storage_impl_of(t) &&
             w.sizes == t.sizes() && w.strides == t.strides() && w.offset == t.storage_offset();
    });
    TORCH_CHECK(found != tape_->windows.end(), "[graph] mark_user_inputs: inputs[", i,
                "]: the graph reads no such tensor");
    marked.push_back(static_cast<std::int32_t>(found - tape_->windows.begin()));
  }
  for (std::size_t i = 0; i < marked.size(); ++i) {
    const auto slot = tape_->windows[static_cast<std::size_t>(marked[i])].slot;
    tape_->slots[static_cast<std::size_t>(slot)].kind = TapeSlot::Kind::given;
    tape_->slots[static_cast<std::size_t>(slot)].memory = c10::Storage();
    tape_->slots[static_cast<std::size_t>(slot)].version = {};
    for (TapeWindow& window : tape_->windows)
      if (window.slot == slot) window.fixed.reset();
    given_.push_back(inputs[i]);
  }
  inputs_.insert(inputs_.end(), marked.begin(), marked.end());
}

void HPUGraph::mark_user_outputs(at::TensorList) {
  TORCH_CHECK(tape_.has_value(), "[graph] mark_user_outputs: found an empty graph, expected it after capture_end()");
}

void HPUGraph::clear_inputs() { given_.clear(); }

void HPUGraph::reset() {
  TORCH_CHECK(recorder_ == nullptr, "[graph] reset: this graph's capture has not ended");
  *this = HPUGraph();
}

GraphCapture::GraphCapture(HPUGraph& graph, bool dry_run) : graph_(graph), exceptions_(std::uncaught_exceptions()) {
  graph.capture_begin(dry_run);
}

GraphCapture::~GraphCapture() noexcept(false) {
  if (std::uncaught_exceptions() == exceptions_) {
    graph_.capture_end();
    return;
  }
  try {
    graph_.capture_end();
  } catch (const std::exception&) {  // the first one is on its way
  }
  graph_.reset();
}

}  // namespace fp8::runtime
