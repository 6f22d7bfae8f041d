// SPDX-License-Identifier: Apache-2.0
// AdamW. With t the step, b1^t and b2^t the powers:
//
//   m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2        w = w (1 - lr wd) - update
//   habana   update = lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)                    the device's; the default
//   torch    update = lr / (1 - b1^t)                * m / (sqrt(v) / sqrt(1 - b2^t) + eps)   torch.optim.AdamW's
//
// eps may be 0 (then an element whose gradient was always 0 becomes NaN, as upstream's does).
// In the first eps is not divided by the correction: with tiny gradients its early steps are smaller.
//
// Moments may be kept in bf16 (2 bytes each) or fp8 (1 byte each and one power-of-two scale per tensor, rounded
// stochastically). For exp_avg_sq E5M2 is the better fp8: E4M3 has no code between 0 and amax / 2^17, E5M2 none between
// 0 and amax / 2^31, and where exp_avg_sq is 0 the step is exp_avg / eps.
#pragma once
#include "fp8/runtime/optim/fused_optimizer.h"

namespace fp8::runtime::optim {

enum class EpsMode : std::uint8_t { habana, torch };
constexpr auto names_of(EpsMode) { return names_up_to<EpsMode::torch>("habana", "torch"); }

/// Types of exp_avg and exp_avg_sq: Float, BFloat16, Float8_e4m3fn or Float8_e5m2.
struct MomentTypes {
  MomentTypes() = default;
  MomentTypes(at::ScalarType both) : exp_avg(both), exp_avg_sq(both) {}
  MomentTypes(at::ScalarType first, at::ScalarType second) : exp_avg(first), exp_avg_sq(second) {}
  at::ScalarType exp_avg = at::kFloat, exp_avg_sq = at::kFloat;
};
c10::IValue to_value(const MomentTypes& types);  ///< "f32,bf16"
void from_value(const c10::IValue& value, MomentTypes& types);

struct FusedAdamWOptions : public FusedOptionsOf<FusedAdamWOptions> {
  static constexpr char kOptimizer[] = "FusedAdamW";
  FusedAdamWOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(EpsMode, eps_mode) = EpsMode::habana;
  TORCH_ARG(MomentTypes, moments_dtype) = MomentTypes();
  TORCH_ARG(std::int64_t, seed) = 0;  ///< of stochastic rounding

 public:
  void check(const char* optimizer) const override;
  using FusedOptions::serialize;
  /// "amsgrad" too, which torch's AdamW asks its archives for; not where that would read something else than was meant:
  /// moments in fp8, or no bias correction.
  void serialize(torch::serialize::OutputArchive& archive) const override;
  static auto options(auto& o) {
    return std::tuple(named("lr", o.lr()), named("betas", o.betas()), named("eps", o.eps()),
                      named("weight_decay", o.weight_decay()), named("bias_correction", o.bias_correction()),
                      named("eps_mode", o.eps_mode()), named("moments_dtype", o.moments_dtype()),
                      named("seed", o.seed()));
  }
};

using FusedAdamW = FusedOptimizerOf<FusedAdamWOptions>;
template <>
void FusedAdamW::update(const std::vector<Participant>& participants);

/// One AdamW step of participants whose options are FusedAdamWOptions: states exp_avg, exp_avg_sq and, for fp8,
/// exp_avg_scale, exp_avg_sq_scale. Moments of another type (from a checkpoint) are converted.
void adamw_update(const char* optimizer, const std::vector<Participant>& participants);

// LAMB: Adam's direction, as long for every tensor as its trust ratio says.
//
//   clip  = max_grad_norm > 0 and |all g| > max_grad_norm ? |all g| / max_grad_norm : 1      over all groups together
//   m = b1 m + b3 g / clip       b3 = grad_averaging ? 1 - b1 : 1           v = b2 v + (1 - b2) (g / clip)^2
//   s = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + wd w
//   w = w - lr trust s           trust = |w| / |s| where both are above 0 and (wd != 0 or use_lamb), else 1

struct FusedLambOptions : public FusedOptionsOf<FusedLambOptions> {
  static constexpr char kOptimizer[] = "FusedLamb";
  FusedLambOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0.01;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(bool, grad_averaging) = true;
  TORCH_ARG(double, max_grad_norm) = 1;  ///< 0: no clipping. The smallest of all groups counts.
  TORCH_ARG(bool, use_lamb) = false;

 public:
  void check(const char* optimizer) const override;
  static auto options(auto& o) {
    return std::tuple(named("lr", o.lr()), named("betas", o.betas()), named("eps", o.eps()),
                      named("weight_decay", o.weight_decay()), named("bias_correction", o.bias_correction()),
                      named("grad_averaging", o.grad_averaging()), named("max_grad_norm", o.max_grad_norm()),
                      named("use_lamb", o.use_lamb()));
  }
};

using FusedLamb = FusedOptimizerOf<FusedLambOptions>;
template <>
void FusedLamb::update(const std::vector<Participant>& participants);

}  // namespace fp8::runtime::optim
