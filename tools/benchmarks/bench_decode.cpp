// SPDX-License-Identifier: Apache-2.0
// Decode with a scale, beside torch's bare .to(bf16 | f32) (no scale). gbps counts the codes.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>

#include <cstring>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench::decode_cases {
namespace {

struct Case {
  const char* name;
  at::ScalarType torch_type;
  kernels::FloatType type;
  kernels::Format format;
  std::int64_t n;
};

constexpr std::int64_t kInL2 = 64 << 10, kInL3 = 1 << 20, kInMemory = 64 << 20;

const Case kCases[] = {
    {"e4m3 bf16 L2", at::kBFloat16, kernels::FloatType::BF16, kernels::Format::E4M3, kInL2},
    {"e4m3 bf16 L3", at::kBFloat16, kernels::FloatType::BF16, kernels::Format::E4M3, kInL3},
    {"e4m3 bf16 DRAM", at::kBFloat16, kernels::FloatType::BF16, kernels::Format::E4M3, kInMemory},
    {"e5m2 bf16 L2", at::kBFloat16, kernels::FloatType::BF16, kernels::Format::E5M2, kInL2},
    {"e4m3 f32 L2", at::kFloat, kernels::FloatType::F32, kernels::Format::E4M3, kInL2},
    {"e4m3 f32 L3", at::kFloat, kernels::FloatType::F32, kernels::Format::E4M3, kInL3},
    {"e4m3 f32 DRAM", at::kFloat, kernels::FloatType::F32, kernels::Format::E4M3, kInMemory},
    {"e4m3 f16 L2", at::kHalf, kernels::FloatType::F16, kernels::Format::E4M3, kInL2},
};

void bench_case(Runner& runner, const Case& c) {
  const at::Tensor codes = at::randint(0, 0x7F, {c.n}, at::kByte);  // no NaN, so that bytes can be compared
  const at::Tensor torch_codes = codes.view(c.format == kernels::Format::E4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2);
  at::Tensor y = at::empty({c.n}, c.torch_type), torch_y = at::empty({c.n}, c.torch_type);
  const float scale = 0.0371f;
  kernels::DecodeArgs args;
  args.codes = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  args.rows = 1;
  args.cols = c.n;
  args.format = c.format;
  args.y = y.mutable_data_ptr();
  args.type = c.type;
  args.scale_inv = &scale;

  kernels::decode_from_fp8(args);
  {
    kernels::ScopedSimdLevel level(kernels::SimdLevel::scalar);
    kernels::DecodeArgs scalar = args;
    scalar.y = torch_y.mutable_data_ptr();
    kernels::decode_from_fp8(scalar);
  }
  const std::size_t bytes = static_cast<std::size_t>(c.n) * static_cast<std::size_t>(kernels::size_of(c.type));
  require(std::memcmp(y.const_data_ptr(), torch_y.const_data_ptr(), bytes) == 0, std::string("decode ") + c.name);

  const std::size_t moved = (bytes + static_cast<std::size_t>(c.n)) / 2;  // a copy that moves as many bytes
  std::vector<char> from(moved, 1), to(moved);
  const auto times = runner.medians({
      [&] { kernels::decode_from_fp8(args); },
      [&] { torch_y.copy_(torch_codes); },
      [&] { std::memcpy(to.data(), from.data(), moved); },
  });
  runner.print({.name = c.name,
                .ns = times[0],
                .bytes = static_cast<double>(c.n),
                .torch_ns = times[1],
                .extra = {{"of_memcpy", times[2] / times[0]}}});
}

void run(Runner& runner) {
  for (const Case& c : kCases) {
    if (runner.wants(c.name)) bench_case(runner, c);
  }
}

const Registration registration("decode", run);

}  // namespace
}  // namespace fp8::bench::decode_cases
