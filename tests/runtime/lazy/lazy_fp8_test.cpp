// SPDX-License-Identifier: Apache-2.0
// Products in fp8 and steps of optimizers are calls of lazy mode: they wait, read scales, histories and rates of their
// turn, and give the bits of eager mode.
#include <ATen/autocast_mode.h>

#include "fp8/runtime/device/allocator.h"
#include "fp8/transformer_engine/te.h"
#include "lazy_test.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

namespace optim = runtime::optim;
namespace optim = runtime::optim;

using test::hpu;
using test::In;
using test::Mode;
using Tensors = std::vector<at::Tensor>;
using test::Task;

constexpr Mode kLazyModes[] = {Mode::lazy, Mode::worker};

/// Three products of one input, and one of their sum; what of them is quantized, and how, is the case's.
struct NetImpl : torch::nn::Module {
  at::Tensor inner(const at::Tensor& x) { return at::gelu(q(x)) + k(x) * v(x); }
  at::Tensor forward(const at::Tensor& x) { return o(inner(x)); }
  torch::nn::Linear q{register_module("q", torch::nn::Linear(32, 32))},
      k{register_module("k", torch::nn::Linear(32, 32))}, v{register_module("v", torch::nn::Linear(32, 32))},
      o{register_module("o", torch::nn::Linear(32, 16))};
};
TORCH_MODULE(Net);

TrainingOptions options_of(const recipes::Recipe& recipe, bool minimize_memory = false) {
  return {.minimize_memory = minimize_memory, .recipe = recipe};
}

struct StepCase {
  std::string recipe = "nvidia";
  bool minimize_memory = false;
  bool microbatches = false;
  bool recomputed = false;  ///< the three products run again within backward
  bool threads = false;     ///< backward on a thread of autograd's
  std::function<std::shared_ptr<torch::optim::Optimizer>(const Tensors&)> optimizer = [](const Tensors& p) {
    return std::make_shared<optim::FusedAdamW>(p, optim::FusedAdamWOptions(0.01));
  };
};

struct Trained {
  Tensors values;
  std::vector<std::string> states;
  std::int64_t waits = 0;  ///< in the second half of the steps
};

/// No value is read before the end; the learning rate moves behind each step.
Trained train_steps(const StepCase& how, Mode mode, int steps = 12) {
  torch::manual_seed(4);
  Net net;
  net->to(at::kHPU);
  const auto x = hpu(torch::randn({8, 32}));
  const auto recipe = configs::recipe_from_argument(how.recipe).recipe;
  convert_for_training(*net, options_of(recipe, how.minimize_memory));
  const In in(mode);
  auto& autograd = c10::AutogradState::get_tls_state();
  const bool before = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(how.threads);
  const auto parameters = net->parameters();
  const auto optimizer = how.optimizer(parameters);
  optim::FusedEMA ema(parameters, 0.9);
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    if (step == steps / 2) trained.waits = runtime::lazy_counts().waits;
    for (const auto& p : parameters) p.mutable_grad().reset();
    for (int micro = 0; micro < (how.microbatches ? 2 : 1); ++micro) {
      at::Tensor y;
      {
        fp8_autocast region({.recipe = recipe,
                             .is_first_microbatch = how.microbatches ? std::optional(micro == 0) : std::nullopt,
                             .statistics = true});
        const auto input = x + micro;
        y = how.recomputed ? net->o(te::checkpoint([&](const at::Tensor& t) { return net->inner(t); }, input))
                           : net(input);
      }
      const auto loss = y.to(at::kFloat).square().mean();
      loss.backward();
      trained.values.push_back(loss.detach());
    }
    trained.values.push_back(optim::FusedClipNorm(parameters, 0.05).clip_norm(parameters));
    optimizer->step();
    ema.update();
    for (auto& group : optimizer->param_groups()) group.options().set_lr(0.01 / (step + 2));
    runtime::submit_work();
  }
  trained.waits = runtime::lazy_counts().waits - trained.waits;
  for (const auto& p : parameters) {
    trained.values.push_back(p.detach()), trained.values.push_back(p.grad());
    if (training_handler(p) != nullptr) trained.states.push_back(training_state(p));
  }
  for (const auto& [name, statistics] : take_statistics(*net))
    trained.states.push_back(name + " " + std::to_string(statistics.casts) + " " +
                             std::to_string(statistics.underflowed));
  for (const auto& [name, state] : dynamic_cast<optim::FusedOptimizer&>(*optimizer).tensors())
    trained.values.push_back(state);
  for (const auto& t : ema.averages()) trained.values.push_back(t);
  for (auto& t : trained.values) t = t.cpu();
  autograd.set_multithreading_enabled(before);
  return trained;
}

