// SPDX-License-Identifier: Apache-2.0
// compressed-tensors, which transformers and vLLM read; INC's "vllm" form is the same with one static scale per tensor.
// No torch here.
//
//   X.weight                     F8_E4M3 [N, K]
//   X.weight_scale               F32 [1] tensor | [N, 1] channel | [ceil(N/b0), ceil(K/b1)] block
//   X.input_scale                F32 [1] (static only)
//   attention.k_scale, v_scale   F32 [1], or [H, 1, 1] per head
//   config.json                  quantization_config { quant_method, format, quantization_status: "compressed",
//                                                      config_groups, ignore, kv_cache_scheme }
//
// Without "quantization_status" transformers gives NaN; "ignore" must name each Linear kept in high precision. Read as
// well: scales [] in place of [1], in BF16 or F16, several groups (parts.h), the key "compression_config".
#include <algorithm>

#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/forms/parts.h"

namespace fp8::quant {
namespace {

using io::DType;
using io::Json;

Json arguments(const char* strategy, bool dynamic) {
  return Json{{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}, {"symmetric", true}, {"dynamic", dynamic}};
}

/// The QuantizationArgs of activations; null for none.
Json activation_arguments(const Scheme& scheme) {
  switch (scheme.activations) {
    case ActivationScaling::none:
      return nullptr;
    case ActivationScaling::static_tensor:
      return arguments("tensor", false);
    case ActivationScaling::dynamic_token:
      return arguments("token", true);
    case ActivationScaling::dynamic_tensor:
      return arguments("tensor", true);
    case ActivationScaling::dynamic_group:
      break;
  }
  Json args = arguments("group", true);
  args["group_size"] = scheme.block.cols;
  return args;
}

const char* packing(const Scheme& scheme) {
  return scheme.activations == ActivationScaling::none ? "naive-quantized" : "float-quantized";
}

/// One of "config_groups".
Json group_of(const Scheme& scheme, Json targets) {
  Json weights = arguments(name_of(scheme.weights), false);
  if (scheme.weights == WeightGranularity::block) weights["block_structure"] = {scheme.block.rows, scheme.block.cols};
  return {{"targets", std::move(targets)},
          {"weights", std::move(weights)},
          {"input_activations", activation_arguments(scheme)},
          {"output_activations", nullptr},
          {"format", packing(scheme)}};
}

/// The shapes that a weight's scale may have.
std::vector<std::vector<std::int64_t>> tensors_scale_shapes(const WeightSpec& w) {
  if (w.scheme.weights == WeightGranularity::tensor) return {{1}, {}};
  const ScaleGrid grid = scale_grid(w.scheme, w.rows, w.cols);
  return {{grid.rows, grid.cols}};
}

/// INC's own files have the codes of everything but *_proj transposed (a quantized lm_head): told by the embedding's
/// shape.
bool is_transposed(const io::Checkpoint& checkpoint, const std::string& module) {
  if (!module.ends_with("lm_head") || !checkpoint.contains("model.embed_tokens.weight")) return false;
  const auto& shape = checkpoint.info(module + ".weight").shape;
  const auto& embedding = checkpoint.info("model.embed_tokens.weight").shape;
  return embedding.size() == 2 && shape != embedding && shape == std::vector<std::int64_t>{embedding[1], embedding[0]};
}

class CompressedTensors : public CheckpointForm {
 public:
  const char* name() const override { return "compressed-tensors"; }
  const char* help() const override { return "for transformers and vLLM"; }
  const char* quant_method() const override { return "compressed-tensors"; }
  bool is_read_by(CheckpointReader reader) const override { return reader != CheckpointReader::neural_compressor; }

  std::vector<const char*> ignore_keys() const override { return {"/ignore"}; }
  NameTest ignored_by(const std::string& entry) const override { return matched_after_re(entry); }
  bool writes_patterns() const override { return true; }

