// SPDX-License-Identifier: Apache-2.0
// Every form in which a 2-D weight meets a product: handled exactly once, at the outermost op; a watcher changes no
// bit, and sees x, w, y with y = x . w^T + bias; a handler that owns codes gives the product with the decoded weight.

#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using at::Tensor;
using T = const at::Tensor&;
using Ints = std::vector<std::int64_t>;

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

// Convolutions with a tagged weight: conv1d/2d/3d, padding modes, _convolution as traces have it, and the transposed
// ones.

struct ConvolutionForm {
  const char* name;
  Ints weight;
  std::function<at::Tensor(T)> run;
  Ints stride, padding, dilation;
  std::int64_t groups = 1;
  bool transposed = false;
};

at::Tensor images(at::IntArrayRef sizes) {
  torch::manual_seed(29);
  return at::randn(sizes, on_hpu());
}

const std::vector<ConvolutionForm>& convolutions() {
  static const std::vector<ConvolutionForm> all = [] {
    std::vector<ConvolutionForm> f;
    const auto add = [&](const char* name, const Ints& weight, const Ints& stride, const Ints& padding,
                         const Ints& dilation, const std::function<at::Tensor(T)>& run, std::int64_t groups = 1,
                         bool transposed = false) {
      f.push_back({name, weight, run, stride, padding, dilation, groups, transposed});
    };
    add("conv1d", {4, 3, 3}, {2}, {1}, {1}, [](T w) { return at::conv1d(images({2, 3, 9}), w, images({4}), 2, 1); });
    add("conv1d of kernel 1", {4, 3, 1}, {1}, {0}, {1}, [](T w) { return at::conv1d(images({2, 3, 9}), w); });
    add("conv1d without batch", {4, 3, 3}, {1}, {0}, {1}, [](T w) { return at::conv1d(images({3, 9}), w); });
    add("conv2d", {4, 3, 3, 3}, {2, 1}, {1, 0}, {1, 2},
        [](T w) { return at::conv2d(images({2, 3, 8, 7}), w, {}, {2, 1}, {1, 0}, {1, 2}); });
    add("conv2d, one value for both", {4, 3, 3, 3}, {2, 2}, {1, 1}, {1, 1},
        [](T w) { return at::conv2d(images({2, 3, 8, 7}), w, {}, 2, 1); });
    add(
        "conv2d in groups", {6, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1},
        [](T w) { return at::conv2d(images({2, 3, 8, 7}), w, images({6}), 1, 1, 1, 3); }, 3);
    add("conv3d", {2, 3, 2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1},
        [](T w) { return at::conv3d(images({1, 3, 4, 5, 6}), w, images({2})); });
    add("conv2d valid", {4, 3, 3, 3}, {1, 1}, {0, 0}, {1, 1},
        [](T w) { return at::conv2d(images({2, 3, 8, 7}), w, {}, 1, "valid"); });
    add("conv2d same", {4, 3, 3, 5}, {1, 1}, {2, 4}, {2, 2},
        [](T w) { return at::conv2d(images({2, 3, 8, 7}), w, {}, 1, "same", 2); });
    add("conv1d same, even kernel", {4, 3, 4}, {1}, {1}, {1},
        [](T w) { return at::conv1d(images({2, 3, 9}), w, {}, 1, "same"); });
    add("_convolution", {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, [](T w) {
      return at::_convolution(images({2, 3, 8, 7}), w, images({4}), {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1, false,
                              false, true, true);
    });
    add("_convolution, old form", {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, [](T w) {
      return at::_convolution(images({2, 3, 8, 7}), w, images({4}), {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1, false,
                              false, true);
    });
    add("convolution", {4, 3, 3, 3}, {1, 1}, {0, 0}, {1, 1},
        [](T w) { return at::convolution(images({2, 3, 8, 7}), w, {}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1); });
    add(
        "conv_transpose1d", {3, 4, 3}, {2}, {1}, {1},
        [](T w) { return at::conv_transpose1d(images({2, 3, 5}), w, images({4}), 2, 1, 1); }, 1, true);
    add(
        "conv_transpose3d", {3, 2, 2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1},
        [](T w) { return at::conv_transpose3d(images({1, 3, 3, 4, 5}), w); }, 1, true);
    add(
        "conv_transpose2d", {3, 4, 3, 3}, {2, 2}, {0, 0}, {1, 1},
        [](T w) { return at::conv_transpose2d(images({2, 3, 5, 5}), w, images({4}), 2); }, 1, true);
    add("F::conv2d", {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, [](T w) {
      return torch::nn::functional::conv2d(images({2, 3, 8, 7}), w,
                                           torch::nn::functional::Conv2dFuncOptions().padding(torch::kSame));
    });
    return f;
  }();
  return all;
}

at::Tensor weight(const ConvolutionForm& f) {
  torch::manual_seed(7);
  return at::randn(f.weight, on_hpu());
}

void expect_watched_once(const ConvolutionForm& f) {
  const at::Tensor expected = f.run(weight(f)), w = weight(f);
  const auto handler = std::make_shared<RecordingHandler>();
  runtime::tag_weight(w, "conv", handler);
  EXPECT_TRUE(same_bits(f.run(w), expected)) << f.name;
  ASSERT_EQ(handler->calls.size(), 1u) << f.name;
  EXPECT_EQ(handler->calls[0].op, "convolution") << f.name;
  EXPECT_TRUE(same_bits(handler->calls[0].w, w)) << f.name;
  EXPECT_TRUE(same_bits(handler->calls[0].y.reshape(expected.sizes()), expected)) << f.name;
  EXPECT_EQ(handler->stride, f.stride) << f.name;
  EXPECT_EQ(handler->padding, f.padding) << f.name;
  EXPECT_EQ(handler->dilation, f.dilation) << f.name;
  EXPECT_EQ(handler->groups, f.groups) << f.name;
  EXPECT_EQ(handler->transposed, f.transposed) << f.name;
}

TEST(ConvolutionWatchers, SeeEachFormOnceAndChangeNoBit) {
  in_every_mode([] {
    for (const ConvolutionForm& f : convolutions()) expect_watched_once(f);
  });
}

TEST(ConvolutionCodes, GiveTheConvolutionOfTheDecodedWeight) {
  for (const ConvolutionForm& f : convolutions()) {
    at::Tensor w = weight(f);
    const auto handler = std::make_shared<CodesHandler>(0.02);
    const at::Tensor expected = f.run(hpu((w.cpu() / 0.02).to(at::kFloat8_e4m3fn).to(at::kFloat) * 0.02));
    convert_to_codes(w, "conv", handler, 0.02);
    const at::Tensor y = f.run(w);
    EXPECT_EQ(y.sizes(), expected.sizes()) << f.name;
    EXPECT_TRUE(at::allclose(y.cpu(), expected.cpu(), 1e-5, 1e-5)) << f.name;
    EXPECT_EQ(handler->convolutions + handler->dequantized, 1) << f.name;
    EXPECT_EQ(handler->dequantized, f.transposed ? 1 : 0) << f.name;
  }
}

TEST(ConvolutionCodes, APartOfTheWeightThrows) {
  at::Tensor w = at::ones({4, 3, 3, 3}, on_hpu()), one = at::ones({4, 3, 1}, on_hpu());
  convert_to_codes(w, "conv", std::make_shared<CodesHandler>(1.0), 1.0);
  convert_to_codes(one, "conv", std::make_shared<CodesHandler>(1.0), 1.0);
  EXPECT_REFUSED(at::conv2d(images({2, 3, 8, 7}), w.narrow(0, 0, 2)), "aten::conv2d", "module 'conv'",
                 "expected all of it");
  EXPECT_REFUSED(at::conv1d(images({2, 3, 9}), one.narrow(0, 0, 2)), "aten::conv1d", "module 'conv'",
                 "expected all of it");
}

TEST(ConvolutionModules, TrainUnderAWatcherAsWithout) {
  const auto gradient = [](bool tagged) {
    torch::manual_seed(3);
    torch::nn::Conv2d conv = hpu(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)));
    const auto handler = std::make_shared<RecordingHandler>();
    if (tagged) runtime::tag_weight(conv->weight, "conv", handler);
    conv(images({2, 3, 8, 7})).square().sum().backward();
    EXPECT_EQ(handler->calls.size(), tagged ? 1u : 0u);
    return conv->weight.grad();
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
}

// embedding_bag with a tagged weight: bags of decoded rows, in all modes, against the CPU's op on the decoded weight.

constexpr double kScale = 0.05;

/// A converted weight [9, 6] and its decoded values on the CPU.
struct Converted {
  Tensor weight, decoded;
  std::shared_ptr<CodesHandler> handler = std::make_shared<CodesHandler>(kScale);
  Converted() {
    torch::manual_seed(5);
    weight = at::randn({9, 6}, on_hpu());
    decoded = (weight.cpu() / kScale).to(at::kFloat8_e4m3fn).to(at::kFloat) * kScale;
    convert_to_codes(weight, "bags", handler, kScale);
  }
};

const Tensor kIndices = at::tensor({7, 2, 7, 5, 0, 8, 2, 2}), kOffsets = at::tensor({0, 3, 3, 6});  // bag 1 is empty

void expect_same(const std::tuple<Tensor, Tensor, Tensor, Tensor>& got,
                 const std::tuple<Tensor, Tensor, Tensor, Tensor>& expected, const std::string& what) {
  EXPECT_TRUE(std::get<0>(got).device().is_hpu());
  EXPECT_TRUE(same_bits(std::get<0>(got), std::get<0>(expected))) << what;
  EXPECT_TRUE(same_bits(std::get<2>(got), std::get<2>(expected))) << what << ": bag sizes";
  EXPECT_TRUE(same_bits(std::get<3>(got), std::get<3>(expected))) << what << ": rows of the maxima";
}

void expect_modes() {
  for (const std::int64_t mode : {0, 1, 2})
    for (const auto type : {at::kLong, at::kInt}) {
      const Converted c;
      const Tensor indices = kIndices.to(type), offsets = kOffsets.to(type);
      expect_same(at::embedding_bag(c.weight, hpu(indices), hpu(offsets), false, mode),
                  at::embedding_bag(c.decoded, indices, offsets, false, mode), "mode " + std::to_string(mode));
      EXPECT_EQ(c.handler->dequantized, 1);
    }
}

TEST(EmbeddingBagCodes, SumMeanAndMaxOfDecodedRows) { in_every_mode(expect_modes); }

TEST(EmbeddingBagCodes, PaddingWeightsAndLastOffset) {
  const Converted c;
  for (const std::int64_t padding : {2, 7, 3, -2}) {  // 3 is not asked for, -2 is 7
    for (const std::int64_t mode : {0, 1, 2})
      expect_same(at::embedding_bag(c.weight, hpu(kIndices), hpu(kOffsets), false, mode, false, {}, false, padding),
                  at::embedding_bag(c.decoded, kIndices, kOffsets, false, mode, false, {}, false, padding),
                  "padding " + std::to_string(padding));
  }
  const Tensor weights = at::rand({8});
  expect_same(at::embedding_bag(c.weight, hpu(kIndices), hpu(kOffsets), false, 0, false, hpu(weights)),
              at::embedding_bag(c.decoded, kIndices, kOffsets, false, 0, false, weights), "per_sample_weights");
  const Tensor with_last = at::tensor({0, 3, 3, 6, 8});
  expect_same(at::embedding_bag(c.weight, hpu(kIndices), hpu(with_last), false, 0, false, {}, true),
              at::embedding_bag(c.decoded, kIndices, with_last, false, 0, false, {}, true), "include_last_offset");
}

TEST(EmbeddingBagCodes, ModulesAndEmptyBags) {
  for (const bool bags_of_nothing : {false, true}) {
    torch::manual_seed(5);
    torch::nn::EmbeddingBag bag = hpu(torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(9, 6).mode(torch::kSum)));
    const Tensor decoded = (bag->weight.detach().cpu() / kScale).to(at::kFloat8_e4m3fn).to(at::kFloat) * kScale;
    convert_to_codes(bag->weight, "bags", std::make_shared<CodesHandler>(kScale), kScale);
    const Tensor ids = bags_of_nothing ? at::empty({0}, at::kLong) : at::tensor({1, 8, 8, 3}).view({2, 2});
    const Tensor offsets = bags_of_nothing ? at::zeros({3}, at::kLong) : Tensor();
    const Tensor y = bag->forward(hpu(ids), offsets.defined() ? hpu(offsets) : offsets);
    if (bags_of_nothing) {
      EXPECT_TRUE(same_bits(y, at::zeros({3, 6})));
    } else {
      EXPECT_TRUE(same_bits(y, at::embedding(decoded, ids).sum(1)));
    }
  }
}

TEST(EmbeddingBagCodes, BadIndicesThrow) {
  const Converted c;
  EXPECT_NE(error_of([&] { at::embedding_bag(c.weight, hpu(at::tensor({9})), hpu(at::tensor({0}))); }), "");
  EXPECT_NE(error_of([&] { at::embedding_bag(c.weight, hpu(at::tensor({-1})), hpu(at::tensor({0}))); }), "");
  EXPECT_REFUSED(at::embedding_bag(c.weight, hpu(kIndices), hpu(kOffsets), false, 0, false, {}, false, 9),
                 "padding_idx must be within");
  EXPECT_REFUSED(at::embedding_bag(c.weight.t(), hpu(at::tensor({1})), hpu(at::tensor({0}))), "embedding_bag",
                 "module 'bags'", "whole rows");
}

TEST(EmbeddingBagWatchers, ChangeNoBitAndTrain) {
  const auto run = [](bool tagged) {
    torch::manual_seed(5);
    Tensor w = at::randn({9, 6}, on_hpu()).set_requires_grad(true);
    if (tagged) runtime::tag_weight(w, "bags", std::make_shared<RecordingHandler>());
    const Tensor y = std::get<0>(at::embedding_bag(w, hpu(kIndices), hpu(kOffsets)));
    y.square().sum().backward();
    return std::pair(y.detach(), w.grad());
  };
  const auto [y, grad] = run(true);
  const auto [expected_y, expected_grad] = run(false);
  EXPECT_TRUE(same_bits(y, expected_y));
  EXPECT_TRUE(same_bits(grad, expected_grad));
}

}  // namespace
}  // namespace fp8::test
