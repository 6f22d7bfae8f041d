// SPDX-License-Identifier: Apache-2.0
// Counted graphs: what makes one that is compiled, what ends one, and what is said of it.
#include "fp8/runtime/graph/graph_counter.h"

#include <nlohmann/json.hpp>

#include "fp8/runtime/graph/metrics.h"
#include "support/hpu_test.h"

namespace fp8::runtime {
namespace {

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
