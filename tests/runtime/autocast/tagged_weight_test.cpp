// SPDX-License-Identifier: Apache-2.0
// Regions and tagged weights: a watched layer gives the bits of an untagged one, its handler gets what the model gave,
// and codes are never cast.

#include "fp8/runtime/intercept/autocast_rules.h"
#include "fp8/runtime/modules/op_modules.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

namespace autocast = runtime::autocast;
using autocast::AutocastGuard;
using autocast::AutocastLists;
using autocast::ListsGuard;

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat, std::uint64_t seed = 11) {
  torch::manual_seed(seed);
  return at::randn(sizes, on_hpu()).to(dtype);
}

/// Watches as RecordingHandler does, and notes the region that a handler sees.
class RegionHandler final : public runtime::OpHandler {
 public:
  std::optional<at::ScalarType> region;
  at::Tensor x;
  at::ScalarType weight = at::kDouble;
  bool cast_inside = true;
  int calls = 0;

  at::Tensor linear(const runtime::LinearCall& call) override {
    note(call.x, call.weight);
    return call.original();
  }
  at::Tensor convolution(const runtime::ConvolutionCall& call) override {
    note(call.x, call.weight);
    return call.original();
  }
  at::Tensor dequantize(const runtime::WeightTag&, const runtime::WeightView&, const at::Tensor& w) override {
    return w;
  }
  bool owns_values() const override { return false; }
  std::string describe() const override { return "watched"; }

 private:
  void note(const at::Tensor& input, const at::Tensor& w) {
    ++calls;
    region = autocast::region_dtype();
    x = input;
    weight = w.scalar_type();
    const at::Tensor one = at::ones({1, 1}, on_hpu());
    cast_inside = at::mm(one, one).scalar_type() != at::kFloat;
  }
};

struct Use {
  const char* name;
  std::vector<std::int64_t> weight, x;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w)> run;
  bool handled = true;  ///< false: a form that watchers do not see
};

const at::Tensor& bias(std::int64_t n) {
  static const at::Tensor all = random({64}, at::kFloat, 99);
  static std::map<std::int64_t, at::Tensor> parts;
  return parts.try_emplace(n, all.narrow(0, 0, n).clone()).first->second;
}

const std::vector<Use>& uses() {
  using T = const at::Tensor&;
  namespace F = torch::nn::functional;
  static const std::vector<Use> all = {
      {"nn::Linear, 2-D, bias", {5, 4}, {3, 4}, [](T x, T w) { return F::linear(x, w, bias(5)); }},
      {"nn::Linear, 3-D, bias", {5, 4}, {2, 3, 4}, [](T x, T w) { return F::linear(x, w, bias(5)); }},
      {"nn::Linear, 2-D", {5, 4}, {3, 4}, [](T x, T w) { return F::linear(x, w); }},
      {"nn::Linear, 1-D", {5, 4}, {4}, [](T x, T w) { return F::linear(x, w, bias(5)); }},
      {"aten::linear", {5, 4}, {2, 3, 4}, [](T x, T w) { return at::linear(x, w, bias(5)); }},
      {"addmm with factors", {5, 4}, {3, 4}, [](T x, T w) { return at::addmm(bias(5), x, w.t(), 0.5, 2); }},
      {"w @ x", {5, 4}, {4, 3}, [](T x, T w) { return at::mm(w, x); }},
      {"mv", {5, 4}, {4}, [](T x, T w) { return at::mv(w, x); }},
      {"x @ w", {4, 5}, {3, 4}, [](T x, T w) { return at::matmul(x, w); }, false},
      {"x @ w, 3-D", {4, 5}, {2, 3, 4}, [](T x, T w) { return at::matmul(x, w); }, false},
      {"bmm", {2, 5, 4}, {2, 3, 4}, [](T x, T w) { return at::bmm(x, w.transpose(1, 2)); }},
      {"matmul of experts", {2, 5, 4}, {2, 3, 4}, [](T x, T w) { return at::matmul(x, w.transpose(1, 2)); }},
      {"einsum", {2, 5, 4}, {3, 4}, [](T x, T w) { return at::einsum("tk,enk->ten", {x, w}); }},
      {"conv1d", {4, 3, 3}, {2, 3, 9}, [](T x, T w) { return at::conv1d(x, w, bias(4), 2); }},
      {"conv1d same, even kernel", {4, 3, 4}, {2, 3, 9}, [](T x, T w) { return at::conv1d(x, w, {}, 1, "same"); }},
      {"conv2d of one image", {4, 3, 3, 3}, {3, 8, 7}, [](T x, T w) { return at::conv2d(x, w, bias(4)); }},
      {"conv3d", {2, 3, 2, 2, 2}, {1, 3, 4, 4, 4}, [](T x, T w) { return at::conv3d(x, w); }},
      {"conv_transpose1d", {3, 4, 3}, {2, 3, 9}, [](T x, T w) { return at::conv_transpose1d(x, w, bias(4), 2); }},
      {"conv_transpose2d", {3, 4, 3, 3}, {2, 3, 5, 5}, [](T x, T w) { return at::conv_transpose2d(x, w); }},
      {"mul (no handler)", {5, 4}, {5, 4}, [](T x, T w) { return at::mul(x, w); }, false},
      {"cat (no handler)", {5, 4}, {3, 4}, [](T x, T w) { return at::cat({x, w}); }, false},
      {"softmax of a weight", {5, 4}, {3, 4}, [](T x, T w) { return at::mm(x, at::softmax(w, -1).t()); }, false},
      {"l1_loss of a weight", {5, 4}, {5, 4}, [](T x, T w) { return at::l1_loss(w, x); }, false},
  };
  return all;
}

