// SPDX-License-Identifier: Apache-2.0
// compressed-tensors, which transformers and vLLM read; INC's "vllm" form is the same with one static scale per tensor.
// No torch here.
//
//   X.weight                     F8_E4M3 [N, K]
//   X.weight_scale               F32 [1] tensor | [N, 1] channel | [ceil(N/b0), ceil(K/b1)] block
//                                U8 [N, K/32] MXFP8 ("mxfp8-quantized"): 2^(byte - 127)
//   X.input_scale                F32 [1] (static only)
//   attention.k_scale, v_scale   F32 [1], or [H, 1, 1] per head
//   config.json                  quantization_config { quant_method, format, quantization_status: "compressed",
//                                                      config_groups, ignore, kv_cache_scheme }
//
// Without "quantization_status" transformers gives NaN; "ignore" must name each Linear kept in high precision. Read as
// well: scales [] in place of [1], in BF16 or F16, several groups (parts.h), the key "compression_config".

#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/forms/parts.h"

namespace fp8::quant {
namespace {

using form_parts::in_message;
using io::DType, io::Json;

Json arguments(const char* strategy, bool dynamic) {
  return Json{{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}, {"symmetric", true}, {"dynamic", dynamic}};
}

/// How QuantizationArgs call what shares a scale of activations.
struct ActivationStrategy {
  ActivationScaling scaling;
  const char* strategy;
  bool dynamic;
};
constexpr ActivationStrategy kActivations[] = {{ActivationScaling::static_tensor, "tensor", false},
                                               {ActivationScaling::dynamic_token, "token", true},
                                               {ActivationScaling::dynamic_tensor, "tensor", true},
                                               {ActivationScaling::dynamic_group, "group", true}};

/// The arguments of both operands of MXFP8. Its compressor asks for the scales' dtype (compressors/mxfp8/base.py).
Json mx_arguments(bool dynamic) {
  Json args = arguments("group", dynamic);
  args["group_size"] = kMxBlock.cols;
  args["scale_dtype"] = "torch.uint8";
  args["zp_dtype"] = "torch.uint8";
  return args;
}

/// The QuantizationArgs of activations; null for none.
Json activation_arguments(const Scheme& scheme) {
  const auto* known = std::ranges::find(kActivations, scheme.activations, &ActivationStrategy::scaling);
  if (known == std::end(kActivations)) return nullptr;
  if (scheme.is_mx()) return mx_arguments(true);
  Json args = arguments(known->strategy, known->dynamic);
  if (scheme.activations == ActivationScaling::dynamic_group) args["group_size"] = scheme.block.cols;
  return args;
}

Json weight_arguments(const Scheme& scheme) {
  if (scheme.is_mx()) return mx_arguments(false);
  Json args = arguments(name_of(scheme.weights), false);
  if (scheme.has_blocks()) args["block_structure"] = {scheme.block.rows, scheme.block.cols};
  return args;
}

constexpr char kMxPacking[] = "mxfp8-quantized";

const char* packing(const Scheme& scheme) {
  if (scheme.is_mx()) return kMxPacking;
  return scheme.activations == ActivationScaling::none ? "naive-quantized" : "float-quantized";
}

/// One of "config_groups".
Json group_of(const Scheme& scheme, Json targets) {
  return {{"targets", std::move(targets)},
          {"weights", weight_arguments(scheme)},
          {"input_activations", activation_arguments(scheme)},
          {"output_activations", nullptr},
          {"format", packing(scheme)}};
}

/// INC's own files have the codes of everything but *_proj transposed (a quantized lm_head): told by the embedding's
/// shape.
bool is_transposed(const io::Checkpoint& checkpoint, const std::string& module) {
  if (!module.ends_with("lm_head") || !checkpoint.contains("model.embed_tokens.weight")) return false;
  const auto& shape = checkpoint.info(module + ".weight").shape;
  const auto& embedding = checkpoint.info("model.embed_tokens.weight").shape;
  return embedding.size() == 2 && shape != embedding && shape == std::vector<std::int64_t>{embedding[1], embedding[0]};
}

/// Throws unless `args` describes symmetric E4M3: {"num_bits": 8, "type": "float", "symmetric": true}.
void check_arguments(const Json& args, const std::string& where) {
  if (!args.is_object()) io::fail_at(where, "expected an object, found {}", args.type_name());
  const auto expect = [&](const char* key, const Json& wanted) {
    const Json found = args.value(key, wanted);
    if (found != wanted) io::fail_at(where + "." + key, "found {}, built is: {}", in_message(found), wanted.dump());
  };
  expect("num_bits", 8);
  expect("type", "float");
  expect("symmetric", true);
  if (args.contains("dynamic") && !args["dynamic"].is_boolean())
    io::fail_at(where + ".dynamic", "found {}, built are: true, false", in_message(args["dynamic"]));
}

std::int64_t positive(const Json& value, const std::string& where) {
  const std::int64_t n = form_parts::block_side(value);
  if (n == 0)
    io::fail_at(where, "found {}, allowed: a whole number from 1 to {}", in_message(value), form_parts::kMaxBlock);
  return n;
}

void read_weight_arguments(const Json& args, const std::string& where, Scheme& scheme) {
  check_arguments(args, where);
  const std::string strategy = form_parts::string_of(args, "strategy", where, "tensor");
  if (strategy == "tensor") {
    scheme.weights = Granularity::tensor;
  } else if (strategy == "channel") {
    scheme.weights = Granularity::channel;
  } else if (strategy == "block") {
    const Json block = args.value("block_structure", Json());
    if (!block.is_array() || block.size() != 2)
      io::fail_at(where + ".block_structure", "found {}, allowed: [rows, columns]", in_message(block));
    scheme.weights = Granularity::block;
    scheme.block = {positive(block[0], where + ".block_structure"), positive(block[1], where + ".block_structure")};
  } else if (strategy == "group") {  // runs of one row
    scheme.weights = Granularity::block;
    scheme.block = {1, positive(args.value("group_size", Json()), where + ".group_size")};
  } else {
    io::fail_at(where + ".strategy", "found {}, built are: tensor, channel, block, group", io::in_quotes(strategy));
  }
}

void read_activation_arguments(const Json& args, const std::string& where, Scheme& scheme) {
  scheme.activations = ActivationScaling::none;
  if (args.is_null()) return;
  check_arguments(args, where);
  const std::string strategy = form_parts::string_of(args, "strategy", where, "tensor");
  const bool dynamic = args.value("dynamic", false);
  const auto* known = std::ranges::find_if(
      kActivations, [&](const ActivationStrategy& a) { return a.strategy == strategy && a.dynamic == dynamic; });
  if (known == std::end(kActivations))
    io::fail_at(where,
                "found strategy {}, dynamic {}; built are: static tensor, dynamic token, dynamic tensor, dynamic group",
                io::in_quotes(strategy), dynamic ? "true" : "false");
  scheme.activations = known->scaling;
  if (scheme.activations != ActivationScaling::dynamic_group) return;
  const std::int64_t group = positive(args.value("group_size", Json()), where + ".group_size");
  if (!scheme.has_blocks()) scheme.block = {1, group};
  if (scheme.block.cols != group)
    io::fail_at(where + ".group_size", "found {}, built is: the columns of a weight's block, {}", group,
                scheme.block.cols);
}

constexpr char kUsualPacking[] = "float-quantized", kMixed[] = "mixed-precision";

/// The key 'format' of the config (top) or of a group; `usual` where it is absent.
std::string read_packing(const Json& object, const std::string& where, bool top, const std::string& usual) {
  const std::string format = form_parts::string_of(object, "format", where, usual);
  for (const char* built : {kUsualPacking, "naive-quantized", kMxPacking})
    if (format == built) return format;
  if (top && format == kMixed) return kUsualPacking;  // each group has its own
  io::fail_at(where, "key 'format': found {}, built are: float-quantized, naive-quantized, {}", io::in_quotes(format),
              kMxPacking);
}

/// MXFP8: the scales of a group's weights are exponents.
void read_mx(const std::string& where, Scheme& scheme) {
  scheme.power_of_two = true;
  if (scheme.is_mx()) return;
  const std::string grid = scheme.has_blocks() ? scheme.block.text() : name_of(scheme.weights);
  io::fail_at(where, "key 'format': found {} with weights in {}, expected strategy group, group_size {}", kMxPacking,
              grid, kMxBlock.cols);
}

/// Refuses keys that would change the weights' meaning and are not built.
void check_rest(const Json& config, const std::string& where) {
  form_parts::strings_of(config, "ignore", where);
  if (const auto sparse = config.find("sparsity_config"); sparse != config.end() && sparse->is_object()) {
    const std::string format = form_parts::string_of(*sparse, "format", where + ": sparsity_config", "dense");
    if (format != "dense")
      io::fail_at(where, "key 'sparsity_config': found format {}, built is: dense", io::in_quotes(format));
  }
  if (const auto t = config.find("transform_config");
      t != config.end() && t->is_object() && t->contains("config_groups") && !(*t)["config_groups"].empty()) {
    io::fail_at(where, "key 'transform_config': found transforms of activations, built is: none");
  }
  if (const auto kv = config.find("kv_cache_scheme"); kv != config.end() && !kv->is_null())
    check_arguments(*kv, where + ": kv_cache_scheme");
}

/// "config_groups" as they are read: schemes, each with the modules that it is of.
class ConfigGroups {
 public:
  /// base: what fp8.json tells of every scheme. Throws io::Error "WHERE: key ...: found ..., built are ...", also for
  /// what stands beside the groups, would change the weights' meaning and is not built.
  ConfigGroups(const Json& config, const std::string& where, const Scheme& base) : where_(where) {
    const std::string packing = read_packing(config, where, true, kUsualPacking);
    check_rest(config, where);
    const auto groups = config.find("config_groups");
    const bool caches_only = form_parts::promises_kv(config);
    if (groups == config.end() || !groups->is_object() || (groups->empty() && !caches_only))
      io::fail_at(where, "key 'config_groups': expected at least one group");
    for (const auto& [name, json] : groups->items()) {
      const std::string key = where + ": config_groups." + io::printable(name);
      if (!json.is_object()) io::fail_at(key, "expected an object, found {}", json.type_name());
      if (!json.contains("weights") || json["weights"].is_null()) continue;  // older files: scales of key-value caches
      groups_.emplace_back(json, key, base, packing);
    }
    if (groups_.empty() && !caches_only)
      io::fail_at(where, "key 'config_groups': expected a group with weights, found none");
  }

