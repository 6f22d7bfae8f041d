// SPDX-License-Identifier: Apache-2.0
// Linears that share their input: q, k and v of attention, gate and up of an MLP. A token's products are short, and one
// of all their weights has one start, one cast, and no thread that waits between them:
//
//   q, k, v = linear_together(x, {q_proj, k_proj, v_proj})       the bits of q_proj(x), k_proj(x), v_proj(x)
//
// Each weight stays its own module's. They are called one after the other wherever the difference could be seen: leaves
// that are heard (leaf/leaf.h), profilers, torch.jit.trace, autograd, autocast; handlers that watch (measure) or fake;
// weights that are not all quantized alike (or all in bf16, for one or two rows), inputs with scales of their own.
#pragma once
#include <torch/nn/modules/linear.h>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::runtime {

/// All of a tagged weight, [N, K].
struct WholeWeight {
  const WeightTag& tag;
  const at::Tensor& weight;
};

/// Of a handler that can answer for several weights at once (OpHandler::together()).
class TogetherHandler {
 public:
  virtual ~TogetherHandler() = default;
  /// x . w^T of each, to the bit what linear() of its own handler gives; empty where they are not alike. No gradient is
  /// wanted, and no autocast region in force. x: [..., K] in high precision.
  virtual std::vector<at::Tensor> linear_together(const at::Tensor& x, at::ArrayRef<WholeWeight> weights) = 0;
  /// The cast that its products make of an input of `dtype`, by cast_once() (fp8_tensor/cast.h).
  virtual NextCast input_cast(at::ScalarType /*dtype*/) const { return {}; }
};

/// The results of linears[i]->forward(x).
std::vector<at::Tensor> linear_together(const at::Tensor& x, at::ArrayRef<torch::nn::Linear> linears);

/// For who makes their input: what all of them will cast it to. `like`: a tensor of the input's rows, dtype and device.
/// None where they differ, take it as it is, or are observed, so that the cast has to be seen where it was; none of one
/// row.
NextCast input_cast(const at::Tensor& like, at::ArrayRef<torch::nn::Linear> linears);

}  // namespace fp8::runtime
