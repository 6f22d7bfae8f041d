// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/formats/inc_checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "fp8/quant/formats/sidecar.h"
#include "fp8/recipes/scale_method.h"
#include "fp8/runtime/io/error.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::quant::inc {
namespace {

using io::DType;
using io::Json;

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

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

[[noreturn]] void fail(const std::string& where, const std::string& what) { throw io::Error(where + ": " + what); }

kernels::FloatType float_type(DType dtype) {
  return dtype == DType::BF16  ? kernels::FloatType::BF16
         : dtype == DType::F16 ? kernels::FloatType::F16
                               : kernels::FloatType::F32;
}

/// Values in the file's dtype. They are representable there (layout_of), so nothing is rounded but F16's and BF16's excess of zeros.
std::vector<std::uint8_t> bytes_of_values(const std::vector<float>& values, DType dtype) {
  const std::size_t size = static_cast<std::size_t>(io::size_of(dtype));
  std::vector<std::uint8_t> bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::F32) {
      std::memcpy(bytes.data() + i * size, &values[i], size);
      continue;
    }
    const std::uint16_t half = dtype == DType::BF16 ? kernels::f32_to_bf16(values[i]) : kernels::f32_to_f16(values[i]);
    std::memcpy(bytes.data() + i * size, &half, size);
  }
  return bytes;
}

void write_values(ShardedWriter& writer, const std::string& tensor, const std::vector<float>& values, DType dtype) {
  const auto bytes = bytes_of_values(values, dtype);
  writer.write(tensor, bytes.data(), 0, bytes.size());
}