  /// True for a checkpoint of which caches alone are in fp8.
  bool empty() const { return groups_.empty(); }
  /// Of the group that knows the module best. Throws io::Error if several have no target for it.
  const Scheme& scheme_of(const std::string& module) const {
    if (groups_.empty())
      io::fail_at(where_, "key 'config_groups': has no group for the fp8 module {}", io::in_quotes(module));
    if (groups_.size() == 1) return groups_[0].scheme;
    const Group* best = nullptr;
    int how = 0;
    for (const Group& g : groups_)
      if (const int match = g.matches(module); match > how) best = &g, how = match;
    if (best == nullptr)
      io::fail_at(where_, "no group of 'config_groups' has a target for the fp8 module {}", io::in_quotes(module));
    return best->scheme;
  }

 private:
  struct Group {
    Group(const Json& json, const std::string& where, const Scheme& base, const std::string& packing) : scheme(base) {
      read_weight_arguments(json["weights"], where + ".weights", scheme);
      read_activation_arguments(json.value("input_activations", Json()), where + ".input_activations", scheme);
      if (read_packing(json, where, false, packing) == kMxPacking) read_mx(where, scheme);
      for (const auto& target : form_parts::strings_of(json, "targets", where)) {
        if (target.starts_with("re:")) {
          patterns.add(configs::match_expression(target.substr(3)), where + ".targets");
        } else {
          names.insert(target);
        }
      }
    }
    /// 0: not at all, 1: by its class, 2: by a pattern, 3: by its name. The largest of all groups wins.
    int matches(const std::string& module) const {
      if (names.contains(module)) return 3;
      if (patterns.matches(module)) return 2;
      return names.contains("Linear") ? 1 : 0;
    }

