// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers on tensors (hpu or cpu): what hpu::optimizer_* and the classes of runtime/optim share. Arithmetic
// and rounding: runtime/kernels/optim.h.
//
// Weights, gradients and buffers are f32, bf16 or f16 in any mixture; those of one item have the same sizes, any
// strides (a layout unlike the weight's is copied, and back). Moments of Adam may be fp8, each with a scale of one
// element that multiplies into fp8. What is written must not share memory, and has its version counted up, so that
// autograd notices. Errors name the operator, the argument and its place in the list, and come before anything is
// written.
#pragma once
#include <ATen/core/Tensor.h>

#include "fp8/runtime/kernels/optim.h"

namespace fp8::runtime::ops {

struct AdamItem {
  at::Tensor grad, weight, exp_avg, exp_avg_sq;
  at::Tensor exp_avg_scale, exp_avg_sq_scale;  ///< only for fp8 moments: f32 or bf16, one element, renewed
  kernels::AdamFactors factors;
  std::uint64_t seed = 0;  ///< of the stochastic rounding of fp8 moments
};
void adam_step(const char* op, at::ArrayRef<AdamItem> items);

struct SgdItem {
  at::Tensor grad, weight, buffer;                             ///< buffer: none without momentum
  float weight_decay = 0, momentum = 0, rest = 1, neg_lr = 0;  ///< see kernels::SgdTensor
  bool nesterov = false, first = false;
};
void sgd_step(const char* op, at::ArrayRef<SgdItem> items);

struct LambItem {
  at::Tensor grad, weight, exp_avg, exp_avg_sq, step;  ///< step receives the direction
  kernels::LambTensor factors;                         ///< its arrays are not read
};
struct LambNorms {
  double weight = 0, step = 0;
};
std::vector<LambNorms> lamb_direction(const char* op, at::ArrayRef<LambItem> items);

/// y = a * y + b * x; without x: y = a * y.
struct ScaleAddItem {
  at::Tensor y, x;
  float a = 1, b = 0;
};
void scale_add(const char* op, at::ArrayRef<ScaleAddItem> items);

/// The L2 norm of each tensor, summed in f64.
std::vector<double> norms(const char* op, at::TensorList tensors);
/// The L2 norm of a list of norms.
double norm_of(const std::vector<double>& norms);

/// min(1, max_norm / (norm + 1e-6)), exactly 1 unless norm > max_norm (so for a NaN too); an infinite norm gives 0.
float clip_coefficient(double norm, double max_norm);
/// Multiplies by it (touches nothing when it is 1).
void scale_all(const char* op, at::TensorList tensors, float factor);

/// LARS: g' = (g + weight_decay * w) * lr * (eeta * |w| / (|g| + weight_decay * |w| + eps) if both norms > 0, else 1).
/// The factor after the bracket, in f64.
double lars_factor(double weight_norm, double grad_norm, double eeta, double weight_decay, double eps, double lr);

/// LAMB: |weight| / |step| if wanted and both are > 0, else 1.
double lamb_trust(double weight_norm, double step_norm, bool wanted);

// hpu::optimizer_adamw and its like (register_optim.cpp), for group_steps.cpp.

void optimizer_adamw(at::TensorList gradient_vec, at::TensorList weight_vec, at::TensorList exp_avg_vec,
                     at::TensorList exp_avg_sq_vec, const at::Tensor& neg_step_t, double beta1, double beta2,
                     double epsilon, const at::Tensor& weight_decay, bool has_weight_decay,
                     std::optional<at::TensorList> exp_avg_scales, std::optional<at::TensorList> exp_avg_sq_scales);
void optimizer_lamb_phase1(at::TensorList gradients, at::TensorList weights, at::TensorList exp_avg,
                           at::TensorList exp_avg_sq, at::TensorList out_weight_norms, at::TensorList out_adam_norms,
                           at::TensorList out_adam_steps, const at::Tensor& clip_global_grad_norm,
                           std::int64_t grad_averaging, double beta1, double beta2, double epsilon,
                           const at::Tensor& bias_correction1, const at::Tensor& bias_correction2, double weight_decay);
void optimizer_lamb_phase2(at::TensorList weights, at::TensorList adam_norms, at::TensorList weight_norms,
                           at::TensorList adam_steps, const at::Tensor& neg_step, double wd, bool use_lamb);

/// On meta tensors nothing happens.
template <class... Args>
constexpr auto meta_step(void (*)(Args...)) -> void (*)(Args...) {
  return +[](Args...) {};
}

}  // namespace fp8::runtime::ops