std::vector<float> read_values(const io::Checkpoint& checkpoint, const std::string& tensor) {
  const auto& info = checkpoint.info(tensor);
  const std::string where = checkpoint.folder().string() + ": " + tensor;
  if (info.dtype != DType::F32 && info.dtype != DType::BF16 && info.dtype != DType::F16)
    fail(where, std::string("expected dtype F32, BF16 or F16, found ") + io::name_of(info.dtype));
  std::vector<std::uint8_t> bytes(info.bytes());
  checkpoint.read(tensor, bytes.data());
  std::vector<float> values(static_cast<std::size_t>(info.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = kernels::load_element(bytes.data(), float_type(info.dtype), static_cast<std::int64_t>(i));
    if (!std::isfinite(values[i]) || values[i] <= 0)
      fail(where, "expected finite scales > 0, found " + std::to_string(values[i]));
  }
  return values;
}

/// 1 / scale_inv as INC stores it.
float into_fp8(const Scheme& scheme, const std::string& module) {
  return scale_for(scheme, scheme.input_scale_inv, module);
}

std::string escaped(const std::string& name) {
  std::string out = "^";
  for (char c : name) {
    if (std::strchr(".\\+*?()[]{}|^$", c) != nullptr) out += '\\';
    out += c;
  }
  return out + "$";
}

/// INC searches names for patterns: a plain name unless it would also be found in that of a quantized module.
std::string pattern_for(const std::string& kept, const std::vector<std::string>& quantized) {
  const bool found = std::any_of(quantized.begin(), quantized.end(),
                                 [&](const std::string& q) { return q.find(kept) != std::string::npos; });
  return found ? escaped(kept) : kept;
}

std::string method_for(const Scheme& scheme, const std::string& scale_method) {
  if (recipes::find_scale_method(scale_method) != nullptr) return scale_method;
  if (scheme.activations == ActivationScaling::static_tensor) {
    return scheme.weights == WeightGranularity::channel ? "ACT_MAXABS_POW2_WEIGHTS_PCS_MAXABS_POW2"
                                                        : "MAXABS_ARBITRARY";
  }
  return scheme.weights == WeightGranularity::channel ? "MAXABS_PCS_POW2"
                                                      : "ACT_MAXABS_PCS_POW2_WEIGHT_MAXABS_PTS_POW2_HW";
}

std::string text_of(const Json& config, const char* key, const std::string& fallback) {
  const auto it = config.find(key);
  return it != config.end() && it->is_string() ? it->get<std::string>() : fallback;
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

}  // namespace

Layout layout_of(const Scheme& scheme, bool qdq) {
  Layout layout;
  layout.qdq = qdq;
  // Per channel, INC computes in the weight's own type, which may be wider than hp_dtype.
  if (scheme.convention == Convention::inc && scheme.weights == WeightGranularity::tensor) {
    layout.scale_dtype = scheme.hp == recipes::FloatType::BF16  ? DType::BF16
                         : scheme.hp == recipes::FloatType::F16 ? DType::F16
                                                                : DType::F32;
  }
  return layout;
}

void check_scheme(const Scheme& scheme, const std::string& module) {
  if (scheme.activations == ActivationScaling::none)
    fail("inc", module + ": INC has no form for quantized weights with activations in high precision");
}

std::vector<io::SafetensorsWriter::Entry> entries(const std::string& module, std::int64_t n, std::int64_t k,
                                                  const Scheme& scheme, const Layout& layout) {
  const bool channel = scheme.weights == WeightGranularity::channel,
             is_static = scheme.activations == ActivationScaling::static_tensor;
  const Names names = names_of(module, layout.qdq);
  std::vector<io::SafetensorsWriter::Entry> list;
  list.push_back(
      {module + ".weight", scheme.format == recipes::Format::E4M3 ? DType::F8_E4M3 : DType::F8_E5M2, {k, n}});
  list.push_back(
      {names.weight, layout.scale_dtype, channel ? std::vector<std::int64_t>{n} : std::vector<std::int64_t>{}});
  if (is_static) {
    list.push_back({names.input, layout.scale_dtype, {}});
    list.push_back({names.into, layout.scale_dtype, {}});
  }
  if (layout.qdq && channel) {
    list.push_back({module + ".dequant_weights.zero_point", DType::F32, {}});
    if (is_static) list.push_back({module + ".quant_input.zero_point", DType::F32, {}});
  }
  return list;
}

void write_rows(ShardedWriter& writer, const std::string& module, const std::uint8_t* codes, std::int64_t rows,
                std::int64_t k, std::int64_t first_row, std::int64_t n) {
  // Column c of these rows is a run of `rows` codes at c * n + first_row.
  constexpr std::int64_t kColumns = 64;  // so many at a time: one cache line of every row
  std::vector<std::uint8_t> runs(static_cast<std::size_t>(rows * kColumns));
  const std::string tensor = module + ".weight";
  for (std::int64_t first = 0; first < k; first += kColumns) {
    const std::int64_t columns = std::min(kColumns, k - first);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c)
        runs[static_cast<std::size_t>(c * rows + r)] = codes[r * k + first + c];
    }
    if (rows == n) {  // the columns follow one another
      writer.write(tensor, runs.data(), static_cast<std::uint64_t>(first * n),
                   static_cast<std::uint64_t>(columns * rows));
      continue;
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      writer.write(tensor, runs.data() + c * rows, static_cast<std::uint64_t>((first + c) * n + first_row),
                   static_cast<std::uint64_t>(rows));
    }
  }
}

void write_scales(ShardedWriter& writer, const std::string& module, const std::vector<float>& weight_scale_inv,
                  const Scheme& scheme, const Layout& layout) {
  const Names names = names_of(module, layout.qdq);
  const bool channel = scheme.weights == WeightGranularity::channel,
             is_static = scheme.activations == ActivationScaling::static_tensor;
  write_values(writer, names.weight, weight_scale_inv, layout.scale_dtype);
  if (is_static) {
    write_values(writer, names.input, {scheme.input_scale_inv}, layout.scale_dtype);
    write_values(writer, names.into, {into_fp8(scheme, module)}, layout.scale_dtype);
  }
  if (!layout.qdq || !channel) return;
  write_values(writer, module + ".dequant_weights.zero_point", {0.0f}, DType::F32);
  if (is_static) write_values(writer, module + ".quant_input.zero_point", {0.0f}, DType::F32);
}

