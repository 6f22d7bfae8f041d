// SPDX-License-Identifier: Apache-2.0
// What an operation costs on the device beyond its work: tensors of 16 elements, layers of 64 x 64.
//
//   instructions_operators                 calls all, for ./check
//   instructions_operators --allocations   counts what each takes from the heap: on the device at most one more than on
//                                          the CPU, the Block (but for kMore). Exit code 1 if it is more.
#include <ATen/Parallel.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "fp8/quant/model/convert.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "instructions/allocations.h"
#include "instructions/counted.h"

namespace {

struct Operands {
  at::Tensor x, bf16, rows, column, square, batch, indices, table, positions, mask, heads;
  torch::nn::Linear linear{torch::nn::LinearOptions(64, 64)};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({64})};
  explicit Operands(at::Device device) {
    const auto ones = [&](at::IntArrayRef sizes, at::ScalarType type) { return at::ones(sizes, type).to(device); };
    x = ones({16}, at::kFloat), bf16 = ones({16}, at::kBFloat16), rows = ones({4, 64}, at::kBFloat16);
    square = ones({64, 64}, at::kBFloat16), batch = ones({2, 4, 4}, at::kFloat);
    heads = ones({1, 2, 4, 16}, at::kFloat);
    indices = ones({2}, at::kLong), table = ones({16, 64}, at::kBFloat16), positions = ones({2, 4}, at::kLong);
    mask = ones({16}, at::kBool), column = ones({4, 1}, at::kBFloat16);
    linear->to(device, at::kBFloat16), norm->to(device, at::kBFloat16);
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
FP8_COUNTED_ON_BOTH(sub, at::sub(o.x, o.x))
FP8_COUNTED_ON_BOTH(mul, at::mul(o.bf16, o.bf16))
FP8_COUNTED_ON_BOTH(mul_column, at::mul(o.rows, o.column))
FP8_COUNTED_ON_BOTH(mul_number, at::mul(o.x, 0.5))
FP8_COUNTED_ON_BOTH(neg, at::neg(o.x))
FP8_COUNTED_ON_BOTH(relu, at::relu(o.x))
FP8_COUNTED_ON_BOTH(sigmoid, at::sigmoid(o.x))
FP8_COUNTED_ON_BOTH(silu, at::silu(o.bf16))
FP8_COUNTED_ON_BOTH(gelu, at::gelu(o.x, "tanh"))
FP8_COUNTED_ON_BOTH(cos, at::cos(o.x))
FP8_COUNTED_ON_BOTH(rsqrt, at::rsqrt(o.x))
FP8_COUNTED_ON_BOTH(pow, at::pow(o.x, 2))
FP8_COUNTED_ON_BOTH(mean, at::mean(o.x, {-1}, true))
FP8_COUNTED_ON_BOTH(sum, at::sum(o.x, {-1}))
FP8_COUNTED_ON_BOTH(softmax, at::softmax(o.x, 0))
FP8_COUNTED_ON_BOTH(argmax, at::argmax(o.x, 0))
FP8_COUNTED_ON_BOTH(where, at::where(o.mask, o.x, o.x))
FP8_COUNTED_ON_BOTH(masked_fill, at::masked_fill(o.x, o.mask, 0))
FP8_COUNTED_ON_BOTH(cat, at::cat({o.x, o.x}))
FP8_COUNTED_ON_BOTH(zero, o.x.zero_())
FP8_COUNTED_ON_BOTH(fill, o.x.fill_(1))
FP8_COUNTED_ON_BOTH(copy, o.x.copy_(o.bf16))
FP8_COUNTED_ON_BOTH(to_f32, o.bf16.to(at::kFloat))
FP8_COUNTED_ON_BOTH(contiguous, o.batch.transpose(0, 1).contiguous())
FP8_COUNTED_ON_BOTH(embedding, at::embedding(o.table, o.indices))
FP8_COUNTED_ON_BOTH(index_select, at::index_select(o.table, 0, o.indices))
FP8_COUNTED_ON_BOTH(gather, at::gather(o.rows, 1, o.positions))
FP8_COUNTED_ON_BOTH(arange, at::arange(16, o.indices.options()))
FP8_COUNTED_ON_BOTH(view, o.rows.view({64, 4}))
FP8_COUNTED_ON_BOTH(reshape, o.rows.reshape({4, 4, 16}))
FP8_COUNTED_ON_BOTH(unsafe_view, at::_unsafe_view(o.rows, {4, 4, 16}))
FP8_COUNTED_ON_BOTH(transpose, o.rows.transpose(0, 1))
FP8_COUNTED_ON_BOTH(slice, o.rows.slice(0, 1, 3))
FP8_COUNTED_ON_BOTH(select, o.rows.select(0, 1))
FP8_COUNTED_ON_BOTH(unsqueeze, o.rows.unsqueeze(0))
FP8_COUNTED_ON_BOTH(expand, o.x.expand({4, 16}))
FP8_COUNTED_ON_BOTH(mm, at::mm(o.rows, o.square))
FP8_COUNTED_ON_BOTH(bmm, at::bmm(o.batch, o.batch))
FP8_COUNTED_ON_BOTH(matmul, at::matmul(o.rows, o.square))
FP8_COUNTED_ON_BOTH(linear, o.linear.ptr()->forward(o.rows))
FP8_COUNTED_ON_BOTH(layer_norm, o.norm.ptr()->forward(o.rows))
FP8_COUNTED_ON_BOTH(attention, at::scaled_dot_product_attention(o.heads, o.heads, o.heads))
FP8_COUNTED(linear_fp8) { converted()->forward(on_hpu().rows); }

/// Those that take more than one: a Block for each of several results.
const std::map<std::string, long> kMore = {{"attention", 2}, {"layer_norm", 3}};

/// A line for each operation; 1 if one takes more than the CPU's and one.
int compare_allocations() {
  std::map<std::string, long> counts;
  for (const fp8::test::Counted& one : fp8::test::counted_cases()) {
    one.warm_up();
    one.warm_up();
    const long before = fp8::test::allocations();
    one.warm_up();
    counts[one.name] = fp8::test::allocations() - before;
  }
  int failed = 0;
  for (const auto& [name, count] : counts) {
    const auto cpu = counts.find(name + "_on_cpu");
    if (cpu == counts.end()) continue;
    const auto known = kMore.find(name);
    const bool more = count > cpu->second + (known == kMore.end() ? 1 : known->second);
    std::printf("%s: %ld allocations on hpu, %ld on the CPU%s\n", name.c_str(), count, cpu->second,
                more ? ": FAILED" : "");
    failed |= more ? 1 : 0;
  }
  return failed;
}

int main(int argc, char** argv) {
  at::set_num_threads(1);
  fp8::kernels::set_num_threads(1);
  fp8::runtime::init();
  const at::NoGradGuard no_grad;
  if (argc > 1 && std::string(argv[1]) == "--allocations") {
    constexpr int kSkipped = 77;
    return fp8::test::counts_allocations() ? compare_allocations() : kSkipped;
  }
  fp8::test::run_counted_cases();
}