void expect_bits_of_eager(const StepCase& how) {
  const auto eager = train_steps(how, Mode::eager);
  for (const Mode mode : kLazyModes) {
    const auto lazy = train_steps(how, mode);
    EXPECT_EQ(lazy.states, eager.states);
    ASSERT_EQ(lazy.values.size(), eager.values.size());
    for (std::size_t i = 0; i < eager.values.size(); ++i)
      EXPECT_TRUE(test::same_bits(lazy.values[i], eager.values[i])) << "value " << i;
    EXPECT_EQ(lazy.waits == 0, !how.recomputed);
  }
}

TEST(LazyFp8, AStepOfEachRecipeWaitsWhole) {
  for (const auto& name : configs::recipe_preset_names()) {
    SCOPED_TRACE(name);
    expect_bits_of_eager({.recipe = name});
    expect_bits_of_eager({.recipe = name, .minimize_memory = true, .threads = true});
  }
}

TEST(LazyFp8, WeightsThatStayBetweenMicrobatches) { expect_bits_of_eager({.microbatches = true}); }

TEST(LazyFp8, APassThatWaitsIsNoPartOfARecomputation) {
  for (const char* recipe : {"nvidia", "habana", "current"})
    expect_bits_of_eager({.recipe = recipe, .recomputed = true});
}

struct AttentionCase {
  std::string recipe = "nvidia";
  bool recompute = false, mask = false, autocast = false;
  double dropout = 0;
  std::int64_t groups = 4;
};

/// Steps of q, k and v themselves; none of its values is read before the end.
Trained train_attention(const AttentionCase& how, Mode mode) {
  torch::manual_seed(4);
  FusedAttention attention(FusedAttentionOptions{.attention_dropout = how.dropout, .enable_recompute = how.recompute});
  Tensors qkv;
  for (const std::int64_t heads : {std::int64_t{4}, how.groups, how.groups})
    qkv.push_back(hpu(torch::randn({2, heads, 8, 16})).requires_grad_(true));
  const auto mask = how.mask ? hpu(torch::rand({2, 1, 8, 8}).gt(0.3)) : at::Tensor();
  const auto recipe = configs::recipe_from_argument(how.recipe).recipe;
  const In in(mode);
  optim::FusedSGD optimizer(qkv, optim::FusedSGDOptions(0.5));
  Trained trained;
  for (int step = 0; step < 8; ++step) {
    if (step == 4) trained.waits = runtime::lazy_counts().waits;
    optimizer.zero_grad();
    at::Tensor y;
    {
      std::optional<runtime::autocast::AutocastGuard> cast;
      if (how.autocast) cast.emplace(at::kBFloat16);
      const fp8_autocast region(true, recipe);
      y = attention(qkv[0], qkv[1], qkv[2], mask, /*is_causal=*/!how.mask);
      if (step == 3) {  // as in an evaluation
        attention->eval();
        trained.values.push_back(attention(qkv[0].detach(), qkv[1].detach(), qkv[2].detach()));
        attention->train();
      }
    }
    y.to(at::kFloat).square().mean().backward();
    trained.values.push_back(y.detach());
    for (const auto& t : qkv) trained.values.push_back(t.grad().clone());
    optimizer.step();
    runtime::submit_work();
  }
  trained.waits = runtime::lazy_counts().waits - trained.waits;
  for (const auto& t : qkv) trained.values.push_back(t.detach());
  trained.values.push_back(torch::rand(2));
  for (auto& t : trained.values) t = t.cpu();
  return trained;
}

