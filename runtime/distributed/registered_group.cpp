// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/registered_group.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <exception>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "fp8/runtime/distributed/meeting.h"
#include "fp8/runtime/distributed/ordered_floats.h"

namespace fp8::runtime::distributed {
namespace {

c10::intrusive_ptr<c10d::ProcessGroup> resolve(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "[registered_group] found '", name,
                "', allowed: the group_name of a group of torch.distributed ", "in this process");
  }
}

class RegisteredGroup final : public ProcessGroup {
 public:
  explicit RegisteredGroup(const std::string& name)
      : group_(resolve(name)), backend_(group_->getBackend(at::kCPU)), name_(name) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  void all_reduce_max(float* values, std::size_t count) override {
    at::Tensor ordered = at::empty({static_cast<std::int64_t>(count)}, at::kInt);
    auto* bits = ordered.mutable_data_ptr<std::int32_t>();
    for (std::size_t i = 0; i < count; ++i) bits[i] = to_ordered(values[i]);
    reduce(ordered, ReduceOp::max);
    for (std::size_t i = 0; i < count; ++i) values[i] = from_ordered(bits[i]);
  }

  void barrier() override {
    wait("barrier", [&] { return backend_->barrier(); });
  }

  void all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    const at::NoGradGuard no_grad;
    const bool floating = tensor.is_floating_point();
    const at::Tensor flat = tensor.detach().to(at::kCPU, floating ? at::kFloat : at::kLong).contiguous().view({-1});
    if (floating && op == ReduceOp::max)
      all_reduce_max(flat.mutable_data_ptr<float>(), static_cast<std::size_t>(flat.numel()));
    else
      reduce(flat, op);
    tensor.detach().copy_(flat.view(tensor.sizes()));
  }

  void broadcast(const at::Tensor& tensor, int root) override {
    TORCH_CHECK(root >= 0 && root < size(), "[registered_group] broadcast: root: found ", root, ", allowed: 0 to ",
                size() - 1);
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> here = {tensor.detach().to(at::kCPU).contiguous()};
    if (here[0].numel() == 0) return;
    here[0] = here[0].view({-1}).view(at::kByte);
    c10d::BroadcastOptions options;
    options.rootRank = root;
    wait("broadcast", [&] { return backend_->broadcast(here, options); });
    tensor.detach().copy_(here[0].view(tensor.scalar_type()).view(tensor.sizes()));
  }

 private:
  void reduce(const at::Tensor& flat, ReduceOp op) {
    if (flat.numel() == 0) return;
    std::vector<at::Tensor> tensors = {flat};
    c10d::AllreduceOptions options;
    options.reduceOp = op == ReduceOp::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    wait("all_reduce of " + std::to_string(flat.numel()) + " elements",
         [&] { return backend_->allreduce(tensors, options); });
  }

  template <class F>
  void wait(const std::string& call, F&& start) {
    try {
      start()->wait();
    } catch (const std::exception& e) {
      TORCH_CHECK(false, "[registered_group] '", name_, "', rank ", rank(), " of ", size(), ": ", call, ": ",
                  first_line(e));
    }
  }

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::string name_;
};

}  // namespace

std::shared_ptr<ProcessGroup> registered_group(const std::string& name) {
  return std::make_shared<RegisteredGroup>(name);
}

}  // namespace fp8::runtime::distributed
