// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/optim/fused_clip_ema.h"
#include "fp8/runtime/optim/optimizers.h"
#include "runtime/optim/optim_test.h"
#include "support/enum_names.h"

namespace fp8::runtime::optim {
namespace {

using test::parameters;
using test::set_grads;

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
  for (const bool nesterov : {true, false})
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
  MuonOptions options;
  EXPECT_TRUE(options.set("ratio", to_value(MuonRatio::match_rms_adamw)));
  EXPECT_EQ(options.ratio(), MuonRatio::match_rms_adamw);
  EXPECT_REFUSED(options.set("ratio", c10::IValue("adamw")),
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
                           "bert.embeddings.word_embeddings.weight"})
    EXPECT_FALSE(is_hidden_weight(name, matrix)) << name;
}

TEST(FusedClipNorm, IsTorchs) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
    const auto ours = parameters(test::kHpu, type), theirs = parameters(at::kCPU, type);
    set_grads(ours, 1), set_grads(theirs, 1);
    const at::Tensor norm = FusedClipNorm(ours, 2.5).clip_norm();
    const double expected = torch::nn::utils::clip_grad_norm_(theirs, 2.5);
    EXPECT_NEAR(norm.item<double>(), expected, tolerance * expected);
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
    EXPECT_EQ(norm.dim(), 0);
    for (std::size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(torch::allclose(ours[i].grad().cpu(), theirs[i].grad(), tolerance, 1e-6)) << i;
  }
}

TEST(FusedClipNorm, CountsATiedParameterOnce) {
  const at::Tensor w = torch::zeros({4}).requires_grad_();
  w.mutable_grad() = torch::full({4}, 3.0f);  // norm 6
  EXPECT_EQ(FusedClipNorm({w, w}, 2).clip_norm().item<double>(), 6);
  EXPECT_TRUE(torch::allclose(w.grad(), torch::full({4}, 1.0f)));
}

TEST(FusedClipNorm, TouchesNothingBelowTheThreshold) {
  const auto params = parameters(at::kCPU);
  set_grads(params, 1);
  auto before = collected(params, [](const auto& p) { return p.grad().clone(); });
  double squares = 0;
  for (const auto& g : before) squares += g.to(at::kDouble).square().sum().item<double>();
  const double norm = FusedClipNorm(params, std::sqrt(squares) * (1 + 1e-6)).clip_norm().item<double>();
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-5 * norm);
  for (std::size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(test::same_bits(params[i].grad(), before[i]));
}

TEST(FusedClipNorm, HasDefinedAnswersAtTheEdges) {
  const auto params = parameters(at::kCPU);
  const FusedClipNorm clip({}, 1);
  EXPECT_EQ(clip.clip_norm().item<double>(), 0);
  EXPECT_EQ(clip.clip_norm(params).item<double>(), 0);  // none has a gradient
  set_grads(params, 1);
  params[0].mutable_grad()[0] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(clip.clip_norm(params).isinf().item<bool>());
  EXPECT_TRUE(params[0].grad()[0].isnan().item<bool>());
  EXPECT_EQ(params[1].grad().abs().max().item<double>(), 0);
  set_grads(params, 1);
  params[0].mutable_grad()[0] = std::nan("");
  const at::Tensor before = params[1].grad().clone();
  EXPECT_TRUE(clip.clip_norm(params).isnan().item<bool>());
  EXPECT_TRUE(test::same_bits(params[1].grad(), before));
  EXPECT_REFUSED(FusedClipNorm({}, 0), "max_norm is 0", "above 0");
  EXPECT_REFUSED(FusedClipNorm({}, 1, 1), "norm_type is 1", "allowed is 2");
  const at::Tensor sparse = torch::zeros({4, 2}).requires_grad_();
  sparse.mutable_grad() = torch::ones({4, 2}).to_sparse();
  EXPECT_REFUSED(clip.clip_norm({sparse}), "dense");
}

TEST(FusedEMA, AveragesInF64sNeighbourhood) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto params = parameters(test::kHpu, type);
    FusedEMA ema(params, 0.99, 0, 0);
    auto expected = collected(params, [](const auto& p) { return test::f64(p); });
    for (int step = 0; step < 5; ++step) {
      for (std::size_t i = 0; i < params.size(); ++i) {
        params[i].detach().mul_(1.5).add_(0.1);
        expected[i] = 0.99 * expected[i] + (1 - 0.99) * test::f64(params[i]);
      }
      ema.update();
    }
    for (std::size_t i = 0; i < params.size(); ++i)
      EXPECT_TRUE(torch::allclose(ema.averages()[i].cpu().to(at::kDouble), expected[i], 1e-5, 1e-6)) << i;
  }
}

