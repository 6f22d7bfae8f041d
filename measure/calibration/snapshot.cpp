// SPDX-License-Identifier: Apache-2.0
// Snapshots of a calibration, which another process goes on from.
//
//   {"samples", "forwards", "bytes_saved", "watch_seconds",
//    "nodes": [{"module", "looked_at", "inputs", "outputs", "weight"}, ...]    in the order of the records
//    "model": fingerprint, "non_finite": [[module, tensor, sample, nan], ...]}
#include "fp8/measure/calibration/snapshot.h"

#include <utility>

#include "fp8/measure/calibration/recorder.h"
#include "fp8/measure/observers/states.h"
#include "fp8/runtime/io/base/file.h"

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

io::Json Recorder::snapshot() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  io::Json nodes = io::Json::array(), non_finite = io::Json::array();
  ModelFingerprint model;
  for (const auto& [watched, looked_at, weight] : records_) {
    io::Json node = watched.snapshot();
    if (node.is_null()) return nullptr;
    node["module"] = watched.module();
    node["looked_at"] = looked_at;
    nodes.push_back(std::move(node));
    if (weight.has_value()) model.weights.push_back(*weight);
  }
  for (const auto& f : non_finite_) non_finite.push_back({f.module, f.tensor, f.sample, f.nan});
  return {{"samples", samples_},
          {"forwards", forwards_},
          {"bytes_saved", observers_.context.bytes_saved->load()},
          {"watch_seconds", watch_seconds_},
          {"nodes", std::move(nodes)},
          {"model", to_json(model)},
          {"non_finite", std::move(non_finite)}};
}

void Recorder::resume() {
  const io::Json snapshot = std::exchange(options_.resume, nullptr);
  if (snapshot.is_null()) return;
  samples_ = count_in(snapshot, "samples");
  forwards_ = count_in(snapshot, "forwards");
  writes_ = options_.sample_interval > 0 ? samples_ / options_.sample_interval : 0;
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
    auto& [node, looked_at, weight] = records_[i];
    const std::string& name = node.module();
    if (!nodes[i].is_object() || nodes[i].value("module", io::Json()) != name)
      bad_state(kWhere + ": nodes[" + std::to_string(i) + "]", io::in_quotes(name), nodes[i]);
    node.restore(nodes[i], observers_, kWhere + ": " + io::printable(name));
    if (!node.has_weight()) continue;
    looked_at = nodes[i].value("looked_at", io::Json()) == true;
    if (const auto* found = model.find(name)) weight = *found;
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

io::Json join_snapshots(const std::vector<io::Json>& parts,
                        const std::function<std::size_t(const std::string&)>& owner) {
  io::Json joined = parts.at(0);
  joined["model"] = io::Json::object();
  joined["non_finite"] = io::Json::array();
  std::int64_t bytes_saved = 0;
  double watch_seconds = 0;
  for (const auto& part : parts) {
    if (list_in(part, "nodes").size() != joined["nodes"].size() ||
        part.value("samples", io::Json()) != joined["samples"])
      throw io::Error(kWhere + ": expected " + joined["samples"].dump() + " samples in " +
                      std::to_string(joined["nodes"].size()) + " modules, found " +
                      part.value("samples", io::Json()).dump() + " in " + std::to_string(part["nodes"].size()));
    bytes_saved += count_in(part, "bytes_saved");
    watch_seconds += part.at("watch_seconds").get<double>();
    for (const auto& f : list_in(part, "non_finite")) joined["non_finite"].push_back(f);
  }
  for (std::size_t i = 0; i < joined["nodes"].size(); ++i) {
    const auto module = joined["nodes"][i].at("module").get<std::string>();
    const io::Json& of_owner = parts.at(owner(module));
    const io::Json& node = of_owner["nodes"][i];
    if (node.value("module", io::Json()) != module)
      bad_state(kWhere + ": nodes[" + std::to_string(i) + "]", io::in_quotes(module), node);
    joined["nodes"][i] = node;
    if (const auto weight = of_owner.at("model").find(module); weight != of_owner.at("model").end())
      joined["model"][module] = *weight;
  }
  joined["bytes_saved"] = bytes_saved;
  joined["watch_seconds"] = watch_seconds;
  return joined;
}

}  // namespace fp8::measure
