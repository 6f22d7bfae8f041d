// SPDX-License-Identifier: Apache-2.0
// Cast with scale, saturation and fused amax, beside torch's bare .to(float8) (no scale, no clamp, no amax) and beside
// what torch needs for the same work: abs().amax(), mul, clamp, to; stochastic rounding beside the nearest of the same.
// gbps counts the bytes read. "transposed": codes in rows and turned, from one pass, beside the cast and
// transpose_bytes after it (of_apart: its share of their time).
//
// amax over a whole tensor, beside torch's abs().amax(). gbps counts the bytes read.
//
// Decode with a scale, beside torch's bare .to(bf16 | f32) (no scale). gbps counts the codes.
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <cstring>

#include "fp8/runtime/fp8_tensor/fp8_tensor.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench::cast_cases {
namespace {

using enum kernels::FloatType;
using enum kernels::Format;

constexpr std::int64_t kInL2 = 64 << 10, kInL3 = 1 << 20, kInMemory = 64 << 20;
constexpr float kAnyScale = 37.1f, kPowerOfTwo = 16.0f;

/// What is cast or decoded: so many elements, of type or from it.
struct Case {
  const char* name;
  kernels::FloatType type;
  kernels::Format format;
  std::int64_t n;
  float scale = kAnyScale;
  bool stochastic = false;

