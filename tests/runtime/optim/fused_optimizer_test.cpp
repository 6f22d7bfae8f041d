// SPDX-License-Identifier: Apache-2.0
// The base class of the fused optimizers, tested with FusedAdamW.
#include "fp8/runtime/optim/fused_optimizer.h"

#include "fp8/runtime/graph/hpu_graph.h"
#include "fp8/runtime/optim/fused_clip_ema.h"
#include "fp8/runtime/optim/optimizers.h"
#include "runtime/optim/optim_test.h"

namespace fp8::runtime::optim {
namespace {

using test::parameters;
using test::set_grads;

using Make = std::function<std::unique_ptr<FusedOptimizer>(const std::vector<at::Tensor>&)>;

std::vector<Make> all_optimizers() {
  using P = const std::vector<at::Tensor>&;
  return {
      [](P p) { return std::make_unique<FusedAdamW>(p, FusedAdamWOptions(1e-2).weight_decay(0.1)); },
      [](P p) { return std::make_unique<FusedAdamW>(p, FusedAdamWOptions(1e-2).moments_dtype(at::kBFloat16)); },
      [](P p) {
        return std::make_unique<FusedAdamW>(
            p, FusedAdamWOptions(1e-2).moments_dtype({at::kFloat8_e4m3fn, at::kFloat8_e5m2}));
      },
      [](P p) { return std::make_unique<FusedSGD>(p, FusedSGDOptions(1e-2).momentum(0.9)); },
      [](P p) { return std::make_unique<FusedLars>(p, FusedLarsOptions(1e-2)); },
      [](P p) { return std::make_unique<FusedLamb>(p, FusedLambOptions(1e-2)); },
      [](P p) {
        return std::make_unique<Muon>(std::vector<at::Tensor>{p[1]}, std::vector<at::Tensor>{p[0], p[2], p[3]});
      },
  };
}

TEST(FusedOptimizer, AGraphTakesStepsWithTheRatesOfTheMoment) {
  for (const Make& make : all_optimizers()) {
    const auto run = [&](bool graphed) {
      const auto p = parameters(test::kHpu);
      const auto optimizer = make(p);
      at::Tensor x = at::ones({}, test::kHpu), norm;
      const auto step = [&] {
        at::Tensor loss = at::zeros({}, test::kHpu);
        for (const at::Tensor& each : p) each.mutable_grad().reset(), loss = loss + each.square().sum() * x;
        loss.backward();
        norm = FusedClipNorm(p, 0.5).clip_norm(p);
        optimizer->step();
      };
      HPUGraph graph;
      if (graphed) {
        const GraphCapture capture(graph);
        step();
      } else {
        step();
      }
      x.fill_(2);
      for (const double rate : {1e-3, 5e-3, 1e-2}) {
        for (auto& group : optimizer->param_groups()) group.options().set_lr(rate);
        graphed ? graph.replay() : step();
      }
      auto state = optimizer->tensors();
      for (std::size_t i = 0; i < p.size(); ++i) state["p" + std::to_string(i)] = p[i].detach().cpu();
      state["norm"] = norm.cpu();
      return state;
    };
    const auto eager = run(false), replayed = run(true);
    ASSERT_EQ(eager.size(), replayed.size());
    for (const auto& [name, tensor] : eager) EXPECT_TRUE(tensor.equal(replayed.at(name))) << name;
  }
}

TEST(FusedOptimizer, AGraphOutlivesItByAnError) {
  const auto p = parameters(test::kHpu);
  HPUGraph graph;
  {
    FusedSGD optimizer(p, FusedSGDOptions(0.1));
    set_grads(p, 0);
    const GraphCapture capture(graph);
    optimizer.step();
  }
  EXPECT_REFUSED(graph.replay(), "the optimizer whose step was captured is gone");
}

TEST(FusedOptimizer, AResumedRunEqualsAnUninterruptedOneToTheBit) {
  for (std::size_t kind = 0; kind < all_optimizers().size(); ++kind) {
    const Make make = all_optimizers()[kind];
    for (const bool plain : {false, true}) {  // plain: tensors() instead of an archive
      for (const at::Device device : {at::Device(at::kCPU), test::kHpu}) {
        const auto through = parameters(device), first = parameters(device), second = parameters(device, at::kFloat, 2);
        auto uninterrupted = make(through), before = make(first), after = make(second);
        test::run_both(through, *uninterrupted, first, *before, 0, 3);
        test::copy_values(first, second);
        if (plain) {
          after->load_tensors(before->tensors());
        } else {
          const std::string bytes = test::through_archive([&](auto& archive) { before->save(archive); });
          EXPECT_EQ(bytes, test::through_archive([&](auto& archive) { before->save(archive); }));
          auto archive = test::archive_of(bytes);
          after->load(archive);
        }
        test::run_both(through, *uninterrupted, second, *after, 3, 6);
        SCOPED_TRACE("optimizer " + std::to_string(kind) + " plain " + std::to_string(plain));
        test::expect_same_bits(through, second);
      }
    }
  }
}

TEST(FusedOptimizer, ThreadsChangeNoBit) {
  for (const Make& make : all_optimizers()) {
    std::vector<at::Tensor> results[2];
    for (int run = 0; run < 2; ++run) {
      const test::Threads set(run == 0 ? 1 : 4);
      const auto params = parameters(at::kCPU);
      auto optimizer = make(params);
      test::run_steps(params, *optimizer, 0, 3);
      results[run] = test::values(params);
    }
    test::expect_same_bits(results[0], results[1]);
  }
}

TEST(FusedOptimizer, ReadsArchivesOfTorchsAdamW) {
  const auto theirs = parameters(at::kCPU), ours = parameters(test::kHpu);
  torch::optim::AdamW b(theirs, torch::optim::AdamWOptions(1e-2).betas({0.8, 0.9}).eps(1e-7).weight_decay(0.2));
  FusedAdamW a(ours, FusedAdamWOptions(5).eps_mode(EpsMode::torch));
  test::run_steps(theirs, b, 0, 3);
  auto archive = test::archive_of_state(b);
  a.load(archive);
  const auto& options = static_cast<const FusedAdamWOptions&>(a.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 1e-2);
  EXPECT_EQ(options.weight_decay(), 0.2);
  EXPECT_EQ(options.betas(), std::make_tuple(0.8, 0.9));
  test::copy_values(theirs, ours);
  test::run_both(theirs, b, ours, a, 3, 5);
  test::expect_close(ours, theirs, 2e-5, 2e-6);
}

/// `theirs` loads the state of `ours` and continues on the CPU as `ours` does.
template <class Ours, class Theirs>
void expect_goes_on_upstream(const std::vector<at::Tensor>& mine, Ours& ours, const std::vector<at::Tensor>& others,
                             Theirs& theirs) {
  test::run_steps(mine, ours, 0, 3);
  auto archive = test::archive_of_state(ours);
  theirs.load(archive);
  test::copy_values(mine, others);
  test::run_both(mine, ours, others, theirs, 3, 5);
  test::expect_close(mine, others, 2e-5, 2e-6);
}

TEST(FusedOptimizer, ItsArchivesLoadInTorchsAdamWAndSgd) {
  const auto mine = parameters(test::kHpu), others = parameters(at::kCPU);
  FusedAdamW ours(mine, FusedAdamWOptions(1e-2).betas({0.8, 0.9}).eps(1e-7).weight_decay(0.2).eps_mode(EpsMode::torch));
  torch::optim::AdamW theirs(others, torch::optim::AdamWOptions(5));
  expect_goes_on_upstream(mine, ours, others, theirs);
  EXPECT_EQ(static_cast<const torch::optim::AdamWOptions&>(theirs.param_groups()[0].options()).weight_decay(), 0.2);
  FusedSGD sgd(mine, FusedSGDOptions(1e-2).momentum(0.9));
  torch::optim::SGD their_sgd(others, torch::optim::SGDOptions(5));
  expect_goes_on_upstream(mine, sgd, others, their_sgd);
}

TEST(FusedOptimizer, TorchsAdamWRefusesArchivesWhoseMeaningItLacks) {
  for (const auto& options :
       {FusedAdamWOptions(1e-2).moments_dtype(at::kFloat8_e5m2), FusedAdamWOptions(1e-2).bias_correction(false)}) {
    const auto mine = parameters(test::kHpu), others = parameters(at::kCPU);
    FusedAdamW ours(mine, options);
    set_grads(mine, 0);
    ours.step();
    auto archive = test::archive_of_state(ours);
    torch::optim::AdamW theirs(others, torch::optim::AdamWOptions(5));
    EXPECT_ANY_THROW(theirs.load(archive));
  }
}

TEST(FusedOptimizer, RefusesArchivesThatRelyOnWhatItHasNot) {
  const auto theirs = parameters(at::kCPU), ours = parameters(at::kCPU);
  torch::optim::AdamW b(theirs, torch::optim::AdamWOptions(1e-2).amsgrad(true));
  set_grads(theirs, 0);
  b.step();
  FusedAdamW a(ours, FusedAdamWOptions(5));
  auto archive = test::archive_of_state(b);
  EXPECT_REFUSED(a.load(archive), "amsgrad is true, allowed is false");
  EXPECT_TRUE(a.tensors().empty());
  EXPECT_EQ(a.param_groups()[0].options().get_lr(), 5);
}

TEST(FusedOptimizer, GoesThroughTorchsSaveAndLoad) {
  const auto from = parameters(test::kHpu), to = parameters(at::kCPU);
  const auto options = FusedAdamWOptions(1e-2).moments_dtype({at::kFloat8_e4m3fn, at::kFloat8_e5m2}).seed(5);
  FusedAdamW a(from, options), b(to, FusedAdamWOptions());
  set_grads(from, 0);
  a.step();
  std::stringstream file;
  torch::save(a, file);
  torch::load(b, file);
  for (const auto& [name, tensor] : a.tensors()) EXPECT_TRUE(test::same_bits(b.tensors().at(name), tensor)) << name;
  EXPECT_EQ(static_cast<const FusedAdamWOptions&>(b.param_groups()[0].options()).seed(), 5);
}

TEST(FusedOptimizer, ParametersOfOneStepMayBeOnBothDevices) {
  for (const Make& make : all_optimizers()) {
    const auto mixed = parameters(at::kCPU), host = parameters(at::kCPU);
    auto some = mixed;
    for (const std::size_t i : {0, 1}) some[i] = mixed[i].detach().to(test::kHpu).requires_grad_();
    auto a = make(some), b = make(host);
    test::run_both(some, *a, host, *b, 0, 2);
    test::expect_same_bits(some, host);
  }
}

TEST(FusedOptimizer, LoadedMomentsTakeTheTypeOfTheOptions) {
  const auto from = parameters(test::kHpu), to = parameters(test::kHpu);
  FusedAdamW a(from, FusedAdamWOptions(1e-3)),
      b(to, FusedAdamWOptions(1e-3).moments_dtype({at::kFloat8_e4m3fn, at::kBFloat16}));
  set_grads(from, 0);
  a.step();
  b.load_tensors(a.tensors());
  set_grads(from, 1), set_grads(to, 1);
  test::copy_values(from, to);
  a.step(), b.step();
  test::expect_close(to, from, 1e-2, 4e-4);
  FusedAdamW c(from, FusedAdamWOptions(1e-3));  // and back
  c.load_tensors(b.tensors());
  set_grads(from, 2);
  c.step();
  EXPECT_EQ(c.tensors().at("0.0.exp_avg").scalar_type(), at::kFloat);
  EXPECT_EQ(c.tensors().count("0.0.exp_avg_scale"), 0u);
}

TEST(FusedOptimizer, BadCheckpointsAreRefusedAndLeaveTheOptimizerAsItWas) {
  const auto params = parameters(at::kCPU),
             fewer = std::vector<at::Tensor>{params[0].detach().clone().requires_grad_()};
  FusedAdamW optimizer(params), small(fewer);
  set_grads(params, 0);
  optimizer.step();
  const auto state = optimizer.tensors();
  auto archive = test::archive_of_state(optimizer);
  EXPECT_REFUSED(small.load(archive), "group 0", "4 parameters", "1");
  EXPECT_REFUSED(small.load_tensors(state), "belong to no parameter");
  auto wrong = state;
  wrong["0.1.exp_avg"] = torch::zeros({2, 2});
  EXPECT_REFUSED(optimizer.load_tensors(wrong), "0.1.exp_avg", "[2, 2]", "[33, 65]");
  wrong["0.1.exp_avg"] = torch::zeros({1});
  EXPECT_REFUSED(optimizer.load_tensors(wrong), "0.1.exp_avg", "[1]", "[33, 65]");
  wrong = state;
  wrong["0.1.exp_avg_scale"] = torch::zeros({2});
  EXPECT_REFUSED(optimizer.load_tensors(wrong), "0.1.exp_avg_scale has sizes [2]", "one element");
  wrong = state;
  wrong["0.1.step"] = torch::tensor({-1}, at::kLong);
  EXPECT_REFUSED(optimizer.load_tensors(wrong), "0.1.step is -1");
  wrong["0.1.step"] = torch::tensor({1.5});
  EXPECT_REFUSED(optimizer.load_tensors(wrong), "0.1.step is not one int64, but ");
  torch::serialize::InputArchive empty =
      test::archive_of(test::through_archive([](auto& out) { out.write("x", torch::zeros({1})); }));
  EXPECT_FALSE(test::error_of([&] { optimizer.load(empty); }).empty());
  for (const auto& [name, tensor] : optimizer.tensors()) EXPECT_TRUE(test::same_bits(tensor, state.at(name))) << name;
}

TEST(FusedOptimizer, SchedulersZeroGradAndClosuresWork) {
  const at::Tensor w = torch::tensor({3.0f}).requires_grad_();
  FusedAdamW optimizer({w}, FusedAdamWOptions(0.1));
  const at::Tensor other = torch::tensor({3.0f}).requires_grad_();
  torch::optim::SGD upstream({other}, torch::optim::SGDOptions(0.1));
  torch::optim::StepLR scheduler(optimizer, 2, 0.5), same(upstream, 2, 0.5);
  std::vector<double> losses;
  for (int i = 0; i < 5; ++i) {
    const at::Tensor loss = optimizer.step([&] {
      optimizer.zero_grad();
      const at::Tensor l = (w * w).sum();
      l.backward();
      return l;
    });
    losses.push_back(loss.item<double>());
    scheduler.step();
    same.step();
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), upstream.param_groups()[0].options().get_lr()) << i;
  }
  EXPECT_LT(losses[4], losses[0]);
  EXPECT_LT(optimizer.param_groups()[0].options().get_lr(), 0.1);
  optimizer.zero_grad();
  EXPECT_FALSE(w.grad().defined());
}

