// SPDX-License-Identifier: Apache-2.0
// Every form in which a 2-D weight meets a product: handled exactly once, at the outermost op; a watcher changes no
// bit, and sees x, w, y with y = x . w^T + bias; a handler that owns codes gives the product with the decoded weight.
#include <functional>

#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using T = const at::Tensor&;

/// w: [4, 6], bias: [4]; the call makes its own x from a fixed seed.
struct Form {
  const char* name;
  std::function<at::Tensor(T w, T bias)> run;
  bool is_transposed_result = false;  ///< the op gives w @ x: the handler's y is its transpose
  bool adds_more = false;             ///< y is not x . w^T + bias alone (self, beta, alpha)
};

at::Tensor input(at::IntArrayRef sizes) {
  torch::manual_seed(17);
  return at::randn(sizes, on_hpu());
}

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"linear 2-D", [](T w, T b) { return at::linear(input({3, 6}), w, b); }},
      {"linear 3-D", [](T w, T b) { return at::linear(input({2, 3, 6}), w, b); }},
      {"linear 1-D", [](T w, T) { return at::linear(input({6}), w); }},
      {"F::linear 2-D", [](T w, T b) { return torch::nn::functional::linear(input({3, 6}), w, b); }},
      {"F::linear 2-D, no bias", [](T w, T) { return torch::nn::functional::linear(input({3, 6}), w, at::Tensor()); }},
      {"addmm", [](T w, T b) { return at::addmm(b, input({3, 6}), w.t()); }},
      {"addmm of a matrix", [](T w, T) { return at::addmm(input({3, 4}), input({3, 6}), w.t(), 0.5, 2); }, false, true},
      {"addmm, weight left", [](T w, T) { return at::addmm(input({4, 3}), w, input({6, 3})); }, true, true},
      {"mm", [](T w, T) { return at::mm(input({3, 6}), w.t()); }},
      {"mm, weight left", [](T w, T) { return at::mm(w, input({6, 3})); }, true},
      {"addmv", [](T w, T b) { return at::addmv(b, w, input({6})); }},
      {"addmv with factors", [](T w, T b) { return at::addmv(b, w, input({6}), 2, 0.5); }, false, true},
      {"mv", [](T w, T) { return at::mv(w, input({6})); }},
      {"matmul 2-D", [](T w, T) { return at::matmul(input({3, 6}), w.t()); }},
      {"matmul 1-D", [](T w, T) { return at::matmul(input({6}), w.t()); }},
      {"matmul 4-D", [](T w, T) { return at::matmul(input({2, 2, 3, 6}), w.t()); }},
      {"matmul, weight left, vector", [](T w, T) { return at::matmul(w, input({6})); }},
      {"matmul, weight left", [](T w, T) { return at::matmul(w, input({6, 3})); }, true},
      {"matmul, weight left, batched", [](T w, T) { return at::matmul(w, input({2, 6, 3})); }, true},
      {"einsum", [](T w, T) { return at::einsum("tk,nk->tn", {input({3, 6}), w}); }},
      {"zero rows", [](T w, T b) { return at::linear(input({0, 6}), w, b); }},
  };
  return all;
}

struct Weights {
  at::Tensor w, bias;
};
Weights weights() {
  torch::manual_seed(5);
  return {at::randn({4, 6}, on_hpu()), at::randn({4}, on_hpu())};
}

void expect_watched_once(const Form& f, const at::Tensor& expected) {
  const auto [w, bias] = weights();
  const auto handler = std::make_shared<RecordingHandler>();
  runtime::tag_weight(w, "layer", handler);
  const at::Tensor y = f.run(w, bias);
  EXPECT_TRUE(same_bits(y, expected)) << f.name;
  ASSERT_EQ(handler->calls.size(), 1u) << f.name;
  const Seen& seen = handler->calls[0];
  EXPECT_EQ(seen.modules, "layer");
  EXPECT_EQ(seen.op, "linear");
  EXPECT_TRUE(same_bits(seen.w.reshape({4, 6}), w)) << f.name;
  const at::Tensor seen_y = f.is_transposed_result ? seen.y.transpose(-2, -1) : seen.y;
  EXPECT_TRUE(same_bits(seen_y.reshape(y.sizes()), y)) << f.name;
  if (f.adds_more) return;
  at::Tensor product = at::matmul(seen.x.to(at::kDouble).cpu(), w.to(at::kDouble).cpu().t());
  if (seen.has_bias) product = product + bias.to(at::kDouble).cpu();
  EXPECT_TRUE(at::allclose(seen.y.to(at::kDouble).cpu().reshape(product.sizes()), product, 1e-5, 1e-5)) << f.name;
}

TEST(Watchers, SeeEachFormOnceAndChangeNoBit) {
  in_every_mode([] {
    for (const Form& f : forms()) {
      const auto [w, bias] = weights();
      expect_watched_once(f, f.run(w, bias));
    }
  });
}

TEST(Watchers, DoNotDisturbGradients) {
  for (const Form& f : forms()) {
    const auto gradients = [&](bool tagged) {
      auto [w, bias] = weights();
      w.requires_grad_(true);
      bias.requires_grad_(true);
      const auto handler = std::make_shared<RecordingHandler>();
      if (tagged) runtime::tag_weight(w, "layer", handler);
      f.run(w, bias).square().sum().backward();
      EXPECT_EQ(handler->calls.size(), tagged ? 1u : 0u) << f.name;  // backward is no use of the weight
      return std::pair(w.grad(), bias.grad());
    };
    const auto plain = gradients(false), watched = gradients(true);
    EXPECT_TRUE(same_bits(watched.first, plain.first)) << f.name;
    EXPECT_TRUE(same_bits(watched.second, plain.second)) << f.name;
  }
}

