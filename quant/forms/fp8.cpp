// SPDX-License-Identifier: Apache-2.0
// quant_method "fp8": fine-grained (DeepSeek, transformers, vLLM) with a scale per block, and vLLM's plain one with a
// scale per tensor. No torch here.
//
//              block (weight_block_size)                         tensor, vLLM          tensor, transformers (read only)
//   X.weight   F8_E4M3 [N, K]                                    the same              the same
//   scale      X.weight_scale_inv  F32 | F8_E8M0 [N/b0, K/b1]    X.weight_scale []     X.weight_scale_inv [] [1] [1, 1]
//   input      dynamic per group of b1                           X.input_scale []      X.activation_scale []
//   kept       modules_to_not_convert                            ignored_layers        modules_to_not_convert
//   caches     attention.k_scale, v_scale  F32 []                the same                        with kv_cache_scheme
//
// scale_fmt "ue8m0": block scales are powers of two. Of the grid's ceil(N / b0) rows transformers derives a block of N
// / rows: with N or K that is no multiple of the block it reads wrong weights without an error, so such modules stay in
// high precision.

#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/forms/parts.h"

namespace fp8::quant {
namespace {

using form_parts::in_message;
using io::DType, io::Json;

/// The scheme that the config gives every weight.
Scheme read_scheme(const Json& config, const std::string& where, const Scheme& base) {
  Scheme scheme = base;
  /// True if the key's value is `other`, false if it is `usual` or absent.
  const auto is_other = [&](const char* key, const char* usual, const char* other, const char* allowed) {
    const std::string found = form_parts::string_of(config, key, where, usual);
    if (found != usual && found != other)
      io::fail_at(where, "key '{}': found {}, {}", key, io::in_quotes(found), allowed);
    return found == other;
  };
  const bool is_static = is_other("activation_scheme", "dynamic", "static", "allowed: \"dynamic\", \"static\"");
  is_other("fmt", "e4m3", "float8_e4m3fn", "built is: \"e4m3\"");
  const bool ue8m0 = is_other("scale_fmt", "float", "ue8m0", "allowed: \"float\", \"ue8m0\"");
  const bool mx = config.value("quant_method", Json()) == "mxfp8";
  const Json block = config.value("weight_block_size", mx ? Json{1, 32} : Json());
  if (block.is_null()) {
    scheme.weights = Granularity::tensor;
    scheme.activations = is_static ? ActivationScaling::static_tensor : ActivationScaling::dynamic_token;
    return scheme;
  }
  const auto size = [&](std::size_t i) { return form_parts::block_side(block[i]); };
  if (!block.is_array() || block.size() != 2 || size(0) == 0 || size(1) == 0)
    io::fail_at(where, "key 'weight_block_size': found {}, allowed: [rows, columns] or null", in_message(block));
  if (is_static)
    io::fail_at(where, "key 'activation_scheme': found \"static\", with 'weight_block_size' allowed: \"dynamic\"");
  scheme.weights = Granularity::block;
  scheme.block = {size(0), size(1)};
  scheme.activations = ActivationScaling::dynamic_group;
  scheme.power_of_two = mx || ue8m0;
  return scheme;
}

/// A name whose only special characters are dots.
bool is_plain(const std::string& entry) { return entry.find_first_of("\\+*?()[]{}|^$") == std::string::npos; }

/// re.match of a plain entry, in which a dot stands for any character, up to a dot or the end of the name.
bool begins_with_entry(const std::string& name, const std::string& entry) {
  if (entry.empty() || name.size() < entry.size()) return false;
  if (name.size() > entry.size() && name[entry.size()] != '.' && entry.back() != '.') return false;
  return std::equal(entry.begin(), entry.end(), name.begin(),
                    [](char wanted, char c) { return wanted == '.' || wanted == c; });
}

class Fp8 final : public CheckpointForm {
 public:
  const char* name() const override { return "fp8"; }
  const char* help() const override { return "DeepSeek's with blocks and vLLM's with one scale per tensor"; }
  const char* quant_method() const override { return "fp8"; }
  /// "mxfp8" is the same with blocks of 1x32 and exponents, in another spelling.
  bool recognizes(const Json& config) const override {
    return CheckpointForm::recognizes(config) ||
           (config.is_object() && config.value("quant_method", Json()) == "mxfp8");
  }
  bool is_read_by(CheckpointReader reader) const override { return reader != CheckpointReader::neural_compressor; }

