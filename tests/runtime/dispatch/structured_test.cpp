// SPDX-License-Identifier: Apache-2.0
// The CPU's kernels on the device's memory against the CPU: any bits, sizes around those of vectors, several threads,
// and the calls that must not be taken for small ones.
#include <thread>

#include "fp8/runtime/dispatch/unboxed.h"
#include "runtime/dispatch/any_bits.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using T = const at::Tensor&;

const std::vector<std::function<at::Tensor(T)>>& unary_operations() {
  static const std::vector<std::function<at::Tensor(T)>> all = {
      [](T x) { return at::cos(x); },          [](T x) { return at::exp(x); },
      [](T x) { return at::rsqrt(x); },        [](T x) { return at::sigmoid(x); },
      [](T x) { return at::silu(x); },         [](T x) { return at::sin(x); },
      [](T x) { return at::sqrt(x); },         [](T x) { return at::tanh(x); },
      [](T x) { return at::gelu(x, "tanh"); }, [](T x) { return at::gelu(x); },
      [](T x) { return at::pow(x, 2); },       [](T x) { return at::pow(x, 3.5); },
      [](T x) { return at::softmax(x, -1); },  [](T x) { return at::log_softmax(x, -1); },
  };
  return all;
}

TEST(SmallUnary, GivesTheCpusBits) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t n : {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1001, 32768, 32769}) {
      for (const at::Tensor& x : {any_bits({n}, type), (at::randn({n}) * 3).to(type)}) {
        for (std::size_t i = 0; i < unary_operations().size(); ++i)
          EXPECT_TRUE(same_bits(unary_operations()[i](hpu(x)), unary_operations()[i](x)))
              << "op " << i << " of " << type << ", n " << n;
      }
    }
  }
}

TEST(SmallUnary, OtherFormsStayTheCpus) {
  const at::Tensor a = at::randn({6, 4}), x = hpu(a), image = at::randn({2, 3, 4, 4});
  for (std::size_t i = 0; i < unary_operations().size(); ++i) {
    const auto& op = unary_operations()[i];
    EXPECT_TRUE(same_bits(op(x.t()), op(a.t()))) << i;
    EXPECT_EQ(op(x.t()).strides(), op(a.t()).strides()) << i;
    EXPECT_TRUE(same_bits(op(x.narrow(0, 2, 3)), op(a.narrow(0, 2, 3)))) << i;
    EXPECT_TRUE(same_bits(op(x.select(0, 1).select(0, 1)), op(a.select(0, 1).select(0, 1)))) << i;
    EXPECT_TRUE(same_bits(op(x.to(at::kHalf)), op(a.to(at::kHalf)))) << i;
    EXPECT_TRUE(same_bits(op(at::_neg_view(x)), op(at::_neg_view(a)))) << i;
    EXPECT_EQ(op(x.slice(0, 0, 0)).sizes(), at::IntArrayRef({0, 4})) << i;
    const at::Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast);
    EXPECT_TRUE(same_bits(op(hpu(last)), op(last))) << i;
    EXPECT_EQ(op(hpu(last)).strides(), op(last).strides()) << i;
  }
  EXPECT_TRUE(same_bits(at::cos(hpu(at::arange(5))), at::cos(at::arange(5))));
}

TEST(SmallSoftmax, GivesTheCpusBitsAlongEveryDimension) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a =
        (at::randn({3, 5, 17, 2}) * 4).to(type).masked_fill(at::rand({3, 5, 17, 2}).lt(0.1), -INFINITY);
    for (const std::int64_t dim : {-4, -3, -2, -1, 0, 1, 2, 3}) {
      EXPECT_TRUE(same_bits(at::softmax(hpu(a), dim), at::softmax(a, dim))) << type << " along " << dim;
      EXPECT_TRUE(same_bits(at::log_softmax(hpu(a), dim), at::log_softmax(a, dim))) << type << " along " << dim;
    }
    EXPECT_TRUE(same_bits(at::softmax(hpu(a), -1, at::kFloat), at::softmax(a, -1, at::kFloat))) << type;
  }
  const at::Tensor x = at::ones({2, 3}, on_hpu());
  EXPECT_TRUE(throws_with({"Dimension out of range"}, [&] { at::softmax(x, 2); }));
}

TEST(SmallLayerNorm, GivesTheCpusBits) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = at::randn({3, 5, 17}).to(type), w = at::randn({5, 17}).to(type),
                     b = at::randn({5, 17}).to(type);
    const auto same = [&](const std::tuple<at::Tensor, at::Tensor, at::Tensor>& y,
                          const std::tuple<at::Tensor, at::Tensor, at::Tensor>& expected) {
      EXPECT_TRUE(same_bits(std::get<0>(y), std::get<0>(expected))) << type;
      EXPECT_TRUE(same_bits(std::get<1>(y), std::get<1>(expected))) << type;
      EXPECT_TRUE(same_bits(std::get<2>(y), std::get<2>(expected))) << type;
      EXPECT_TRUE(std::get<0>(y).is_hpu() && std::get<1>(y).is_hpu() && std::get<2>(y).is_hpu()) << type;
    };
    same(at::native_layer_norm(hpu(a), {5, 17}, hpu(w), hpu(b), 1e-5), at::native_layer_norm(a, {5, 17}, w, b, 1e-5));
    same(at::native_layer_norm(hpu(a), {17}, {}, {}, 1e-5), at::native_layer_norm(a, {17}, {}, {}, 1e-5));
    same(at::native_layer_norm(hpu(a), {17}, hpu(w)[0], {}, 1e-5), at::native_layer_norm(a, {17}, w[0], {}, 1e-5));
    const at::Tensor v = w[0].to(at::kFloat), u = b[0].to(at::kFloat);
    same(at::native_layer_norm(hpu(a), {17}, hpu(v), hpu(u), 1e-5), at::native_layer_norm(a, {17}, v, u, 1e-5));
    same(at::native_layer_norm(hpu(a).transpose(0, 1), {17}, hpu(v).to(type), {}, 1e-5),
         at::native_layer_norm(a.transpose(0, 1), {17}, v.to(type), {}, 1e-5));
  }
  const at::Tensor x = at::ones({2, 3}, on_hpu());
  EXPECT_TRUE(throws_with({"normalized_shape"}, [&] { at::native_layer_norm(x, {4}, {}, {}, 1e-5); }));
}

/// Each thread has iterators of its own.
TEST(SmallUnary, ThreadsDoNotMeet) {
  const at::Tensor a = at::randn({100}), b = at::randn({1000});
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (const at::Tensor& x : {a, b, a, b})
    threads.emplace_back([&wrong, x] {
      const at::Tensor y = hpu(x), expected = at::silu(x);
      for (int i = 0; i < 200; ++i) wrong += same_bits(at::silu(y), expected) ? 0 : 1;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace fp8::test
