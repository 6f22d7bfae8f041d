// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/parts.h"

#include "fp8/quant/forms/folder.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::quant::form_parts {
namespace {

using io::DType, io::Json;

constexpr std::uint64_t kMaxScaleBytes = std::uint64_t{1} << 28;

/// Endings that stand in place of ".weight".
constexpr const char* kScaleEndings[] = {
    ".weight_scale",  ".weight_scale_inv", ".scale_weight",  ".dequant_weights.scale",
    ".scale",         ".scales",           ".SCB",           ".weight.absmax",
    ".weight_scales", "._weight_scale",    ".weight._scale", ".weight_scale_2"};

/// Suffixes of the scale of an upright weight, the field's usual one first. All scales multiply on the way out of fp8.
constexpr const char* kUprightScales[] = {".weight_scale", ".weight_scale_inv", ".scale", ".scale_weight"};

constexpr const char* kCacheScales[] = {
    "k_scale", "v_scale", "kv_scale", "k_proj.output_scale", "v_proj.output_scale", "_cache.dequant_output.scale"};
constexpr const char* kAttentionScales[] = {"q_scale", "prob_scale", "q_proj.output_scale"};

/// True if `name` ends in `end` as whole parts.
bool ends_in(const std::string& name, std::string_view end) {
  return name.ends_with(end) &&
         (end[0] == '_' || (name.size() > end.size() && name[name.size() - end.size() - 1] == '.'));
}

/// vLLM's own module of attention below the one that checkpoints name, and its fused projection: "X.self_attn.attn",
/// "X.self_attn.qkv_proj" are X.self_attn.
std::string attention_of(std::string module) {
  const auto cut = [&](std::string_view end) {
    if (module.ends_with(end)) module.resize(module.size() - end.size());
  };
  cut(".qkv_proj");
  if (module.ends_with("attn.attn") || module.ends_with("attention.attn")) cut(".attn");
  return module;
}

bool is_ocp(DType dtype) { return dtype == DType::F8_E4M3 || dtype == DType::F8_E5M2; }

float value_at(const std::uint8_t* bytes, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::F32: return kernels::load_element(bytes, kernels::FloatType::F32, i);
    case DType::BF16: return kernels::load_element(bytes, kernels::FloatType::BF16, i);
    case DType::F16: return kernels::load_element(bytes, kernels::FloatType::F16, i);
    default: return kernels::e8m0_value(bytes[i]);
  }
}

/// Exponents stand in U8 too, from tools whose torch had no type for them.
bool is_scale_dtype(DType dtype, bool e8m0, bool bytes = false) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16 || (e8m0 && dtype == DType::F8_E8M0) ||
         (bytes && dtype == DType::U8);
}

std::string number(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

/// The per-tensor or per-head values of a cache's scale.
std::vector<float> cache_scale(const io::Checkpoint& checkpoint, const std::string& tensor) {
  const auto& shape = checkpoint.info(tensor).shape;
  const bool heads = shape.size() == 3 && shape[1] == 1 && shape[2] == 1;
  if (shape.size() > 1 && !heads && checkpoint.info(tensor).numel() != 1)
    io::fail_at(place(checkpoint, tensor), "expected shape [], [1], [H] or [H, 1, 1], found {}", io::shape_text(shape));
  auto values = read_scales(checkpoint, tensor);
  if (values.empty()) io::fail_at(place(checkpoint, tensor), "expected at least one value, found none");
  return values;
}

/// What would be in the file, where transformers wrote the folder.
Json sidecar_in_metadata(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
    const auto metadata = io::SafetensorsFile(entry.path()).metadata();
    const auto it = metadata.find(kSidecarName);
    if (it == metadata.end()) continue;
    Json sidecar = io::parse_json(it->second, entry.path().string() + ": metadata " + kSidecarName);
    if (!sidecar.is_object()) io::fail_at(entry.path().string(), "expected an object, found {}", sidecar.type_name());
    sidecar.erase(kBytesAreCodes);
    return sidecar;
  }
  return nullptr;
}

}  // namespace

std::string in_message(const Json& value) { return io::printable(io::python_text(value), 60); }

std::string string_of(const Json& object, const char* key, const std::string& where, const std::string& fallback) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return fallback;
  if (!it->is_string()) io::fail_at(where, "key '{}': expected a string, found {}", key, in_message(*it));
  return it->get<std::string>();
}

