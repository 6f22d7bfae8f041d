// SPDX-License-Identifier: Apache-2.0
// Convolutions with a tagged weight: conv1d/2d/3d, padding modes, _convolution as traces have it, and the transposed
// ones.
#include <functional>

#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using Ints = std::vector<std::int64_t>;
using T = const at::Tensor&;

struct Form {
  const char* name;
  Ints weight;
  std::function<at::Tensor(T)> run;
  Ints stride, padding, dilation;
  std::int64_t groups = 1;
  bool transposed = false;
};

at::Tensor input(at::IntArrayRef sizes) {
  torch::manual_seed(29);
  return at::randn(sizes, on_hpu());
}

const std::vector<Form>& forms() {
  static const std::vector<Form> all = [] {
    std::vector<Form> f;
    const auto add = [&](const char* name, const Ints& weight, const Ints& stride, const Ints& padding,
                         const Ints& dilation, const std::function<at::Tensor(T)>& run, std::int64_t groups = 1,
                         bool transposed = false) {
      f.push_back({name, weight, run, stride, padding, dilation, groups, transposed});
    };
    add("conv1d", {4, 3, 3}, {2}, {1}, {1}, [](T w) { return at::conv1d(input({2, 3, 9}), w, input({4}), 2, 1); });
    add("conv1d of kernel 1", {4, 3, 1}, {1}, {0}, {1}, [](T w) { return at::conv1d(input({2, 3, 9}), w); });
    add("conv1d without batch", {4, 3, 3}, {1}, {0}, {1}, [](T w) { return at::conv1d(input({3, 9}), w); });
    add("conv2d", {4, 3, 3, 3}, {2, 1}, {1, 0}, {1, 2},
        [](T w) { return at::conv2d(input({2, 3, 8, 7}), w, {}, {2, 1}, {1, 0}, {1, 2}); });
    add("conv2d, one value for both", {4, 3, 3, 3}, {2, 2}, {1, 1}, {1, 1},
        [](T w) { return at::conv2d(input({2, 3, 8, 7}), w, {}, 2, 1); });
    add(
        "conv2d in groups", {6, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1},
        [](T w) { return at::conv2d(input({2, 3, 8, 7}), w, input({6}), 1, 1, 1, 3); }, 3);
    add("conv3d", {2, 3, 2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1},
        [](T w) { return at::conv3d(input({1, 3, 4, 5, 6}), w, input({2})); });
    add("conv2d valid", {4, 3, 3, 3}, {1, 1}, {0, 0}, {1, 1},
        [](T w) { return at::conv2d(input({2, 3, 8, 7}), w, {}, 1, "valid"); });
    add("conv2d same", {4, 3, 3, 5}, {1, 1}, {2, 4}, {2, 2},
        [](T w) { return at::conv2d(input({2, 3, 8, 7}), w, {}, 1, "same", 2); });
    add("conv1d same, even kernel", {4, 3, 4}, {1}, {1}, {1},
        [](T w) { return at::conv1d(input({2, 3, 9}), w, {}, 1, "same"); });
    add("_convolution", {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, [](T w) {
      return at::_convolution(input({2, 3, 8, 7}), w, input({4}), {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1, false,
                              false, true, true);
    });
    add("_convolution, old form", {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, [](T w) {
      return at::_convolution(input({2, 3, 8, 7}), w, input({4}), {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1, false,
                              false, true);
    });
    add("convolution", {4, 3, 3, 3}, {1, 1}, {0, 0}, {1, 1},
        [](T w) { return at::convolution(input({2, 3, 8, 7}), w, {}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1); });
    add(
        "conv_transpose1d", {3, 4, 3}, {2}, {1}, {1},
        [](T w) { return at::conv_transpose1d(input({2, 3, 5}), w, input({4}), 2, 1, 1); }, 1, true);
    add(
        "conv_transpose3d", {3, 2, 2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1},
        [](T w) { return at::conv_transpose3d(input({1, 3, 3, 4, 5}), w); }, 1, true);
    add(
        "conv_transpose2d", {3, 4, 3, 3}, {2, 2}, {0, 0}, {1, 1},
        [](T w) { return at::conv_transpose2d(input({2, 3, 5, 5}), w, input({4}), 2); }, 1, true);
    add("F::conv2d", {4, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, [](T w) {
      return torch::nn::functional::conv2d(input({2, 3, 8, 7}), w,
                                           torch::nn::functional::Conv2dFuncOptions().padding(torch::kSame));
    });
    return f;
  }();
  return all;
}

at::Tensor weight(const Form& f) {
  torch::manual_seed(7);
  return at::randn(f.weight, on_hpu());
}

void expect_watched_once(const Form& f) {
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
    for (const Form& f : forms()) expect_watched_once(f);
  });
}

TEST(ConvolutionCodes, GiveTheConvolutionOfTheDecodedWeight) {
  for (const Form& f : forms()) {
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
  EXPECT_REFUSED(at::conv2d(input({2, 3, 8, 7}), w.narrow(0, 0, 2)), "aten::conv2d", "module 'conv'",
                 "expected all of it");
  EXPECT_REFUSED(at::conv1d(input({2, 3, 9}), one.narrow(0, 0, 2)), "aten::conv1d", "module 'conv'",
                 "expected all of it");
}

TEST(ConvolutionModules, TrainUnderAWatcherAsWithout) {
  const auto gradient = [](bool tagged) {
    torch::manual_seed(3);
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, 3).padding(1));
    conv->to(kHpu);
    const auto handler = std::make_shared<RecordingHandler>();
    if (tagged) runtime::tag_weight(conv->weight, "conv", handler);
    conv(input({2, 3, 8, 7})).square().sum().backward();
    EXPECT_EQ(handler->calls.size(), tagged ? 1u : 0u);
    return conv->weight.grad();
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
}

}  // namespace
}  // namespace fp8::test