TEST(LazyFp8, AttentionWaitsButWhereItDrawsNumbers) {
  for (const auto& how : std::vector<AttentionCase>{{},
                                                    {.recompute = true, .mask = true},
                                                    {.recipe = "habana", .groups = 2},
                                                    {.recipe = "current", .recompute = true, .mask = true, .groups = 2},
                                                    {.recipe = "nvidia", .recompute = true, .autocast = true},
                                                    {.dropout = 0.25},
                                                    {.recompute = true, .dropout = 0.25}}) {
    const auto eager = train_attention(how, Mode::eager);
    for (const Mode mode : kLazyModes) {
      const auto lazy = train_attention(how, mode);
      ASSERT_EQ(lazy.values.size(), eager.values.size());
      for (std::size_t i = 0; i < eager.values.size(); ++i)
        EXPECT_TRUE(test::same_bits(lazy.values[i], eager.values[i])) << how.recipe << " value " << i;
      EXPECT_EQ(lazy.waits == 0, how.dropout == 0) << how.recipe;
    }
  }
}

TEST(LazyFp8, AMaskThatAttentionKeepsIsCheckedByBackward) {
  const auto q = hpu(torch::randn({1, 2, 4, 16})).requires_grad_(true);
  const auto mask = hpu(torch::zeros({1, 1, 4, 4}));
  FusedAttention attention(FusedAttentionOptions{.enable_recompute = true});
  const In lazy(Mode::lazy);
  at::Tensor y;
  {
    const fp8_autocast region(true, recipes::DelayedScaling::nvidia());
    y = attention(q, q, q, mask);
  }
  mask.add_(1);
  EXPECT_REFUSED(y.sum().backward(), "modified by an inplace operation");
}

TEST(LazyFp8, AStepOfEachOptimizerWaitsWhole) {
  using Make = decltype(StepCase::optimizer);
  const std::vector<Make> all = {
      [](const Tensors& p) { return std::make_shared<optim::FusedLamb>(p, optim::FusedLambOptions(0.01)); },
      [](const Tensors& p) { return std::make_shared<optim::FusedSGD>(p, optim::FusedSGDOptions(0.01).momentum(0.9)); },
      [](const Tensors& p) { return std::make_shared<optim::FusedLars>(p, optim::FusedLarsOptions(0.01)); },
      [](const Tensors& p) {
        optim::FusedAdamWOptions options(0.01);
        options.moments_dtype({at::kFloat8_e4m3fn, at::kFloat8_e5m2});
        return std::make_shared<optim::FusedAdamW>(p, options);
      },
      [](const Tensors& p) {
        Tensors hidden, others;
        for (const auto& t : p) (t.dim() == 2 ? hidden : others).push_back(t);
        return std::make_shared<optim::Muon>(hidden, others);
      },
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    expect_bits_of_eager({.optimizer = all[i]});
  }
}

