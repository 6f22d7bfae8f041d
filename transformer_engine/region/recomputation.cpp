// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/region/recomputation.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

namespace fp8::te {
namespace {

thread_local ProductRun* t_run = nullptr;

/// The second run that this thread is in: which node's, and how often it has called each product.
struct SecondRun {
  int task = -1;
  const torch::autograd::Node* node = nullptr;
  std::map<const Fp8State*, std::size_t> calls;
};
thread_local SecondRun t_second;

std::size_t next_call(int task, const torch::autograd::Node* node, const Fp8State& state) {
  if (t_second.task != task || t_second.node != node) t_second = {task, node, {}};
  return t_second.calls[&state]++;
}

bool hooks_of_saved_tensors() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

[[noreturn]] void fail(const Fp8State& state, const char* why) {
  TORCH_CHECK(false, "[fp8_autocast] '", state.name(), "': its forward runs again in backward (", why,
              "), and the fp8 region and scales of its first run are not known: it would multiply in high precision. "
              "Expected torch.utils.checkpoint with use_reentrant=True, or with a context_fn of fp8::checkpoint_begin, "
              "checkpoint_again and checkpoint_end; in C++ fp8::te::checkpoint()");
}

}  // namespace

void FirstRuns::note(std::shared_ptr<Found> found) {
  const std::uint64_t thread = at::RecordFunction::currentThreadId(), number = at::sequence_number::peek();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto outermost = [](const std::shared_ptr<Found>& f) { return f == nullptr ? nullptr : &f->region->root(); };
  if (notes_.empty() || outermost(notes_.back().found) != outermost(found)) ++era_;
  notes_.push_back({thread, number, era_, std::move(found)});
  while (notes_.size() > kMostNotes || notes_.front().era + kMostRegions <= era_) {
    auto& last = dropped_[notes_.front().thread];
    last = std::max(last, notes_.front().number);
    notes_.pop_front();
  }
}

FirstRuns::Answer FirstRuns::find(std::uint64_t thread, std::uint64_t number, std::size_t call) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto dropped = dropped_.find(thread); dropped != dropped_.end() && dropped->second > number)
    return {false, true, nullptr};
  for (const Note& n : notes_)
    if (n.thread == thread && n.number > number && call-- == 0) return {true, false, n.found};
  return {};
}

ProductRun::ProductRun(Fp8State& state)
    : state_(state), previous_(t_run), inner_(t_run != nullptr && &t_run->state_ == &state) {
  if (inner_) {
    found_ = t_run->found_;
  } else if (!state.keeps_high_precision()) {
    look_back();
  }
  t_run = this;
}
ProductRun::~ProductRun() {
  t_run = previous_;
  if (!trained_.has_value()) return;
  found_->scales = *std::move(trained_);
  found_->recorded = true;
}

void ProductRun::look_back() {
  if (c10::InferenceMode::is_enabled()) return;
  const bool grad = at::GradMode::is_enabled();
  const ReplayLog* log = current_replay_log();
  const int task = torch::autograd::get_current_graph_task_id();
  c10::intrusive_ptr<torch::autograd::Node> node;
  if (task >= 0) node = torch::autograd::get_current_node();
  FirstRuns& first = state_.first_runs();
  if (!node.defined() || (log != nullptr && log->replaying())) {
    if (!node.defined()) first.ran_in_region(is_fp8_enabled());
    if (!grad && !is_fp8_enabled()) first.note(nullptr);  // in a region begin_forward() does, which knows the scales
    return;
  }
  if (grad && hooks_of_saved_tensors()) {
    if (first.in_region() && log == nullptr)
      fail(state_, "torch.utils.checkpoint with use_reentrant=False, or other hooks of saved tensors");
    return;
  }
  const FirstRuns::Answer answer =
      first.find(node->thread_id(), node->sequence_nr(), next_call(task, node.get(), state_));
  if (!answer.known) {
    if (answer.dropped && first.in_region()) fail(state_, "after more runs without gradients than are remembered");
    if (grad && log == nullptr && first.in_region())
      fail(state_, "a recomputation that kept gradients on in its first run");
    return;
  }
  if (answer.found != nullptr && log != nullptr)
    fail(state_, "te::checkpoint() inside of another recomputation; the other way round works");
  found_ = answer.found;
  region_.emplace(found_ == nullptr ? nullptr : found_->region);
  if (found_ != nullptr) inside_.emplace(found_->autocast);
  // A recomputed part inside of this one: its own second run looks for what this run finds.
  if (!grad && found_ == nullptr) first.note(nullptr);
}

OutsideRecomputation::OutsideRecomputation() : run_(std::exchange(t_run, nullptr)) {}
OutsideRecomputation::~OutsideRecomputation() { t_run = run_; }

bool in_function() {
  return !at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled() &&
         !c10::AutogradState::get_tls_state().get_fw_grad_mode();
}

void refuse_backward_by_hand(const Fp8State& state, FirstRuns& first) {
  if (torch::autograd::get_current_graph_task_id() < 0) return;
  const auto node = torch::autograd::get_current_node();
  // torch's own nodes, of products in high precision, may meet the weight so
  if (!node.defined() || dynamic_cast<const torch::autograd::TraceableFunction*>(node.get()) != nullptr) return;
  const auto found = first.find(node->thread_id(), node->sequence_nr(), 0).found;
  TORCH_CHECK(found == nullptr, "[fp8_autocast] '", state.name(),
              "': its forward ran in fp8 inside of an autograd.Function (", node->name(),
              "), whose backward multiplies with the weight itself: that would be in high precision, and no scale "
              "would move. Expected the product where gradients are on (for torch.compile: backend=\"eager\"), a "
              "backward that runs the forward again with them, or such modules outside of fp8_autocast");
}

const FirstRuns::Found* first_run_of(const Fp8State& state) {
  return t_run != nullptr && &t_run->state_ == &state ? t_run->found_.get() : nullptr;
}

void trains_as(const Fp8State& state, const StepScales& scales) {
  if (first_run_of(state) != nullptr) t_run->trained_ = scales;
}

}  // namespace fp8::te
