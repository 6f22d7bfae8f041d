// SPDX-License-Identifier: Apache-2.0
// Products that share an input cast it once: q, k and v, gate and up, all that have the same scale. What a tensor was
// cast to last is kept with its memory (device/block.h) and goes with it.
//
//   q = cast_once(x, x, spec)     casts          k = cast_once(x, x, spec)    takes q's codes
//   x.add_(1)                                    v = cast_once(x, x, spec)    casts again
//
// "The same tensor" is the same TensorImpl at the same version: an in-place operation through any view makes it
// another, as for autograd's saved tensors (a write through Tensor::data goes unnoticed, as there). Tensors made in
// InferenceMode have no version, and are cast each time; codes of others are ordinary tensors there, too, as a step of
// training may take them.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <utility>

#include "fp8/runtime/fp8_tensor/cast.h"

namespace fp8::runtime {

/// While it lives, what is made in InferenceMode is made without it, and without gradients: what is kept for later
/// calls, which may be of training.
class OrdinaryTensors {
 public:
  OrdinaryTensors() {
    if (!c10::InferenceMode::is_enabled()) return;
    outside_.emplace(false);
    no_grad_.emplace();
  }

 private:
  std::optional<c10::InferenceMode> outside_;
  std::optional<at::NoGradGuard> no_grad_;
};

/// quantize(values, spec); `values` is what the caller made of `x` (another dtype, contiguous, other sizes). The codes
/// are shared: nobody may write into them. Stochastic casts and those with many given scales are never shared.
Fp8Tensor cast_once(const at::Tensor& x, const at::Tensor& values, const CastSpec& spec);
/// The same where quantize(x, spec) is known already: `result`, which the next cast_once(x, x, spec) gives.
void keep_cast(const at::Tensor& x, const CastSpec& spec, const Fp8Tensor& result);
/// Whether casts of x are kept: x has a version and a Block, and is no weight.
bool may_keep_casts(const at::Tensor& x);
/// cast_once() of quantize_both().
std::pair<Fp8Tensor, Fp8Tensor> cast_both_once(const at::Tensor& x, const at::Tensor& values, const CastSpec& first,
                                               const CastSpec& second);
/// amax_of(values).
float amax_once(const at::Tensor& x, const at::Tensor& values);

}  // namespace fp8::runtime
