// SPDX-License-Identifier: Apache-2.0
// What an operation costs on the device beyond its work: tensors of 16 elements, layers of 64 x 64.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "fp8/quant/model/convert.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "instructions/counted.h"

namespace {

at::Tensor ones(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::ones(sizes, at::dtype(type)).to(at::Device(at::kHPU, 0));
}

struct Data {
  at::Tensor x = ones({16}), bf16 = ones({16}, at::kBFloat16), rows = ones({4, 64}, at::kBFloat16);
  at::Tensor indices = ones({2}, at::kLong), table = ones({16, 64}, at::kBFloat16);
  at::Tensor cpu = at::ones({16});
  torch::nn::Linear plain{torch::nn::LinearOptions(64, 64)};
  torch::nn::Sequential converted{torch::nn::Linear(64, 64)};
  Data() {
    plain->to(at::Device(at::kHPU, 0), at::kBFloat16);
    converted->to(at::Device(at::kHPU, 0), at::kBFloat16);
    fp8::quant::convert(*converted, fp8::quant::PlanOptions{});
  }
};
Data& data() {
  static Data& all = *new Data;  // lives on: the device may end before static objects
  return all;
}

}  // namespace

FP8_COUNTED(add_on_cpu) { at::add(data().cpu, data().cpu); }
FP8_COUNTED(add) { at::add(data().x, data().x); }
FP8_COUNTED(add_in_place) { data().x.add_(1); }
FP8_COUNTED(mul) { at::mul(data().bf16, data().bf16); }
FP8_COUNTED(cat) { at::cat({data().x, data().x}); }
FP8_COUNTED(silu) { at::silu(data().bf16); }
FP8_COUNTED(softmax) { at::softmax(data().x, 0); }
FP8_COUNTED(embedding) { at::embedding(data().table, data().indices); }
FP8_COUNTED(to_f32) { data().bf16.to(at::kFloat); }
FP8_COUNTED(view) { data().rows.view({64, 4}); }
FP8_COUNTED(linear) { data().plain->forward(data().rows); }
FP8_COUNTED(linear_fp8) { data().converted->forward(data().rows); }

int main() {
  at::set_num_threads(1);
  fp8::kernels::set_num_threads(1);
  fp8::runtime::init();
  const at::NoGradGuard no_grad;
  fp8::test::run_counted_cases();
}