AutocastLists only(std::vector<std::string> lower, std::vector<std::string> fp32 = {}) {
  AutocastLists lists = AutocastLists::defaults();
  lists.lower = std::move(lower);
  lists.fp32 = std::move(fp32);
  lists.promote.clear();
  return lists;
}

/// The use with an untagged and with a watched weight of the same values, in the region that is on: one result.
void expect_bits_of_an_untagged_one(const Use& use, const char* when) {
  const at::Tensor x = random(use.x), w = random(use.weight, at::kFloat, 12), watched = w.clone();
  const auto handler = std::make_shared<RegionHandler>();
  runtime::tag_weight(watched, "layer", handler);
  const at::Tensor expected = use.run(x, w), y = use.run(x, watched);
  EXPECT_TRUE(same_bits(y, expected)) << use.name << ", " << when;
  EXPECT_EQ(handler->calls, use.handled ? 1 : 0) << use.name << ", " << when;
  if (!use.handled || handler->calls == 0) return;
  EXPECT_EQ(handler->x.scalar_type(), at::kFloat) << use.name << ": what the model gave, " << when;
  EXPECT_EQ(handler->weight, at::kFloat) << use.name << ", " << when;
  EXPECT_FALSE(handler->cast_inside) << use.name << ": handlers choose their own dtypes, " << when;
}

TEST(WatchedWeights, GiveTheBitsOfUntaggedOnes) {
  for (const Use& use : uses()) {
    expect_bits_of_an_untagged_one(use, "no region");
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const AutocastGuard region(dtype);
      expect_bits_of_an_untagged_one(use, "region");
      within(at::NoGradGuard(), [&] { expect_bits_of_an_untagged_one(use, "no grad"); });
      const c10::InferenceMode inference;
      expect_bits_of_an_untagged_one(use, "inference");
    }
  }
}

TEST(WatchedWeights, WithOtherListsToo) {
  const std::vector<std::pair<const char*, AutocastLists>> lists = {
      {"only mm and bmm", only({"mm", "bmm", "convolution"})},
      {"only linear", only({"linear"})},
      {"matmul in f32", only({"addmm", "mm"}, {"matmul"})},
      {"einsum too", only({"einsum", "bmm", "linear"})},
      {"none", only({})},
  };
  for (const auto& [name, l] : lists) {
    const ListsGuard guard(l);
    const AutocastGuard region;
    for (const Use& use : uses()) expect_bits_of_an_untagged_one(use, name);
  }
}

TEST(WatchedWeights, GradientsAreThoseOfUntaggedOnes) {
  for (const Use& use : uses()) {
    const at::Tensor w = random(use.weight, at::kFloat, 12);
    const auto gradients = [&](bool tagged) {
      at::Tensor x = random(use.x).requires_grad_(true), weight = w.clone().requires_grad_(true);
      if (tagged) runtime::tag_weight(weight, "layer", std::make_shared<RegionHandler>());
      at::Tensor y = within(AutocastGuard(), [&] { return use.run(x, weight); });
      y.to(at::kFloat).pow(2).sum().backward();
      return std::pair(x.grad(), weight.grad());
    };
    const auto [x, weight] = gradients(false);
    const auto [x_watched, weight_watched] = gradients(true);
    EXPECT_EQ(weight.scalar_type(), at::kFloat) << use.name;
    EXPECT_TRUE(same_bits(x_watched, x)) << use.name;
    EXPECT_TRUE(same_bits(weight_watched, weight)) << use.name;
  }
}

