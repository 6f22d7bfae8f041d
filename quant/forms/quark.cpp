// SPDX-License-Identifier: Apache-2.0
// quant_method "quark" (AMD Quark's export), for checkpoints whose experts are in MXFP4 already: the one form in which
// a reader takes fp8 Linear modules beside them. vLLM 0.32: models/gpt_oss.py:1379 (_load_weights_quark),
// quantization/quark/quark.py. No torch here.
//
//   X.weight              F8_E4M3 [N, K]
//   X.weight_scale        F32 [N], or [] per tensor
//   X.input_scale         F32 []                     static activations
//   P.experts.Y_blocks    U8 [E, N, K/32, 16]        two E2M1 codes a byte, as the source has them
//   P.experts.Y_scales    U8 [E, N, K/32]            E8M0
//
//   {"quant_method": "quark", "export": {"kv_cache_group": [], "pack_method": "reorder"},
//    "global_quant_config": {"weight": FP8, "input_tensors": FP8},           every Linear that no entry below names
//    "layer_quant_config": {"P.experts*": {"weight": FP4, "input_tensors": null}}, "layer_type_quant_config": {},
//    "exclude": [names of modules in high precision]}
//
// Read are Linear weights without such experts too; they are written in the other forms.

#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/forms/parts.h"

namespace fp8::quant {
namespace {

using form_parts::in_message;
using io::Json;

constexpr const char *kWeights = "weight", *kInputs = "input_tensors";

Json fp8_entry(bool per_row, bool dynamic) {
  Json entry = {{"dtype", "fp8_e4m3"},   {"qscheme", per_row ? "per_channel" : "per_tensor"},
                {"is_dynamic", dynamic}, {"symmetric", true},
                {"ch_axis", nullptr},    {"group_size", nullptr}};
  if (per_row) entry["ch_axis"] = dynamic ? 1 : 0;
  return entry;
}

Json layer_entry(Json weight, Json inputs) {
  return {{kWeights, std::move(weight)}, {kInputs, std::move(inputs)}, {"output_tensors", nullptr}, {"bias", nullptr}};
}

Json mxfp4_entry() {
  return {{"dtype", "fp4"},      {"qscheme", "per_group"}, {"group_size", 32}, {"scale_format", "e8m0"},
          {"is_dynamic", false}, {"symmetric", true},      {"ch_axis", -1}};
}

/// One of an entry's parts; the object itself, or the only one of a list.
Json part_of(const Json& entry, const char* key) {
  Json part = entry.is_object() ? entry.value(key, Json()) : Json();
  return part.is_array() && part.size() == 1 ? Json(part[0]) : part;
}

/// The entry of a module: the first pattern of layer_quant_config that fits, else global_quant_config.
const Json& entry_of(const Json& config, const std::string& module) {
  static const Json none;
  if (const auto layers = config.find("layer_quant_config"); layers != config.end() && layers->is_object())
    for (const auto& [pattern, entry] : layers->items())
      if (pattern == module || configs::matches_wildcard(pattern, module)) return entry;
  const auto global = config.find("global_quant_config");
  return global == config.end() ? none : *global;
}

/// True if a part of an entry has one value per row (weights) or token (inputs).
bool is_per_row(const Json& part, const char* key, const std::string& where) {
  const std::string scheme = part.is_object() ? form_parts::string_of(part, "qscheme", where) : "";
  const bool fp8 = part.is_object() && form_parts::string_of(part, "dtype", where) == "fp8_e4m3";
  if (!fp8 || (scheme != "per_tensor" && scheme != "per_channel"))
    io::fail_at(where,
                "key '{}': found {}, built is: dtype \"fp8_e4m3\" with qscheme \"per_tensor\" or \"per_channel\"", key,
                in_message(part));
  return scheme == "per_channel";
}

Scheme read_scheme(const Json& config, const std::string& module, const std::string& config_place, const Scheme& base) {
  const Json& entry = entry_of(config, module);
  const std::string where = config_place + ": entry of " + io::printable(module);
  const Json weight = part_of(entry, kWeights), inputs = part_of(entry, kInputs);
  Scheme scheme = base;
  scheme.weights = is_per_row(weight, kWeights, where) ? Granularity::channel : Granularity::tensor;
  const bool per_token = is_per_row(inputs, kInputs, where);
  const bool dynamic = inputs.value("is_dynamic", Json(false)) == Json(true);
  if (per_token && !dynamic)
    io::fail_at(where, "key '{}': found static scales per_channel, built are: static per_tensor, dynamic", kInputs);
  scheme.activations = !dynamic    ? ActivationScaling::static_tensor
                       : per_token ? ActivationScaling::dynamic_token
                                   : ActivationScaling::dynamic_tensor;
  return scheme;
}

class Quark final : public CheckpointForm {
 public:
  const char* name() const override { return "quark"; }
  const char* help() const override { return "AMD Quark's (gpt_oss beside its MXFP4 experts, for vLLM)"; }
  const char* quant_method() const override { return "quark"; }
  bool is_read_by(CheckpointReader reader) const override { return reader == CheckpointReader::vllm; }
  bool needs_mxfp4() const override { return true; }

