// SPDX-License-Identifier: Apache-2.0
// hpu::optimizer_* and hpu::fused_clip_norm, steps over lists of tensors as the bridge's eager mode has them,
// translated to optim/optim.h. The math is the vendor's, but for
//   adamw       fp8 moments are read back with the reciprocal of their scale (the vendor multiplies by the scale
//               itself), and a moment that is all zero keeps its scale
//   sgd         mom must be 0: there is no buffer to hold it
// Scalars in tensors are read on the host: hpu memory is host memory here.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/ops/cast/cast.h"
#include "fp8/runtime/ops/optim/optim.h"

namespace fp8::runtime::ops {
namespace {

using at::Tensor;
using at::TensorList;

double scalar(const char* op, const char* what, const Tensor& t) {
  TORCH_CHECK(t.numel() == 1, "[", op, "] expected ", what, " of one element, got sizes ", t.sizes());
  return cpu_alias(t.detach()).item<double>();
}

void check_lengths(const char* op, std::size_t length,
                   std::initializer_list<std::pair<const char*, TensorList>> lists) {
  for (const auto& [what, list] : lists)
    TORCH_CHECK(list.size() == length, "[", op, "] expected ", length, " tensors in ", what, ", got ", list.size());
}

void check_place(const char* op, const char* what, const Tensor& t) {
  TORCH_CHECK(t.numel() == 1 && t.is_floating_point(), "[", op, "] expected ", what,
              " of one floating-point element, got sizes ", t.sizes(), " of ", t.scalar_type());
}

/// A result into a tensor of the caller's.
void put(const Tensor& place, double value) {
  place.unsafeGetTensorImpl()->bump_version();
  cpu_alias(place.detach()).fill_(value);
}

float rest_of(double beta) { return static_cast<float>(1 - beta); }

}  // namespace

void optimizer_adamw(TensorList gradient_vec, TensorList weight_vec, TensorList exp_avg_vec, TensorList exp_avg_sq_vec,
                     const Tensor& neg_step_t, double beta1, double beta2, double epsilon, const Tensor& weight_decay,
                     bool has_weight_decay, std::optional<TensorList> exp_avg_scales,
                     std::optional<TensorList> exp_avg_sq_scales) {
  const char* op = "optimizer_adamw";
  const std::size_t n = weight_vec.size();
  check_lengths(op, n,
                {{"gradient_vec", gradient_vec}, {"exp_avg_vec", exp_avg_vec}, {"exp_avg_sq_vec", exp_avg_sq_vec}});
  if (exp_avg_scales) check_lengths(op, n, {{"exp_avg_scales", *exp_avg_scales}});
  if (exp_avg_sq_scales) check_lengths(op, n, {{"exp_avg_sq_scales", *exp_avg_sq_scales}});
  AdamItem common;
  common.factors = {static_cast<float>(beta1), rest_of(beta1), static_cast<float>(beta2), rest_of(beta2)};
  common.factors.eps = static_cast<float>(epsilon);
  common.factors.neg_step = static_cast<float>(scalar(op, "neg_step_t", neg_step_t));
  if (has_weight_decay) common.factors.decay = static_cast<float>(scalar(op, "weight_decay", weight_decay));
  std::vector<AdamItem> items(n, common);
  bool fp8 = false;
  for (std::size_t i = 0; i < n; ++i) {
    AdamItem& item = items[i];
    item.grad = gradient_vec[i];
    item.weight = weight_vec[i];
    item.exp_avg = exp_avg_vec[i];
    item.exp_avg_sq = exp_avg_sq_vec[i];
    if (exp_avg_scales) item.exp_avg_scale = (*exp_avg_scales)[i];
    if (exp_avg_sq_scales) item.exp_avg_sq_scale = (*exp_avg_sq_scales)[i];
    fp8 |= is_fp8(item.exp_avg.scalar_type()) || is_fp8(item.exp_avg_sq.scalar_type());
  }
  if (fp8) {
    const std::uint64_t seed = draw_seed();
    for (std::size_t i = 0; i < n; ++i) items[i].seed = kernels::splitmix64(seed, i);
  }
  adam_step(op, items);
}

namespace {

void optimizer_ema(TensorList model_inputs, TensorList updated_ema, const Tensor& decay) {
  const char* op = "optimizer_ema";
  check_lengths(op, updated_ema.size(), {{"model_inputs", model_inputs}});
  const double d = scalar(op, "decay", decay);
  std::vector<ScaleAddItem> items;
  for (std::size_t i = 0; i < updated_ema.size(); ++i) {
    items.push_back({updated_ema[i], model_inputs[i], static_cast<float>(d), rest_of(d)});
  }
  scale_add(op, items);
}

/// The last of `grad` is no gradient: it receives the norm of the others.
Tensor fused_clip_norm(TensorList grad, const Tensor& max_norm, double norm_type) {
  const char* op = "fused_clip_norm";
  TORCH_CHECK(norm_type == 2, "[", op, "] expected norm_type 2, got ", norm_type);
  TORCH_CHECK(!grad.empty(), "[", op, "] expected one element as last of grad, to receive the norm, got an empty list");
  check_place(op, "a last tensor of grad, to receive the norm,", grad.back());
  const double limit = scalar(op, "max_norm", max_norm);
  TORCH_CHECK(limit >= 0, "[", op, "] expected max_norm of 0 or more, got ", limit);
  const TensorList gradients = grad.slice(0, grad.size() - 1);
  const double norm = norm_of(norms(op, gradients));
  scale_all(op, gradients, clip_coefficient(norm, limit));
  put(grad.back(), norm);
  return at::full({1}, norm, grad.back().options().requires_grad(false));
}

Tensor optimizer_lamb_fused_norm(TensorList grad, double max_norm) {
  const char* op = "optimizer_lamb_fused_norm";
  TORCH_CHECK(!grad.empty(), "[", op, "] expected at least one tensor in grad, got none");
  TORCH_CHECK(max_norm > 0, "[", op, "] expected max_norm > 0, got ", max_norm);
  const double norm = norm_of(norms(op, grad));
  // f32 whatever the gradients are: float16 would end at 65504, bf16 would keep 8 bits of what divides every gradient.
  return at::full({1}, norm <= max_norm ? 1.0 : norm / max_norm,
                  grad[0].options().dtype(at::kFloat).requires_grad(false));
}

}  // namespace

void optimizer_lamb_phase1(TensorList gradients, TensorList weights, TensorList exp_avg, TensorList exp_avg_sq,
                           TensorList out_weight_norms, TensorList out_adam_norms, TensorList out_adam_steps,
                           const Tensor& clip_global_grad_norm, int64_t grad_averaging, double beta1, double beta2,
                           double epsilon, const Tensor& bias_correction1, const Tensor& bias_correction2,
                           double weight_decay) {
  const char* op = "optimizer_lamb_phase1";
  const std::size_t n = weights.size();
  check_lengths(op, n,
                {{"gradients", gradients},
                 {"exp_avg", exp_avg},
                 {"exp_avg_sq", exp_avg_sq},
                 {"out_weight_norms", out_weight_norms},
                 {"out_adam_norms", out_adam_norms},
                 {"out_adam_steps", out_adam_steps}});
  kernels::LambTensor factors;
  factors.clip = static_cast<float>(scalar(op, "clip_global_grad_norm", clip_global_grad_norm));
  factors.beta1 = static_cast<float>(beta1);
  factors.beta3 = grad_averaging != 0 ? rest_of(beta1) : 1.0f;
  factors.beta2 = static_cast<float>(beta2);
  factors.rest2 = rest_of(beta2);
  factors.eps = static_cast<float>(epsilon);
  factors.correction1 = static_cast<float>(scalar(op, "bias_correction1", bias_correction1));
  factors.correction2 = static_cast<float>(scalar(op, "bias_correction2", bias_correction2));
  factors.weight_decay = static_cast<float>(weight_decay);
  std::vector<LambItem> items;
  for (std::size_t i = 0; i < n; ++i) {
    check_place(op, "out_weight_norms", out_weight_norms[i]);
    check_place(op, "out_adam_norms", out_adam_norms[i]);
    items.push_back({gradients[i], weights[i], exp_avg[i], exp_avg_sq[i], out_adam_steps[i], factors});
  }
  const auto result = lamb_direction(op, items);
  for (std::size_t i = 0; i < n; ++i) {
    put(out_weight_norms[i], result[i].weight);
    put(out_adam_norms[i], result[i].step);
  }
}

void optimizer_lamb_phase2(TensorList weights, TensorList adam_norms, TensorList weight_norms, TensorList adam_steps,
                           const Tensor& neg_step, double wd, bool use_lamb) {
  const char* op = "optimizer_lamb_phase2";
  check_lengths(op, weights.size(),
                {{"adam_norms", adam_norms}, {"weight_norms", weight_norms}, {"adam_steps", adam_steps}});
  const double step = scalar(op, "neg_step", neg_step);
  std::vector<ScaleAddItem> items;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double trust = lamb_trust(scalar(op, "weight_norms", weight_norms[i]),
                                    scalar(op, "adam_norms", adam_norms[i]), wd != 0 || use_lamb);
    items.push_back({weights[i], adam_steps[i], 1, static_cast<float>(step * trust)});
  }
  scale_add(op, items);
}