TEST(FusedOptimizer, PassesOverWhatHasNoGradient) {
  for (const Make& make : all_optimizers()) {
    const auto params = parameters(at::kCPU);
    const auto before = test::values(params);
    auto optimizer = make(params);
    optimizer->step();
    EXPECT_TRUE(optimizer->tensors().empty());
    set_grads({params[1]}, 0);
    optimizer->step();
    for (std::size_t i = 0; i < params.size(); ++i) EXPECT_EQ(torch::equal(params[i].detach(), before[i]), i != 1) << i;
  }
  FusedAdamW nothing(std::vector<at::Tensor>{});
  nothing.step();
  FusedAdamW no_groups(std::vector<torch::optim::OptimizerParamGroup>{});
  no_groups.step();
  const at::Tensor empty = torch::zeros({0, 3}).requires_grad_();
  empty.mutable_grad() = torch::zeros({0, 3});
  FusedAdamW({empty}).step();
}

TEST(FusedOptimizer, RefusesWhatItCannotDo) {
  const auto params = parameters(at::kCPU);
  const at::Tensor sparse = torch::zeros({4, 2}).requires_grad_(),
                   wide = torch::zeros({3}, at::kDouble).requires_grad_();
  sparse.mutable_grad() = torch::ones({4, 2}).to_sparse();
  wide.mutable_grad() = torch::ones({3}, at::kDouble);
  EXPECT_REFUSED(FusedAdamW({sparse}).step(), "gradient of parameter 0 of group 0", "Sparse", "dense");
  EXPECT_REFUSED(FusedAdamW({wide}).step(), "parameter 0 of group 0 is Double", "Float, BFloat16 and Half");
  EXPECT_REFUSED(FusedAdamW({params[0], params[0]}), "parameter 1 is there already");
  EXPECT_REFUSED(FusedAdamW({params[0] * 2}), "non-leaf");
  FusedAdamW optimizer({params[0]});
  EXPECT_REFUSED(optimizer.add_param_group({{params[0]}}), "there already");
  const torch::optim::OptimizerParamGroup other({params[1]}, std::make_unique<FusedSGDOptions>());
  EXPECT_REFUSED(optimizer.add_param_group(other), "another optimizer's");
  const torch::optim::OptimizerParamGroup upstream({params[1]}, std::make_unique<torch::optim::AdamWOptions>());
  EXPECT_REFUSED(optimizer.add_param_group(upstream), "another optimizer's");
  optimizer.param_groups()[0].options().set_lr(-1);
  EXPECT_REFUSED(optimizer.step(), "lr is -1");
}

