// SPDX-License-Identifier: Apache-2.0
// Models as users write them, with a task that each can learn in a few dozen steps, and one loop that trains them all.
#pragma once
#include "fp8/transformer_engine/convert/precision_plugin.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "support/models_for_tests.h"
#include "support/typed_models.h"
#include "support/values.h"

namespace fp8::te::test {

using namespace fp8::test;  // NOLINT: these are its tests
using Recipes = std::vector<recipes::Recipe>;

/// Why a conversion left a module in high precision; empty where it did not.
inline std::string reason(const quant::ConversionReport& report, const std::string& name) {
  for (const auto& m : report.skipped)
    if (m.name == name) return m.reason;
  return "";
}

/// The network of every MNIST tutorial, smaller.
struct MnistNetImpl : torch::nn::Module {
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr};
  MnistNetImpl() {
    fc1 = register_module("fc1", torch::nn::Linear(64, 96));
    fc2 = register_module("fc2", torch::nn::Linear(96, 48));
    fc3 = register_module("fc3", torch::nn::Linear(48, 10));
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::relu(fc1->forward(x.reshape({x.size(0), 64})));
    x = torch::relu(fc2->forward(x));
    return fc3->forward(x);
  }
};
TORCH_MODULE(MnistNet);

struct Task {
  std::shared_ptr<torch::nn::Module> model;
  std::function<at::Tensor(const at::Tensor&)> forward;
  at::Tensor x, labels;  ///< logits [..., classes] of forward(x) against labels
};

template <class Model>
Task task_of(Model model, at::Tensor x, at::Tensor labels) {
  model->to(kHpu);
  model->train();
  return {model.ptr(), [model](const at::Tensor& t) mutable { return model(t); }, hpu(x), hpu(labels)};
}

/// Labels that a random linear map of the inputs gives.
inline at::Tensor labels_of(const at::Tensor& x, std::int64_t classes) {
  return torch::matmul(x.flatten(1), torch::randn({x.flatten(1).size(1), classes})).argmax(1);
}

inline Task mlp_task(std::uint64_t seed = 5) {
  torch::manual_seed(seed);
  MnistNet net;
  const at::Tensor x = torch::randn({64, 1, 8, 8});
  return task_of(net, x, labels_of(x, 10));
}
inline Task resnet_task() {
  torch::manual_seed(6);
  ResNet net;
  const at::Tensor x = torch::randn({24, 3, 8, 8});
  return task_of(net, x, labels_of(x, 10));
}
/// Each position tells the word before it.
inline Task bert_task() {
  torch::manual_seed(7);
  Bert net(/*fused=*/false);
  const at::Tensor ids = torch::randint(40, {8, 12}, at::kLong);
  return task_of(net, ids, ids.roll(1, 1));
}
inline Task lm_task() {
  torch::manual_seed(8);
  TinyLm net;
  const at::Tensor ids = torch::randint(48, {8, 12}, at::kLong);
  return task_of(net, ids, (ids * 7 + 3) % 48);
}

inline at::Tensor loss_of(const Task& task, const at::Tensor& logits) {
  return torch::nn::functional::cross_entropy(logits.reshape({-1, logits.size(-1)}).to(at::kFloat),
                                              task.labels.reshape({-1}));
}

/// One forward in the plugin's region and backward; the optimizer is the caller's.
inline float backward_step(const Task& task, const HPUPrecisionPlugin& plugin, const Fp8AutocastOptions& options = {}) {
  const at::Tensor loss =
      test::within(plugin.forward_context(options), [&] { return loss_of(task, task.forward(task.x)); });
  loss.backward();
  return loss.item<float>();
}

inline std::vector<float> train(const Task& task, const HPUPrecisionPlugin& plugin, torch::optim::Optimizer& optimizer,
                                int steps) {
  std::vector<float> losses;
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    losses.push_back(backward_step(task, plugin));
    optimizer.step();
  }
  return losses;
}

inline double mean_of_last(const std::vector<float>& losses, std::size_t n) {
  double sum = 0;
  for (std::size_t i = losses.size() - n; i < losses.size(); ++i) sum += losses[i];
  return sum / static_cast<double>(n);
}

inline recipes::DelayedScaling habana_hybrid(int history = 1) {
  return {.fp8_format = recipes::RecipeFormat::HYBRID,
          .amax_history_len = history,
          .amax_compute_algo = recipes::AmaxComputeAlgo::max};
}

inline recipes::DelayedScaling nvidia(int history) {
  recipes::DelayedScaling d = recipes::DelayedScaling::nvidia();
  d.amax_history_len = history;
  return d;
}

/// A plugin of precision fp8 that has converted the task's model.
inline HPUPrecisionPlugin converted(const Task& task, const recipes::Recipe& recipe, ConvertOptions options = {}) {
  HPUPrecisionPlugin plugin("fp8");
  options.replace_layers = true;
  options.recipe = recipe;
  plugin.convert_modules(*task.model, options);
  return plugin;
}

inline std::vector<at::Tensor> values_of(const torch::nn::Module& model) {
  return collected(model.parameters(), [](const auto& p) { return p.detach().cpu().clone(); });
}
inline std::vector<at::Tensor> gradients_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> values;
  for (const auto& p : model.parameters()) values.push_back(p.grad().defined() ? p.grad().cpu().clone() : at::Tensor());
  return values;
}
inline ::testing::AssertionResult all_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " tensors";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (const auto same = same_bits(a[i], b[i]); !same)
      return ::testing::AssertionFailure() << "tensor " << i << ": " << same.message();
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult same_state(const torch::nn::Module& a, const torch::nn::Module& b) {
  const ExtraState x = get_extra_state(a), y = get_extra_state(b);
  if (x.json != y.json) return ::testing::AssertionFailure() << x.json.dump() << "\n" << y.json.dump();
  for (const auto& [name, tensor] : x.tensors)
    if (!same_bits(tensor, y.tensors.at(name))) return ::testing::AssertionFailure() << name;
  return ::testing::AssertionSuccess();
}

}  // namespace fp8::te::test