std::vector<std::string> strings_of(const Json& object, const char* key, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return {};
  const bool names = it->is_array() && std::ranges::all_of(*it, [](const Json& name) { return name.is_string(); });
  if (!names) io::fail_at(where, "key '{}': expected a list of module names, found {}", key, in_message(*it));
  return it->get<std::vector<std::string>>();
}

std::int64_t block_side(const Json& value) {
  const auto n = value.is_number_integer() ? value.get<std::int64_t>() : 0;
  return n >= 1 && n <= kMaxBlock ? n : 0;
}

std::string config_place(const io::Checkpoint& checkpoint) {
  return (checkpoint.folder() / io::kConfigFile).string() + ": quantization_config";
}
std::string place(const io::Checkpoint& checkpoint, const std::string& tensor) {
  return checkpoint.folder().string() + ": " + io::printable(tensor);
}

Json read_sidecar_file(const io::Checkpoint& checkpoint) {
  const std::filesystem::path path = checkpoint.folder() / kSidecarName;
  if (!std::filesystem::exists(path)) return sidecar_in_metadata(checkpoint.folder());
  Json sidecar = io::read_json(io::source_file(checkpoint.folder(), kSidecarName));
  if (!sidecar.is_object()) io::fail_at(path.string(), "expected an object, found {}", sidecar.type_name());
  sidecar.erase(kBytesAreCodes);
  return sidecar;
}

bool is_told(const Json& sidecar) {
  return !sidecar.is_null() && !(sidecar.is_object() && sidecar.size() == 1 && sidecar.contains(kBytesAreCodes));
}

std::vector<std::string> scales_beside(const io::Checkpoint& checkpoint, const std::string& weight) {
  std::vector<std::string> found;
  const auto look = [&](const std::string& name) {
    if (checkpoint.contains(name)) found.push_back(name);
  };
  for (const std::string own : {".weight", ".weight_packed", ".qweight"}) {
    if (!weight.ends_with(own)) continue;
    for (const char* end : kScaleEndings) look(weight.substr(0, weight.size() - own.size()) + end);
    return found;
  }
  if (weight.ends_with("_blocks")) look(weight.substr(0, weight.size() - 7) + "_scales");
  for (const char* end : {"_scale", "_scale_inv"}) look(weight + end);
  return found;
}

bool is_byte_weight(const io::Checkpoint& checkpoint, const io::TensorInfo& info) {
  return (info.dtype == DType::U8 || info.dtype == DType::I8) && !scales_beside(checkpoint, info.name).empty();
}

std::string assume_option(const std::string& form) {
  return io::option("assume_form", "option assume = " + form, form);
}

bool is_packed_weight(const io::Checkpoint& checkpoint, const io::TensorInfo& info) {
  const bool whole =
      info.dtype == DType::I16 || info.dtype == DType::U16 || info.dtype == DType::I32 || info.dtype == DType::U32;
  return whole && !scales_beside(checkpoint, info.name).empty();
}

Scheme base_scheme(const io::Checkpoint& checkpoint, const Json& sidecar) {
  return !is_told(sidecar) ? Scheme{} : read_sidecar(sidecar, (checkpoint.folder() / kSidecarName).string());
}

std::vector<std::string> fp8_modules(const io::Checkpoint& checkpoint, const char* form, const Json& sidecar,
                                     bool e5m2_allowed, const std::vector<std::string>& packed) {
  const bool bytes_are_codes = sidecar.is_object() && sidecar.value(kBytesAreCodes, false);
  std::vector<std::string> modules;
  for (const auto& tensor : checkpoint.names()) {
    const auto& info = checkpoint.info(tensor);
    if (info.dtype == DType::F8_E4M3FNUZ || info.dtype == DType::F8_E5M2FNUZ)
      io::fail_at(place(checkpoint, tensor),
                  "found dtype {}, whose largest values have no code in the types that are built: F8_E4M3, F8_E5M2",
                  io::name_of(info.dtype));
    const bool bytes = is_byte_weight(checkpoint, info) && std::ranges::find(packed, tensor) == packed.end();
    if (bytes && !bytes_are_codes)
      io::fail_at(place(checkpoint, tensor),
                  "found dtype {} with scales {}: fp8 codes or whole numbers, the file does not tell; {} takes them "
                  "for E4M3 codes",
                  io::name_of(info.dtype), io::printable(scales_beside(checkpoint, tensor).front()),
                  io::option("convert_assume", "convert_checkpoint() with assume = " + std::string(form), form));
    if (is_packed_weight(checkpoint, info))
      io::fail_at(place(checkpoint, tensor), "found dtype {} with scales {}: packed whole numbers, built is: fp8",
                  io::name_of(info.dtype), io::printable(scales_beside(checkpoint, tensor).front()));
    if ((!is_ocp(info.dtype) && !bytes) || is_fp8_mark(info)) continue;
    if (!tensor.ends_with(".weight"))
      io::fail_at(place(checkpoint, tensor), "found {}{}", io::name_of(info.dtype),
                  info.shape.size() == 3 ? " in stacked experts, expected one tensor MODULE.weight per expert"
                                         : ", expected fp8 only in MODULE.weight");
    if (info.dtype == DType::F8_E5M2 && !e5m2_allowed)
      io::fail_at(place(checkpoint, tensor), "found dtype F8_E5M2, {} holds F8_E4M3", form);
    if (info.shape.size() != 2)
      io::fail_at(place(checkpoint, tensor), "found shape {}{}", io::shape_text(info.shape),
                  info.shape.size() == 3 ? " (stacked experts), expected one tensor [out, in] per expert"
                                         : ", expected a weight of two dimensions");
    modules.push_back(tensor.substr(0, tensor.size() - 7));
  }
  if (modules.empty())
    io::fail_at(checkpoint.folder().string(), "expected fp8 weights as config.json says, found none");
  return modules;
}

