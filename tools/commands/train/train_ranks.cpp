// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_ranks.h"

#include <chrono>
#include <utility>

#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/tools/commands/inputs/torch_scope.h"
#include "fp8/tools/commands/work/snapshots.h"

namespace fp8::commands {
namespace {

namespace distributed = runtime::distributed;

/// Where a file lies may differ from machine to machine; what is in it may not.
constexpr const char* kPlaces[] = {"init", "model", "data", "eval", "recipe"};

distributed::BucketDtype bucket_dtype(const StrategySettings& s) {
  if (!s.comm_hook) return distributed::BucketDtype::as_it_is;
  return *s.comm_hook == kernels::FloatType::BF16 ? distributed::BucketDtype::bf16 : distributed::BucketDtype::f16;
}

}  // namespace

TrainRanks::TrainRanks(const StrategySettings& settings, bool fp8, Context& context) : settings_(settings) {
  auto options = distributed::group_options_from_environment();
  const int share_amaxes = settings.amax_ranks(options.size);
  if (settings.kind() == trainer::StrategyKind::hpu_single && options.size > 1)
    throw UsageError("--strategy: found hpu_single with " + std::to_string(options.size) +
                     " ranks, allowed: auto, hpu_parallel, hpu_ddp, fast_ddp");
  if (options.size == 1) return;
  if (options.rank > 0) context.quiet = true;
  said_by_ = options.said_by;
  options.timeout = std::chrono::seconds(settings.timeout);
  options.stop_asked = interrupted;
  options.give_up = end_interrupted;
  group_ = distributed::make_gloo_group(options);
  if (fp8 && share_amaxes > 1) amax_group_ = distributed::make_subgroup(group_, share_amaxes);
}

trainer::StrategyOptions TrainRanks::strategy() const {
  trainer::StrategyOptions options;
  options.kind = settings_.kind();
  options.ddp = {.bucket_cap_mb = settings_.bucket_cap_mb,
                 .find_unused_parameters = settings_.find_unused_parameters,
                 .static_graph = settings_.static_graph,
                 .gradient_as_bucket_view = settings_.gradient_as_bucket_view,
                 .bucket_dtype = bucket_dtype(settings_)};
  if (settings_.fusion_buffer_dtype)
    options.fusion_buffer_dtype = runtime::ops::dtype_of(*settings_.fusion_buffer_dtype);
  return options;
}

const char* TrainRanks::strategy_name() const { return name_of(trainer::resolve_strategy(settings_.kind(), size())); }

void TrainRanks::check_same(io::Json settings, const std::string& weights) const {
  if (group_ == nullptr) return;
  for (const char* place : kPlaces) settings.erase(place);
  settings["weights"] = weights;
  distributed::check_same(with_program(std::move(settings)), *group_, "train");
}

bool TrainRanks::on_first(const std::function<bool()>& f) const {
  if (group_ == nullptr) return f();
  return distributed::from_first([&] { return std::string(f() ? "yes" : ""); }, *group_) == "yes";
}

}  // namespace fp8::commands
