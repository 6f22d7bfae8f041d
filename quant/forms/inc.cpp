// SPDX-License-Identifier: Apache-2.0
// The checkpoint form of Intel Neural Compressor (INC), format "huggingface" of its save() and load(). No torch here.
//
//   X.weight                  F8_E4M3 | F8_E5M2 [K, N]: transposed, [in, out]
//   X.scale_weight            [] | [N]   multiplies out of fp8    in quantize-dequantize mode: X.dequant_weights.scale
//   X.scale_input             []         multiplies out of fp8                                 X.quant_input.scale
//   X.quant_input.scale_inv   []         multiplies into fp8                                   X.quant_input.scale_inv
//   P.k_cache.quant_input.scale_inv, P.k_cache.dequant_output.scale, and v_cache       key-value caches, [] each
//   config.json               quantization_config {"mode": "LOAD", "fp8_config", "hp_dtype", "scale_method", lists,
//                                                  "world_size", ...}
//   quantization_config.json  the same
//
// Quantize-dequantize mode ("use_qdq") is the only one that INC runs on a CPU; per channel it also keeps zero points
// (0). INC's words are the other way round from ours: its "scale" is our scale_inv. Scales are stored in hp_dtype
// (bf16) where INC's rules made them, else in F32. A checkpoint of several ranks has X..._{rank}_{world} in place of
// the tensors that ranks share out (reform.h).

#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/forms/parts.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::quant {
namespace {

using io::DType, io::Json;

constexpr const char* kCacheScale = ".dequant_output.scale";
constexpr const char* kCacheScaleInv = ".quant_input.scale_inv";

/// INC's names of the three scales of a module.
struct Names {
  std::string weight, input, into;
};
Names names_of(const std::string& module, bool qdq) {
  return {module + (qdq ? ".dequant_weights.scale" : ".scale_weight"),
          module + (qdq ? ".quant_input.scale" : ".scale_input"), module + ".quant_input.scale_inv"};
}

/// Scales that INC's rules made in hp_dtype are stored in it; all others in F32. Per channel, INC computes in the
/// weight's own type, which may be wider than hp_dtype.
DType scale_dtype(const Scheme& scheme) {
  if (scheme.convention != Convention::inc || scheme.weights != Granularity::tensor) return DType::F32;
  return scheme.hp == recipes::FloatType::BF16  ? DType::BF16
         : scheme.hp == recipes::FloatType::F16 ? DType::F16
                                                : DType::F32;
}

/// Values in the file's dtype. They are representable there (scale_dtype), so nothing is rounded but F16's and BF16's
/// excess of zeros.
void write_values(TensorSink& sink, const std::string& tensor, const std::vector<float>& values, DType dtype) {
  if (dtype == DType::F32) return form_parts::write_f32(sink, tensor, values);
  std::vector<std::uint16_t> halves;
  for (const float v : values)
    halves.push_back(dtype == DType::BF16 ? kernels::f32_to_bf16(v) : kernels::f32_to_f16(v));
  sink.write(tensor, halves.data(), 0, halves.size() * sizeof(std::uint16_t));
}

/// scale_method: INC's spelling, or anything else: then the spelling that has the same granularity.
std::string method_for(const Scheme& scheme, const std::string& scale_method) {
  std::string method = scale_method;
  if (recipes::find_scale_method(scale_method) == nullptr) {
    const bool channel = scheme.weights == Granularity::channel;
    if (scheme.is_static()) {
      method = channel ? "ACT_MAXABS_POW2_WEIGHTS_PCS_MAXABS_POW2" : "MAXABS_ARBITRARY";
    } else {
      method = channel ? "MAXABS_PCS_POW2" : "ACT_MAXABS_PCS_POW2_WEIGHT_MAXABS_PTS_POW2_HW";
    }
  }
  for (char& c : method) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return method;
}

/// JSON true, and what Python's str() makes of it.
bool truth(const Json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end()) return false;
  if (it->is_boolean()) return it->get<bool>();
  std::string text = it->is_string() ? it->get<std::string>() : "";
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text == "true" || text == "1";
}

