// SPDX-License-Identifier: Apache-2.0

#include "fp8/measure/files/measurement_file.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::measure {
namespace {

using io::Json;

constexpr std::int64_t kSamples = 32;

std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}

/// exact: bit for bit, else as far as rounding to bf16 (relative) or f16 (absolute, its smallest step) can move a
/// value.
bool same(const std::vector<float>& a, const std::vector<float>& b, bool exact) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const float allowed = std::max(0x1p-24f, 0x1p-7f * std::max(std::abs(a[i]), std::abs(b[i])));
    if (exact || !(std::abs(a[i] - b[i]) <= allowed)) return false;
  }
  return true;
}

WeightFingerprint weight_from(const std::string& module, const Json& json, const std::string& where) {
  const auto bad = [&](const char* key, const char* wanted) {
    io::fail_at(where + "." + io::printable(module), "key '{}': expected {}", key, wanted);
  };
  WeightFingerprint w{module, {}, {}, {}};
  if (!json.is_object())
    io::fail_at(where + "." + io::printable(module), "expected an object, found {}", json.type_name());
  if (!json.contains("dtype") || !json["dtype"].is_string()) bad("dtype", "a string");
  w.dtype = json["dtype"].get<std::string>();
  if (!json.contains("shape") || !json["shape"].is_array() || json["shape"].size() > 16)
    bad("shape", "a list of sizes");
  for (const auto& size : json["shape"]) {
    if (!size.is_number_integer() || size.get<std::int64_t>() < 0) bad("shape", "a list of sizes");
    w.shape.push_back(size.get<std::int64_t>());
  }
  if (!json.contains("samples") || !json["samples"].is_array() ||
      json["samples"].size() > static_cast<std::size_t>(kSamples))
    bad("samples", "at most 32 numbers");
  for (const auto& value : json["samples"]) {
    if (!value.is_number() && !value.is_null()) bad("samples", "numbers");
    w.samples.push_back(value.is_null() ? std::nanf("") : value.get<float>());
  }
  return w;
}

}  // namespace

const WeightFingerprint* ModelFingerprint::find(const std::string& module) const {
  const auto it = std::ranges::find_if(weights, [&](const auto& w) { return w.module == module; });
  return it == weights.end() ? nullptr : &*it;
}

std::string ModelFingerprint::digest() const {
  io::Fnv hash;
  for (const auto& w : weights) {
    hash.add(w.module);
    hash.add(w.dtype);
    hash.add(w.shape.data(), w.shape.size() * sizeof(std::int64_t));
    hash.add(w.samples);
  }
  return hash.text();
}

std::vector<std::int64_t> sampled_positions(std::int64_t numel) {
  const std::int64_t count = std::min(numel, kSamples);
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < count; ++i) {
    // i * (numel - 1) / (count - 1) without the product, which a weight of 2^60 elements would overflow
    const std::int64_t steps = std::max<std::int64_t>(count - 1, 1), whole = (numel - 1) / steps,
                       rest = (numel - 1) % steps;
    positions.push_back(i * whole + i * rest / steps);
  }
  return positions;
}

WeightFingerprint fingerprint_of(const std::string& module, const void* data, kernels::FloatType type,
                                 const std::vector<std::int64_t>& shape) {
  WeightFingerprint w{module, kernels::name_of(type), shape, {}};
  for (auto at : sampled_positions(numel_of(shape))) w.samples.push_back(kernels::load_element(data, type, at));
  return w;
}

WeightFingerprint fingerprint_of(const std::string& module, const io::Checkpoint& checkpoint,
                                 const std::string& tensor) {
  const auto& info = checkpoint.info(tensor);
  kernels::FloatType type = kernels::FloatType::F32;
  switch (info.dtype) {
    case io::DType::F32: break;
    case io::DType::BF16: type = kernels::FloatType::BF16; break;
    case io::DType::F16: type = kernels::FloatType::F16; break;
    default:
      io::fail_at(checkpoint.folder().string() + ": " + tensor, "expected dtype F32, BF16 or F16, found {}",
                  io::name_of(info.dtype));
  }
  WeightFingerprint w{module, kernels::name_of(type), info.shape, {}};
  const auto size = static_cast<std::uint64_t>(io::size_of(info.dtype));
  for (auto at : sampled_positions(info.numel())) {
    std::array<std::uint8_t, 4> bytes{};
    checkpoint.read(tensor, bytes.data(), static_cast<std::uint64_t>(at) * size, size);
    w.samples.push_back(kernels::load_element(bytes.data(), type, 0));
  }
  return w;
}

void require_same_model(const ModelFingerprint& measured, const ModelFingerprint& model, const std::string& where) {
  std::map<std::string, const WeightFingerprint*> known;
  for (const auto& w : measured.weights) known[w.module] = &w;
  for (const auto& w : model.weights) {
    const auto it = known.find(w.module);
    if (it == known.end()) continue;
    const WeightFingerprint& then = *it->second;
    if (then.shape != w.shape)
      io::fail_at(where, "{}.weight was {} when measured and is {} in this model; a measurement of another model?",
                  w.module, io::shape_text(then.shape), io::shape_text(w.shape));
    if (!same(then.samples, w.samples, then.dtype == w.dtype))
      io::fail_at(where, "{}.weight has other values than when measured; a measurement of another model?", w.module);
  }
}

Json to_json(const ModelFingerprint& model) {
  Json out = Json::object();
  for (const auto& w : model.weights) {
    Json samples = Json::array();
    for (float v : w.samples)
      samples.push_back(
          std::isfinite(v) ? Json(v) : Json(nullptr));  // JSON has no infinities; such a weight is refused elsewhere
    out[w.module] = Json{{"dtype", w.dtype}, {"shape", w.shape}, {"samples", samples}};
  }
  return out;
}

ModelFingerprint model_from_json(const Json& json, const std::string& where) {
  if (!json.is_object()) io::fail_at(where, "expected an object, found {}", json.type_name());
  ModelFingerprint model;
  for (const auto& [module, weight] : json.items()) model.weights.push_back(weight_from(module, weight, where));
  return model;
}

}  // namespace fp8::measure
