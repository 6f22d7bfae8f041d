// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reading.h"

#include <cstring>

#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {
namespace {

using io::DType;

constexpr const char* kUpright[] = {".weight_scale_inv", ".weight_scale", ".scale"};
constexpr const char* kTransposedEndings[] = {".scale_weight", ".dequant_weights.scale"};
constexpr const char* kInput[] = {".input_scale", ".activation_scale", ".scale_input", ".quant_input.scale"};

/// The name of a cache's scales below an attention module: of keys, of values or of both.
struct CacheName {
  const char* ending;
  bool k, v;
};
constexpr CacheName kCaches[] = {{".k_proj.k_scale", true, false},
                                 {".v_proj.v_scale", false, true},
                                 {".k_proj.output_scale", true, false},
                                 {".v_proj.output_scale", false, true},
                                 {".k_scale", true, false},
                                 {".v_scale", false, true},
                                 {".kv_scale", true, true},
                                 {".k_cache.dequant_output.scale", true, false},
                                 {".v_cache.dequant_output.scale", false, true}};

/// E4M3: s eeee mmm, bias 7, S.1111.111 NaN. E5M2: s eeeee mm, bias 15, IEEE's infinities and NaN.
double value_of(std::uint8_t code, bool e5m2) {
  const int bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, magnitude = code & 0x7F;
  const int exponent = magnitude >> bits, mantissa = magnitude & ((1 << bits) - 1);
  double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - bits)
                               : std::ldexp((1 << bits) + mantissa, exponent - bias - bits);
  if (e5m2 && exponent == 31) value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  if (!e5m2 && magnitude == 0x7F) value = std::nan("");
  return (code & 0x80) != 0 ? -value : value;
}

double half_value(std::uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 0x3FF;
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  return (h & 0x8000) != 0 ? -value : value;
}

float element(const std::uint8_t* bytes, DType dtype, std::int64_t i) {
  const auto load = [&](auto value) {
    std::memcpy(&value, bytes + i * static_cast<std::int64_t>(sizeof value), sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::F64: return static_cast<float>(load(double{}));
    case DType::F32: return load(float{});
    case DType::F16: return static_cast<float>(half_value(load(std::uint16_t{})));
    case DType::BF16: {
      const std::uint32_t bits = static_cast<std::uint32_t>(load(std::uint16_t{})) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
    case DType::F8_E8M0:
    case DType::U8:  // of scales; they have no other meaning
      return bytes[i] == 255 ? std::nanf("") : std::ldexp(1.0f, bytes[i] - 127);
    default: return std::nanf("");
  }
}

bool is_number(DType dtype) {
  return dtype == DType::F64 || dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16;
}

/// Every size of blocks that stands anywhere in config.json.
void collect_blocks(const io::Json& json, std::vector<std::int64_t>& rows, std::vector<std::int64_t>& cols) {
  if (!json.is_structured()) return;
  for (const auto& [key, value] : json.items()) {
    const bool block = json.is_object() && (key == "weight_block_size" || key == "block_structure");
    if (block && value.is_array() && value.size() == 2 && value[0].is_number_integer() &&
        value[1].is_number_integer()) {
      rows.push_back(value[0].get<std::int64_t>());
      cols.push_back(value[1].get<std::int64_t>());
    } else if (json.is_object() && key == "group_size" && value.is_number_integer()) {
      rows.push_back(1);
      cols.push_back(value.get<std::int64_t>());
    } else {
      collect_blocks(value, rows, cols);
    }
  }
}

}  // namespace

float rounded_to(float x, recipes::FloatType type) {
  if (type == recipes::FloatType::F32 || !std::isfinite(x) || x == 0) return x;
  const bool bf16 = type == recipes::FloatType::BF16;
  int exponent = 0;
  std::frexp(static_cast<double>(x), &exponent);
  const int quantum =
      std::max(exponent, bf16 ? -125 : -13) - (bf16 ? 8 : 11);  // the last bit's exponent, subnormals' at the least
  const double y = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -quantum)), quantum);
  const double largest = bf16 ? 0x1.FEp127 : 65504.0;
  return std::abs(y) > largest ? std::copysign(std::numeric_limits<float>::infinity(), x) : static_cast<float>(y);
}