/// The scheme that the config gives every weight, its format apart.
Scheme read_scheme(const io::Checkpoint& checkpoint, const Json& config, const Json& sidecar,
                   const std::string& where) {
  Scheme scheme = form_parts::base_scheme(checkpoint, sidecar);
  if (!form_parts::is_told(sidecar)) {  // INC's own file: its rules, in its hp_dtype
    scheme.convention = Convention::inc;
    const std::string hp = form_parts::string_of(config, "hp_dtype", where, "bf16");
    scheme.hp = hp == "fp32" || hp == "FP32"   ? recipes::FloatType::F32
                : hp == "fp16" || hp == "FP16" ? recipes::FloatType::F16
                                               : recipes::FloatType::BF16;
  }
  scheme.activations =
      truth(config, "dynamic_quantization") ? ActivationScaling::dynamic_token : ActivationScaling::static_tensor;
  return scheme;
}

class Inc final : public CheckpointForm {
 public:
  const char* name() const override { return "inc"; }
  const char* help() const override { return "for neural-compressor"; }
  const char* quant_method() const override { return ""; }
  bool is_read_by(CheckpointReader reader) const override { return reader == CheckpointReader::neural_compressor; }
  bool holds_e5m2() const override { return true; }
  bool stores_transposed() const override { return true; }
  bool rounds_inc_scales(const Scheme& s) const override { return s.weights == Granularity::tensor; }

  std::vector<const char*> ignore_keys() const override { return {"/blocklist/names"}; }
  /// re.search
  NameTest ignored_by(const std::string& entry) const override {
    return [regex = configs::PythonRegex(entry, "blocklist")](const std::string& name) { return regex.search(name); };
  }
  std::string exact_entry(const std::string& name) const override {
    return "^" + configs::escaped_for_regex(name) + "$";
  }
  bool is_renamed_on_load() const override { return false; }

  std::string scheme_problem(const Scheme& s) const override {
    if (s.activations == ActivationScaling::none)
      return "inc has no form for quantized weights with activations in high precision";
    if (s.has_blocks()) return "inc holds per tensor or per channel weights, found block";
    return s.activations == ActivationScaling::dynamic_group ? "inc has no form for activation scales per group" : "";
  }

  std::string weight_problem(const WeightSpec&) const override { return ""; }

  std::vector<io::SafetensorsWriter::Entry> entries(const WeightSpec& w, const ConfigSpec& config) const override {
    const bool channel = w.scheme.weights == Granularity::channel, is_static = w.scheme.is_static();
    const Names names = names_of(w.module, config.qdq);
    const DType dtype = scale_dtype(w.scheme);
    std::vector<io::SafetensorsWriter::Entry> list;
    list.push_back({w.module + ".weight",
                    w.scheme.format == recipes::Format::E4M3 ? DType::F8_E4M3 : DType::F8_E5M2,
                    {w.cols, w.rows}});
    list.push_back({names.weight, dtype, channel ? std::vector<std::int64_t>{w.rows} : std::vector<std::int64_t>{}});
    if (is_static) {
      list.push_back({names.input, dtype, {}});
      list.push_back({names.into, dtype, {}});
    }
    if (config.qdq && channel) {
      list.push_back({w.module + ".dequant_weights.zero_point", DType::F32, {}});
      if (is_static) list.push_back({w.module + ".quant_input.zero_point", DType::F32, {}});
    }
    return list;
  }

