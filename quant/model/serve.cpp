// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/serve.h"

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::quant {

std::size_t serve(const std::vector<at::Tensor>& weights) {
  std::size_t count = 0;
  for (const at::Tensor& weight : weights) {
    if (!weight.defined() || !weight.is_hpu()) continue;
    const runtime::WeightTag* tag = runtime::find_tag(weight);
    auto* handler = tag == nullptr ? nullptr : dynamic_cast<Fp8Handler*>(tag->handler.get());
    if (handler == nullptr) continue;
    handler->expect_products();
    ++count;
  }
  return count;
}

std::size_t serve(const torch::nn::Module& model) { return serve(model.parameters()); }

std::size_t serve(const torch::jit::Module& model) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : model.parameters()) weights.push_back(parameter);
  return serve(weights);
}

}  // namespace fp8::quant
