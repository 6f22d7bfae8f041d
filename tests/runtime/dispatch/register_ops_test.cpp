// SPDX-License-Identifier: Apache-2.0
// Registration: every op that could use the fallback has it by name, autocast falls through, TorchScript runs.
#include <ATen/autocast_mode.h>
#include <torch/script.h>

#include "fp8/runtime/dispatch/operand_devices.h"
#include "support/hpu_test.h"
#include "support/scoped_variable.h"

namespace fp8::test {
namespace {

using at::Tensor;

bool has_hpu_kernel(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).hasKernelForDispatchKey(c10::DispatchKey::HPU);
}

TEST(Registration, StructuredAndFactoryOpsHaveKernelsOfTheirOwn) {
  for (const char* name : {"aten::add", "aten::mul", "aten::sub", "aten::div"})
    EXPECT_TRUE(has_hpu_kernel(name, "Tensor")) << name;
  for (const char* name : {"aten::relu", "aten::native_layer_norm", "aten::_softmax", "aten::convolution_backward",
                           "aten::native_batch_norm", "aten::cat"})
    EXPECT_TRUE(has_hpu_kernel(name)) << name;
  EXPECT_TRUE(has_hpu_kernel("aten::empty", "memory_format"));
}

TEST(Registration, ViewsAndCompositesStayUpstreams) {
  for (const char* name : {"aten::t", "aten::detach", "aten::unsqueeze", "aten::contiguous", "aten::reshape",
                           "aten::layer_norm", "aten::einsum"})
    EXPECT_FALSE(has_hpu_kernel(name)) << name;
}

TEST(Autocast, EnablingItBreaksNoOp) {
  at::autocast::set_autocast_enabled(at::kHPU, true);
  at::autocast::set_autocast_dtype(at::kHPU, at::kBFloat16);
  const std::string text = error_of([] {
    at::Tensor a = at::ones({4, 4}, on_hpu());
    a.fill_(2).add_(1);
    const at::Tensor y = at::softmax(at::matmul(a, a), -1) + at::cat({a.narrow(0, 0, 2), a.narrow(0, 2, 2)});
    EXPECT_EQ(y.sum().item<float>(), 3.0f * 16 + 4);
    torch::nn::Linear layer = hpu(torch::nn::Linear(4, 2));
    layer(a).sum().backward();
    const at::Tensor q = at::randn({1, 2, 4, 8}, on_hpu());
    at::scaled_dot_product_attention(q, q, q);
  });
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kHPU, false);
  EXPECT_EQ(text, "");
}

TEST(Autocast, NewTensorsOnHpuCarryTheKey) {
  EXPECT_TRUE(at::ones({2}, on_hpu()).key_set().has(c10::DispatchKey::AutocastHPU));
  EXPECT_TRUE((at::ones({2}, on_hpu()) + 1).key_set().has(c10::DispatchKey::AutocastHPU));
}

/// linear + relu with a loop and a branch, from source.
torch::jit::Module scripted() {
  torch::jit::Module m("m");
  m.register_attribute("training", c10::BoolType::get(), true);  // without it nothing would be frozen
  torch::manual_seed(2);
  m.register_parameter("w", at::randn({4, 4}), false);
  m.register_parameter("b", at::randn({4}), false);
  m.define(R"(
def forward(self, x, steps: int):
    for i in range(steps):
        x = torch.linear(x, self.w, self.b)
        if bool(x.sum() > 0):
            x = torch.relu(x)
        else:
            x = torch.tanh(x) + torch.zeros_like(x)
    return x
)");
  return m;
}

TEST(TorchScript, RunsFiveTimesAndAgrees) {
  torch::jit::Module cpu = scripted(), dev = scripted();
  dev.to(kHpu);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor x = at::randn({3, 4});
    const at::Tensor y = dev.forward({hpu(x), 3}).toTensor();
    EXPECT_EQ(y.device(), kHpu);
    EXPECT_TRUE(same_bits(y, cpu.forward({x, 3}).toTensor())) << i;
  }
}

