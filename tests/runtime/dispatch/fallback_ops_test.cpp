// SPDX-License-Identifier: Apache-2.0
// Ops of many kinds through the fallback, on hpu and on the CPU: same dtype, sizes and bits, and the result is on hpu.

#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using Tensors = std::vector<at::Tensor>;

using In = const Tensors&;

Tensors inputs() {
  torch::manual_seed(21);
  return {at::randn({4, 6}), at::randn({6, 5}), at::randint(0, 4, {7}, at::kLong), at::randn({2, 3, 8, 8}),
          at::rand({4, 6}) > 0.5};
}

/// One op on fresh inputs; in-place ones return what they changed.
void agree(const char* name, const std::function<Tensors(In)>& run) {
  const Tensors cpu = inputs();
  Tensors on_device;
  for (const auto& t : cpu) on_device.push_back(hpu(t));
  torch::manual_seed(3);
  const Tensors expected = run(cpu);
  torch::manual_seed(3);
  const Tensors got = run(on_device);
  ASSERT_EQ(got.size(), expected.size()) << name;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].device(), kHpu) << name;
    EXPECT_TRUE(same_bits(got[i], expected[i])) << name << ", result " << i;
  }
}

Tensors three(const std::tuple<at::Tensor, at::Tensor, at::Tensor>& t) {
  return {std::get<0>(t), std::get<1>(t), std::get<2>(t)};
}
Tensors two(const std::tuple<at::Tensor, at::Tensor>& t) { return {std::get<0>(t), std::get<1>(t)}; }

TEST(FallbackOps, PointwiseAndReductions) {
  agree("add", [](In x) { return Tensors{x[0] + x[0]}; });
  agree("promotion", [](In x) { return Tensors{x[0] + x[0].to(at::kHalf), x[2] + 1.5, x[2] / 2}; });
  agree("where", [](In x) { return Tensors{at::where(x[4], x[0], x[0] * 2)}; });
  agree("masked_fill_", [](In x) { return Tensors{x[0].masked_fill_(x[4], -1)}; });
  agree("masked_select", [](In x) { return Tensors{x[0].masked_select(x[4]), x[4].nonzero()}; });
  agree("sum", [](In x) { return Tensors{x[0].sum(), x[0].sum(1), x[0].mean(), x[0].norm(), x[0].std()}; });
  agree("max", [](In x) { return two(x[0].max(1)); });
  agree("topk", [](In x) { return two(x[0].topk(3)); });
  agree("cumsum", [](In x) { return Tensors{x[0].cumsum(1), x[0].flip(0), x[0].roll(2, 1)}; });
  agree("clamp", [](In x) { return Tensors{x[0].clamp(-0.5, 0.5), x[0].clamp_(0.0), x[0].abs()}; });
  agree("any", [](In x) { return Tensors{x[4].any(), x[4].all(1), x[0].isnan(), x[0].isfinite()}; });
  agree("addcdiv", [](In x) { return Tensors{at::addcdiv(x[0], x[0], x[0] + 3, 0.5), at::addcmul(x[0], x[0], x[0])}; });
  agree("lerp", [](In x) { return Tensors{at::lerp(x[0], x[0] * 2, 0.3), at::pow(x[0].abs(), 1.5)}; });
  agree("bitwise",
        [](In x) { return Tensors{x[2].bitwise_and(1), at::bitwise_left_shift(x[2], 2), x[4].logical_not()}; });
}

