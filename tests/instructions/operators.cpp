// SPDX-License-Identifier: Apache-2.0
// What an operation costs on the device beyond its work: tensors of 16 elements, layers of 64 x 64.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "fp8/quant/model/convert.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "instructions/counted.h"

namespace {

struct Operands {
  at::Tensor x, bf16, rows, indices, table;
  torch::nn::Linear linear{torch::nn::LinearOptions(64, 64)};
  explicit Operands(at::Device device) {
    const auto ones = [&](at::IntArrayRef sizes, at::ScalarType type) { return at::ones(sizes, type).to(device); };
    x = ones({16}, at::kFloat), bf16 = ones({16}, at::kBFloat16), rows = ones({4, 64}, at::kBFloat16);
    indices = ones({2}, at::kLong), table = ones({16, 64}, at::kBFloat16);
    linear->to(device, at::kBFloat16);
  }
};
/// Both live on: the device may end before static objects.
Operands& on_hpu() {
  static Operands& all = *new Operands(at::Device(at::kHPU, 0));
  return all;
}
Operands& on_cpu() {
  static Operands& all = *new Operands(at::Device(at::kCPU));
  return all;
}

torch::nn::Sequential& converted() {
  static auto& model = *[] {
    auto* made = new torch::nn::Sequential(torch::nn::Linear(64, 64));
    (*made)->to(at::Device(at::kHPU, 0), at::kBFloat16);
    fp8::quant::convert(**made, fp8::quant::PlanOptions{});
    return made;
  }();
  return model;
}

}  // namespace

// An operation on the device, and beside it on the CPU.
#define FP8_COUNTED_ON_BOTH(name, ...)                      \
  static void name##_of(const Operands& o) { __VA_ARGS__; } \
  FP8_COUNTED(name) { name##_of(on_hpu()); }                \
  FP8_COUNTED(name##_on_cpu) { name##_of(on_cpu()); }

FP8_COUNTED_ON_BOTH(add, at::add(o.x, o.x))
FP8_COUNTED_ON_BOTH(add_in_place, o.x.add_(1))
FP8_COUNTED_ON_BOTH(mul, at::mul(o.bf16, o.bf16))
FP8_COUNTED_ON_BOTH(cat, at::cat({o.x, o.x}))
FP8_COUNTED_ON_BOTH(silu, at::silu(o.bf16))
FP8_COUNTED_ON_BOTH(softmax, at::softmax(o.x, 0))
FP8_COUNTED_ON_BOTH(embedding, at::embedding(o.table, o.indices))
FP8_COUNTED_ON_BOTH(to_f32, o.bf16.to(at::kFloat))
FP8_COUNTED_ON_BOTH(view, o.rows.view({64, 4}))
FP8_COUNTED_ON_BOTH(linear, o.linear.ptr()->forward(o.rows))
FP8_COUNTED(linear_fp8) { converted()->forward(on_hpu().rows); }

int main() {
  at::set_num_threads(1);
  fp8::kernels::set_num_threads(1);
  fp8::runtime::init();
  const at::NoGradGuard no_grad;
  fp8::test::run_counted_cases();
}
