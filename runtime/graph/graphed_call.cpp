// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/graph/graphed_call.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What autocast keeps of a weight is memory that goes with the region.
class WithoutAutocastCache {
 public:
  WithoutAutocastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~WithoutAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  WithoutAutocastCache& operator=(WithoutAutocastCache&&) = delete;

 private:
  bool before_;
};

/// Resumes a recording for a block; an exception ends it.
class Resumed {
 public:
  explicit Resumed(Recorder& recorder) : recorder_(recorder) { recorder.resume(); }
  ~Resumed() { recorder_.pause(); }
  Resumed& operator=(Resumed&&) = delete;

 private:
  Recorder& recorder_;
};

GraphHooks g_hooks;

const void* tag_on(const c10::Storage& memory) {
  const Block* block = block_of(memory.unsafeGetStorageImpl());
  return block == nullptr ? nullptr : block->tag.get();
}

}  // namespace

void set_graph_hooks(const GraphHooks& hooks) { g_hooks = hooks; }
const GraphHooks& graph_hooks() { return g_hooks; }

/// What one call hands to its backward.
struct GraphedCall::Frame final : torch::CustomClassHolder {
  explicit Frame(std::shared_ptr<GraphedCall> of) : call(std::move(of)) {}
  std::shared_ptr<GraphedCall> call;
  std::optional<TapeFrame> memory;  // none: the first call's, which autograd keeps
  std::vector<std::pair<std::int32_t, std::uint32_t>> versions;
};

struct GraphedFunction : torch::autograd::Function<GraphedFunction> {
  /// inputs: the call's and the leaves; results: what the call gave, without history.
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<GraphedCall::Frame>& frame,
                               at::TensorList inputs, std::vector<at::Tensor> results) {
    (void)inputs;
    ctx->saved_data["frame"] = c10::IValue::make_capsule(frame);
    variable_list without, all;
    const auto& with = frame->call->with_gradient_;
    for (std::size_t i = 0; i < results.size(); ++i) {
      all.push_back(results[i].detach());
      if (std::ranges::find(with, i) == with.end()) without.push_back(all.back());
    }
    ctx->mark_non_differentiable(without);
    return all;
  }

  static variable_list backward(AutogradContext* ctx, variable_list given) {
    auto frame = c10::static_intrusive_pointer_cast<GraphedCall::Frame>(ctx->saved_data["frame"].toCapsule());
    GraphedCall& call = *frame->call;
    std::vector<at::Tensor> gradients;
    for (const auto i : call.with_gradient_) gradients.push_back(given[i]);
    auto found = frame->memory.has_value() ? call.backward(*frame, gradients) : call.first_backward(gradients);
    for (at::Tensor& g : found) g = ops::once_differentiable(g, "a call that graphs replay", {}, gradients);
    variable_list all = {at::Tensor()};  // of the frame
    all.insert(all.end(), found.begin(), found.end());
    all.emplace_back();  // of the results
    return all;
  }
};

struct GraphedCall::Capturing {
  const WithoutAutocastCache fresh;
};

GraphedCall::GraphedCall() = default;
GraphedCall::~GraphedCall() = default;

const std::vector<at::Tensor>& GraphedCall::begin(at::TensorList inputs) {
  const bool differentiates = at::GradMode::is_enabled();
  for (const at::Tensor& x : inputs)
    first_inputs_.push_back(x.detach().requires_grad_(differentiates && x.requires_grad()));
  if (g_hooks.backward != nullptr) around_backward_ = g_hooks.backward();
  recorder_ = std::make_unique<Recorder>();
  if (differentiates) recorder_->take_gradients_apart();
  capturing_ = std::make_unique<Capturing>();
  for (const at::Tensor& x : first_inputs_) {
    inputs_.push_back(recorder_->given(x));
    input_needs_.push_back(x.requires_grad());
  }
  return first_inputs_;
}

std::vector<at::Tensor> GraphedCall::end(at::TensorList inputs, std::vector<at::Tensor> results) {
  for (const at::Tensor& y : results) {
    if (!y.defined() || !y.is_hpu())
      recorder_->refuse("a result that is no tensor on hpu");
    else
      results_.push_back(recorder_->window_of(y));
  }
  recorder_->pause();
  capturing_.reset();
  backward_begins_ = recorder_->position();
  find_leaves(results);
  refuse_hidden_gradients();
  refusal_ = recorder_->refusal();
  if (!refusal_.empty()) recorder_.reset();
  const bool in_its_own_graph = recorder_ == nullptr && std::ranges::find(input_needs_, true) == input_needs_.end();
  if (with_gradient_.empty() || in_its_own_graph) {
    finish();
    first_inputs_.clear(), leaves_.clear();
    return results;
  }
  first_results_ = results;
  return in_graph(c10::make_intrusive<Frame>(shared_from_this()), inputs, results);
}

std::vector<at::Tensor> GraphedCall::in_graph(const c10::intrusive_ptr<Frame>& frame, at::TensorList inputs,
                                              const std::vector<at::Tensor>& results) const {
  std::vector<at::Tensor> differentiable(inputs.begin(), inputs.end());
  differentiable.insert(differentiable.end(), leaves_.begin(), leaves_.end());
  return GraphedFunction::apply(frame, at::TensorList(differentiable), results);
}