TEST(FusedOptimizer, NanGradientsSpoilTheirElementsOnly) {
  for (const Make& make : all_optimizers()) {
    const auto params = parameters(at::kCPU);
    auto optimizer = make(params);
    set_grads(params, 0);
    params[3].mutable_grad()[7] = std::nan("");
    EXPECT_NO_THROW(optimizer->step());
    EXPECT_TRUE(params[3].detach()[7].isnan().item<bool>());
    EXPECT_EQ(params[3].detach().isnan().sum().item<int>(), 1);
  }
}

TEST(FusedSGD, IsTorchs) {
  const std::vector<FusedSGDOptions> kOptions = {FusedSGDOptions(0.1), FusedSGDOptions(0.1).weight_decay(0.3),
                                                 FusedSGDOptions(0.1).momentum(0.9),
                                                 FusedSGDOptions(0.1).momentum(0.9).dampening(0.5).weight_decay(0.1),
                                                 FusedSGDOptions(0.1).momentum(0.8).nesterov(true)};
  for (const auto& o : kOptions) {
    const auto ours = parameters(test::kHpu), theirs = parameters(at::kCPU);
    FusedSGD a(ours, o);
    torch::optim::SGD b(theirs, torch::optim::SGDOptions(o.lr())
                                    .momentum(o.momentum())
                                    .dampening(o.dampening())
                                    .weight_decay(o.weight_decay())
                                    .nesterov(o.nesterov()));
    test::run_both(ours, a, theirs, b, 0, 10);
    test::expect_close(ours, theirs, 1e-5, 1e-5);
  }
}