CheckpointReading::CheckpointReading(const io::Checkpoint& checkpoint, bool bytes_are_codes, bool upright)
    : checkpoint_(checkpoint), upright_(upright) {
  if (std::filesystem::exists(checkpoint.folder() / io::kConfigFile))
    collect_blocks(io::read_python_json(io::source_file(checkpoint.folder(), io::kConfigFile)), said_rows_, said_cols_);
  for (auto* said : {&said_rows_, &said_cols_}) said->push_back(128);  // modelopt's, which its config doesn't name
  for (const auto& tensor : checkpoint.names()) {
    find_cache(tensor);
    const DType dtype = checkpoint.info(tensor).dtype;
    const bool codes = dtype == DType::F8_E4M3 || dtype == DType::F8_E5M2,
               bytes = dtype == DType::U8 || dtype == DType::I8;
    if ((codes || bytes) && tensor.ends_with(".weight") && checkpoint.info(tensor).shape.size() == 2)
      find_scales(tensor.substr(0, tensor.size() - 7), codes || bytes_are_codes);
  }
}

std::vector<float> CheckpointReading::values_of(const std::string& tensor) const {
  const auto& info = checkpoint_.info(tensor);
  if (!is_number(info.dtype) && info.dtype != DType::F8_E8M0 && info.dtype != DType::U8)
    io::fail<io::Error>("{}: {}: expected a scale, found {}", checkpoint_.folder().string(), tensor,
                        io::name_of(info.dtype));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(info.bytes()));
  checkpoint_.read(tensor, bytes.data());
  std::vector<float> values;
  for (std::int64_t i = 0; i < info.numel(); ++i) values.push_back(element(bytes.data(), info.dtype, i));
  return values;
}

void CheckpointReading::find_cache(const std::string& tensor) {
  for (const auto& name : kCaches) {
    if (!tensor.ends_with(name.ending)) continue;
    std::string attention = tensor.substr(0, tensor.size() - std::strlen(name.ending));
    for (const std::string part : {".qkv_proj", ".attn"}) {  // of engines' own modules
      const auto whole = attention.size() - std::min(attention.size(), part.size());
      const std::string outer = attention.substr(0, whole);
      if (attention.ends_with(part) && (part != ".attn" || outer.ends_with("attn") || outer.ends_with("attention")))
        attention = outer;
    }
    Cache& cache = caches_[attention];
    if (name.k) cache.k = values_of(tensor);
    if (name.v) cache.v = values_of(tensor);
    return;
  }
}

/// Of n rows in `count` blocks.
std::int64_t CheckpointReading::side(std::int64_t n, std::int64_t count, const std::vector<std::int64_t>& said,
                                     const std::string& tensor) const {
  const auto fits = [&](std::int64_t s) { return s > 0 && (n + s - 1) / s == count; };
  if (count <= 1) return std::max<std::int64_t>(n, 1);
  if (count == n) return 1;
  for (const std::int64_t s : said)
    if (fits(s)) return s;
  for (std::int64_t s = 1; s < n; s *= 2)
    if (fits(s)) return s;
  if (n % count == 0) return n / count;
  io::fail<io::Error>("{}: {}: can't tell which of {} rows or columns share one of its {} scales",
                      checkpoint_.folder().string(), tensor, n, count);
}

