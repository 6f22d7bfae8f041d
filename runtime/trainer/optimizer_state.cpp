// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/optimizer_state.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/optim/fused_optimizer.h"

namespace fp8::trainer {
namespace {

constexpr double kMost = 0x1p60;  // a loss of 1e20 is still a float

void check(const char* name, bool fine, const io::Json& found, const char* allowed) {
  if (!fine)
    throw std::invalid_argument("[trainer] grad_scaler." + std::string(name) + ": found " + found.dump() +
                                ", allowed: " + allowed);
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options), scale_(options.init_scale) {
  check("init_scale", scale_ >= kLeast && scale_ <= kMost, scale_, "1 to 2^60");
  check("growth_factor", options.growth_factor > 1 && options.growth_factor <= kMost, options.growth_factor,
        "above 1, to 2^60");
  check("backoff_factor", options.backoff_factor > 0 && options.backoff_factor < 1, options.backoff_factor,
        "above 0 and below 1");
  check("growth_interval", options.growth_interval >= 1, options.growth_interval, "1 or more");
}

bool GradScaler::update(bool finite) {
  if (!finite) {
    if (scale_ <= kLeast) return false;
    scale_ = std::max(scale_ * options_.backoff_factor, kLeast);
    growth_tracker_ = 0;
  } else if (++growth_tracker_ >= options_.growth_interval) {
    scale_ = std::min(scale_ * options_.growth_factor, kMost);
    growth_tracker_ = 0;
  }
  return true;
}

io::Json GradScaler::state() const { return {{"scale", scale_}, {"growth_tracker", growth_tracker_}}; }

void GradScaler::load(const io::Json& state) {
  const auto fail = [](const char* key, const io::Json& found, const char* allowed) {
    throw io::Error("[trainer] checkpoint: key 'grad_scaler." + std::string(key) + "': found " + found.dump() +
                    ", allowed: " + allowed);
  };
  const auto scale = state.is_object() ? state.value("scale", io::Json()) : io::Json();
  const auto tracker = state.is_object() ? state.value("growth_tracker", io::Json()) : io::Json();
  if (!scale.is_number() || !(scale.get<double>() >= kLeast && scale.get<double>() <= kMost))
    fail("scale", scale, "1 to 2^60");
  if (!tracker.is_number_integer() || tracker.get<std::int64_t>() < 0) fail("growth_tracker", tracker, "0 or more");
  scale_ = scale.get<double>();
  growth_tracker_ = tracker.get<std::int64_t>();
}

namespace {

using io::Json;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr char kParameter = '@';  // "@name": the parameter of that name, where the archive has its address
constexpr int kMaxDepth = 32;

std::string address_of(const at::Tensor& tensor) {
  return std::to_string(reinterpret_cast<std::size_t>(tensor.unsafeGetTensorImpl()));
}

/// Archive -> tree.
struct Reader {
  std::map<std::string, std::string> names;  // address -> parameter
  std::string prefix;
  TrainingState& state;
  int count = 0;

  std::string named(const std::string& text) const {
    const auto found = names.find(text);
    return found == names.end() ? text : kParameter + found->second;
  }

  Json value(const c10::IValue& value) {
    if (value.isNone()) return {{"none", nullptr}};
    if (value.isTensor()) {
      const auto name = prefix + "." + std::to_string(count++);
      const auto& tensor = value.toTensor();
      state.tensors[name] = tensor;
      return {{"tensor", name}, {"device", tensor.is_cpu() ? "cpu" : "own"}};
    }
    if (value.isInt()) return {{"int", value.toInt()}};
    if (value.isDouble()) return {{"double", value.toDouble()}};
    if (value.isBool()) return {{"bool", value.toBool()}};
    if (value.isString()) return {{"string", named(value.toStringRef())}};
    const bool tuple = value.isTuple();
    if (!tuple && !value.isList())
      throw io::Error("[trainer] " + prefix + ": found a value of kind " + value.tagKind() +
                      ", allowed: None, Tensor, Int, Double, Bool, String, Tuple and lists of them");
    Json items = Json::array();
    if (tuple)
      for (const auto& item : value.toTupleRef().elements()) items.push_back(this->value(item));
    else
      for (const auto& item : value.toListRef()) items.push_back(this->value(item));
    return {{tuple                  ? "tuple"
             : value.isDoubleList() ? "doubles"
             : value.isIntList()    ? "ints"
                                    : "list",
             std::move(items)}};
  }

  Json archive(InputArchive& archive) {
    Json entries = Json::object();
    auto keys = archive.keys();
    // By name: sorted by address, tensors would have other names in each process.
    std::ranges::sort(keys, {}, [this](const std::string& key) { return named(key); });
    for (const auto& key : keys) {
      c10::IValue found;
      archive.read(key, found);
      if (found.isObject()) {
        InputArchive inner;
        archive.read(key, inner);
        entries[named(key)] = this->archive(inner);
      } else {
        entries[named(key)] = value(found);
      }
    }
    return {{"archive", std::move(entries)}};
  }
};

/// Tree -> archive.
struct Writer {
  std::map<std::string, std::string> addresses;  // parameter -> address
  std::string where;
  const TrainingState& state;
  c10::Device device;

  [[noreturn]] void fail(const std::string& what) const {
    throw io::Error("[trainer] checkpoint, '" + where + "': " + what);
  }