std::vector<at::Tensor> GraphedCall::first(const GraphFunction& f, at::TensorList inputs) {
  return end(inputs, f(begin(inputs)));
}

void GraphedCall::find_leaves(at::TensorList results) {
  std::unordered_set<torch::autograd::Node*> seen;
  std::unordered_set<c10::TensorImpl*> own;
  for (const at::Tensor& x : first_inputs_) own.insert(x.unsafeGetTensorImpl());
  std::vector<torch::autograd::Node*> open;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].requires_grad()) continue;
    with_gradient_.push_back(i);
    if (const auto& node = torch::autograd::impl::gradient_edge(results[i]).function;
        node && seen.insert(node.get()).second)
      open.push_back(node.get());
  }
  while (!open.empty()) {
    auto* node = open.back();
    open.pop_back();
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      if (!own.contains(leaf->variable.unsafeGetTensorImpl())) leaves_.push_back(leaf->variable);
      continue;
    }
    for (const auto& edge : node->next_edges())
      if (edge.function && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
  }
}

void GraphedCall::refuse_hidden_gradients() {
  if (!recorder_->takes_gradients_apart()) return;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const at::Tensor& leaf : leaves_) known.insert(leaf.unsafeGetTensorImpl());
  for (const auto* owner : recorder_->read_without_gradients())
    if (!known.contains(owner))
      recorder_->refuse(
          "a parameter that learns is read where gradients are off, and the graph of the results has it nowhere else "
          "(activation checkpointing?)");
}

/// All of the first call's graph, as without a capture: leaves get their gradients here.
std::vector<at::Tensor> GraphedCall::backward_as_it_is(at::TensorList gradients) {
  std::vector<at::Tensor> roots, given;
  for (std::size_t i = 0; i < with_gradient_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    roots.push_back(first_results_[with_gradient_[i]]);
    given.push_back(gradients[i]);
  }
  for (at::Tensor& x : first_inputs_) x.mutable_grad().reset();  // of a backward that failed
  const auto around = around_backward_ ? around_backward_() : nullptr;
  torch::autograd::backward(roots, given, /*retain_graph=*/true);
  std::vector<at::Tensor> all;
  for (at::Tensor& x : first_inputs_) all.push_back(std::exchange(x.mutable_grad(), at::Tensor()));
  all.resize(all.size() + leaves_.size());
  return all;
}

std::vector<at::Tensor> GraphedCall::first_backward(at::TensorList gradients) {
  if (!refusal_.empty() && !first_results_.empty() &&
      torch::autograd::Engine::get_default_engine().is_checkpoint_valid())
    return backward_as_it_is(gradients);
  std::vector<at::Tensor> roots, wanted;
  for (const auto i : with_gradient_) roots.push_back(first_results_[i]);
  for (const at::Tensor& x : first_inputs_)
    if (x.requires_grad()) wanted.push_back(x);
  wanted.insert(wanted.end(), leaves_.begin(), leaves_.end());
  TORCH_CHECK(!roots.empty(), "[graph] backward: the first call's backward has been, and its memory has gone");
  const std::vector<at::Tensor> given(gradients.begin(), gradients.end());
  if (recorder_ != nullptr && Recorder::is_any_on()) {
    recorder_.reset();
    refusal_ = "another capture was going on at its backward";
  }
  variable_list found;
  try {
    const auto around = around_backward_ ? around_backward_() : nullptr;
    std::optional<Resumed> resumed;
    if (recorder_ != nullptr) {
      resumed.emplace(*recorder_);
      for (const at::Tensor& g : given) gradients_in_.push_back(recorder_->given(g));
    }
    const WithoutAutocastCache fresh;
    found = torch::autograd::grad(roots, wanted, given, /*retain_graph=*/true, /*create_graph=*/false,
                                  /*allow_unused=*/true);
    if (recorder_ != nullptr)
      for (const at::Tensor& g : found) gradients_out_.push_back(g.defined() ? recorder_->window_of(g) : -1);
  } catch (...) {
    recorder_.reset();
    if (refusal_.empty()) refusal_ = "its backward failed";
    throw;
  }
  if (recorder_ != nullptr) finish();
  std::vector<at::Tensor> all;
  auto next = found.begin();
  for (const at::Tensor& x : first_inputs_) all.push_back(x.requires_grad() ? *next++ : at::Tensor());
  all.insert(all.end(), next, found.end());
  return all;
}

void GraphedCall::finish() {
  const auto recorder = std::move(recorder_);
  if (recorder == nullptr) return;
  if (!recorder->host_operand().empty())
    recorder->refuse(recorder->host_operand() + ": takes a tensor on the CPU that is no input");
  tape_ = recorder->end(/*hold=*/false);
  refusal_ = recorder->refusal();
  if (!refusal_.empty()) return;
  outside_ = recorder->take_outside();
  conditions_ = recorder->take_conditions();
  std::vector<std::int32_t> kept = results_;
  for (const auto window : gradients_out_)
    if (window >= 0) kept.push_back(window);
  tape_.finish(kept);
  find_what_backward_reads();
  for (const TapeSlot& slot : tape_.slots)
    tags_.push_back(slot.kind == TapeSlot::Kind::outside ? tag_on(slot.memory) : nullptr);
  ready_ = true;
}