TEST(TorchScript, FreezesAndOptimizes) {
  torch::jit::Module cpu = scripted(), dev = scripted();
  dev.to(kHpu);
  dev.eval();
  const at::Tensor x = at::randn({3, 4});
  const at::Tensor expected = cpu.forward({x, 2}).toTensor();
  const c10::InferenceMode inference;
  torch::jit::Module frozen = torch::jit::freeze(dev);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(same_bits(frozen.forward({hpu(x), 2}).toTensor(), expected)) << i;
  torch::jit::Module optimized = torch::jit::optimize_for_inference(dev);
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(at::allclose(optimized.forward({hpu(x), 2}).toTensor().cpu(), expected, 1e-5, 1e-6)) << i;
}

TEST(TorchScript, TrainsInTheProfilingExecutor) {
  const auto gradient = [](at::Device device) {
    torch::jit::Module m = scripted();
    m.to(device);
    for (const auto& p : m.parameters()) p.set_requires_grad(true);
    torch::manual_seed(4);
    for (int i = 0; i < 4; ++i) m.forward({at::randn({3, 4}).to(device), 2}).toTensor().sum().backward();
    return m.attr("w").toTensor().grad().cpu();
  };
  EXPECT_TRUE(at::allclose(gradient(kHpu), gradient(at::kCPU), 1e-5, 1e-6));
}

TEST(TorchScript, SavesAndLoadsToADevice) {
  torch::jit::Module m = scripted();
  std::stringstream stream;
  m.to(kHpu);
  m.save(stream);
  torch::jit::Module back = torch::jit::load(stream, kHpu);
  const at::Tensor x = at::randn({2, 4}, on_hpu());
  EXPECT_EQ(back.attr("w").toTensor().device(), kHpu);
  EXPECT_TRUE(same_bits(back.forward({x, 1}).toTensor(), m.forward({x, 1}).toTensor()));
}

TEST(TorchScript, CompiledFunctionsMakeTensorsOnHpu) {
  const auto unit = torch::jit::compile(R"(
def f(n: int, device: Device):
    a = torch.arange(n, device=device)
    return torch.stack([a, a * 2]).sum(0), a.device
)");
  const auto result = unit->run_method("f", 4, kHpu).toTuple();
  EXPECT_TRUE(same_bits(result->elements()[0].toTensor(), at::tensor({0, 3, 6, 9}, at::kLong)));
  EXPECT_EQ(result->elements()[1].toDevice(), kHpu);
}

TEST(TorchScript, AnErrorInsideNamesTheOp) {
  torch::jit::Module m = scripted();
  m.to(kHpu);
  EXPECT_REFUSED(m.forward({at::randn({3, 4}), 1}), "same device", "hpu:0 and cpu!");
}

// One device for all operands: what the fallback refuses, what it lets pass, and what FP8_HPU_MOVE_HOST_OPERANDS=1
// moves. Results that are no dense tensors, conj and neg bits of results, and named refusals of float8.

constexpr const char* kMove = "FP8_HPU_MOVE_HOST_OPERANDS";

/// Counts warnings while it lives.
struct Warnings final : c10::WarningHandler {
  std::vector<std::string> seen;
  c10::WarningUtils::WarningHandlerGuard guard{this};
  void process(const c10::Warning& warning) override { seen.push_back(warning.msg()); }
};

