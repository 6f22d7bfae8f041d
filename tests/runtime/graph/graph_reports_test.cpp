// SPDX-License-Identifier: Apache-2.0
// What users have reported of graphs of devices, each by its name.
#include <nlohmann/json.hpp>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/graph/hpu_graph.h"
#include "fp8/runtime/graph/metrics.h"
#include "fp8/runtime/graph/module_cacher.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

using test::hpu;
using Tensors = std::vector<at::Tensor>;

/// The device's limit, so that so many bytes are left while it lives.
class BytesLeft {
 public:
  explicit BytesLeft(std::int64_t bytes) : before_(memory_reserved()) { set_memory_limit(memory_allocated() + bytes); }
  ~BytesLeft() { set_memory_limit(before_); }
  BytesLeft& operator=(BytesLeft&&) = delete;

 private:
  std::int64_t before_;
};

TEST(GraphReports, OutOfMemoryInAReplay) {
  const std::string path = "decoder.up";
  const auto x = hpu(torch::rand({64, 64}));
  HPUGraph graph;
  at::Tensor sum;
  {
    const GraphCapture capture(graph);
    const at::Tensor small = x + 1;
    const ModuleScope module(path);
    sum = small.repeat({16, 1}).exp().sum();
  }
  const auto held = sum.clone();
  const auto before = memory_allocated();
  {
    const BytesLeft left(3 * x.nbytes());
    EXPECT_THAT(error_of([&] { graph.replay(); }),
                AllOf(HasSubstr("out of memory"), HasSubstr("replayed: aten::"), HasSubstr("of module 'decoder.up'")));
    EXPECT_FALSE(is_recording());
    EXPECT_EQ(memory_allocated(), before);
    EXPECT_TRUE(sum.equal(held));
  }
  x.mul_(0.5);
  graph.replay();
  EXPECT_TRUE(sum.equal((x + 1).repeat({16, 1}).exp().sum()));
}

TEST(GraphReports, OutOfMemoryInTheBackwardOfAReplay) {
  const std::string path = "decoder.up";
  torch::nn::Linear up(64, 64), down(64, 64);
  up->to(at::kHPU), down->to(at::kHPU);
  const GraphFunction net = [&](at::TensorList x) {
    const ModuleScope module(path);
    return Tensors{down(at::gelu(up(x[0])))};
  };
  ModuleCacher graphed(net);
  const auto x = hpu(torch::rand({64, 64}));
  const Tensors parameters = {up->weight, up->bias, down->weight, down->bias};
  const auto gradients = [&](bool with) {
    for (const auto& p : parameters) p.mutable_grad().reset();
    (with ? graphed(x) : net(x)[0]).square().sum().backward();
    Tensors all;
    for (const auto& p : parameters) all.push_back(p.grad());
    return all;
  };
  gradients(true);
  for (const auto& p : parameters) p.mutable_grad().reset();
  {
    const auto y = graphed(x);
    const auto given = hpu(torch::rand({64, 64}));
    const BytesLeft left(x.nbytes());
    EXPECT_THAT(error_of([&] { y.backward(given); }),
                AllOf(HasSubstr("out of memory"), HasSubstr("replayed: aten::"), HasSubstr("of module 'decoder.up'")));
    const auto turned = given.t();  // a copy of it is made, which the recorded strides ask for
    const BytesLeft none(0);
    EXPECT_THAT(error_of([&] { y.backward(turned); }),
                AllOf(HasSubstr("out of memory"), HasSubstr("replayed: the gradient of a result"),
                      HasSubstr("of module 'decoder.up'")));
  }
  const auto found = gradients(true), expected = gradients(false);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(test::same_bits(found[i], expected[i])) << i;
  EXPECT_EQ(graphed.counts().captured, 1);
}

