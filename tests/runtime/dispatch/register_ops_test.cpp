// SPDX-License-Identifier: Apache-2.0
// Registration: every op that could use the fallback has it by name, autocast falls through, TorchScript runs.
#include <ATen/autocast_mode.h>
#include <torch/script.h>

#include "support/hpu_test.h"

namespace fp8::test {
namespace {

bool has_hpu_kernel(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).hasKernelForDispatchKey(c10::DispatchKey::HPU);
}

TEST(Registration, StructuredAndFactoryOpsHaveKernelsOfTheirOwn) {
  for (const char* name : {"aten::add", "aten::mul", "aten::sub", "aten::div"})
    EXPECT_TRUE(has_hpu_kernel(name, "Tensor")) << name;
  for (const char* name : {"aten::relu", "aten::native_layer_norm", "aten::_softmax", "aten::convolution_backward",
                           "aten::native_batch_norm", "aten::cat"}) {
    EXPECT_TRUE(has_hpu_kernel(name)) << name;
  }
  EXPECT_TRUE(has_hpu_kernel("aten::empty", "memory_format"));
}

TEST(Registration, ViewsAndCompositesStayUpstreams) {
  for (const char* name : {"aten::t", "aten::detach", "aten::unsqueeze", "aten::contiguous", "aten::reshape",
                           "aten::layer_norm", "aten::einsum"}) {
    EXPECT_FALSE(has_hpu_kernel(name)) << name;
  }
}

TEST(Autocast, EnablingItBreaksNoOp) {
  at::autocast::set_autocast_enabled(at::kHPU, true);
  at::autocast::set_autocast_dtype(at::kHPU, at::kBFloat16);
  const std::string text = error_of([] {
    at::Tensor a = at::ones({4, 4}, on_hpu());
    a.fill_(2).add_(1);
    const at::Tensor y = at::softmax(at::matmul(a, a), -1) + at::cat({a.narrow(0, 0, 2), a.narrow(0, 2, 2)});
    EXPECT_EQ(y.sum().item<float>(), 3.0f * 16 + 4);
    torch::nn::Linear layer(4, 2);
    layer->to(kHpu);
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

}  // namespace
}  // namespace fp8::test