bool is_fp8_mark(const io::TensorInfo& info) {
  return (info.name == "scaled_fp8" || info.name.ends_with(".scaled_fp8")) && info.shape.size() == 1 &&
         info.numel() <= 2;
}

bool is_cache_scale(const std::string& tensor) {
  return std::ranges::any_of(kCacheScales, [&](const char* end) { return ends_in(tensor, end); });
}

std::vector<std::string> stray_scales(const io::Checkpoint& checkpoint, std::initializer_list<const char*> endings) {
  std::vector<std::string> strays;
  for (const auto& tensor : checkpoint.names()) {
    if (is_fp8_mark(checkpoint.info(tensor)) || tensor.ends_with(".comfy_quant")) strays.push_back(tensor);
    for (const std::string end : endings) {
      if (!tensor.ends_with(end)) continue;
      const std::string weight = tensor.substr(0, tensor.size() - end.size()) + ".weight";
      if (!checkpoint.contains(weight)) continue;
      const DType dtype = checkpoint.info(weight).dtype;
      if (is_float(dtype) || dtype == DType::F64) strays.push_back(tensor);
    }
  }
  return strays;
}

std::string upright_scale(const io::Checkpoint& checkpoint, const std::string& module) {
  for (const char* end : kUprightScales)
    if (checkpoint.contains(module + end)) return module + end;
  return "";
}

StoredWeight stored_weight(const io::Checkpoint& checkpoint, const std::string& module, const Scheme& scheme,
                           const std::string& scale, bool transposed) {
  const auto& info = checkpoint.info(module + ".weight");
  StoredWeight w;
  w.spec = {module, info.shape[transposed ? 1 : 0], info.shape[transposed ? 0 : 1], scheme};
  w.spec.scheme.format = info.dtype == DType::F8_E5M2 ? recipes::Format::E5M2 : recipes::Format::E4M3;
  w.weight = info.name;
  w.scale = scale;
  w.transposed = transposed;
  if (!checkpoint.contains(scale) && !transposed) {
    const std::string other = upright_scale(checkpoint, module);
    const bool fits = !other.ends_with(".scale") || scheme.has_blocks();
    if (!other.empty() && fits) w.scale = other;
  }
  w.tensors = {w.weight, w.scale};
  if (checkpoint.contains(w.scale)) return w;
  const auto others = scales_beside(checkpoint, w.weight);
  io::fail_at(place(checkpoint, scale), "missing, expected the scales of {} ({}){}", io::printable(w.weight),
              io::name_of(info.dtype), others.empty() ? "" : ", found " + io::printable(others.front()));
}

void check_scale(const io::Checkpoint& checkpoint, const StoredWeight& weight,
                 const std::vector<std::vector<std::int64_t>>& shapes, bool e8m0_allowed) {
  const auto& info = checkpoint.info(weight.scale);
  const std::string where = place(checkpoint, weight.scale);
  if (!is_scale_dtype(info.dtype, e8m0_allowed, e8m0_allowed && weight.spec.scheme.has_blocks()))
    io::fail_at(where, "expected dtype F32, BF16{}, found {}", e8m0_allowed ? ", F16 or F8_E8M0" : " or F16",
                io::name_of(info.dtype));
  if (std::ranges::find(shapes, info.shape) != shapes.end()) return;
  std::string allowed;
  for (const auto& s : shapes) allowed += (allowed.empty() ? "" : " or ") + io::shape_text(s);
  io::fail_at(where, "expected shape {} for a weight {}, found {}", allowed,
              io::shape_text(checkpoint.info(weight.weight).shape), io::shape_text(info.shape));
}

