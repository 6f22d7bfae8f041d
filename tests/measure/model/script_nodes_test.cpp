// SPDX-License-Identifier: Apache-2.0
// Nodes of TorchScript modules: which there are and what they are called, that an unhandled one changes no bit, and
// that a handler is met by its own instance only, whatever was done to the module before and after.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <sstream>

#include "fp8/measure/model/module_tree.h"
#include "fp8/runtime/intercept/module_handler.h"

namespace fp8::measure {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using torch::jit::Module;

/// Counts its calls; with `factor` other than 1 it also changes the result, so that a stray handler shows.
struct Recorder : runtime::ModuleHandler {
  explicit Recorder(double f = 1.0) : factor(f) {}
  at::Tensor answer(const runtime::OriginalOp& original) {
    ++calls;
    return original() * factor;
  }
  at::Tensor matmul(const runtime::MatmulCall& c) override { return answer(c.original); }
  at::Tensor softmax(const runtime::SoftmaxCall& c) override { return answer(c.original); }
  at::Tensor attention(const runtime::AttentionCall& c) override { return answer(c.original); }
  at::Tensor store(const at::Tensor& x) override {
    ++calls;
    return x * factor;
  }
  std::string describe() const override { return "recorder"; }
  double factor;
  int calls = 0;
};

std::vector<std::string> names(const std::vector<OpNode>& nodes) {
  std::vector<std::string> out;
  for (const auto& n : nodes) out.push_back(n.name + ":" + n.type);
  return out;
}

std::vector<std::shared_ptr<Recorder>> record(const std::vector<OpNode>& nodes, double factor = 1.0) {
  std::vector<std::shared_ptr<Recorder>> out;
  for (const auto& n : nodes) n.slot->handler = out.emplace_back(std::make_shared<Recorder>(factor));
  return out;
}

/// softmax(x . x^T) . x, then fused attention, in code of its own.
Module attention() {
  Module m("Attention");
  m.register_attribute("training", c10::BoolType::get(), false);
  m.define(R"(
def probabilities(self, x):
    return torch.softmax(torch.matmul(x, x.transpose(-2, -1)), -1)
def forward(self, x):
    y = torch.bmm(self.probabilities(x), x)
    return torch.scaled_dot_product_attention(y, x, x)
)");
  return m;
}

/// Two instances of one class below a root that multiplies too.
Module pair_of(const Module& first) {
  Module second(first._ivalue()->compilation_unit(), first.type());
  for (const auto& item : first.named_attributes(/*recurse=*/false)) second.setattr(item.name, item.value);
  Module root("Root");
  root.register_attribute("training", c10::BoolType::get(), false);
  root.register_module("a", first);
  root.register_module("b", second);
  root.define(R"(
def forward(self, x):
    return self.b.forward(self.a.forward(x)) + torch.matmul(x, x).sum()
)");
  return root;
}

at::Tensor run(Module& m, const at::Tensor& x) { return m.forward({x}).toTensor(); }
at::Tensor input() {
  torch::manual_seed(3);
  return torch::randn({2, 4, 4});
}

TEST(ScriptNodes, NamesFollowTheModulesAndTheCode) {
  EXPECT_THAT(names(op_nodes(pair_of(attention()))),
              ElementsAre("matmul:Matmul", "a.matmul:Matmul", "a.softmax:Softmax", "a.matmul_1:Matmul",
                          "a.sdpa:ModuleFusedSDPA", "b.matmul:Matmul", "b.softmax:Softmax", "b.matmul_1:Matmul",
                          "b.sdpa:ModuleFusedSDPA"));
}

TEST(ScriptNodes, AskingAgainGivesTheSameSlots) {
  const Module m = pair_of(attention());
  const auto first = op_nodes(m), second = op_nodes(m);
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].slot, second[i].slot) << first[i].name;
}

TEST(ScriptNodes, UnhandledResultsAreTheSameBits) {
  const at::Tensor x = input();
  Module plain = pair_of(attention()), ours = pair_of(attention());
  op_nodes(ours);
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(torch::equal(run(ours, x), run(plain, x))) << i;  // the profiling executor recompiles
  const at::Tensor xa = x.clone().requires_grad_(), xb = x.clone().requires_grad_();
  for (int i = 0; i < 3; ++i) {
    run(ours, xa).sum().backward();
    run(plain, xb).sum().backward();
  }
  EXPECT_TRUE(torch::equal(xa.grad(), xb.grad()));
}

TEST(ScriptNodes, EveryNodeIsMetOncePerRun) {
  Module m = pair_of(attention());
  const auto recorders = record(op_nodes(m));
  const torch::NoGradGuard no_grad;
  for (int i = 1; i <= 4; ++i) {
    run(m, input());
    for (const auto& r : recorders) EXPECT_EQ(r->calls, i);
  }
}