TEST(HostOperands, AreMovedWithOneWarningWhereTheFlagSaysSo) {
  const ScopedVariable flag(kMove, "1");
  Warnings warnings;
  const Tensor a = at::arange(6, at::kFloat).view({2, 3}), b = at::randn({2, 3}),
               indices = at::tensor({1, 0}, at::kLong);
  const Tensor x = hpu(a);
  EXPECT_TRUE(same_bits(x + b, a + b));
  EXPECT_TRUE(same_bits(b + x, a + b));
  EXPECT_EQ((b + x).device(), kHpu);
  EXPECT_TRUE(same_bits(at::cat({x, b}), at::cat({a, b})));
  EXPECT_TRUE(same_bits(at::mm(x, b.t()), at::mm(a, b.t())));
  EXPECT_TRUE(same_bits(x.index_select(0, indices), a.index_select(0, indices)));
  EXPECT_TRUE(same_bits(at::embedding(x, indices), at::embedding(a, indices)));
  EXPECT_TRUE(same_bits(at::where(x > 1, b, x), at::where(a > 1, b, a)));
  Tensor in_place = x.clone();
  in_place.add_(b);
  EXPECT_TRUE(same_bits(in_place, a + b));
  EXPECT_EQ(b.device(), at::Device(at::kCPU)) << "the caller's tensor stays where it was";
  std::size_t moves = 0;
  for (const auto& text : warnings.seen) moves += text.find("FP8_HPU_MOVE_HOST_OPERANDS") != std::string::npos;
  EXPECT_EQ(moves, 1u);
  ASSERT_FALSE(warnings.seen.empty());
  EXPECT_THAT(warnings.seen[0], HasSubstr("[aten::add]"));
}

TEST(HostOperands, ThatNeedAGradientStayRefused) {
  const ScopedVariable flag(kMove, "1");
  const Tensor b = at::randn({3}).requires_grad_(true), x = at::ones({3}, on_hpu());
  EXPECT_REFUSED(x * b, "hpu:0 and cpu!", "aten::mul", "gradient", ".to(\"hpu\")");
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(same_bits(x * b, b.detach()));
}

TEST(HostOperands, ThatWouldBeWrittenStayRefused) {
  const ScopedVariable flag(kMove, "1");
  const Tensor x = at::ones({3}, on_hpu());
  Tensor host = at::zeros({3});
  EXPECT_REFUSED(at::add_out(host, x, x), "hpu:0 and cpu!", "aten::add", "written");
  EXPECT_REFUSED(host.add_(x), "hpu:0 and cpu!", "written");
  EXPECT_TRUE(same_bits(host, at::zeros({3})));
}

TEST(HostOperands, AreRefusedWithoutTheFlagAndTheMessageNamesIt) {
  const Tensor x = at::ones({3}, on_hpu()), b = at::ones({3});
  for (const char* value : {"0", ""}) {
    const ScopedVariable flag(kMove, value);
    EXPECT_REFUSED(at::add(x, b), "hpu:0 and cpu!", "aten::add", "FP8_HPU_MOVE_HOST_OPERANDS=1");
  }
  const ScopedVariable flag(kMove, "yes");
  EXPECT_REFUSED(at::add(x, b), "FP8_HPU_MOVE_HOST_OPERANDS: found 'yes', allowed: 0, 1");
}

TEST(HostOperands, AnIndexOnTheHostIsWelcomeButNoHostTensorUnderADeviceIndex) {
  const Tensor host = at::arange(6, at::kFloat).view({3, 2}), rows = at::tensor({2, 0}, at::kLong);
  EXPECT_TRUE(same_bits(hpu(host).index({rows}), host.index({rows})));
  EXPECT_REFUSED(host.index({hpu(rows)}), "hpu:0 and cpu!");
  Tensor x = hpu(host);
  EXPECT_REFUSED(x.index_put_({rows}, at::zeros({2, 2})), "hpu:0 and cpu!");
  EXPECT_TRUE(same_bits(x, host));
}

TEST(SparseResults, AreRefusedByName) {
  const Tensor x = at::eye(3, on_hpu());
  EXPECT_REFUSED(x.to_sparse(), "aten::", "dense tensors only", "Sparse", ".cpu()");
  EXPECT_REFUSED(x.to_sparse_csr(), "aten::", "dense tensors only");
  EXPECT_REFUSED(x.to_mkldnn(), "aten::", "dense tensors only");
  EXPECT_EQ(x.cpu().to_sparse()._nnz(), 3);
}

