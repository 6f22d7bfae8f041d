// SPDX-License-Identifier: Apache-2.0
// Kernels without a stack: the CPU's bits in the common case, the fallback's rules in all others.

#include "fp8/runtime/dispatch/unboxed.h"
#include "runtime/dispatch/any_bits.h"
#include "support/hpu_test.h"
#include "support/threads.h"

namespace fp8::test {
namespace {

using T = const at::Tensor&;

struct Op {
  const char* name;
  std::function<at::Tensor(T a, T b)> run;
};

/// All of the two tables (dispatch/register_ops.cpp, ops/cast/float8_math.cpp); a and b: [3, 5].
const std::vector<Op>& ops() {
  static const std::vector<Op> all = {
      {"_log_softmax", [](T a, T) { return at::_log_softmax(a, 1, false); }},
      {"_softmax", [](T a, T) { return at::_softmax(a, 1, false); }},
      {"_log_softmax_backward_data",
       [](T a, T b) { return at::_log_softmax_backward_data(a, at::log_softmax(b, 1), 1, b.scalar_type()); }},
      {"_softmax_backward_data",
       [](T a, T b) { return at::_softmax_backward_data(a, at::softmax(b, 1), 1, b.scalar_type()); }},
      {"abs", [](T a, T) { return at::abs(a); }},
      {"abs_", [](T a, T) { return a.clone().abs_(); }},
      {"add.Scalar", [](T a, T) { return at::add(a, 1.7); }},
      {"add.Tensor", [](T a, T b) { return at::add(a, b, 2); }},
      {"add_.Scalar", [](T a, T) { return a.clone().add_(3); }},
      {"add_.Tensor", [](T a, T b) { return a.clone().add_(b); }},
      {"arange", [](T a, T) { return a + at::arange(5, a.options().dtype(at::kLong)); }},
      {"arange.start", [](T a, T) { return a + at::arange(-2, 3, a.options().dtype(at::kLong)); }},
      {"argmax", [](T a, T) { return a * 0 + at::argmax(a, 1, true); }},
      {"cat", [](T a, T b) { return at::cat({a, b, a.narrow(0, 0, 1)}, 0); }},
      {"cos", [](T a, T) { return at::cos(a); }},
      {"div.Scalar", [](T a, T) { return at::div(a, 1.7); }},
      {"div.Tensor", [](T a, T b) { return at::div(a, b); }},
      {"div_.Scalar", [](T a, T) { return a.clone().div_(3); }},
      {"div_.Tensor", [](T a, T b) { return a.clone().div_(b); }},
      {"exp", [](T a, T) { return at::exp(a); }},
      {"fill_.Scalar", [](T a, T) { return a.clone().fill_(0.3); }},
      {"gather", [](T a, T) { return at::gather(a, 1, at::ones({3, 2}, a.options().dtype(at::kLong))); }},
      {"gelu", [](T a, T) { return at::gelu(a, "tanh"); }},
      {"gelu_backward", [](T a, T b) { return at::gelu_backward(a, b); }},
      {"index_select", [](T a, T) { return at::index_select(a, 1, at::arange(3, a.options().dtype(at::kLong))); }},
      {"masked_fill.Scalar", [](T a, T) { return at::masked_fill(a, a.gt(0), 0.3); }},
      {"mean.dim", [](T a, T) { return at::mean(a, {1}, true); }},
      {"mul.Scalar", [](T a, T) { return at::mul(a, 1.7); }},
      {"mul.Tensor", [](T a, T b) { return at::mul(a, b.t().contiguous().t()); }},
      {"mul_.Scalar", [](T a, T) { return a.clone().mul_(3); }},
      {"mul_.Tensor", [](T a, T b) { return a.clone().mul_(b); }},
      {"native_layer_norm", [](T a, T b) { return std::get<0>(at::native_layer_norm(a, {5}, b[0], b[1], 1e-5)); }},
      {"native_layer_norm_backward",
       [](T a, T b) {
         const auto [y, mean, rstd] = at::native_layer_norm(b, {5}, b[0], b[1], 1e-5);
         const at::Tensor none;
         const auto all = at::native_layer_norm_backward(a, b, {5}, mean, rstd, b[0], b[1], {true, true, true});
         const auto alone = at::native_layer_norm_backward(a, b, {5}, mean, rstd, none, none, {true, false, false});
         return std::get<0>(all) + std::get<1>(all) + std::get<2>(all) + std::get<0>(alone);
       }},
      {"neg", [](T a, T) { return at::neg(a); }},
      {"neg_", [](T a, T) { return a.clone().neg_(); }},
      {"pow.Tensor_Scalar", [](T a, T) { return at::pow(a, 2); }},
      {"relu", [](T a, T) { return at::relu(a); }},
      {"relu_", [](T a, T) { return a.clone().relu_(); }},
      {"rsqrt", [](T a, T) { return at::rsqrt(a.abs()); }},
      {"sigmoid", [](T a, T) { return at::sigmoid(a); }},
      {"silu", [](T a, T) { return at::silu(a); }},
      {"sin", [](T a, T) { return at::sin(a); }},
      {"sqrt", [](T a, T) { return at::sqrt(a.abs()); }},
      {"sub.Scalar", [](T a, T) { return at::sub(a, 1.7); }},
      {"sub.Tensor", [](T a, T b) { return at::sub(a, b); }},
      {"sub_.Scalar", [](T a, T) { return a.clone().sub_(3); }},
      {"sub_.Tensor", [](T a, T b) { return a.clone().sub_(b); }},
      {"sum.dim_IntList", [](T a, T) { return at::sum(a, {1}, true); }},
      {"tanh", [](T a, T) { return at::tanh(a); }},
      {"tanh_backward", [](T a, T b) { return at::tanh_backward(a, at::tanh(b)); }},
      {"threshold_backward", [](T a, T b) { return at::threshold_backward(a, b, 0); }},
      {"zero_", [](T a, T) { return a.clone().zero_(); }},
      {"where.self", [](T a, T b) { return at::where(a.gt(0), a, b); }},
  };
  return all;
}

TEST(Unboxed, EveryOneOfTheTableIsTriedHere) {
  std::size_t of_fallback = 0;
  for (const Op& op : ops()) of_fallback += runtime::has_unboxed_kernel(std::string("aten::") + op.name) ? 1 : 0;
  EXPECT_EQ(of_fallback, 32u);
  EXPECT_EQ(ops().size(), 32u + 21u);
  EXPECT_FALSE(runtime::has_unboxed_kernel("aten::mean"));
}

TEST(Unboxed, GivesTheCpusBitsAndItsGradients) {
  for (const Op& op : ops())
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      at::Tensor a = at::randn({3, 5}).to(dtype), b = at::randn({3, 5}).to(dtype);
      at::Tensor x = hpu(a), y = hpu(b);
      EXPECT_TRUE(same_bits(op.run(x, y), op.run(a, b))) << op.name;
      for (auto* t : {&a, &b, &x, &y}) t->set_requires_grad(true);
      const at::Tensor result = op.run(x, y);
      EXPECT_TRUE(result.device().is_hpu() && result.requires_grad()) << op.name;
      result.sum().backward();
      op.run(a, b).sum().backward();
      // Of some the derivative is one formula on the CPU and several operations elsewhere.
      const double eps = dtype == at::kDouble ? 0x1p-50 : dtype == at::kFloat ? 0x1p-21 : 0x1p-6;
      EXPECT_TRUE(at::allclose(x.grad().cpu(), a.grad(), eps, eps)) << op.name;
      const c10::InferenceMode inference;
      EXPECT_TRUE(op.run(hpu(a), hpu(b)).is_inference()) << op.name;
    }
}

TEST(Unboxed, FillsAsTheCpuDoes) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kBool, at::kFloat8_e4m3fn})
    for (const c10::Scalar& value : {c10::Scalar(3), c10::Scalar(true), c10::Scalar(0.75), c10::Scalar(-0.0)}) {
      const at::Tensor host = at::zeros({3, 5}, dtype), device = host.to(kHpu);
      const auto part = [](const at::Tensor& t) { return t.dim() == 2 ? t.select(1, 1) : t; };
      EXPECT_TRUE(at::Tensor(device).fill_(value).is_same(device));
      EXPECT_TRUE(same_bits(device, at::Tensor(host).fill_(value))) << dtype << " " << value;
      part(device).fill_(1), part(host).fill_(1);
      EXPECT_TRUE(same_bits(device, host)) << dtype << " " << value;
    }
  at::Tensor number = at::scalar_tensor(1, on_hpu()), none = at::empty({0}, on_hpu()),
             longs = at::ones({2}, on_hpu(at::kLong));
  EXPECT_EQ(number.fill_(2).item<float>(), 2);
  EXPECT_EQ(none.fill_(2).numel(), 0);
  EXPECT_THROW(longs.fill_(1e30), std::exception);  // the CPU's words: without overflow
  EXPECT_EQ(longs.sum().item<std::int64_t>(), 2);
}

