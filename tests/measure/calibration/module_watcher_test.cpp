// SPDX-License-Identifier: Apache-2.0
// Every kind of module without a weight of its own: what is measured equals plain ATen, and not a bit of the results
// changes.
#include <c10/core/InferenceMode.h>

#include "fp8/measure/calibration/session.h"
#include "fp8/measure/calibration/watchers.h"
#include "fp8/runtime/modules/op_modules.h"
#include "measure/amax_by_aten.h"
#include "support/models_for_tests.h"

namespace fp8::measure {
namespace {

namespace F = torch::nn::functional;

CalibrationOptions everything(bool outputs = true) {
  CalibrationOptions options;
  options.select = [](const std::string&, const std::string&) { return true; };
  options.outputs = outputs;
  return options;
}

/// The measurement of module "m" after f() ran, with and without watchers: both must give the same bits.
template <class Module, class F>
Measurement watched(Module module, F&& f, const CalibrationOptions& options = everything()) {
  torch::nn::ModuleDict holder(
      std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>{{"m", module.ptr()}});
  const at::Tensor plain = f();
  const auto session = CalibrationSession::attach(*holder, options);
  EXPECT_TRUE(same_bits(f(), plain));
  const auto file = session->result();
  EXPECT_TRUE(session->non_finite().empty());
  finalize_calibration(*holder);
  EXPECT_EQ(CalibrationSession::of(*holder), nullptr);
  EXPECT_TRUE(same_bits(f(), plain));
  const auto* m = file.find("m");
  EXPECT_NE(m, nullptr);
  return m != nullptr ? *m : Measurement{};
}

using Values = std::vector<Amax>;

TEST(ModuleWatcher, MatmulHasTwoInputs) {
  const at::Tensor a = hpu(torch::randn({2, 3, 4, 5})), b = hpu(torch::randn({2, 3, 5, 6}) * 3);
  runtime::Matmul m;
  const auto f = [&] { return m(a, b); };
  const auto seen = watched(m, f);
  EXPECT_EQ(seen.inputs, (Values{{largest(a)}, {largest(b)}}));
  EXPECT_EQ(seen.outputs, (Values{{largest(torch::matmul(a, b))}}));
  EXPECT_FALSE(seen.weight.has_value());
  EXPECT_FALSE(watched(m, f, everything(/*outputs=*/false)).outputs.has_value());
  EXPECT_EQ(m->handler(), nullptr);
}

TEST(ModuleWatcher, B2BMatmulAlwaysHasItsOutput) {  // the scale of its second input is made of it
  const at::Tensor a = hpu(torch::randn({2, 4, 5})), b = hpu(torch::randn({2, 5, 6}));
  runtime::B2BMatmul m;
  const auto seen = watched(m, [&] { return m(a, b); }, everything(false));
  EXPECT_EQ(seen.inputs, (Values{{largest(a)}, {largest(b)}}));
  EXPECT_EQ(seen.outputs, (Values{{largest(torch::matmul(a, b))}}));
}

TEST(ModuleWatcher, CachesKeptAsideAreMeasuredPerHead) {
  const at::Tensor sizes = torch::tensor({1.0, 30.0, 0.01}).view({3, 1, 1});
  const at::Tensor x = hpu(torch::randn({2, 3, 5, 4}) * sizes),
                   y = hpu((torch::randn({2, 3, 4, 7}) * sizes).transpose(2, 3));  // y: not contiguous
  torch::nn::ModuleDict holder(
      std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>{{"k_cache", runtime::KVCache().ptr()},
                                                                              {"other_cache", runtime::KVCache().ptr()},
                                                                              {"matmul", runtime::Matmul().ptr()}});
  CalibrationOptions options;
  options.select = [](const std::string&, const std::string& type) { return type == "Matmul"; };
  options.kv_cache = [](const std::string& name) { return name == "k_cache"; };
  const auto session = CalibrationSession::attach(*holder, options);
  auto* cache = holder["k_cache"]->as<runtime::KVCacheImpl>();
  EXPECT_TRUE(same_bits(cache->forward(x), x));
  cache->forward(y);
  holder["other_cache"]->as<runtime::KVCacheImpl>()->forward(x);
  holder["matmul"]->as<runtime::MatmulImpl>()->forward(x, x.transpose(2, 3));
  const auto file = session->result();
  finalize_calibration(*holder);
  EXPECT_EQ(file.selected, std::vector<std::string>{"matmul"});  // what other tools see
  EXPECT_EQ(file.modules.size(), 1u);
  ASSERT_EQ(file.kv_cache.size(), 1u);
  const at::Tensor want = torch::maximum(x.cpu().abs().amax({0, 2, 3}), y.cpu().abs().amax({0, 2, 3}));
  const Amax heads(want.const_data_ptr<float>(), want.const_data_ptr<float>() + 3);
  EXPECT_EQ(file.kv_cache[0].module, "k_cache");
  EXPECT_EQ(file.kv_cache[0].inputs, Values{heads});
  EXPECT_FALSE(file.kv_cache[0].outputs.has_value());
  EXPECT_EQ(file.find("k_cache"), nullptr);
  EXPECT_EQ(file.find_cache("k_cache"), &file.kv_cache[0]);
  EXPECT_EQ(file.find_cache("matmul"), file.find("matmul"));
}

TEST(ModuleWatcher, SoftmaxAlwaysHasItsOutputAndMasksAreNoValues) {
  at::Tensor x = torch::randn({3, 4, 6}) * 5;
  x.index_put_({torch::indexing::Slice(), 1, torch::indexing::Slice(2)}, -std::numeric_limits<float>::infinity());
  const at::Tensor finite = x.masked_fill(x.isinf(), 0), on_hpu = hpu(x);
  runtime::Softmax m;
  for (const std::int64_t dim : {-1, 1}) {
    const at::Tensor shown = dim == -1 ? on_hpu : hpu(finite);
    const auto seen = watched(m, [&] { return m(shown, dim); }, everything(false));
    EXPECT_EQ(seen.inputs, (Values{{largest(finite)}}));
    EXPECT_EQ(seen.outputs, (Values{{largest(torch::softmax(shown, dim))}}));
  }
}

TEST(ModuleWatcher, SoftmaxReportsInfinitiesThatAreNoMask) {
  runtime::Softmax m;
  const auto session = CalibrationSession::attach(*m, everything());
  m(hpu(torch::tensor({1.0f, std::numeric_limits<float>::infinity()})));
  ASSERT_EQ(session->non_finite().size(), 2u);
  EXPECT_EQ(session->non_finite()[0].tensor, "input");
  EXPECT_TRUE(session->result().modules.empty());
  session->finalize();
}

/// softmax(q k^T * scale + mask) in f64.
at::Tensor probabilities(const at::Tensor& q, at::Tensor k, const runtime::AttentionOptions& o) {
  const auto up = [](const at::Tensor& t) { return t.cpu().to(at::kDouble); };
  if (o.enable_gqa) k = k.repeat_interleave(q.size(-3) / k.size(-3), -3);
  at::Tensor logits =
      torch::matmul(up(q), up(k).transpose(-2, -1)) * o.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  const double inf = std::numeric_limits<double>::infinity();
  if (o.mask.has_value()) {
    logits = o.mask->scalar_type() == at::kBool ? logits.masked_fill(o.mask->cpu().logical_not(), -inf)
                                                : logits + up(*o.mask);
  }
  if (o.is_causal) logits = logits.masked_fill(torch::ones({q.size(-2), k.size(-2)}, at::kBool).triu(1), -inf);
  return torch::softmax(logits, -1).nan_to_num(0);
}

void expect_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const runtime::AttentionOptions& o) {
  runtime::ModuleFusedSDPA m;
  const auto seen = watched(m, [&] { return m(q, k, v, o); }, everything(false));
  EXPECT_EQ(seen.inputs, (Values{{largest(q)}, {largest(k)}, {largest(v)}}));
  ASSERT_TRUE(seen.outputs.has_value() && seen.outputs->size() == 2);
  EXPECT_EQ(seen.outputs->at(0), Amax{largest(m(q, k, v, o))});
  const auto p = static_cast<float>(probabilities(q, k, o).max().item<double>());
  EXPECT_NEAR(seen.outputs->at(1).at(0), p, 1e-5f * p);
}

TEST(ModuleWatcher, AttentionsLargestProbability) {
  torch::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor q = hpu(torch::randn({2, 4, 7, 8}).to(dtype)), k = hpu(torch::randn({2, 4, 9, 8}).to(dtype)),
                     v = hpu(torch::randn({2, 4, 9, 8}).to(dtype));
    expect_attention(q, k, v, {});
    expect_attention(q, k, v, {.scale = 2.0});
    expect_attention(q, k, v, {.is_causal = true});
    expect_attention(q, k, v, {.mask = hpu(torch::randn({7, 9}).to(dtype))});
    expect_attention(q, k, v, {.mask = hpu(torch::rand({2, 1, 7, 9}).gt(0.4))});
    expect_attention(q.select(0, 0), k.select(0, 0), v.select(0, 0), {});
    const at::Tensor few_k = hpu(torch::randn({2, 2, 9, 8}).to(dtype)),
                     few_v = hpu(torch::randn({2, 2, 9, 8}).to(dtype));
    expect_attention(q, few_k, few_v, {.enable_gqa = true});
    expect_attention(q, few_k, few_v, {.mask = hpu(torch::rand({7, 9}).gt(0.3)), .enable_gqa = true});
  }
}

