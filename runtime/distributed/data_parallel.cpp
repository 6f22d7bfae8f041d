// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>

#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::runtime::distributed {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

/// bucket / ranks -> dtype -> sum over the ranks -> the bucket's dtype
class Compressed final : public c10d::CppCommHookInterface<Group> {
 public:
  Compressed(const Group& group, at::ScalarType dtype) : CppCommHookInterface(group), dtype_(dtype) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<at::Tensor> sent = {(bucket.getBuffer() / state_->getSize()).to(dtype_)};
    const auto future = state_->allreduce(sent)->getFuture();
    return future->then(
        [buffer = bucket.getBuffer()](c10::ivalue::Future& sums) -> c10::IValue {
          const at::NoGradGuard no_grad;
          return c10::List<at::Tensor>({buffer.copy_(sums.value().toTensorVector().at(0))});
        },
        future->elementType());
  }

 private:
  at::ScalarType dtype_;
};

std::vector<std::vector<std::size_t>> buckets_of(const std::vector<at::Tensor>& parameters, std::int64_t cap) {
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      parameters, {static_cast<std::size_t>(c10d::kDefaultFirstBucketBytes), static_cast<std::size_t>(cap)});
  std::reverse(buckets.begin(), buckets.end());  // as gradients come
  return buckets;
}

/// Backward changes this of each parameter that it reaches.
std::pair<const void*, std::uint32_t> seen(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return {nullptr, 0};
  return {gradient.unsafeGetTensorImpl(), gradient.unsafeGetTensorImpl()->version_counter().current_version()};
}

}  // namespace

struct DataParallel::State {
  DataParallelOptions options;
  Group group;
  std::vector<at::Tensor> parameters;
  std::unordered_map<std::size_t, std::string> names;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;  ///< Reducer reports a changed graph to it, and does not check that it is there
  std::vector<std::pair<const void*, std::uint32_t>> before;  ///< gradients and their versions as backward begins
  bool learns_graph = false;  ///< static_graph: the first step, whose messages all wait for the end of backward

  void make_reducer() {
    const std::int64_t cap = options.bucket_cap_mb << 20;
    reducer = std::make_shared<c10d::Reducer>(
        parameters, buckets_of(parameters, cap), group, std::vector<bool>(parameters.size(), false), cap,
        options.find_unused_parameters, options.gradient_as_bucket_view, names, c10d::kDefaultFirstBucketBytes,
        /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
    logger = std::make_shared<c10d::Logger>(reducer);
    reducer->set_logger(logger);
    if (options.static_graph) reducer->set_static_graph();
    learns_graph = options.static_graph;
    if (options.bucket_dtype == BucketDtype::as_it_is) return;
    const auto dtype = options.bucket_dtype == BucketDtype::bf16 ? at::kBFloat16 : at::kHalf;
    reducer->register_comm_hook(std::make_unique<Compressed>(group, dtype));
  }
};

DataParallel::DataParallel(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names,
                           Group group, const DataParallelOptions& options)
    : state_(std::make_unique<State>()) {
  if (options.bucket_cap_mb < 1 || options.bucket_cap_mb > 65536)
    io::fail<std::invalid_argument>("[DataParallel] bucket_cap_mb: found {}, allowed: 1 to 65536",
                                    options.bucket_cap_mb);
  TORCH_CHECK(names.size() == parameters.size(), "[DataParallel] found ", names.size(), " names of ", parameters.size(),
              " parameters");
  state_->options = options;
  state_->group = std::move(group);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].defined() || !parameters[i].requires_grad()) continue;
    TORCH_CHECK(!c10::isFloat8Type(parameters[i].scalar_type()), "[DataParallel] '", names[i], "': found one held in ",
                parameters[i].scalar_type(),
                ", whose gradients no bucket can hold; allowed: Float, BFloat16, Half "
                "(hpu_parallel averages gradients of weights held in fp8)");
    state_->names.emplace(state_->parameters.size(), names[i]);
    state_->parameters.push_back(parameters[i]);
  }
  TORCH_CHECK(!state_->parameters.empty(), "[DataParallel] found no parameter with requires_grad among ",
              parameters.size(), ", allowed: at least one");
  c10d::verify_params_across_processes(state_->group, state_->parameters, std::nullopt);
  // Of a static graph the Reducer counts the gradients of the first step, and must not see those without a message.
  if (!options.static_graph) state_->make_reducer();
}

