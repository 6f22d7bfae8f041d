// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/model/module_tree.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "fp8/configs/module_types.h"
#include "fp8/runtime/modules/op_modules.h"

namespace fp8::measure {
namespace {

/// "ns::RowParallelLinearImpl" -> "RowParallelLinear".
std::string class_name(const torch::nn::Module& module) {
  std::string name = module.name();
  if (const auto colon = name.rfind(':'); colon != std::string::npos) name.erase(0, colon + 1);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

bool holds_weight(const configs::ModuleType& type) { return configs::info_of(type.kind).weight; }

/// The class in the table that `module` counts as; nullptr if none.
const configs::ModuleType* type_of(const torch::nn::Module& module) {
  if (const auto* type = configs::find_module_type(class_name(module))) return type;
  if (dynamic_cast<const torch::nn::LinearImpl*>(&module) != nullptr) return configs::find_module_type("Linear");
  if (dynamic_cast<const torch::nn::Conv1dImpl*>(&module) != nullptr) return configs::find_module_type("Conv1d");
  if (dynamic_cast<const torch::nn::Conv2dImpl*>(&module) != nullptr) return configs::find_module_type("Conv2d");
  if (dynamic_cast<const torch::nn::Conv3dImpl*>(&module) != nullptr) return configs::find_module_type("Conv3d");
  if (dynamic_cast<const torch::nn::EmbeddingImpl*>(&module) != nullptr) return configs::find_module_type("Embedding");
  if (dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module) != nullptr)
    return configs::find_module_type("EmbeddingBag");
  return nullptr;
}

/// Lists the weights of one module. get(name): the parameter, or an undefined tensor.
template <class Get>
void add_weights(const std::string& name, const configs::ModuleType& type, const std::vector<std::string>& parameters,
                 const Get& get, std::vector<WeightModule>& out) {
  const auto add = [&](const std::string& node, const at::Tensor& weight, const at::Tensor& bias) {
    WeightModule m{node, std::string(type.name), weight, std::nullopt};
    if (bias.defined()) m.bias = bias;
    out.push_back(std::move(m));
  };
  if (!configs::info_of(type.kind).several_weights) {
    if (const at::Tensor weight = get("weight"); weight.defined()) add(name, weight, get("bias"));
    return;
  }
  for (const std::string& p : parameters) {
    if (!p.starts_with("weight_")) continue;
    add(name.empty() ? p : name + "." + p, get(p), get("bias_" + p.substr(7)));
  }
}

/// A member of torch's own classes: `lm_head->weight = embed->weight` ties the members and leaves the registered
/// parameters as they were. Undefined for other classes and names.
at::Tensor member(const torch::nn::Module& module, const std::string& name) {
  const auto of = [&](const auto* m) { return name == "weight" ? m->weight : name == "bias" ? m->bias : at::Tensor(); };
  if (const auto* m = dynamic_cast<const torch::nn::LinearImpl*>(&module)) return of(m);
  if (const auto* m = dynamic_cast<const torch::nn::Conv1dImpl*>(&module)) return of(m);
  if (const auto* m = dynamic_cast<const torch::nn::Conv2dImpl*>(&module)) return of(m);
  if (const auto* m = dynamic_cast<const torch::nn::Conv3dImpl*>(&module)) return of(m);
  const auto rows = [&](const auto* m) { return name == "weight" ? m->weight : at::Tensor(); };
  if (const auto* m = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) return rows(m);
  if (const auto* m = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module)) return rows(m);
  return {};
}

at::Tensor attribute(const torch::jit::Module& module, const std::string& name) {
  if (!module.hasattr(name)) return {};
  const auto value = module.attr(name);
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

}  // namespace

std::vector<WeightModule> weight_modules(const torch::nn::Module& model) {
  std::vector<WeightModule> out;
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    const torch::nn::Module& module = *item.value();
    const auto* type = type_of(module);
    if (type == nullptr || !holds_weight(*type)) continue;
    const auto parameters = module.named_parameters(/*recurse=*/false);
    const auto get = [&](const std::string& name) {
      if (const at::Tensor own = member(module, name); own.defined()) return own;
      const auto* found = parameters.find(name);
      return found != nullptr ? *found : at::Tensor();
    };
    add_weights(item.key(), *type, parameters.keys(), get, out);
  }
  return out;
}

std::vector<WeightModule> weight_modules(const torch::jit::Module& model) {
  std::vector<WeightModule> out;
  for (const auto& item : model.named_modules()) {
    const auto qualified = item.value.type()->name();
    const auto* type = qualified.has_value() ? configs::find_module_type(qualified->name()) : nullptr;
    if (type == nullptr || !holds_weight(*type)) continue;
    std::vector<std::string> parameters;
    for (const auto& p : item.value.named_parameters(/*recurse=*/false)) parameters.push_back(p.name);
    add_weights(
        item.name, *type, parameters, [&](const std::string& name) { return attribute(item.value, name); }, out);
  }
  return out;
}

std::vector<OpNode> op_nodes(const torch::nn::Module& model) {
  std::vector<OpNode> out;
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    const auto* module = dynamic_cast<const runtime::OpModule*>(item.value().get());
    if (module != nullptr) out.push_back({item.key(), class_name(*module), module->slot()});
  }
  return out;
}

}  // namespace fp8::measure