namespace {

void optimizer_lars(TensorList params, TensorList grads, at::IntArrayRef skip_masks, double eeta, double weight_decay,
                    double eps, const Tensor& lr) {
  const char* op = "optimizer_lars";
  check_lengths(op, params.size(), {{"grads", grads}});
  TORCH_CHECK(skip_masks.size() == params.size(), "[", op, "] expected ", params.size(), " skip_masks, got ",
              skip_masks.size());
  const auto weight_norms = norms(op, params), grad_norms = norms(op, grads);
  const double rate = scalar(op, "lr", lr);
  std::vector<ScaleAddItem> items;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (skip_masks[i] == 0) {
      items.push_back({grads[i], {}, static_cast<float>(rate), 0});
      continue;
    }
    const double factor = lars_factor(weight_norms[i], grad_norms[i], eeta, weight_decay, eps, rate);
    const Tensor decayed = weight_decay != 0 ? params[i] : Tensor();
    items.push_back({grads[i], decayed, static_cast<float>(factor), static_cast<float>(factor * weight_decay)});
  }
  scale_add(op, items);
}

/// buf = buf * momentum - dp; p = p + buf.
void optimizer_resource_apply_momentum(TensorList params_momentum_buf_list, TensorList dp_list, double momentum) {
  const char* op = "optimizer_resource_apply_momentum";
  check_lengths(op, 2 * dp_list.size(), {{"params_momentum_buf_list", params_momentum_buf_list}});
  std::vector<SgdItem> items(dp_list.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i].grad = dp_list[i];
    items[i].weight = params_momentum_buf_list[2 * i];
    items[i].buffer = params_momentum_buf_list[2 * i + 1];
    items[i].momentum = static_cast<float>(momentum);
    items[i].rest = -1;
    items[i].neg_lr = 1;
  }
  sgd_step(op, items);
}

