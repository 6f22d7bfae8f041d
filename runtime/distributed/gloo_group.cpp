// SPDX-License-Identifier: Apache-2.0
// BackendGroup by Gloo, and who is gone when a call fails. With GroupOptions::agree all ranks compare before each call
// what they are about to do (one message of 8 integers): Gloo itself would mix the bytes of different calls.
//
//   {kind, element type, elements, root}, and the same negated;  maximum over all ranks -> {largest ..., -smallest ...}
#include "fp8/runtime/distributed/gloo_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <bit>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/distributed/meeting.h"
#include "fp8/runtime/distributed/of_group.h"

namespace fp8::runtime::distributed {
namespace {

/// The tensor's own memory as a CPU tensor. What is written there is seen by autograd's version check. Throws
/// c10::Error unless it is dense, on hpu or cpu.
at::Tensor on_cpu(const at::Tensor& tensor, const char* call) {
  TORCH_CHECK(tensor.defined() && (tensor.is_hpu() || tensor.is_cpu()) && tensor.layout() == at::kStrided,
              "[ProcessGroup] ", call, ": expected a dense tensor on hpu or cpu, got ",
              tensor.defined() ? tensor.toString() : std::string("an undefined one"));
  tensor.unsafeGetTensorImpl()->bump_version();
  return cpu_alias(tensor.detach());
}

/// Throws c10::Error for a dtype that is not reduced.
void check_reducible(const at::Tensor& t) {
  const auto type = t.defined() ? t.scalar_type() : at::ScalarType::Undefined;
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kLong,
              "[ProcessGroup] all_reduce: found dtype ", type, ", allowed: Float, BFloat16, Half, Long");
}

void check_root(int root, int size) {
  TORCH_CHECK(root >= 0 && root < size, "[ProcessGroup] broadcast: root: found ", root, ", allowed: 0 to ", size - 1);
}

// Integers in the order of their floats: -inf < -1 < -0 < 0 < 1 < inf < NaN. So a maximum has the same bits in every
// order, and a NaN is not lost.

std::int32_t to_ordered(float value) {
  if (std::isnan(value)) return 0x7FC00000;
  const auto bits = std::bit_cast<std::int32_t>(value);
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}
float from_ordered(std::int32_t bits) { return std::bit_cast<float>(bits < 0 ? bits ^ 0x7FFFFFFF : bits); }

// The calls of ProcessGroup by a backend of c10d, of this process' memory: what groups of our own and those that
// torch.distributed made have in common.

class BackendGroup : public ProcessGroup {
 public:
  void all_reduce_max(float* values, std::size_t count) override {
    const at::Tensor ordered = at::empty({static_cast<std::int64_t>(count)}, at::kInt);
    auto* bits = ordered.mutable_data_ptr<std::int32_t>();
    for (std::size_t i = 0; i < count; ++i) bits[i] = to_ordered(values[i]);
    reduce({Kind::max, at::kFloat, ordered.numel()}, ordered);
    for (std::size_t i = 0; i < count; ++i) values[i] = from_ordered(bits[i]);
  }
  void barrier() override {
    const Call call{Kind::barrier};
    if (!agree(call)) wait(call, [&] { return backend().barrier(); });
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
  void all_reduce_in_dtype(const at::Tensor& tensor) override {
    check_reducible(tensor);
    TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(),
                "[ProcessGroup] all_reduce_in_dtype: expected a contiguous tensor on cpu, got one on ", tensor.device(),
                " of strides ", tensor.strides());
    reduce({Kind::sum, tensor.scalar_type(), tensor.numel()}, tensor);
  }
  void broadcast(const at::Tensor& tensor, int root) override {
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

 protected:
  enum class Kind : std::int64_t { barrier, sum, max, broadcast };
  struct Call {
    Kind kind;
    at::ScalarType type = at::kByte;
    std::int64_t elements = 0;
    int root = 0;
  };
  using Start = c10::function_ref<c10::intrusive_ptr<c10d::Work>()>;

  static const char* name_of(Kind kind) {
    constexpr std::array kNames = {"barrier", "all_reduce sum", "all_reduce max", "broadcast"};
    return kNames.at(static_cast<std::size_t>(kind));
  }
  /// "all_reduce sum of 4 elements of Float"
  static std::string describe(const Call& call) {
    return io::message("{} of {} elements of {}{}", name_of(call.kind), call.elements, c10::toString(call.type),
                       call.kind == Kind::broadcast ? " from rank " + std::to_string(call.root) : "");
  }

  virtual c10d::Backend& backend() = 0;
  /// Before each call. True: all ranks are known to have come to it.
  virtual bool agree(const Call& /*call*/) { return false; }
  /// start(), and waits for it; c10::Error says what failed.
  virtual void wait(const Call& call, Start start) = 0;

  /// Without asking agree(); not of 0 elements.
  void reduce_now(const Call& call, const at::Tensor& flat, c10d::ReduceOp::RedOpType op) {
    std::vector<at::Tensor> tensors = {flat};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    wait(call, [&] { return backend().allreduce(tensors, options); });
  }

 private:
  void reduce(const Call& call, const at::Tensor& flat) {
    agree(call);
    if (flat.numel() != 0) reduce_now(call, flat, call.kind == Kind::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX);
  }
};

/// One process alone.
class LocalGroup final : public ProcessGroup {
 public:
  explicit LocalGroup(int world_rank = 0) : world_rank_(world_rank) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int world_rank() const override { return world_rank_; }
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

