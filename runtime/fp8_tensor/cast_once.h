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
/// are shared and must not be written into. Stochastic casts and those with many given scales are never shared.
Fp8Tensor cast_once(const at::Tensor& x, const at::Tensor& values, const CastSpec& spec);
/// Keeps `result`, which quantize(x, spec) is known to be and which the next cast_once(x, x, spec) gives.
void keep_cast(const at::Tensor& x, const CastSpec& spec, const Fp8Tensor& result);
/// True if casts of x are kept: x has a version and a Block, and is no weight.
bool may_keep_casts(const at::Tensor& x);
/// cast_once() of quantize_both().
std::pair<Fp8Tensor, Fp8Tensor> cast_both_once(const at::Tensor& x, const at::Tensor& values, const CastSpec& first,
                                               const CastSpec& second);
/// amax_of(values).
float amax_once(const at::Tensor& x, const at::Tensor& values);

// The cast of a tensor by the kernel that writes it, row by row (kernels/cast.h, cast_row), where it's known what the
// next product will cast it to: no pass of its own over memory.
//
//   const CastBeside cast(y, next);   room for the codes
//   args.cast = cast.rows();          kernels::rms_norm(args) writes y and its codes
//   cast.keep();                      the product's cast_once(y, y, *next) takes them
//
// The codes are those of quantize(y, *next), to the bit: another cast of y is made when it is asked for, as without.

/// The cast that the next product makes of a tensor (linear_together.h, input_cast); none: not known, or there is none.
using NextCast = std::optional<CastSpec>;

class CastBeside {
 public:
  /// y: [..., n], contiguous, bf16, f16 or f32. No cast where `next` is none, or not one of rows (given: one scale;
  /// amax_over_max: one per row), or y's casts can't be kept.
  CastBeside(const at::Tensor& y, const NextCast& next);
  /// Valid while this lives.
  kernels::CastArgs rows() const;
  /// Once the kernel has run.
  void keep() const;

 private:
  const at::Tensor& y_;
  const CastSpec* spec_ = nullptr;  ///< null: no cast
  Fp8Tensor result_;
};

}  // namespace fp8::runtime