void optimizer_sgd(TensorList gradients, TensorList weights_in, const Tensor& learning_rate, double wd, double mom,
                   double, bool) {
  const char* op = "optimizer_sgd";
  check_lengths(op, weights_in.size(), {{"gradients", gradients}});
  TORCH_CHECK(mom == 0, "[", op, "] expected mom 0 (optimizer_sgd_momentum has the buffers), got ", mom);
  SgdItem common;
  common.weight_decay = static_cast<float>(wd);
  common.neg_lr = static_cast<float>(-scalar(op, "learning_rate", learning_rate));
  std::vector<SgdItem> items(weights_in.size(), common);
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i].grad = gradients[i];
    items[i].weight = weights_in[i];
  }
  sgd_step(op, items);
}

/// In epoch 0 the buffers take the gradient, whatever they hold.
void optimizer_sgd_momentum(TensorList gradients, TensorList weights_in, TensorList momentum_in,
                            const Tensor& epoch_num, const Tensor& learning_rate, const Tensor& mom, double wd,
                            double damp, bool nesterov) {
  const char* op = "optimizer_sgd_momentum";
  check_lengths(op, weights_in.size(), {{"gradients", gradients}, {"momentum_in", momentum_in}});
  SgdItem common;
  common.weight_decay = static_cast<float>(wd);
  common.momentum = static_cast<float>(scalar(op, "mom", mom));
  common.rest = rest_of(damp);
  common.neg_lr = static_cast<float>(-scalar(op, "learning_rate", learning_rate));
  common.nesterov = nesterov;
  common.first = scalar(op, "epoch_num", epoch_num) == 0;
  std::vector<SgdItem> items(weights_in.size(), common);
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i].grad = gradients[i];
    items[i].weight = weights_in[i];
    items[i].buffer = momentum_in[i];
  }
  sgd_step(op, items);
}