  /// transformers asks for weight_scale_inv (integrations/finegrained_fp8.py), vLLM where there are blocks
  /// (quantization/fp8.py).
  std::string problem_of_reader(CheckpointReader reader, const StoredWeight& w, WeightPlace) const override {
    const bool blocks = w.spec.scheme.has_blocks();
    const bool inverse = blocks || w.scale.ends_with("_inv");
    if (reader == CheckpointReader::transformers)
      return inverse ? weight_problem(w.spec)
                     : "transformers reads weight_scale_inv in this form, and takes codes without it for values";
    if (blocks) return form_parts::block_problem(w.spec.scheme);
    return inverse ? "vLLM reads weight_scale beside one scale per tensor, found weight_scale_inv" : "";
  }

  std::vector<const char*> ignore_keys() const override { return {"/modules_to_not_convert", "/ignored_layers"}; }

  /// transformers: re.match up to a dot or the end, or the entry ends the name. vLLM: layers of experts.
  NameTest ignored_by(const std::string& entry) const override {
    std::optional<configs::PythonRegex> regex;
    if (!is_plain(entry))
      regex.emplace(configs::match_expression(entry) + "(?:(?<=\\.)|(?=\\.|\\Z))", "modules_to_not_convert");
    return [entry, regex](const std::string& name) {
      return (regex.has_value() ? regex->search(name) : begins_with_entry(name, entry)) || name.ends_with(entry) ||
             names_layer_of_experts(entry, name);
    };
  }

  std::string scheme_problem(const Scheme& s) const override {
    if (s.format != recipes::Format::E4M3) return std::string("fp8 holds E4M3, found ") + kernels::name_of(s.format);
    if (s.weights == Granularity::channel) return "fp8 holds per tensor or block weights, found channel";
    if (s.has_blocks())
      return s.activations == ActivationScaling::dynamic_group
                 ? ""
                 : std::string("fp8 holds block weights with dynamic group activations, found ") +
                       name_of(s.activations);
    if (s.is_static() || s.activations == ActivationScaling::dynamic_token) return "";
    return std::string("fp8 holds tensor weights with static tensor or dynamic token activations, found ") +
           name_of(s.activations);
  }

  std::string weight_problem(const WeightSpec& w) const override {
    if (!w.scheme.has_blocks()) return "";
    if (w.rows % w.scheme.block.rows == 0 && w.cols % w.scheme.block.cols == 0) return "";
    return io::message("its shape {} is no multiple of the block {}, which transformers would misread in this form",
                       io::shape_text({w.rows, w.cols}), w.scheme.block.text());
  }

  std::vector<io::SafetensorsWriter::Entry> entries(const WeightSpec& w, const ConfigSpec&) const override {
    if (!w.scheme.has_blocks()) return form_parts::plain_entries(w, {});
    const auto grid = scale_grid(w.scheme, w.rows, w.cols);
    return {
        {w.module + ".weight", DType::F8_E4M3, {w.rows, w.cols}},
        {w.module + ".weight_scale_inv", w.scheme.power_of_two ? DType::F8_E8M0 : DType::F32, {grid.rows, grid.cols}}};
  }

  void write_scales(TensorSink& sink, const WeightSpec& w, const ConfigSpec& config,
                    const std::vector<float>& scale_inv) const override {
    if (!w.scheme.has_blocks()) return CheckpointForm::write_scales(sink, w, config, scale_inv);
    (w.scheme.power_of_two ? form_parts::write_e8m0 : form_parts::write_f32)(sink, w.module + ".weight_scale_inv",
                                                                             scale_inv);
  }

  std::string kv_problem(const KvScales& kv) const override { return form_parts::one_each(kv, "fp8"); }