TEST(ModuleWatcher, RowsThatSeeNothingHaveNoProbability) {
  const at::Tensor q = hpu(torch::randn({1, 1, 2, 4})), k = hpu(torch::randn({1, 1, 3, 4})),
                   v = hpu(torch::randn({1, 1, 3, 4}));
  expect_attention(q, k, v, {.mask = hpu(torch::tensor({{true, true, false}, {false, false, false}}))});
  expect_attention(q, k, v, {.mask = hpu(torch::zeros({2, 3}, at::kBool))});
}

TEST(ModuleWatcher, LongAttentionIsTakenInBlocks) {  // 2 * 3000 * 3000 logits: more than are made at once
  torch::manual_seed(4);
  const at::Tensor q = hpu(torch::randn({1, 2, 3000, 4})), k = hpu(torch::randn({1, 1, 3000, 4})),
                   v = hpu(torch::randn({1, 1, 3000, 4}));
  expect_attention(q, k, v, {.is_causal = false, .enable_gqa = true});
  const at::Tensor many = hpu(torch::randn({3, 500, 3, 4}) * 2),
                   keys = hpu(torch::randn({3, 500, 3000, 4}));  // per sample and head
  expect_attention(many, keys, keys, {});
}

TEST(ModuleWatcher, KVCacheSeesWhatIsStoredAndWhatIsRead) {
  runtime::KVCache m;
  const at::Tensor first = hpu(torch::randn({1, 2, 3, 4})), second = hpu(torch::randn({1, 2, 1, 4}) * 9);
  const auto seen = watched(m, [&] {
    m->allocate({1, 2, 8, 4}, first);
    m->update(first, 2, 0);
    return m->update(second, 2, 3).clone();
  });
  const float both = std::max(largest(first), largest(second));
  EXPECT_EQ(seen.inputs, (Values{{both}}));
  EXPECT_EQ(seen.outputs, (Values{{both}}));
  EXPECT_EQ(watched(m, [&] { return m->forward(first); }).outputs, (Values{{largest(first)}}));
  EXPECT_FALSE(watched(m, [&] { return m->forward(first); }, everything(false)).outputs.has_value());
}

