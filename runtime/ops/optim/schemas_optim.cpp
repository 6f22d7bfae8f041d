// SPDX-License-Identifier: Apache-2.0
// The third page of hpu:: schemas: optimizer steps over lists of tensors, as the bridge's eager mode has them. The same
// rules as in schemas.cpp.
#include <torch/library.h>

#include "fp8/runtime/device/registration.h"

namespace {

FP8_LIBRARY_FRAGMENT(hpu, m) {
  m.def(
      "optimizer_adamw(Tensor[] gradient_vec, Tensor(a!)[] weight_vec, Tensor(b!)[] exp_avg_vec, Tensor(c!)[] "
      "exp_avg_sq_vec, Tensor neg_step_t, float beta1, float beta2, float epsilon, Tensor weight_decay, bool "
      "has_weight_decay, Tensor(d!)[]? exp_avg_scales=None, Tensor(e!)[]? exp_avg_sq_scales=None) -> ()");
  m.def("optimizer_ema(Tensor[] model_inputs, Tensor(a!)[] updated_ema, Tensor decay) -> ()");
  m.def("fused_clip_norm(Tensor(a!)[] grad, Tensor max_norm, float norm_type) -> Tensor");
  m.def("optimizer_lamb_fused_norm(Tensor[] grad, float max_norm) -> Tensor");
  m.def(
      "optimizer_lamb_phase1(Tensor[] gradients, Tensor[] weights, Tensor(a!)[] exp_avg, Tensor(b!)[] exp_avg_sq, "
      "Tensor(c!)[] out_weight_norms, Tensor(d!)[] out_adam_norms, Tensor(e!)[] out_adam_steps, Tensor "
      "clip_global_grad_norm, int grad_averaging, float beta1, float beta2, float epsilon, Tensor bias_correction1, "
      "Tensor bias_correction2, float weight_decay) -> ()");
  m.def(
      "optimizer_lamb_phase2(Tensor(a!)[] weights, Tensor[] adam_norms, Tensor[] weight_norms, Tensor[] adam_steps, "
      "Tensor neg_step, float wd, bool use_lamb) -> ()");
  m.def(
      "optimizer_lars(Tensor[] params, Tensor(a!)[] grads, int[] skip_masks, float eeta, float weight_decay, float "
      "eps, "
      "Tensor lr) -> ()");
  m.def(
      "optimizer_resource_apply_momentum(Tensor(a!)[] params_momentum_buf_list, Tensor[] dp_list, float momentum) -> "
      "()");
  m.def(
      "optimizer_sgd(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!) learning_rate, float wd, float mom, float "
      "damp, bool nesterov) -> ()");
  m.def(
      "optimizer_sgd_momentum(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!)[] momentum_in, Tensor epoch_num, "
      "Tensor(c!) learning_rate, Tensor(d!) mom, float wd, float damp, bool nesterov) -> ()");

  // --- the names of the bridge's lazy mode, which its Python package calls there: the same kernels
  m.def("habanaOptimizerFusedEMA(Tensor[] model_inputs, Tensor(a!)[] updated_ema, Tensor decay) -> ()");
  m.def(
      "habanaOptimizerLars(Tensor[] params, Tensor(a!)[] grads, Tensor lr_t, int[] skip_masks, float eeta, float "
      "weight_decay, float eps) -> ()");
  m.def(
      "habanaOptimizerSgd(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!) learning_rate, float wd, float mom, "
      "float "
      "damp, bool nesterov) -> ()");
  m.def(
      "habanaOptimizerSgdMomentum(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!)[] momentum_in, Tensor "
      "epoch_num, "
      "Tensor(c!) learning_rate, Tensor(d!) mom, float wd, float damp, bool nesterov) -> ()");
  m.def(
      "habanaOptimizerAdamW(Tensor[] gradient_vec, Tensor(a!)[] weight_vec, Tensor(b!)[] exp_avg_vec, Tensor(c!)[] "
      "exp_avg_sq_vec, Tensor neg_step_t, float beta1, float beta2, float epsilon, Tensor weight_decay, bool "
      "has_weight_decay) -> ()");
  m.def(
      "habanaOptimizerFusedAdagrad(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!)[] variances_in, Tensor "
      "epoch_num, "
      "Tensor(c!) learning_rate, float wd, float lrd, float eps) -> ()");
  m.def("fused_norm(Tensor(a!)[] grad, Tensor max_norm, float norm_type) -> Tensor");  // _hpex_C.fused_norm there
  // refused by name: nothing here makes row-sparse gradients
  m.def(
      "habanaOptimizerSparseSgd(Tensor gradients, Tensor(a!) weights_in, Tensor(b!) moments_in, Tensor indices, Tensor "
      "learning_rate, Tensor valid_count_tensor) -> (Tensor(a!), Tensor(b!))");
  m.def(
      "habanaOptimizerSparseAdagrad(Tensor gradients, Tensor(a!) weights_in, Tensor(b!) moments_in, Tensor indices, "
      "Tensor "
      "learning_rate, Tensor valid_count_tensor) -> (Tensor(a!), Tensor(b!))");
}

}  // namespace