 private:
  int world_rank_;
};

class GlooGroup final : public BackendGroup {
 public:
  explicit GlooGroup(const GroupOptions& options)
      : options_(options),
        rank_(options.rank),
        size_(options.size),
        agree_(options.agree),
        serves_(options.rank == 0 && !options.launcher_serves && options.file.empty()),
        group_(make_group(options)),
        backend_(group_->getBackend(at::kCPU)) {
    const std::string server = options.launcher_serves ? "the launcher" : "rank 0";
    heartbeat_ = std::make_shared<Heartbeat>(group_->getStore(), options, server);
  }
  /// Some ranks of `whole`: options.rank of options.size of them.
  GlooGroup(const GroupOptions& options, std::shared_ptr<GlooGroup> whole, const std::string& name)
      : options_(options),
        rank_(options.rank),
        size_(options.size),
        agree_(options.agree),
        serves_(false),
        whole_(std::move(whole)),
        heartbeat_(whole_->heartbeat_),
        group_(make_group(options, c10::make_intrusive<c10d::PrefixStore>(name, whole_->group_->getStore()))),
        backend_(group_->getBackend(at::kCPU)) {}
  ~GlooGroup() override {
    if (failure_.empty() || !serves_) return;
    backend_.reset();                       // its sockets: the others' calls fail now, and they ask who is gone
    const auto store = group_->getStore();  // served until the end of this
    group_.reset();
    heartbeat_->see_others_off(*store);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int world_rank() const override { return whole_ != nullptr ? whole_->rank_ : rank_; }
  const GroupOptions& options() const { return options_; }
  const c10::intrusive_ptr<c10d::ProcessGroup>& of_c10d() const { return group_; }

  std::string who_is_gone() override {
    std::string gone = heartbeat_->who_is_gone();
    if (!gone.empty()) fail(gone);
    return gone;
  }
  void meet(const std::string& what) override {
    if (whole_ != nullptr) return;  // heartbeats are the whole group's
    TORCH_CHECK(failure_.empty(), where(), "the group failed before: ", failure_);
    std::string why;
    {
      const Waits waits(*this, {what});
      const auto store = group_->getStore();
      why = heartbeat_->meet(*store, what, calls_);
    }
    if (why.empty()) return;
    fail(what + ": found on this rank alone (" + why + "), allowed: on all ranks at the same moment");
    TORCH_CHECK(false, where(), failure_);
  }
  Wait waits_in(Wait next) override { return heartbeat_->waits_in(std::move(next)); }

 private:
  c10d::Backend& backend() override { return *backend_; }

  bool agree(const Call& call) override {
    if (!agree_) return false;
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
      fail(
          io::message("the ranks make different calls: this one {}, others from {} of {} elements to {} of {} elements",
                      describe(call), name_of(static_cast<Kind>(-values[4])), -values[6],
                      name_of(static_cast<Kind>(values[0])), values[2]));
      TORCH_CHECK(false, where(), failure_);
    }
    return true;  // who knows that all agree knows that all have come
  }

  /// "[ProcessGroup] rank 1 of 4: "
  std::string where() const {
    return io::message("[ProcessGroup] rank {} of {}: ", world_rank(), whole_ != nullptr ? whole_->size_ : size_);
  }

  /// Of no use from now on, nor is what it is part of.
  void fail(const std::string& why) {
    failure_ = why;
    if (whole_ != nullptr && whole_->failure_.empty()) whole_->failure_ = why;
  }

  void wait(const Call& call, Start start) override {
    TORCH_CHECK(failure_.empty(), where(), "the group failed before: ", failure_);
    // The launcher is gone, though the ranks could go on: beside those that it starts again, into the same folder.
    if (options_.launcher_serves && heartbeat_->store_is_gone()) {
      fail(heartbeat_->who_is_gone());
      TORCH_CHECK(false, where(), describe(call), ": ", failure_);
    }
    const std::int64_t number = ++(whole_ != nullptr ? whole_->calls_ : calls_);
    const std::string of = ", call " + std::to_string(number) + " of " + std::to_string(size_) + " ranks";
    const Waits waits(*this, {describe(call) + of, false, number});
    const WithoutPython begun;
    try {
      start()->wait();
    } catch (const std::exception& e) {
      std::string why = describe(call) + ": " + first_line(e);
      if (const std::string gone = heartbeat_->who_is_gone(); !gone.empty()) why += " (" + gone + ")";
      fail(why);
      TORCH_CHECK(false, where(), failure_);
    }
  }

