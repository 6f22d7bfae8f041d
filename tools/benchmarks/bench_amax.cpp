// SPDX-License-Identifier: Apache-2.0
// amax over a whole tensor, beside torch's abs().amax(). gbps counts the bytes read.
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench::amax_cases {
namespace {

struct Case {
  const char* name;
  at::ScalarType torch_type;
  kernels::FloatType type;
  std::int64_t n;
};

constexpr std::int64_t kInL2 = 64 << 10, kInL3 = 1 << 20, kInMemory = 64 << 20;

const Case kCases[] = {
    {"f32 L2", at::kFloat, kernels::FloatType::F32, kInL2},
    {"f32 L3", at::kFloat, kernels::FloatType::F32, kInL3},
    {"f32 DRAM", at::kFloat, kernels::FloatType::F32, kInMemory},
    {"bf16 L2", at::kBFloat16, kernels::FloatType::BF16, kInL2},
    {"bf16 L3", at::kBFloat16, kernels::FloatType::BF16, kInL3},
    {"bf16 DRAM", at::kBFloat16, kernels::FloatType::BF16, kInMemory},
};

void bench_case(Runner& runner, const Case& c) {
  const at::Tensor x = at::randn({c.n}, at::kFloat).to(c.torch_type);
  float found = kernels::amax(x.const_data_ptr(), c.type, c.n);
  {
    kernels::ScopedSimdLevel level(kernels::SimdLevel::scalar);
    const float scalar = kernels::amax(x.const_data_ptr(), c.type, c.n);
    require(found == scalar && found == x.abs().amax().item<float>(), std::string("amax ") + c.name);
  }
  const auto times = runner.medians({
      [&] { found = kernels::amax(x.const_data_ptr(), c.type, c.n); },
      [&] { const at::Tensor largest = x.abs().amax(); },
  });
  runner.print({.name = c.name,
                .ns = times[0],
                .bytes = static_cast<double>(c.n) * kernels::size_of(c.type),
                .torch_ns = times[1]});
}

void run(Runner& runner) {
  for (const Case& c : kCases) {
    if (runner.wants(c.name)) bench_case(runner, c);
  }
}

const Registration registration("amax", run);

}  // namespace
}  // namespace fp8::bench::amax_cases
