// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/fp8_module.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cstring>
#include <thread>

#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/tape/recorder.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/region/recomputation.h"

namespace fp8::te {
namespace {

std::string key_of(std::size_t i) { return "fp8_extra_state_" + std::to_string(i); }
/// Of one of a state's tensors: archives take no dots.
std::string key_of(std::size_t i, const std::string& tensor) {
  std::string key = key_of(i) + "_" + tensor;
  std::ranges::replace(key, '.', '_');
  return key;
}
constexpr const char* kForeignKeys[] = {"_extra_state", "fp8_extra_state"};

at::Tensor bytes_of(const std::string& text) {
  at::Tensor t = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(t.mutable_data_ptr(), text.data(), text.size());
  return t;
}

/// Those of the module itself; none where it is no torch::nn::Module.
std::vector<std::pair<std::string, Fp8Weight*>> own_weights(const Fp8Module& self) {
  const auto* module = dynamic_cast<const torch::nn::Module*>(&self);
  return module == nullptr ? std::vector<std::pair<std::string, Fp8Weight*>>()
                           : fp8_weights(*module, /*recurse=*/false);
}

std::string weight_key(const std::string& parameter) { return "fp8_weight_" + parameter; }

io::Json json_of(const at::Tensor& bytes, const std::string& name) {
  const at::Tensor text = bytes.cpu().contiguous();
  return io::parse_json({static_cast<const char*>(text.const_data_ptr()), static_cast<std::size_t>(text.nbytes())},
                        name);
}

/// Throws for the first of the arguments that is true.
void refuse(const char* module, std::initializer_list<std::pair<const char*, bool>> arguments, const char* why) {
  for (const auto& [name, value] : arguments)
    TORCH_CHECK(!value, "[", module, "] ", name, ": found true, allowed: false (", why, ")");
}

using torch::autograd::variable_list;

thread_local ReplayLog* t_log = nullptr;

/// The default generator (hpu's is the same) put back to where it was, for one run.
class RngScope {
 public:
  explicit RngScope(const at::Tensor& state) {
    if (!state.defined()) return;
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    after_ = generator.get_state();
    generator.set_state(state);
  }
  ~RngScope() {
    if (!after_.defined()) return;
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(after_);
  }
  RngScope& operator=(RngScope&&) = delete;

 private:
  at::Tensor after_;
};

struct Recompute final : torch::autograd::Node {
  CheckpointedFunction function;
  std::vector<torch::autograd::SavedVariable> inputs;
  std::vector<bool> needs_grad;
  at::Tensor rng;
  bool autocast = false;
  at::ScalarType autocast_dtype = at::kBFloat16;
  std::shared_ptr<Fp8Region> region;
  ReplayLog log;

  std::string name() const override { return "fp8::te::checkpoint"; }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(
        !at::GradMode::is_enabled(),
        "[checkpoint] a checkpointed function has no second derivative: expected backward() without create_graph");
    TORCH_CHECK(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
                "[checkpoint] found autograd::grad() or backward() with inputs, allowed: backward() of all: the "
                "gradients of parameters that the checkpointed function uses would be left out");
    TORCH_CHECK(!inputs.empty() || needs_grad.empty(),
                "[checkpoint] backward ran twice: the first time needs retain_graph = true");
    variable_list again;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      at::Tensor t = inputs[i].unpack();
      if (t.defined()) t = t.detach();
      if (needs_grad[i]) t.requires_grad_(true);
      again.push_back(std::move(t));
    }
    run(again, gradients);
    variable_list result;
    for (std::size_t i = 0; i < again.size(); ++i) result.push_back(needs_grad[i] ? again[i].grad() : at::Tensor());
    return result;
  }

  void run(const variable_list& again, const variable_list& gradients) {
    const at::AutoGradMode with_grad(true);
    variable_list outputs;
    {
      // Forward only: a backward pass in an autocast region would round what the plain one does not.
      const RegionScope in_region(region);
      const runtime::autocast::AutocastGuard cast(autocast_dtype, autocast);
      const RngScope numbers(rng);
      log.start_replay();
      const ReplayScope replay(&log);
      outputs = function(again);
    }
    variable_list roots, root_gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (roots.empty()) return;
    const Fp8Region::InnerBackward inner(region);
    torch::autograd::backward(roots, root_gradients);
  }