/// A linear layer whose weight is frozen, and two small matrices that learn in its place, once they are attached.
struct LoraImpl : torch::nn::Module {
  void attach(std::int64_t rank) {
    for (auto& p : base->parameters()) p.set_requires_grad(false);
    down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(32, rank).bias(false)));
    up = register_module("up", torch::nn::Linear(torch::nn::LinearOptions(rank, 32).bias(false)));
    to(at::kHPU);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = base(x);
    return down.is_empty() ? y : y + up(down(torch::dropout(x, 0.1, is_training()))) * 2;
  }
  torch::nn::Linear base{register_module("base", torch::nn::Linear(32, 32))}, down = nullptr, up = nullptr;
};
TORCH_MODULE(Lora);

Tensors train_lora(bool graphed, GraphCounts& counts) {
  torch::manual_seed(5);
  Lora net;
  net->attach(4);
  ModuleCacher cacher{GraphCallable(torch::nn::AnyModule(net))};
  torch::optim::AdamW optimizer(Tensors{net->down->weight, net->up->weight});
  const auto base = net->base->weight.clone();
  Tensors values;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const auto x = hpu(torch::randn({8, 32}));
    const auto loss = ((graphed ? cacher(x) : net->forward(x)) - x.flip(1)).square().mean();
    loss.backward();
    optimizer.step();
    values.push_back(loss.detach());
  }
  EXPECT_TRUE(net->base->weight.equal(base));
  EXPECT_FALSE(net->base->weight.grad().defined());
  for (const auto& p : net->parameters()) values.push_back(p.detach());
  values.push_back(torch::rand(3));
  counts = cacher.counts();
  return values;
}

TEST(GraphReports, LoraTrainsToTheBitsOfEager) {
  GraphCounts counts, none;
  const auto eager = train_lora(false, none), graphed = train_lora(true, counts);
  for (std::size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(test::same_bits(eager[i], graphed[i])) << "value " << i;
  EXPECT_EQ(counts.captured, 1);
  EXPECT_EQ(counts.replayed, 19);
}

TEST(GraphReports, AnAdapterThatIsAttachedAfterACaptureIsCapturedAnew) {
  for (const bool frozen : {false, true}) {  // then nothing that was captured tells of it
    torch::manual_seed(5);
    Lora net;
    net->to(at::kHPU);
    if (frozen)
      for (auto& p : net->parameters()) p.set_requires_grad(false);
    net->eval();
    ModuleCacher graphed{GraphCallable(torch::nn::AnyModule(net))};
    const auto x = hpu(torch::randn({8, 32}));
    const at::NoGradGuard no_grad;
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(graphed(x).equal(net->base(x)));
    net->attach(4);
    net->eval();
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(graphed(x).equal(net->forward(x)));
      EXPECT_FALSE(graphed(x).equal(net->base(x)));
    }
    EXPECT_EQ(graphed.counts().captured, 2);
  }
}

struct PartsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return last(dropout(first(x))); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(32, 32))},
      last{register_module("last", torch::nn::Linear(32, 32))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.5))};
};
TORCH_MODULE(Parts);

TEST(GraphReports, APartThatIsReplacedOrChangesItsModeIsSeen) {
  Parts net;
  net->to(at::kHPU);
  ModuleCacher graphed{GraphCallable(torch::nn::AnyModule(net))};
  const auto x = hpu(torch::randn({8, 32}));
  const auto expect_eager = [&](std::int64_t captured) {
    for (int i = 0; i < 2; ++i) {
      torch::manual_seed(i);
      const auto expected = net->forward(x);
      torch::manual_seed(i);
      EXPECT_TRUE(graphed(x).equal(expected));
    }
    EXPECT_EQ(graphed.counts().captured, captured);
  };
  const at::NoGradGuard no_grad;
  expect_eager(1);
  net->dropout->eval();
  expect_eager(2);
  net->dropout->train();
  expect_eager(2);
  const Tensors held = net->parameters();  // as by an optimizer
  net->last = net->replace_module("last", torch::nn::Linear(32, 32));
  net->to(at::kHPU);
  expect_eager(3);
}