TEST(ModuleWatcher, VllmCacheSeesItsInputOnce) {
  runtime::VLLMKVCache m;
  const at::Tensor input = hpu(torch::randn({3, 2, 4})), cache = hpu(torch::zeros({4, 2, 2, 4})),
                   slots = hpu(torch::tensor({5, 0, 3}));
  const auto seen = watched(m, [&] {
    m(at::Tensor(), cache, slots);  // cross attention after the first token: nothing is stored
    m(input, cache, slots);
    return m->fetch_from_cache(cache, hpu(torch::tensor({0, 2})), at::kFloat);
  });
  EXPECT_EQ(seen.inputs, (Values{{largest(input)}}));
  EXPECT_EQ(seen.outputs,
            (Values{{std::max(largest(input[0]), largest(input[1]))}}));  // slots 0 and 5 are in blocks 0 and 2
}

/// Experts 1 and 2 of four; expert 2 gets no tokens.
struct Mixture {
  runtime::MixtureOfExperts m{runtime::MixtureOfExpertsOptions{4, 6, 5, 1, 2, "silu"}};
  at::Tensor hidden, table, weights;
  Mixture() {
    torch::manual_seed(5);
    const torch::NoGradGuard no_grad;
    for (auto& p : m->parameters()) p.normal_();
    m->to(test::kHpu);
    hidden = hpu(torch::randn({3, 6})), weights = hpu(torch::rand({3, 2}));
    table = hpu(torch::tensor({{0, 1}, {3, 0}, {1, 3}}));
  }
  at::Tensor expert(int e, const std::string& list) const {
    return m->named_parameters()[list + "_list." + std::to_string(e) + ".weight"];
  }
};

