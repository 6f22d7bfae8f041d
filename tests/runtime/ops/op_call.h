// SPDX-License-Identifier: Apache-2.0
// Calls an hpu:: operator as TorchScript and Python do (boxed, missing arguments take their defaults), and the scalar
// references that the operators are compared with: formats and roundings by their definition, in f64.
#pragma once

#include "support/hpu_test.h"
#include "support/values.h"

namespace fp8::test {

inline constexpr auto kE4M3 = at::kFloat8_e4m3fn, kE5M2 = at::kFloat8_e5m2;
inline const at::IValue kNone;

/// Results of hpu::<name>.<overload>(args...).
inline std::vector<at::Tensor> call(const char* name, const char* overload, torch::jit::Stack args) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((std::string("hpu::") + name).c_str(), overload);
  op.schema().checkAndNormalizeInputs(args);
  op.callBoxed(args);
  return collected(args, [](const auto& value) { return value.toTensor(); });
}

/// A call on meta tensors gives what the same one on hpu gives: how many, sizes, strides, dtypes.
inline void expect_meta_agrees(const char* name, const char* overload, const torch::jit::Stack& args) {
  torch::jit::Stack on_meta;
  for (const auto& v : args) on_meta.push_back(v.isTensor() ? at::IValue(v.toTensor().to(at::kMeta)) : v);
  const auto real = call(name, overload, args), meta = call(name, overload, on_meta);
  ASSERT_EQ(real.size(), meta.size()) << name;
  for (std::size_t i = 0; i < real.size(); ++i) {
    EXPECT_EQ(real[i].device(), kHpu) << name;
    EXPECT_EQ(meta[i].device().type(), at::kMeta) << name;
    EXPECT_EQ(meta[i].sizes(), real[i].sizes()) << name << "." << overload << " " << i;
    EXPECT_EQ(meta[i].strides(), real[i].strides()) << name << "." << overload << " " << i;
    EXPECT_EQ(meta[i].scalar_type(), real[i].scalar_type()) << name << " " << i;
  }
}

/// A dtype as operators take it from scripts.
inline std::int64_t code(at::ScalarType type) { return static_cast<std::int64_t>(type); }

/// A binary floating point type: `digits` significant bits, smallest normal exponent, largest finite value.
struct Type {
  int digits, min_exponent;
  double max;
};
inline const Type kF32{24, -126, std::numeric_limits<float>::max()}, kBf16{8, -126, std::ldexp(255.0, 120)},
    kF16{11, -14, 65504.0};

inline const Type& type_of(at::ScalarType type) {
  return type == at::kFloat ? kF32 : type == at::kBFloat16 ? kBf16 : kF16;
}

/// v rounded to nearest even in the type; beyond the largest value infinity.
inline double rounded(double v, const Type& type) {
  if (v == 0 || !std::isfinite(v)) return v;
  const int exponent = std::max(std::ilogb(v), type.min_exponent);
  const double quantum = std::ldexp(1.0, exponent - (type.digits - 1)), r = std::nearbyint(v / quantum) * quantum;
  return std::abs(r) > type.max ? std::copysign(HUGE_VAL, v) : r;
}

/// The value of a code: s eeee mmm with bias 7 (S.1111.111 NaN) or s eeeee mm with bias 15 (exponent 31: infinity and
/// NaN).
inline double value_of(int code, bool e5m2) {
  const int mantissa_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  const int exponent = (code & 127) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
  double v = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                           : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  if (e5m2 && exponent == 31) v = mantissa == 0 ? HUGE_VAL : std::nan("");
  if (!e5m2 && (code & 127) == 127) v = std::nan("");
  return code & 128 ? -v : v;
}

/// The code of v: clamped to +-max, to nearest, ties to the even code. NaN is sign | 0x7F.
inline int code_of(double v, bool e5m2, double max) {
  const int sign = std::signbit(v) ? 128 : 0;
  if (std::isnan(v)) return sign | 127;
  static const auto tables = [] {
    std::array<std::array<double, 128>, 2> values;
    for (int i = 0; i < 256; ++i) values[i / 128][i % 128] = value_of(i % 128, i >= 128);
    return values;
  }();
  const auto& values = tables[e5m2 ? 1 : 0];
  const double magnitude = std::min(std::abs(v), max);
  int low = 0;
  while (low < 126 && values[low + 1] <= magnitude) ++low;
  if (values[low] == magnitude) return sign | low;
  const double middle = (values[low] + values[low + 1]) / 2;
  return sign | (magnitude > middle || (magnitude == middle && low % 2 == 1) ? low + 1 : low);
}

/// code_of() each value, flattened; in E5M2 up to its end whatever `max` is.
inline std::vector<int> codes_for(const at::Tensor& v, at::ScalarType type, double max = 448) {
  std::vector<int> codes;
  const at::Tensor flat = v.to(at::kDouble).flatten().contiguous();
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    codes.push_back(code_of(flat.const_data_ptr<double>()[i], type == kE5M2, type == kE5M2 ? 57344 : max));
  return codes;
}

/// Codes as numbers 0..255, any shape flattened.
inline std::vector<int> codes_of(const at::Tensor& t) {
  const at::Tensor bytes = t.cpu().contiguous().view(at::kByte).flatten().to(at::kInt);
  return {bytes.const_data_ptr<int>(), bytes.const_data_ptr<int>() + bytes.numel()};
}

/// The values of an fp8 tensor, f64 on the CPU.
inline at::Tensor values_of(const at::Tensor& t) {
  std::vector<double> values;
  for (const int code : codes_of(t)) values.push_back(value_of(code, t.scalar_type() == at::kFloat8_e5m2));
  return at::tensor(values, at::kDouble).view(t.sizes());
}

/// |y - exact| <= (K + 4) 2^-23 magnitude + half a unit of y's type: a product of K terms.
inline void expect_close(const at::Tensor& y, const at::Tensor& exact, const at::Tensor& magnitude, std::int64_t k,
                         const std::string& what) {
  ASSERT_EQ(y.sizes(), exact.sizes()) << what;
  EXPECT_EQ(y.device(), kHpu);
  const double unit = std::ldexp(1.0, -type_of(y.scalar_type()).digits);
  const at::Tensor error = (y.cpu().to(at::kDouble) - exact).abs();
  const at::Tensor allowed = magnitude.abs() * ((k + 4) * std::ldexp(1.0, -23)) + exact.abs() * unit * 1.001 + 1e-30;
  EXPECT_TRUE((error <= allowed).all().item<bool>())
      << what << ": worst " << (error / allowed).max().item<double>() << " of the allowed";
}

/// Random finite codes on hpu, magnitudes up to 4.
inline at::Tensor random_codes(at::IntArrayRef sizes, at::ScalarType type, std::uint64_t seed) {
  torch::manual_seed(seed);
  const int limit = code_of(4.0, type == at::kFloat8_e5m2, 448);
  const at::Tensor bytes = at::randint(0, limit + 1, sizes, at::kByte) + 128 * at::randint(0, 2, sizes, at::kByte);
  return bytes.view(type).to(kHpu);
}

}  // namespace fp8::test