TEST(FallbackOps, ShapesAndIndexing) {
  agree("cat",
        [](In x) { return Tensors{at::cat({x[0], x[0]}, 1), at::stack({x[0], x[0]}), at::hstack({x[0], x[0]})}; });
  agree("views", [](In x) {
    return Tensors{x[0].t(), x[0].view({2, 12}), x[3].permute({0, 2, 3, 1}), x[0].expand({3, 4, 6}),
                   x[0].unfold(1, 2, 2)};
  });
  agree("reshape copies", [](In x) {
    return Tensors{x[0].t().reshape({24}), x[0].t().contiguous(), x[3].contiguous(at::MemoryFormat::ChannelsLast)};
  });
  agree("split", [](In x) { return x[0].split(4, 1); });
  agree("chunk", [](In x) { return x[0].chunk(3, 1); });
  agree("unbind", [](In x) { return x[0].unbind(0); });
  agree("index_select",
        [](In x) { return Tensors{x[0].index_select(0, x[2]), x[0].gather(0, x[2].view({1, 7}).narrow(1, 0, 6))}; });
  agree("scatter", [](In x) {
    return Tensors{x[0].scatter_add(0, x[2].view({1, 7}).narrow(1, 0, 6), x[0]), x[0].index_fill(0, x[2], 9)};
  });
  agree("embedding", [](In x) { return Tensors{at::embedding(x[0], x[2]), at::one_hot(x[2], 4)}; });
  agree("tril", [](In x) { return Tensors{x[0].tril(), x[0].triu(1), at::eye(3, x[0].options()), at::diag(x[0])}; });
  agree("pad", [](In x) {
    return Tensors{at::constant_pad_nd(x[0], {1, 2}, 7), at::reflection_pad2d(x[3], {1, 1, 1, 1}), x[0].repeat({2, 2})};
  });
  agree("repeat_interleave", [](In x) { return Tensors{x[2].repeat_interleave(2), x[0].tile({2, 1})}; });
  agree("factories", [](In x) {
    return Tensors{at::zeros_like(x[0]), at::full({2, 2}, 3, x[0].options()), at::linspace(0, 1, 5, x[0].options()),
                   at::arange(5, x[0].options())};
  });
  agree("unique", [](In x) { return three(at::_unique2(x[2], true, true, true)); });
  agree("searchsorted",
        [](In x) { return Tensors{at::bucketize(x[0], at::arange(3, x[0].options())), at::histc(x[0], 4, -2, 2)}; });
}

TEST(FallbackOps, Networks) {
  agree("mm", [](In x) {
    return Tensors{at::mm(x[0], x[1]), at::matmul(x[0], x[1].select(1, 2)), at::addmm(x[1][0], x[0], x[1])};
  });
  agree("bmm", [](In x) { return Tensors{at::bmm(x[3][0], x[3][1]), at::einsum("bchw,bdhw->bcd", {x[3], x[3]})}; });
  agree("softmax",
        [](In x) { return Tensors{at::softmax(x[0], 1), at::log_softmax(x[0], 0), at::logsumexp(x[0], 1)}; });
  agree("activations", [](In x) {
    return Tensors{at::gelu(x[0]), at::silu(x[0]), at::gelu(x[0], "tanh"), at::elu(x[0]), at::hardswish(x[0])};
  });
  agree("layer_norm",
        [](In x) { return Tensors{at::layer_norm(x[0], {6}, x[0][0], x[0][1]), at::rms_norm(x[0], {6}, x[0][0])}; });
  agree("group_norm", [](In x) {
    return Tensors{at::group_norm(x[3], 3), at::instance_norm(x[3], {}, {}, {}, {}, true, 0.1, 1e-5, false)};
  });
  agree("pool", [](In x) {
    return Tensors{at::max_pool2d(x[3], 2), at::avg_pool2d(x[3], 3), at::adaptive_avg_pool2d(x[3], {2, 2})};
  });
  agree("interpolate", [](In x) {
    return Tensors{at::upsample_bilinear2d(x[3], {16, 16}, false), at::upsample_nearest2d(x[3], {4, 4})};
  });
  agree("losses", [](In x) {
    return Tensors{at::mse_loss(x[0], x[0] * 2), at::cross_entropy_loss(x[0], x[2].narrow(0, 0, 4)),
                   at::kl_div(x[0], x[0])};
  });
  agree("dropout", [](In x) {
    return Tensors{at::dropout(x[0], 0.5, true), at::bernoulli(x[4].to(at::kFloat)), at::multinomial(x[0].abs(), 2)};
  });
  agree("linalg", [](In x) {
    return Tensors{at::linalg_inv(at::mm(x[0], x[0].t()) + 5 * at::eye(4, x[0].options())),
                   at::linalg_vector_norm(x[0])};
  });
  agree("fft", [](In x) { return Tensors{at::fft_rfft(x[0]), at::fft_irfft(at::fft_rfft(x[0]))}; });
  agree("conv", [](In x) {
    return Tensors{at::conv2d(x[3], at::ones({4, 3, 3, 3}, x[3].options()), {}, 2, 1),
                   at::conv_transpose2d(x[3], at::ones({3, 2, 2, 2}, x[3].options()))};
  });
}

