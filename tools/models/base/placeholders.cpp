// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/base/placeholders.h"

#include <ATen/ops/full.h>

#include <limits>

namespace fp8::models {
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

}  // namespace fp8::models
