// SPDX-License-Identifier: Apache-2.0
// Nodes of TorchScript modules: which there are and what they are called, that an unhandled one changes no bit, and
// that a handler is met by its own instance only, whatever was done to the module before and after.
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/script.h>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/measure/model/module_tree.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"
#include "support/values.h"

namespace fp8::measure {
namespace {

using kernels::FloatType;
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
  return collected(nodes, [](const auto& n) { return n.name + ":" + n.type; });
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
  for (const auto& n : op_nodes(m))
    if (n.name == "b.sdpa") n.slot->handler = std::make_shared<Recorder>(2.0);
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

// Names, types, weights and biases of typed and scripted modules.

std::vector<std::string> names(const std::vector<WeightModule>& modules) {
  return collected(modules, [](const auto& m) { return m.name + ":" + m.type; });
}

TEST(ModuleTree, ListsEveryKnownTypeInOrder) {
  torch::nn::ModuleList model(torch::nn::Conv1d(2, 3, 1), torch::nn::Conv2d(2, 3, 1), torch::nn::Conv3d(2, 3, 1),
                              torch::nn::ReLU(), torch::nn::LayerNorm(std::vector<int64_t>{4}),
                              torch::nn::Embedding(5, 4), torch::nn::Sequential(torch::nn::Linear(4, 2)));
  const auto modules = weight_modules(*model);
  EXPECT_THAT(names(modules), ElementsAre("0:Conv1d", "1:Conv2d", "2:Conv3d", "5:Embedding", "6.0:Linear"));
  EXPECT_TRUE(modules[0].bias.has_value());
  EXPECT_FALSE(modules[3].bias.has_value());
}

TEST(ModuleTree, GivesTheParametersThemselves) {
  torch::nn::Linear linear(torch::nn::LinearOptions(4, 2).bias(false));
  const auto modules = weight_modules(*linear);
  ASSERT_EQ(modules.size(), 1u);
  EXPECT_EQ(modules[0].name, "");
  EXPECT_TRUE(modules[0].weight.is_same(linear->weight));
  EXPECT_FALSE(modules[0].bias.has_value());
}

TEST(ModuleTree, ListsTiedModulesBoth) {
  auto model = test::tiny_lm();
  model->lm_head->weight = model->embed_tokens->weight;
  const auto modules = weight_modules(*model);
  EXPECT_EQ(modules.size(), 16u);
  EXPECT_EQ(modules.front().name, "embed_tokens");
  EXPECT_EQ(modules.back().name, "lm_head");
  EXPECT_TRUE(modules.front().weight.is_same(modules.back().weight));
}

TEST(ModuleTree, ReadsScriptedModules) {
  const auto model = test::script_mlp();
  const auto modules = weight_modules(model);
  EXPECT_EQ(names(modules), (std::vector<std::string>{"up:Linear", "down:Linear"}));
  EXPECT_TRUE(modules[0].bias.has_value());
  EXPECT_FALSE(modules[1].bias.has_value());
  EXPECT_TRUE(modules[0].weight.is_same(model.attr("up").toModule().attr("weight").toTensor()));
}

TEST(ModuleTree, FindsNothingWhereThereIsNothing) {
  EXPECT_TRUE(weight_modules(*torch::nn::Sequential(torch::nn::ReLU())).empty());
  torch::jit::Module bare("Linear");  // the name alone is no weight
  EXPECT_TRUE(weight_modules(bare).empty());
}

// Fingerprints of models: sampled values, across dtypes, in memory and in files.

WeightFingerprint of(const at::Tensor& t, const std::string& module = "m") {
  const FloatType type = t.scalar_type() == at::kFloat  ? FloatType::F32
                         : t.scalar_type() == at::kHalf ? FloatType::F16
                                                        : FloatType::BF16;
  return fingerprint_of(module, t.const_data_ptr(), type, t.sizes().vec());
}

TEST(ModelFingerprint, SamplesFirstLastAndEvenlyBetween) {
  EXPECT_TRUE(sampled_positions(0).empty());
  EXPECT_EQ(sampled_positions(1), std::vector<std::int64_t>{0});
  EXPECT_EQ(sampled_positions(3), (std::vector<std::int64_t>{0, 1, 2}));
  const auto positions = sampled_positions(311);
  ASSERT_EQ(positions.size(), 32u);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(positions[i], static_cast<std::int64_t>(i) * 10);
  const std::int64_t huge = (std::int64_t{1} << 60) + 7;
  const auto far = sampled_positions(huge);
  EXPECT_EQ(far.front(), 0);
  EXPECT_EQ(far.back(), huge - 1);
  for (std::size_t i = 1; i < far.size(); ++i) EXPECT_GT(far[i], far[i - 1]);
}

TEST(ModelFingerprint, TheSameModelInAnotherDtypeIsTheSame) {
  torch::manual_seed(3);
  const at::Tensor w = torch::randn({37, 53}) * 0.02;
  const ModelFingerprint f32{{of(w)}};
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) require_same_model(f32, {{of(w.to(type))}}, "x");
  require_same_model({{of(w.to(at::kHalf))}}, {{of(w.to(at::kBFloat16))}}, "x");
}

TEST(ModelFingerprint, AnotherModelIsRefusedByName) {
  const at::Tensor w = torch::randn({8, 8});
  const ModelFingerprint measured{{of(w)}};
  EXPECT_REFUSED(require_same_model(measured, {{of(w.view({4, 16}))}}, "x"),
                 "x: m.weight was [8, 8] when measured and is [4, 16]", "another model");
  at::Tensor other = w.clone();
  other.view({-1})[63] *= 1.0001;  // within a dtype, every bit counts
  EXPECT_REFUSED(require_same_model(measured, {{of(other)}}, "x"), "x: m.weight has other values");
  EXPECT_REFUSED(require_same_model(measured, {{of(torch::randn({8, 8}).to(at::kBFloat16))}}, "x"),
                 "m.weight has other values");
  require_same_model(measured, {{of(torch::randn({3, 3}), "not_measured")}}, "x");
}

TEST(ModelFingerprint, RoundTripsThroughJson) {
  const ModelFingerprint model{{of(torch::randn({5, 40})), of(torch::randn({2, 2}).to(at::kBFloat16), "n")}};
  const auto read = model_from_json(to_json(model), "x");
  EXPECT_EQ(read.digest(), model.digest());
  EXPECT_NE(read.find("n"), nullptr);
  for (const char* bad : {"[]", R"({"m": 1})", R"({"m": {"shape": [1], "samples": []}})",
                          R"({"m": {"dtype": "f32", "shape": [-1], "samples": []}})",
                          R"({"m": {"dtype": "f32", "shape": [1], "samples": ["x"]}})"})
    EXPECT_THROW(model_from_json(io::Json::parse(bad), "x"), io::Error) << bad;
}

TEST(ModelFingerprint, OfACheckpointIsThatOfTheTensor) {
  const test::TempDir dir;
  const at::Tensor w = torch::randn({11, 13}).to(at::kBFloat16);
  io::SafetensorsWriter writer(dir / "model.safetensors",
                               {{"m.weight", io::DType::BF16, {11, 13}}, {"ids.weight", io::DType::I64, {1, 1}}});
  const std::int64_t id = 3;
  writer.write("m.weight", w.const_data_ptr());
  writer.write("ids.weight", &id);
  writer.commit();
  const io::Checkpoint checkpoint(dir.path());
  EXPECT_EQ((ModelFingerprint{{fingerprint_of("m", checkpoint, "m.weight")}}.digest()),
            (ModelFingerprint{{of(w)}}.digest()));
  EXPECT_REFUSED(fingerprint_of("ids", checkpoint, "ids.weight"), "ids.weight", "F32, BF16 or F16", "I64");
}

TEST(ModelFingerprint, GoesWithAMeasurementAsLongAsItIsOfIt) {
  const test::TempDir dir;
  MeasurementFile file;
  file.modules.push_back({"m", {{1.0f}}, std::nullopt, Amax{2.0f}});
  file.model = ModelFingerprint{{of(torch::randn({2, 2}))}};
  const std::string prefix = (dir / "p").string();
  EXPECT_EQ(write_measurements(prefix, file).back(), dir / "p_hooks_maxabs.fingerprint");
  EXPECT_EQ(read_measurements(prefix).model->digest(), file.model->digest());
  // Another tool's files in the place of ours.
  file.modules[0].inputs[0][0] = 3.0f;
  auto foreign = file;
  foreign.model.reset();
  write_measurements(prefix, foreign);
  EXPECT_FALSE(read_measurements(prefix).model.has_value());
}

}  // namespace
}  // namespace fp8::measure