TEST(FallbackOps, FusedOptimizers) {
  agree("_fused_adamw_", [](In x) {
    Tensors p{x[0].clone()}, g{x[0] * 2}, m{at::zeros_like(x[0])}, v{at::zeros_like(x[0])},
        step{at::ones({}, x[0].options())};
    at::_fused_adamw_(p, g, m, v, {}, step, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
    return Tensors{p[0], m[0], v[0]};
  });
}

TEST(FallbackOps, ComplexConjAndNegBits) {
  agree("complex", [](In x) {
    const at::Tensor z = at::complex(x[0], x[0] * 2);
    EXPECT_TRUE(z.conj().is_conj());
    EXPECT_TRUE(at::imag(z.conj()).is_neg());
    return Tensors{z.conj() * z,        z.conj().clone(), at::imag(z.conj()) + 1, z.conj().resolve_conj(),
                   at::view_as_real(z), z.abs(),          at::mm(z, z.t().conj())};
  });
  at::Tensor z = hpu(at::complex(at::ones({2}), at::ones({2})));
  z.conj().mul_(2);
  EXPECT_TRUE(same_bits(z, at::complex(at::full({2}, 2.0f), at::full({2}, 2.0f))));
  at::imag(z.conj()).fill_(5);  // writing through conj and neg bits
  EXPECT_TRUE(same_bits(at::view_as_real(z), at::tensor({2., -5., 2., -5.}, at::kFloat).view({2, 2})));
}

TEST(FallbackOps, Float8Types) {
  for (const auto type :
       {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz, at::kFloat8_e8m0fnu}) {
    const at::Tensor cpu = at::tensor({1., 2., 0.5, 4., 0.25, 64.}, at::kFloat).view({2, 3}).to(type), dev = hpu(cpu);
    EXPECT_EQ(dev.scalar_type(), type);
    EXPECT_TRUE(same_bits(dev, cpu));
    EXPECT_TRUE(same_bits(dev.to(at::kFloat), cpu.to(at::kFloat)));
    EXPECT_TRUE(same_bits(dev.t().contiguous(), cpu.t().contiguous()));
    EXPECT_TRUE(same_bits(at::cat({dev, dev}), at::cat({cpu, cpu})));
    EXPECT_TRUE(same_bits(at::empty_like(dev).copy_(dev), cpu));
    EXPECT_EQ(dev.view(at::kByte).sum().item<std::int64_t>(), cpu.view(at::kByte).sum().item<std::int64_t>());
  }
}

// ---- what the CPU has no kernel for

TEST(DeviceOps, HistcCountsIntegersExactly) {
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    const at::Tensor x = at::tensor({0, 1, 1, 2, 3, 5, 8, 13, 21, 34}, at::kLong).to(type).to(kHpu);
    EXPECT_TRUE(same_bits(at::histc(x, 5, 0, 10), at::tensor({3, 2, 1, 0, 1}, at::kLong).to(type))) << type;
    EXPECT_TRUE(same_bits(at::histc(x, 2), at::tensor({8, 2}, at::kLong).to(type)))
        << "the tensor's own bounds: 13 below 17, 34 in the last";
    at::Tensor out = at::empty({0}, on_hpu(type));
    EXPECT_TRUE(same_bits(at::histc_out(out, x, 5, 0, 10), at::tensor({3, 2, 1, 0, 1}, at::kLong).to(type)));
  }
  const std::int64_t huge = std::int64_t{1} << 62;  // beyond what f64 tells apart
  EXPECT_TRUE(same_bits(at::histc(hpu(at::tensor({huge, huge + 1, huge + 2, huge + 2}, at::kLong)), 3),
                        at::tensor({1, 1, 2}, at::kLong)));
  EXPECT_TRUE(same_bits(at::histc(hpu(at::full({4}, 7, at::kInt)), 2), at::tensor({0, 4}, at::kInt))) << "6 to 8";
  EXPECT_TRUE(same_bits(at::histc(hpu(at::full({0}, 7, at::kInt)), 2), at::zeros({2}, at::kInt)));
  const at::Tensor f = hpu(at::linspace(-3, 3, 50));
  EXPECT_TRUE(same_bits(at::histc(f, 7, -2, 2), at::histc(f.cpu(), 7, -2, 2)));
  const at::Tensor many = at::zeros({300}, on_hpu(at::kByte));
  EXPECT_REFUSED(at::histc(many, 2), "aten::histc", "300", "Byte");
  EXPECT_REFUSED(at::histc(many, 2, 0.5, 3), "aten::histc", "whole min", "0.5");
  EXPECT_REFUSED(at::histc(many, 0), "aten::histc", "bins", "0");
}