void CheckpointReading::find_scales(const std::string& module, bool codes) {
  const std::string tensor = module + ".weight";
  const auto& info = checkpoint_.info(tensor);
  std::string scale;
  bool transposed = false;
  for (const std::span<const char* const> endings :
       {std::span<const char* const>(kUpright), std::span<const char* const>(kTransposedEndings)}) {
    for (const char* end : endings) {
      if (!scale.empty() || !checkpoint_.contains(module + end)) continue;
      scale = module + end;
      transposed = endings.data() == kTransposedEndings && !upright_;
    }
  }
  if (scale.empty() && io::size_of(info.dtype) == 1 && info.dtype != DType::F8_E4M3 && info.dtype != DType::F8_E5M2)
    return;  // whole numbers
  if (scale.empty() || !codes)
    io::fail<io::Error>("{}: {}: found {}{}, which is no weight in high precision", checkpoint_.folder().string(),
                        io::printable(tensor), io::name_of(info.dtype),
                        scale.empty() ? " without scales" : " with scales " + io::printable(scale));
  Weight w;
  w.e5m2 = info.dtype == DType::F8_E5M2;
  if (!transposed && module.ends_with("lm_head") &&
      checkpoint_.contains("model.embed_tokens.weight")) {  // INC's files have it so
    const auto& embedding = checkpoint_.info("model.embed_tokens.weight").shape;
    transposed = embedding.size() == 2 && embedding[0] != embedding[1] && info.shape[0] == embedding[1] &&
                 info.shape[1] == embedding[0];
  }
  w.transposed = transposed;
  w.rows = info.shape[transposed ? 1 : 0];
  w.cols = info.shape[transposed ? 0 : 1];
  w.scale = values_of(scale);
  const auto& shape = checkpoint_.info(scale).shape;
  std::int64_t rows = 1, cols = 1;  // of the grid
  if (w.scale.size() != 1) {
    rows = shape[0];
    cols = shape.size() == 4 ? shape[2] : shape.size() == 2 ? shape[1] : 1;
  }
  if (rows * cols != static_cast<std::int64_t>(w.scale.size()))
    io::fail<io::Error>("{}: {}: expected one scale, one per row or one per block", checkpoint_.folder().string(),
                        io::printable(scale));
  w.height = side(w.rows, rows, said_rows_, scale);
  w.width = side(w.cols, cols, said_cols_, scale);
  for (const char* end : kInput)
    if (w.input.empty() && checkpoint_.contains(module + end)) w.input = values_of(module + end);
  weights_.emplace(module, std::move(w));
}

void CheckpointReading::read(const std::string& module, std::int64_t first, std::int64_t count, float* y) const {
  const Weight& w = weights_.at(module);
  double table[256];
  for (int code = 0; code < 256; ++code) table[code] = value_of(static_cast<std::uint8_t>(code), w.e5m2);
  const std::int64_t grid_cols = (w.cols + w.width - 1) / w.width;
  const auto at = [&](std::int64_t r, std::int64_t c, std::uint8_t code) {
    const double scale = w.scale.size() == 1
                             ? w.scale[0]
                             : w.scale[static_cast<std::size_t>((first + r) / w.height * grid_cols + c / w.width)];
    y[r * w.cols + c] = static_cast<float>(table[code] * scale);  // exact in f64: 4 bits by 24
  };
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(w.transposed ? count : w.cols));
  if (w.transposed) {
    for (std::int64_t c = 0; c < w.cols; ++c) {
      checkpoint_.read(module + ".weight", codes.data(), static_cast<std::uint64_t>(c * w.rows + first), codes.size());
      for (std::int64_t r = 0; r < count; ++r) at(r, c, codes[static_cast<std::size_t>(r)]);
    }
    return;
  }
  for (std::int64_t r = 0; r < count; ++r) {
    checkpoint_.read(module + ".weight", codes.data(), static_cast<std::uint64_t>((first + r) * w.cols), codes.size());
    for (std::int64_t c = 0; c < w.cols; ++c) at(r, c, codes[static_cast<std::size_t>(c)]);
  }
}

void CheckpointReading::read_floats(const std::string& tensor, std::int64_t first, std::int64_t count, float* y) const {
  const auto& info = checkpoint_.info(tensor);
  if (!is_number(info.dtype))
    io::fail<io::Error>("{}: {}: expected numbers, found {}", checkpoint_.folder().string(), io::printable(tensor),
                        io::name_of(info.dtype));
  const auto size = static_cast<std::uint64_t>(io::size_of(info.dtype));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count) * size);
  checkpoint_.read(tensor, bytes.data(), static_cast<std::uint64_t>(first) * size, bytes.size());
  for (std::int64_t i = 0; i < count; ++i) y[i] = element(bytes.data(), info.dtype, i);
}

}  // namespace fp8::quant
