// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: a part of the model keeps its inputs only and runs again in backward. The second run finds
// the random numbers, the autocast and fp8 regions and the fp8 scales of the first, so its gradients are bit-equal to
// those without checkpointing; amaxes are recorded once.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace fp8::te {

struct CheckpointOptions {
  bool preserve_rng_state = true;  ///< false where the function draws no random numbers
};

using CheckpointedFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// function(inputs), recomputed in backward. Parameters that the function uses get their gradients in backward().
/// autograd::grad() and backward() with inputs, which would leave these out, throw where the function is on their way
/// (asked for such a parameter alone they don't meet the function). Undefined inputs are passed on; results that are
/// indices or masks have no gradient. The function must outlive backward and give the same result on the same inputs. A
/// second derivative throws by name.
std::vector<at::Tensor> checkpoint(const CheckpointedFunction& function, const std::vector<at::Tensor>& inputs,
                                   const CheckpointOptions& options = {});
/// One result.
at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function, const at::Tensor& input,
                      const CheckpointOptions& options = {});

}  // namespace fp8::te