at::Tensor random(at::IntArrayRef sizes, at::ScalarType type) { return at::randn(sizes).to(type).to(kHpu); }

/// Each group's product alone, in f64.
std::vector<at::Tensor> grouped(const at::Tensor& a, const at::Tensor& b, const std::vector<std::int64_t>& ends) {
  std::vector<at::Tensor> products;
  std::int64_t begin = 0;
  for (std::size_t g = 0; g < ends.size(); begin = ends[g++]) {
    const auto i = static_cast<std::int64_t>(g), n = ends[g] - begin;
    const at::Tensor x = a.dim() == 3 ? a[i] : b.dim() == 3 ? a.narrow(0, begin, n) : a.narrow(1, begin, n);
    const at::Tensor y = b.dim() == 3 ? b[i] : a.dim() == 3 ? b.narrow(1, begin, n) : b.narrow(0, begin, n);
    products.push_back(at::mm(x.cpu().to(at::kDouble), y.cpu().to(at::kDouble)));
  }
  return products;
}

TEST(DeviceOps, GroupedMmTakesEveryLayout) {
  torch::manual_seed(4);
  const std::vector<std::int64_t> ends = {5, 5, 12};
  const at::Tensor offs = hpu(at::tensor(ends, at::kInt));
  const std::pair<at::ScalarType, double> roundings[] = {
      {at::kFloat, 1e-6}, {at::kBFloat16, 0x1p-8}, {at::kHalf, 0x1p-11}};
  for (const auto& [type, rounding] : roundings) {
    const auto near = [rounding = rounding, type = type](const at::Tensor& y, const at::Tensor& exact) {
      return y.is_hpu() && y.scalar_type() == type && at::allclose(y.cpu().to(at::kDouble), exact, rounding, 4e-6);
    };
    for (const std::int64_t k : {16, 13}) {  // rows of 13 elements are no multiple of 16 bytes
      const at::Tensor rows = random({12, k}, type), experts = random({3, k, 7}, type), stack = random({3, 6, k}, type),
                       flat = random({k, 12}, type);
      EXPECT_TRUE(near(at::_grouped_mm(rows, experts, offs), at::cat(grouped(rows, experts, ends)))) << type << k;
      EXPECT_TRUE(near(at::_grouped_mm(stack, flat, offs), at::cat(grouped(stack, flat, ends), 1))) << type << k;
      EXPECT_TRUE(
          near(at::_grouped_mm(stack, experts), at::bmm(stack.cpu().to(at::kDouble), experts.cpu().to(at::kDouble))))
          << type << k;
      const at::Tensor wide = random({k, 12}, type), tall = random({12, 7}, type);
      EXPECT_TRUE(near(at::_grouped_mm(wide, tall, offs), at::stack(grouped(wide, tall, ends)))) << type << k;
    }
  }
}