/// The device's: t counts updates, d = decay * (1 - exp(-t / 2000)).
TEST(FusedEMA, RampsUpAsTheDevicesDoes) {
  for (const std::int64_t start : {0, 1500}) {
    const auto params = parameters(test::kHpu);
    FusedEMA ema(params, 0.9999, start);
    at::Tensor expected = test::f64(params[1]);
    for (std::int64_t t = start + 1; t <= start + 4; ++t) {
      params[1].detach().mul_(0.5).add_(1);
      const double d = 0.9999 * (1 - std::exp(-static_cast<double>(t) / 2000));
      EXPECT_NEAR(ema.decay_of(t), d, 1e-12);
      expected = d * expected + (1 - d) * test::f64(params[1]);
      ema.update();
      EXPECT_EQ(ema.updates(), t);
    }
    EXPECT_TRUE(torch::allclose(ema.averages()[1].cpu().to(at::kDouble), expected, 1e-5, 1e-6)) << start;
  }
}

struct TiedModel : torch::nn::Module {
  TiedModel() {
    register_module("first", layer);
    register_module("norm", norm);
    register_module("again", layer);
  }
  torch::nn::Linear layer{3, 4};
  torch::nn::BatchNorm1d norm{4};
};

TEST(FusedEMA, OfAModelAveragesItsStatisticsToo) {
  TiedModel model;
  FusedEMA ema(model, 0.5, 0, 0);
  ASSERT_EQ(ema.averages().size(), 6u) << "weight, bias, gamma, beta, mean, variance; not the number of batches";
  const at::Tensor mean = model.norm->running_mean, before = mean.clone();
  model.norm(torch::randn({8, 4}) + 3);
  const at::Tensor after = mean.clone();
  EXPECT_FALSE(torch::equal(before, after));
  ema.update();
  EXPECT_TRUE(torch::allclose(ema.averages()[4], 0.5 * before + 0.5 * after));
  ema.swap();
  EXPECT_TRUE(test::same_bits(mean, ema.averages()[4]));
  ema.swap();
  EXPECT_TRUE(test::same_bits(mean, after));
}

TEST(FusedEMA, RefusesWhatItCannotAverage) {
  const std::vector<at::Tensor> wide{torch::ones({2}, at::kDouble)};
  EXPECT_REFUSED(FusedEMA{wide}, "parameter 0 is Double", "Float, BFloat16 and Half");
  EXPECT_REFUSED(FusedEMA(std::vector<at::Tensor>{at::Tensor()}), "parameter 0 is undefined");
  EXPECT_REFUSED(FusedEMA(std::vector<at::Tensor>{}, 0.9, -1), "updates is -1", "0 or more");
  EXPECT_REFUSED(FusedEMA(std::vector<at::Tensor>{}, 0.9, 0, -1), "ramp is -1", "or more");
  EXPECT_REFUSED(FusedEMA(std::vector<at::Tensor>{}, std::nan("")), "decay is nan");
}

TEST(FusedEMA, SwapsThereAndBackToTheBit) {
  const auto params = parameters(test::kHpu, at::kBFloat16);
  FusedEMA ema(params, 0.5, 0, 0);
  for (const auto& p : params) p.detach().mul_(2);
  ema.update();
  const auto before = test::values(params);
  const at::Tensor average = ema.averages()[1].clone();
  ema.swap();
  EXPECT_TRUE(test::same_bits(params[1].detach(), average.to(at::kBFloat16)));
  EXPECT_REFUSED(ema.update(), "swap");
  ema.swap();
  for (std::size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(test::same_bits(params[i].detach(), before[i]));
  EXPECT_TRUE(test::same_bits(ema.averages()[1], average));
  EXPECT_REFUSED(ema.decay(2), "decay is 2", "0 to 1");
  EXPECT_REFUSED(ema.update({params[0], params[1], params[2]}), "3 parameters", "4");
}

}  // namespace
}  // namespace fp8::runtime::optim