TEST(WatchedWeights, OfRecurrentLayersAreSeenUncast) {
  torch::nn::LSTM lstm = hpu(torch::nn::LSTM(torch::nn::LSTMOptions(4, 6).batch_first(true)));
  const at::Tensor x = random({2, 3, 4});
  for (const bool listed : {false, true}) {
    AutocastLists lists = AutocastLists::defaults();
    if (listed) lists.lower.push_back("lstm");
    const ListsGuard guard(lists);
    const AutocastGuard region;
    const auto run = [&] { return std::get<0>(lstm(x)); };
    const auto handler = std::make_shared<RecordingHandler>();
    for (auto& p : lstm->named_parameters()) runtime::untag_weight(p.value());
    const at::Tensor expected = listed ? at::Tensor() : run();
    for (auto& p : lstm->named_parameters())
      if (p.value().dim() == 2) runtime::tag_weight(p.value(), p.key(), handler);
    const at::Tensor y = run();
    EXPECT_TRUE(listed || same_bits(y, expected));
    ASSERT_EQ(handler->calls.size(), 6u) << "W_ih and W_hh in each of 3 steps";
    for (const auto& call : handler->calls) EXPECT_EQ(call.w.scalar_type(), at::kFloat);
  }
}

TEST(Handlers, SeeTheRegion) {
  const at::Tensor x = random({3, 4}), w = random({5, 4});
  const auto handler = std::make_shared<RegionHandler>();
  runtime::tag_weight(w, "layer", handler);
  const auto seen = [&] {
    at::linear(x, w);
    return handler->region;
  };
  EXPECT_EQ(seen(), std::nullopt);
  const AutocastGuard region;
  EXPECT_EQ(seen(), at::kBFloat16);
  {
    const AutocastGuard half(at::kHalf);
    EXPECT_EQ(seen(), at::kHalf);
    const AutocastGuard hole(at::kHalf, false);
    EXPECT_EQ(seen(), std::nullopt);
  }
  const ListsGuard lists(only({}, {"linear"}));
  EXPECT_EQ(seen(), at::kFloat) << "an op of the f32 list asks for it";
}

/// Notes the region, leaves the work to the op.
class RegionModuleHandler final : public runtime::ModuleHandler {
 public:
  std::optional<at::ScalarType> region;
  at::ScalarType inside = at::kDouble;

  at::Tensor matmul(const runtime::MatmulCall& call) override { return note(call.original); }
  at::Tensor softmax(const runtime::SoftmaxCall& call) override { return note(call.original); }
  at::Tensor attention(const runtime::AttentionCall& call) override { return note(call.original); }
  at::Tensor mixture_of_experts(const runtime::MoeCall& call) override { return note(call.original); }
  std::string describe() const override { return "watched"; }

 private:
  at::Tensor note(const runtime::OriginalOp& original) {
    region = autocast::region_dtype();
    const at::Tensor one = at::ones({1, 1}, on_hpu());
    inside = at::mm(one, one).scalar_type();
    return original();
  }
};

TEST(Handlers, OfModulesWithoutAWeightSeeTheRegionToo) {
  runtime::Matmul matmul;
  runtime::Softmax softmax;
  runtime::ModuleFusedSDPA sdpa;
  const at::Tensor x = random({1, 2, 4, 8}), y = random({1, 2, 8, 4}, at::kFloat, 4);
  const auto expect_same = [&](const auto& module, const std::function<at::Tensor()>& run) {
    for (const bool on : {false, true}) {
      const AutocastGuard region(at::kBFloat16, on);
      const at::Tensor expected = run();
      EXPECT_EQ(expected.scalar_type(), on ? at::kBFloat16 : at::kFloat);
      const auto handler = std::make_shared<RegionModuleHandler>();
      module->slot()->handler = handler;
      EXPECT_TRUE(same_bits(run(), expected));
      EXPECT_EQ(handler->region.has_value(), on);
      EXPECT_EQ(handler->inside, at::kFloat);
      module->slot()->handler = nullptr;
    }
  };
  expect_same(matmul, [&] { return matmul(x, y); });
  expect_same(softmax, [&] { return softmax(x, -1); });
  expect_same(sdpa, [&] { return sdpa(x, x, x); });
}