TEST(LazyFp8, WeightsThatAreHeldInFp8) {
  const auto train_held = [](Mode mode) {
    torch::manual_seed(2);
    std::optional<quantized_model_init> init(std::in_place, QuantizedInitOptions{});
    Linear layer(32, 16);
    init.reset();
    const auto x = hpu(torch::randn({8, 32}));
    const In in(mode);
    optim::FusedAdamW optimizer(layer->parameters(), optim::FusedAdamWOptions(0.01));
    at::Tensor loss;
    for (int i = 0; i < 6; ++i) {
      optimizer.zero_grad();
      {
        const fp8_autocast region(true, recipes::DelayedScaling::nvidia());
        loss = layer(x).square().mean();
      }
      loss.backward();
      optimizer.step();
    }
    return Tensors{loss.detach().cpu(), layer->weight.detach().view(at::kByte).cpu(), layer->bias.detach().cpu()};
  };
  const auto eager = train_held(Mode::eager);
  for (const Mode mode : kLazyModes) {
    const auto lazy = train_held(mode);
    for (std::size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(test::same_bits(lazy[i], eager[i])) << i;
  }
}

TEST(LazyFp8, ForwardInLazyModeAndBackwardBehindIt) {
  const auto gradients = [](bool lazy) {
    torch::manual_seed(4);
    Net net;
    net->to(at::kHPU);
    convert_for_training(*net, options_of(recipes::DelayedScaling::nvidia(), true));
    const auto x = hpu(torch::randn({8, 32}));
    at::Tensor y;
    for (int i = 0; i < 2; ++i) {
      if (lazy) runtime::set_lazy_mode(true);
      {
        const fp8_autocast region(true, recipes::DelayedScaling::nvidia());
        y = net(x).square().mean();
      }
      runtime::set_lazy_mode(false);
      y.backward();
    }
    Tensors all;
    for (const auto& p : net->parameters()) all.push_back(p.grad());
    return all;
  };
  const auto eager = gradients(false), lazy = gradients(true);
  for (std::size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(test::same_bits(lazy[i], eager[i])) << i;
}

TEST(LazyFp8, AnErrorNamesPassAndModule) {
  for (const Mode mode : kLazyModes) {
    Net net;
    net->to(at::kHPU);
    convert_for_training(*net, options_of(recipes::DelayedScaling::nvidia()));
    const auto x = hpu(torch::randn({8, 32}));
    const auto step = [&] {
      const fp8_autocast region(true, recipes::DelayedScaling::nvidia());
      return net(x).sum();
    };
    const auto expected = step().item<float>();
    const In lazy(mode);
    (void)step();
    runtime::finish_work();
    const auto limit = runtime::memory_reserved();
    runtime::set_memory_limit(runtime::memory_allocated() + 64);
    at::Tensor sum;
    EXPECT_NO_THROW(sum = step());
    const std::string message = error_of([] { runtime::finish_work(); });
    runtime::set_memory_limit(limit);
    EXPECT_THAT(message, AllOf(HasSubstr("out of memory"), HasSubstr("called in lazy mode: te::forward in module '")));
    EXPECT_THAT(error_of([&] { sum.cpu(); }), HasSubstr("[lazy] this tensor has no memory"));
    EXPECT_NEAR(step().item<float>(), expected, 1);
  }
}

TEST(LazyFp8, AnOptimizerThatGoesHasTakenItsStep) {
  const auto p = hpu(torch::ones({4, 4})).requires_grad_(true);
  const In lazy(Mode::lazy);
  for (int i = 0; i < 2; ++i) {
    p.mutable_grad() = hpu(torch::ones({4, 4})) * 1;
    optim::FusedSGD(Tensors{p}, optim::FusedSGDOptions(0.25)).step();
  }
  EXPECT_EQ(p.detach().cpu()[0][0].item<float>(), 0.5);
}

TEST(LazyFp8, AWriteThatWaitsIsSeenByBackward) {
  const auto p = hpu(torch::ones({4, 4})).requires_grad_(true);
  optim::FusedSGD optimizer(Tensors{p}, optim::FusedSGDOptions(0.25));
  const In lazy(Mode::lazy);
  const auto loss = p.square().sum();
  p.mutable_grad() = hpu(torch::ones({4, 4}));
  optimizer.step();
  EXPECT_REFUSED(loss.backward(), "modified by an inplace operation");
  p.mutable_grad().reset();
  optimizer.zero_grad();
  const auto next = p.square().sum();  // behind the step, which has not run
  EXPECT_NO_THROW(next.backward());
  EXPECT_EQ(p.grad().cpu()[0][0].item<float>(), 1.5);
}

// Training in lazy mode gives the bits of eager mode: losses, parameters, gradients, buffers, the next random numbers.

constexpr int kSteps = 20;

enum class Precision { f32, autocast, fp8 };

struct Case {
  const char* name;
  std::function<Task()> task;
  Precision precision = Precision::f32;
  bool fused = false;   // the optimizer
  bool threads = true;  // backward on a thread of autograd's
};

std::vector<at::Tensor> train(const Case& how, Mode mode) {
  const auto task = how.task();
  const recipes::Recipe recipe = recipes::DelayedScaling::nvidia();
  if (how.precision == Precision::fp8) {
    convert_for_training(*task.model, {.recipe = recipe});
  }
  const In in(mode);
  auto& autograd = c10::AutogradState::get_tls_state();
  const bool before = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(how.threads);
  const auto parameters = task.model->parameters();
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (how.fused)
    optimizer = std::make_unique<runtime::optim::FusedAdamW>(parameters);
  else
    optimizer = std::make_unique<torch::optim::AdamW>(parameters);
  torch::manual_seed(9);
  std::vector<at::Tensor> values;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    at::Tensor logits;
    {
      std::optional<fp8_autocast> region;
      if (how.precision == Precision::fp8) region.emplace(true, recipe);
      at::autocast::set_autocast_enabled(at::kHPU, how.precision == Precision::autocast);
      logits = at::dropout(task.forward(task.x), 0.1, true);
      at::autocast::set_autocast_enabled(at::kHPU, false);
    }
    const auto loss = torch::cross_entropy_loss(logits.flatten(0, -2).to(at::kFloat), task.labels.flatten());
    loss.backward();
    optimizer->step();
    if (step % 5 == 0) runtime::submit_work();
    values.push_back(loss.detach());
  }
  for (const auto& p : parameters) {
    values.push_back(p.detach());
    if (p.grad().defined()) values.push_back(p.grad());
  }
  for (const auto& b : task.model->buffers()) values.push_back(b);
  runtime::finish_work();
  for (auto& t : values) t = t.cpu();
  values.push_back(torch::rand(3));
  autograd.set_multithreading_enabled(before);
  return values;
}

const Case kCases[] = {
    {"MLP", [] { return test::mlp_task(); }},
    {"MLP on one thread, fused optimizer", [] { return test::mlp_task(); }, Precision::f32, true, false},
    {"MLP in autocast", [] { return test::mlp_task(); }, Precision::autocast},
    {"MLP in fp8", [] { return test::mlp_task(); }, Precision::fp8, true},
    {"convolutions and batch norms", [] { return test::resnet_task(); }},
    {"convolutions in autocast", [] { return test::resnet_task(); }, Precision::autocast, true},
    {"encoder", [] { return test::bert_task(); }, Precision::f32, true},
    {"encoder in autocast", [] { return test::bert_task(); }, Precision::autocast},
    {"decoder", [] { return test::lm_task(); }},
    {"decoder in fp8", [] { return test::lm_task(); }, Precision::fp8}};

TEST(LazyTraining, GivesTheBitsOfEager) {
  for (const Case& how : kCases) {
    SCOPED_TRACE(how.name);
    const auto eager = train(how, Mode::eager);
    for (const Mode mode : {Mode::lazy, Mode::worker}) {
      const auto lazy = train(how, mode);
      ASSERT_EQ(lazy.size(), eager.size());
      for (std::size_t i = 0; i < eager.size(); ++i) ASSERT_TRUE(test::same_bits(lazy[i], eager[i])) << "value " << i;
    }
  }
}

TEST(LazyTraining, QueuesItsCalls) {
  const auto before = runtime::lazy_counts();
  (void)train(kCases[0], Mode::lazy);
  const auto counts = runtime::lazy_counts();
  EXPECT_GT(counts.queued - before.queued, (kSteps - 2) * 30);
  EXPECT_LT(counts.waits - before.waits, 120);  // mostly for the first step's calls
}

}  // namespace
}  // namespace fp8::te
