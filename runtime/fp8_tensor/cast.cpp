// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/cast.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "fp8/runtime/fp8_tensor/fp8_tensor.h"
#include "fp8/runtime/kernels/block_cast.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

bool rows_are_contiguous(const at::Tensor& t) {
  return t.is_contiguous() || (t.dim() == 2 && t.stride(1) == 1 && t.stride(0) >= t.size(1));
}

/// x as the kernels read it, checked.
at::Tensor readable(const at::Tensor& x) {
  TORCH_CHECK(is_high_precision(x.scalar_type()), "[quantize] expected x of dtype Float, BFloat16 or Half, got ",
              x.scalar_type());
  TORCH_CHECK(x.device().is_cpu() || x.device().is_hpu(), "[quantize] expected a tensor on hpu or cpu, got ",
              x.device());
  return rows_are_contiguous(x) ? x : x.detach().contiguous();
}

std::uint8_t* bytes_of(const at::Tensor& codes) { return static_cast<std::uint8_t*>(codes.mutable_data_ptr()); }

/// One cast, whose codes are wanted in rows and transposed.
bool in_both_layouts(const CastSpec& first, const CastSpec& second) {
  return first.transpose != second.transpose && first.same_codes(second);
}

/// x: readable(). codes: of its sizes, as the spec has them lie.
kernels::CastArgs arguments(const at::Tensor& x, const CastSpec& spec, const at::Tensor& codes) {
  kernels::CastArgs args{spec};
  args.x = x.const_data_ptr();
  args.type = float_type_of(x.scalar_type());
  args.cols = x.dim() == 0 ? 1 : x.size(-1);
  args.rows = args.cols == 0 ? 0 : x.numel() / args.cols;
  args.row_stride = x.dim() == 2 ? x.stride(0) : args.cols;
  if (args.row_stride < args.cols) args.row_stride = args.cols;  // of at most one row
  (spec.transpose ? args.transposed : args.codes) = bytes_of(codes);
  return args;
}

/// Rows and groups of a row keep the dimensions of x.
at::Tensor room_for_grid(const at::Tensor& x, const CastSpec& spec) {
  const ScaleLayout& l = spec.layout;
  auto sizes = x.sizes().vec();
  if (l.rows > 1) sizes[sizes.size() - 2] = kernels::blocks_of(x.size(-2), l.rows);
  if (!sizes.empty()) sizes.back() = l.cols == 0 ? 1 : kernels::blocks_of(x.size(-1), l.cols);
  return at::empty(sizes, x.options().dtype(spec.rule == ScaleRule::e8m0 ? at::kFloat8_e8m0fnu : at::kFloat));
}

/// A scale that is not finite makes NaN of all that it scales.
float nan_unless_finite(float scale_inv) {
  return std::isfinite(scale_inv) ? scale_inv : std::numeric_limits<float>::quiet_NaN();
}

void check_layout(const at::Tensor& x, const CastSpec& spec) {
  const ScaleLayout& l = spec.layout;
  TORCH_CHECK(!spec.transpose || (x.dim() == 2 && spec.rule == ScaleRule::given),
              "[quantize] expected a matrix and given scales for codes that lie column by column, got sizes ",
              x.sizes());
  TORCH_CHECK(l.rows >= 0 && l.cols >= 0 && l.first_row == 0, "[quantize] expected blocks of at least 1 x 1, got ",
              l.rows, " x ", l.cols);
  if (l.has_blocks()) {
    TORCH_CHECK(x.dim() == 2 || (x.dim() >= 1 && l.rows == 1), "[quantize] expected a matrix for blocks of ", l.rows,
                " x ", l.cols, ", got sizes ", x.sizes());
    TORCH_CHECK(spec.rule != ScaleRule::given, "[quantize] expected a rule for the scales of blocks");
    TORCH_CHECK(spec.rule != ScaleRule::e8m0 || l == ScaleLayout::blocks(1, kernels::kMxBlock) ||
                    l == ScaleLayout::blocks(kernels::kMxBlock, 1),
                "[quantize] expected MX blocks of 1 x 32 or 32 x 1, got ", l.rows, " x ", l.cols);
    return;
  }
  TORCH_CHECK(spec.rule == ScaleRule::given || (spec.rule == ScaleRule::amax_over_max && l.cols == 0),
              "[quantize] expected blocks for this rule, got scales over ", l.rows, " x ", l.cols);
  TORCH_CHECK(spec.rule != ScaleRule::given || l.one() || spec.scales != nullptr,
              "[quantize] expected the scales of rows or columns");
}

Fp8Tensor quantized(const at::Tensor& input, const CastSpec& spec) {
  const at::Tensor x = readable(input);
  check_layout(x, spec);
  Fp8Tensor out = room_for_cast(x, spec);
  kernels::CastArgs args = arguments(x, spec, out.codes);
  if (spec.rule == ScaleRule::e8m0) {
    args.e8m0 = static_cast<std::uint8_t*>(out.grid.mutable_data_ptr());
  } else if (out.grid.defined()) {
    args.grid = out.grid.mutable_data_ptr<float>();
  } else if (spec.rule != ScaleRule::given) {
    out.scale_inv = nan_unless_finite(kernels::block_scale_inv(amax_of(x), spec.saturation(), false));
    args.rule = ScaleRule::given, args.scale = 1.0f / out.scale_inv;
  }
  kernels::cast(args);
  finish_cast(spec, out);
  return out;
}

}  // namespace