DataParallel::~DataParallel() {
  if (state_->reducer) state_->reducer->remove_autograd_hooks();
}

void DataParallel::before_forward() {
  if (!state_->reducer) state_->make_reducer();
  state_->reducer->prepare_for_forward();
}

void DataParallel::after_backward() {
  std::string problem;
  try {
    state_->reducer->rebuild_buckets();
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  }
  // Of a static graph the Reducer asks no more: what an earlier backward left where the last one did nothing is alone.
  std::string left_out;
  for (std::size_t i = 0; (!problem.empty() || state_->options.static_graph) && i < state_->parameters.size(); ++i)
    if (state_->before[i] == seen(state_->parameters[i]) && (!problem.empty() || state_->before[i].first != nullptr))
      left_out += (left_out.empty() ? "'" : ", '") + state_->names[i] + "'";
  TORCH_CHECK(problem.empty() && left_out.empty(),
              "[DataParallel] found parameters that the last backward of the step did not meet: ",
              left_out.empty() ? problem : left_out,
              ", whose gradients are not averaged; allowed: find_unused_parameters, or hpu_parallel");
}

void DataParallel::before_backward(const std::vector<at::Tensor>& outputs) {
  state_->reducer->prepare_for_backward(outputs);
  state_->before.clear();
  for (const at::Tensor& p : state_->parameters) state_->before.push_back(seen(p));
  if (!std::exchange(state_->learns_graph, false)) return;
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    const auto once = std::make_shared<bool>(false);
    output.register_hook([state = state_.get(), once](const at::Tensor&) {
      if (std::exchange(*once, true)) return;
      torch::autograd::Engine::get_default_engine().queue_callback([state] { state->reducer->delay_all_reduce(); });
    });
    return;
  }
}

void DataParallel::zero_gradients() {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& p : state_->parameters)
    if (p.grad().defined()) p.mutable_grad().zero_();
}

void broadcast_parameters(const std::vector<at::Tensor>& parameters, ProcessGroup& group, int root) {
  const at::NoGradGuard no_grad;
  for (const auto& p : parameters) {
    if (!p.defined()) continue;
    if (auto* in_fp8 = quantized_parameter(p)) {
      const at::Tensor values = in_fp8->values();
      group.broadcast(values, root);
      in_fp8->assign(values);
    } else {
      group.broadcast(p, root);
    }
  }
}

namespace {

/// f(parameter, its part of `flat`, its flag): parts and flags lie one behind the other.
template <class F>
void for_each_part(const std::vector<at::Tensor>& parameters, const at::Tensor& flat, float* flags, const F& f) {
  std::int64_t at = 0;
  for (const at::Tensor& p : parameters) {
    f(p, flat.narrow(0, at, p.numel()).view(p.sizes()), *flags++);
    at += p.numel();
  }
  TORCH_INTERNAL_ASSERT(at + static_cast<std::int64_t>(parameters.size()) == flat.numel(),
                        "a gradient and a flag for each parameter");
}

void set_gradient(const at::Tensor& p, const at::Tensor& values) {
  if (!p.grad().defined())
    p.mutable_grad() = at::zeros_like(p, p.options().dtype(p.grad_dtype().value_or(p.scalar_type())));
  cpu_alias(p.grad()).copy_(values);
  p.grad().unsafeGetTensorImpl()->bump_version();
}

}  // namespace