    Scheme scheme;
    std::set<std::string> names;
    configs::NamePatterns patterns;
  };

  std::string where_;
  std::vector<Group> groups_;
};

/// Of one group the class is the target. Of two each module is named in its own: vLLM looks for the class of a fused
/// layer before it looks for the names of its parts, and would never find a second group of q_proj.
Json groups_of(const ConfigSpec& spec) {
  if (spec.weights_only.empty()) {
    Json targets = Json::array({"Linear"});
    // vLLM's class for it is not a Linear: a quantized lm_head must be named.
    if (std::ranges::any_of(spec.quantized, [](const std::string& n) { return n.ends_with("lm_head"); }))
      targets.push_back("re:.*lm_head");
    return {{"group_0", group_of(spec.scheme, std::move(targets))}};
  }
  const std::set<std::string> second(spec.weights_only.begin(), spec.weights_only.end());
  Json targets[2] = {Json::array(), Json::array()};
  for (const auto& module : spec.quantized)
    for (const auto& name : spec.names.names_on_load(module)) targets[second.contains(module) ? 1 : 0].push_back(name);
  Scheme weights_only = spec.scheme;
  weights_only.activations = ActivationScaling::none;
  Json groups = Json::object();
  for (int i = 0; i < 2; ++i)
    if (!targets[i].empty())
      groups["group_" + std::to_string(i)] = group_of(i == 0 ? spec.scheme : weights_only, std::move(targets[i]));
  return groups;
}

// What readers make of schemes, by the sources of the releases that names/readers.h tells.

/// vLLM: quantization/compressed_tensors/compressed_tensors.py; of static channel the products of kernels/linear.
std::string problem_of_vllm(const Scheme& s) {
  if (s.is_mx())
    return s.activations == ActivationScaling::none
               ? "vLLM casts the activations of MXFP8, which are in high precision here"
               : "";
  if (s.is_static() && s.weights == Granularity::channel)
    return "channel weights with static activations: vLLM has CUTLASS's products of them (CUDA) alone, its other "
           "kernels fail; " +
           io::option("tensor_or_dynamic", "one weight scale per tensor or dynamic activations") + " fits all";
  return form_parts::block_problem(s);
}

/// vLLM: compressed_tensors_moe.py, compressed_tensors_moe_w8a8_fp8.py.
std::string experts_problem_of_vllm(const Scheme& s) {
  if (s.activations == ActivationScaling::none && !s.is_mx())
    return "vLLM has no experts in fp8 with activations in high precision";
  const auto is = [&](Granularity w, ActivationScaling a) { return s.weights == w && s.activations == a; };
  if (s.has_blocks() || is(Granularity::tensor, ActivationScaling::static_tensor) ||
      is(Granularity::channel, ActivationScaling::dynamic_token))
    return problem_of_vllm(s);
  return io::message(
      "vLLM has experts with static tensor scales, with channel weights and dynamic token activations, or in blocks, "
      "found {} weights with {} activations",
      name_of(s.weights), name_of(s.activations));
}

/// transformers multiplies each expert's codes with its scales as they are, joins the products and has one tensor for
/// all (integrations/compressed_tensors.py).
std::string joining_problem(const WeightSpec& w) {
  const auto grid = scale_grid(w.scheme, w.rows, w.cols);
  const bool fits = (grid.rows == 1 || grid.rows == w.rows) && (grid.cols == 1 || grid.cols == w.cols);
  if (!fits || w.scheme.is_mx()) return "transformers can't join experts with scales per block";
  return w.scheme.is_static() ? "transformers has no place for the input scales of experts" : "";
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
      for (const auto& target : group["targets"])
        if (target.is_string()) entries.push_back(target.get<std::string>());
    }
    return entries;
  }

