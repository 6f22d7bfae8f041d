// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/muon.h"

#include "optim_test.h"
#include "support/enum_names.h"

namespace fp8::runtime::optim {
namespace {

/// The published update in f64 (momentum as an average, Newton-Schulz on the short side).
at::Tensor orthogonal(const at::Tensor& update) {
  const bool tall = update.size(0) > update.size(1);
  at::Tensor x = tall ? update.t() : update;
  x = x / x.norm();
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.mm(a)).mm(x);
  }
  return tall ? x.t() : x;
}

TEST(Muon, IsThePublishedUpdate) {
  for (const bool nesterov : {true, false}) {
    for (const MuonRatio ratio : {MuonRatio::original, MuonRatio::match_rms_adamw}) {
      torch::manual_seed(1);
      std::vector<at::Tensor> params, w, buffer;
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{48, 48}, {96, 40}, {20, 70}, {48, 48}}) {
        params.push_back(torch::randn(sizes, test::on_hpu()).requires_grad_());
        w.push_back(params.back().detach().cpu().to(at::kDouble));
        buffer.push_back(torch::zeros_like(w.back()));
      }
      Muon optimizer(params, {}, MuonOptions(0.05).weight_decay(0.1).nesterov(nesterov).ratio(ratio));
      for (int step = 0; step < 3; ++step) {
        test::set_grads(params, step);
        optimizer.step();
        for (std::size_t i = 0; i < params.size(); ++i) {
          const at::Tensor g = params[i].grad().cpu().to(at::kDouble);
          buffer[i] = 0.95 * buffer[i] + 0.05 * g;
          const double rows = static_cast<double>(g.size(0)), cols = static_cast<double>(g.size(1));
          const double factor = ratio == MuonRatio::original ? std::sqrt(std::max(1.0, rows / cols))
                                                             : 0.2 * std::sqrt(std::max(rows, cols));
          w[i] =
              w[i] * (1 - 0.05 * 0.1) - 0.05 * factor * orthogonal(nesterov ? 0.05 * g + 0.95 * buffer[i] : buffer[i]);
          EXPECT_TRUE(torch::allclose(test::f64(params[i]), w[i], 1e-4, 2e-4)) << i << " " << step;
        }
      }
    }
  }
}

TEST(Muon, GivesTheOthersToAdamW) {
  const auto ours = test::parameters(at::kCPU), theirs = test::parameters(at::kCPU);
  Muon a({ours[1]}, {ours[0], ours[2], ours[3]}, MuonOptions(), FusedAdamWOptions(1e-2).weight_decay(0.1));
  FusedAdamW b({theirs[0], theirs[2], theirs[3]}, FusedAdamWOptions(1e-2).weight_decay(0.1));
  test::run_both(ours, a, theirs, b, 0, 3);
  for (const int i : {0, 2, 3}) EXPECT_TRUE(test::same_bits(ours[i], theirs[i])) << i;
  EXPECT_EQ(a.param_groups()[0].options().get_lr(), 0.02);
  EXPECT_EQ(a.param_groups()[1].options().get_lr(), 1e-2);
}

TEST(Muon, LearnsALinearMapFasterThanItsStart) {
  torch::manual_seed(3);
  const at::Tensor target = torch::randn({32, 32}) / 6, w = torch::zeros({32, 32}).requires_grad_(),
                   x = torch::randn({256, 32});
  Muon optimizer({w}, {});
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = (x.mm(w.t()) - x.mm(target.t())).square().mean();
    loss.backward();
    optimizer.step();
    if (step == 0) first = loss.item<double>();
    last = loss.item<double>();
  }
  EXPECT_LT(last, 0.1 * first);
}

TEST(Muon, RefusesWhatIsNoMatrixAndBadOptions) {
  const auto p = test::parameters(at::kCPU);
  EXPECT_REFUSED(Muon({p[1], p[2]}, {}), "Muon: parameter 1 has sizes [3, 5, 2]", "2 dimensions");
  EXPECT_REFUSED(Muon({p[1]}, {}, MuonOptions().momentum(1)), "momentum is 1", "below 1");
  EXPECT_REFUSED(Muon({p[1]}, {}, MuonOptions().ns_steps(0)), "ns_steps is 0", "1 to 99");
  EXPECT_REFUSED(Muon({p[1]}, {}, MuonOptions().eps(0)), "eps is 0");
}

TEST(Muon, RatiosAreReadByTheirNames) {
  test::check_names<MuonRatio>();
  MuonRatio ratio = MuonRatio::original;
  from_value(to_value(MuonRatio::match_rms_adamw), ratio);
  EXPECT_EQ(ratio, MuonRatio::match_rms_adamw);
  EXPECT_REFUSED(from_value(c10::IValue("adamw"), ratio),
                 "Muon: ratio is \"adamw\", allowed are original and match_rms_adamw");
}

TEST(Muon, TellsHiddenWeightsByNameAndShape) {
  const at::Tensor matrix = torch::zeros({4, 4}), vector = torch::zeros({4});
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight", "h.1.mlp.c_fc.weight", "encoder.layer.0.output_proj.weight"}) {
    EXPECT_TRUE(is_hidden_weight(name, matrix)) << name;
    EXPECT_FALSE(is_hidden_weight(name, vector)) << name;
  }
  for (const char* name : {"model.embed_tokens.weight", "transformer.wte.weight", "lm_head.weight",
                           "bert.embeddings.word_embeddings.weight"}) {
    EXPECT_FALSE(is_hidden_weight(name, matrix)) << name;
  }
}

}  // namespace
}  // namespace fp8::runtime::optim
