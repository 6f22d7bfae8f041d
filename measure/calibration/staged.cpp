// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/staged.h"

#include <utility>

#include "fp8/measure/calibration/weight_watcher.h"

namespace fp8::measure {

std::shared_ptr<StagedCalibration> StagedCalibration::plan(const std::vector<WeightModule>& weights,
                                                           const std::vector<OpNode>& ops, CalibrationOptions options) {
  options.sample_interval = 0;
  const Selection selection = select(weights, ops, options, /*in_memory=*/false);
  std::shared_ptr<StagedCalibration> session(new StagedCalibration(std::move(options)));
  session->begin(selection);
  for (std::size_t i = 0; i < selection.weights.size(); ++i) session->records_.emplace(selection.weights[i]->name, i);
  return session;
}

void StagedCalibration::enter(const std::vector<WeightModule>& weights) {
  WatchersByMemory watchers;
  for (const auto& m : weights) {
    const auto record = record_of(m.name);
    if (!record.has_value()) continue;
    check_watchable(m);
    watch(*record, m, watchers);
  }
}

void StagedCalibration::leave(const std::vector<WeightModule>& weights) {
  for (const auto& m : weights) {
    WeightWatcher* watcher = watcher_on(m.weight);
    if (watcher == nullptr || watcher->recorder().get() != &recorder_) continue;
    watcher->retire();
    runtime::untag_weight(m.weight);
  }
  std::erase_if(watchers_, [](const auto& weak) { return weak.expired(); });
}

std::optional<std::size_t> StagedCalibration::record_of(const std::string& module) const {
  const auto found = records_.find(module);
  return found != records_.end() ? std::optional(found->second) : std::nullopt;
}

bool StagedCalibration::keeps_states() const {
  const ObserverType& type = recorder_.observers_.type;
  return type.kept != Kept::tensors && !type.make(recorder_.observers_.context)->state().is_null();
}

void StagedCalibration::look_at_part(const WeightModule& weight, const at::Tensor& part, std::int64_t first) {
  if (const auto record = record_of(weight.name)) recorder_.look_at_part(*record, weight, part, first);
}

}  // namespace fp8::measure
