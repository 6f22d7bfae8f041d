// SPDX-License-Identifier: Apache-2.0
// What all optimizers share, shown on FusedAdamW.
#include "fp8/runtime/optim/fused_optimizer.h"

#include "fp8/runtime/optim/fused_adam.h"
#include "fp8/runtime/optim/fused_sgd.h"
#include "fp8/runtime/optim/muon.h"
#include "optim_test.h"

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

TEST(FusedOptimizer, AResumedRunEqualsAnUninterruptedOneToTheBit) {
  for (std::size_t kind = 0; kind < all_optimizers().size(); ++kind) {
    const Make make = all_optimizers()[kind];
    for (const bool plain : {false, true}) {  // plain: tensors() instead of an archive
      for (const at::Device device : {at::Device(at::kCPU), test::kHpu}) {
        const auto through = parameters(device), first = parameters(device), second = parameters(device, at::kFloat, 2);
        auto uninterrupted = make(through), before = make(first), after = make(second);
        for (int step = 0; step < 3; ++step) {
          set_grads(through, step), set_grads(first, step);
          uninterrupted->step(), before->step();
        }
        for (std::size_t i = 0; i < first.size(); ++i) second[i].detach().copy_(first[i].detach());
        if (plain) {
          after->load_tensors(before->tensors());
        } else {
          const std::string bytes = test::through_archive([&](auto& archive) { before->save(archive); });
          EXPECT_EQ(bytes, test::through_archive([&](auto& archive) { before->save(archive); }));
          auto archive = test::archive_of(bytes);
          after->load(archive);
        }
        for (int step = 3; step < 6; ++step) {
          set_grads(through, step), set_grads(second, step);
          uninterrupted->step(), after->step();
        }
        for (std::size_t i = 0; i < through.size(); ++i) {
          EXPECT_TRUE(test::same_bits(through[i], second[i]))
              << "optimizer " << kind << " parameter " << i << " plain " << plain;
        }
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
      for (int step = 0; step < 3; ++step) {
        set_grads(params, step);
        optimizer->step();
      }
      results[run] = test::values(params);
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(test::same_bits(results[0][i], results[1][i])) << i;
  }
}

TEST(FusedOptimizer, ReadsArchivesOfTorchsAdamW) {
  const auto theirs = parameters(at::kCPU), ours = parameters(test::kHpu);
  torch::optim::AdamW b(theirs, torch::optim::AdamWOptions(1e-2).betas({0.8, 0.9}).eps(1e-7).weight_decay(0.2));
  FusedAdamW a(ours, FusedAdamWOptions(5).eps_mode(EpsMode::torch));
  for (int step = 0; step < 3; ++step) {
    set_grads(theirs, step);
    b.step();
  }
  auto archive = test::archive_of(test::through_archive([&](auto& out) { b.save(out); }));
  a.load(archive);
  const auto& options = static_cast<const FusedAdamWOptions&>(a.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 1e-2);
  EXPECT_EQ(options.weight_decay(), 0.2);
  EXPECT_EQ(options.betas(), std::make_tuple(0.8, 0.9));
  for (std::size_t i = 0; i < ours.size(); ++i) ours[i].detach().copy_(theirs[i].detach());
  for (int step = 3; step < 5; ++step) {
    set_grads(theirs, step), set_grads(ours, step);
    b.step(), a.step();
  }
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(ours[i].detach().cpu(), theirs[i], 2e-5, 2e-6)) << i;
}

/// What `ours` saved goes on in `theirs`, on the CPU, as it goes on in `ours`.
template <class Ours, class Theirs>
void expect_goes_on_upstream(const std::vector<at::Tensor>& mine, Ours& ours, const std::vector<at::Tensor>& others,
                             Theirs& theirs) {
  for (int step = 0; step < 3; ++step) {
    set_grads(mine, step);
    ours.step();
  }
  auto archive = test::archive_of(test::through_archive([&](auto& out) { ours.save(out); }));
  theirs.load(archive);
  for (std::size_t i = 0; i < mine.size(); ++i) others[i].detach().copy_(mine[i].detach());
  for (int step = 3; step < 5; ++step) {
    set_grads(mine, step), set_grads(others, step);
    ours.step(), theirs.step();
  }
  for (std::size_t i = 0; i < mine.size(); ++i)
    EXPECT_TRUE(torch::allclose(mine[i].detach().cpu(), others[i], 2e-5, 2e-6)) << i;
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
    auto archive = test::archive_of(test::through_archive([&](auto& out) { ours.save(out); }));
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
  auto archive = test::archive_of(test::through_archive([&](auto& out) { b.save(out); }));
  EXPECT_TRUE(test::throws_with({"amsgrad is true, allowed is false"}, [&] { a.load(archive); }));
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
    for (int step = 0; step < 2; ++step) {
      set_grads(some, step), set_grads(host, step);
      a->step(), b->step();
    }
    for (std::size_t i = 0; i < host.size(); ++i)
      EXPECT_TRUE(test::same_bits(some[i].detach().cpu(), host[i].detach())) << i;
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
  for (std::size_t i = 0; i < to.size(); ++i) to[i].detach().copy_(from[i].detach());
  a.step(), b.step();
  for (std::size_t i = 0; i < to.size(); ++i) {
    EXPECT_TRUE(torch::allclose(to[i].detach().cpu(), from[i].detach().cpu(), 1e-2, 4e-4)) << i;
  }
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
  auto archive = test::archive_of(test::through_archive([&](auto& out) { optimizer.save(out); }));
  EXPECT_TRUE(test::throws_with({"group 0", "4 parameters", "1"}, [&] { small.load(archive); }));
  EXPECT_TRUE(test::throws_with({"belong to no parameter"}, [&] { small.load_tensors(state); }));
  auto wrong = state;
  wrong["0.1.exp_avg"] = torch::zeros({2, 2});
  EXPECT_TRUE(test::throws_with({"0.1.exp_avg", "[2, 2]", "[33, 65]"}, [&] { optimizer.load_tensors(wrong); }));
  wrong["0.1.exp_avg"] = torch::zeros({1});
  EXPECT_TRUE(test::throws_with({"0.1.exp_avg", "[1]", "[33, 65]"}, [&] { optimizer.load_tensors(wrong); }));
  wrong = state;
  wrong["0.1.exp_avg_scale"] = torch::zeros({2});
  EXPECT_TRUE(
      test::throws_with({"0.1.exp_avg_scale has sizes [2]", "one element"}, [&] { optimizer.load_tensors(wrong); }));
  wrong = state;
  wrong["0.1.step"] = torch::tensor({-1}, at::kLong);
  EXPECT_TRUE(test::throws_with({"0.1.step is -1"}, [&] { optimizer.load_tensors(wrong); }));
  wrong["0.1.step"] = torch::tensor({1.5});
  EXPECT_TRUE(test::throws_with({"0.1.step is not one int64, but "}, [&] { optimizer.load_tensors(wrong); }));
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
  EXPECT_TRUE(test::throws_with({"gradient of parameter 0 of group 0", "Sparse", "dense"},
                                [&] { FusedAdamW({sparse}).step(); }));
  EXPECT_TRUE(test::throws_with({"parameter 0 of group 0 is Double", "Float, BFloat16 and Half"},
                                [&] { FusedAdamW({wide}).step(); }));
  EXPECT_TRUE(test::throws_with({"parameter 1 is there already"}, [&] { FusedAdamW({params[0], params[0]}); }));
  EXPECT_TRUE(test::throws_with({"non-leaf"}, [&] { FusedAdamW({params[0] * 2}); }));
  FusedAdamW optimizer({params[0]});
  EXPECT_TRUE(test::throws_with({"there already"}, [&] { optimizer.add_param_group({{params[0]}}); }));
  const torch::optim::OptimizerParamGroup other({params[1]}, std::make_unique<FusedSGDOptions>());
  EXPECT_TRUE(test::throws_with({"another optimizer's"}, [&] { optimizer.add_param_group(other); }));
  const torch::optim::OptimizerParamGroup upstream({params[1]}, std::make_unique<torch::optim::AdamWOptions>());
  EXPECT_TRUE(test::throws_with({"another optimizer's"}, [&] { optimizer.add_param_group(upstream); }));
  optimizer.param_groups()[0].options().set_lr(-1);
  EXPECT_TRUE(test::throws_with({"lr is -1"}, [&] { optimizer.step(); }));
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

}  // namespace
}  // namespace fp8::runtime::optim
