// SPDX-License-Identifier: Apache-2.0
// Calls of c10d's group, of this process' memory. With GroupOptions::agree all ranks compare before each of them what
// they are about to do (one message of 8 integers): Gloo itself would mix the bytes of different calls.
//
//   {kind, element type, elements, root}, and the same negated;  maximum over all ranks -> {largest ..., -smallest ...}
#include "fp8/runtime/distributed/gloo_group.h"

#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/host_block.h"
#include "fp8/runtime/distributed/broken_pipes.h"
#include "fp8/runtime/distributed/group.h"
#include "fp8/runtime/distributed/heartbeat.h"
#include "fp8/runtime/distributed/meeting.h"

namespace fp8::runtime::distributed {
namespace {

enum class Kind : std::int64_t { barrier, sum, max, broadcast };
constexpr std::array kKindNames = {"barrier", "all_reduce sum", "all_reduce max", "broadcast"};

struct Call {
  Kind kind;
  at::ScalarType type = at::kByte;
  std::int64_t elements = 0;
  int root = 0;
};

/// Integers in the order of their floats, NaN above all.
std::int32_t to_ordered(float value) {
  if (std::isnan(value)) return 0x7FC00000;
  const auto bits = std::bit_cast<std::int32_t>(value);
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}
float from_ordered(std::int32_t bits) { return std::bit_cast<float>(bits < 0 ? bits ^ 0x7FFFFFFF : bits); }

/// The tensor's own memory as a CPU tensor. What is written there is seen by autograd's version check.
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

/// One process alone.
class LocalGroup final : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_max(float*, std::size_t) override {}
  void barrier() override {}
  void all_reduce(const at::Tensor& tensor, ReduceOp) override {
    check_reducible(tensor);
    on_cpu(tensor, "all_reduce");
  }
  void broadcast(const at::Tensor& tensor, int root) override {
    check_root(root, 1);
    on_cpu(tensor, "broadcast");
  }
};

class GlooGroup final : public ProcessGroup {
 public:
  explicit GlooGroup(const GroupOptions& options)
      : rank_(options.rank),
        size_(options.size),
        agree_(options.agree),
        serves_(options.rank == 0 && !options.launcher_serves && options.file.empty()),
        group_(make_group(options)),
        backend_(group_->getBackend(at::kCPU)) {
    const std::string server = options.launcher_serves ? "the launcher" : "rank 0";
    heartbeat_ = std::make_unique<Heartbeat>(group_->getStore(), rank_, size_, server);
  }
  ~GlooGroup() override {
    if (failure_.empty() || !serves_) return;
    backend_.reset();                       // its sockets: the others' calls fail now, and they ask who is gone
    const auto store = group_->getStore();  // served until the end of this
    group_.reset();
    heartbeat_->see_others_off();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce_max(float* values, std::size_t count) override {
    at::Tensor ordered = at::empty({static_cast<std::int64_t>(count)}, at::kInt);
    auto* bits = ordered.mutable_data_ptr<std::int32_t>();
    for (std::size_t i = 0; i < count; ++i) bits[i] = to_ordered(values[i]);
    reduce({Kind::max, at::kFloat, ordered.numel()}, ordered);
    for (std::size_t i = 0; i < count; ++i) values[i] = from_ordered(bits[i]);
  }

  void barrier() override {
    if (agree_) return agree({Kind::barrier});  // who knows that all agree knows that all have come
    wait({Kind::barrier}, [&] { return backend_->barrier(); });
  }

  void all_reduce(const at::Tensor& tensor, ReduceOp op) override {
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

  void broadcast(const at::Tensor& tensor, int root) override {
    check_root(root, size_);
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
    wait(call, [&] { return backend_->broadcast(bytes, options); });
    if (!flat.is_same(here)) here.copy_(flat);
  }

 private:
  void reduce(const Call& call, at::Tensor flat) {
    agree(call);
    if (flat.numel() != 0)
      reduce_now(call, std::move(flat), call.kind == Kind::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX);
  }

  void reduce_now(const Call& call, at::Tensor flat, c10d::ReduceOp::RedOpType op) {
    std::vector<at::Tensor> tensors = {std::move(flat)};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    wait(call, [&] { return backend_->allreduce(tensors, options); });
  }

  void agree(const Call& call) {
    if (!agree_) return;
    const std::array<std::int64_t, 4> mine = {static_cast<std::int64_t>(call.kind),
                                              static_cast<std::int64_t>(call.type), call.elements, call.root};
    const at::Tensor message = at::empty({8}, at::kLong);
    auto* values = message.mutable_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < 4; ++i) {
      values[i] = mine[i];
      values[i + 4] = -mine[i];
    }
    reduce_now(call, message, c10d::ReduceOp::MAX);
    for (std::size_t i = 0; i < 4; ++i) {
      if (values[i] == -values[i + 4]) continue;
      failure_ = "the ranks make different calls: this one " + describe(call) + ", others from " +
                 kKindNames.at(static_cast<std::size_t>(-values[4])) + " of " + std::to_string(-values[6]) +
                 " elements to " + kKindNames.at(static_cast<std::size_t>(values[0])) + " of " +
                 std::to_string(values[2]) + " elements";
      TORCH_CHECK(false, "[ProcessGroup] rank ", rank_, " of ", size_, ": ", failure_);
    }
  }

  static std::string describe(const Call& call) {
    return std::string(kKindNames.at(static_cast<std::size_t>(call.kind))) + " of " + std::to_string(call.elements) +
           " elements of " + c10::toString(call.type) +
           (call.kind == Kind::broadcast ? " from rank " + std::to_string(call.root) : "");
  }

  template <class F>
  void wait(const Call& call, F&& start) {
    TORCH_CHECK(failure_.empty(), "[ProcessGroup] rank ", rank_, " of ", size_,
                ": the group failed before: ", failure_);
    try {
      start()->wait();
    } catch (const std::exception& e) {
      failure_ = describe(call) + ": " + first_line(e);
      if (const std::string gone = heartbeat_->who_is_gone(); !gone.empty()) failure_ += " (" + gone + ")";
      TORCH_CHECK(false, "[ProcessGroup] rank ", rank_, " of ", size_, ": ", failure_);
    }
  }

  const int rank_, size_;
  const bool agree_, serves_;
  std::unique_ptr<Heartbeat> heartbeat_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string failure_;
};

}  // namespace

std::shared_ptr<ProcessGroup> make_gloo_group(const GroupOptions& options) {
  check(options);
  if (options.size == 1) return std::make_shared<LocalGroup>();
  return std::make_shared<GlooGroup>(options);
}

}  // namespace fp8::runtime::distributed