  void write_codes(TensorSink& sink, const WeightSpec& w, const std::uint8_t* codes, std::int64_t first_row,
                   std::int64_t rows) const override {
    // Column c of these rows is a run of `rows` codes at c * N + first_row.
    constexpr std::int64_t kColumns = 64;  // so many at a time: one cache line of every row
    std::vector<std::uint8_t> runs(static_cast<std::size_t>(rows * std::min(kColumns, w.cols)));
    const std::string tensor = w.module + ".weight";
    for (std::int64_t first = 0; first < w.cols; first += kColumns) {
      const std::int64_t columns = std::min(kColumns, w.cols - first);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c)
          runs[static_cast<std::size_t>(c * rows + r)] = codes[r * w.cols + first + c];
      if (rows == w.rows) {  // the columns follow one another
        sink.write(tensor, runs.data(), static_cast<std::uint64_t>(first * w.rows),
                   static_cast<std::uint64_t>(columns * rows));
        continue;
      }
      for (std::int64_t c = 0; c < columns; ++c)
        sink.write(tensor, runs.data() + c * rows, static_cast<std::uint64_t>((first + c) * w.rows + first_row),
                   static_cast<std::uint64_t>(rows));
    }
  }

  void write_scales(TensorSink& sink, const WeightSpec& w, const ConfigSpec& config,
                    const std::vector<float>& scale_inv) const override {
    const Names names = names_of(w.module, config.qdq);
    const DType dtype = scale_dtype(w.scheme);
    const bool channel = w.scheme.weights == Granularity::channel, is_static = w.scheme.is_static();
    write_values(sink, names.weight, scale_inv, dtype);
    if (is_static) {
      write_values(sink, names.input, {w.scheme.input_scale_inv}, dtype);
      write_values(sink, names.into, {scale_for(w.scheme, w.scheme.input_scale_inv, w.module)}, dtype);
    }
    if (!config.qdq || !channel) return;
    form_parts::write_f32(sink, w.module + ".dequant_weights.zero_point", {0.0f});
    if (is_static) form_parts::write_f32(sink, w.module + ".quant_input.zero_point", {0.0f});
  }

  std::string kv_problem(const KvScales& kv) const override {
    return kv.q.empty() ? form_parts::one_each(kv, "inc") : "inc holds scales of keys and values, found one of queries";
  }

  std::vector<io::SafetensorsWriter::Entry> kv_entries(const KvScales& kv, const ConfigSpec& config) const override {
    const DType dtype = scale_dtype(config.scheme);
    std::vector<io::SafetensorsWriter::Entry> list;
    for (const char* cache : {".k_cache", ".v_cache"}) {
      list.push_back({kv.attention + cache + kCacheScaleInv, dtype, {}});
      list.push_back({kv.attention + cache + kCacheScale, dtype, {}});
    }
    return list;
  }

  void write_kv(TensorSink& sink, const KvScales& kv, const ConfigSpec& config) const override {
    const DType dtype = scale_dtype(config.scheme);
    for (const auto& [cache, values] : {std::pair{".k_cache", &kv.k}, std::pair{".v_cache", &kv.v}}) {
      const float scale_inv = values->at(0);
      write_values(sink, kv.attention + cache + kCacheScaleInv,
                   {scale_for(config.scheme, scale_inv, kv.attention + cache)}, dtype);
      write_values(sink, kv.attention + cache + kCacheScale, {scale_inv}, dtype);
    }
  }

  Json config(const ConfigSpec& spec) const override {
    const Scheme& scheme = spec.scheme;
    const recipes::FloatType hp = scheme.convention == Convention::inc ? scheme.hp : recipes::FloatType::BF16;
    Json config = Json::object();
    config["mode"] = "LOAD";
    config["fp8_config"] = recipes::name_of(scheme.format);
    config["hp_dtype"] = hp == recipes::FloatType::BF16 ? "bf16" : hp == recipes::FloatType::F16 ? "fp16" : "fp32";
    config["observer"] = "maxabs";
    config["scale_method"] = method_for(scheme, spec.scale_method);
    config["scale_params"] = Json::object();
    config["scale_format"] = "const";
    config["dynamic_quantization"] = !scheme.is_static();
    config["use_qdq"] = spec.qdq ? "True" : "False";
    config["fake_quant"] = "False";
    config["measure_exclude"] = "OUTPUT";
    config["allowlist"] = Json{{"types", {"Linear"}}, {"names", Json::array()}};
    config["blocklist"] = Json{{"types", Json::array()}, {"names", ignore_entries(*this, spec)}};
    config["dump_stats_path"] = "./hqt_output/measure";  // INC wants one; it is not read in mode LOAD
    config["mod_dict"] = Json::object();
    config["world_size"] = -1;
    return config;
  }

  std::vector<std::pair<std::string, Json>> extra_files(const Json& config) const override {
    return {{"quantization_config.json", config}};
  }

  bool recognizes(const Json& config) const override {
    const Json method = config.is_object() ? config.value("quant_method", Json("inc")) : Json();
    return method == "inc" && config.contains("fp8_config") && config.contains("scale_method");
  }

  StoredCheckpoint read(const io::Checkpoint& checkpoint, const Json& config, const Json& sidecar) const override {
    const std::string where = form_parts::config_place(checkpoint);
    const auto world = config.find("world_size");
    if (world != config.end() && world->is_number_integer() && world->get<std::int64_t>() > 1)
      io::fail_at(where, "key 'world_size': found {}, this checkpoint is of several ranks; unify it first ({})",
                  world->get<std::int64_t>(), io::option("unify", "quant::inc::unify_checkpoint"));
    const Scheme scheme = read_scheme(checkpoint, config, sidecar, where);
    StoredCheckpoint out;
    const bool e5m2_bytes =
        config.value("fp8_config", Json()) == "E5M2";  // bytes that are taken for codes are of the config's format
    for (const auto& module : form_parts::fp8_modules(checkpoint, "inc", sidecar, holds_e5m2())) {
      out.weights.push_back(read_weight(checkpoint, module, scheme));
      if (e5m2_bytes && io::size_of(checkpoint.info(module + ".weight").dtype) == 1 &&
          checkpoint.info(module + ".weight").dtype != DType::F8_E4M3)
        out.weights.back().spec.scheme.format = recipes::Format::E5M2;
    }
    form_parts::read_kv(checkpoint, {{std::string("k_cache") + kCacheScale, std::string("v_cache") + kCacheScale}}, "",
                        /*promised=*/true, out);
    out.strays = form_parts::stray_scales(checkpoint, {});
    for (const auto& kv : out.kv) {
      for (const char* cache : {".k_cache", ".v_cache"})
        if (const std::string into = kv.attention + cache + kCacheScaleInv; checkpoint.contains(into))
          out.kv_tensors.push_back(into);
    }
    return out;
  }

  std::string assume_problem() const override { return ""; }
  std::vector<const char*> scale_endings() const override { return {".scale_weight", ".dequant_weights.scale"}; }

  Json assumed_config(const AssumedWeights& found) const override {
    const auto first = found.checkpoint.info(found.weights.front().module + ".weight").dtype;
    return {{"mode", "LOAD"},
            {"fp8_config", first == DType::F8_E5M2 ? "E5M2" : "E4M3"},
            {"scale_method", "maxabs_hw"},
            {"dynamic_quantization", !found.has_input_scales()}};
  }

 private:
  static StoredWeight read_weight(const io::Checkpoint& checkpoint, const std::string& module, const Scheme& scheme) {
    const bool qdq = !checkpoint.contains(module + ".scale_weight");
    const Names names = names_of(module, qdq);
    StoredWeight w = form_parts::stored_weight(checkpoint, module, scheme, names.weight, true);
    form_parts::check_scale(checkpoint, w, {{}, {1}, {w.spec.rows}});
    const auto& shape = checkpoint.info(names.weight).shape;
    const bool channel = !shape.empty() && shape[0] == w.spec.rows;
    w.spec.scheme.weights = channel ? Granularity::channel : Granularity::tensor;
    if (scheme.is_static()) form_parts::read_input_scale(checkpoint, w, names.input);
    for (const char* end : {".quant_input.scale_inv", ".quant_input.zero_point", ".dequant_weights.zero_point"})
      if (checkpoint.contains(module + end)) w.tensors.push_back(module + end);
    return w;
  }
};

}  // namespace

const CheckpointForm& inc_form() {
  static const Inc form;
  return form;
}

}  // namespace fp8::quant
