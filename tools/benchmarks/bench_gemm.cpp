// SPDX-License-Identifier: Apache-2.0
// fp8-weight products beside torch's linear with the same activations: bf16 linear for bf16 and fp8 activations, f32
// linear for f32. N = K = 4096, so a weight (16 MiB of codes) is read from memory: several weights take turns, as in a
// model, or all but the first call would find it in the last cache. All lie in the device's memory (pages of 2 MiB),
// torch's too. gbps counts the codes read, gmacs the products.
//
// Products of one or two bf16 rows with a bf16 weight that no cache holds (the head of a language model: 32000 x 2048,
// 125 MiB) beside torch's linear. It lies in memory of the device, as a model's does. gbps counts the weight's bytes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/device.h"
#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench::gemm_cases {
namespace {

constexpr std::int64_t kN = 4096, kK = 4096;
constexpr std::size_t kWeights = 4;
constexpr double kWeightBytes = static_cast<double>(kN * kK);

struct Activations {
  const char* name;
  kernels::Storage type;
  at::ScalarType torch_type;  // of the linear that it replaces
};
const Activations kActivations[] = {
    {"bf16", kernels::Storage::BF16, at::kBFloat16},
    {"e4m3", kernels::Storage::E4M3, at::kBFloat16},
    {"f32", kernels::Storage::F32, at::kFloat},
};

struct Weights {
  std::vector<at::Tensor> row_major, packed, bf16, f32;  // the same values
  std::vector<at::Tensor> kept;                          // whose memory they are in
  at::Tensor channel_scale = at::rand({kN}) + 0.5f;

