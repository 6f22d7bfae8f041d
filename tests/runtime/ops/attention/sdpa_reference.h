// SPDX-License-Identifier: Apache-2.0
// Attention by its formula in f64, for the tests of the sdpa operators.
//
//   S = q . k^T * scale + mask, -inf where a key is not visible      P = softmax(S), rows without a visible key 0
#pragma once
#include "runtime/ops/op_call.h"

namespace fp8::test {

/// A scale on the device.
inline at::Tensor one(double v) { return at::full({1}, v, on_hpu()); }

/// f64 on the CPU; fp8 as its codes' values.
inline at::Tensor wide(const at::Tensor& t) {
  return c10::isFloat8Type(t.scalar_type()) ? values_of(t) : t.detach().cpu().to(at::kDouble);
}

/// Masks as addends of 0 or -inf, [L, S] or [B, L, S] (one per sequence).
inline at::Tensor causal_mask(std::int64_t queries, std::int64_t keys) {
  return at::full({queries, keys}, -HUGE_VAL, at::kDouble).triu(1);
}
inline at::Tensor padding_mask(const std::vector<std::int64_t>& lengths, std::int64_t keys, bool left) {
  at::Tensor mask = at::full({static_cast<std::int64_t>(lengths.size()), 1, keys}, -HUGE_VAL, at::kDouble);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    mask[static_cast<std::int64_t>(i)].slice(-1, left ? keys - lengths[i] : 0, left ? keys : lengths[i]).zero_();
  return mask;
}

inline at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k, double scale,
                                const std::optional<at::Tensor>& mask = {}) {
  at::Tensor s = at::matmul(q, k.transpose(-2, -1)) * scale;
  if (mask.has_value()) s = s + *mask;
  const at::Tensor max = s.amax(-1, true), e = at::exp(s - at::where(at::isinf(max), at::zeros_like(max), max));
  const at::Tensor sum = e.sum(-1, true);
  return e / at::where(sum == 0, at::ones_like(sum), sum);
}

/// |got - exact| <= magnitude * 2^-19 + half a unit of got's dtype: f32 sums of f32-accurate terms, one rounding.
inline void expect_rounded(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& magnitude,
                           const std::string& what) {
  ASSERT_EQ(got.sizes(), exact.sizes()) << what;
  EXPECT_EQ(got.device(), kHpu) << what;
  const Type& type = type_of(got.scalar_type());
  const at::Tensor error = (wide(got) - exact).abs();
  const at::Tensor allowed = magnitude.abs() * std::ldexp(1.0, -19) + exact.abs() * std::ldexp(1.001, -type.digits) +
                             std::ldexp(1.0, type.min_exponent - type.digits);
  EXPECT_TRUE((error <= allowed).all().item<bool>())
      << what << ": worst " << (error / allowed).max().item<double>() << " of the allowed";
}

/// The value nearest in fp8, of every element.
inline at::Tensor rounded_fp8(const at::Tensor& t, bool e5m2, double max) {
  const at::Tensor in = t.contiguous();
  at::Tensor out = at::empty_like(in);
  for (std::int64_t i = 0; i < in.numel(); ++i)
    out.mutable_data_ptr<double>()[i] = value_of(code_of(in.const_data_ptr<double>()[i], e5m2, max), e5m2);
  return out;
}

inline at::Tensor random_hpu(at::IntArrayRef sizes, at::ScalarType type, std::uint64_t seed) {
  torch::manual_seed(seed);
  return at::randn(sizes).to(type).to(kHpu);
}

}  // namespace fp8::test