  void release_variables() override { inputs.clear(); }
};

namespace autocast = runtime::autocast;

/// The scopes in force during a run, on its thread.
struct GoingOn {
  explicit GoingOn(ReplayLog* log) : replay(log) {}
  const std::thread::id thread = std::this_thread::get_id();
  std::optional<RegionScope> region;  ///< of a second run: the first is in its own
  std::optional<autocast::AutocastGuard> cast;
  ReplayScope replay;
};

struct CheckpointRun {
  ReplayLog log{current_replay_log()};
  const std::shared_ptr<Fp8Region> region = current_region();
  const bool casts = autocast::is_autocast_hpu_enabled();
  const at::ScalarType dtype = casts ? autocast::autocast_hpu_dtype() : at::kBFloat16;
  std::mutex mutex;
  std::optional<GoingOn> going_on;
};

/// A recording hears the second run as a call of its own, and not where its scales and gradients belong.
void refuse_recording() {
  auto* recorder = runtime::Recorder::current();
  if (recorder != nullptr && (recorder->takes_gradients_apart() || current_region() != nullptr))
    recorder->refuse("activation checkpointing, which runs a part of the call again within its backward");
}

/// Not destroyed at the program's end: see the regions of training_operators.cpp.
runtime::ops::Handles<CheckpointRun>& runs() {
  static auto& all = *new runtime::ops::Handles<CheckpointRun>("run");
  return all;
}

}  // namespace

void Fp8Module::save_fp8(torch::serialize::OutputArchive& archive) const {
  const auto states = fp8_states();
  for (std::size_t i = 0; i < states.size(); ++i) {
    const Fp8StateValues values = states[i]->values();
    archive.write(key_of(i), bytes_of(state_json(values).dump()), /*is_buffer=*/true);
    for (const auto& [key, tensor] : state_tensors(values)) archive.write(key_of(i, key), tensor, /*is_buffer=*/true);
  }
  for (const auto& [name, weight] : own_weights(*this)) {
    archive.write(weight_key(name), bytes_of(weight_json(*weight).dump()), /*is_buffer=*/true);
    if (weight->master().defined()) archive.write(weight_key(name) + "_master", weight->master(), /*is_buffer=*/true);
  }
}

void Fp8Module::load_fp8(torch::serialize::InputArchive& archive) {
  const auto states = fp8_states();
  for (const char* foreign : kForeignKeys) {
    at::Tensor blob;
    if (archive.try_read(foreign, blob, /*is_buffer=*/true) && blob.defined())
      refuse_pickle(states.empty() ? foreign : states[0]->name(), blob);
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::string& name = states[i]->name();
    at::Tensor text;
    if (!archive.try_read(key_of(i), text, /*is_buffer=*/true)) {
      TORCH_WARN("[load] '", name, "': the archive holds no fp8 state: its scales stay as they are");
      continue;
    }
    const io::Json json = json_of(text, name);
    std::map<std::string, at::Tensor> tensors;
    for (const char* key : {"forward.scale", "forward.amax_history", "hybrid.scale", "hybrid.amax_history",
                            "backward.scale", "backward.amax_history", "amax_seen"}) {
      at::Tensor t;
      if (archive.try_read(key_of(i, key), t, /*is_buffer=*/true)) tensors[key] = t.cpu();
    }
    states[i]->set_values(state_from(name, json, tensors));
  }
  for (const auto& [name, weight] : own_weights(*this)) {
    at::Tensor text;
    TORCH_CHECK(archive.try_read(weight_key(name), text, /*is_buffer=*/true), "[load] parameter '", name,
                "' is held in fp8, and the archive holds no scale for it: expected an archive of a module made in "
                "quantized_model_init");
    at::Tensor master;
    (void)archive.try_read(weight_key(name) + "_master", master, /*is_buffer=*/true);
    set_weight(name, *weight, json_of(text, name), master);
  }
}