// --- lazy mode's names

void lazy_adamw(TensorList gradient_vec, TensorList weight_vec, TensorList exp_avg_vec, TensorList exp_avg_sq_vec,
                const Tensor& neg_step_t, double beta1, double beta2, double epsilon, const Tensor& weight_decay,
                bool has_weight_decay) {
  optimizer_adamw(gradient_vec, weight_vec, exp_avg_vec, exp_avg_sq_vec, neg_step_t, beta1, beta2, epsilon,
                  weight_decay, has_weight_decay, std::nullopt, std::nullopt);
}

void lazy_lars(TensorList params, TensorList grads, const Tensor& lr_t, at::IntArrayRef skip_masks, double eeta,
               double weight_decay, double eps) {
  optimizer_lars(params, grads, skip_masks, eeta, weight_decay, eps, lr_t);
}

/// torch.optim.Adagrad's step in f32, epoch_num counting from 1:
///   g += wd * w;   sum += g^2;   w -= lr / (1 + (epoch_num - 1) * lrd) * g / (sqrt(sum) + eps)
void fused_adagrad(TensorList gradients, TensorList weights_in, TensorList variances_in, const Tensor& epoch_num,
                   const Tensor& learning_rate, double wd, double lrd, double eps) {
  const char* op = "habanaOptimizerFusedAdagrad";
  check_lengths(op, weights_in.size(), {{"gradients", gradients}, {"variances_in", variances_in}});
  for (std::size_t i = 0; i < weights_in.size(); ++i) {
    for (const Tensor* t : {&gradients[i], &weights_in[i], &variances_in[i]})
      TORCH_CHECK(is_high_precision(t->scalar_type()) && t->sizes() == weights_in[i].sizes(), "[", op,
                  "] expected tensor ", i, " of each list in Float, BFloat16 or Half with sizes ",
                  weights_in[i].sizes(), ", got ", t->scalar_type(), " with ", t->sizes());
  }
  const double rate = scalar(op, "learning_rate", learning_rate) / (1 + (scalar(op, "epoch_num", epoch_num) - 1) * lrd);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < weights_in.size(); ++i) {
    const Tensor w = weights_in[i].to(at::kFloat), g = gradients[i].to(at::kFloat) + w * wd;
    const Tensor sum = variances_in[i].to(at::kFloat) + g * g;
    Tensor(variances_in[i]).copy_(sum);
    Tensor(weights_in[i]).copy_(w - g / (sum.sqrt() + eps) * rate);
  }
}

