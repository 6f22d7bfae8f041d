// SPDX-License-Identifier: Apache-2.0
// NVIDIA ModelOpt, which vLLM, SGLang and TensorRT-LLM read. No torch here.
//
//   quant_algo                  X.weight_scale F32                     activations
//   FP8                         []                                     X.input_scale F32 []
//   FP8_PER_CHANNEL_PER_TOKEN   [N]                                    dynamic per token
//   fp8_pb_wo                   [ceil(N/128), 1, ceil(K/128), 1]       dynamic per group of 128 inputs (vLLM),
//                                                                      which must divide K
//   MXFP8                       U8 [N, K/32]: 2^(byte - 127)           dynamic per group of 32, in the same way
//
//   attention.k_proj.k_scale, attention.v_proj.v_scale   F32 []        with kv_cache_scheme
//   config.json                 quantization_config { quant_algo, quant_method: "modelopt", ignore, ... }
//   hf_quant_config.json        the same in other words
//
// Read as well: fp8_pb_wo's [] of a weight inside one block and [ceil(N/128), ceil(K/128)], "FP8_PB_WO",
// hf_quant_config.json alone, "quantization" as an inner object.

#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/forms/parts.h"

namespace fp8::quant {
namespace {

using io::Json;

constexpr Block kBlock{128, 128};
constexpr char kPerTensor[] = "FP8", kPerChannel[] = "FP8_PER_CHANNEL_PER_TOKEN", kPerBlock[] = "fp8_pb_wo",
               kPerGroup[] = "MXFP8";

const char* algorithm_of(const Scheme& s) {
  return s.weights == Granularity::tensor    ? kPerTensor
         : s.weights == Granularity::channel ? kPerChannel
         : s.is_mx()                         ? kPerGroup
                                             : kPerBlock;
}

void check_kv_scheme(const Json& config, const std::string& where) {
  const std::string algorithm = form_parts::string_of(config, "kv_cache_quant_algo", where);
  if (!algorithm.empty() && io::upper(algorithm) != "FP8")
    io::fail_at(where, "key 'kv_cache_quant_algo': found {}, built are: \"FP8\", null", io::in_quotes(algorithm));
  const auto scheme = config.find("kv_cache_scheme");
  if (scheme == config.end() || scheme->is_null()) return;
  const bool fp8 =
      scheme->is_object() && scheme->value("num_bits", Json(8)) == 8 && scheme->value("type", Json("float")) == "float";
  if (!fp8)
    io::fail_at(where, "key 'kv_cache_scheme': found {}, built is: num_bits 8, type \"float\"",
                form_parts::in_message(*scheme));
}

void read_algorithm(const Json& config, const std::string& where, Scheme& scheme) {
  const std::string found = form_parts::string_of(config, "quant_algo", where);
  const std::string algorithm = io::upper(found);
  if (algorithm == kPerTensor) {
    scheme.weights = Granularity::tensor;
    scheme.activations = ActivationScaling::static_tensor;
  } else if (algorithm == kPerChannel) {
    scheme.weights = Granularity::channel;
    scheme.activations = ActivationScaling::dynamic_token;
  } else if (algorithm == io::upper(kPerBlock)) {
    scheme.weights = Granularity::block;
    scheme.block = kBlock;
    scheme.activations = ActivationScaling::dynamic_group;
  } else if (algorithm == kPerGroup) {
    scheme.weights = Granularity::block;
    scheme.block = kMxBlock;
    scheme.power_of_two = true;
    scheme.activations = ActivationScaling::dynamic_group;
  } else {
    io::fail_at(where, "key 'quant_algo': found {}, built are: FP8, FP8_PER_CHANNEL_PER_TOKEN, fp8_pb_wo, MXFP8",
                io::in_quotes(found));
  }
}

class ModelOpt final : public CheckpointForm {
 public:
  const char* name() const override { return "modelopt"; }
  const char* help() const override { return "NVIDIA ModelOpt's"; }
  const char* quant_method() const override { return "modelopt"; }
  bool is_read_by(CheckpointReader reader) const override { return reader == CheckpointReader::vllm; }

  /// vLLM has methods for experts of two of the algorithms (quantization/modelopt.py: FusedMoEMethodCls).
  std::string problem_of_reader(CheckpointReader, const StoredWeight& w, WeightPlace place) const override {
    const std::string algorithm = algorithm_of(w.spec.scheme);
    if (place == WeightPlace::linear || algorithm == kPerTensor || algorithm == kPerGroup) return "";
    return io::message("vLLM has experts of quant_algo {} and {} alone in this form, found {}", kPerTensor, kPerGroup,
                       algorithm);
  }

  std::vector<const char*> ignore_keys() const override { return {"/ignore", "/exclude_modules"}; }

  /// Found anywhere in the name, fnmatch of wildcards, layers of experts.
  NameTest ignored_by(const std::string& entry) const override {
    const bool wildcard = entry.find_first_of("*?[") != std::string::npos;
    return [entry, wildcard](const std::string& name) {
      return name.find(entry) != std::string::npos || (wildcard && configs::matches_wildcard(entry, name)) ||
             names_layer_of_experts(entry, name);
    };
  }
  std::string exact_entry(const std::string& name) const override {
    return name.substr(0, name.size() - 1) + "[" + name.back() + "]";
  }

