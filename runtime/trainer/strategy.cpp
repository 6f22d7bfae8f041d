// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/strategy.h"

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "fp8/runtime/distributed/data_parallel.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/distributed/meeting.h"

namespace fp8::trainer {
namespace {

using runtime::distributed::DataParallel;
using runtime::distributed::FusedGradients;
using runtime::distributed::ProcessGroup;
using Parameters = std::vector<at::Tensor>;
using Names = std::vector<std::string>;

class HpuParallel final : public Strategy {
 public:
  HpuParallel(Parameters parameters, std::shared_ptr<ProcessGroup> group)
      : parameters_(std::move(parameters)), group_(std::move(group)) {}
  void reduce() override { runtime::distributed::all_reduce_gradients(parameters_, *group_); }

 private:
  Parameters parameters_;
  std::shared_ptr<ProcessGroup> group_;
};

class FastDdp final : public Strategy {
 public:
  FastDdp(const Parameters& parameters, const Names& names, const std::shared_ptr<ProcessGroup>& group,
          at::ScalarType dtype)
      : gradients_(parameters, names, group, dtype) {}
  void reduce() override { gradients_.all_reduce(); }

 private:
  FusedGradients gradients_;
};

class HpuDdp final : public Strategy {
 public:
  HpuDdp(const Parameters& parameters, const Names& names, std::shared_ptr<ProcessGroup> group,
         const runtime::distributed::DataParallelOptions& options)
      : group_(std::move(group)),
        keeps_views_(options.gradient_as_bucket_view),
        ddp_(parameters, names, runtime::distributed::c10d_group(*group_), options) {}

  void before_last_forward() override { ddp_.before_forward(); }
  void backward(const at::Tensor& loss, bool last) override {
    if (!last) return Strategy::backward(loss, last);
    ddp_.before_backward({loss});
    const runtime::distributed::Waits waits(*group_, {"backward " + std::to_string(++backwards_), true});
    try {
      loss.backward();
      ddp_.after_backward();
    } catch (const std::exception& e) {  // c10d's own says what a socket said
      if (std::string_view(e.what()).find("[ProcessGroup]") != std::string_view::npos) throw;  // of the amaxes: it does
      if (std::string_view(e.what()).find("[DataParallel]") != std::string_view::npos) throw;
      const std::string gone = group_->who_is_gone();
      if (gone.empty()) throw;
      TORCH_CHECK(false, "[ProcessGroup] rank ", group_->rank(), " of ", group_->size(),
                  ": gradients of backward: ", runtime::distributed::first_line(e), " (", gone, ")");
    }
  }
  bool zero_gradients() override {
    if (keeps_views_) ddp_.zero_gradients();
    return keeps_views_;
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  bool keeps_views_;
  std::int64_t backwards_ = 0;
  DataParallel ddp_;
};

}  // namespace

void Strategy::backward(const at::Tensor& loss, bool /*last*/) { loss.backward(); }

StrategyKind resolve_strategy(StrategyKind kind, int ranks) {
  if (kind == StrategyKind::automatic) return ranks > 1 ? StrategyKind::hpu_parallel : StrategyKind::hpu_single;
  if (kind == StrategyKind::hpu_single && ranks > 1)
    throw std::invalid_argument("[trainer] strategy: found hpu_single with " + std::to_string(ranks) +
                                " ranks, allowed: auto, hpu_parallel, hpu_ddp, fast_ddp");
  return ranks > 1 ? kind : StrategyKind::hpu_single;
}

std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, const Parameters& parameters,
                                        const Names& names, const std::shared_ptr<ProcessGroup>& group) {
  const auto kind = resolve_strategy(options.kind, group != nullptr ? group->size() : 1);
  switch (kind) {
    case StrategyKind::hpu_parallel:
      return std::make_unique<HpuParallel>(parameters, group);
    case StrategyKind::hpu_ddp:
      return std::make_unique<HpuDdp>(parameters, names, group, options.ddp);
    case StrategyKind::fast_ddp:
      return std::make_unique<FastDdp>(parameters, names, group, options.fusion_buffer_dtype);
    default:
      return std::make_unique<Strategy>();
  }
}

}  // namespace fp8::trainer