TEST(FusedSGD, BadOptionsNameThemselves) {
  const auto p = parameters(at::kCPU);
  EXPECT_REFUSED(FusedSGD(p, FusedSGDOptions().momentum(-1)), "FusedSGD: momentum is -1", "0 or more");
  EXPECT_REFUSED(FusedSGD(p, FusedSGDOptions().nesterov(true)), "nesterov", "momentum 0");
  EXPECT_REFUSED(FusedLars(p, FusedLarsOptions().eeta(0)), "FusedLars: eeta is 0", "above 0");
  EXPECT_REFUSED(FusedLars(p, FusedLarsOptions().eps(-1)), "eps is -1");
}

TEST(FusedLars, IsItsFormulaInF64) {
  const auto params = parameters(test::kHpu);
  const FusedLarsOptions o = FusedLarsOptions(0.5).momentum(0.9).weight_decay(0.1).eeta(0.01).eps(1e-6);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{params[1], params[2]});
  groups.emplace_back(std::vector<at::Tensor>{params[0]}, FusedLarsOptions(o).skip(true).clone());
  FusedLars optimizer(groups, o);
  std::map<int, at::Tensor> w, buffer;
  for (const int i : {0, 1, 2}) w[i] = test::f64(params[i]), buffer[i] = torch::zeros_like(w[i]);
  for (int step = 0; step < 4; ++step) {
    set_grads(params, step);
    if (step == 2) params[2].mutable_grad().zero_();  // norm 0: trust 1
    optimizer.step();
    for (const int i : {0, 1, 2}) {
      const at::Tensor g = params[i].grad().cpu().to(at::kDouble);
      const double wn = w[i].norm().item<double>(), gn = g.norm().item<double>();
      const double trust = i == 0 || gn == 0 ? 1 : 0.01 * wn / (gn + 0.1 * wn + 1e-6);
      buffer[i] = 0.9 * buffer[i] - 0.5 * trust * (i == 0 ? g : g + 0.1 * w[i]);
      w[i] = w[i] + buffer[i];
      EXPECT_TRUE(torch::allclose(test::f64(params[i]), w[i], 1e-5, 1e-6)) << i << " " << step;
    }
  }
}

}  // namespace
}  // namespace fp8::runtime::optim
