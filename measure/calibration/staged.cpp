// SPDX-License-Identifier: Apache-2.0
// Calibration of what is not in memory at once: weights looked at in parts, and snapshots that another process goes on
// from.
//
//   snapshot  {"samples", "forwards", "bytes_saved", "watch_seconds",
//              "nodes": [{"module", "looked_at", "inputs", "outputs", "weight"}, ...]    in the order of the records
//              "model": fingerprint, "non_finite": [[module, tensor, sample, nan], ...]}
#include <c10/util/Exception.h>

#include <algorithm>

#include "fp8/measure/calibration/session.h"
#include "fp8/measure/observers/built_in_observers.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/ops/common/arguments.h"

namespace fp8::measure {
namespace {

const std::string kWhere = "snapshot of a calibration";

/// A key of the snapshot; is(value) says whether it is of the right type.
template <class Is>
const io::Json& member(const io::Json& json, const char* key, const char* expected, Is is) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (!json.is_object() || found == json.end() || !is(*found)) {
    bad_state(kWhere + ": key '" + key + "'", expected, json.is_object() && found != json.end() ? *found : io::Json());
  }
  return *found;
}

std::int64_t count_in(const io::Json& json, const char* key) {
  return member(json, key, "an integer >= 0",
                [](const io::Json& v) { return v.is_number_integer() && v.get<std::int64_t>() >= 0; })
      .get<std::int64_t>();
}

const io::Json& list_in(const io::Json& json, const char* key) {
  return member(json, key, "a list", [](const io::Json& v) { return v.is_array(); });
}

}  // namespace

std::optional<std::size_t> CalibrationSession::record_of(const std::string& module) const {
  const auto found = by_name_.find(module);
  return found != by_name_.end() ? std::optional(found->second) : std::nullopt;
}

bool CalibrationSession::show_part(std::size_t record, TensorRole role, const at::Tensor& part, const PartOf& of,
                                   bool reported) {
  WatchedNode& node = records_[record];
  if (!node.observes(role)) return true;
  const float amax = observers_.type.reads_values ? amax_of(part) : 0.0f;
  if (!std::isfinite(amax)) {
    if (reported) finite(node.module(), role, 0, part, amax);
    return false;
  }
  std::any memo;
  WatchedTensor& watched = node.tensor(role, 0, observers_);
  watched.observer->observe_part(Observed(runtime::cpu_alias(part.detach()), amax, &memo), of);
  watched.seen = true;
  return true;
}

void CalibrationSession::look_at_part(const WeightModule& m, const at::Tensor& part, std::int64_t first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto record = record_of(m.name);
  const std::int64_t rows = m.weight.size(0);
  if (!record.has_value() || looked_at_[*record]) return;
  if (options_.weights) show_part(*record, TensorRole::weight, part, {first, 0, m.weight.sizes()}, true);
  const at::Tensor host = runtime::cpu_alias(part.detach()).contiguous();
  const auto type = runtime::ops::float_type_of(host.scalar_type());
  auto& fingerprint = weights_[*record];
  fingerprint.module = m.name;
  fingerprint.dtype = kernels::name_of(type);
  fingerprint.shape = m.weight.sizes().vec();
  const std::int64_t begin = first * (m.weight.numel() / rows), end = begin + host.numel();
  for (const std::int64_t at : sampled_positions(m.weight.numel())) {
    if (at >= begin && at < end)
      fingerprint.samples.push_back(kernels::load_element(host.const_data_ptr(), type, at - begin));
  }
  looked_at_[*record] = first + part.size(0) == rows;
}

bool CalibrationSession::observe_output_part(std::size_t record, const at::Tensor& y, std::int64_t first,
                                             std::int64_t columns, bool reported) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto start = std::chrono::steady_clock::now();
  auto sizes = y.sizes().vec();
  sizes.back() = columns;
  const bool shown = show_part(record, TensorRole::output, y, {first, y.dim() - 1, sizes}, reported);
  watch_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return shown;
}

void CalibrationSession::forget_outputs(std::size_t record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  records_[record].forget_outputs();
}

io::Json CalibrationSession::snapshot() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  io::Json nodes = io::Json::array(), non_finite = io::Json::array();
  for (std::size_t i = 0; i < records_.size(); ++i) {
    io::Json node = records_[i].snapshot();
    if (node.is_null()) return nullptr;
    node["module"] = records_[i].module();
    node["looked_at"] = i < looked_at_.size() && looked_at_[i];
    nodes.push_back(std::move(node));
  }
  for (const auto& f : non_finite_) non_finite.push_back({f.module, f.tensor, f.sample, f.nan});
  ModelFingerprint model;
  for (const auto& [record, weight] : weights_) model.weights.push_back(weight);
  return {{"samples", samples_},
          {"forwards", forwards_},
          {"bytes_saved", observers_.context.bytes_saved->load()},
          {"watch_seconds", watch_seconds_},
          {"nodes", std::move(nodes)},
          {"model", to_json(model)},
          {"non_finite", std::move(non_finite)}};
}

/// Throws io::Error if the snapshot is none, or of another selection of modules.
void CalibrationSession::restore(const io::Json& snapshot) {
  samples_ = count_in(snapshot, "samples");
  forwards_ = count_in(snapshot, "forwards");
  dumps_ = options_.sample_interval > 0 ? samples_ / options_.sample_interval : 0;
  observers_.context.bytes_saved->store(count_in(snapshot, "bytes_saved"));
  watch_seconds_ =
      member(snapshot, "watch_seconds", "a number", [](const io::Json& v) { return v.is_number(); }).get<double>();
  const io::Json& nodes = list_in(snapshot, "nodes");
  if (nodes.size() != records_.size()) {
    throw io::Error(kWhere + ": expected " + std::to_string(records_.size()) + " modules, found " +
                    std::to_string(nodes.size()));
  }
  const ModelFingerprint model =
      model_from_json(member(snapshot, "model", "an object", [](const io::Json& v) { return v.is_object(); }),
                      kWhere + ": key 'model'");
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const std::string& name = records_[i].module();
    if (!nodes[i].is_object() || nodes[i].value("module", io::Json()) != name)
      bad_state(kWhere + ": nodes[" + std::to_string(i) + "]", io::in_quotes(name), nodes[i]);
    records_[i].restore(nodes[i], observers_, kWhere + ": " + io::printable(name));
    if (i >= looked_at_.size()) continue;
    looked_at_[i] = nodes[i].value("looked_at", io::Json()) == true;
    if (const auto* weight = model.find(name)) weights_[i] = *weight;
  }
  for (const auto& f : list_in(snapshot, "non_finite")) {
    if (!f.is_array() || f.size() != 4 || !f[0].is_string() || !f[1].is_string() || !f[2].is_number_integer() ||
        !f[3].is_boolean()) {
      bad_state(kWhere + ": key 'non_finite'", "[module, tensor, sample, nan]", f);
    }
    non_finite_.push_back(
        {f[0].get<std::string>(), f[1].get<std::string>(), f[2].get<std::int64_t>(), f[3].get<bool>()});
  }
}

}  // namespace fp8::measure
