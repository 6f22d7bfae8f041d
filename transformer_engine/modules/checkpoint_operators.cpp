// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/checkpoint_operators.h"

#include <torch/library.h>

#include <mutex>
#include <optional>
#include <thread>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/intercept/autocast_rules.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/transformer_engine/region/fp8_autocast.h"
#include "fp8/transformer_engine/region/replay_log.h"

namespace fp8::te {
namespace {

namespace autocast = runtime::autocast;

/// What is in force during a run, on its thread.
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

/// Not destroyed at the program's end: see the regions of training_operators.cpp.
runtime::ops::Handles<CheckpointRun>& runs() {
  static auto& all = *new runtime::ops::Handles<CheckpointRun>("run");
  return all;
}

}  // namespace

std::int64_t checkpoint_begin() {
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
  autocast::keep_out_of_own_ops();
}

}  // namespace fp8::te