  at::ScalarType torch_type() const { return runtime::dtype_of(type); }
  at::Tensor values() const { return at::randn({n}, at::kFloat).to(torch_type()); }
  double bytes() const { return static_cast<double>(n) * kernels::size_of(type); }
};

constexpr Case kCases[] = {
    {"f32 e4m3 L2", F32, E4M3, kInL2},
    {"f32 e4m3 L3", F32, E4M3, kInL3},
    {"f32 e4m3 DRAM", F32, E4M3, kInMemory},
    {"f32 e5m2 L2", F32, E5M2, kInL2},
    {"f32 e4m3 stochastic L2", F32, E4M3, kInL2, kAnyScale, true},
    {"f32 e4m3 stochastic DRAM", F32, E4M3, kInMemory, kAnyScale, true},
    {"bf16 e4m3 L2", BF16, E4M3, kInL2},
    {"bf16 e4m3 L3", BF16, E4M3, kInL3},
    {"bf16 e4m3 DRAM", BF16, E4M3, kInMemory},
    {"bf16 e4m3 2^k L2", BF16, E4M3, kInL2, kPowerOfTwo},
    {"bf16 e4m3 2^k DRAM", BF16, E4M3, kInMemory, kPowerOfTwo},
    {"bf16 e5m2 L2", BF16, E5M2, kInL2},
    {"bf16 e5m2 DRAM", BF16, E5M2, kInMemory},
    {"bf16 e5m2 stochastic L2", BF16, E5M2, kInL2, kAnyScale, true},
    {"bf16 e5m2 stochastic DRAM", BF16, E5M2, kInMemory, kAnyScale, true},
    {"f16 e4m3 L2", F16, E4M3, kInL2},
};

kernels::CastArgs args_of(const Case& c, const at::Tensor& x, at::Tensor& codes, float* amax) {
  kernels::CastArgs args;
  args.x = x.const_data_ptr();
  args.type = c.type;
  args.rows = 1;
  args.cols = args.row_stride = c.n;
  args.codes = static_cast<std::uint8_t*>(codes.mutable_data_ptr());
  args.format = c.format;
  args.max = kernels::fp8_max(c.format, kernels::Dialect::ocp);
  args.scale = c.scale;
  if (c.stochastic) args.stochastic = 0;
  args.amax = amax;
  return args;
}

void check_against_scalar(const Case& c, const kernels::CastArgs& args, const at::Tensor& codes) {
  at::Tensor reference = at::empty({c.n}, at::kByte);
  float amax = -1.0f;
  kernels::CastArgs scalar = args;
  scalar.codes = static_cast<std::uint8_t*>(reference.mutable_data_ptr());
  scalar.amax = &amax;
  kernels::cast_to_fp8(args);
  kernels::ScopedSimdLevel level(kernels::SimdLevel::scalar);
  kernels::cast_to_fp8(scalar);
  const bool same = std::memcmp(codes.const_data_ptr(), reference.const_data_ptr(), static_cast<std::size_t>(c.n)) == 0;
  require(same && amax == *args.amax, std::string("cast ") + c.name);
}

void bench_case(Runner& runner, const Case& c) {
  const at::Tensor x = c.values();
  at::Tensor codes = at::empty({c.n}, at::kByte), torch_codes = at::empty({c.n}, runtime::dtype_of(c.format));
  float amax = 0.0f;
  const kernels::CastArgs args = args_of(c, x, codes, &amax);
  check_against_scalar(c, args, codes);

  // A copy of half the bytes that the cast reads and writes moves exactly as many.
  const std::size_t moved =
      static_cast<std::size_t>(c.n) * (static_cast<std::size_t>(kernels::size_of(c.type)) + 1) / 2;
  std::vector<char> from(moved, 1), to(moved);
  kernels::CastArgs nearest = args;
  nearest.stochastic = {};
  std::vector<std::function<void()>> work = {
      [&] { kernels::cast_to_fp8(args); },
      [&] { torch_codes.copy_(x); },
      [&] {
        const at::Tensor largest = x.abs().amax();
        torch_codes.copy_(x.mul(c.scale).clamp(-*args.max, *args.max));
      },
      [&] { std::memcpy(to.data(), from.data(), moved); },
  };
  if (c.stochastic) work.emplace_back([&] { kernels::cast_to_fp8(nearest); });
  const auto times = runner.medians(work);
  Line line{.name = c.name, .ns = times[0], .bytes = c.bytes(), .torch_ns = times[1]};
  line.extra = {{"torch_chain_ns", times[2]}, {"chain_ratio", times[2] / times[0]}, {"of_memcpy", times[3] / times[0]}};
  if (c.stochastic) line.extra.emplace_back("of_nearest", times[4] / times[0]);
  runner.print(line);
}

struct Matrix {
  const char* name;
  kernels::FloatType type;
  std::int64_t rows, cols;
};

constexpr Matrix kMatrices[] = {
    {"transposed f32 e4m3 L2", F32, 128, 1024},    {"transposed f32 e4m3 L3", F32, 2048, 1024},
    {"transposed f32 e4m3 DRAM", F32, 4096, 4096}, {"transposed bf16 e4m3 L2", BF16, 256, 1024},
    {"transposed bf16 e4m3 L3", BF16, 2048, 1024}, {"transposed bf16 e4m3 DRAM", BF16, 4096, 4096},
};

void bench_transposed(Runner& runner, const Matrix& m) {
  const Case c{m.name, m.type, E4M3, m.rows * m.cols};
  const at::Tensor x = c.values().view({m.rows, m.cols});
  at::Tensor codes = at::empty({m.rows, m.cols}, at::kByte), turned = at::empty({m.cols, m.rows}, at::kByte);
  float amax = 0.0f;
  kernels::CastArgs alone = args_of(c, x, codes, &amax);
  alone.rows = m.rows;
  alone.cols = alone.row_stride = m.cols;
  kernels::CastArgs both = alone;
  both.transposed = turned.mutable_data_ptr<std::uint8_t>();
  kernels::cast_to_fp8(both);
  require(turned.equal(codes.t().contiguous()), std::string("cast ") + m.name);
  const at::ScalarType fp8 = at::kFloat8_e4m3fn;
  const auto times = runner.medians({
      [&] { kernels::cast_to_fp8(both); },
      [&] {
        kernels::cast_to_fp8(alone);
        kernels::transpose_bytes(alone.codes, m.rows, m.cols, both.transposed);
      },
      [&] { kernels::cast_to_fp8(alone); },
      [&] { const at::Tensor y = x.to(fp8), yt = y.view(at::kByte).t().contiguous(); },
  });
  runner.print({.name = m.name,
                .ns = times[0],
                .bytes = c.bytes(),
                .torch_ns = times[3],
                .extra = {{"of_apart", times[0] / times[1]}, {"of_cast", times[0] / times[2]}}});
}

void run(Runner& runner) {
  runner.each(kCases, bench_case);
  runner.each(kMatrices, bench_transposed);
}

const Registration g_cast("cast", run);

constexpr Case kAmaxCases[] = {
    {"f32 L2", F32, E4M3, kInL2},   {"f32 L3", F32, E4M3, kInL3},   {"f32 DRAM", F32, E4M3, kInMemory},
    {"bf16 L2", BF16, E4M3, kInL2}, {"bf16 L3", BF16, E4M3, kInL3}, {"bf16 DRAM", BF16, E4M3, kInMemory},
};

void bench_amax(Runner& runner, const Case& c) {
  const at::Tensor x = c.values();
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
  runner.print({.name = c.name, .ns = times[0], .bytes = c.bytes(), .torch_ns = times[1]});
}

const Registration g_amax("amax", [](Runner& runner) { runner.each(kAmaxCases, bench_amax); });

constexpr Case kDecodeCases[] = {
    {"e4m3 bf16 L2", BF16, E4M3, kInL2},       {"e4m3 bf16 L3", BF16, E4M3, kInL3},
    {"e4m3 bf16 DRAM", BF16, E4M3, kInMemory}, {"e5m2 bf16 L2", BF16, E5M2, kInL2},
    {"e4m3 f32 L2", F32, E4M3, kInL2},         {"e4m3 f32 L3", F32, E4M3, kInL3},
    {"e4m3 f32 DRAM", F32, E4M3, kInMemory},   {"e4m3 f16 L2", F16, E4M3, kInL2},
};

void bench_decode(Runner& runner, const Case& c) {
  const at::Tensor codes = at::randint(0, 0x7F, {c.n}, at::kByte);  // no NaN, so that bytes can be compared
  const at::Tensor torch_codes = codes.view(runtime::dtype_of(c.format));
  at::Tensor y = at::empty({c.n}, c.torch_type()), torch_y = at::empty({c.n}, c.torch_type());
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

const Registration g_decode("decode", [](Runner& runner) { runner.each(kDecodeCases, bench_decode); });

}  // namespace
}  // namespace fp8::bench::cast_cases
