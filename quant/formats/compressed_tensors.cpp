// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/formats/compressed_tensors.h"

#include <algorithm>
#include <cmath>

#include "fp8/quant/formats/sidecar.h"
#include "fp8/runtime/io/error.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::quant::compressed_tensors {
namespace {

using io::Json;

Json arguments(const char* strategy, bool dynamic) {
  return Json{{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}, {"symmetric", true}, {"dynamic", dynamic}};
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string text_of(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

/// Throws unless `args` describes symmetric E4M3: {"num_bits": 8, "type": "float", "symmetric": true}, as compressed-tensors writes it.
void check_arguments(const Json& args, const std::string& where) {
  if (!args.is_object()) throw io::Error(where + ": expected an object, found " + args.type_name());
  const auto expect = [&](const char* key, const Json& wanted) {
    const Json found = args.value(key, wanted);
    if (found != wanted) throw io::Error(where + "." + key + ": found " + io::printable(found.dump(-1, ' ', true), 60) + ", built is: " + wanted.dump());
  };
  expect("num_bits", 8);
  expect("type", "float");
  expect("symmetric", true);
  if (args.contains("dynamic") && !args["dynamic"].is_boolean()) {
    throw io::Error(where + ".dynamic: found " + io::printable(args["dynamic"].dump(-1, ' ', true), 60) + ", built are: true, false");
  }
}

/// What stands beside the groups: the packing, and the list of modules left alone.
void check_form(const Json& config, const std::string& where) {
  const Json format = config.value("format", Json("float-quantized"));
  if (format != "float-quantized" && format != "naive-quantized") {
    throw io::Error(where + ": key 'format': found " + io::printable(format.dump(-1, ' ', true), 60) + ", built are: float-quantized, naive-quantized");
  }
  const Json ignore = config.value("ignore", Json::array());
  const bool names = ignore.is_array() && std::all_of(ignore.begin(), ignore.end(), [](const Json& name) { return name.is_string(); });
  if (!names && !ignore.is_null()) throw io::Error(where + ": key 'ignore': expected a list of module names, found " + io::printable(ignore.dump(-1, ' ', true), 60));
}

/// The activation scaling of the one group we understand.
ActivationScaling activations_of(const Json& config, const std::string& where) {
  const auto groups = config.find("config_groups");
  if (groups == config.end() || !groups->is_object() || groups->empty()) throw io::Error(where + ": key 'config_groups': expected at least one group");
  if (groups->size() != 1) throw io::Error(where + ": key 'config_groups': found " + std::to_string(groups->size()) + " groups, more than one is not built yet");
  const Json& group = groups->begin().value();
  if (!group.is_object()) throw io::Error(where + ": key 'config_groups': expected a group to be an object, found " + group.type_name());
  const Json weights = group.value("weights", Json());
  check_arguments(weights, where + ": weights");
  const std::string strategy = text_of(weights, "strategy");
  if (strategy != "tensor" && strategy != "channel") {
    throw io::Error(where + ": weights.strategy: found \"" + strategy + "\", built are: tensor, channel");
  }
  const Json in = group.value("input_activations", Json());
  if (in.is_null()) return ActivationScaling::none;
  check_arguments(in, where + ": input_activations");
  const std::string act = text_of(in, "strategy");
  const bool dynamic = in.value("dynamic", false);
  if (dynamic && act == "token") return ActivationScaling::dynamic_token;
  if (!dynamic && act == "tensor") return ActivationScaling::static_tensor;
  throw io::Error(where + ": input_activations: found strategy \"" + act + "\", dynamic " + (dynamic ? "true" : "false") + "; built are: static tensor, dynamic token");
}

std::vector<float> read_scale(const io::Checkpoint& checkpoint, const std::string& name) {
  const auto& info = checkpoint.info(name);
  if (info.dtype != io::DType::F32 && info.dtype != io::DType::BF16) {
    throw io::Error(checkpoint.folder().string() + ": " + name + ": expected dtype F32 or BF16, found " + io::name_of(info.dtype));
  }
  std::vector<std::uint8_t> bytes(info.bytes());
  checkpoint.read(name, bytes.data());
  std::vector<float> values(static_cast<std::size_t>(info.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = kernels::load_element(bytes.data(), info.dtype == io::DType::F32 ? kernels::FloatType::F32 : kernels::FloatType::BF16, static_cast<std::int64_t>(i));
    if (!std::isfinite(values[i]) || values[i] <= 0) {
      throw io::Error(checkpoint.folder().string() + ": " + name + ": expected finite scales > 0, found " + std::to_string(values[i]));
    }
  }
  return values;
}

void check_shape(const io::Checkpoint& checkpoint, const std::string& module, std::size_t scales) {
  const auto& weight = checkpoint.info(module + ".weight");
  const auto& scale = checkpoint.info(module + ".weight_scale");
  const bool channel = scale.shape.size() == 2 && scale.shape[1] == 1 && weight.shape.size() == 2 && scale.shape[0] == weight.shape[0];
  if (weight.shape.size() == 2 && (scales == 1 || channel)) return;
  throw io::Error(checkpoint.folder().string() + ": " + module + ".weight_scale: expected [1] or [N, 1] for a weight [N, K], found " + std::to_string(scales) +
                  " values for " + (weight.shape.empty() ? "a scalar" : std::to_string(weight.shape[0]) + " rows"));
}

}  // namespace

Json make_config(const Scheme& scheme, const std::vector<std::string>& quantized, const std::vector<std::string>& kept_linears) {
  Json targets = Json::array({"Linear"});
  // vLLM's class for it is not a Linear: a quantized lm_head must be named.
  if (std::any_of(quantized.begin(), quantized.end(), [](const std::string& n) { return ends_with(n, "lm_head"); })) targets.push_back("re:.*lm_head");
  Json group = Json::object();
  group["targets"] = targets;
  group["weights"] = arguments(name_of(scheme.weights), false);
  group["input_activations"] = scheme.activations == ActivationScaling::none            ? Json(nullptr)
                               : scheme.activations == ActivationScaling::static_tensor ? arguments("tensor", false)
                                                                                        : arguments("token", true);
  group["output_activations"] = nullptr;
  Json config = Json::object();
  config["quant_method"] = "compressed-tensors";
  config["format"] = scheme.activations == ActivationScaling::none ? "naive-quantized" : "float-quantized";
  config["quantization_status"] = "compressed";
  config["config_groups"] = Json{{"group_0", group}};
  config["ignore"] = kept_linears;
  config["kv_cache_scheme"] = nullptr;
  return config;
}

std::vector<StoredModule> read_modules(const io::Checkpoint& checkpoint, const Json& config, const Json& sidecar) {
  const std::string where = (checkpoint.folder() / "config.json").string() + ": quantization_config";
  if (const std::string method = text_of(config, "quant_method"); method != "compressed-tensors") {
    throw io::Error(where + ": key 'quant_method': found \"" + method + "\", built is: compressed-tensors");
  }
  check_form(config, where);
  Scheme base = sidecar.is_null() ? Scheme{} : read_sidecar(sidecar, (checkpoint.folder() / kSidecarName).string());
  base.activations = activations_of(config, where);
  std::vector<StoredModule> modules;
  for (const auto& tensor : checkpoint.names()) {
    if (!ends_with(tensor, ".weight")) continue;
    const io::DType dtype = checkpoint.info(tensor).dtype;
    const std::string name = tensor.substr(0, tensor.size() - 7);
    if (dtype == io::DType::F8_E5M2) throw io::Error(checkpoint.folder().string() + ": " + tensor + ": F8_E5M2 weights are not part of compressed-tensors");
    if (dtype != io::DType::F8_E4M3) continue;
    StoredModule m{name, base, read_scale(checkpoint, name + ".weight_scale")};
    check_shape(checkpoint, name, m.weight_scale_inv.size());
    m.scheme.weights = checkpoint.info(name + ".weight_scale").shape.size() == 2 ? WeightGranularity::channel : WeightGranularity::tensor;
    if (base.activations == ActivationScaling::static_tensor) {
      const auto in = read_scale(checkpoint, name + ".input_scale");
      if (in.size() != 1) throw io::Error(checkpoint.folder().string() + ": " + name + ".input_scale: expected 1 value, found " + std::to_string(in.size()));
      m.scheme.input_scale_inv = in[0];
      m.scheme.input_scale = scale_for(m.scheme, in[0], checkpoint.folder().string() + ": " + name + ".input_scale");
    }
    modules.push_back(std::move(m));
  }
  if (modules.empty()) throw io::Error(checkpoint.folder().string() + ": expected F8_E4M3 weights as config.json says, found none");
  return modules;
}

}  // namespace fp8::quant::compressed_tensors