  Json config(const ConfigSpec& spec) const override {
    Json config = Json::object();
    config["quant_method"] = "fp8";
    config["activation_scheme"] = spec.scheme.is_static() ? "static" : "dynamic";
    // Not this form's word, but the field's: readers that don't know it pass over it.
    if (!spec.kv.empty())
      config["kv_cache_scheme"] = {
          {"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"symmetric", true}, {"dynamic", false}};
    if (!spec.scheme.has_blocks()) {
      config["ignored_layers"] = ignore_entries(*this, spec);
      return config;
    }
    config["fmt"] = "e4m3";
    if (spec.scheme.power_of_two) config["scale_fmt"] = "ue8m0";
    config["weight_block_size"] = {spec.scheme.block.rows, spec.scheme.block.cols};
    config["modules_to_not_convert"] = ignore_entries(*this, spec);
    return config;
  }

  StoredCheckpoint read(const io::Checkpoint& checkpoint, const Json& config, const Json& sidecar) const override {
    const std::string where = form_parts::config_place(checkpoint);
    form_parts::strings_of(config, "modules_to_not_convert", where);
    form_parts::strings_of(config, "ignored_layers", where);
    const Scheme scheme = read_scheme(config, where, form_parts::base_scheme(checkpoint, sidecar));
    StoredCheckpoint out;
    for (const auto& module : form_parts::fp8_modules(checkpoint, "fp8", sidecar))
      out.weights.push_back(read_weight(checkpoint, module, scheme));
    form_parts::read_kv(checkpoint, form_parts::kv_spellings(), "kv_scale", form_parts::promises_kv(config), out,
                        where + ": kv_cache_scheme");
    out.strays = form_parts::stray_scales(checkpoint,
                                          {".weight_scale_inv", ".weight_scale", ".input_scale", ".activation_scale"});
    warn_ragged(out);
    return out;
  }

  std::string assume_problem() const override { return ""; }
  std::vector<const char*> scale_endings() const override { return {".weight_scale_inv", ".weight_scale"}; }

  Json assumed_config(const AssumedWeights& found) const override {
    Json config = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", nullptr}};
    if (!found.all([](const AssumedWeight& w) { return w.one; })) {
      const Block block = found.block();
      config["weight_block_size"] = {block.rows, block.cols};
    } else if (found.has_input_scales()) {
      config["activation_scheme"] = "static";
    }
    return config;
  }

 private:
  /// transformers takes a block to be N / rows of the scale by K / columns (this file's head).
  void warn_ragged(StoredCheckpoint& out) const {
    std::size_t count = 0;
    const WeightSpec* first = nullptr;
    for (const auto& w : out.weights) {
      if (weight_problem(w.spec).empty()) continue;
      if (count++ == 0) first = &w.spec;
    }
    if (count == 0) return;
    out.warnings.push_back(io::message(
        "{} weights are no multiple of their blocks, the first is {} {} in blocks of {}: transformers would misread "
        "them without an error",
        count, io::printable(first->module), io::shape_text({first->rows, first->cols}), first->scheme.block.text()));
  }

  static StoredWeight read_weight(const io::Checkpoint& checkpoint, const std::string& module, const Scheme& scheme) {
    if (scheme.has_blocks()) {
      StoredWeight w = form_parts::stored_weight(checkpoint, module, scheme, module + ".weight_scale_inv");
      const auto grid = scale_grid(scheme, w.spec.rows, w.spec.cols);
      form_parts::check_scale(checkpoint, w, {{grid.rows, grid.cols}}, true);
      if (io::size_of(checkpoint.info(w.scale).dtype) == 1) w.spec.scheme.power_of_two = true;
      return w;
    }
    const bool transformers = checkpoint.contains(module + ".weight_scale_inv");
    StoredWeight w = form_parts::stored_weight(checkpoint, module, scheme,
                                               module + (transformers ? ".weight_scale_inv" : ".weight_scale"));
    form_parts::check_scale(checkpoint, w, {{}, {1}, {1, 1}}, true);
    if (scheme.is_static()) form_parts::read_input_scale(checkpoint, w, module + ".input_scale");
    return w;
  }
};

}  // namespace

const CheckpointForm& fp8_form() {
  static const Fp8 form;
  return form;
}

}  // namespace fp8::quant
