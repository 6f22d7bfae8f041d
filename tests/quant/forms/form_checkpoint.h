// SPDX-License-Identifier: Apache-2.0
// Checkpoints in every form, made in the test: scales and codes through a form's writer, or spelt by hand.
#pragma once
#include <cstring>

#include "fp8/quant/forms/form_table.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::test {

using quant::ActivationScaling;
using recipes::Granularity;

/// A tensor spelt by hand.
struct HandTensor {
  std::string name;
  io::DType dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
};

inline HandTensor f32(const std::string& name, std::vector<std::int64_t> shape, const std::vector<float>& values) {
  HandTensor t{name, io::DType::F32, std::move(shape), std::vector<std::uint8_t>(values.size() * 4)};
  if (!values.empty()) std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

/// Codes 0, 1, 2, ... below the NaN codes of every dialect.
inline HandTensor codes(const std::string& module, std::int64_t rows, std::int64_t cols) {
  HandTensor t{module + ".weight", io::DType::F8_E4M3, {rows, cols}, {}};
  for (std::int64_t i = 0; i < rows * cols; ++i) t.bytes.push_back(static_cast<std::uint8_t>(i % 0x78));
  return t;
}

/// A checkpoint folder of these tensors; config.json holds `quantization` under `key`, nothing else if it is null.
class HandCheckpoint {
 public:
  explicit HandCheckpoint(const io::Json& quantization, const std::vector<HandTensor>& tensors,
                          const char* key = "quantization_config") {
    std::vector<io::SafetensorsWriter::Entry> entries;
    for (const auto& t : tensors) entries.push_back({t.name, t.dtype, t.shape});
    io::SafetensorsWriter writer(dir_ / "model.safetensors", entries);
    for (const auto& t : tensors) writer.write(t.name, t.bytes.data(), 0, t.bytes.size());
    writer.commit();
    io::Json config = {{"model_type", "llama"}};
    if (!quantization.is_null()) config[key] = quantization;
    io::write_json(dir_ / "config.json", config);
  }
  const std::filesystem::path& path() const { return dir_.path(); }
  void write(const std::string& name, const io::Json& value) const { io::write_json(dir_ / name, value); }
  io::Checkpoint open() const { return io::Checkpoint(dir_.path()); }
  quant::StoredCheckpoint read() const { return quant::read_stored(open()); }

 private:
  TempDir dir_;
};

inline quant::Scheme scheme_of(Granularity weights, ActivationScaling activations, quant::Block block = {128, 128}) {
  quant::Scheme s;
  s.weights = weights;
  s.activations = activations;
  s.block = block;
  s.input_scale_inv = 0.25f;
  s.input_scale = 4.0f;
  return s;
}

}  // namespace fp8::test
