// SPDX-License-Identifier: Apache-2.0
// A mixture of experts and its result by the formula, in f64 and densely: every expert on every token, times the sum of
// the router weights that the token gives it.
#pragma once
#include "runtime/ops/op_call.h"
#include "support/fp8_reference.h"

namespace fp8::test {

struct MoeProblem {
  std::int64_t tokens = 9, hidden = 16, inner = 24, experts = 4, top = 2;
  at::Tensor x{}, table{}, router{};         ///< CPU
  std::vector<at::Tensor> w1{}, w2{}, w3{};  ///< CPU, [H, F], [H, F], [F, H]
  std::string activation = "silu";
  std::int64_t min = 0, max = 3;

  /// Values as the operators take them, on hpu: weights as they are or permuted, apart or fused.
  std::vector<at::Tensor> lists(bool permuted, bool fused, int which) const {
    std::vector<at::Tensor> out;
    for (std::size_t e = 0; e < (which == 3 ? w3 : which == 2 ? w2 : w1).size(); ++e) {
      at::Tensor w = which == 3 ? w3[e] : which == 2 ? w2[e] : fused ? cat(w1[e], w2[e]) : w1[e];
      out.push_back(hpu(permuted ? turned(w) : w));
    }
    return out;
  }

  /// hidden_states, expert_routing_table, router_weights, weights...
  torch::jit::Stack inputs(bool permuted, bool fused) const {
    torch::jit::Stack stack{hpu(x), hpu(table), hpu(router)};
    for (int which : fused ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3})
      stack.emplace_back(c10::List<at::Tensor>(lists(permuted, fused, which)));
    return stack;
  }
  void add_tail(torch::jit::Stack& stack, bool permuted) const {
    stack.insert(stack.end(), {permuted, activation, min, max});
  }

  /// Codes have no cat: bytes are joined.
  static at::Tensor cat(const at::Tensor& a, const at::Tensor& b) {
    if (!c10::isFloat8Type(a.scalar_type())) return at::cat({a, b}, 1);
    return at::cat({a.view(at::kByte), b.view(at::kByte)}, 1).view(a.scalar_type());
  }
  static at::Tensor turned(const at::Tensor& w) {
    if (!c10::isFloat8Type(w.scalar_type())) return w.t().contiguous();
    return w.view(at::kByte).t().contiguous().view(w.scalar_type());
  }
  static at::Tensor f64(const at::Tensor& t) {
    return c10::isFloat8Type(t.scalar_type()) ? values_of(t) : t.to(at::kDouble);
  }

  at::Tensor act(const at::Tensor& g) const {
    if (activation == "relu") return at::clamp_min(g, 0);
    if (activation == "silu") return g / (1 + at::exp(-g));
    return 0.5 * g * (1 + at::erf(g * M_SQRT1_2));
  }

  /// h of expert e for all tokens; scales multiply x, w1, w2.
  at::Tensor intermediate(std::size_t e, const at::Tensor& x_values, const at::Tensor& w1_values,
                          const at::Tensor& w2_values) const {
    return act(at::matmul(x_values, w1_values)) * at::matmul(x_values, w2_values);
  }

  /// Router weight of the experts for each token, [T]: list position e stands for id `id`.
  at::Tensor weight_of(std::int64_t id) const {
    return (router.to(at::kDouble) * (table == id).to(at::kDouble)).sum(1);
  }
  bool meets(std::int64_t id) const { return (table == id).any().item<bool>(); }
};

/// Random values of `type`.
inline MoeProblem random_moe(at::ScalarType type, const std::string& activation, std::uint64_t seed = 11) {
  MoeProblem p{.activation = activation};
  torch::manual_seed(seed);
  p.x = at::randn({p.tokens, p.hidden}).to(type);
  const auto best = at::randn({p.tokens, p.experts}).topk(p.top);
  p.table = std::get<1>(best);
  p.router = at::softmax(std::get<0>(best), 1).to(type);
  for (std::int64_t e = 0; e < p.experts; ++e) {
    p.w1.push_back((at::randn({p.hidden, p.inner}) / 4).to(type));
    p.w2.push_back((at::randn({p.hidden, p.inner}) / 4).to(type));
    p.w3.push_back((at::randn({p.inner, p.hidden}) / 4).to(type));
  }
  return p;
}

/// Small integers as codes and router weights 1/2, 1/4: with scales that are powers of two every sum is exact.
inline MoeProblem exact_moe(at::ScalarType type, std::uint64_t seed = 5) {
  MoeProblem p{.activation = "relu"};
  torch::manual_seed(seed);
  const auto codes = [&](at::IntArrayRef sizes) { return at::randint(-3, 4, sizes).to(at::kFloat).to(type); };
  p.x = codes({p.tokens, p.hidden});
  p.table = std::get<1>(at::randn({p.tokens, p.experts}).topk(p.top));
  p.router = at::tensor({0.5, 0.25}).to(at::kBFloat16).expand({p.tokens, p.top}).contiguous();
  for (std::int64_t e = 0; e < p.experts; ++e) {
    p.w1.push_back(codes({p.hidden, p.inner}));
    p.w2.push_back(codes({p.hidden, p.inner}));
    p.w3.push_back(codes({p.inner, p.hidden}));
  }
  return p;
}

}  // namespace fp8::test