std::vector<io::SafetensorsWriter::Entry> cache_entries(const std::string& module, const Layout& layout) {
  return {{module + kCacheScaleInv, layout.scale_dtype, {}}, {module + kCacheScale, layout.scale_dtype, {}}};
}

void write_cache(ShardedWriter& writer, const std::string& module, float scale_inv, const Layout& layout) {
  write_values(writer, module + kCacheScaleInv, {1.0f / scale_inv}, layout.scale_dtype);
  write_values(writer, module + kCacheScale, {scale_inv}, layout.scale_dtype);
}

Json make_config(const Scheme& scheme, const std::string& scale_method, const std::vector<std::string>& quantized,
                 const std::vector<std::string>& kept, const Layout& layout) {
  std::vector<std::string> blocked;
  for (const auto& name : kept) blocked.push_back(pattern_for(name, quantized));
  const bool dynamic = scheme.activations != ActivationScaling::static_tensor;
  std::string method = method_for(scheme, scale_method);
  for (char& c : method) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  const recipes::FloatType hp = scheme.convention == Convention::inc ? scheme.hp : recipes::FloatType::BF16;
  Json config = Json::object();
  config["mode"] = "LOAD";
  config["fp8_config"] = recipes::name_of(scheme.format);
  config["hp_dtype"] = hp == recipes::FloatType::BF16 ? "bf16" : hp == recipes::FloatType::F16 ? "fp16" : "fp32";
  config["observer"] = "maxabs";
  config["scale_method"] = method;
  config["scale_params"] = Json::object();
  config["scale_format"] = "const";
  config["dynamic_quantization"] = dynamic;
  config["use_qdq"] = layout.qdq ? "True" : "False";
  config["fake_quant"] = "False";
  config["measure_exclude"] = "OUTPUT";
  config["allowlist"] = Json{{"types", {"Linear"}}, {"names", Json::array()}};
  config["blocklist"] = Json{{"types", Json::array()}, {"names", blocked}};
  config["dump_stats_path"] = "./hqt_output/measure";  // INC wants one; it is not read in mode LOAD
  config["mod_dict"] = Json::object();
  config["world_size"] = -1;
  return config;
}

bool is_config(const Json& config) {
  return config.is_object() && !config.contains("quant_method") && config.contains("fp8_config") &&
         config.contains("scale_method");
}

std::vector<StoredModule> read_modules(const io::Checkpoint& checkpoint, const Json& config, const Json& sidecar) {
  const std::string where = (checkpoint.folder() / "config.json").string() + ": quantization_config";
  if (!is_config(config)) fail(where, "expected INC's keys 'fp8_config' and 'scale_method'");
  const auto world = config.find("world_size");
  if (world != config.end() && world->is_number_integer() && world->get<std::int64_t>() > 1) {
    fail(where, "key 'world_size': found " + std::to_string(world->get<std::int64_t>()) +
                    ", this checkpoint is of several ranks; unify it first (quant::inc::unify_checkpoint)");
  }
  Scheme base;
  if (!sidecar.is_null()) {
    base = read_sidecar(sidecar, (checkpoint.folder() / kSidecarName).string());
  } else {  // INC's own file: its rules, in its hp_dtype
    base.convention = Convention::inc;
    const std::string hp = text_of(config, "hp_dtype", "bf16");
    base.hp = hp == "fp32" || hp == "FP32"   ? recipes::FloatType::F32
              : hp == "fp16" || hp == "FP16" ? recipes::FloatType::F16
                                             : recipes::FloatType::BF16;
  }
  base.format = text_of(config, "fp8_config", "E4M3") == "E5M2" ? recipes::Format::E5M2 : recipes::Format::E4M3;
  const bool dynamic = truth(config, "dynamic_quantization");
  base.activations = dynamic ? ActivationScaling::dynamic_token : ActivationScaling::static_tensor;
  std::vector<StoredModule> modules;
  for (const auto& tensor : checkpoint.names()) {
    const DType dtype = checkpoint.info(tensor).dtype;
    if (!ends_with(tensor, ".weight") || (dtype != DType::F8_E4M3 && dtype != DType::F8_E5M2)) continue;
    const std::string name = tensor.substr(0, tensor.size() - 7), place = checkpoint.folder().string() + ": " + tensor;
    const auto& shape = checkpoint.info(tensor).shape;
    if (shape.size() != 2)
      fail(place, "expected a weight [in, out], found " + std::to_string(shape.size()) + " dimensions");
    const bool qdq = !checkpoint.contains(name + ".scale_weight");
    const Names names = names_of(name, qdq);
    StoredModule m{name, base, read_values(checkpoint, names.weight)};
    m.scheme.format = dtype == DType::F8_E5M2 ? recipes::Format::E5M2 : recipes::Format::E4M3;
    const auto scales = static_cast<std::int64_t>(m.weight_scale_inv.size());
    if (scales != 1 && scales != shape[1])
      fail(place,
           "expected 1 scale or " + std::to_string(shape[1]) + " (one per output), found " + std::to_string(scales));
    m.scheme.weights = scales == 1 && checkpoint.info(names.weight).shape.empty() ? WeightGranularity::tensor
                       : scales == shape[1]                                       ? WeightGranularity::channel
                                                                                  : WeightGranularity::tensor;
    if (!dynamic) {
      const auto in = read_values(checkpoint, names.input);
      if (in.size() != 1)
        fail(checkpoint.folder().string() + ": " + names.input, "expected 1 value, found " + std::to_string(in.size()));
      m.scheme.input_scale_inv = in[0];
      m.scheme.input_scale = scale_for(m.scheme, in[0], names.input);
    }
    modules.push_back(std::move(m));
  }
  if (modules.empty()) fail(checkpoint.folder().string(), "expected fp8 weights as config.json says, found none");
  return modules;
}