  std::vector<const char*> ignore_keys() const override { return {"/exclude"}; }
  NameTest ignored_by(const std::string& entry) const override { return matched_after_re(entry); }

  std::string scheme_problem(const Scheme& s) const override {
    if (s.format != recipes::Format::E4M3) return std::string("quark holds E4M3, found ") + kernels::name_of(s.format);
    if (s.has_blocks()) return "quark holds per tensor or channel weights, found block";
    const bool tensor = s.weights == Granularity::tensor;
    if (s.activations == ActivationScaling::dynamic_token || (tensor && s.is_static())) return "";
    return std::string("quark holds dynamic token activations, or static tensor ones with tensor weights, found ") +
           name_of(s.activations);
  }

  std::string weight_problem(const WeightSpec&) const override { return ""; }

  std::vector<std::vector<std::int64_t>> scale_shapes(const WeightSpec& w) const override {
    if (w.scheme.weights == Granularity::channel) return {{w.rows}, {w.rows, 1}};
    return {{}, {1}};
  }

  std::string kv_problem(const KvScales&) const override {
    return "quark's scales of key-value caches are not written here";
  }

  Json config(const ConfigSpec& spec) const override {
    Json layers = Json::object();
    for (const auto& mixture : spec.packed_experts) layers[mixture + "*"] = layer_entry(mxfp4_entry(), nullptr);
    const bool is_static = spec.scheme.is_static();
    Json config = Json::object();
    config["quant_method"] = "quark";
    config["export"] = {{"kv_cache_group", Json::array()}, {"pack_method", "reorder"}};
    config["global_quant_config"] =
        layer_entry(fp8_entry(spec.scheme.weights == Granularity::channel, false), fp8_entry(!is_static, !is_static));
    config["layer_quant_config"] = std::move(layers);
    config["layer_type_quant_config"] = Json::object();
    config["exclude"] = ignore_entries(*this, spec);
    return config;
  }

  StoredCheckpoint read(const io::Checkpoint& checkpoint, const Json& config, const Json& sidecar) const override {
    const std::string where = form_parts::config_place(checkpoint);
    form_parts::strings_of(config, "exclude", where);
    const Scheme base = form_parts::base_scheme(checkpoint, sidecar);
    StoredCheckpoint out;
    out.packed = mxfp4_stacks(checkpoint);
    for (const auto& module : form_parts::fp8_modules(checkpoint, "quark", sidecar, false, out.packed)) {
      const Scheme scheme = read_scheme(config, module, where, base);
      out.weights.push_back(form_parts::read_plain_weight(*this, checkpoint, module, scheme));
    }
    form_parts::read_kv(checkpoint, {{"k_proj.output_scale", "v_proj.output_scale"}}, "", promises_outputs(config),
                        out);
    out.strays = form_parts::stray_scales(checkpoint, {".weight_scale", ".input_scale"});
    for (const auto& stack : out.packed) require_entry(checkpoint, config, stack, where);
    return out;
  }

  std::string assume_problem() const override { return "quark's config says which of its codes have four bits"; }

 private:
  /// True if some entry says that a module's outputs, keys and values, are in fp8.
  static bool promises_outputs(const Json& config) {
    const auto says = [](const Json& entry) { return !part_of(entry, "output_tensors").is_null(); };
    const Json layers = config.value("layer_quant_config", Json::object());
    const Json kv = config.value("kv_cache_quant_config", Json());
    return (kv.is_object() && !kv.empty()) || std::ranges::any_of(layers, says);
  }

  /// Packed experts without an entry of their own would be built for fp8.
  static void require_entry(const io::Checkpoint& checkpoint, const Json& config, const std::string& stack,
                            const std::string& where) {
    const std::string mixture = stack.substr(0, stack.rfind('.'));
    const Json weight = part_of(entry_of(config, mixture), kWeights);
    const bool fp4 = weight.is_object() && weight.value("dtype", Json()) == "fp4" &&
                     weight.value("group_size", Json()) == 32 && weight.value("scale_format", Json()) == "e8m0";
    if (!fp4)
      io::fail_at(
          where,
          "{}: experts in MXFP4, found the entry {}, expected dtype \"fp4\", group_size 32, scale_format \"e8m0\"",
          form_parts::place(checkpoint, stack), in_message(weight));
  }
};

}  // namespace

const CheckpointForm& quark_form() {
  static const Quark form;
  return form;
}

}  // namespace fp8::quant