  std::string addressed(const std::string& text) const {
    if (text.empty() || text[0] != kParameter) return text;
    const auto found = addresses.find(text.substr(1));
    if (found == addresses.end()) fail("parameter '" + text.substr(1) + "' is not one of the model");
    return found->second;
  }

  at::Tensor tensor(const Json& node) const {
    const auto found = state.tensors.find(node.at("tensor").get<std::string>());
    if (found == state.tensors.end()) fail("tensor '" + node.at("tensor").get<std::string>() + "' is missing");
    return node.value("device", "cpu") == "cpu" ? found->second : found->second.to(device);
  }

  c10::IValue value(const Json& node, int depth) const {
    if (depth > kMaxDepth || !node.is_object() || node.empty()) fail("found a value that is no archive entry");
    const auto& kind = node.begin().key();
    const auto& held = node.begin().value();
    if (kind == "none") return {};
    if (kind == "tensor") return tensor(node);
    if (kind == "int") return held.get<std::int64_t>();
    if (kind == "double") return held.get<double>();
    if (kind == "bool") return held.get<bool>();
    if (kind == "string") return addressed(held.get<std::string>());
    if (kind == "doubles" || kind == "ints") {
      c10::List<double> doubles;
      c10::List<std::int64_t> ints;
      for (const auto& item : held)
        kind == "ints" ? ints.push_back(value(item, depth + 1).toInt())
                       : doubles.push_back(value(item, depth + 1).toDouble());
      return kind == "ints" ? c10::IValue(ints) : c10::IValue(doubles);
    }
    if (kind != "tuple")
      fail("found kind '" + kind +
           "', allowed: archive, tensor, int, double, bool, string, tuple, ints, doubles, none");
    std::vector<c10::IValue> items;
    for (const auto& item : held) items.push_back(value(item, depth + 1));
    return c10::ivalue::Tuple::create(std::move(items));
  }

  void fill(OutputArchive& archive, const Json& node, int depth) const {
    if (depth > kMaxDepth || !node.is_object() || !node.contains("archive")) fail("found no archive");
    for (const auto& [key, entry] : node.at("archive").items()) {
      if (entry.is_object() && entry.contains("archive")) {
        OutputArchive inner(archive.compilation_unit());
        fill(inner, entry, depth + 1);
        archive.write(addressed(key), inner);
      } else if (entry.is_object() && entry.contains("tensor")) {
        archive.write(addressed(key), tensor(entry), /*is_buffer=*/true);
      } else {
        archive.write(addressed(key), value(entry, 0));
      }
    }
  }
};

/// Ours give their tensors without an archive between: {"learning_rates": [per group]}, tensors
/// NAME.GROUP.PARAMETER.KIND.
void save_fused(runtime::optim::FusedOptimizer& optimizer, const std::string& name, TrainingState& state) {
  Json rates = Json::array();
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  state.json[name] = {{"learning_rates", std::move(rates)}};
  for (auto& [key, tensor] : optimizer.tensors()) state.tensors[name + "." + key] = tensor;
}

void load_fused(runtime::optim::FusedOptimizer& optimizer, const std::string& name, const TrainingState& state) {
  const auto found = state.json.find(name);
  auto& groups = optimizer.param_groups();
  const bool held = found != state.json.end() && found->is_object();
  const Json saved = held ? found->value("learning_rates", Json()) : Json();
  if (saved.size() != groups.size())
    throw io::Error("[trainer] checkpoint: '" + name + "': found learning_rates of " + std::to_string(saved.size()) +
                    " groups, expected " + std::to_string(groups.size()));
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(saved[i].get<double>());
  optimizer.load_tensors(tensors_below(state.tensors, name + "."));
}

}  // namespace

void save_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& network, const std::string& name,
                    TrainingState& state) {
  if (auto* fused = dynamic_cast<runtime::optim::FusedOptimizer*>(&optimizer)) return save_fused(*fused, name, state);
  OutputArchive archive;
  optimizer.save(archive);
  std::stringstream stream;
  archive.save_to(stream);
  InputArchive saved;
  saved.load_from(stream);
  Reader reader{{}, name, state};
  for (const auto& item : network.named_parameters()) reader.names.emplace(address_of(item.value()), item.key());
  state.json[name] = reader.archive(saved);
}

void load_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& network, const std::string& name,
                    const TrainingState& state, c10::Device device) {
  if (auto* fused = dynamic_cast<runtime::optim::FusedOptimizer*>(&optimizer)) return load_fused(*fused, name, state);
  const auto found = state.json.find(name);
  if (found == state.json.end()) throw io::Error("[trainer] checkpoint: '" + name + "' is missing");
  Writer writer{{}, name, state, device};
  for (const auto& item : network.named_parameters()) writer.addresses.emplace(item.key(), address_of(item.value()));
  OutputArchive archive;
  try {
    writer.fill(archive, *found, 0);
  } catch (const Json::exception& error) {
    writer.fail(error.what());
  }
  std::stringstream stream;
  archive.save_to(stream);
  InputArchive saved;
  saved.load_from(stream);
  try {
    optimizer.load(saved);
  } catch (const c10::Error& error) {  // LibTorch asserts that it is the state of this kind of optimizer
    std::string what = error.what_without_backtrace();
    writer.fail("is not the state of this optimizer and these parameters: " + what.substr(0, what.find('\n')));
  }
}

}  // namespace fp8::trainer
