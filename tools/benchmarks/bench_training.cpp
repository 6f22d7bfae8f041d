// SPDX-License-Identifier: Apache-2.0
// A training step (forward and backward) of two linear layers, hidden 1024, batch x length 1024, inner 4096: fp8 by
// each recipe beside bf16 autocast of the same parameters. step ratio: fp8's time by bf16's; saved_bytes: memory of the
// device between forward and backward that was not there before, of both.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>

#include <memory>
#include <string>
#include <vector>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/device.h"
#include "fp8/tools/benchmarks/bench.h"
#include "fp8/transformer_engine/products/fp8_linear.h"

namespace fp8::bench::training_cases {
namespace {

constexpr std::int64_t kTokens = 1024, kHidden = 1024, kInner = 4096;

struct Layers {
  at::Tensor x, w1, w2, g;
  std::shared_ptr<te::Fp8State> up = std::make_shared<te::Fp8State>("up", 2, 1),
                                down = std::make_shared<te::Fp8State>("down", 2, 1);

  Layers() {
    const auto on_hpu = at::TensorOptions().device(at::Device(at::kHPU, 0)).dtype(at::kFloat);
    x = at::randn({kTokens, kHidden}, on_hpu).requires_grad_(true);
    w1 = (at::randn({kInner, kHidden}, on_hpu) * 0.02).requires_grad_(true);
    w2 = (at::randn({kHidden, kInner}, on_hpu) * 0.02).requires_grad_(true);
    g = at::randn({kTokens, kHidden}, on_hpu).to(at::kBFloat16);
  }

  at::Tensor product(const at::Tensor& input, const at::Tensor& w, const std::shared_ptr<te::Fp8State>& state) const {
    return te::is_fp8_enabled() ? te::fp8_linear(input, w, std::nullopt, state) : at::linear(input, w);
  }

  /// Bytes kept for backward.
  std::int64_t step(const te::Fp8AutocastOptions& options) {
    for (auto* t : {&x, &w1, &w2}) t->mutable_grad() = at::Tensor();
    const std::int64_t before = runtime::memory_stats().InUse;
    at::Tensor y;
    {
      const runtime::autocast::AutocastGuard bf16;
      const te::fp8_autocast region(options);
      y = product(at::relu(product(x, w1, up)), w2, down);
    }
    const std::int64_t kept = runtime::memory_stats().InUse - before - static_cast<std::int64_t>(y.nbytes());
    y.backward(g);
    return kept;
  }
};

/// The gradients of w1, w2 and x in fp8 against those of bf16: what their last product and those before it round, 2^-3
/// at most of each operand in E5M2.
void check(Layers& layers, const te::Fp8AutocastOptions& on, const te::Fp8AutocastOptions& off,
           const std::string& name) {
  constexpr int kSteps = 3;  // until scales come from the history
  for (int i = 0; i < kSteps; ++i) layers.step(on);
  const at::Tensor parameters[] = {layers.w1, layers.w2, layers.x};
  std::vector<at::Tensor> found;
  for (const auto& t : parameters) found.push_back(t.grad().to(at::kFloat));
  layers.step(off);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const at::Tensor expected = parameters[i].grad().to(at::kFloat);
    require(((found[i] - expected).norm() / expected.norm()).item<double>() < 0.25, "training " + name);
  }
}

void bench_training(Runner& runner) {
  using recipes::DelayedScaling;
  DelayedScaling habana = DelayedScaling::habana();
  habana.fp8_format = recipes::RecipeFormat::HYBRID;
  const std::vector<std::pair<const char*, recipes::Recipe>> all = {{"habana HYBRID", habana},
                                                                    {"habana E5M2", DelayedScaling::habana()},
                                                                    {"nvidia", DelayedScaling::nvidia()},
                                                                    {"current", recipes::CurrentScaling{}},
                                                                    {"block", recipes::BlockScaling{}},
                                                                    {"mxfp8", recipes::MXFP8{}}};
  runtime::init();
  for (const auto& [name, recipe] : all) {
    if (!runner.wants(name)) continue;
    Layers layers;
    const te::Fp8AutocastOptions on{.enabled = true, .recipe = recipe}, off{.enabled = false};
    check(layers, on, off, name);
    const std::int64_t fp8_kept = layers.step(on), bf16_kept = layers.step(off);
    const auto ns = runner.medians({[&] { layers.step(on); }, [&] { layers.step(off); }});
    runner.print({.name = name,
                  .ns = ns[0],
                  .macs = 3.0 * 2.0 * kTokens * kHidden * kInner,
                  .torch_ns = ns[1],
                  .extra = {{"step_ratio", ns[0] / ns[1]},
                            {"saved_bytes", static_cast<double>(fp8_kept)},
                            {"bf16_saved_bytes", static_cast<double>(bf16_kept)}}});
  }
}

const Registration kTraining("training", bench_training);

}  // namespace
}  // namespace fp8::bench::training_cases
