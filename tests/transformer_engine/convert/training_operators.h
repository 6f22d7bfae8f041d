// SPDX-License-Identifier: Apache-2.0
// Training by operators: a model of two weights, and regions around what it computes.
#pragma once

#include "support/hpu_test.h"
#include "support/operator_call.h"

namespace fp8::test {

inline const Words kNames = {"up", "down"}, kTypes = {"Linear", "Linear"};

struct Model {
  at::Tensor a, b;
  explicit Model(std::uint64_t seed = 1) {
    torch::manual_seed(seed);
    a = at::randn({32, 16}, on_hpu()).requires_grad_(true);
    b = at::randn({16, 32}, on_hpu()).requires_grad_(true);
  }
  Tensors weights() const { return {a, b}; }
  at::Tensor forward(const at::Tensor& x) const { return at::linear(at::relu(at::linear(x, a)), b); }
  io::Json attach(const std::string& recipe = "habana", const std::string& warm = "") const {
    return json_of(call_fp8("attach_training", {weights(), kNames, kTypes, recipe, warm}));
  }
};

inline std::int64_t enter(const std::string& recipe = "", bool enabled = true) {
  return call_fp8("enter_autocast", {recipe, enabled}).toInt();
}
inline void leave(std::int64_t region, bool failed = false) { call_fp8("exit_autocast", {region, failed}); }
/// Earlier tests' models are gone, which is told once.
inline void settle() {
  const auto region = enter("nvidia");
  error_of<c10::Error>([&] { leave(region); });
}
inline io::Json state(const at::Tensor& w) { return json_of(call_fp8("training_state", {w})); }

}  // namespace fp8::test