// The message: {gradient 0, gradient 1, ..., 1 or 0 per parameter: this rank has it}
void all_reduce_gradients(const std::vector<at::Tensor>& parameters, ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> learning;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& p = parameters[i];
    if (!p.defined() || !p.requires_grad()) continue;
    TORCH_CHECK(!p.grad().defined() || p.grad().layout() == at::kStrided, "[all_reduce_gradients] parameter ", i,
                ": found a sparse gradient, allowed: dense ones");
    learning.push_back(p);
    total += p.numel();
  }
  const at::Tensor flat = at::zeros({total + static_cast<std::int64_t>(learning.size())}, at::kFloat);
  float* flags = flat.mutable_data_ptr<float>() + total;
  for_each_part(learning, flat, flags, [](const at::Tensor& p, const at::Tensor& part, float& flag) {
    if (!p.grad().defined()) return;
    part.copy_(cpu_alias(p.grad()));
    flag = 1;
  });
  group.all_reduce(flat, ReduceOp::sum);
  flat.narrow(0, 0, total).mul_(1.0 / group.size());
  for_each_part(learning, flat, flags, [](const at::Tensor& p, const at::Tensor& part, float flag) {
    if (flag > 0) set_gradient(p, part);
  });
}

FusedGradients::FusedGradients(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                               std::shared_ptr<ProcessGroup> group, at::ScalarType dtype)
    : parameters_(std::move(parameters)), names_(std::move(names)), group_(std::move(group)), dtype_(dtype) {
  TORCH_CHECK(names_.size() == parameters_.size(), "[FusedGradients] found ", names_.size(), " names of ",
              parameters_.size(), " parameters");
  TORCH_CHECK(dtype_ == at::kFloat || dtype_ == at::kBFloat16 || dtype_ == at::kHalf, "[FusedGradients] dtype: found ",
              dtype_, ", allowed: Float, BFloat16, Half");
}

// The buffer: {gradient 0, gradient 1, ..., 1 or 0 per parameter: this rank has it}. In any dtype a sum of ones is
// above 0, so sets of gradients that differ from rank to rank, or from step to step, make the same message.
void FusedGradients::make_buffer(const std::vector<std::size_t>& learning) {
  std::int64_t elements = static_cast<std::int64_t>(learning.size());
  io::Json sizes = io::Json::object();
  for (const std::size_t i : learning) {
    sizes[names_[i]] = parameters_[i].sizes().vec();
    elements += parameters_[i].numel();
  }
  check_same(sizes, *group_, "FusedGradients");
  learning_ = learning;
  buffer_ = at::empty({elements}, dtype_);
}

void FusedGradients::all_reduce() {
  const at::NoGradGuard no_grad;
  std::vector<std::size_t> indices;
  std::vector<at::Tensor> learning;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& p = parameters_[i];
    if (!p.defined() || !p.requires_grad()) continue;
    TORCH_CHECK(!p.grad().defined() || p.grad().layout() == at::kStrided, "[FusedGradients] '", names_[i],
                "': found a sparse gradient, allowed: dense ones");
    indices.push_back(i);
    learning.push_back(p);
  }
  if (!buffer_.defined() || indices != learning_) make_buffer(indices);
  const std::int64_t flags = buffer_.numel() - static_cast<std::int64_t>(learning.size());
  const at::Tensor has = at::zeros({static_cast<std::int64_t>(learning.size())}, at::kFloat);
  const double share = 1.0 / group_->size();
  for_each_part(learning, buffer_, has.mutable_data_ptr<float>(),
                [&](const at::Tensor& p, const at::Tensor& part, float& flag) {
                  if (p.grad().defined()) {
                    part.copy_(cpu_alias(p.grad()) * share);
                    flag = 1;
                  } else {
                    part.zero_();
                  }
                });
  buffer_.narrow(0, flags, has.numel()).copy_(has);
  if (buffer_.numel() > 0) group_->all_reduce_in_dtype(buffer_);
  has.copy_(buffer_.narrow(0, flags, has.numel()));
  for_each_part(learning, buffer_, has.mutable_data_ptr<float>(),
                [](const at::Tensor& p, const at::Tensor& part, float flag) {
                  if (flag > 0) set_gradient(p, part);
                });
}

}  // namespace fp8::runtime::distributed