Fp8Tensor room_for_cast(const at::Tensor& x, const CastSpec& spec) {
  const at::TensorOptions options = x.options().dtype(dtype_of(spec.format));
  Fp8Tensor out;
  out.codes = spec.transpose ? at::empty_strided(x.sizes(), {1, x.size(0)}, options) : at::empty(x.sizes(), options);
  out.layout = spec.layout;
  if (spec.rule == ScaleRule::given) {
    out.scale_inv = spec.scale_inv;
  } else if (!spec.layout.one()) {
    out.grid = room_for_grid(x, spec);
    out.power_of_two = spec.power_of_two || spec.rule == ScaleRule::e8m0;
  }
  return out;
}

void finish_cast(const CastSpec& spec, const Fp8Tensor& result) {
  if (spec.rule != ScaleRule::amax_over_max || !result.grid.defined()) return;
  auto* scale_inv = result.grid.mutable_data_ptr<float>();
  std::transform(scale_inv, scale_inv + result.grid.numel(), scale_inv, nan_unless_finite);
}

Fp8Tensor quantize(const at::Tensor& x, const CastSpec& spec) {
  OpScope leaf("fp8::quantize", x);
  Fp8Tensor y = quantized(x, spec);
  leaf.gives(y.codes, y.grid);
  note_cast(leaf, x, {{y.codes, spec.saturation()}});
  return y;
}

std::pair<Fp8Tensor, Fp8Tensor> quantize_both(const at::Tensor& input, const CastSpec& first, const CastSpec& second) {
  const bool one_cast = in_both_layouts(first, second);
  OpScope leaf(one_cast ? "fp8::quantize" : "fp8::quantize_both", input);
  if (first.rule != ScaleRule::given || second.rule != ScaleRule::given || !first.layout.one() ||
      !second.layout.one()) {
    std::pair<Fp8Tensor, Fp8Tensor> each{quantized(input, first), quantized(input, second)};
    leaf.gives(each.first.codes, each.second.codes);
    note_cast(leaf, input, {{each.first.codes, first.saturation()}, {each.second.codes, second.saturation()}});
    return each;
  }
  const at::Tensor x = readable(input);
  check_layout(x, first), check_layout(x, second);
  std::pair<Fp8Tensor, Fp8Tensor> both{room_for_cast(x, first), room_for_cast(x, second)};
  cast_into(x, first, both.first.codes, second, both.second.codes);
  leaf.gives(both.first.codes, both.second.codes);
  const CastResult one{both.first.codes, first.saturation()}, other{both.second.codes, second.saturation()};
  one_cast ? note_cast(leaf, x, {one}) : note_cast(leaf, x, {one, other});
  return both;
}

void cast_into(const at::Tensor& input, const CastSpec& spec, const at::Tensor& out) {
  const at::Tensor x = readable(input);
  kernels::cast_to_fp8(arguments(x, spec, out));
}

void cast_into(const at::Tensor& input, const CastSpec& first, const at::Tensor& out, const CastSpec& second,
               const at::Tensor& second_out) {
  const at::Tensor x = readable(input);
  kernels::CastArgs args = arguments(x, first, out);
  if (in_both_layouts(first, second)) {
    (first.transpose ? args.codes : args.transposed) = bytes_of(second_out);
    return kernels::cast_to_fp8(args);
  }
  kernels::cast_to_fp8_twice(args, arguments(x, second, second_out));
}

float amax_of(const at::Tensor& input) {
  const at::Tensor x = input.is_contiguous() ? input : input.detach().contiguous();
  return kernels::amax(x.const_data_ptr(), float_type_of(x.scalar_type()), x.numel());
}

namespace {

double saturated(const at::Tensor& codes, float max) {
  const bool narrow = codes.scalar_type() == at::kFloat8_e4m3fn;
  const std::uint8_t largest = narrow ? c10::Float8_e4m3fn(max).x : c10::Float8_e5m2(max).x;
  const std::uint8_t infinite = narrow ? largest : std::uint8_t{0x7c};
  const auto* first = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  const auto count = std::count_if(first, first + codes.numel(), [=](std::uint8_t code) {
    const auto magnitude = static_cast<std::uint8_t>(code & 0x7f);
    return magnitude == largest || magnitude == infinite;
  });
  return static_cast<double>(count) / static_cast<double>(codes.numel());
}

}  // namespace

void note_cast(LeafScope& leaf, const at::Tensor& x, std::initializer_list<CastResult> results) {
  if (!leaves_heard() || !leaf.wants_numbers() || x.numel() == 0) return;
  constexpr std::array<const char*, 2> kNames = {"saturated", "saturated_2"};
  TORCH_INTERNAL_ASSERT(results.size() <= kNames.size());
  leaf.note("amax", amax_of(x));
  const char* const* name = kNames.begin();
  for (const auto& [codes, max] : results) leaf.note(*name++, saturated(codes, max));
}

}  // namespace fp8::runtime