void GraphedCall::find_what_backward_reads() {
  std::unordered_set<std::int32_t> there;  // slots, when forward ends
  for (std::size_t i = 0; i < tape_.slots.size(); ++i)
    if (tape_.slots[i].kind == TapeSlot::Kind::outside) there.insert(static_cast<std::int32_t>(i));
  for (const auto window : inputs_) there.insert(tape_.slot_of(window));
  for (std::size_t i = 0; i < backward_begins_; ++i)
    for (const auto& result : tape_.nodes[i].results) there.insert(tape_.slot_of(result.window));
  std::unordered_set<std::int32_t> read;
  const auto add = [&](std::int32_t window) {
    if (window >= 0 && there.contains(tape_.slot_of(window)) && read.insert(window).second)
      read_in_backward_.push_back(window);
  };
  for (std::size_t i = backward_begins_; i < tape_.nodes.size(); ++i)
    for (const auto window : tape_.nodes[i].operands) add(window);
  for (const auto window : gradients_out_) add(window);
}

bool GraphedCall::is_current() const {
  if (!std::ranges::all_of(conditions_, [](const auto& holds) { return holds(); })) return false;
  for (const auto& outside : outside_) {
    const auto tensor = outside.tensor.lock();
    if (tensor == nullptr || tensor->unsafe_storage().unsafeGetStorageImpl() != outside.memory ||
        tensor->requires_grad() != outside.requires_grad)
      return false;
  }
  for (std::size_t i = 0; i < tags_.size(); ++i)
    if (tape_.slots[i].kind == TapeSlot::Kind::outside && tag_on(tape_.slots[i].memory) != tags_[i]) return false;
  return true;
}

void GraphedCall::note_versions(Frame& frame) const {
  for (const auto window : read_in_backward_) {
    const auto slot = tape_.slot_of(window);
    const bool is_result = std::ranges::any_of(results_, [&](std::int32_t r) { return tape_.slot_of(r) == slot; });
    if (tape_.slots[static_cast<std::size_t>(slot)].kind == TapeSlot::Kind::made && !is_result) continue;
    if (const auto version = frame.memory->version(window)) frame.versions.emplace_back(window, *version);
  }
}

std::vector<at::Tensor> GraphedCall::again(at::TensorList inputs) {
  const auto frame = c10::make_intrusive<Frame>(shared_from_this());
  frame->memory.emplace(tape_);
  for (std::size_t i = 0; i < inputs.size(); ++i) frame->memory->give(inputs_[i], inputs[i]);
  tape_.run(*frame->memory, 0, backward_begins_);
  std::vector<at::Tensor> results;
  for (const auto window : results_) results.push_back(frame->memory->at(window).detach());
  if (with_gradient_.empty()) return results;
  note_versions(*frame);
  frame->memory->keep_only(read_in_backward_);
  return in_graph(frame, inputs, results);
}

/// With the strides that it had when it was recorded.
at::Tensor GraphedCall::as_recorded(const at::Tensor& gradient, const TapeWindow& like) const {
  if (gradient.strides() == like.strides) return gradient;
  try {
    return at::empty_strided(like.sizes, like.strides, gradient.options()).copy_(gradient);
  } catch (c10::Error& error) {
    add_replayed(error, "the gradient of a result",
                 backward_begins_ > 0 ? tape_.nodes[backward_begins_ - 1].module : std::string());
    throw;
  }
}

std::vector<at::Tensor> GraphedCall::backward(Frame& frame, at::TensorList gradients) {
  for (const auto& [window, version] : frame.versions)
    TORCH_CHECK(frame.memory->version(window) == version,
                "[graph] a tensor that the backward of a replayed call needs has been changed by an in-place operation "
                "since its forward: ",
                tape_.windows[static_cast<std::size_t>(window)].dtype.name(), " ",
                tape_.windows[static_cast<std::size_t>(window)].sizes);
  TapeFrame memory = *frame.memory;  // a second backward finds it as it was
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const TapeWindow& like = tape_.windows[static_cast<std::size_t>(gradients_in_[i])];
    memory.give(gradients_in_[i], as_recorded(gradients[i], like));
  }
  tape_.run(memory, backward_begins_, tape_.nodes.size());
  std::vector<at::Tensor> all;
  auto next = gradients_out_.begin();
  const auto take = [&] {
    const auto window = *next++;
    return window < 0 ? at::Tensor() : memory.at(window);
  };
  for (std::size_t i = 0; i < inputs_.size(); ++i) all.push_back(input_needs_[i] ? take() : at::Tensor());
  while (next != gradients_out_.end()) all.push_back(take());
  return all;
}

}  // namespace fp8::runtime