void Fp8Module::clone_fp8(torch::nn::Module& copy) const {
  const auto from = fp8_states(), to = dynamic_cast<const Fp8Module&>(copy).fp8_states();
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[i]->set_values(from[i]->values());
    to[i]->set_recipe(from[i]->own_recipe());
    to[i]->keep_high_precision(from[i]->keeps_high_precision());
  }
  auto parameters = copy.named_parameters(/*recurse=*/false);
  for (const auto& original : dynamic_cast<const torch::nn::Module&>(*this).named_parameters(/*recurse=*/false)) {
    if (!original.value().defined() || fp8_weight(original.value()) == nullptr) continue;
    at::Tensor& mine = parameters[original.key()];
    TORCH_CHECK(mine.is_hpu(), "[clone] parameter '", original.key(), "' is held in fp8: device: found ", mine.device(),
                ", allowed: hpu");
    own_fp8_weight(mine, original.value());
  }
}

void check_parallel(const char* module, const ParallelOptions& o) {
  TORCH_CHECK(o.tp_size == 1, "[", module, "] tp_size: found ", o.tp_size,
              ", allowed: 1 (tensor parallelism comes with distributed training)");
  refuse(module, {{"sequence_parallel", o.sequence_parallel}}, "it comes with distributed training");
  TORCH_CHECK(o.tp_group == nullptr || o.tp_group->size() == 1, "[", module, "] tp_group: found one of ",
              o.tp_group == nullptr ? 0 : o.tp_group->size(),
              " ranks, allowed: none, or of 1 (tensor parallelism comes with distributed training)");
  refuse(module,
         {{"ub_overlap_ag", o.ub_overlap_ag},
          {"ub_overlap_rs", o.ub_overlap_rs},
          {"ub_overlap_rs_dgrad", o.ub_overlap_rs_dgrad},
          {"ub_bulk_dgrad", o.ub_bulk_dgrad},
          {"ub_bulk_wgrad", o.ub_bulk_wgrad}},
         "one process has no communication to overlap");
  const std::string& mode = o.parallel_mode;
  TORCH_CHECK(mode.empty() || mode == "column" || mode == "row", "[", module, "] parallel_mode: found \"", mode,
              "\", allowed: \"\", \"column\", \"row\"");
}

void refuse_wgrad_options(const char* module, bool fuse_wgrad_accumulation, bool delay_wgrad_compute) {
  refuse(module, {{"fuse_wgrad_accumulation", fuse_wgrad_accumulation}},
         "weights have no main_grad here; gradients accumulate in grad()");
  refuse(module, {{"delay_wgrad_compute", delay_wgrad_compute}},
         "there is no backward_dw() here: backward() computes all gradients");
}

void refuse_fp8_results(const char* module, bool fp8_output, bool fp8_grad) {
  refuse(module, {{"fp8_output", fp8_output}}, "results are in the activation dtype");
  refuse(module, {{"fp8_grad", fp8_grad}}, "gradients of inputs are in the input's dtype");
}

void check_size(const char* module, const char* argument, std::int64_t size) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  TORCH_CHECK(size >= 1 && size <= kLargest, "[", module, "] ", argument, ": found ", size, ", allowed: 1 to ",
              kLargest);
}

void check_input(const char* module, const std::string& name, const at::Tensor& x, std::int64_t features) {
  TORCH_CHECK(x.defined(), "[", module, "] '", name, "': input: found none, allowed: [..., ", features, "]");
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == features, "[", module, "] '", name, "': input: found sizes ", x.sizes(),
              ", allowed: [..., ", features, "]");
}

ReplayLog* current_replay_log() { return t_log; }
ReplayScope::ReplayScope(ReplayLog* log) : previous_(std::exchange(t_log, log)) {}
ReplayScope::~ReplayScope() { t_log = previous_; }

std::optional<StepScales> ReplayLog::given(const Fp8State& state) {
  if (!replaying_) {
    auto from_outside = outer_ != nullptr ? outer_->given(state) : std::nullopt;
    if (from_outside.has_value()) remember(state, *from_outside);
    return from_outside;
  }
  auto& left = left_[&state];
  TORCH_CHECK(!left.empty(), "[checkpoint] the second run calls '", state.name(), "' more often than the first did");
  StepScales scales = std::move(left.front());
  left.pop_front();
  return scales;
}

