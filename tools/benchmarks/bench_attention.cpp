// SPDX-License-Identifier: Apache-2.0
// Attention of one new token over its cache beside torch's scaled_dot_product_attention: 32 query heads over 4 or 8
// key heads (grouped, as rows of one head) or over 32, contexts of 128, 4096 and 32768 tokens; bf16, f16, and keys and
// values that are E4M3 codes, beside torch on their bf16 values. gbps counts keys and values as they are stored.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/InferenceMode.h>

#include <cmath>

#include "fp8/runtime/kernels/attention.h"
#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench::attention_cases {
namespace {

template <class Data>
kernels::HeadsOf<Data> heads_of(const at::Tensor& t) {
  return {const_cast<Data*>(static_cast<const Data*>(t.const_data_ptr())), t.stride(0), t.stride(1), t.stride(2)};
}

/// How keys and values are stored.
enum class Stored : std::uint8_t { bf16, f16, fp8 };

void bench_case(Runner& runner, const std::string& name, std::int64_t heads, std::int64_t rows, std::int64_t width,
                std::int64_t keys, Stored stored) {
  const bool codes = stored == Stored::fp8;
  const auto type = stored == Stored::f16 ? at::kHalf : at::kBFloat16;
  const auto make = [&](std::int64_t length) { return at::randn({1, heads, length, width}).to(type); };
  const at::Tensor q = make(rows), k = make(keys), v = make(keys), y = at::empty_like(q);
  kernels::AttentionArgs args;
  args.type = stored == Stored::f16 ? kernels::FloatType::F16 : kernels::FloatType::BF16;
  args.batch = 1, args.heads = heads, args.rows = rows, args.keys = keys, args.width = width;
  args.q = heads_of<const void>(q), args.k = heads_of<const void>(k), args.v = heads_of<const void>(v);
  args.y = heads_of<void>(y);
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
  const at::Tensor k_codes = k.to(at::kFloat8_e4m3fn), v_codes = v.to(at::kFloat8_e4m3fn);
  if (codes) {
    k.copy_(k_codes), v.copy_(v_codes);
    args.k = heads_of<const void>(k_codes), args.v = heads_of<const void>(v_codes);
    args.k_codes = args.v_codes = kernels::AttentionCodes();
  }
  kernels::attention(args);
  const at::Tensor theirs = at::scaled_dot_product_attention(q, k, v).to(at::kFloat);
  require((y.to(at::kFloat) - theirs).abs().max().item<float>() <= 0x1p-6f, "attention " + name);
  const auto times = runner.medians({
      [&] { kernels::attention(args); },
      [&] { const at::Tensor out = at::scaled_dot_product_attention(q, k, v); },
  });
  runner.print({.name = name,
                .ns = times[0],
                .bytes = (codes ? 2.0 : 4.0) * static_cast<double>(heads * keys * width),
                .macs = 2.0 * static_cast<double>(heads * rows * keys * width),
                .torch_ns = times[1]});
}

void run(Runner& runner) {
  const c10::InferenceMode inference;
  const struct {
    std::int64_t heads, rows, width;
  } shapes[] = {{4, 8, 64}, {8, 4, 128}, {32, 1, 128}};
  for (const auto& [heads, rows, width] : shapes) {
    for (const std::int64_t keys : {128, 4096, 32768}) {
      for (const auto& [word, stored] : {std::pair{"bf16", Stored::bf16}, {"f16", Stored::f16}, {"fp8", Stored::fp8}}) {
        const std::string name = word + (" 32 heads of " + std::to_string(width)) + " over " + std::to_string(heads) +
                                 ", " + std::to_string(keys) + " keys";
        if (runner.wants(name)) bench_case(runner, name, heads, rows, width, keys, stored);
      }
    }
  }
}

const Registration registration("attention", run);

}  // namespace
}  // namespace fp8::bench::attention_cases