  std::string scheme_problem(const Scheme& s) const override {
    const std::string form = name();
    if (s.format != recipes::Format::E4M3) return form + " holds E4M3, found " + kernels::name_of(s.format);
    if (s.has_blocks() && s.is_static())
      return form + " holds block weights with dynamic or no activation scales, vLLM refuses static ones";
    if (s.activations == ActivationScaling::dynamic_group && !s.has_blocks())
      return io::message("{} holds activation scales per group for block weights only, found {} weights", form,
                         name_of(s.weights));
    if (s.is_mx() && s.activations != ActivationScaling::dynamic_group && s.activations != ActivationScaling::none)
      return io::message("{} holds mx weights with dynamic group or no activation scales, found {}", form,
                         name_of(s.activations));
    return "";
  }

  std::string weight_problem(const WeightSpec& w) const override {
    if (!w.scheme.has_blocks()) return "";
    if (w.scheme.is_mx()) return mx_problem(w.scheme, w.cols);
    const auto& [rows, cols] = w.scheme.block;
    if (w.scheme.activations == ActivationScaling::dynamic_group && w.cols % cols != 0)
      return io::message("{} inputs are no multiple of the group of {}, which transformers refuses", w.cols, cols);
    return form_parts::fused_rows_problem(w);
  }

  std::vector<std::vector<std::int64_t>> scale_shapes(const WeightSpec& w) const override {
    if (w.scheme.weights == Granularity::tensor) return {{1}, {}};
    const auto grid = scale_grid(w.scheme, w.rows, w.cols);
    return {{grid.rows, grid.cols}};
  }

