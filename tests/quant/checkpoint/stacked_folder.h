// SPDX-License-Identifier: Apache-2.0
// A checkpoint folder with stacked experts that is quantized, and its codes and scales against the formulas.
#pragma once

#include "quant/checkpoint/small_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::test {

inline constexpr std::int64_t kExperts = 5, kInner = 12, kHidden = 20;

/// A checkpoint of a family with what is added to it, and what quantizing it gave.
struct Folder {
  TempDir dir;
  NamedTensors tensors;
  quant::CheckpointOptions options;
  std::string config;
  bool is_written = false;  // a run goes on only with the very same files

  explicit Folder(const std::string& model_type) : config("{\"model_type\": \"" + model_type + "\"}") {
    torch::manual_seed(11);
    tensors.emplace_back("model.layers.0.self_attn.q_proj.weight", torch::randn({kHidden, kHidden}).to(at::kBFloat16));
  }
  Folder& add(const NamedTensors& more) {
    tensors.insert(tensors.end(), more.begin(), more.end());
    return *this;
  }
  quant::CheckpointReport run(const char* out = "out") {
    if (!std::exchange(is_written, true)) {
      write_tensors(dir / "in", tensors);
      write_text(dir / "in/config.json", config);
    }
    return quant::quantize_checkpoint(dir / "in", dir / out, options);
  }
  std::set<std::string> names() const {
    const io::Checkpoint checkpoint(dir / "out");
    return {checkpoint.names().begin(), checkpoint.names().end()};
  }
  io::Json quantization() const { return io::read_json(dir / "out/config.json")["quantization_config"]; }
  at::Tensor out(const std::string& name) const { return read_tensor(dir / "out", name); }
  /// code * scale of a module, in f64.
  at::Tensor decoded(const std::string& module) const {
    at::Tensor values = torch::empty({256}, at::kDouble);
    for (int i = 0; i < 256; ++i) values[i] = e4m3_value(i);
    return values.index({out(module + ".weight").to(at::kLong)}) * out(module + ".weight_scale").to(at::kDouble);
  }
  void expect_channels(const std::string& module, const at::Tensor& w) const {
    const auto want = quantize_by_amax(w, w.size(0));
    EXPECT_TRUE(same_bits(out(module + ".weight"), want.codes)) << module;
    std::vector<float> inv;
    for (const float a : amax_reference(w, w.size(0))) inv.push_back(own_scale_inv(a, 448.0f));
    EXPECT_TRUE(same_bits(out(module + ".weight_scale"), torch::tensor(inv).view({-1, 1}))) << module;
  }
};

}  // namespace fp8::test