TEST(ScriptNodes, AModuleThatRanBeforeForgetsItsOptimizedCode) {
  Module m = pair_of(attention());
  for (int i = 0; i < 4; ++i) run(m, input());
  const auto recorders = record(op_nodes(m));
  run(m, input());
  for (const auto& r : recorders) EXPECT_EQ(r->calls, 1);
}

TEST(ScriptNodes, HandlersChangeOnlyTheirInstance) {
  Module a = attention(), m = pair_of(a);
  const at::Tensor x = input(), before = run(m, x);
  for (const auto& n : op_nodes(m)) {
    if (n.name == "b.sdpa") n.slot->handler = std::make_shared<Recorder>(2.0);
  }
  const at::Tensor shift = torch::matmul(x, x).sum();
  EXPECT_TRUE(torch::allclose(run(m, x) - shift, 2 * (before - shift), 1e-4, 1e-4));
  EXPECT_TRUE(torch::equal(run(a, x), [&] {
    Module fresh = attention();
    return run(fresh, x);
  }()));
}

TEST(ScriptNodes, DeepCopiesHaveNoHandlers) {
  Module m = pair_of(attention());
  const at::Tensor x = input(), expected = run(m, x);
  Module before = m.deepcopy();
  record(op_nodes(m), 3.0);
  Module after = m.deepcopy();
  EXPECT_FALSE(torch::allclose(run(m, x), expected));
  EXPECT_TRUE(torch::equal(run(before, x), expected));  // an object older than the class's attribute
  EXPECT_TRUE(torch::equal(run(after, x), expected));
  const auto own = record(op_nodes(before));
  run(before, x);
  for (const auto& r : own) EXPECT_EQ(r->calls, 1);
}

TEST(ScriptNodes, AFrozenModuleKeepsItsHandlers) {
  Module m = pair_of(attention());
  const auto recorders = record(op_nodes(m), 3.0);
  const at::Tensor x = input(), expected = run(m, x);
  const torch::NoGradGuard no_grad;
  Module frozen = torch::jit::freeze(m);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(run(frozen, x), expected));
  for (const auto& r : recorders) EXPECT_EQ(r->calls, 4);
}

TEST(ScriptNodes, AModuleFrozenBeforeHasNodesAtItsRoot) {
  Module frozen = torch::jit::freeze(pair_of(attention()));
  const at::Tensor x = input(), expected = run(frozen, x);
  const auto nodes = op_nodes(frozen);
  EXPECT_EQ(nodes.size(), 9u);
  for (const auto& n : nodes) EXPECT_EQ(n.name.find('.'), std::string::npos) << n.name;
  EXPECT_TRUE(torch::equal(run(frozen, x), expected));
  const auto recorders = record(nodes);
  run(frozen, x);
  for (const auto& r : recorders) EXPECT_EQ(r->calls, 1);
}

TEST(ScriptNodes, SavedAndLoadedItHasEmptySlotsUnderTheSameNames) {
  Module m = pair_of(attention());
  const at::Tensor x = input(), expected = run(m, x);
  record(op_nodes(m), 3.0);
  std::stringstream file;
  m.save(file);
  Module first = torch::jit::load(file);
  file.seekg(0);
  Module second = torch::jit::load(file);
  EXPECT_TRUE(torch::equal(run(first, x), expected));
  EXPECT_EQ(names(op_nodes(first)), names(op_nodes(m)));
  record(op_nodes(first), 5.0);
  EXPECT_TRUE(torch::equal(run(second, x), expected));  // two copies of one file share nothing
  EXPECT_FALSE(torch::allclose(run(first, x), expected));
}

Module of_class(const std::string& name, const std::string& code) {
  Module m(name);
  m.register_attribute("training", c10::BoolType::get(), false);
  m.define(code);
  return m;
}

TEST(ScriptNodes, AModuleOfAKnownClassIsOneNode) {
  Module root = of_class("Root", "");
  root.register_module("mul", of_class("Matmul", "def forward(self, a, b):\n  return torch.matmul(a, b)\n"));
  root.register_module("soft", of_class("Softmax",
                                        "def forward(self, x):\n  if x.dim() == 3:\n    y = torch.softmax(x, -1)\n  "
                                        "else:\n    y = torch.softmax(x, 0)\n  return y\n"));
  root.register_module("fused",
                       of_class("ModuleFusedSDPA",
                                "def forward(self, q, k, v):\n  return torch.scaled_dot_product_attention(q, k, v)\n"));
  root.register_module("block", of_class("B2BMatmul", "def forward(self, a, b):\n  return torch.matmul(a, b)\n"));
  root.register_module("cache", of_class("KVCache", "def forward(self, cur):\n  return cur\n"));
  root.define(
      "def forward(self, x):\n  return self.fused.forward(self.mul.forward(x, x), self.soft.forward(x), "
      "self.block.forward(x, self.cache.forward(x)))\n");
  const auto nodes = op_nodes(root);
  EXPECT_THAT(names(nodes),
              ElementsAre("mul:Matmul", "soft:Softmax", "fused:ModuleFusedSDPA", "block:B2BMatmul", "cache:KVCache"));
  const at::Tensor x = input();
  EXPECT_TRUE(torch::equal(run(root, x),
                           at::scaled_dot_product_attention(at::matmul(x, x), at::softmax(x, -1), at::matmul(x, x))));
  const auto recorders = record(nodes);
  run(root, x);
  for (const auto& r : recorders) EXPECT_EQ(r->calls, 1);
}

