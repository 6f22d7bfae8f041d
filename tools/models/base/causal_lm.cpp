// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/base/causal_lm.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_set>

#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::models {

at::Tensor positions_of(std::int64_t length, std::int64_t source, const Cache* cache) {
  const auto start = cache != nullptr ? cache->length() : 0;
  auto columns = at::arange(start, start + length - source, at::kFloat).unsqueeze(0);
  if (source > 0) columns = at::cat({at::arange(source, at::kFloat).unsqueeze(0), columns}, 1);
  if (cache == nullptr || cache->starts().empty()) return columns;
  return columns - at::tensor(cache->starts(), at::kFloat).unsqueeze(1);
}

void Cache::keep(const std::vector<std::int64_t>&) {
  TORCH_CHECK(false, "[models] sequences of this cache can't be taken out");
}

std::unique_ptr<Cache> CausalLM::join(const std::vector<Cache*>&, std::int64_t) const { return nullptr; }

at::Tensor CausalLM::forward(const at::Tensor& ids, Cache* cache, Logits logits, std::int64_t source) {
  const auto h = run_layers(ids, cache, source);
  if (logits == Logits::none) return {};
  const auto first = logits == Logits::last ? h.size(1) - 1 : source;
  return this->logits(norm(columns_of(h, first, h.size(1) - first)));
}

at::Tensor CausalLM::head_input(const at::Tensor& ids, std::int64_t source) {
  const auto h = run_layers(ids, nullptr, source);
  return norm(columns_of(h, source, h.size(1) - source));
}

at::Tensor CausalLM::logits(const at::Tensor& columns) {
  auto head = parts().head;
  return head ? finish(head->forward(columns)) : columns;
}

at::Tensor CausalLM::hidden(const at::Tensor& ids) {
  return last_hidden(run_layers(ids, nullptr, shape_.task == Task::answer ? ids.size(1) : 0));
}

at::Tensor CausalLM::run_layers(const at::Tensor& ids, Cache* cache, std::int64_t source) {
  TORCH_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong && ids.size(1) >= 1,
              "[models] expected ids [batch, length >= 1] of int64, got ", ids.sizes(), " of ", ids.scalar_type());
  TORCH_CHECK(source >= 0 && source <= (shape_.task == Task::answer ? ids.size(1) : 0), "[models] ", source, " of ",
              ids.size(1), " ids are said to be of a source");
  auto positions = ids.size(1) - source + (cache != nullptr ? cache->length() : 0);
  if (cache != nullptr && !cache->starts().empty())
    positions -= *std::min_element(cache->starts().begin(), cache->starts().end());
  positions = std::max(positions, source);
  TORCH_CHECK(positions <= shape_.context, "[models] ", positions, " positions, but max_position_embeddings is ",
              shape_.context);
  std::optional<kernels::AwakeWorkers> awake;  // products of one token follow each other fast
  if (cache != nullptr && ids.size(1) == 1) awake.emplace();
  auto modules = parts();
  auto h = embed(modules.words->forward(ids), positions_of(ids.size(1), source, cache), source);
  const auto run = begin(h, cache, source);
  for (std::int64_t i = 0; i < shape_.layers; ++i) {
    if (run_layer_ && cache == nullptr && is_training())
      h = run_layer_([run, i](const at::Tensor& x) { return run(i, x); }, h);
    else
      h = run(i, h);
  }
  if (cache != nullptr) cache->advance(ids.size(1) - source);
  return h;
}

void CausalLM::untie_head() {
  const auto modules = parts();
  const auto& shared = modules.words->weight;
  if (modules.head && modules.head->weight.is_same(shared))
    tie(modules.head, shared.detach().clone().set_requires_grad(shared.requires_grad()));
}

std::string CausalLM::name_of(const torch::nn::Module& part) const {
  for (const auto& item : named_modules("", /*include_self=*/false)) {
    if (item.value().get() == &part) return item.key();
  }
  TORCH_INTERNAL_ASSERT(false, "[models] ", part.name(), " is no part of ", name());
}

namespace {

/// Module::parameters_ is protected, and a Linear subclass would have another class name; a pointer to the member
/// reaches it.
struct ParameterAccess : torch::nn::Module {
  static auto member() { return &ParameterAccess::parameters_; }
};

}  // namespace

at::Tensor placeholder(at::IntArrayRef shape) {
  return at::full({1}, std::numeric_limits<float>::quiet_NaN(), at::kFloat).expand(shape);
}

torch::nn::Linear make_linear(std::int64_t in, std::int64_t out, bool bias) {
  torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(bias));  // without the cost of its random numbers
  linear->options.in_features(in);
  linear->options.out_features(out);
  linear->weight.set_data(placeholder({out, in}));
  if (bias) linear->bias.set_data(placeholder({out}));
  return linear;
}

torch::nn::Embedding make_embedding(std::int64_t rows, std::int64_t width) {
  return torch::nn::Embedding(torch::nn::EmbeddingOptions(rows, width)._weight(placeholder({rows, width})));
}

void tie(torch::nn::Linear linear, const at::Tensor& weight) {
  torch::nn::Module& module = *linear;
  (module.*ParameterAccess::member())["weight"] = weight;
  linear->weight = weight;
}

std::vector<std::pair<std::string, at::Tensor>> distinct_parameters(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters())
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) parameters.emplace_back(item.key(), item.value());
  return parameters;
}

std::string parent_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string leaf_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

torch::nn::Module& module_at(torch::nn::Module& root, const std::string& path, const std::string& type) {
  if (path.empty()) return root;
  torch::nn::Module& parent = module_at(root, parent_of(path));
  const std::string name = leaf_of(path);
  const auto children = parent.named_children();
  if (const auto* found = children.find(name)) return **found;
  return *parent.register_module(name, std::make_shared<torch::nn::Module>(type));
}

}  // namespace fp8::models
