// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fp8/quant/forms/parts.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::quant {
namespace {

using form_parts::in_message;
using io::Json;

/// Throws unless `args` describes symmetric E4M3: {"num_bits": 8, "type": "float", "symmetric": true}.
void check_arguments(const Json& args, const std::string& where) {
  if (!args.is_object()) io::fail_at(where, std::string("expected an object, found ") + args.type_name());
  const auto expect = [&](const char* key, const Json& wanted) {
    const Json found = args.value(key, wanted);
    if (found != wanted) io::fail_at(where + "." + key, "found " + in_message(found) + ", built is: " + wanted.dump());
  };
  expect("num_bits", 8);
  expect("type", "float");
  expect("symmetric", true);
  if (args.contains("dynamic") && !args["dynamic"].is_boolean())
    io::fail_at(where + ".dynamic", "found " + in_message(args["dynamic"]) + ", built are: true, false");
}

std::int64_t positive(const Json& value, const std::string& where) {
  const std::int64_t n = form_parts::block_side(value);
  if (n == 0)
    io::fail_at(where, "found " + in_message(value) + ", allowed: a whole number from 1 to " +
                           std::to_string(form_parts::kMaxBlock));
  return n;
}

void read_weight_arguments(const Json& args, const std::string& where, Scheme& scheme) {
  check_arguments(args, where);
  const std::string strategy = form_parts::string_of(args, "strategy", where, "tensor");
  if (strategy == "tensor") {
    scheme.weights = WeightGranularity::tensor;
  } else if (strategy == "channel") {
    scheme.weights = WeightGranularity::channel;
  } else if (strategy == "block") {
    const Json block = args.value("block_structure", Json());
    if (!block.is_array() || block.size() != 2)
      io::fail_at(where + ".block_structure", "found " + in_message(block) + ", allowed: [rows, columns]");
    scheme.weights = WeightGranularity::block;
    scheme.block = {positive(block[0], where + ".block_structure"), positive(block[1], where + ".block_structure")};
  } else if (strategy == "group") {  // runs of one row
    scheme.weights = WeightGranularity::block;
    scheme.block = {1, positive(args.value("group_size", Json()), where + ".group_size")};
  } else {
    io::fail_at(where + ".strategy", "found " + io::in_quotes(strategy) + ", built are: tensor, channel, block, group");
  }
}

void read_activation_arguments(const Json& args, const std::string& where, Scheme& scheme) {
  scheme.activations = ActivationScaling::none;
  if (args.is_null()) return;
  check_arguments(args, where);
  const std::string strategy = form_parts::string_of(args, "strategy", where, "tensor");
  const bool dynamic = args.value("dynamic", false);
  if (!dynamic && strategy == "tensor") {
    scheme.activations = ActivationScaling::static_tensor;
  } else if (dynamic && strategy == "token") {
    scheme.activations = ActivationScaling::dynamic_token;
  } else if (dynamic && strategy == "tensor") {
    scheme.activations = ActivationScaling::dynamic_tensor;
  } else if (dynamic && strategy == "group") {
    scheme.activations = ActivationScaling::dynamic_group;
    const std::int64_t group = positive(args.value("group_size", Json()), where + ".group_size");
    if (scheme.weights != WeightGranularity::block) scheme.block = {1, group};
    if (scheme.block.cols != group)
      io::fail_at(where + ".group_size", "found " + std::to_string(group) +
                                             ", built is: the columns of a weight's block, " +
                                             std::to_string(scheme.block.cols));
  } else {
    io::fail_at(where, "found strategy " + io::in_quotes(strategy) + ", dynamic " + (dynamic ? "true" : "false") +
                           "; built are: static tensor, dynamic token, dynamic tensor, dynamic group");
  }
}

void check_packing(const Json& object, const std::string& where, bool top) {
  const std::string format = form_parts::string_of(object, "format", where, "float-quantized");
  if (format == "float-quantized" || format == "naive-quantized" || (top && format == "mixed-precision")) return;
  io::fail_at(where, "key 'format': found " + io::in_quotes(format) + ", built are: float-quantized, naive-quantized");
}

/// Refuses keys that would change the weights' meaning and are not built.
void check_rest(const Json& config, const std::string& where) {
  check_packing(config, where, true);
  form_parts::strings_of(config, "ignore", where);
  if (const auto sparse = config.find("sparsity_config"); sparse != config.end() && sparse->is_object()) {
    const std::string format = form_parts::string_of(*sparse, "format", where + ": sparsity_config", "dense");
    if (format != "dense")
      io::fail_at(where, "key 'sparsity_config': found format " + io::in_quotes(format) + ", built is: dense");
  }
  if (const auto t = config.find("transform_config");
      t != config.end() && t->is_object() && t->contains("config_groups") && !(*t)["config_groups"].empty()) {
    io::fail_at(where, "key 'transform_config': found transforms of activations, built is: none");
  }
  if (const auto kv = config.find("kv_cache_scheme"); kv != config.end() && !kv->is_null())
    check_arguments(*kv, where + ": kv_cache_scheme");
}

}  // namespace

ConfigGroups::Group::Group(const Json& json, const std::string& where, const Scheme& base) : scheme_(base) {
  read_weight_arguments(json["weights"], where + ".weights", scheme_);
  read_activation_arguments(json.value("input_activations", Json()), where + ".input_activations", scheme_);
  check_packing(json, where, false);
  for (const auto& target : form_parts::strings_of(json, "targets", where)) {
    if (target.starts_with("re:")) {
      patterns_.add(configs::match_expression(target.substr(3)), where + ".targets");
    } else {
      names_.push_back(target);
    }
  }
}

int ConfigGroups::Group::matches(const std::string& module) const {
  const auto has = [&](const std::string& name) {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  };
  if (has(module)) return 3;
  if (patterns_.matches(module)) return 2;
  return has("Linear") ? 1 : 0;
}

ConfigGroups::ConfigGroups(const Json& config, const std::string& where, const Scheme& base) : where_(where) {
  check_rest(config, where);
  const auto groups = config.find("config_groups");
  const bool caches_only = form_parts::promises_kv(config);
  if (groups == config.end() || !groups->is_object() || (groups->empty() && !caches_only))
    io::fail_at(where, "key 'config_groups': expected at least one group");
  for (const auto& [name, json] : groups->items()) {
    const std::string key = where + ": config_groups." + io::printable(name);
    if (!json.is_object()) io::fail_at(key, std::string("expected an object, found ") + json.type_name());
    if (!json.contains("weights") || json["weights"].is_null()) continue;  // older files: scales of key-value caches
    groups_.emplace_back(json, key, base);
  }
  if (groups_.empty() && !caches_only)
    io::fail_at(where, "key 'config_groups': expected a group with weights, found none");
}

const Scheme& ConfigGroups::scheme_of(const std::string& module) const {
  if (groups_.empty())
    io::fail_at(where_, "key 'config_groups': has no group for the fp8 module " + io::in_quotes(module));
  if (groups_.size() == 1) return groups_[0].scheme();
  const Group* best = nullptr;
  int how = 0;
  for (const auto& g : groups_) {
    const int match = g.matches(module);
    if (match > how) best = &g, how = match;
  }
  if (best == nullptr)
    io::fail_at(where_, "no group of 'config_groups' has a target for the fp8 module " + io::in_quotes(module));
  return best->scheme();
}

}  // namespace fp8::quant