  std::vector<std::string> targets(const Json& config) const override {
    const auto groups = config.find("config_groups");
    if (groups == config.end() || !groups->is_object()) return {"Linear"};
    std::vector<std::string> entries;
    for (const auto& group : *groups) {
      if (!group.is_object() || !group.contains("targets") || !group["targets"].is_array()) continue;
      for (const auto& target : group["targets"]) {
        if (target.is_string()) entries.push_back(target.get<std::string>());
      }
    }
    return entries;
  }

  std::string scheme_problem(const Scheme& s) const override {
    const std::string form = name();
    if (s.format != recipes::Format::E4M3) return form + " holds E4M3, found " + kernels::name_of(s.format);
    if (s.weights == WeightGranularity::block && s.activations == ActivationScaling::static_tensor) {
      return form + " holds block weights with dynamic or no activation scales, vLLM refuses static ones";
    }
    if (s.activations == ActivationScaling::dynamic_group && s.weights != WeightGranularity::block) {
      return form + " holds activation scales per group for block weights only, found " + name_of(s.weights) +
             " weights";
    }
    return "";
  }

  std::string weight_problem(const WeightSpec& w) const override {
    if (w.scheme.weights != WeightGranularity::block) return "";
    const auto& [rows, cols] = w.scheme.block;
    if (w.scheme.activations == ActivationScaling::dynamic_group && w.cols % cols != 0) {
      return std::to_string(w.cols) + " inputs are no multiple of the group of " + std::to_string(cols) +
             ", which transformers refuses";
    }
    return form_parts::fused_rows_problem(w);
  }

  std::vector<io::SafetensorsWriter::Entry> entries(const WeightSpec& w, const ConfigSpec&) const override {
    std::vector<io::SafetensorsWriter::Entry> list{
        {w.module + ".weight", DType::F8_E4M3, {w.rows, w.cols}},
        {w.module + ".weight_scale", DType::F32, tensors_scale_shapes(w)[0]}};
    if (w.scheme.activations == ActivationScaling::static_tensor)
      list.push_back({w.module + ".input_scale", DType::F32, {1}});
    return list;
  }

  void write_scales(TensorSink& sink, const WeightSpec& w, const ConfigSpec&,
                    const std::vector<float>& scale_inv) const override {
    form_parts::write_f32(sink, w.module + ".weight_scale", scale_inv);
    if (w.scheme.activations == ActivationScaling::static_tensor)
      form_parts::write_f32(sink, w.module + ".input_scale", {w.scheme.input_scale_inv});
  }

  std::string kv_problem(const KvScales& kv) const override {
    return kv.k.size() == kv.v.size() && !kv.k.empty()
               ? ""
               : "compressed-tensors holds as many scales for values as for keys, found " +
                     std::to_string(kv.v.size()) + " and " + std::to_string(kv.k.size());
  }

  std::vector<io::SafetensorsWriter::Entry> kv_entries(const KvScales& kv, const ConfigSpec& config) const override {
    const std::vector<std::int64_t> shape =
        per_head(config) ? std::vector<std::int64_t>{static_cast<std::int64_t>(kv.k.size()), 1, 1}
                         : std::vector<std::int64_t>{1};
    return {{kv.attention + ".k_scale", DType::F32, shape}, {kv.attention + ".v_scale", DType::F32, shape}};
  }

  void write_kv(TensorSink& sink, const KvScales& kv, const ConfigSpec&) const override {
    form_parts::write_f32(sink, kv.attention + ".k_scale", kv.k);
    form_parts::write_f32(sink, kv.attention + ".v_scale", kv.v);
  }

  Json config(const ConfigSpec& spec) const override {
    Json targets = Json::array({"Linear"});
    // vLLM's class for it is not a Linear: a quantized lm_head must be named.
    if (std::any_of(spec.quantized.begin(), spec.quantized.end(),
                    [](const std::string& n) { return n.ends_with("lm_head"); }))
      targets.push_back("re:.*lm_head");
    Json config = Json::object();
    config["quant_method"] = "compressed-tensors";
    config["format"] = packing(spec.scheme);
    config["quantization_status"] = "compressed";
    config["config_groups"] = Json{{"group_0", group_of(spec.scheme, std::move(targets))}};
    config["ignore"] = ignore_entries(*this, spec);
    config["kv_cache_scheme"] =
        spec.kv.empty() ? Json(nullptr) : arguments(per_head(spec) ? "attn_head" : "tensor", false);
    return config;
  }