TEST(DeviceOps, GroupedMmLearnsFromASum) {
  torch::manual_seed(5);
  const at::Tensor x = random({12, 8}, at::kFloat).requires_grad_(true),
                   w = random({2, 8, 4}, at::kFloat).requires_grad_(true);
  at::_grouped_mm(x, w, hpu(at::tensor({4, 12}, at::kInt))).sum().backward();  // the gradient is an expanded 1
  const at::Tensor ones = at::ones({12, 4}, on_hpu());
  const at::Tensor expected =
      at::cat({at::mm(ones.narrow(0, 0, 4), w[0].t()), at::mm(ones.narrow(0, 4, 8), w[1].t())}).detach();
  EXPECT_TRUE(at::allclose(x.grad(), expected, 1e-6, 1e-6));
  EXPECT_TRUE(at::allclose(w.grad()[0], at::mm(x.detach().narrow(0, 0, 4).t(), ones.narrow(0, 0, 4)), 1e-6, 1e-6));
}

TEST(DeviceOps, RecordStreamHasNothingToDo) {
  at::Tensor x = at::ones({3}, on_hpu());
  x.record_stream(c10::Stream(c10::Stream::DEFAULT, x.device()));
  EXPECT_REFUSED(x.record_stream(c10::Stream(c10::Stream::DEFAULT, at::Device(at::kCPU))), "record_stream", "hpu:0",
                 "cpu");
}

TEST(FallbackOps, ListsOfOptionalTensorsAsTorchScriptBuildsThem) {
  const Tensors cpu = inputs();
  const at::Tensor x = cpu[0], rows = at::arange(3, at::kLong).unsqueeze(1), columns = at::arange(2, at::kLong);
  // An equal type, but not the object that c10 compares with.
  c10::impl::GenericList list(c10::OptionalType::create(c10::TensorType::get()));
  list.push_back(hpu(rows));
  list.push_back(hpu(columns));
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::index", "Tensor");
  torch::jit::Stack stack = {hpu(x), list};
  op.callBoxed(stack);
  EXPECT_TRUE(same_bits(stack.back().toTensor(), x.index({rows, columns})));
  c10::impl::GenericList some(c10::OptionalType::create(c10::TensorType::get()));
  some.push_back(c10::IValue());
  some.push_back(hpu(columns));
  stack = {hpu(x), some};
  op.callBoxed(stack);
  EXPECT_TRUE(same_bits(stack.back().toTensor(), x.index({torch::indexing::Slice(), columns})));
}

TEST(FallbackOps, ZeroSizeAndZeroDim) {
  agree("zero size", [](In x) {
    const at::Tensor e = x[0].narrow(0, 0, 0);
    return Tensors{e + 1,
                   e.sum(),
                   e.sum(0),
                   at::mm(e, x[1]),
                   at::cat({e, x[0]}),
                   at::relu(e),
                   e.clone(),
                   at::linear(e, x[1].t()),
                   e.t().contiguous()};
  });
  agree("zero dim", [](In x) {
    const at::Tensor s = x[0].sum();
    return Tensors{s + 1,    s * s,       s.view({1}),    s.expand({3}), s.clone(), at::stack({s, s}),
                   x[0] * s, s.sigmoid(), s.to(at::kLong)};
  });
  EXPECT_EQ(at::ones({}, on_hpu()).item<float>(), 1.0f);
}

}  // namespace
}  // namespace fp8::test
