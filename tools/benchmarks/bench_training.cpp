// SPDX-License-Identifier: Apache-2.0
// A training step (forward and backward) of two linear layers, hidden 1024, batch x length 1024, inner 4096: fp8 by
// each recipe beside bf16 autocast of the same parameters. step ratio: fp8's time by bf16's; saved_bytes: memory of the
// device between forward and backward that was not there before, of both.
//
// The cost of profiling: a leaf without a listener, and a training step in fp8 (two linear layers, forward and
// backward) of hidden 1024 and 64 without a profiler, with one that waits and with one that records. Steps are timed
// alternately; the begin and end of a recording are not counted. hpu_op_share: the share of a recorded step's time that
// its leaves explain.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/profile/hpu_profiler.h"
#include "fp8/tools/benchmarks/bench.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"

namespace fp8::bench::training_cases {
namespace {

constexpr std::int64_t kTokens = 1024, kHidden = 1024, kInner = 4 * kHidden;

/// As many tokens as channels.
struct Layers {
  at::Tensor x, w1, w2, g;
  std::shared_ptr<te::Fp8State> up = std::make_shared<te::Fp8State>("up", 2, 1),
                                down = std::make_shared<te::Fp8State>("down", 2, 1);

  explicit Layers(std::int64_t hidden) {
    const auto on_hpu = at::TensorOptions().device(at::Device(at::kHPU, 0)).dtype(at::kFloat);
    x = at::randn({hidden, hidden}, on_hpu);
    w1 = (at::randn({4 * hidden, hidden}, on_hpu) * 0.02).requires_grad_(true);
    w2 = (at::randn({hidden, 4 * hidden}, on_hpu) * 0.02).requires_grad_(true);
    g = at::randn({hidden, hidden}, on_hpu).to(at::kBFloat16);
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

/// A step of te::TransformerLayer, which tools/benchmarks/python.py compares with Python's.
void bench_layer(Runner& runner) {
  const std::string name = "te.TransformerLayer";
  if (!runner.wants(name)) return;
  te::TransformerLayerOptions options;
  options.hidden_size = 256, options.ffn_hidden_size = 1024, options.num_attention_heads = 4;
  options.hidden_dropout = options.attention_dropout = 0;
  te::TransformerLayer layer(options);
  const at::Tensor x = at::randn({128, 4, 256}, at::TensorOptions().device(at::Device(at::kHPU, 0)));
  const auto step = [&] {
    at::Tensor input = x.detach().requires_grad_(true), y;
    {
      const te::fp8_autocast region({.enabled = true, .recipe = recipes::DelayedScaling::nvidia()});
      y = layer->forward(input);
    }
    y.backward(at::ones_like(y));
  };
  runner.print({.name = name, .ns = runner.medians({step})[0]});
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
  bench_layer(runner);
  for (const auto& [name, recipe] : all) {
    if (!runner.wants(name)) continue;
    Layers layers(kHidden);
    layers.x.requires_grad_(true);
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

runtime::HPUProfilerOptions profiler_options(const runtime::ProfileSchedule& schedule) {
  runtime::HPUProfilerOptions o;
  o.dirpath = std::filesystem::temp_directory_path().string();
  o.schedule = schedule;
  o.export_to_chrome = false;
  o.warn = [](const std::string&) {};  // a recording that ends before its schedule is what is wanted
  return o;
}

/// Nanoseconds of a step in fp8: off, registered, recording; and the share of the last that is leaves.
std::array<Time, 4> times_of(Layers& layers, const Runner& runner) {
  constexpr std::int64_t kNever = std::int64_t{1} << 40;
  const te::Fp8AutocastOptions on{.enabled = true};
  std::array<std::vector<double>, 4> all;
  layers.step(on);
  runner.repeat(3, [&] {
    for (std::size_t i = 0; i < 3; ++i) {
      std::optional<runtime::HPUProfiler> profiler;
      if (i == 1) profiler.emplace(profiler_options({.wait = kNever}));
      if (i == 2) profiler.emplace(profiler_options({.wait = 0, .warmup = 0, .active = kNever}));
      if (profiler) profiler->begin_stage("fit");
      const double begin = now_ns();
      layers.step(on);
      all[i].push_back(now_ns() - begin);
      if (profiler) profiler->end_stage();
      if (i == 2) all[3].push_back(static_cast<double>(profiler->leaves().total().ns) / all[2].back());
    }
  });
  return {time_of(all[0]), time_of(all[1]), time_of(all[2]), time_of(all[3])};
}

void run_leaf(Runner& runner) {
  if (!runner.wants("leaf, nobody hears")) return;
  const at::Tensor x = at::randn({16}, at::TensorOptions().device(at::Device(at::kHPU, 0)));
  constexpr int kLeaves = 100000;
  const auto loop = [](auto&& body) {
    return [body] {
      for (int i = 0; i < kLeaves; ++i) {
        body();
        __asm__ volatile("" ::: "memory");
      }
    };
  };
  const auto times = runner.medians({loop([] {}), loop([&x] {
                                       runtime::LeafScope leaf("bench::op", x);
                                       leaf.gives(x);
                                     })});
  runner.print({.name = "leaf, nobody hears",
                .ns = {times[1].ns / kLeaves, times[1].spread},  // with the loop around it
                .extra = {{"loop_ns", times[0].ns / kLeaves}}});
}

void run_steps(Runner& runner) {
  for (const std::int64_t hidden : {std::int64_t{1024}, std::int64_t{64}}) {
    const std::string name = "step hidden " + std::to_string(hidden);
    if (!runner.wants(name)) continue;
    Layers layers(hidden);  // no gradient goes to what comes in
    const auto [off, registered, recording, share] = times_of(layers, runner);
    runner.print(
        {.name = name,
         .ns = off,
         .extra = {
             {"registered_ratio", registered / off}, {"recording_ratio", recording / off}, {"hpu_op_share", share}}});
  }
}

void run(Runner& runner) {
  run_leaf(runner);
  run_steps(runner);
}

const Registration g_profile("profile", run);

}  // namespace
}  // namespace fp8::bench::training_cases