  std::string scheme_problem(const Scheme& s) const override {
    if (s.format != recipes::Format::E4M3)
      return std::string("modelopt holds E4M3, found ") + kernels::name_of(s.format);
    const auto fits = [&](Granularity w, ActivationScaling a) { return s.weights == w && s.activations == a; };
    if (fits(Granularity::tensor, ActivationScaling::static_tensor) ||
        fits(Granularity::channel, ActivationScaling::dynamic_token))
      return "";
    if (!fits(Granularity::block, ActivationScaling::dynamic_group))
      return io::message(
          "modelopt holds static tensor, channel and token, or block and group scales; found {} weights, {} "
          "activations",
          name_of(s.weights), name_of(s.activations));
    return s.is_mx() || s.block == kBlock ? "" : "modelopt holds blocks of 128x128 or mx, found " + s.block.text();
  }

  std::string weight_problem(const WeightSpec& w) const override {
    if (!w.scheme.has_blocks()) return "";
    if (w.scheme.is_mx()) return mx_problem(w.scheme, w.cols);
    if (w.cols % kBlock.cols != 0) return std::to_string(w.cols) + " inputs are no multiple of 128, which vLLM refuses";
    return form_parts::fused_rows_problem(w);
  }

  std::vector<std::vector<std::int64_t>> scale_shapes(const WeightSpec& w) const override {
    const auto grid = scale_grid(w.scheme, w.rows, w.cols);
    switch (w.scheme.weights) {
      case Granularity::tensor: return {{}, {1}};
      case Granularity::channel: return {{w.rows}};
      default: break;
    }
    if (w.scheme.is_mx()) return {{grid.rows, grid.cols}};
    std::vector<std::vector<std::int64_t>> shapes{{grid.rows, 1, grid.cols, 1}, {grid.rows, grid.cols}};
    if (grid.size() == 1) shapes.push_back({});
    return shapes;
  }

  std::string kv_problem(const KvScales& kv) const override { return form_parts::one_each(kv, "modelopt"); }

  std::array<const char*, 2> kv_names() const override { return {".k_proj.k_scale", ".v_proj.v_scale"}; }

  Json config(const ConfigSpec& spec) const override {
    const bool is_static = spec.scheme.is_static();
    const Json numbers = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
    Json config = Json::object();
    if (is_static)
      config["config_groups"] = {
          {"group_0", {{"input_activations", numbers}, {"weights", numbers}, {"targets", Json::array({"Linear"})}}}};
    config["ignore"] = ignore_entries(*this, spec);
    config["quant_algo"] = algorithm_of(spec.scheme);
    if (spec.scheme.is_mx()) config["group_size"] = kMxBlock.cols;
    if (!spec.kv.empty()) config["kv_cache_scheme"] = numbers;
    config["producer"] = {{"name", "modelopt"}, {"version", "0.47.0"}};  // readers know the form, and its age, by this
    config["quant_method"] = "modelopt";
    return config;
  }

  std::vector<std::pair<std::string, Json>> extra_files(const Json& config) const override {
    Json quantization = Json::object();
    quantization["quant_algo"] = config.at("quant_algo");
    quantization["kv_cache_quant_algo"] = config.contains("kv_cache_scheme") ? Json("FP8") : Json(nullptr);
    if (config.contains("group_size")) quantization["group_size"] = config["group_size"];
    quantization["exclude_modules"] = config.at("ignore");
    return {{io::kHfQuantConfigFile, Json{{"producer", config.at("producer")}, {"quantization", quantization}}}};
  }

  StoredCheckpoint read(const io::Checkpoint& checkpoint, const Json& outer, const Json& sidecar) const override {
    const std::string where = form_parts::config_place(checkpoint);
    const Json config =
        outer.contains("quantization") && outer["quantization"].is_object() ? outer["quantization"] : outer;
    form_parts::strings_of(config, "ignore", where);
    form_parts::strings_of(config, "exclude_modules", where);
    check_kv_scheme(config, where);
    Scheme scheme = form_parts::base_scheme(checkpoint, sidecar);
    read_algorithm(config, where, scheme);
    StoredCheckpoint out;
    for (const auto& module : form_parts::fp8_modules(checkpoint, "modelopt", sidecar))
      out.weights.push_back(form_parts::read_plain_weight(*this, checkpoint, module, scheme));
    const bool algorithm = !form_parts::string_of(config, "kv_cache_quant_algo", where).empty();
    form_parts::read_kv(checkpoint, form_parts::kv_spellings(), "", algorithm || form_parts::promises_kv(config), out,
                        where + (algorithm ? ": kv_cache_quant_algo" : ": kv_cache_scheme"));
    out.strays = form_parts::stray_scales(checkpoint, {".weight_scale", ".input_scale"});
    return out;
  }

  std::string assume_problem() const override { return ""; }

  Json assumed_config(const AssumedWeights& found) const override {
    const auto dimensions = [](std::size_t n) { return [n](const AssumedWeight& w) { return w.scale.size() == n; }; };
    const bool channel = found.any(dimensions(1)) && !found.has_input_scales();
    const bool mx = found.all([](const AssumedWeight& w) { return w.exponents; });
    const char* algorithm = mx ? kPerGroup : found.any(dimensions(4)) ? kPerBlock : channel ? kPerChannel : kPerTensor;
    return {{"quant_method", "modelopt"}, {"quant_algo", algorithm}};
  }
};

}  // namespace

const CheckpointForm& modelopt_form() {
  static const ModelOpt form;
  return form;
}

}  // namespace fp8::quant
