// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts made in the test: each expert's matrices one by one, and the ways in which checkpoints stack
// them, by torch alone.
#pragma once

#include "quant/checkpoint/small_checkpoint.h"

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

}  // namespace fp8::test