void expect_decoded(const Form& f, double scale_inv, int linears, int dequantized) {
  auto [w, bias] = weights();
  const auto handler = std::make_shared<CodesHandler>(scale_inv);
  const at::Tensor decoded = (w.cpu() / scale_inv).to(at::kFloat8_e4m3fn).to(at::kFloat) * scale_inv;
  const at::Tensor expected = f.run(hpu(decoded), bias);
  convert_to_codes(w, "layer", handler, scale_inv);
  const at::Tensor y = f.run(w, bias);
  EXPECT_EQ(y.sizes(), expected.sizes()) << f.name;
  EXPECT_TRUE(at::allclose(y.cpu(), expected.cpu(), 1e-5, 1e-5)) << f.name;
  EXPECT_EQ(handler->linears, linears) << f.name;
  EXPECT_EQ(handler->dequantized, dequantized) << f.name;
}

TEST(CodesHandlers, GiveTheProductOfTheDecodedWeightInEachForm) {
  for (const Form& f : forms()) expect_decoded(f, 0.0123, 1, 0);
}

TEST(CodesHandlers, AreAskedToDequantizeForTheOtherForms) {
  const std::vector<Form> others = {
      {"x @ w", [](T w, T) { return at::matmul(input({3, 4}), w); }},
      {"mm(x, w)", [](T w, T) { return at::mm(input({3, 4}), w); }},
      {"w.t() @ x", [](T w, T) { return at::mm(w.t(), input({4, 3})); }},
      {"addmm(self, x, w)", [](T w, T) { return at::addmm(input({6}), input({3, 4}), w, 0.5, 2); }},
      {"addmv(self, w.t(), v)", [](T w, T b) { return at::addmv(input({6}), w.t(), b); }},
      {"linear(w, x)", [](T w, T) { return at::linear(w, input({3, 6})); }},
      {"embedding", [](T w, T) { return at::embedding(w, at::tensor({3, 0, 3}, on_hpu(at::kLong))); }},
  };
  for (const Form& f : others) expect_decoded(f, 0.02, 0, 1);
}

TEST(CodesHandlers, BetaZeroIgnoresNaN) {
  auto [w, bias] = weights();
  convert_to_codes(w, "layer", std::make_shared<CodesHandler>(0.02), 0.02);
  const at::Tensor nan = at::full({3, 4}, std::nan(""), on_hpu());
  EXPECT_FALSE(at::addmm(nan, input({3, 6}), w.t(), 0, 1).isnan().any().item<bool>());
}

TEST(CodesHandlers, AOneByOneWeightWorksEitherWay) {
  at::Tensor w = at::full({1, 1}, 3.0f, on_hpu());
  const auto handler = std::make_shared<CodesHandler>(1.0);
  convert_to_codes(w, "layer", handler, 1.0);
  const at::Tensor x = at::full({2, 1}, 2.0f, on_hpu());
  for (const auto& y : {at::linear(x, w), at::matmul(x, w.t()), at::mm(x, w), at::mm(w, x.t()).t()})
    EXPECT_TRUE(same_bits(y, at::full({2, 1}, 6.0f)));
  EXPECT_EQ(handler->linears, 4);
}

TEST(Slices, TellWhichRowsTheyAre) {
  auto [w, bias] = weights();
  const auto handler = std::make_shared<RecordingHandler>();
  runtime::tag_weight(w, "layer", handler);
  const at::Tensor x = input({3, 6});
  at::linear(x, w.narrow(0, 1, 2));
  for (const auto& part : w.chunk(2, 0)) at::linear(x, part);
  at::linear(x.narrow(1, 2, 3), w.narrow(1, 2, 3));
  ASSERT_EQ(handler->calls.size(), 4u);
  EXPECT_EQ(handler->calls[0].view.first_row, 1);
  EXPECT_EQ(handler->calls[0].view.rows, 2);
  EXPECT_FALSE(handler->calls[0].view.whole);
  EXPECT_EQ(handler->calls[2].view.first_row, 2);
  EXPECT_EQ(handler->calls[3].view.first_col, 2);
  EXPECT_EQ(handler->calls[3].view.cols, 3);
}

TEST(Slices, OfCodesThatNoHandlerCanBeToldAboutThrow) {
  auto [w, bias] = weights();
  convert_to_codes(w, "layer", std::make_shared<CodesHandler>(0.02), 0.02);
  EXPECT_REFUSED(at::linear(input({3, 6}), w.slice(0, 0, 4, 2)), "aten::", "module 'layer'", "E4M3 per tensor",
                 "whole rows");
  EXPECT_REFUSED(at::matmul(input({6}), w[0]), "aten::", "module 'layer'");
}

TEST(Embedding, OfAWatchedWeightRunsAsIfNobodyWatched) {
  auto [w, bias] = weights();
  const at::Tensor ids = at::tensor({1, 2, 1}, on_hpu(at::kLong)), expected = at::embedding(w, ids);
  runtime::tag_weight(w, "embed", std::make_shared<RecordingHandler>());
  EXPECT_TRUE(same_bits(at::embedding(w, ids), expected));
}

}  // namespace
}  // namespace fp8::test
