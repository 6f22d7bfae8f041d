// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/cast.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <cmath>
#include <limits>

#include "fp8/runtime/fp8_tensor/cast_numbers.h"
#include "fp8/runtime/fp8_tensor/cast_scales.h"
#include "fp8/runtime/fp8_tensor/dtypes.h"
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

/// One cast, whose codes are wanted in rows and turned.
bool in_both_layouts(const CastSpec& first, const CastSpec& second) {
  return first.turned != second.turned && first.same_codes(second);
}

at::Tensor room_for_codes(const at::Tensor& x, const CastSpec& spec) {
  const at::TensorOptions options = x.options().dtype(dtype_of(spec.format));
  return spec.turned ? at::empty_strided(x.sizes(), {1, x.size(0)}, options) : at::empty(x.sizes(), options);
}

/// The fields that all casts share; x: readable().
template <class Args>
Args arguments(const at::Tensor& x, const CastSpec& spec, const at::Tensor& codes) {
  Args args;
  args.x = x.const_data_ptr();
  args.type = float_type_of(x.scalar_type());
  args.cols = x.dim() == 0 ? 1 : x.size(-1);
  args.rows = args.cols == 0 ? 0 : x.numel() / args.cols;
  args.row_stride = x.dim() == 2 ? x.stride(0) : args.cols;
  if (args.row_stride < args.cols) args.row_stride = args.cols;  // of at most one row
  args.codes = bytes_of(codes);
  args.format = spec.format;
  args.max = kernels::fp8_max(spec.format, spec.dialect);
  args.stochastic = spec.stochastic.has_value();
  args.seed = spec.stochastic.value_or(0);
  return args;
}

/// `scale`: where the one scale lies while the cast runs.
kernels::CastArgs given_scales(const at::Tensor& x, const CastSpec& spec, const at::Tensor& codes, float& scale) {
  auto args = arguments<kernels::CastArgs>(x, spec, codes);
  scale = multiplier(spec, x.scalar_type());
  args.scale = spec.layout.one() ? &scale : spec.scales;
  args.scale_row_stride = spec.layout.rows;
  args.scale_col_stride = spec.layout.cols;
  args.round_product = spec.vendor;
  args.flush_subnormal = spec.flush_subnormal;
  args.amax = spec.amax;
  if (spec.turned) std::swap(args.codes, args.transposed);
  return args;
}

/// Room for the scales of blocks; groups of a row keep the dimensions of x.
at::Tensor grid_of_blocks(const at::Tensor& x, const ScaleLayout& layout, at::ScalarType type) {
  auto sizes = x.sizes().vec();
  if (layout.rows > 1) sizes[sizes.size() - 2] = kernels::blocks_of(x.size(-2), layout.rows);
  if (!sizes.empty()) sizes.back() = kernels::blocks_of(x.size(-1), layout.cols);
  return at::empty(sizes, x.options().dtype(type));
}

void cast_tensor_over_max(const at::Tensor& x, CastSpec spec, Fp8Tensor& out) {
  out.scale_inv = kernels::block_scale_inv(amax_of(x), kernels::fp8_max(spec.format, spec.dialect), false);
  spoil(&out.scale_inv, 1);
  spec.scale = 1.0f / out.scale_inv;
  float scale;
  kernels::cast_to_fp8(given_scales(x, spec, out.codes, scale));
}

void cast_rows_over_max(const at::Tensor& x, const CastSpec& spec, Fp8Tensor& out) {
  out.grid = grid_of_rows(x);
  float* scale_inv = out.grid.mutable_data_ptr<float>();
  kernels::cast_rows_dynamic(arguments<kernels::CastArgs>(x, spec, out.codes), scale_inv);
  spoil(scale_inv, out.grid.numel());
}

void cast_blocks(const at::Tensor& x, const CastSpec& spec, Fp8Tensor& out) {
  out.grid = grid_of_blocks(x, spec.layout, at::kFloat);
  out.power_of_two = spec.power_of_two;
  auto args = arguments<kernels::BlockCastArgs>(x, spec, out.codes);
  args.block_rows = spec.layout.rows;
  args.block_cols = spec.layout.cols;
  args.power_of_two = spec.power_of_two;
  args.scale_inv = out.grid.mutable_data_ptr<float>();
  if (spec.rule == ScaleRule::amax_over_max) {
    args.rule = kernels::BlockRule::amax_over_max;
  } else {
    args.amax_epsilon = spec.amax_epsilon;
  }
  kernels::cast_blocks(args);
  if (spec.rule == ScaleRule::amax_over_max) spoil(args.scale_inv, out.grid.numel());
}

void cast_mx(const at::Tensor& x, const CastSpec& spec, Fp8Tensor& out) {
  const bool columnwise = spec.layout.rows > 1;
  TORCH_CHECK(spec.layout ==
                  (columnwise ? ScaleLayout::blocks(kernels::kMxBlock, 1) : ScaleLayout::blocks(1, kernels::kMxBlock)),
              "[quantize] expected MX blocks of 1 x 32 or 32 x 1, got ", spec.layout.rows, " x ", spec.layout.cols);
  out.grid = grid_of_blocks(x, spec.layout, at::kFloat8_e8m0fnu);
  out.power_of_two = true;
  auto args = arguments<kernels::MxCastArgs>(x, spec, out.codes);
  args.columnwise = columnwise;
  args.e8m0 = static_cast<std::uint8_t*>(out.grid.mutable_data_ptr());
  kernels::cast_mx(args);
}