TEST(ScriptNodes, ProductsWithAParameterAreNone) {
  Module m("Projection");
  m.register_parameter("weight", torch::randn({4, 4}), /*is_buffer=*/false);
  m.register_attribute("training", c10::BoolType::get(), false);
  m.define("def forward(self, x):\n  return torch.matmul(x, self.weight.t())\n");
  EXPECT_THAT(op_nodes(m), IsEmpty());
  Module frozen = torch::jit::freeze(m);
  EXPECT_THAT(op_nodes(frozen), IsEmpty());
}

TEST(ScriptNodes, ANameThatIsTakenIsPassedOver) {
  Module m("Attention");
  m.register_attribute("training", c10::BoolType::get(), false);
  m.register_module("matmul", of_class("Matmul", "def forward(self, a, b):\n  return torch.matmul(a, b)\n"));
  m.define("def forward(self, x):\n  return torch.matmul(self.matmul.forward(x, x), x)\n");
  EXPECT_THAT(names(op_nodes(m)), ElementsAre("matmul_1:Matmul", "matmul:Matmul"));
}

TEST(ScriptNodes, BranchesAndLoops) {
  Module m = of_class("Attention", R"(
def forward(self, x):
    if x.dim() == 3:
        y = torch.matmul(x, x)
    else:
        y = torch.matmul(x, x.t())
    for i in range(3):
        y = torch.softmax(y, -1)
    return y
)");
  const auto nodes = op_nodes(m);
  EXPECT_THAT(names(nodes), ElementsAre("matmul:Matmul", "matmul_1:Matmul", "softmax:Softmax"));
  const auto recorders = record(nodes);
  const at::Tensor x = input(), p = at::softmax(at::softmax(at::softmax(at::matmul(x, x), -1), -1), -1);
  EXPECT_TRUE(torch::equal(run(m, x), p));
  EXPECT_EQ(recorders[0]->calls, 1);
  EXPECT_EQ(recorders[1]->calls, 0);
  EXPECT_EQ(recorders[2]->calls, 3);
}

TEST(ScriptNodes, AHandlerOfMixedDtypes) {  // softmax(x, dim, dtype): the handler sees x in that dtype
  struct Dtype : Recorder {
    at::Tensor softmax(const runtime::SoftmaxCall& c) override {
      seen = c.x.scalar_type();
      return c.original();
    }
    at::ScalarType seen = at::kBool;
  };
  Module m = of_class("M", "def forward(self, x):\n  return torch.softmax(x, -1, dtype=6)\n");
  const auto nodes = op_nodes(m);
  ASSERT_EQ(nodes.size(), 1u);
  const auto handler = std::make_shared<Dtype>();
  nodes[0].slot->handler = handler;
  EXPECT_EQ(run(m, input().to(at::kBFloat16)).scalar_type(), at::kFloat);
  EXPECT_EQ(handler->seen, at::kFloat);
}

TEST(ScriptNodes, TracedModules) {
  const at::Tensor x = input();
  Module target("Traced");
  target.register_attribute("training", c10::BoolType::get(), false);
  const auto traced = torch::jit::tracer::trace(
      {x},
      [](const torch::jit::Stack& inputs) -> torch::jit::Stack {
        return {at::softmax(at::matmul(inputs[0].toTensor(), inputs[0].toTensor()), -1)};
      },
      [](const at::Tensor&) { return std::string(); }, /*strict=*/true, /*force_outplace=*/false, &target);
  const auto function = target._ivalue()->compilation_unit()->create_function(
      c10::QualifiedName(*target.type()->name(), "forward"), traced.first->graph);
  target.type()->addMethod(function);
  const at::Tensor expected = run(target, x);
  const auto nodes = op_nodes(target);
  EXPECT_THAT(names(nodes), ElementsAre("matmul:Matmul", "softmax:Softmax"));
  EXPECT_TRUE(torch::equal(run(target, x), expected));
  const auto recorders = record(nodes);
  run(target, x);
  for (const auto& r : recorders) EXPECT_EQ(r->calls, 1);
}

}  // namespace
}  // namespace fp8::measure
