// SPDX-License-Identifier: Apache-2.0
// Products of one or two bf16 rows with a bf16 weight that no cache holds (the head of a language model: 32000 x 2048,
// 125 MiB) beside torch's linear. It lies in memory of the device, as a model's does. gbps counts the weight's bytes.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <string>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/kernels/gemv.h"
#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench::gemv_cases {
namespace {

constexpr std::int64_t kN = 32000, kK = 2048;

const std::uint16_t* bits_of(const at::Tensor& t) { return static_cast<const std::uint16_t*>(t.const_data_ptr()); }

void bench_case(Runner& runner, const std::string& name, std::int64_t m, const at::Tensor& w) {
  const at::Tensor x = at::randn({m, kK}).to(at::kBFloat16);
  at::Tensor y = at::empty({m, kN}, at::kBFloat16);
  kernels::GemvArgs args;
  args.m = m, args.n = kN, args.k = kK;
  args.a = bits_of(x), args.a_stride = kK;
  args.w = bits_of(w), args.w_stride = kK;
  args.y = static_cast<std::uint16_t*>(y.mutable_data_ptr()), args.y_stride = kN;
  kernels::gemv(args);
  // Both round once; their sums differ in the order of f32 additions.
  const at::Tensor theirs = at::linear(x, w).to(at::kFloat);
  const at::Tensor excess = (y.to(at::kFloat) - theirs).abs() - theirs.abs() * 0x1p-7 - 1e-3;
  require(excess.max().item<float>() <= 0, "gemv " + name);
  const auto times = runner.medians({
      [&] { kernels::gemv(args); },
      [&] { const at::Tensor out = at::linear(x, w); },
  });
  runner.print({.name = name,
                .ns = times[0],
                .bytes = 2.0 * kN * kK,
                .macs = static_cast<double>(kN) * kK * static_cast<double>(m),
                .torch_ns = times[1]});
}

void run(Runner& runner) {
  const c10::InferenceMode inference;
  at::Tensor on_device, w;
  for (const std::int64_t m : {1, 2}) {
    const std::string name = "bf16 M=" + std::to_string(m);
    if (!runner.wants(name)) continue;
    if (!w.defined()) {
      runtime::init();
      on_device = at::randn({kN, kK}).to(at::kBFloat16).to(at::Device(at::kHPU, 0));
      w = runtime::cpu_alias(on_device);
    }
    bench_case(runner, name, m, w);
  }
}

const Registration registration("gemv", run);

}  // namespace
}  // namespace fp8::bench::gemv_cases