TEST(ModuleWatcher, MixturesHaveEachExpertsLargestActivation) {
  Mixture x;
  const auto seen = watched(x.m, [&] { return x.m(x.hidden, x.table, x.weights); }, everything(false));
  EXPECT_EQ(seen.inputs, (Values{{largest(x.hidden)}}));
  ASSERT_TRUE(seen.outputs.has_value() && seen.outputs->size() == 3);
  EXPECT_EQ(seen.outputs->at(0), Amax{largest(x.m(x.hidden, x.table, x.weights))});
  const at::Tensor tokens = torch::stack({x.hidden.cpu()[0], x.hidden.cpu()[2]});
  const auto gate_up = F::linear(tokens, x.expert(0, "w13").cpu()).chunk(2, -1);
  EXPECT_NEAR(seen.outputs->at(1).at(0), largest(torch::silu(gate_up[0]) * gate_up[1]), 1e-6);
  EXPECT_EQ(seen.outputs->at(2), Amax{0.0f});
}

TEST(ModuleWatcher, ExpertsWeightsHaveNodesWithInputZero) {
  Mixture x;
  const auto session = CalibrationSession::attach(*x.m, everything(false));
  x.m(x.hidden, x.table, x.weights);
  const auto file = session->result();
  session->finalize();
  ASSERT_EQ(file.modules.size(), 5u);  // the mixture and 2 x 2 weights
  for (const int e : {0, 1})
    for (const char* list : {"w13", "w2"}) {
      const auto* node = file.find(std::string(list) + "_list." + std::to_string(e));
      ASSERT_NE(node, nullptr);
      EXPECT_EQ(node->inputs, (Values{{0.0f}}));
      EXPECT_EQ(node->weight, Amax{largest(x.expert(e, list))});
    }
}

TEST(ModuleWatcher, AModuleThatIsHandledAlreadyIsRefusedByName) {
  struct Other final : runtime::ModuleHandler {
    std::string describe() const override { return "in fp8"; }
  };
  runtime::Matmul m;
  m->slot()->handler = std::make_shared<Other>();
  EXPECT_REFUSED(CalibrationSession::attach(*m, everything()), "[measure]", "in fp8", "high precision");
}

TEST(ModuleWatcher, TheSessionEndsWithTheModel) {
  std::weak_ptr<CalibrationSession> session;
  {
    runtime::Matmul m;
    session = CalibrationSession::attach(*m, everything());
    m(hpu(torch::ones({2, 2})), hpu(torch::ones({2, 2})));
    EXPECT_EQ(m->handler()->describe(), "measured");
    EXPECT_EQ(CalibrationSession::of(*m), session.lock());
  }
  EXPECT_TRUE(session.expired());
}

TEST(ModuleWatcher, ARetiredWatcherPassesThrough) {
  runtime::Matmul m;
  const auto session = CalibrationSession::attach(*m, everything());
  session->finalize();
  EXPECT_EQ(m->handler()->describe(), "measured before");
  EXPECT_EQ(m(hpu(torch::ones({2, 2})), hpu(torch::ones({2, 2})))[0][0].item<float>(), 2.0f);
  EXPECT_TRUE(session->result().modules.empty());
}

TEST(ModuleWatcher, DefaultsWatchNoneOfThem) {
  runtime::Matmul m;
  const auto session = CalibrationSession::attach(*m, {});
  EXPECT_EQ(m->handler(), nullptr);
  EXPECT_TRUE(session->result().selected.empty());
  session->finalize();
}

// A watcher sees what the module takes and gives, whatever op stands between, and changes no bit of it.

/// One module's record after f(module) ran.
template <class Module, class F>
Measurement watched_weights(Module& module, F&& f) {
  torch::nn::Sequential holder;
  holder->push_back("m", module);
  const auto session = CalibrationSession::attach(*holder, {});
  f();
  const auto file = session->result();
  session->finalize();
  EXPECT_EQ(file.modules.size(), 1u);
  return file.modules.empty() ? Measurement{} : file.modules[0];
}

torch::nn::Linear linear(bool bias, at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(5);
  torch::nn::Linear m(torch::nn::LinearOptions(12, 7).bias(bias));
  if (bias) torch::NoGradGuard(), m->bias.data().fill_(9);  // the bias decides the output's amax
  m->to(dtype);
  m->to(test::kHpu);
  return m;
}