TEST(OutResults, KeepConjAndNegBits) {
  torch::manual_seed(1);
  const Tensor a = at::randn({4, 4}, at::kComplexFloat), b = at::randn({4, 2}, at::kComplexFloat);
  const auto [lu, pivots] = at::linalg_lu_factor(a);
  for (const bool adjoint : {false, true})
    for (const bool left : {true, false}) {
      const Tensor rhs = left ? b : b.t().contiguous();
      const Tensor expected = at::linalg_lu_solve(lu, pivots, rhs, left, adjoint);
      Tensor out = at::empty({0}, on_hpu(at::kComplexFloat));
      at::linalg_lu_solve_out(out, hpu(lu), hpu(pivots), hpu(rhs), left, adjoint);
      EXPECT_TRUE(at::allclose(out.cpu().resolve_conj(), expected.resolve_conj(), 1e-4, 1e-5)) << adjoint << left;
      EXPECT_TRUE(at::allclose(at::linalg_lu_solve(hpu(lu), hpu(pivots), hpu(rhs), left, adjoint).cpu().resolve_conj(),
                               expected.resolve_conj(), 1e-4, 1e-5));
    }
  // Every out= op sees the bits that `out` comes with, and leaves those that its kernel set.
  Tensor conj = at::zeros({2}, on_hpu(at::kComplexFloat)).conj(), values = at::randn({2}, at::kComplexFloat);
  at::add_out(conj, hpu(values), hpu(values));
  EXPECT_TRUE(same_bits(conj, values + values));
}

TEST(Float8, WhatHasNoKernelIsRefusedWithTheOpsNameAndAWayOut) {
  const Tensor x = at::ones({2, 4}, on_hpu()).to(at::kFloat8_e4m3fn);
  const auto refused = [](const char* op, const std::function<void()>& run) {
    EXPECT_TRUE(throws_with({op, "Float8_e4m3fn", "hpu::cast_from_fp8", "fp8::values_dtype(weight)"}, run)) << op;
  };
  refused("aten::exp", [&] { at::exp(x); });
  refused("aten::sqrt", [&] { at::sqrt(x); });
  refused("aten::_softmax", [&] { at::softmax(x, -1); });
  refused("aten::mean", [&] { at::mean(x); });
  refused("aten::native_layer_norm", [&] { at::layer_norm(x, {4}); });
}

// Five training steps on hpu and on the CPU: losses, gradients and weights are equal bit for bit, because the fallback
// runs the very kernels that the CPU runs, on the same bytes.

/// Embedding, LayerNorm, causal SDPA, GELU, Dropout, Linear.
struct TextNetImpl : torch::nn::Module {
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, up{nullptr}, down{nullptr}, head{nullptr};
  torch::nn::Dropout dropout{nullptr};

  TextNetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(20, 16));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    qkv = register_module("qkv", torch::nn::Linear(torch::nn::LinearOptions(16, 48).bias(false)));
    up = register_module("up", torch::nn::Linear(16, 40));
    down = register_module("down", torch::nn::Linear(40, 16));
    head = register_module("head", torch::nn::Linear(16, 20));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
  }

  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor h = embedding(ids);
    const auto parts = qkv(norm(h)).view({ids.size(0), ids.size(1), 3, 2, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor attended =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    h = h + attended.transpose(1, 2).reshape({ids.size(0), ids.size(1), 16});
    h = h + dropout(down(at::gelu(up(norm(h)))));
    return at::log_softmax(head(h), -1);
  }

  at::Tensor loss(const at::Tensor& ids) {
    return at::nll_loss(forward(ids).flatten(0, 1), at::roll(ids, 1, 1).flatten());
  }
  static at::Tensor batch() { return at::randint(0, 20, {3, 9}, at::kLong); }
};
TORCH_MODULE(TextNet);

/// Conv2d, BatchNorm2d, max pooling, a plain matmul, softmax.
struct ImageNetImpl : torch::nn::Module {
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  at::Tensor mix;

  ImageNetImpl() {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    second =
        register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).stride(2).groups(2).bias(false)));
    mix = register_parameter("mix", at::randn({8, 10}) * 0.3);
  }

  at::Tensor loss(const at::Tensor& images) {
    const at::Tensor h = at::max_pool2d(at::relu(norm(first(images))), 2);
    const at::Tensor logits = at::matmul(at::relu(second(h)).mean({2, 3}), mix);
    const at::Tensor target = at::arange(images.size(0), images.options().dtype(at::kLong)) % 10;
    return at::nll_loss(at::softmax(logits, -1).log(), target);
  }
  static at::Tensor batch() { return at::randn({5, 3, 12, 12}); }
};
TORCH_MODULE(ImageNet);

