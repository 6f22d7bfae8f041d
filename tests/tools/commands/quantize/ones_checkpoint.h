// SPDX-License-Identifier: Apache-2.0
// Checkpoint folders whose values are all 1.0 (BF16): for tests that look at names, not at numbers. No torch here.
#pragma once
#include <fstream>

#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::test {

using NamedShapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

/// config.json and model.safetensors in `folder`; returns its name.
inline std::string write_ones(const std::filesystem::path& folder, const NamedShapes& tensors,
                              const std::string& config) {
  std::filesystem::create_directories(folder);
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& [name, shape] : tensors) entries.push_back({name, io::DType::BF16, shape});
  io::SafetensorsWriter writer(folder / "model.safetensors", entries);
  for (const auto& [name, shape] : tensors) {
    std::size_t count = 1;
    for (const auto extent : shape) count *= static_cast<std::size_t>(extent);
    const std::vector<std::uint16_t> ones(count, 0x3f80);
    writer.write(name, ones.data(), 0, 2 * count);
  }
  writer.commit();
  std::ofstream(folder / "config.json") << config;
  return folder.string();
}

/// A layer of Qwen3-MoE with two experts in stacks; readers make its head of the embedding.
inline std::string write_mixture(const std::filesystem::path& folder) {
  const std::string layer = "model.layers.0.", mlp = layer + "mlp.";
  return write_ones(folder,
                    {{"model.embed_tokens.weight", {16, 32}},
                     {layer + "self_attn.o_proj.weight", {32, 32}},
                     {mlp + "gate.weight", {2, 32}},
                     {mlp + "experts.gate_up_proj", {2, 64, 32}},
                     {mlp + "experts.down_proj", {2, 32, 32}}},
                    R"({"model_type": "qwen3_moe", "tie_word_embeddings": true, "num_experts": 2})");
}

}  // namespace fp8::test