  const GroupOptions options_;
  const int rank_, size_;
  const bool agree_, serves_;
  const std::shared_ptr<GlooGroup> whole_;  ///< that this is a part of; null: of none
  std::shared_ptr<Heartbeat> heartbeat_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string failure_;
  std::int64_t calls_ = 0;  ///< those of its parts, too
};

}  // namespace

std::shared_ptr<ProcessGroup> make_gloo_group(const GroupOptions& options) {
  check(options);
  if (options.size == 1) return std::make_shared<LocalGroup>();
  return std::make_shared<GlooGroup>(options);
}

std::shared_ptr<ProcessGroup> make_subgroup(const std::shared_ptr<ProcessGroup>& group, int ranks) {
  TORCH_CHECK(group != nullptr && ranks >= 1 && group->size() % ranks == 0, "[make_subgroup] ranks: found ", ranks,
              ", allowed: a divisor of the group's ", group != nullptr ? group->size() : 0);
  if (ranks == group->size()) return group;
  if (ranks == 1) return std::make_shared<LocalGroup>(group->world_rank());
  const auto whole = std::dynamic_pointer_cast<GlooGroup>(group);
  TORCH_CHECK(whole != nullptr, "[make_subgroup] expected a group of make_gloo_group()");
  GroupOptions options = whole->options();
  options.rank = group->rank() % ranks;
  options.size = ranks;
  const std::string name = "of_" + std::to_string(ranks) + "/" + std::to_string(group->rank() / ranks);
  return std::make_shared<GlooGroup>(options, whole, name);
}

c10::intrusive_ptr<c10d::ProcessGroup> c10d_group(const ProcessGroup& group) {
  const auto* gloo = dynamic_cast<const GlooGroup*>(&group);
  TORCH_CHECK(gloo != nullptr, "[c10d_group] expected a group of several ranks that make_gloo_group() made");
  return gloo->of_c10d();
}

c10::intrusive_ptr<c10d::ProcessGroup> c10d_group(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "[registered_group] found '", name,
                "', allowed: the group_name of a group of torch.distributed in this process");
  }
}

namespace {

/// Of all objects that stand for one group of c10d.
struct Acquaintance {
  std::atomic<bool> introduced = false;
};

class RegisteredGroup final : public BackendGroup {
 public:
  explicit RegisteredGroup(const std::string& name)
      : group_(c10d_group(name)),
        backend_(group_->getBackend(at::kCPU)),
        acquaintance_(of_group<Acquaintance>(group_)),
        name_(name) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  // In the store, since ranks that do not come to a message can't answer one.
  std::vector<std::string> introduce(const std::string& say) override {
    const auto store = group_->getStore();
    if (acquaintance_->introduced.exchange(true) || store == nullptr) return {};
    store->set(key_of(rank()), say);
    const auto end = std::chrono::steady_clock::now() + kIntroduction;
    std::vector<std::string> said;
    for (int r = 0; r < size(); ++r)
      said.push_back(comes_to(*store, key_of(r), end) ? store->get_to_str(key_of(r)) : "");
    if (std::ranges::any_of(said, [&](const std::string& other) { return !other.empty() && other != say; })) {
      store->set(key_of(rank()) + "/seen", say);  // who ends may be the one that serves the store
      for (int r = 0; r < size(); ++r) comes_to(*store, key_of(r) + "/seen", end);
    }
    return said;
  }

 private:
  static constexpr std::chrono::seconds kIntroduction{5};

  static std::string key_of(int rank) { return "fp8/introduced/" + std::to_string(rank); }
  static bool comes_to(c10d::Store& store, const std::string& key, std::chrono::steady_clock::time_point end) {
    while (!store.check({key})) {
      if (std::chrono::steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  /// " (rank 1 ran no fp8 region of this group)", "" where the store is gone or all did.
  std::string who_never_came() const {
    std::vector<int> ranks;
    try {
      const auto store = acquaintance_->introduced ? group_->getStore() : nullptr;
      for (int r = 0; store != nullptr && r < size(); ++r)
        if (!store->check({key_of(r)})) ranks.push_back(r);
    } catch (const std::exception&) {
      return "";
    }
    return ranks.empty() ? "" : " (" + rank_names(ranks) + " ran no fp8 region of this group)";
  }

  c10d::Backend& backend() override { return *backend_; }

  void wait(const Call& call, Start start) override {
    const WithoutPython begun;
    try {
      start()->wait();
    } catch (const std::exception& e) {
      TORCH_CHECK(false, "[registered_group] '", name_, "', rank ", rank(), " of ", size(), ": ", describe(call), ": ",
                  first_line(e), who_never_came());
    }
  }

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::shared_ptr<Acquaintance> acquaintance_;
  const std::string name_;
};

}  // namespace

std::shared_ptr<ProcessGroup> registered_group(const std::string& name) {
  return std::make_shared<RegisteredGroup>(name);
}

}  // namespace fp8::runtime::distributed