struct Trace {
  std::vector<at::Tensor>
      values;  ///< per step: loss, clipped norm, then each parameter's gradient and value; buffers at the end
};

template <typename Net, typename Optimizer, typename Options>
Trace train(at::Device device, const Options& options) {
  torch::manual_seed(11);
  Net net;
  const at::Tensor batch = Net::ContainedType::batch();
  net->to(device);
  const at::Tensor input = batch.to(device);
  Optimizer optimizer(net->parameters(), options);
  torch::manual_seed(12);
  Trace trace;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = net->loss(input);
    loss.backward();
    trace.values.push_back(loss.detach().cpu());
    trace.values.push_back(at::tensor(torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5)));
    optimizer.step();
    for (const auto& p : net->parameters()) {
      EXPECT_EQ(p.device(), device);
      EXPECT_EQ(p.grad().device(), device);
      trace.values.push_back(p.grad().detach().cpu().clone());
      trace.values.push_back(p.detach().cpu().clone());
    }
  }
  for (const auto& b : net->buffers()) trace.values.push_back(b.cpu().clone());
  return trace;
}

template <typename Net, typename Optimizer, typename Options>
void expect_equal(const Options& options) {
  const Trace device = train<Net, Optimizer>(kHpu, options), cpu = train<Net, Optimizer>(at::kCPU, options);
  ASSERT_EQ(device.values.size(), cpu.values.size());
  for (std::size_t i = 0; i < cpu.values.size(); ++i)
    EXPECT_TRUE(same_bits(device.values[i], cpu.values[i])) << "value " << i;
  EXPECT_FALSE(same_bits(cpu.values[0], cpu.values[cpu.values.size() / 5])) << "it did not learn";
}

TEST(Training, TextModelWithAdamEqualsTheCpu) {
  expect_equal<TextNet, torch::optim::Adam>(torch::optim::AdamOptions(1e-2));
}
TEST(Training, TextModelWithAdamWEqualsTheCpu) {
  expect_equal<TextNet, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}
TEST(Training, ImageModelWithAdamEqualsTheCpu) {
  expect_equal<ImageNet, torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true));
}
TEST(Training, ImageModelWithAdamWEqualsTheCpu) {
  expect_equal<ImageNet, torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
}
TEST(Training, ImageModelWithSgdMomentumEqualsTheCpu) {
  expect_equal<ImageNet, torch::optim::SGD>(torch::optim::SGDOptions(1e-2).momentum(0.9).nesterov(true));
}

TEST(Training, DoubleBackwardEqualsTheCpu) {
  const auto second_order = [](at::Device device) {
    torch::manual_seed(5);
    torch::nn::Linear layer(6, 3);
    const at::Tensor x = at::randn({4, 6});
    layer->to(device);
    const auto first =
        torch::autograd::grad({layer(x.to(device)).tanh().sum()}, {layer->weight}, {}, true, /*create_graph=*/true);
    first[0].square().sum().backward();
    return layer->weight.grad().cpu();
  };
  EXPECT_TRUE(same_bits(second_order(kHpu), second_order(at::kCPU)));
}

TEST(Training, RecurrentLayersRunAndAgree) {
  const auto run = [](at::Device device) {
    torch::manual_seed(5);
    torch::nn::GRU gru(torch::nn::GRUOptions(6, 5).num_layers(2).batch_first(true));
    const at::Tensor x = at::randn({2, 7, 6});
    gru->to(device);
    const auto [y, h] = gru->forward(x.to(device));
    y.sum().backward();
    return at::cat({y.flatten(), h.flatten(), gru->parameters()[0].grad().flatten()}).detach().cpu();
  };
  EXPECT_TRUE(
      at::allclose(run(kHpu), run(at::kCPU), 1e-5, 1e-6));  // the CPU may take another path for recurrent layers
}

}  // namespace
}  // namespace fp8::test