void check_layout(const at::Tensor& x, const CastSpec& spec) {
  const ScaleLayout& l = spec.layout;
  TORCH_CHECK(!spec.turned || (x.dim() == 2 && spec.rule == ScaleRule::given),
              "[quantize] expected a matrix and given scales for codes that lie column by column, got sizes ",
              x.sizes());
  TORCH_CHECK(l.rows >= 0 && l.cols >= 0 && l.first_row == 0, "[quantize] expected blocks of at least 1 x 1, got ",
              l.rows, " x ", l.cols);
  if (l.has_blocks()) {
    TORCH_CHECK(x.dim() == 2 || (x.dim() >= 1 && l.rows == 1), "[quantize] expected a matrix for blocks of ", l.rows,
                " x ", l.cols, ", got sizes ", x.sizes());
    TORCH_CHECK(spec.rule != ScaleRule::given, "[quantize] expected a rule for the scales of blocks");
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
  Fp8Tensor out;
  out.codes = room_for_codes(x, spec);
  out.layout = spec.layout;
  if (spec.rule == ScaleRule::given) {
    float scale;
    out.scale_inv = spec.scale_inv;
    kernels::cast_to_fp8(given_scales(x, spec, out.codes, scale));
  } else if (spec.layout.one()) {
    cast_tensor_over_max(x, spec, out);
  } else if (spec.layout.cols == 0) {
    cast_rows_over_max(x, spec, out);
  } else if (spec.rule == ScaleRule::e8m0) {
    cast_mx(x, spec, out);
  } else {
    cast_blocks(x, spec, out);
  }
  return out;
}

}  // namespace

float multiplier(const CastSpec& spec, at::ScalarType dtype) {
  if (spec.vendor && dtype == at::kBFloat16) return c10::BFloat16(spec.scale);
  if (spec.vendor && dtype == at::kHalf) return c10::Half(spec.scale);
  return spec.scale;
}

at::Tensor grid_of_rows(const at::Tensor& x) {
  auto sizes = x.sizes().vec();
  if (!sizes.empty()) sizes.back() = 1;
  return at::empty(sizes, x.options().dtype(at::kFloat));
}

void spoil(float* scale_inv, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(scale_inv[i])) scale_inv[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

bool CastSpec::same_result(const CastSpec& o) const {
  return scales == nullptr && !stochastic && turned == o.turned && same_codes(o);
}

bool CastSpec::same_codes(const CastSpec& o) const {
  return format == o.format && dialect == o.dialect && layout == o.layout && rule == o.rule && scale == o.scale &&
         scale_inv == o.scale_inv && scales == o.scales && power_of_two == o.power_of_two &&
         amax_epsilon == o.amax_epsilon && vendor == o.vendor && stochastic == o.stochastic &&
         flush_subnormal == o.flush_subnormal;
}

Fp8Tensor quantize(const at::Tensor& x, const CastSpec& spec) {
  OpScope leaf("fp8::quantize", x);
  Fp8Tensor y = quantized(x, spec);
  leaf.gives(y.codes, y.grid);
  note_cast(leaf, x, {{y.codes, spec.dialect}});
  return y;
}

std::pair<Fp8Tensor, Fp8Tensor> quantize_both(const at::Tensor& input, const CastSpec& first, const CastSpec& second) {
  const bool one_cast = in_both_layouts(first, second);
  OpScope leaf(one_cast ? "fp8::quantize" : "fp8::quantize_both", input);
  if (first.rule != ScaleRule::given || second.rule != ScaleRule::given || !first.layout.one() ||
      !second.layout.one()) {
    std::pair<Fp8Tensor, Fp8Tensor> each{quantized(input, first), quantized(input, second)};
    leaf.gives(each.first.codes, each.second.codes);
    note_cast(leaf, input, {{each.first.codes, first.dialect}, {each.second.codes, second.dialect}});
    return each;
  }
  const at::Tensor x = readable(input);
  const auto empty = [&](const CastSpec& spec) {
    check_layout(x, spec);
    Fp8Tensor out{room_for_codes(x, spec)};
    out.scale_inv = spec.scale_inv;
    return out;
  };
  std::pair<Fp8Tensor, Fp8Tensor> both{empty(first), empty(second)};
  cast_into(x, first, both.first.codes, second, both.second.codes);
  leaf.gives(both.first.codes, both.second.codes);
  const CastResult one{both.first.codes, first.dialect}, other{both.second.codes, second.dialect};
  one_cast ? note_cast(leaf, x, {one}) : note_cast(leaf, x, {one, other});
  return both;
}

void cast_into(const at::Tensor& input, const CastSpec& spec, const at::Tensor& out) {
  const at::Tensor x = readable(input);
  float scale;
  kernels::cast_to_fp8(given_scales(x, spec, out, scale));
}

void cast_into(const at::Tensor& input, const CastSpec& first, const at::Tensor& out, const CastSpec& second,
               const at::Tensor& second_out) {
  const at::Tensor x = readable(input);
  float scale, second_scale;
  kernels::CastArgs args = given_scales(x, first, out, scale);
  if (in_both_layouts(first, second)) {
    (first.turned ? args.codes : args.transposed) = bytes_of(second_out);
    return kernels::cast_to_fp8(args);
  }
  kernels::cast_to_fp8_twice(args, given_scales(x, second, second_out, second_scale));
}

float amax_of(const at::Tensor& input) {
  const at::Tensor x = input.is_contiguous() ? input : input.detach().contiguous();
  return kernels::amax(x.const_data_ptr(), float_type_of(x.scalar_type()), x.numel());
}

}  // namespace fp8::runtime
