// SPDX-License-Identifier: Apache-2.0
// A step of training replayed, beside the step that its code runs: six blocks x + gelu(Linear(LayerNorm(x))), batch 8,
// forward, backward, SGD. "torch_ns" is the eager step on hpu; "cpu" the ratio to plain torch on the CPU, "lazy" that
// of lazy mode to the eager step, "pipelined" that of lazy mode with a mark behind forward to lazy mode. fp8: NVIDIA's
// delayed scaling.
#include <ATen/ops/gelu.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/api/include/torch/nn/modules/linear.h>
#include <torch/csrc/api/include/torch/nn/modules/normalization.h>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/graph/hpu_graph.h"
#include "fp8/runtime/lazy/lazy_mode.h"
#include "fp8/tools/benchmarks/bench.h"
#include "fp8/transformer_engine/te.h"

namespace fp8::bench::graph_cases {
namespace {

struct Net : torch::nn::Module {
  explicit Net(std::int64_t hidden) {
    for (int i = 0; i < 6; ++i) {
      norms.push_back(
          register_module("norm" + std::to_string(i), torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden}))));
      linears.push_back(register_module("linear" + std::to_string(i), torch::nn::Linear(hidden, hidden)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < norms.size(); ++i) x = x + at::gelu(linears[i](norms[i](x)));
    return x;
  }
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<torch::nn::Linear> linears;
};

class Step {
 public:
  Step(std::int64_t hidden, at::Device device, bool fp8) : net_(std::make_shared<Net>(hidden)), fp8_(fp8) {
    net_->to(device);
    x_ = torch::randn({8, hidden}).to(device);
    if (fp8) {
      te::TrainingOptions options;
      options.recipe = recipe();
      te::convert_for_training(*net_, options);
    }
    parameters_ = net_->parameters();
    for (auto& p : parameters_) p.mutable_grad() = at::zeros_like(p);
  }
  void operator()(bool marks = false) {
    for (auto& p : parameters_) p.grad().zero_();
    at::Tensor y;
    if (fp8_) {
      const te::fp8_autocast region(true, recipe());
      y = net_->forward(x_);
    } else {
      y = net_->forward(x_);
    }
    if (marks) runtime::submit_work();
    y.square().mean().backward();
    const at::NoGradGuard no_grad;
    for (auto& p : parameters_) p.sub_(p.grad(), 1e-4);
  }

 private:
  static recipes::Recipe recipe() { return recipes::DelayedScaling::nvidia(); }
  std::shared_ptr<Net> net_;
  bool fp8_;
  at::Tensor x_;
  std::vector<at::Tensor> parameters_;
};

void run(Runner& runner) {
  for (const bool fp8 : {false, true}) {
    for (const std::int64_t hidden : {16, 64, 256, 1024}) {
      const std::string name = std::string(fp8 ? "fp8" : "f32") + " step, hidden " + std::to_string(hidden);
      if (!runner.wants(name)) continue;
      Step eager(hidden, at::kHPU, fp8), captured(hidden, at::kHPU, fp8), cpu(hidden, at::kCPU, false),
          lazy(hidden, at::kHPU, fp8);
      const auto lazily = [&](bool marks) {
        runtime::set_lazy_mode(true);
        lazy(marks);
        runtime::set_lazy_mode(false);  // waits
      };
      captured();
      runtime::HPUGraph graph;
      {
        const runtime::GraphCapture capture(graph);
        captured();
      }
      const auto peak = [](const std::function<void()>& f) {
        runtime::reset_peak_memory_stats();
        const auto before = runtime::memory_allocated();
        f();
        return static_cast<double>(runtime::max_memory_allocated() - before);
      };
      const std::function<void()> replay = [&] { graph.replay(); };
      const auto times =
          runner.medians({replay, [&] { eager(); }, [&] { cpu(); }, [&] { lazily(false); }, [&] { lazily(true); }});
      runner.print({.name = name,
                    .ns = times[0],
                    .torch_ns = times[1],
                    .extra = {{"cpu", times[0] / times[2]},
                              {"lazy", times[3] / times[1]},
                              {"pipelined", times[4] / times[3]},
                              {"peak", peak(replay) / peak([&] { eager(); })}}});
    }
  }
}

const Registration registration("graph", run);

}  // namespace
}  // namespace fp8::bench::graph_cases