  StoredCheckpoint read(const io::Checkpoint& checkpoint, const Json& config, const Json& sidecar) const override {
    const std::string where = form_parts::config_place(checkpoint);
    const ConfigGroups groups(config, where, form_parts::base_scheme(checkpoint, sidecar));
    StoredCheckpoint out;
    if (groups.empty()) require_no_codes(checkpoint);  // caches alone are in fp8
    const auto modules = groups.empty() ? std::vector<std::string>()
                                        : form_parts::fp8_modules(checkpoint, "compressed-tensors", sidecar);
    for (const auto& module : modules) {
      const Scheme& scheme = groups.scheme_of(module);
      StoredWeight w =
          form_parts::stored_weight(checkpoint, module, scheme, module + ".weight_scale",
                                    scheme.weights == WeightGranularity::tensor && is_transposed(checkpoint, module));
      form_parts::check_scale(checkpoint, w, tensors_scale_shapes(w.spec));
      if (scheme.activations == ActivationScaling::static_tensor)
        form_parts::read_input_scale(checkpoint, w, module + ".input_scale");
      out.weights.push_back(std::move(w));
    }
    form_parts::read_kv(
        checkpoint,
        {{"k_proj.k_scale", "v_proj.v_scale"}, {"k_proj.output_scale", "v_proj.output_scale"}, {"k_scale", "v_scale"}},
        "kv_scale", form_parts::promises_kv(config), out);
    out.strays = form_parts::stray_scales(checkpoint, {".weight_scale", ".input_scale"});
    if (form_parts::promises_kv(config)) form_parts::warn_missing_kv(where + ": kv_cache_scheme", out);
    return out;
  }

  std::string assume_problem() const override { return ""; }

  Json assumed_config(const AssumedWeights& found) const override {
    const bool is_static = found.has_input_scales();
    Scheme scheme;
    scheme.activations = is_static ? ActivationScaling::static_tensor : ActivationScaling::dynamic_token;
    if (found.all([](const AssumedWeight& w) { return w.one && w.scale.size() <= 1; })) {
      scheme.weights = WeightGranularity::tensor;
    } else if (found.all([](const AssumedWeight& w) { return w.scale == std::vector{w.rows, std::int64_t{1}}; })) {
      scheme.weights = WeightGranularity::channel;
    } else {
      scheme.weights = WeightGranularity::block;
      scheme.block = found.block();
      if (!is_static) scheme.activations = ActivationScaling::dynamic_group;
    }
    return {{"quant_method", quant_method()},
            {"format", packing(scheme)},
            {"config_groups", {{"group_0", group_of(scheme, Json::array({"Linear"}))}}}};
  }

 private:
  /// One strategy for all caches.
  static bool per_head(const ConfigSpec& spec) {
    return std::any_of(spec.kv.begin(), spec.kv.end(), [](const KvScales& kv) { return kv.k.size() > 1; });
  }
};

/// Only what INC's "vllm" has words for. Readers make no difference.
class IncVllm final : public CompressedTensors {
 public:
  const char* name() const override { return "inc-vllm"; }
  const char* help() const override { return "what the latter calls vllm"; }

  std::string scheme_problem(const Scheme& s) const override {
    const bool one = s.weights == WeightGranularity::tensor && s.activations == ActivationScaling::static_tensor;
    if (s.format == recipes::Format::E4M3 && !one)
      return std::string(name()) + " holds one static scale per tensor, found " + s.describe();
    return CompressedTensors::scheme_problem(s);
  }

  std::string assume_problem() const override { return "inc-vllm is read as compressed-tensors"; }
};

}  // namespace

const CheckpointForm& compressed_tensors_form() {
  static const CompressedTensors form;
  return form;
}

const CheckpointForm& inc_vllm_form() {
  static const IncVllm form;
  return form;
}

}  // namespace fp8::quant