  at::Tensor placed(const at::Tensor& values) {
    kept.push_back(values.to(at::kHPU));
    return runtime::cpu_alias(kept.back());
  }
  Weights() {
    for (std::size_t i = 0; i < kWeights; ++i) {
      row_major.push_back(
          placed(at::randint(0, 0x7F, {kN, kK}, at::kByte) + at::randint(0, 2, {kN, kK}, at::kByte) * 0x80));
      packed.push_back(placed(at::empty({kernels::packed_bytes(kN, kK)}, at::kByte)));
      kernels::pack_weight(row_major[i].const_data_ptr<std::uint8_t>(), kN, kK,
                           packed[i].mutable_data_ptr<std::uint8_t>());
      f32.push_back(placed(row_major[i].view(at::kFloat8_e4m3fn).to(at::kFloat)));
      bf16.push_back(placed(f32[i].to(at::kBFloat16)));
    }
  }
};

kernels::GemmArgs args_of(std::int64_t m, const Activations& a, const at::Tensor& x, const at::Tensor& w,
                          kernels::Layout layout, at::Tensor& y) {
  kernels::GemmArgs args;
  args.m = m, args.n = kN, args.k = kK;
  args.a = x.const_data_ptr(), args.a_type = a.type, args.a_stride = kK;
  args.w = w.const_data_ptr<std::uint8_t>(), args.w_layout = layout;
  args.y = y.mutable_data_ptr(), args.y_stride = kN;
  args.y_type = a.torch_type == at::kFloat ? kernels::FloatType::F32 : kernels::FloatType::BF16;
  return args;
}

// Against torch's f32 linear of the same values: K roundings of sums of this size, and one to bf16.
void check(const std::string& name, const at::Tensor& y, const at::Tensor& x, const at::Tensor& w) {
  const at::Tensor expected = at::linear(x, w);
  const at::Tensor size = at::linear(x.abs(), w.abs());
  const double rounding = y.scalar_type() == at::kFloat ? 0 : 0x1p-8;
  const at::Tensor excess =
      (y.to(at::kFloat) - expected).abs() - size * (4.0 * kK * 0x1p-24) - expected.abs() * rounding;
  require(excess.max().item<float>() <= 0, "gemm " + name);
}

void bench_case(Runner& runner, const Weights& weights, std::int64_t m, const Activations& a) {
  const std::string name = std::string(a.name) + " M=" + std::to_string(m);
  const at::Tensor codes = at::randint(0, 0x70, {m, kK}, at::kByte);
  const bool coded = a.type == kernels::Storage::E4M3;
  const at::Tensor torch_x =
      coded ? codes.view(at::kFloat8_e4m3fn).to(at::kBFloat16) : at::randn({m, kK}).to(a.torch_type);
  const at::Tensor x = coded ? codes : torch_x;
  at::Tensor y = at::empty({m, kN}, a.torch_type);
  const auto& torch_w = a.torch_type == at::kFloat ? weights.f32 : weights.bf16;
  for (const auto layout : {kernels::Layout::packed, kernels::Layout::row_major}) {
    const auto& w = layout == kernels::Layout::packed ? weights.packed : weights.row_major;
    kernels::gemm(args_of(m, a, x, w[0], layout, y));
    check(name, y, torch_x.to(at::kFloat), weights.f32[0]);
  }
  std::size_t turn[3] = {};
  const auto times = runner.medians({
      [&] { kernels::gemm(args_of(m, a, x, weights.packed[turn[0]++ % kWeights], kernels::Layout::packed, y)); },
      [&] { kernels::gemm(args_of(m, a, x, weights.row_major[turn[1]++ % kWeights], kernels::Layout::row_major, y)); },
      [&] { const at::Tensor out = at::linear(torch_x, torch_w[turn[2]++ % kWeights]); },
  });
  for (int i = 0; i < 2; ++i)
    runner.print({.name = name + (i == 0 ? " packed" : " row_major"),
                  .ns = times[static_cast<std::size_t>(i)],
                  .bytes = kWeightBytes,
                  .macs = kWeightBytes * static_cast<double>(m),
                  .torch_ns = times[2]});
}

// The products of a backward pass, e5m2 gradients with e4m3 operands, both transposed first: dW = g^T . x with g [K, M]
// and x [K, N], beside the same product of operands that lie as the kernel wants them, and torch's bf16 product of g^T
// and x.
void bench_transposed(Runner& runner, std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::string name = "transposed " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  if (!runner.wants(name)) return;
  const at::Tensor g = at::randint(0, 0x60, {k, m}, at::kByte), x = at::randint(0, 0x60, {k, n}, at::kByte);
  at::Tensor gt = g.t().contiguous(), xt = x.t().contiguous(), y = at::empty({m, n}, at::kBFloat16);
  const at::Tensor bf16_g = g.view(at::kFloat8_e5m2).to(at::kBFloat16),
                   bf16_x = x.view(at::kFloat8_e4m3fn).to(at::kBFloat16);
  kernels::GemmArgs args;
  args.m = m, args.n = n, args.k = k;
  args.a = gt.const_data_ptr(), args.a_type = kernels::Storage::E5M2, args.a_stride = k;
  args.w = xt.const_data_ptr<std::uint8_t>();
  args.y = y.mutable_data_ptr(), args.y_stride = n, args.y_type = kernels::FloatType::BF16;
  kernels::gemm(args);
  check(name, y, gt.view(at::kFloat8_e5m2).to(at::kFloat), xt.view(at::kFloat8_e4m3fn).to(at::kFloat));
  const auto times = runner.medians({
      [&] {
        kernels::transpose_bytes(g.const_data_ptr<std::uint8_t>(), k, m, gt.mutable_data_ptr<std::uint8_t>());
        kernels::transpose_bytes(x.const_data_ptr<std::uint8_t>(), k, n, xt.mutable_data_ptr<std::uint8_t>());
        kernels::gemm(args);
      },
      [&] { kernels::gemm(args); },
      [&] { const at::Tensor out = at::mm(bf16_g.t(), bf16_x); },
  });
  runner.print({.name = name,
                .ns = times[0],
                .macs = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
                .torch_ns = times[2],
                .extra = {{"of_untransposed", times[0] / times[1]}}});
}

struct Blocks {
  const char* name;
  std::int64_t rows, cols;  ///< of the weight that share a scale; so do `cols` columns of a row of x
  bool powers_of_two;       ///< 2^-4 to 2^3, as casts to MX and training's casts to blocks make them; else 1/2 to 3/2
};
constexpr Blocks kBlocks[] = {
    {"block e4m3", 128, 128, true}, {"mx e4m3", 1, 32, true}, {"any scale e4m3", 128, 128, false}};

at::Tensor scales_of(const Blocks& block, at::IntArrayRef sizes) {
  return block.powers_of_two ? at::exp2(at::randint(-4, 4, sizes, at::kFloat)) : at::rand(sizes, at::kFloat) + 0.5f;
}

// E4M3 products with scales of blocks, beside the same with one per channel and row.
void bench_blocks(Runner& runner, const Weights& weights, const Blocks& block, std::int64_t m) {
  const std::int64_t groups = kK / block.cols;
  const std::string name = block.name + (" M=" + std::to_string(m));
  const Activations& a = kActivations[1];
  const at::Tensor x = at::randint(0, 0x70, {m, kK}, at::kByte), torch_x = x.view(at::kFloat8_e4m3fn).to(at::kBFloat16);
  const at::Tensor x_scale = scales_of(block, {m, groups}), w_scale = scales_of(block, {kN / block.rows, groups});
  at::Tensor y = at::empty({m, kN}, at::kBFloat16);
  const auto product = [&](const at::Tensor& w, bool blocks) {
    kernels::GemmArgs args = args_of(m, a, x, w, kernels::Layout::row_major, y);
    args.a_scale_inv = x_scale.const_data_ptr<float>(), args.a_scale_stride = 1;
    args.w_scale_inv = blocks ? w_scale.const_data_ptr<float>() : weights.channel_scale.const_data_ptr<float>(),
    args.w_scale_stride = 1;
    if (blocks)
      args.blocks.cols = block.cols, args.blocks.rows = block.rows, args.power_of_two_scales = block.powers_of_two;
    kernels::gemm(args);
  };
  const at::Tensor f32_w = weights.f32[0] * w_scale.repeat_interleave(block.rows, 0).repeat_interleave(block.cols, 1);
  product(weights.row_major[0], true);
  check(name, y, torch_x.to(at::kFloat) * x_scale.repeat_interleave(block.cols, 1), f32_w);
  std::size_t turn[3] = {};
  const auto times = runner.medians({
      [&] { product(weights.row_major[turn[0]++ % kWeights], true); },
      [&] { product(weights.row_major[turn[1]++ % kWeights], false); },
      [&] { const at::Tensor out = at::linear(torch_x, weights.bf16[turn[2]++ % kWeights]); },
  });
  runner.print({.name = name,
                .ns = times[0],
                .bytes = kWeightBytes,
                .macs = kWeightBytes * static_cast<double>(m),
                .torch_ns = times[2],
                .extra = {{"of_channel", times[0] / times[1]}}});
}

void run(Runner& runner) {
  const c10::InferenceMode inference;
  bench_transposed(runner, 1024, 1024, 1024);
  bench_transposed(runner, 512, 2048, 1024);
  std::vector<std::pair<std::int64_t, const Activations*>> cases;
  for (const std::int64_t m : {1, 4, 16, 64, 128, 512})
    for (const Activations& a : kActivations)
      if (runner.wants(std::string(a.name) + " M=" + std::to_string(m))) cases.emplace_back(m, &a);
  std::vector<std::pair<std::int64_t, const Blocks*>> block_cases;
  for (const Blocks& block : kBlocks)
    for (const std::int64_t m : {1, 16, 512})
      if (runner.wants(block.name + (" M=" + std::to_string(m)))) block_cases.emplace_back(m, &block);
  if (cases.empty() && block_cases.empty()) return;
  const Weights weights;
  for (const auto& [m, block] : block_cases) bench_blocks(runner, weights, *block, m);
  for (const auto& [m, a] : cases) bench_case(runner, weights, m, *a);
}

const Registration g_gemm("gemm", run);

constexpr std::int64_t kHeadN = 32000, kHeadK = 2048;

const std::uint16_t* bits_of(const at::Tensor& t) { return static_cast<const std::uint16_t*>(t.const_data_ptr()); }

void bench_gemv(Runner& runner, const std::string& name, std::int64_t m, const at::Tensor& w) {
  const at::Tensor x = at::randn({m, kHeadK}).to(at::kBFloat16);
  at::Tensor y = at::empty({m, kHeadN}, at::kBFloat16);
  kernels::GemvArgs args;
  args.m = m, args.n = kHeadN, args.k = kHeadK;
  args.a = bits_of(x), args.a_stride = kHeadK;
  args.w = bits_of(w), args.w_stride = kHeadK;
  args.y = static_cast<std::uint16_t*>(y.mutable_data_ptr()), args.y_stride = kHeadN;
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
                .bytes = 2.0 * kHeadN * kHeadK,
                .macs = static_cast<double>(kHeadN) * kHeadK * static_cast<double>(m),
                .torch_ns = times[1]});
}

void run_gemv(Runner& runner) {
  const c10::InferenceMode inference;
  at::Tensor on_device, w;
  for (const std::int64_t m : {1, 2}) {
    const std::string name = "bf16 M=" + std::to_string(m);
    if (!runner.wants(name)) continue;
    if (!w.defined()) {
      runtime::init();
      on_device = at::randn({kHeadN, kHeadK}).to(at::kBFloat16).to(at::Device(at::kHPU, 0));
      w = runtime::cpu_alias(on_device);
    }
    bench_gemv(runner, name, m, w);
  }
}

const Registration g_gemv("gemv", run_gemv);

}  // namespace
}  // namespace fp8::bench::gemm_cases