void read_codes(const io::Checkpoint& checkpoint, const StoredModule& module, std::int64_t n, std::int64_t k,
                std::uint8_t* codes) {
  const std::string tensor = module.name + ".weight";
  const auto& shape = checkpoint.info(tensor).shape;
  if (shape != std::vector<std::int64_t>{k, n}) {
    std::string found;
    for (auto d : shape) found += (found.empty() ? "" : ", ") + std::to_string(d);
    fail(checkpoint.folder().string() + ": " + tensor,
         "found shape [" + found + "], the model's weight [" + std::to_string(n) + ", " + std::to_string(k) +
             "] is stored as [" + std::to_string(k) + ", " + std::to_string(n) + "]");
  }
  constexpr std::int64_t kColumns = 64;
  std::vector<std::uint8_t> part(static_cast<std::size_t>(n * std::min(kColumns, k)));
  for (std::int64_t first = 0; first < k; first += kColumns) {
    const std::int64_t columns = std::min(kColumns, k - first);
    checkpoint.read(tensor, part.data(), static_cast<std::uint64_t>(first * n),
                    static_cast<std::uint64_t>(columns * n));
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) codes[r * k + first + c] = part[static_cast<std::size_t>(c * n + r)];
    }
  }
}

std::vector<std::string> tensors_of(const io::Checkpoint& checkpoint, const std::string& module) {
  std::vector<std::string> found;
  for (const char* end : {".weight", ".scale_weight", ".scale_input", ".quant_input.scale", ".quant_input.scale_inv",
                          ".quant_input.zero_point", ".dequant_weights.scale", ".dequant_weights.zero_point"}) {
    if (checkpoint.contains(module + end)) found.push_back(module + end);
  }
  return found;
}

std::vector<StoredCache> read_caches(const io::Checkpoint& checkpoint) {
  std::vector<StoredCache> caches;
  for (const auto& tensor : checkpoint.names()) {
    if (!ends_with(tensor, kCacheScale)) continue;
    const auto values = read_values(checkpoint, tensor);
    if (values.size() != 1)
      fail(checkpoint.folder().string() + ": " + tensor, "expected 1 value, found " + std::to_string(values.size()));
    caches.push_back({tensor.substr(0, tensor.size() - std::strlen(kCacheScale)), values[0]});
  }
  return caches;
}

}  // namespace fp8::quant::inc