std::vector<at::Tensor> checkpoint(const CheckpointedFunction& function, const std::vector<at::Tensor>& inputs,
                                   const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  refuse_recording();
  auto node = c10::make_intrusive<Recompute>();
  node->function = function;
  node->log = ReplayLog(current_replay_log());
  node->region = current_region();
  node->autocast = runtime::autocast::is_autocast_hpu_enabled();
  if (node->autocast) node->autocast_dtype = runtime::autocast::autocast_hpu_dtype();
  if (options.preserve_rng_state) {
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    node->rng = generator.get_state();
  }
  for (const auto& t : inputs) {
    node->inputs.emplace_back(t, /*is_output=*/false);
    node->needs_grad.push_back(t.defined() && t.requires_grad());
  }
  torch::autograd::edge_list edges;
  for (const auto& t : inputs)
    edges.push_back(t.defined() && t.requires_grad() ? torch::autograd::impl::gradient_edge(t)
                                                     : torch::autograd::Edge());
  node->set_next_edges(std::move(edges));
  std::vector<at::Tensor> outputs;
  {
    const at::NoGradGuard no_grad;
    const ReplayScope first_run(&node->log);
    outputs = function(inputs);
  }
  for (auto& t : outputs) {
    if (t.defined()) t = t.detach();  // an input that is returned must not become its own result
    if (t.defined() && !torch::autograd::isDifferentiableType(t.scalar_type())) {
      node->add_input_metadata(torch::autograd::Node::undefined_input());  // indices, masks: results without a gradient
    } else {
      torch::autograd::set_history(t, node);
    }
  }
  return outputs;
}

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function, const at::Tensor& input,
                      const CheckpointOptions& options) {
  const CheckpointedFunction many = [function](const std::vector<at::Tensor>& t) {
    return std::vector<at::Tensor>{function(t[0])};
  };
  return checkpoint(many, std::vector<at::Tensor>{input}, options)[0];
}

std::int64_t checkpoint_begin() {
  refuse_recording();
  const auto run = std::make_shared<CheckpointRun>();
  run->going_on.emplace(&run->log);
  return runs().add(run);
}

void checkpoint_again(std::int64_t number) {
  const auto run = runs().get("checkpoint_again", number);
  const std::lock_guard<std::mutex> lock(run->mutex);
  TORCH_CHECK(!run->going_on.has_value(), "[fp8::checkpoint_again] run: found ", number,
              ", which is going on; expected one that fp8::checkpoint_end ended");
  run->log.start_replay();
  run->going_on.emplace(&run->log);
  run->going_on->region.emplace(run->region);
  run->going_on->cast.emplace(run->dtype, run->casts);
  // A backward() inside of this one is a part of the step's.
  if (run->region != nullptr) run->region->finish_when_backward_ends();
}

void checkpoint_end(std::int64_t number) {
  const auto run = runs().get("checkpoint_end", number);
  const std::lock_guard<std::mutex> lock(run->mutex);
  TORCH_CHECK(run->going_on.has_value(), "[fp8::checkpoint_end] run: found ", number,
              ", which is not going on; expected one between fp8::checkpoint_begin or checkpoint_again and its end");
  TORCH_CHECK(run->going_on->thread == std::this_thread::get_id(), "[fp8::checkpoint_end] run: found ", number,
              ", which another thread began; expected one of this thread");
  TORCH_CHECK(current_replay_log() == &run->log, "[fp8::checkpoint_end] run: found ", number,
              ", which has another one going on inside; expected the innermost");
  run->going_on.reset();
}

void checkpoint_free(std::int64_t number) {
  const auto run = runs().get("checkpoint_free", number);
  {
    const std::lock_guard<std::mutex> lock(run->mutex);
    TORCH_CHECK(!run->going_on.has_value(), "[fp8::checkpoint_free] run: found ", number,
                ", which is going on; expected one that fp8::checkpoint_end ended");
  }
  runs().take_out(number);
}

FP8_LIBRARY_FRAGMENT(fp8, m) {
  constexpr auto kEffect = c10::AliasAnalysisKind::CONSERVATIVE;
  m.def(torch::schema("checkpoint_begin() -> int run", kEffect), &checkpoint_begin);
  m.def(torch::schema("checkpoint_again(int run) -> ()", kEffect), &checkpoint_again);
  m.def(torch::schema("checkpoint_end(int run) -> ()", kEffect), &checkpoint_end);
  m.def(torch::schema("checkpoint_free(int run) -> ()", kEffect), &checkpoint_free);
}

}  // namespace fp8::te