/// fused_clip_norm without the place for the norm.
Tensor fused_norm(TensorList grad, const Tensor& max_norm, double norm_type) {
  TORCH_CHECK(!grad.empty(), "[fused_norm] expected at least one tensor in grad, got none");
  std::vector<Tensor> list = grad.vec();
  list.push_back(at::empty({1}, grad[0].options().dtype(at::kFloat).requires_grad(false)));
  return fused_clip_norm(list, max_norm, norm_type);
}

template <bool kAdagrad>
std::tuple<Tensor, Tensor> refused_sparse(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                          const Tensor&) {
  TORCH_CHECK(false, "[habanaOptimizerSparse", kAdagrad ? "Adagrad" : "Sgd",
              "] row-sparse gradients are not built; make them "
              "dense (Embedding with sparse=False) and use ",
              kAdagrad ? "habanaOptimizerFusedAdagrad" : "optimizer_sgd");
}

Tensor one_of(at::ScalarType type) { return at::empty({1}, at::TensorOptions().device(at::kMeta).dtype(type)); }

/// The steps, which have no result; add(name, kernel).
template <class Add>
void register_steps(const Add& add) {
  add("optimizer_adamw", &optimizer_adamw);
  add("optimizer_ema", &optimizer_ema);
  add("optimizer_lamb_phase1", &optimizer_lamb_phase1);
  add("optimizer_lamb_phase2", &optimizer_lamb_phase2);
  add("optimizer_lars", &optimizer_lars);
  add("optimizer_resource_apply_momentum", &optimizer_resource_apply_momentum);
  add("optimizer_sgd", &optimizer_sgd);
  add("optimizer_sgd_momentum", &optimizer_sgd_momentum);
  add("habanaOptimizerAdamW", &lazy_adamw);
  add("habanaOptimizerFusedEMA", &optimizer_ema);
  add("habanaOptimizerLars", &lazy_lars);
  add("habanaOptimizerSgd", &optimizer_sgd);
  add("habanaOptimizerSgdMomentum", &optimizer_sgd_momentum);
  add("habanaOptimizerFusedAdagrad", &fused_adagrad);
}

}  // namespace

