// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts made in the test: each expert's matrices one by one, and the ways in which checkpoints stack
// them, by torch alone.
#pragma once
#include "quant/checkpoint/small_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"
#include "support/values.h"

namespace fp8::test {

/// gate, up [I, H] and down [H, I] of every expert.
struct Experts {
  std::vector<at::Tensor> gate, up, down;
  std::int64_t count() const { return static_cast<std::int64_t>(down.size()); }

  Experts(std::int64_t experts, std::int64_t inner, std::int64_t hidden, at::ScalarType dtype = at::kBFloat16) {
    for (std::int64_t e = 0; e < experts; ++e) {
      gate.push_back(torch::randn({inner, hidden}).to(dtype));
      up.push_back((torch::randn({inner, hidden}) * 3).to(dtype));
      down.push_back((torch::randn({hidden, inner}) * 0.1).to(dtype));
    }
  }

  /// [E, 2 I, H]: gate's rows above up's, or by turns.
  at::Tensor gate_up(bool interleaved = false) const {
    std::vector<at::Tensor> both;
    for (std::size_t e = 0; e < gate.size(); ++e)
      both.push_back(interleaved ? torch::stack({gate[e], up[e]}, 1).reshape({2 * gate[e].size(0), gate[e].size(1)})
                                 : torch::cat({gate[e], up[e]}, 0));
    return torch::stack(both);
  }
  /// [E, H, I].
  at::Tensor downs() const { return torch::stack(down); }
};

/// [E, out, in] as [E, in, out].
inline at::Tensor axes_swapped(const at::Tensor& stack) { return stack.transpose(1, 2).contiguous(); }

/// One layer of experts below `parent` ("model.layers.0.mlp."), and what else such a layer has.
inline NamedTensors stacked_layer(const Experts& experts, const std::string& parent, bool in_out = false,
                                  const std::string& gate_up = "experts.gate_up_proj",
                                  const std::string& down = "experts.down_proj", const std::string& router = "gate") {
  const at::Tensor up = experts.gate_up(), downs = experts.downs();
  const std::int64_t hidden = downs.size(1);
  return {{parent + gate_up, in_out ? axes_swapped(up) : up},
          {parent + down, in_out ? axes_swapped(downs) : downs},
          {parent + router + ".weight", torch::randn({experts.count(), hidden}).to(up.scalar_type())}};
}

// A checkpoint folder with stacked experts that is quantized, and its codes and scales against the formulas.

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
    EXPECT_TRUE(same_bits(out(module + ".weight"), quantize_by_amax(w, w.size(0)).codes)) << module;
    auto inv = collected(amax_reference(w, w.size(0)), [](const float a) { return own_scale_inv(a, 448.0f); });
    EXPECT_TRUE(same_bits(out(module + ".weight_scale"), torch::tensor(inv).view({-1, 1}))) << module;
  }
};

}  // namespace fp8::test
