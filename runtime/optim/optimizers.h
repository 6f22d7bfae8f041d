// SPDX-License-Identifier: Apache-2.0
// AdamW, LAMB, SGD, LARS and Muon. AdamW: with t the step, b1^t and b2^t the powers:
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
  /// One AdamW step of participants whose options are these: states exp_avg, exp_avg_sq and, for fp8, exp_avg_scale,
  /// exp_avg_sq_scale. Moments of another type (from a checkpoint) are converted.
  static void update(const char* optimizer, const std::vector<Participant>& participants);
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
  static void update(const char* optimizer, const std::vector<Participant>& participants);
  static auto options(auto& o) {
    return std::tuple(named("lr", o.lr()), named("betas", o.betas()), named("eps", o.eps()),
                      named("weight_decay", o.weight_decay()), named("bias_correction", o.bias_correction()),
                      named("grad_averaging", o.grad_averaging()), named("max_grad_norm", o.max_grad_norm()),
                      named("use_lamb", o.use_lamb()));
  }
};

using FusedLamb = FusedOptimizerOf<FusedLambOptions>;

// SGD with momentum, and LARS, which gives each tensor a learning rate of its own.
//
//   FusedSGD    d = g + wd w;  buf = momentum buf + (1 - dampening) d  (first step: buf = d);
//               d = nesterov ? d + momentum buf : buf;  w = w - lr d                            torch.optim.SGD's
//   FusedLars   trust = eeta |w| / (|g| + wd |w| + eps)   (1 where a norm is 0)                 the device's
//               buf = momentum buf - lr trust (g + wd w);  w = w + buf                          optimizer_lars and
//               with skip: buf = momentum buf - lr g                                            resource_apply_momentum
// The gradients are not changed (the device's optimizer_lars writes into them).

struct FusedSGDOptions : public FusedOptionsOf<FusedSGDOptions> {
  static constexpr char kOptimizer[] = "FusedSGD";
  FusedSGDOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, momentum) = 0;
  TORCH_ARG(double, dampening) = 0;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, nesterov) = false;  ///< needs momentum > 0 and dampening 0

 public:
  void check(const char* optimizer) const override;
  static void update(const char* optimizer, const std::vector<Participant>& participants);
  static auto options(auto& o) {
    return std::tuple(named("lr", o.lr()), named("momentum", o.momentum()), named("dampening", o.dampening()),
                      named("weight_decay", o.weight_decay()), named("nesterov", o.nesterov()));
  }
};

using FusedSGD = FusedOptimizerOf<FusedSGDOptions>;

struct FusedLarsOptions : public FusedOptionsOf<FusedLarsOptions> {
  static constexpr char kOptimizer[] = "FusedLars";
  FusedLarsOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, momentum) = 0.9;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(double, eeta) = 1e-3;  ///< trust coefficient
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(bool, skip) = false;  ///< for groups of biases and norms: plain learning rate, no decay

 public:
  void check(const char* optimizer) const override;
  static void update(const char* optimizer, const std::vector<Participant>& participants);
  static auto options(auto& o) {
    return std::tuple(named("lr", o.lr()), named("momentum", o.momentum()), named("weight_decay", o.weight_decay()),
                      named("eeta", o.eeta()), named("eps", o.eps()), named("skip", o.skip()));
  }
};

using FusedLars = FusedOptimizerOf<FusedLarsOptions>;

// Muon, for the 2-D weights inside a network (not embeddings, not the output layer): momentum, made nearly orthogonal.
//
//   buf = momentum buf + (1 - momentum) g
//   u   = nesterov ? (1 - momentum) g + momentum buf : buf
//   w   = w (1 - lr wd) - lr ratio orthogonalize(u)        runtime/kernels/optim.h: 5 Newton-Schulz steps
//   ratio   original          sqrt(max(1, rows / cols))
//           match_rms_adamw   0.2 sqrt(max(rows, cols)): updates as large as AdamW's, so its learning rates can be used
//
// A group whose options are FusedAdamWOptions is AdamW's: embeddings, norms, biases and the output layer go there.

enum class MuonRatio : std::uint8_t { original, match_rms_adamw };
constexpr auto names_of(MuonRatio) { return names_up_to<MuonRatio::match_rms_adamw>("original", "match_rms_adamw"); }

struct MuonOptions : public FusedOptionsOf<MuonOptions> {
  static constexpr char kOptimizer[] = "Muon";

  MuonOptions(double lr = 0.02) : lr_(lr) {}
  TORCH_ARG(double, lr) = 0.02;
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(double, weight_decay) = 0;  ///< decoupled
  TORCH_ARG(std::int64_t, ns_steps) = 5;
  TORCH_ARG(double, eps) = 1e-7;  ///< least norm of u to divide by
  TORCH_ARG(MuonRatio, ratio) = MuonRatio::original;

 public:
  void check(const char* optimizer) const override;
  static auto options(auto& o) {
    return std::tuple(named("lr", o.lr()), named("momentum", o.momentum()), named("nesterov", o.nesterov()),
                      named("weight_decay", o.weight_decay()), named("ns_steps", o.ns_steps()), named("eps", o.eps()),
                      named("ratio", o.ratio()));
  }
};

class Muon : public FusedOptimizer {
 public:
  /// Two groups: `hidden` (all 2-D) with Muon, `others` with AdamW. Either may be empty.
  Muon(std::vector<at::Tensor> hidden, std::vector<at::Tensor> others, MuonOptions muon = {},
       FusedAdamWOptions adamw = FusedAdamWOptions(3e-4));
  /// Groups with MuonOptions (2-D parameters only) or FusedAdamWOptions; without options they get `defaults`.
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups, MuonOptions defaults = {});

 protected:
  void check_group(const FusedOptions& options, const std::vector<at::Tensor>& parameters) const override;
};

/// Which of a model's named parameters are Muon's: 2-D, and no part of the name (between dots) is an embedding's or the
/// output layer's as Hugging Face and PyTorch models call them (holding "embed", or wte, wpe, lm_head, output, head,
/// classifier, score).
bool is_hidden_weight(const std::string& name, const at::Tensor& parameter);

}  // namespace fp8::runtime::optim
