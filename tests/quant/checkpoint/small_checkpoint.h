// SPDX-License-Identifier: Apache-2.0
// Checkpoint folders made in the test: named CPU tensors in, config.json and model files out, and back.
#pragma once

#include <fstream>

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/forms/folder.h"
#include "support/fp8_reference.h"

namespace fp8::test {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline io::DType file_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return io::DType::F32;
    case at::kBFloat16: return io::DType::BF16;
    case at::kHalf: return io::DType::F16;
    case at::kLong: return io::DType::I64;
    case at::kFloat8_e4m3fn: return io::DType::F8_E4M3;
    default: throw std::invalid_argument("no such type in these tests");
  }
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// model.safetensors in `folder` (made if need be).
inline void write_tensors(const std::filesystem::path& folder, const NamedTensors& tensors,
                          const std::string& file = "model.safetensors") {
  std::filesystem::create_directories(folder);
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& [name, t] : tensors) entries.push_back({name, file_type(t.scalar_type()), t.sizes().vec()});
  io::SafetensorsWriter writer(folder / file, entries);
  for (const auto& [name, t] : tensors) writer.write(name, t.contiguous().const_data_ptr(), 0, t.nbytes());
  writer.commit();
}

/// One tensor of a checkpoint; fp8 codes as U8.
inline at::Tensor read_tensor(const std::filesystem::path& folder, const std::string& name) {
  const io::Checkpoint checkpoint(folder);
  const auto& info = checkpoint.info(name);
  const at::ScalarType type = info.dtype == io::DType::F32    ? at::kFloat
                              : info.dtype == io::DType::BF16 ? at::kBFloat16
                              : info.dtype == io::DType::F16  ? at::kHalf
                              : info.dtype == io::DType::I64  ? at::kLong
                                                              : at::kByte;
  at::Tensor t = torch::empty(info.shape, type);
  checkpoint.read(name, t.data_ptr());
  return t;
}

/// EXPECT_TRUE(holds(folder, tensor, values)): the tensor of the checkpoint equals `values`.
inline ::testing::AssertionResult holds(const std::filesystem::path& folder, const std::string& tensor,
                                        const at::Tensor& values) {
  if (torch::equal(read_tensor(folder, tensor), values)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << tensor << " has other values";
}

/// The names of a small Llama with ragged sizes; weights of `dtype`, some rows zero.
inline NamedTensors small_llama(at::ScalarType dtype, bool tied = false, std::uint64_t seed = 41) {
  torch::manual_seed(seed);
  NamedTensors tensors;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    tensors.emplace_back(name + ".weight", torch::randn(shape).to(dtype));
  };
  add("model.embed_tokens", {50, 36});
  const std::string layer = "model.layers.0.";
  add(layer + "self_attn.q_proj", {36, 36});
  add(layer + "self_attn.k_proj", {17, 36});
  add(layer + "self_attn.v_proj", {17, 36});
  add(layer + "self_attn.o_proj", {36, 36});
  add(layer + "mlp.gate_proj", {53, 36});
  add(layer + "mlp.up_proj", {53, 36});
  add(layer + "mlp.down_proj", {36, 53});
  add(layer + "input_layernorm", {36});
  if (!tied) add("lm_head", {50, 36});
  tensors[2].second[5].zero_();
  tensors[3].second.zero_();
  tensors.emplace_back(layer + "self_attn.q_proj.bias", torch::randn({36}).to(dtype));
  tensors.emplace_back("model.steps", torch::tensor({1, 2, 3}, at::kLong));
  return tensors;
}

inline void write_llama(const std::filesystem::path& folder, const NamedTensors& tensors, bool tied = false) {
  write_tensors(folder, tensors);
  write_text(folder / "config.json",
             std::string("{\n  \"zeta\": 1e-06,\n  \"model_type\": \"llama\",\n  \"rope_theta\": 10000.0,\n  "
                         "\"torch_dtype\": \"bfloat16\",\n  \"tie_word_embeddings\": ") +
                 (tied ? "true" : "false") + ",\n  \"alpha\": [1, 2.50, null]\n}\n");
}

inline at::Tensor find(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [n, t] : tensors)
    if (n == name) return t;
  return {};
}

inline quant::CheckpointOptions options_with(quant::PlanOptions plan, std::string form = "compressed-tensors") {
  quant::CheckpointOptions options;
  options.plan = std::move(plan);
  options.form = std::move(form);
  return options;
}

/// A measurement of these weights, with inputs of amax 1, 2, 3, ...
inline measure::MeasurementFile measured(const NamedTensors& tensors) {
  measure::MeasurementFile file;
  for (const auto& [name, t] : tensors) {
    const std::string module = name.substr(0, name.size() - 7);
    if (t.dim() != 2 || module == "model.embed_tokens") continue;
    file.modules.push_back({module,
                            {{1.0f + static_cast<float>(file.modules.size())}},
                            std::nullopt,
                            measure::Amax{amax_reference(t, 1)[0]}});
  }
  return file;
}

/// The modules of a report: those in fp8, and the others with the reason.
inline std::set<std::string> quantized_by(const quant::CheckpointReport& report) {
  std::set<std::string> names;
  for (const auto& [name, scheme] : report.quantized) names.insert(name);
  return names;
}
inline std::map<std::string, std::string> reasons(const quant::CheckpointReport& report) {
  std::map<std::string, std::string> by_name;
  for (const auto& s : report.skipped) by_name[s.name] = s.reason;
  return by_name;
}

}  // namespace fp8::test

namespace fp8 {
using test::holds;
using test::measured;
using test::options_with;
using test::quantized_by;
using test::read_tensor;
using test::reasons;
}  // namespace fp8