FP8_LIBRARY_FRAGMENT(hpu, m) {
  define(m, R"(
    optimizer_adamw(Tensor[] gradient_vec, Tensor(a!)[] weight_vec, Tensor(b!)[] exp_avg_vec, Tensor(c!)[]
        exp_avg_sq_vec, Tensor neg_step_t, float beta1, float beta2, float epsilon, Tensor weight_decay, bool
        has_weight_decay, Tensor(d!)[]? exp_avg_scales=None, Tensor(e!)[]? exp_avg_sq_scales=None) -> ();
    optimizer_ema(Tensor[] model_inputs, Tensor(a!)[] updated_ema, Tensor decay) -> ();
    fused_clip_norm(Tensor(a!)[] grad, Tensor max_norm, float norm_type) -> Tensor;
    optimizer_lamb_fused_norm(Tensor[] grad, float max_norm) -> Tensor;
    optimizer_lamb_phase1(Tensor[] gradients, Tensor[] weights, Tensor(a!)[] exp_avg, Tensor(b!)[] exp_avg_sq,
        Tensor(c!)[] out_weight_norms, Tensor(d!)[] out_adam_norms, Tensor(e!)[] out_adam_steps, Tensor
        clip_global_grad_norm, int grad_averaging, float beta1, float beta2, float epsilon, Tensor bias_correction1,
        Tensor bias_correction2, float weight_decay) -> ();
    optimizer_lamb_phase2(Tensor(a!)[] weights, Tensor[] adam_norms, Tensor[] weight_norms, Tensor[] adam_steps,
        Tensor neg_step, float wd, bool use_lamb) -> ();
    optimizer_lars(Tensor[] params, Tensor(a!)[] grads, int[] skip_masks, float eeta, float weight_decay, float eps,
        Tensor lr) -> ();
    optimizer_resource_apply_momentum(Tensor(a!)[] params_momentum_buf_list, Tensor[] dp_list, float momentum) -> ();
    optimizer_sgd(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!) learning_rate, float wd, float mom, float
        damp, bool nesterov) -> ();
    optimizer_sgd_momentum(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!)[] momentum_in, Tensor epoch_num,
        Tensor(c!) learning_rate, Tensor(d!) mom, float wd, float damp, bool nesterov) -> ();)");

  // --- the names of the bridge's lazy mode, which its Python package calls there (fused_norm by _hpex_C): the same
  // kernels
  define(m, R"(
    habanaOptimizerFusedEMA(Tensor[] model_inputs, Tensor(a!)[] updated_ema, Tensor decay) -> ();
    habanaOptimizerLars(Tensor[] params, Tensor(a!)[] grads, Tensor lr_t, int[] skip_masks, float eeta, float
        weight_decay, float eps) -> ();
    habanaOptimizerSgd(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!) learning_rate, float wd, float mom,
        float damp, bool nesterov) -> ();
    habanaOptimizerSgdMomentum(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!)[] momentum_in, Tensor
        epoch_num, Tensor(c!) learning_rate, Tensor(d!) mom, float wd, float damp, bool nesterov) -> ();
    habanaOptimizerAdamW(Tensor[] gradient_vec, Tensor(a!)[] weight_vec, Tensor(b!)[] exp_avg_vec, Tensor(c!)[]
        exp_avg_sq_vec, Tensor neg_step_t, float beta1, float beta2, float epsilon, Tensor weight_decay, bool
        has_weight_decay) -> ();
    habanaOptimizerFusedAdagrad(Tensor[] gradients, Tensor(a!)[] weights_in, Tensor(b!)[] variances_in, Tensor
        epoch_num, Tensor(c!) learning_rate, float wd, float lrd, float eps) -> ();
    fused_norm(Tensor(a!)[] grad, Tensor max_norm, float norm_type) -> Tensor;)");
  // refused by name: nothing here makes row-sparse gradients
  define(m, R"(
    habanaOptimizerSparseSgd(Tensor gradients, Tensor(a!) weights_in, Tensor(b!) moments_in, Tensor indices, Tensor
        learning_rate, Tensor valid_count_tensor) -> (Tensor(a!), Tensor(b!));
    habanaOptimizerSparseAdagrad(Tensor gradients, Tensor(a!) weights_in, Tensor(b!) moments_in, Tensor indices,
        Tensor learning_rate, Tensor valid_count_tensor) -> (Tensor(a!), Tensor(b!));)");
}

FP8_LIBRARY_IMPL(hpu, HPU, m) {
  Edge edge(m, "hpu");
  register_steps([&](const char* name, auto kernel) { edge.impl(name, kernel); });
  edge.impl("fused_clip_norm", &fused_clip_norm);
  edge.impl("optimizer_lamb_fused_norm", &optimizer_lamb_fused_norm);
  edge.impl("fused_norm", &fused_norm);
  edge.impl("habanaOptimizerSparseSgd", &refused_sparse<false>);
  edge.impl("habanaOptimizerSparseAdagrad", &refused_sparse<true>);
}

FP8_LIBRARY_IMPL(hpu, Meta, m) {
  register_steps([&](const char* name, auto kernel) { m.impl(name, meta_step(kernel)); });
  m.impl(
      "fused_clip_norm", +[](TensorList grad, const Tensor&, double) {
        return one_of(grad.empty() ? at::kFloat : grad.back().scalar_type());
      });
  m.impl("optimizer_lamb_fused_norm", +[](TensorList, double) { return one_of(at::kFloat); });
  m.impl("fused_norm", +[](TensorList, const Tensor&, double) { return one_of(at::kFloat); });
}

}  // namespace fp8::runtime::ops