TEST(Handlers, MixturesOfExpertsRunInARegion) {
  torch::manual_seed(5);
  runtime::MixtureOfExperts moe(
      runtime::MixtureOfExpertsOptions{.num_experts = 4, .hidden_size = 8, .intermediate_size = 16});
  moe->to(kHpu);
  for (auto& p : moe->parameters()) at::NoGradGuard(), p.data().normal_();
  const at::Tensor x = random({6, 8}), weights = at::softmax(random({6, 2}), -1);
  const at::Tensor table = hpu(at::tensor({0, 1, 1, 2, 2, 3, 3, 0, 0, 2, 1, 3}, at::kLong).reshape({6, 2}));
  const at::Tensor exact = moe(x, table, weights);
  const AutocastGuard region;
  const at::Tensor y = moe(x, table, weights);
  const auto handler = std::make_shared<RegionModuleHandler>();
  moe->slot()->handler = handler;
  EXPECT_TRUE(same_bits(moe(x, table, weights), y));
  EXPECT_EQ(handler->region, at::kBFloat16);
  EXPECT_TRUE(at::allclose(y.cpu(), exact.cpu(), 5e-2, exact.abs().max().item<double>() * 2e-2));
}

/// A converted layer: its handler computes in the input's dtype, the region decides the result's.
TEST(Codes, AreNeverCastAndResultsAreOfTheRegionsType) {
  for (const Use& use : uses()) {
    const std::string name = use.name;
    if (name.find("no handler") != std::string::npos || name.find("of a weight") != std::string::npos) continue;
    if (use.weight.size() == 3 && name.find("conv") == std::string::npos) continue;  // CodesHandler knows no experts
    at::Tensor w = random(use.weight, at::kFloat, 12);
    const at::Tensor decoded = hpu((w.cpu() / 0.02).to(at::kFloat8_e4m3fn).to(at::kFloat) * 0.02);
    const at::Tensor x = random(use.x);
    const auto handler = std::make_shared<CodesHandler>(0.02);
    convert_to_codes(w, "layer", handler, 0.02);
    const at::Tensor exact = use.run(x, decoded), size = use.run(x.abs(), decoded.abs()).to(at::kFloat);
    const AutocastGuard region;
    const at::Tensor y = use.run(x, w), expected = use.run(x, decoded);
    EXPECT_EQ(w.scalar_type(), at::kFloat8_e4m3fn);
    EXPECT_EQ(y.scalar_type(), expected.scalar_type()) << use.name;
    EXPECT_EQ(handler->linears + handler->convolutions + handler->dequantized, 1) << use.name;
    // Operands are rounded to bf16, by some kernels partial sums too: 2^-9 of what is added up, each.
    const at::Tensor error = (y.to(at::kFloat) - exact.to(at::kFloat)).abs();
    EXPECT_LE(error.max().item<float>(), 12 * 0x1p-9 * size.max().item<float>()) << use.name;
  }
}

TEST(Codes, InOpsWithoutAHandlerThrowByName) {
  at::Tensor w = random({4, 4});
  convert_to_codes(w, "layer", std::make_shared<CodesHandler>(0.02), 0.02);
  const at::Tensor x = random({4, 4});
  const AutocastGuard region;
  EXPECT_REFUSED(at::mul(x, w), "layer");
  EXPECT_REFUSED(at::cat({x, w}), "layer");
  EXPECT_REFUSED(at::exp(w), "layer");
  EXPECT_EQ(w.scalar_type(), at::kFloat8_e4m3fn);
}

TEST(Codes, OfAnEmbeddingFollowTheFloat32List) {
  at::Tensor w = random({7, 4});
  const auto handler = std::make_shared<CodesHandler>(0.02);
  convert_to_codes(w, "embed", handler, 0.02);
  const at::Tensor ids = hpu(at::tensor({3, 1, 6}, at::kLong));
  const at::Tensor rows = at::embedding(w, ids);
  const AutocastGuard region;
  EXPECT_TRUE(same_bits(at::embedding(w, ids), rows));
}

}  // namespace
}  // namespace fp8::test