TEST(Unboxed, CountsAsTheCpuDoes) {
  const at::TensorOptions host;
  for (const auto& [start, end] :
       {std::pair<c10::Scalar, c10::Scalar>{0, 0}, {2, 7}, {-3, 1}, {0, 40000}, {0, 2.5}, {1.5, 4}})
    for (const std::optional<at::ScalarType> dtype :
         {std::optional<at::ScalarType>(), {at::kLong}, {at::kInt}, {at::kFloat}}) {
      const at::Tensor expected = at::arange(start, end, dtype, at::kStrided, at::kCPU, false),
                       found = at::arange(start, end, dtype, at::kStrided, at::Device(kHpu), false);
      EXPECT_TRUE(found.device().is_hpu() && found.scalar_type() == expected.scalar_type());
      EXPECT_TRUE(same_bits(found, expected)) << start << " to " << end;
    }
  const c10::Scalar far(std::numeric_limits<std::int64_t>::max());
  EXPECT_TRUE(
      same_bits(at::arange(far.toLong() - 2, far, on_hpu(at::kLong)), at::arange(far.toLong() - 2, far, at::kLong)));
  EXPECT_REFUSED(at::arange(3, 2, on_hpu()), "bound");
}

TEST(Unboxed, InPlaceGivesTheTensorBackAndWritesIntoViews) {
  const at::Tensor a = at::ones({4, 4}, on_hpu()), column = a.select(1, 2);
  const at::Tensor before = column;
  EXPECT_TRUE(at::Tensor(column).add_(at::ones({4}, on_hpu())).is_same(before));
  EXPECT_EQ(a.sum().item<float>(), 20.0f);
  EXPECT_REFUSED(at::Tensor(column).mul_(at::ones({2, 4}, on_hpu())), "broadcast");
}