std::vector<float> read_scales(const io::Checkpoint& checkpoint, const std::string& tensor, bool bytes_are_exponents) {
  const auto& info = checkpoint.info(tensor);
  if (!is_scale_dtype(info.dtype, true, bytes_are_exponents))
    io::fail_at(place(checkpoint, tensor), "expected dtype F32, BF16, F16 or F8_E8M0, found {}",
                io::name_of(info.dtype));
  if (info.bytes() > kMaxScaleBytes)
    io::fail_at(place(checkpoint, tensor), "expected at most 256 MiB of scales, found {} bytes", info.bytes());
  std::vector<std::uint8_t> bytes(info.bytes());
  checkpoint.read(tensor, bytes.data());
  std::vector<float> values(static_cast<std::size_t>(info.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = value_at(bytes.data(), info.dtype, static_cast<std::int64_t>(i));
    if (!std::isfinite(values[i]) || values[i] <= 0)
      io::fail_at(place(checkpoint, tensor), "expected finite scales > 0, found {} at {}", number(values[i]), i);
  }
  return values;
}

float read_scale(const io::Checkpoint& checkpoint, const std::string& tensor) {
  const auto& info = checkpoint.info(tensor);
  if (info.numel() != 1 || info.shape.size() > 2)
    io::fail_at(place(checkpoint, tensor), "expected 1 value ([], [1] or [1, 1]), found shape {}",
                io::shape_text(info.shape));
  return read_scales(checkpoint, tensor)[0];
}

void read_input_scale(const io::Checkpoint& checkpoint, StoredWeight& weight, const std::string& preferred) {
  std::string tensor = preferred;
  for (const char* end : kInputScales)
    if (!checkpoint.contains(tensor) && checkpoint.contains(weight.spec.module + end))
      tensor = weight.spec.module + end;
  if (!checkpoint.contains(tensor))
    io::fail_at(place(checkpoint, tensor),
                "missing, expected the static activation scale that config.json promises for {}",
                io::printable(weight.spec.module));
  auto& scheme = weight.spec.scheme;
  scheme.input_scale_inv = read_scale(checkpoint, tensor);
  scheme.input_scale = scale_for(scheme, scheme.input_scale_inv, place(checkpoint, tensor));
  weight.tensors.push_back(tensor);
}

std::vector<std::uint8_t> e8m0_bytes(const std::vector<float>& values, const std::string& tensor) {
  std::vector<std::uint8_t> bytes;
  for (const float v : values) {
    int exponent = 0;
    if (!std::isfinite(v) || v <= 0 || std::frexp(v, &exponent) != 0.5f || exponent < -126)
      io::fail<std::invalid_argument>("{}: expected powers of two from 2^-127 to 2^127, found {}", tensor, number(v));
    bytes.push_back(static_cast<std::uint8_t>(exponent - 1 + 127));
  }
  return bytes;
}

std::vector<io::SafetensorsWriter::Entry> plain_entries(const WeightSpec& w,
                                                        const std::vector<std::int64_t>& scale_shape,
                                                        const std::vector<std::int64_t>& input_shape) {
  const DType dtype = w.scheme.is_mx() ? DType::U8 : DType::F32;
  std::vector<io::SafetensorsWriter::Entry> list{{w.module + ".weight", DType::F8_E4M3, {w.rows, w.cols}},
                                                 {w.module + ".weight_scale", dtype, scale_shape}};
  if (w.scheme.is_static()) list.push_back({w.module + ".input_scale", DType::F32, input_shape});
  return list;
}

StoredWeight read_plain_weight(const CheckpointForm& form, const io::Checkpoint& checkpoint, const std::string& module,
                               const Scheme& scheme) {
  StoredWeight w = stored_weight(checkpoint, module, scheme, module + ".weight_scale");
  check_scale(checkpoint, w, form.scale_shapes(w.spec), scheme.has_blocks());
  w.spec.scheme.power_of_two = io::size_of(checkpoint.info(w.scale).dtype) == 1;
  if (scheme.is_static()) read_input_scale(checkpoint, w, module + ".input_scale");
  return w;
}

void write_f32(TensorSink& sink, const std::string& tensor, const std::vector<float>& values) {
  sink.write(tensor, values.data(), 0, values.size() * sizeof(float));
}

void write_e8m0(TensorSink& sink, const std::string& tensor, const std::vector<float>& values) {
  const auto bytes = e8m0_bytes(values, tensor);
  sink.write(tensor, bytes.data(), 0, bytes.size());
}

const std::vector<KvNames>& kv_spellings() {
  static const std::vector<KvNames> all = {
      {"k_proj.k_scale", "v_proj.v_scale"}, {"k_proj.output_scale", "v_proj.output_scale"}, {"k_scale", "v_scale"}};
  return all;
}

void read_kv(const io::Checkpoint& checkpoint, const std::vector<KvNames>& spellings, const std::string& shared,
             bool promised, StoredCheckpoint& out, const std::string& key) {
  for (const auto& tensor : checkpoint.names()) {
    if (!promised && is_cache_scale(tensor)) out.kv_tensors.push_back(tensor);
    if (std::ranges::any_of(kAttentionScales, [&](const char* end) { return ends_in(tensor, end); }))
      (promised ? out.attention_scales : out.kv_tensors).push_back(tensor);
  }
  if (!promised) {
    if (!out.kv_tensors.empty())
      out.warnings.push_back(
          io::message("{} scales of attention and caches, the first is {}, which the config does not speak of: not "
                      "used, nor carried to an output",
                      out.kv_tensors.size(), io::printable(out.kv_tensors.front())));
    return;
  }
  std::map<std::string, KvNames> found;  // attention module -> its tensors
  std::vector<std::string> order;
  const auto note = [&](const std::string& tensor, const std::string& end, bool k, bool v) {
    if (!tensor.ends_with("." + end)) return false;
    const std::string attention = attention_of(tensor.substr(0, tensor.size() - end.size() - 1));
    const auto [it, fresh] = found.try_emplace(attention);
    if (fresh) order.push_back(attention);
    for (const auto& [wanted, slot] : {std::pair{k, &it->second.k}, std::pair{v, &it->second.v}}) {
      if (!wanted) continue;
      if (!slot->empty())
        io::fail_at(place(checkpoint, tensor), "a second scale of the same cache, beside {}", io::printable(*slot));
      *slot = tensor;
    }
    out.kv_tensors.push_back(tensor);
    return true;
  };
  for (const auto& tensor : checkpoint.names()) {
    for (const auto& s : spellings)
      if (note(tensor, s.k, true, false) || note(tensor, s.v, false, true)) break;
    if (!shared.empty()) note(tensor, shared, true, true);
  }
  for (const auto& attention : order) {
    const auto& names = found[attention];
    if (names.k.empty() || names.v.empty())
      io::fail_at(place(checkpoint, names.k.empty() ? names.v : names.k), "the scale of {} beside it is missing",
                  names.k.empty() ? "keys" : "values");
    KvScales kv{attention, cache_scale(checkpoint, names.k), cache_scale(checkpoint, names.v)};
    if (kv.k.size() != kv.v.size())
      io::fail_at(place(checkpoint, names.v), "expected {} values as keys have, found {}", kv.k.size(), kv.v.size());
    out.kv.push_back(std::move(kv));
  }
  if (out.kv.empty() && !key.empty())
    out.warnings.push_back(
        key +
        " promises scales of key-value caches, and no tensor holds any: engines keep the cache in fp8 with scale 1");
}

bool promises_kv(const Json& config) {
  const auto scheme = config.find("kv_cache_scheme");
  if (scheme == config.end()) return false;
  if (scheme->is_string()) return *scheme == "static";  // AutoFP8's
  return scheme->is_object() && !scheme->empty() && scheme->value("dynamic", Json(false)) != Json(true);
}

std::string fused_rows_problem(const WeightSpec& w) {
  if (is_last_of_group(w.module) || fuse_group_of(w.module).empty() || w.rows % w.scheme.block.rows == 0) return "";
  return io::message("{} outputs are no multiple of the block of {}, which vLLM refuses in a fused module", w.rows,
                     w.scheme.block.rows);
}

std::string block_problem(const Scheme& scheme) {
  constexpr Block kBuilt{128, 128};
  if (!scheme.has_blocks() || scheme.is_mx() || scheme.block == kBuilt) return "";
  return io::message("vLLM has products on CUDA for blocks of {} alone, found {}", kBuilt.text(), scheme.block.text());
}

std::string one_each(const KvScales& kv, const char* form) {
  if (kv.k.size() == 1 && kv.v.size() == 1) return "";
  return io::message("{} holds one scale each for keys and values, found {} and {}", form, kv.k.size(), kv.v.size());
}

}  // namespace fp8::quant::form_parts