TEST(GraphReports, ADropoutMaskIsAnotherInEachReplay) {
  ModuleCacher graphed(GraphFunction([](at::TensorList x) { return Tensors{at::dropout(x[0], 0.5, true)}; }));
  const auto x = hpu(torch::ones(64));
  torch::manual_seed(6);
  const auto first = graphed(x), second = graphed(x), third = graphed(x);
  EXPECT_FALSE(first.equal(second));
  EXPECT_FALSE(second.equal(third));
  torch::manual_seed(6);
  for (const auto& mask : {first, second, third}) EXPECT_TRUE(mask.equal(at::dropout(x, 0.5, true)));
  EXPECT_EQ(graphed.counts().replayed, 2);
}

TEST(GraphReports, AccumulatedGradientsAreAddedUp) {
  const auto w = hpu(torch::ones(4)).requires_grad_(true);
  ModuleCacher graphed(GraphFunction([&](at::TensorList x) { return Tensors{x[0] * w}; }));
  for (int i = 1; i <= 4; ++i) {
    graphed(hpu(torch::full(4, static_cast<double>(i)))).sum().backward();
    EXPECT_TRUE(w.grad().equal(hpu(torch::full(4, i * (i + 1) / 2.0)))) << i;
  }
  EXPECT_EQ(graphed.counts().replayed, 3);
}

TEST(GraphReports, ALastBatchOfAnotherSizeIsAKindOfItsOwn) {
  torch::nn::Sequential net(torch::nn::Linear(8, 8));
  net->to(at::kHPU);
  ModuleCacher graphed(net);
  for (int epoch = 0; epoch < 3; ++epoch)
    for (const std::int64_t rows : {4, 4, 3}) graphed(hpu(torch::rand({rows, 8}))).sum().backward();
  EXPECT_EQ(graphed.counts().captured, 2);
  EXPECT_EQ(graphed.counts().replayed, 7);
  EXPECT_EQ(graphed.counts().eager, 0);
}

TEST(GraphReports, MemoryThatEachShapeTakesComesBackWithClearCache) {
  ModuleCacher graphed(GraphFunction([](at::TensorList x) {
    const at::Tensor table = torch::ones({64, 64}, x[0].options());
    return Tensors{x[0].mm(table)};
  }));
  const auto before = memory_allocated();
  for (std::int64_t rows = 1; rows <= 6; ++rows)
    for (int i = 0; i < 2; ++i) (void)graphed(hpu(torch::rand({rows, 64})));
  EXPECT_EQ(graphed.counts().captured, 6);
  graphed.clear_cache();
  EXPECT_EQ(memory_allocated(), before);
  (void)graphed(hpu(torch::rand({1, 64})));
  EXPECT_EQ(graphed.counts().captured, 7);
}

// Counted graphs: what makes one that is compiled, what ends one, and what is said of it.

at::Tensor rows(std::int64_t n) { return torch::zeros({n, 8}).to(at::kHPU); }

struct Net {
  torch::nn::Linear fc{8, 4};
  Net() { fc->to(at::kHPU); }
  at::Tensor operator()(const at::Tensor& x) {
    const std::string name = "block.fc";
    const ModuleScope scope(name);
    return fc(x).relu();
  }
};

TEST(GraphCounter, AShapeIsCompiledOnce) {
  Net net;
  const GraphCounter counter;
  for (int repeat = 0; repeat < 2; ++repeat)
    for (std::int64_t n = 1; n <= 10; ++n) {
      net(rows(n));
      mark_step(true);
    }
  const CompiledGraphs counts = counter.counts();
  EXPECT_EQ(counts.compiled, 10);
  EXPECT_EQ(counts.reused, 10);
  EXPECT_EQ(counts.steps, 20);
  ASSERT_EQ(counts.fresh.size(), 10U);
  EXPECT_EQ(counts.fresh[4].step, 4);
  EXPECT_EQ(counts.fresh[4].place, "module 'block.fc'");
  EXPECT_THAT(counts.fresh[4].operands, testing::HasSubstr("[5, 8] Float"));
  EXPECT_TRUE(counts.host_reads.empty());
}