TEST(WeightWatcher, LinearOfEveryRankIsMeasuredAndUnchanged) {
  for (bool bias : {true, false})
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const std::vector<std::int64_t>& sizes :
           {std::vector<std::int64_t>{12}, {3, 12}, {2, 3, 12}, {2, 2, 3, 12}}) {
        auto m = linear(bias, dtype);
        const at::Tensor x = hpu(torch::randn(sizes).to(dtype));
        const at::Tensor plain = m(x);
        at::Tensor y;
        const auto seen = watched_weights(m, [&] { y = m(x); });
        EXPECT_TRUE(same_bits(y, plain));
        EXPECT_EQ(seen.inputs, (std::vector<Amax>{{largest(x)}}));
        ASSERT_TRUE(seen.outputs.has_value());
        EXPECT_EQ(*seen.outputs, (std::vector<Amax>{{largest(plain)}}))
            << "bias " << bias << ", rank " << sizes.size() << ", " << dtype;
        EXPECT_EQ(seen.weight, Amax{largest(m->weight)});
      }
}

TEST(WeightWatcher, WorksInEveryGradientMode) {
  auto m = linear(true);
  const at::Tensor x = hpu(torch::randn({2, 3, 12}));
  const at::Tensor plain = m(x);
  const auto no_grad = watched_weights(m, [&] {
    torch::NoGradGuard g;
    m(x);
  });
  const auto inference = watched_weights(m, [&] {
    c10::InferenceMode g;
    m(x);
  });
  EXPECT_EQ(*no_grad.outputs, (std::vector<Amax>{{largest(plain)}}));
  EXPECT_EQ(*inference.outputs, *no_grad.outputs);
  const at::Tensor learns = x.clone().requires_grad_(true);
  at::Tensor gradient;
  watched_weights(m, [&] {
    m(learns).sum().backward();
    gradient = learns.grad();
  });
  const at::Tensor again = x.clone().requires_grad_(true);
  m(again).sum().backward();
  EXPECT_TRUE(same_bits(gradient, again.grad()));
}

TEST(WeightWatcher, Conv2dIsMeasuredAndUnchanged) {
  torch::nn::Conv2d m(torch::nn::Conv2dOptions(4, 6, 3).stride(2).padding(1).groups(2));
  m->to(test::kHpu);
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{2, 4, 9, 8}, {4, 9, 8}}) {
    const at::Tensor x = hpu(torch::randn(sizes));
    const at::Tensor plain = m(x);
    at::Tensor y;
    const auto seen = watched_weights(m, [&] { y = m(x); });
    EXPECT_TRUE(same_bits(y, plain));
    EXPECT_EQ(seen.inputs, (std::vector<Amax>{{largest(x)}}));
    EXPECT_EQ(*seen.outputs, (std::vector<Amax>{{largest(plain)}}));
  }
}

TEST(WeightWatcher, TheLargestOfAllCallsIsKept) {
  auto m = linear(false);
  const at::Tensor small = hpu(torch::randn({3, 12})), large = small * -4;
  const auto seen = watched_weights(m, [&] { m(small), m(large), m(small); });
  EXPECT_EQ(seen.inputs, (std::vector<Amax>{{largest(large)}}));
  EXPECT_EQ(*seen.outputs, (std::vector<Amax>{{largest(m(large))}}));
}

TEST(WeightWatcher, AnInputWrittenInPlaceIsLookedAtAgain) {
  auto m = linear(false);
  at::Tensor x = hpu(torch::randn({3, 12}));
  const auto seen = watched_weights(m, [&] { m(x), x.mul_(3), m(x); });
  EXPECT_EQ(seen.inputs, (std::vector<Amax>{{largest(x)}}));
}

TEST(WeightWatcher, DescribesItselfAndOwnsNothing) {
  auto m = linear(true);
  watched_weights(m, [&] {
    const auto* tag = runtime::find_tag(m->weight);
    ASSERT_NE(tag, nullptr);
    EXPECT_EQ(tag->handler->describe(), "measured");
    EXPECT_FALSE(tag->handler->owns_values());
    EXPECT_EQ(tag->module_names(), "m");
    m(hpu(torch::zeros({1, 12})));
  });
}

}  // namespace
}  // namespace fp8::measure
