// SPDX-License-Identifier: Apache-2.0
// Muon, for the 2-D weights inside a network (not embeddings, not the output layer): momentum, made nearly orthogonal.
//
//   buf = momentum buf + (1 - momentum) g
//   u   = nesterov ? (1 - momentum) g + momentum buf : buf
//   w   = w (1 - lr wd) - lr ratio orthogonalize(u)        runtime/kernels/optim.h: 5 Newton-Schulz steps
//   ratio   original          sqrt(max(1, rows / cols))
//           match_rms_adamw   0.2 sqrt(max(rows, cols)): updates as large as AdamW's, so its learning rates can be used
//
// A group whose options are FusedAdamWOptions is AdamW's: embeddings, norms, biases and the output layer go there.
#pragma once
#include "fp8/runtime/optim/fused_adam.h"

namespace fp8::runtime::optim {

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
  void update(const std::vector<Participant>& participants) override;
  void check_group(const FusedOptions& options, const std::vector<at::Tensor>& parameters) const override;
};

/// Which of a model's named parameters are Muon's: 2-D, and no part of the name (between dots) is an embedding's or the
/// output layer's as Hugging Face and PyTorch models call them (holding "embed", or wte, wpe, lm_head, output, head,
/// classifier, score).
bool is_hidden_weight(const std::string& name, const at::Tensor& parameter);

}  // namespace fp8::runtime::optim
