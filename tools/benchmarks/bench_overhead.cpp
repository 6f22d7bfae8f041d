// SPDX-License-Identifier: Apache-2.0
// The cost of an operation on hpu beyond its work, beside the CPU: tensors of 16 elements, a linear layer of 64 x 64.
// "torch_ns" is the CPU's. Instructions of either where the system counts them (perf_event_open), which virtual
// machines often do not; tests/instructions counts them everywhere, with callgrind.
#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#ifdef __linux__
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "fp8/runtime/device/device.h"
#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench::overhead_cases {
namespace {

/// Instructions of this thread in user mode.
class InstructionCounter {
 public:
#ifdef __linux__
  InstructionCounter() {
    perf_event_attr wanted{};
    wanted.type = PERF_TYPE_HARDWARE, wanted.size = sizeof wanted, wanted.config = PERF_COUNT_HW_INSTRUCTIONS;
    wanted.exclude_kernel = wanted.exclude_hv = 1;
    file_ = static_cast<int>(syscall(SYS_perf_event_open, &wanted, 0, -1, -1, 0));
  }
  ~InstructionCounter() {
    if (file_ >= 0) close(file_);
  }
  /// 0 where nothing counts.
  std::uint64_t read() const {
    std::uint64_t count = 0;
    return file_ >= 0 && ::read(file_, &count, sizeof count) == sizeof count ? count : 0;
  }

 private:
  int file_ = -1;
#else
  InstructionCounter() = default;
  std::uint64_t read() const { return 0; }
#endif
 public:
  InstructionCounter(const InstructionCounter&) = delete;
  InstructionCounter& operator=(const InstructionCounter&) = delete;

  double of(const std::function<void()>& call) const {
    constexpr int kCalls = 200;
    const std::uint64_t before = read();
    for (int i = 0; i < kCalls; ++i) call();
    return static_cast<double>(read() - before) / kCalls;
  }
};

struct Operands {
  at::Tensor x, bf16, rows, weight, indices, table, batch, positions, mask, heads;
  explicit Operands(at::Device device) {
    const auto ones = [&](at::IntArrayRef sizes, at::ScalarType type) { return at::ones(sizes, type).to(device); };
    x = ones({16}, at::kFloat), bf16 = ones({16}, at::kBFloat16), rows = ones({4, 64}, at::kBFloat16);
    weight = ones({64, 64}, at::kBFloat16), table = ones({16, 64}, at::kBFloat16), indices = ones({2}, at::kLong);
    batch = ones({2, 4, 4}, at::kFloat), positions = ones({2, 4}, at::kLong), mask = ones({16}, at::kBool);
    heads = ones({1, 2, 4, 16}, at::kFloat);
  }
};

const struct {
  const char* name;
  at::Tensor (*call)(const Operands& o);
} kCases[] = {
    {"add", [](const Operands& o) { return at::add(o.x, o.x); }},
    {"add_", [](const Operands& o) -> at::Tensor { return o.x.add_(0); }},
    {"mul bf16", [](const Operands& o) { return at::mul(o.bf16, o.bf16); }},
    {"cat", [](const Operands& o) { return at::cat({o.x, o.x}); }},
    {"sigmoid", [](const Operands& o) { return at::sigmoid(o.x); }},
    {"gelu", [](const Operands& o) { return at::gelu(o.x, "tanh"); }},
    {"rsqrt", [](const Operands& o) { return at::rsqrt(o.x); }},
    {"pow", [](const Operands& o) { return at::pow(o.x, 2); }},
    {"mean", [](const Operands& o) { return at::mean(o.x, {-1}, true); }},
    {"sum", [](const Operands& o) { return at::sum(o.x, {-1}); }},
    {"argmax", [](const Operands& o) { return at::argmax(o.x, 0); }},
    {"where", [](const Operands& o) { return at::where(o.mask, o.x, o.x); }},
    {"masked_fill", [](const Operands& o) { return at::masked_fill(o.x, o.mask, 0); }},
    {"silu bf16", [](const Operands& o) { return at::silu(o.bf16); }},
    {"softmax", [](const Operands& o) { return at::softmax(o.x, 0); }},
    {"embedding", [](const Operands& o) { return at::embedding(o.table, o.indices); }},
    {"index_select", [](const Operands& o) { return at::index_select(o.table, 0, o.indices); }},
    {"gather", [](const Operands& o) { return at::gather(o.rows, 1, o.positions); }},
    {"contiguous", [](const Operands& o) { return o.batch.transpose(0, 1).contiguous(); }},
    {"to f32", [](const Operands& o) { return o.bf16.to(at::kFloat); }},
    {"view", [](const Operands& o) { return o.rows.view({64, 4}); }},
    {"transpose", [](const Operands& o) { return o.rows.transpose(0, 1); }},
    {"slice", [](const Operands& o) { return o.rows.slice(0, 1, 3); }},
    {"bmm", [](const Operands& o) { return at::bmm(o.batch, o.batch); }},
    {"linear", [](const Operands& o) { return at::linear(o.rows, o.weight); }},
    {"layer_norm", [](const Operands& o) { return at::layer_norm(o.rows, {64}); }},
    {"attention", [](const Operands& o) { return at::scaled_dot_product_attention(o.heads, o.heads, o.heads); }},
};

void run(Runner& runner) {
  const c10::InferenceMode inference;
  const InstructionCounter counter;
  const Operands hpu(at::Device(at::kHPU, 0)), cpu(at::Device(at::kCPU));
  for (const auto& [name, call] : kCases) {
    if (!runner.wants(name)) continue;
    require(call(hpu).to(at::kCPU).allclose(call(cpu)), std::string("overhead ") + name);
    const std::function<void()> ours = [&, call = call] { call(hpu); }, theirs = [&, call = call] { call(cpu); };
    const auto times = runner.medians({ours, theirs});
    Line line{.name = name, .ns = times[0], .torch_ns = times[1]};
    if (counter.read() > 0) line.extra = {{"instructions", counter.of(ours)}, {"cpu_instructions", counter.of(theirs)}};
    runner.print(line);
  }
}

const Registration registration("overhead", run);

}  // namespace
}  // namespace fp8::bench::overhead_cases
