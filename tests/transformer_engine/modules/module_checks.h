// SPDX-License-Identifier: Apache-2.0
// What the tests of te modules share: the recipes, one training step, and the comparison of fp8 with f32.
#pragma once
#include "fp8/transformer_engine/region/fp8_autocast.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"

namespace fp8::test {

using Recipes = std::vector<recipes::Recipe>;

/// Both dialects of delayed scaling in E4M3 forward and E5M2 backward, and the recipes without history.
inline std::vector<recipes::Recipe> training_recipes() {
  recipes::DelayedScaling habana = recipes::DelayedScaling::habana();
  habana.fp8_format = recipes::RecipeFormat::HYBRID;
  return {habana, recipes::DelayedScaling::nvidia(), recipes::CurrentScaling{}, recipes::BlockScaling{},
          recipes::MXFP8{}};
}

/// Of one step: the result, the gradient of the input, and those of the parameters by name.
struct TrainingStep {
  at::Tensor y, dx;
  std::map<std::string, at::Tensor> gradients;
};

/// y = f(x) (in fp8 with a recipe), then backward of sum(y * g).
template <class F>
TrainingStep training_step(torch::nn::Module& module, const at::Tensor& x, const at::Tensor& g,
                           const std::optional<recipes::Recipe>& recipe, F&& f) {
  const at::Tensor input = x.detach().clone().requires_grad_(true);
  module.zero_grad();
  TrainingStep step;
  {
    const te::fp8_autocast region({.enabled = recipe.has_value(), .recipe = recipe});
    step.y = f(input);
  }
  step.y.backward(g.to(step.y.scalar_type()));
  step.y = step.y.detach();
  step.dx = input.grad();
  for (const auto& p : module.named_parameters())
    step.gradients[p.key()] = p.value().grad().defined() ? p.value().grad().clone() : at::Tensor();
  return step;
}

inline ::testing::AssertionResult same_step(const TrainingStep& a, const TrainingStep& b) {
  if (auto r = same_bits(a.y, b.y); !r) return r << " (y)";
  if (auto r = same_bits(a.dx, b.dx); !r) return r << " (dx)";
  for (const auto& [name, g] : a.gradients)
    if (auto r = same_bits(g, b.gradients.at(name)); !r) return r << " (" << name << ")";
  return ::testing::AssertionSuccess();
}

/// |a - b| <= atol * max|b| + rtol * |b|, with the tolerances of E4M3 (.125, .0675) or of E5M2 (.25, .125), for all but
/// `exempt` of the elements. largest: stands for max|b| where that is smaller.
inline ::testing::AssertionResult near_by(const at::Tensor& a, const at::Tensor& b, double rtol, double atol,
                                          double exempt = 0, double largest = 0) {
  const at::Tensor x = a.detach().cpu().to(at::kDouble), y = b.detach().cpu().to(at::kDouble);
  if (x.sizes() != y.sizes()) return ::testing::AssertionFailure() << "sizes " << a.sizes() << " and " << b.sizes();
  if (x.numel() == 0) return ::testing::AssertionSuccess();
  if (!x.isfinite().all().item<bool>()) return ::testing::AssertionFailure() << "not finite";
  const double max = std::max(y.abs().max().item<double>(), largest);
  const at::Tensor excess = (x - y).abs() - rtol * y.abs();
  const auto beyond = excess.gt(atol * max).sum().item<std::int64_t>();
  if (static_cast<double>(beyond) <= exempt * static_cast<double>(x.numel())) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << beyond << " of " << x.numel() << " elements off, by up to "
                                       << excess.max().item<double>() / max << " of the largest " << max;
}

/// An fp8 step against the f32 one: E4M3's tolerance for y. Gradients went through several casts to E5M2: its tolerance
/// for 99 % of the elements, and for the whole its rtol. What is zero but for rounding (the gradient of the keys' bias)
/// is measured by dx.
inline ::testing::AssertionResult near_step(const TrainingStep& fp8, const TrainingStep& exact) {
  if (auto r = near_by(fp8.y, exact.y, 0.125, 0.0675); !r) return r << " (y)";
  const double dx = exact.dx.abs().max().item<double>();
  auto all = exact.gradients, found = fp8.gradients;
  all["dx"] = exact.dx;
  found["dx"] = fp8.dx;
  for (const auto& [name, g] : all) {
    if (!g.defined()) continue;
    if (auto r = near_by(found.at(name), g, 0.25, 0.125, 0.01, dx * 0.05); !r) return r << " (" << name << ")";
    if (g.abs().max().item<double>() < dx * 1e-5) continue;
    if (const double e = relative_error(found.at(name), g); e > 0.25)
      return ::testing::AssertionFailure() << "error " << e << " (" << name << ")";
  }
  return ::testing::AssertionSuccess();
}

/// A module's archive, as torch::save writes it.
template <class M>
std::string saved(const M& module) {
  std::ostringstream stream;
  torch::save(module, stream);
  return stream.str();
}
template <class M>
void load(M& module, const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::load(module, stream);
}

/// The same parameter values in another module of the same kind.
inline void copy_parameters(const torch::nn::Module& from, torch::nn::Module& to) {
  const torch::NoGradGuard no_grad;
  auto own = to.named_parameters();
  for (const auto& p : from.named_parameters()) own[p.key()].copy_(p.value());
}

/// Small random values in every parameter, so that biases and norms are not at their special start.
inline void randomize(torch::nn::Module& module, double std = 0.1) {
  const torch::NoGradGuard no_grad;
  for (auto& p : module.named_parameters()) {
    if (p.key().find("norm") == std::string::npos && p.key().find("bias") == std::string::npos) continue;
    p.value().add_(torch::randn_like(p.value()) * std);
  }
}

}  // namespace fp8::test

namespace fp8 {
using test::near_step;
using test::same_step;
using test::training_step;
}  // namespace fp8
