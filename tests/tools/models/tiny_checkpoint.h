// SPDX-License-Identifier: Apache-2.0
// A Llama checkpoint of a few kilobytes in a folder, every weight small and from a counter, to be spoiled by the tests
// of the loader. Also the expected names of Hugging Face's Llama, written down independently of the model.
#pragma once
#include <gtest/gtest.h>

#include <fstream>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::models::testing {

struct TinyTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

struct TinyCheckpoint {
  io::Json config;
  std::map<std::string, TinyTensor> tensors;

  /// 2 layers, H 16, A 4, K 2, D 4, F 24, V 32.
  TinyCheckpoint() {
    config = {{"model_type", "llama"},    {"vocab_size", 32},
              {"hidden_size", 16},        {"intermediate_size", 24},
              {"num_hidden_layers", 2},   {"num_attention_heads", 4},
              {"num_key_value_heads", 2}, {"max_position_embeddings", 64},
              {"rms_norm_eps", 1e-5},     {"torch_dtype", "float32"},
              {"eos_token_id", 2}};
    add("model.embed_tokens.weight", {32, 16});
    add("lm_head.weight", {32, 16});
    add("model.norm.weight", {16});
    for (int layer = 0; layer < 2; ++layer) {
      const auto p = "model.layers." + std::to_string(layer) + ".";
      add(p + "self_attn.q_proj.weight", {16, 16});
      add(p + "self_attn.k_proj.weight", {8, 16});
      add(p + "self_attn.v_proj.weight", {8, 16});
      add(p + "self_attn.o_proj.weight", {16, 16});
      add(p + "mlp.gate_proj.weight", {24, 16});
      add(p + "mlp.up_proj.weight", {24, 16});
      add(p + "mlp.down_proj.weight", {16, 24});
      add(p + "input_layernorm.weight", {16});
      add(p + "post_attention_layernorm.weight", {16});
    }
  }

  /// Values in (-0.5, 0.5) from a multiplicative counter.
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    TinyTensor tensor{std::move(shape), {}};
    std::int64_t n = 1;
    for (const auto size : tensor.shape) n *= size;
    for (std::int64_t i = 0; i < n; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      tensor.values.push_back(static_cast<float>(static_cast<double>(state_ >> 40) / (1 << 24) - 0.5));
    }
    tensors[name] = std::move(tensor);
  }

  /// Writes config.json and model.safetensors (all F32).
  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << config.dump(1) << "\n";
    std::vector<io::SafetensorsWriter::Entry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, io::DType::F32, tensor.shape});
    io::SafetensorsWriter writer(folder / "model.safetensors", entries);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor.values.data());
    writer.commit();
  }

 private:
  std::uint64_t state_ = 1;
};

/// TinyCheckpoint as a Mixtral: 4 experts, 2 of them for each token.
struct TinyMixtral : TinyCheckpoint {
  static constexpr int kExperts = 4;

  TinyMixtral() {
    config["model_type"] = "mixtral";
    config["rope_theta"] = 10000.0;
    config["num_local_experts"] = kExperts;
    config["num_experts_per_tok"] = 2;
    std::erase_if(tensors, [](const auto& item) { return item.first.find(".mlp.") != std::string::npos; });
    for (int layer = 0; layer < 2; ++layer) {
      const auto p = "model.layers." + std::to_string(layer) + ".block_sparse_moe.";
      add(p + "gate.weight", {kExperts, 16});
      for (int e = 0; e < kExperts; ++e) {
        const auto expert = p + "experts." + std::to_string(e) + ".";
        add(expert + "w1.weight", {24, 16});
        add(expert + "w2.weight", {16, 24});
        add(expert + "w3.weight", {24, 16});
      }
    }
  }

  /// The experts of each layer as two stacked tensors below "mlp", as transformers 5 holds them.
  void stack() {
    for (int layer = 0; layer < 2; ++layer) {
      const auto p = "model.layers." + std::to_string(layer) + ".";
      TinyTensor gate_up{{kExperts, 48, 16}, {}}, down{{kExperts, 16, 24}, {}};
      const auto move = [&](const std::string& name, TinyTensor& to) {
        const auto& from = tensors.at(name).values;
        to.values.insert(to.values.end(), from.begin(), from.end());
        tensors.erase(name);
      };
      for (int e = 0; e < kExperts; ++e) {
        const auto expert = p + "block_sparse_moe.experts." + std::to_string(e) + ".";
        move(expert + "w1.weight", gate_up);
        move(expert + "w3.weight", gate_up);
        move(expert + "w2.weight", down);
      }
      tensors[p + "mlp.experts.gate_up_proj"] = std::move(gate_up);
      tensors[p + "mlp.experts.down_proj"] = std::move(down);
      tensors[p + "mlp.gate.weight"] = tensors.at(p + "block_sparse_moe.gate.weight");
      tensors.erase(p + "block_sparse_moe.gate.weight");
    }
  }
};

}  // namespace fp8::models::testing