  std::vector<io::SafetensorsWriter::Entry> entries(const WeightSpec& w, const ConfigSpec&) const override {
    return form_parts::plain_entries(w, scale_shapes(w)[0], {1});
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
    auto entries = CheckpointForm::kv_entries(kv, config);
    for (auto& entry : entries) entry.shape = shape;
    return entries;
  }

  /// Not MXFP8: vLLM casts activations to it, whatever the config says of them.
  bool holds_weights_only_beside(const ModelNames& names, const Scheme& scheme) const override {
    return names.known() && !scheme.is_mx();
  }
  std::string problem_of_reader(CheckpointReader reader, const StoredWeight& w, WeightPlace place) const override {
    if (reader == CheckpointReader::vllm)
      return place == WeightPlace::joined ? experts_problem_of_vllm(w.spec.scheme) : problem_of_vllm(w.spec.scheme);
    return place == WeightPlace::joined ? joining_problem(w.spec) : "";
  }

  Json config(const ConfigSpec& spec) const override {
    Json config = Json::object();
    config["quant_method"] = "compressed-tensors";
    config["format"] = packing(spec.scheme);
    config["quantization_status"] = "compressed";
    config["config_groups"] = groups_of(spec);
    for (const auto& group : config["config_groups"])
      if (group["format"] != config["format"]) config["format"] = kMixed;
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
                                    scheme.weights == Granularity::tensor && is_transposed(checkpoint, module));
      form_parts::check_scale(checkpoint, w, scale_shapes(w.spec), scheme.is_mx());
      if (const auto dtype = checkpoint.info(w.scale).dtype; scheme.is_mx() && io::size_of(dtype) != 1)
        io::fail_at(form_parts::place(checkpoint, w.scale), "expected the exponents of {} in U8, found {}", kMxPacking,
                    io::name_of(dtype));
      if (scheme.is_static()) form_parts::read_input_scale(checkpoint, w, module + ".input_scale");
      out.weights.push_back(std::move(w));
    }
    form_parts::read_kv(checkpoint, form_parts::kv_spellings(), "kv_scale", form_parts::promises_kv(config), out,
                        where + ": kv_cache_scheme");
    out.strays = form_parts::stray_scales(checkpoint, {".weight_scale", ".input_scale"});
    return out;
  }

  std::string assume_problem() const override { return ""; }

  Json assumed_config(const AssumedWeights& found) const override {
    const bool is_static = found.has_input_scales();
    Scheme scheme;
    scheme.activations = is_static ? ActivationScaling::static_tensor : ActivationScaling::dynamic_token;
    if (found.all([](const AssumedWeight& w) { return w.one && w.scale.size() <= 1; })) {
      scheme.weights = Granularity::tensor;
    } else if (found.all([](const AssumedWeight& w) { return w.scale == std::vector{w.rows, std::int64_t{1}}; })) {
      scheme.weights = Granularity::channel;
    } else {
      scheme.weights = Granularity::block;
      scheme.block = found.block();
      scheme.power_of_two = found.all([](const AssumedWeight& w) { return w.exponents; });
      if (!is_static) scheme.activations = ActivationScaling::dynamic_group;
    }
    return {{"quant_method", quant_method()},
            {"format", packing(scheme)},
            {"config_groups", {{"group_0", group_of(scheme, Json::array({"Linear"}))}}}};
  }

 private:
  /// One strategy for all caches.
  static bool per_head(const ConfigSpec& spec) {
    return std::ranges::any_of(spec.kv, [](const KvScales& kv) { return kv.k.size() > 1; });
  }
};

/// Only what INC's "vllm" has words for. Readers make no difference.
class IncVllm final : public CompressedTensors {
 public:
  const char* name() const override { return "inc-vllm"; }
  const char* help() const override { return "for vLLM on Gaudi"; }

  std::string scheme_problem(const Scheme& s) const override {
    const bool one = s.weights == Granularity::tensor && s.is_static();
    if (s.format == recipes::Format::E4M3 && !one)
      return std::string(name()) + " holds one static scale per tensor, found " + s.describe();
    return CompressedTensors::scheme_problem(s);
  }

  bool holds_weights_only_beside(const ModelNames&, const Scheme&) const override { return false; }

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
