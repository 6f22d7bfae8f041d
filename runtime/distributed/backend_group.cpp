// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/backend_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <array>
#include <exception>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/distributed/meeting.h"

namespace fp8::runtime::distributed {

at::Tensor on_cpu(const at::Tensor& tensor, const char* call) {
  TORCH_CHECK(tensor.defined() && (tensor.is_hpu() || tensor.is_cpu()) && tensor.layout() == at::kStrided,
              "[ProcessGroup] ", call, ": expected a dense tensor on hpu or cpu, got ",
              tensor.defined() ? tensor.toString() : std::string("an undefined one"));
  tensor.unsafeGetTensorImpl()->bump_version();
  return cpu_alias(tensor.detach());
}

void check_reducible(const at::Tensor& t) {
  const auto type = t.defined() ? t.scalar_type() : at::ScalarType::Undefined;
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kLong,
              "[ProcessGroup] all_reduce: found dtype ", type, ", allowed: Float, BFloat16, Half, Long");
}

void check_root(int root, int size) {
  TORCH_CHECK(root >= 0 && root < size, "[ProcessGroup] broadcast: root: found ", root, ", allowed: 0 to ", size - 1);
}

const char* BackendGroup::name_of(Kind kind) {
  constexpr std::array kNames = {"barrier", "all_reduce sum", "all_reduce max", "broadcast"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string BackendGroup::describe(const Call& call) {
  return std::string(name_of(call.kind)) + " of " + std::to_string(call.elements) + " elements of " +
         c10::toString(call.type) + (call.kind == Kind::broadcast ? " from rank " + std::to_string(call.root) : "");
}

bool BackendGroup::agree(const Call& /*call*/) { return false; }

void BackendGroup::all_reduce_max(float* values, std::size_t count) {
  const at::Tensor ordered = at::empty({static_cast<std::int64_t>(count)}, at::kInt);
  auto* bits = ordered.mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < count; ++i) bits[i] = to_ordered(values[i]);
  reduce({Kind::max, at::kFloat, ordered.numel()}, ordered);
  for (std::size_t i = 0; i < count; ++i) values[i] = from_ordered(bits[i]);
}

void BackendGroup::barrier() {
  const Call call{Kind::barrier};
  if (!agree(call)) wait(call, [&] { return backend().barrier(); });
}

void BackendGroup::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  check_reducible(tensor);
  const at::NoGradGuard no_grad;
  const at::Tensor here = on_cpu(tensor, "all_reduce");
  const bool floating = here.scalar_type() != at::kLong;
  const at::Tensor flat = here.to(floating ? at::kFloat : at::kLong).contiguous().view({-1});
  if (op == ReduceOp::max && floating) {
    all_reduce_max(flat.mutable_data_ptr<float>(), static_cast<std::size_t>(flat.numel()));
  } else {
    reduce({op == ReduceOp::max ? Kind::max : Kind::sum, here.scalar_type(), flat.numel()}, flat);
  }
  if (flat.const_data_ptr() != here.const_data_ptr()) here.copy_(flat.view(here.sizes()));
}

void BackendGroup::all_reduce_in_dtype(const at::Tensor& tensor) {
  check_reducible(tensor);
  TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(),
              "[ProcessGroup] all_reduce_in_dtype: expected a contiguous tensor on cpu, got one on ", tensor.device(),
              " of strides ", tensor.strides());
  reduce({Kind::sum, tensor.scalar_type(), tensor.numel()}, tensor);
}

void BackendGroup::broadcast(const at::Tensor& tensor, int root) {
  check_root(root, size());
  const at::NoGradGuard no_grad;
  if (const auto tag = tag_of_memory(tensor))
    tag->check_access("broadcast", tensor);  // codes would go without their scales
  const at::Tensor here = on_cpu(tensor, "broadcast"), flat = here.contiguous();
  const Call call{Kind::broadcast, here.scalar_type(), here.numel(), root};
  agree(call);
  if (here.numel() == 0) return;
  std::vector<at::Tensor> bytes = {flat.view({-1}).view(at::kByte)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  wait(call, [&] { return backend().broadcast(bytes, options); });
  if (!flat.is_same(here)) here.copy_(flat);
}

void BackendGroup::reduce(const Call& call, const at::Tensor& flat) {
  agree(call);
  if (flat.numel() != 0) reduce_now(call, flat, call.kind == Kind::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX);
}

void BackendGroup::reduce_now(const Call& call, const at::Tensor& flat, c10d::ReduceOp::RedOpType op) {
  std::vector<at::Tensor> tensors = {flat};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  wait(call, [&] { return backend().allreduce(tensors, options); });
}

namespace {

c10::intrusive_ptr<c10d::ProcessGroup> resolve(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "[registered_group] found '", name,
                "', allowed: the group_name of a group of torch.distributed in this process");
  }
}

class RegisteredGroup final : public BackendGroup {
 public:
  explicit RegisteredGroup(const std::string& name)
      : group_(resolve(name)), backend_(group_->getBackend(at::kCPU)), name_(name) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

 private:
  c10d::Backend& backend() override { return *backend_; }

  void wait(const Call& call, Start start) override {
    try {
      start()->wait();
    } catch (const std::exception& e) {
      TORCH_CHECK(false, "[registered_group] '", name_, "', rank ", rank(), " of ", size(), ": ", describe(call), ": ",
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
