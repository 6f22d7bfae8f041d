// SPDX-License-Identifier: Apache-2.0
// What an operation costs on hpu beyond its work, beside the CPU: tensors of 16 elements, a linear layer of 64 x 64.
// "torch_ns" is the CPU's. Instructions of either where the system counts them (perf_event_open), which virtual
// machines often do not; tests/instructions counts them everywhere, with callgrind.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <c10/core/InferenceMode.h>

#include <functional>
#include <string>
#include <vector>

#ifdef __linux__
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "fp8/runtime/device/device.h"
#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench {
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
  at::Tensor x, bf16, rows, weight, indices, table;
  explicit Operands(at::Device device) {
    const auto ones = [&](at::IntArrayRef sizes, at::ScalarType type) { return at::ones(sizes, type).to(device); };
    x = ones({16}, at::kFloat), bf16 = ones({16}, at::kBFloat16), rows = ones({4, 64}, at::kBFloat16);
    weight = ones({64, 64}, at::kBFloat16), table = ones({16, 64}, at::kBFloat16), indices = ones({2}, at::kLong);
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
    {"silu bf16", [](const Operands& o) { return at::silu(o.bf16); }},
    {"softmax", [](const Operands& o) { return at::softmax(o.x, 0); }},
    {"embedding", [](const Operands& o) { return at::embedding(o.table, o.indices); }},
    {"to f32", [](const Operands& o) { return o.bf16.to(at::kFloat); }},
    {"view", [](const Operands& o) { return o.rows.view({64, 4}); }},
    {"linear", [](const Operands& o) { return at::linear(o.rows, o.weight); }},
};

void run(Runner& runner) {
  const c10::InferenceMode inference;
  const InstructionCounter counter;
  const Operands hpu(at::Device(at::kHPU, 0)), cpu(at::Device(at::kCPU));
  for (const auto& [name, call] : kCases) {
    if (!runner.wants("overhead", name)) continue;
    require(call(hpu).to(at::kCPU).allclose(call(cpu)), std::string("overhead ") + name);
    const std::function<void()> ours = [&, call = call] { call(hpu); }, theirs = [&, call = call] { call(cpu); };
    const auto times = runner.medians({ours, theirs});
    Line line;
    line.kernel = "overhead";
    line.name = name;
    line.ns = times[0];
    line.torch_ns = times[1];
    if (counter.read() > 0) line.extra = {{"instructions", counter.of(ours)}, {"cpu_instructions", counter.of(theirs)}};
    runner.print(line);
  }
}

const Registration registration("overhead", run);

}  // namespace
}  // namespace fp8::bench