TEST(GraphCounter, MarksWithoutOperationsMakeNone) {
  const GraphCounter counter;
  mark_step();
  rows(3);  // its way to the device is no part of a graph
  mark_step();
  EXPECT_EQ(counter.counts().compiled, 0);
}

TEST(GraphCounter, NumbersOfTheHostMakeNoNewGraph) {
  const auto x = rows(2);
  const GraphCounter counter;
  for (const double number : {1.5, 2.5, 3.5}) {
    x.mul(number);
    mark_step();
  }
  EXPECT_EQ(counter.counts().compiled, 1);
}

TEST(GraphCounter, AnotherOrderIsAnotherGraph) {
  const auto x = rows(2);
  const GraphCounter counter;
  x.exp(), x.tanh(), mark_step(true);
  x.tanh(), x.exp(), mark_step(true);
  const auto counts = counter.counts();
  ASSERT_EQ(counts.fresh.size(), 2U);
  EXPECT_TRUE(counts.fresh[1].reordered);
  EXPECT_EQ(counts.fresh[1].line(), "step 2: aten::tanh of [2, 8] Float, known operations in another order");
}

TEST(GraphCounter, ReadsOfTheHostEndAGraphAndAreNamed) {
  const auto x = torch::tensor({-1.0F, 2.0F, -3.0F}).to(at::kHPU);
  const auto index = torch::tensor({0, 2}).to(at::kHPU);
  const GraphCounter counter;
  const std::string name = "gate";
  {
    const ModuleScope scope(name);
    x.index({x < 0});
    x.exp().sum().item<float>();
    x.exp().cpu();
    torch::equal(x, x);
    x.index({index}), x.index_select(0, index);  // sizes that do not depend on values
  }
  mark_step();
  const auto counts = counter.counts();
  const auto times = [&](const char* op) {
    const auto found = counts.host_reads.find({"module 'gate'", op});
    return found == counts.host_reads.end() ? 0 : found->second;
  };
  EXPECT_EQ(times("aten::index.Tensor"), 1);
  EXPECT_EQ(times("aten::_local_scalar_dense"), 1);
  EXPECT_EQ(times("aten::copy_"), 1);
  EXPECT_EQ(times("aten::equal"), 1);
  EXPECT_EQ(counts.host_reads.size(), 4U);
  EXPECT_EQ(counts.compiled + counts.reused, 5);
}

TEST(GraphCounter, TwoCountersCountBoth) {
  const auto x = rows(2);
  const GraphCounter outer;
  {
    const GraphCounter inner;
    x.exp();
    mark_step();
    EXPECT_EQ(inner.counts().compiled, 1);
  }
  x.exp();
  mark_step();
  EXPECT_EQ(outer.counts().compiled, 1);
  EXPECT_EQ(outer.counts().reused, 1);
}

TEST(Metrics, DifferencesAndNames) {
  const auto x = rows(3);
  const CompiledGraphs before = process_counts();
  for (const std::int64_t n : {1, 2, 1}) {
    x.narrow(0, 0, n).tanh();
    mark_step();
  }
  const CompiledGraphs after = process_counts();
  const auto of = [&](const char* metric) { return nlohmann::json::parse(metric_json(metric, after, before)); };
  EXPECT_EQ(of("graph_compilation")["TotalNumber"], 2);
  EXPECT_EQ(of("recipe_cache")["TotalHit"], 1);
  EXPECT_EQ(of("recipe_cache")["TotalMiss"], 2);
  EXPECT_EQ(of("recipe_cache")["RecipeHit"].size(), 1U);
  EXPECT_EQ(of("cpu_fallback")["TotalNumber"], 0);
  EXPECT_REFUSED(metric_json("graphs", after), "'graphs'", "memory_defragmentation");
  EXPECT_REFUSED(dump_metrics("/dev/null", "xml"), "'xml'", "json, text");
}

}  // namespace
}  // namespace fp8::runtime