TEST(Unboxed, NumbersAreWelcomeAndMatricesOfTheHostAreNot) {
  const at::Tensor a = at::ones({2, 2}, on_hpu()), host = at::ones({2, 2}), number = at::scalar_tensor(3.0);
  EXPECT_TRUE(at::equal((a + number).cpu(), host + 3));
  EXPECT_TRUE(at::equal((number * a * 2).cpu(), host * 6));
  EXPECT_TRUE(at::equal(at::where(a.gt(0), a, number).cpu(), host));
  EXPECT_REFUSED(a + host, "aten::add");
  EXPECT_REFUSED(at::cat({a, host}), "aten::cat");
  EXPECT_REFUSED(at::Tensor(a).mul_(host), "aten::mul");
}

TEST(Unboxed, CodesGoTheirOwnWay) {
  const at::Tensor codes = at::full({4, 4}, 1.5).to(at::kFloat8_e4m3fn).to(kHpu);
  EXPECT_EQ((codes + codes).scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ((codes + codes).to(at::kFloat).sum().item<float>(), 48.0f);
  EXPECT_REFUSED(at::silu(codes), "aten::silu", "Float8_e4m3fn");
  at::Tensor w = at::randn({4, 4}).to(kHpu);
  convert_to_codes(w, "proj", std::make_shared<CodesHandler>(0.02), 0.02);
  EXPECT_REFUSED(at::mul(at::ones({4, 4}, on_hpu()), w), "proj");
  EXPECT_REFUSED(at::cat({at::ones({4, 4}, on_hpu()), w}), "proj");
}

TEST(Unboxed, TheDevicesLimitHolds) {
  const auto before = runtime::memory_stats();
  const at::Tensor a = at::ones({1000}, on_hpu());
  runtime::set_memory_limit(runtime::memory_stats().InUse + 100);
  EXPECT_THROW(a + a, c10::OutOfMemoryError);
  EXPECT_THROW(at::silu(a), c10::OutOfMemoryError);
  runtime::set_memory_limit(before.Limit);
  EXPECT_EQ((a + a).sum().item<float>(), 2000.0f);
}

// The CPU's kernels on the device's memory against the CPU: any bits, sizes around those of vectors, several threads,
// and the calls that must not be taken for small ones.

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
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const std::int64_t n : {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1001, 32768, 32769}) {
      for (const at::Tensor& x : {any_bits({n}, type), (at::randn({n}) * 3).to(type)})
        for (std::size_t i = 0; i < unary_operations().size(); ++i)
          EXPECT_TRUE(same_bits(unary_operations()[i](hpu(x)), unary_operations()[i](x)))
              << "op " << i << " of " << type << ", n " << n;
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
  EXPECT_REFUSED(at::softmax(x, 2), "Dimension out of range");
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
  EXPECT_REFUSED(at::native_layer_norm(x, {4}, {}, {}, 1e-5), "normalized_shape");
}

TEST(SmallUnary, ThreadsDoNotMeet) {
  const at::Tensor a = at::randn({100}), b = at::randn({1000});
  std::atomic<int> wrong{0};
  on_threads(4, [&](int thread) {
    const at::Tensor x = thread % 2 == 0 ? a : b, y = hpu(x), expected = at::silu(x);
    for (int i = 0; i < 200; ++i) wrong += same_bits(at::silu(y), expected) ? 0 : 1;
  });
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace fp8::test
