// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/module_tree.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace fp8::measure {
namespace {

template <class Impl>
bool take(const torch::nn::Module& module, const char* type, WeightModule& out) {
  const auto* typed = dynamic_cast<const Impl*>(&module);
  if (typed == nullptr) return false;
  out.type = type;
  out.weight = typed->weight;
  if constexpr (!std::is_same_v<Impl, torch::nn::EmbeddingImpl>) {
    if (typed->bias.defined()) out.bias = typed->bias;
  }
  return true;
}

bool known_type(const std::string& type) {
  for (const char* name : {"Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding"}) {
    if (type == name) return true;
  }
  return false;
}

at::Tensor attribute(const torch::jit::Module& module, const char* name) {
  if (!module.hasattr(name)) return {};
  const auto value = module.attr(name);
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

}  // namespace

std::vector<WeightModule> weight_modules(const torch::nn::Module& model) {
  std::vector<WeightModule> out;
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    WeightModule m;
    m.name = item.key();
    const torch::nn::Module& module = *item.value();
    if (take<torch::nn::LinearImpl>(module, "Linear", m) || take<torch::nn::Conv1dImpl>(module, "Conv1d", m) ||
        take<torch::nn::Conv2dImpl>(module, "Conv2d", m) || take<torch::nn::Conv3dImpl>(module, "Conv3d", m) ||
        take<torch::nn::EmbeddingImpl>(module, "Embedding", m)) {
      out.push_back(std::move(m));
    }
  }
  return out;
}

std::vector<WeightModule> weight_modules(const torch::jit::Module& model) {
  std::vector<WeightModule> out;
  for (const auto& item : model.named_modules()) {
    WeightModule m;
    m.name = item.name;
    const auto qualified = item.value.type()->name();
    if (!qualified.has_value()) continue;
    m.type = qualified->name();
    m.weight = attribute(item.value, "weight");
    if (!known_type(m.type) || !m.weight.defined()) continue;
    if (const auto bias = attribute(item.value, "bias"); bias.defined()) m.bias = bias;
    out.push_back(std::move(m));
  }
  return out;
}

}  // namespace fp8::measure
