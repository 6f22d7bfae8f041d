// SPDX-License-Identifier: Apache-2.0
// The mixture against a sum over tokens and experts, written down term by term in f64.
#include "fp8/runtime/modules/op_modules.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

using test::hpu;
using test::same_bits;

MixtureOfExperts mixture(const MixtureOfExpertsOptions& options) {
  torch::manual_seed(2);
  MixtureOfExperts m(options);
  const torch::NoGradGuard no_grad;
  for (auto& p : m->parameters()) p.normal_();
  m->to(test::kHpu);
  return m;
}

at::Tensor activated(const std::string& name, const at::Tensor& x) {
  return name == "silu"   ? x * torch::sigmoid(x)
         : name == "relu" ? x.clamp_min(0)
                          : 0.5 * x * (1 + torch::erf(x / std::sqrt(2.0)));
}

/// y[t] = sum over k of weight[t, k] * expert[table[t, k]](x[t]), experts outside of the range giving nothing.
at::Tensor expected(MixtureOfExperts& m, const at::Tensor& hidden, const at::Tensor& table, const at::Tensor& weights) {
  const auto parameters = m->named_parameters();
  const auto& o = m->options();
  const auto f64 = [](const at::Tensor& t) { return t.cpu().to(at::kDouble); };
  at::Tensor y = torch::zeros({hidden.size(0), hidden.size(1)}, at::kDouble);
  for (std::int64_t t = 0; t < table.size(0); ++t) {
    for (std::int64_t k = 0; k < table.size(1); ++k) {
      const auto e = table.cpu()[t][k].item<std::int64_t>() - o.experts_min;
      if (e < 0 || e > o.experts_max - o.experts_min) continue;
      const at::Tensor w13 = f64(parameters["w13_list." + std::to_string(e) + ".weight"]),
                       w2 = f64(parameters["w2_list." + std::to_string(e) + ".weight"]);
      const at::Tensor up = torch::mv(w13, f64(hidden)[t]);
      const at::Tensor inner = activated(o.activation, up.narrow(0, 0, o.intermediate_size)) *
                               up.narrow(0, o.intermediate_size, o.intermediate_size);
      y[t] += f64(weights)[t][k] * torch::mv(w2, inner);
    }
  }
  return y;
}

TEST(MixtureOfExperts, IsTheWeightedSumOfItsExperts) {
  const at::Tensor hidden = hpu(torch::randn({7, 6})), table = hpu(torch::randint(5, {7, 2}, at::kLong)),
                   weights = hpu(torch::rand({7, 2}));
  for (const char* activation : {"silu", "gelu", "relu"}) {
    for (const auto& [first, last] : {std::pair<std::int64_t, std::int64_t>{0, -1}, {1, 3}, {4, 4}}) {
      auto m = mixture({5, 6, 4, first, last, activation});
      const at::Tensor y = m(hidden, table, weights);
      const at::Tensor reference = expected(m, hidden, table, weights);
      EXPECT_LT((y.cpu().to(at::kDouble) - reference).abs().max().item<double>(), 1e-5) << activation << first;
    }
  }
}

TEST(MixtureOfExperts, TokensOfOtherRanksGiveZeros) {
  auto m = mixture({4, 6, 4, 0, 1, "silu"});
  const at::Tensor y = m(hpu(torch::randn({3, 6})), hpu(torch::full({3, 2}, 3, at::kLong)), hpu(torch::ones({3, 2})));
  EXPECT_TRUE(same_bits(y, torch::zeros({3, 6})));
}

TEST(MixtureOfExperts, HoldsOnlyItsOwnExperts) {
  auto m = mixture({8, 6, 4, 2, 4, "silu"});
  EXPECT_EQ(m->w13_list->size(), 3u);
  EXPECT_EQ(m->named_parameters()["w13_list.0.weight"].sizes(), (std::vector<std::int64_t>{8, 6}));
  EXPECT_EQ(m->named_parameters()["w2_list.2.weight"].sizes(), (std::vector<std::int64_t>{6, 4}));
  EXPECT_EQ(m->name(), "VllmMixtureOfExpertsOp");
  EXPECT_EQ(m->w13_list->ptr(0)->name(), "MoeMatmul");
}

TEST(MixtureOfExperts, ExpertsMultiplyByTheirTranspose) {
  const at::Tensor w = torch::randn({4, 6}), x = torch::randn({3, 6});
  EXPECT_TRUE(same_bits(MoeMatmul(w)->forward(x), torch::linear(x, w)));
}

TEST(MixtureOfExperts, AHandlerGetsTheExpertsWeights) {
  struct Seen final : ModuleHandler {
    std::vector<at::Tensor> w12, w3;
    std::int64_t first = -1, last = -1;
    std::string activation;
    at::Tensor mixture_of_experts(const MoeCall& call) override {
      w12 = call.w12, w3 = call.w3, first = call.experts_min, last = call.experts_max, activation = call.activation;
      EXPECT_TRUE(call.permuted_weights);
      return call.original() * 2;
    }
    std::string describe() const override { return "seen"; }
  };
  auto m = mixture({4, 6, 4, 1, 2, "gelu"});
  const at::Tensor hidden = hpu(torch::randn({3, 6})), table = hpu(torch::tensor({{0, 1}, {2, 3}, {1, 2}})),
                   weights = hpu(torch::rand({3, 2}));
  const at::Tensor plain = m(hidden, table, weights);
  const auto seen = std::make_shared<Seen>();
  m->slot()->handler = seen;
  EXPECT_TRUE(same_bits(m(hidden, table, weights), plain * 2));
  ASSERT_EQ(seen->w12.size(), 2u);
  EXPECT_TRUE(seen->w12[1].is_same(m->w13_list->ptr(1)->as<MoeMatmulImpl>()->weight));
  EXPECT_TRUE(seen->w3[0].is_same(m->w2_list->ptr(0)->as<MoeMatmulImpl>()->weight));
  EXPECT_EQ(seen->first, 1);
  EXPECT_EQ(seen->last, 2);
  EXPECT_EQ(seen->activation, "gelu");
}

TEST(MixtureOfExperts, BadOptionsAreNamed) {
  EXPECT_REFUSED(MixtureOfExperts(MixtureOfExpertsOptions{4, 6, 4, 2, 4, "silu"}), "experts_min, experts_max", "[2, 4]",
                 "[0, 3]");
  EXPECT_REFUSED(MixtureOfExperts(MixtureOfExpertsOptions{0, 6, 4, 0, -1, "silu"}), "experts_min");
  EXPECT_REFUSED(MixtureOfExperts(MixtureOfExpertsOptions{4, 6, 4, 0, -1, "swish"}), "'swish'", "silu, gelu, relu");
}

}  // namespace
}  // namespace fp8::runtime
