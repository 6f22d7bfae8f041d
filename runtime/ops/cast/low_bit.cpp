// SPDX-License-Identifier: Apache-2.0
// hpu::convert_from_int4, convert_from_uint4 and fake_quant_fp4.
//
//   convert   int32 word = n7 n6 n5 n4 n3 n2 n1 n0, four bits each, n0 the first element; two's complement for int4
//             y = (n - zero_point) * scale in out_dtype's arithmetic; a packed zero_point (int32) is subtracted
//             exactly; float8 outputs are computed in f32 and saturate
//
//   fake_quant_fp4   y = round_fp4(x * (1 / s)) * s, s = f32(amax / max) of each slice at one index of `axis`
//             fp4_e2m1   s ee m   bias 1   0 0.5 1 1.5 2 3 4 6         max 6
//             fp4_e3m0   s eee    bias 3   0 0.25 0.5 1 2 4 8 16       max 16
//             to nearest, ties to the even code; stochastic: up with the probability of the distance, below the
//             smallest value too. The vendor's kernel is closed: names and rounding modes are its, the scale's formula
//             is ours.
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <limits>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/cast/cast.h"

namespace fp8::runtime::ops {
namespace {

// --- 4-bit integers

/// int32 words -> int8 values, eight per word along the last dimension.
at::Tensor unpacked(const at::Tensor& words, bool is_signed) {
  const at::Tensor from = words.contiguous();
  auto sizes = words.sizes().vec();
  sizes.back() *= 8;
  at::Tensor out = at::empty(sizes, words.options().dtype(at::kChar));
  const auto* in = static_cast<const std::uint32_t*>(from.const_data_ptr());
  auto* values = static_cast<std::int8_t*>(out.mutable_data_ptr());
  kernels::parallel_each(from.numel(), 1 << 14, [&](std::int64_t i) {
    for (int n = 0; n < 8; ++n) {
      const int nibble = static_cast<int>(in[i] >> (4 * n) & 15u);
      values[8 * i + n] = static_cast<std::int8_t>(is_signed && nibble > 7 ? nibble - 16 : nibble);
    }
  });
  return out;
}

/// `t` so that it broadcasts to `sizes`: as it is, or with each row repeated for its group of rows.
at::Tensor fitted(const char* what, const at::Tensor& t, at::IntArrayRef sizes) {
  const auto fits = [&] {
    if (t.dim() > static_cast<std::int64_t>(sizes.size())) return false;
    for (std::int64_t i = 1; i <= t.dim(); ++i) {
      if (t.size(-i) != 1 && t.size(-i) != sizes[sizes.size() - static_cast<std::size_t>(i)]) return false;
    }
    return true;
  };
  if (fits()) return t;
  TORCH_CHECK(t.dim() == 2 && sizes.size() == 2 && t.size(0) > 0 && sizes[0] % t.size(0) == 0 &&
                  (t.size(1) == sizes[1] || t.size(1) == 1),
              "[convert_from_int4] expected ", what, " that broadcasts to ", sizes, " or has one row per group, got ",
              "sizes ", t.sizes());
  return t.unsqueeze(1).expand({t.size(0), sizes[0] / t.size(0), t.size(1)}).reshape({sizes[0], t.size(1)});
}

// --- 4-bit floats

struct Fp4 {
  std::array<float, 8> values;  ///< of the codes without sign, ascending
  float max() const { return values.back(); }
};
constexpr Fp4 kE2M1{{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f}};
constexpr Fp4 kE3M0{{0.0f, 0.25f, 0.5f, 1.0f, 2.0f, 4.0f, 8.0f, 16.0f}};

const Fp4& fp4_of(std::string_view name) {
  if (name == "fp4_e2m1") return kE2M1;
  TORCH_CHECK(name == "fp4_e3m0", "Unrecognized FP4 dtype. Use naming \"fp4_eXmY\" (fp4_e2m1 or fp4_e3m0, got \"", name,
              "\")");
  return kE3M0;
}

/// 24 random bits as a value in [0, 1), a function of (seed, element).
float uniform(std::uint64_t seed, std::uint64_t element) {
  return static_cast<float>(kernels::splitmix64(seed, element) >> 40) * 0x1p-24f;
}

/// The value that magnitude a becomes; `random`: null to nearest, else in [0, 1).
float rounded(const Fp4& f, float a, const float* random) {
  if (!(a < f.max())) return std::isnan(a) ? a : f.max();
  std::size_t low = 0;
  while (f.values[low + 1] <= a) ++low;
  const float step = f.values[low + 1] - f.values[low], part = a - f.values[low];
  if (random != nullptr) return f.values[low + (*random * step < part ? 1 : 0)];
  const bool up = 2 * part > step || (2 * part == step && low % 2 == 1);
  return f.values[low + (up ? 1 : 0)];
}

void quantize_slice(const Fp4& f, float* x, std::int64_t n, const std::uint64_t* seed, std::uint64_t first) {
  const float amax = kernels::amax(x, kernels::FloatType::F32, n);
  if (amax == 0) return;
  if (!std::isfinite(amax)) {
    std::fill(x, x + n, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const float scale_inv = std::max(amax / f.max(), std::numeric_limits<float>::min()), scale = 1.0f / scale_inv;
  for (std::int64_t i = 0; i < n; ++i) {
    const float random = seed != nullptr ? uniform(*seed, first + static_cast<std::uint64_t>(i)) : 0.0f;
    x[i] = std::copysign(rounded(f, std::fabs(x[i] * scale), seed != nullptr ? &random : nullptr) * scale_inv, x[i]);
  }
}

void check_int4(const at::Tensor& input, at::ScalarType out_dtype) {
  TORCH_CHECK(input.scalar_type() == at::kInt, "Only int input (weights) is supported, got ", input.scalar_type());
  TORCH_CHECK(input.dim() >= 1, "[convert_from_int4] expected an input of at least one dimension");
  TORCH_CHECK(is_high_precision(out_dtype) || is_fp8(out_dtype),
              "[convert_from_int4] expected out_dtype Float, BFloat16, Half, Float8_e4m3fn or Float8_e5m2, got ",
              out_dtype);
}
/// input: int32 [..., n]; result [..., 8n] of out_dtype (f32, bf16, f16 or float8). scale and an unpacked zero_point:
/// any shape that broadcasts to the result, or [G, 8n] for a 2-D input [R, n] with R a multiple of G (groups of R / G
/// rows). A packed zero_point is int32, its last dimension an eighth of what it stands for.
at::Tensor convert_from_int4_meta(const at::Tensor& input, const at::Tensor&, const std::optional<at::Tensor>&,
                                  at::ScalarType out_dtype) {
  check_int4(input, out_dtype);
  auto sizes = input.sizes().vec();
  sizes.back() *= 8;
  return at::empty(sizes, input.options().dtype(out_dtype));
}

template <bool is_signed>
at::Tensor convert_from_int4(const at::Tensor& input, const at::Tensor& scale,
                             const std::optional<at::Tensor>& zero_point, at::ScalarType out_dtype) {
  LeafScope leaf("hpu::convert_from_int4", input, scale, zero_point);
  check_int4(input, out_dtype);
  const at::ScalarType compute = is_fp8(out_dtype) ? at::kFloat : out_dtype;
  at::Tensor values = unpacked(input, is_signed);
  const auto sizes = values.sizes().vec();
  if (!zero_point.has_value() || !zero_point->defined()) {
    values = values.to(compute);
  } else if (zero_point->scalar_type() == at::kInt) {
    TORCH_CHECK(zero_point->dim() >= 1, "[convert_from_int4] expected a packed zero_point of at least one dimension");
    values = at::sub(values, fitted("zero_point", unpacked(*zero_point, is_signed), sizes)).to(compute);
  } else {
    values = at::sub(values.to(compute), fitted("zero_point", *zero_point, sizes).to(compute));
  }
  at::Tensor result = at::mul(values, fitted("scale", scale, sizes).to(compute));
  if (is_fp8(out_dtype)) result = std::get<0>(cast_to_fp8_v2(result, Scale{}, false, false, out_dtype));
  leaf.gives(result);
  return result;
}

/// input: f32, bf16 or f16, at least 1-D; axis: -dim .. dim - 1. Result in input's dtype. A slice of zeros stays zeros,
/// one with a NaN or an infinity becomes NaN. Stochastic bits depend on the generator's seed and the element alone.
at::Tensor fake_quant_fp4_meta(const at::Tensor& input, bool, int64_t axis, std::string_view dtype) {
  (void)fp4_of(dtype);
  check_high_precision("fake_quant_fp4", "input of dtype", input.scalar_type());
  TORCH_CHECK(axis >= -input.dim() && axis < input.dim(), "[fake_quant_fp4] expected axis in [", -input.dim(), ", ",
              input.dim() - 1, "], got ", axis);
  return at::empty(input.sizes(), input.options());
}

at::Tensor fake_quant_fp4(const at::Tensor& input, bool stochastic_rounding, int64_t axis, std::string_view dtype) {
  LeafScope leaf("hpu::fake_quant_fp4", input);
  at::Tensor out = fake_quant_fp4_meta(input, stochastic_rounding, axis, dtype);
  if (input.numel() == 0) return out;
  const Fp4& format = fp4_of(dtype);
  at::Tensor rows = at::empty(input.movedim(axis, 0).sizes(), input.options().dtype(at::kFloat));
  rows.copy_(input.movedim(axis, 0));
  const std::int64_t slices = rows.size(0), n = rows.numel() / slices;
  auto* x = static_cast<float*>(rows.mutable_data_ptr());
  const std::uint64_t seed = stochastic_rounding ? draw_seed() : 0;
  kernels::parallel_each(slices, std::max<std::int64_t>(1, (1 << 14) / n), [&](std::int64_t i) {
    quantize_slice(format, x + i * n, n, stochastic_rounding ? &seed : nullptr, static_cast<std::uint64_t>(i * n));
  });
  out.copy_(rows.movedim(0, axis));
  leaf.gives(out);
  return out;
}

FP8_LIBRARY_IMPL(hpu, HPU, m) {
  Edge edge(m, "hpu");
  edge.impl("convert_from_int4", &convert_from_int4<true>);
  edge.impl("convert_from_uint4", &convert_from_int4<false>);
  edge.impl("fake_quant_fp4", &fake_quant_fp4);
}
FP8_LIBRARY_IMPL(hpu, Meta, m) {
  m.impl("convert_from_int4", &convert_from_int4_meta);
  m.impl("convert_from_uint4", &convert_from_int4_meta);
  m.impl("fake_quant_fp4", &fake_quant_fp4_meta);
}

}  // namespace
}  // namespace fp8::runtime::ops
