// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/quantizer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "fp8/quant/handlers/straight_through.h"
#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/kernels/block_cast.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/ops/cast/fp8_ops.h"
#include "fp8/runtime/ops/common/arguments.h"

namespace fp8::quant {
namespace ops = runtime::ops;

runtime::DeviceKind kind_of(recipes::Dialect dialect) {
  return dialect == recipes::Dialect::gaudi2 ? runtime::DeviceKind::gaudi2 : runtime::DeviceKind::gaudi3;
}

at::ScalarType source_dtype(const Numbers& numbers) {
  if (numbers.convention == Convention::own || numbers.hp == recipes::FloatType::F32) return at::kFloat;
  return numbers.hp == recipes::FloatType::BF16 ? at::kBFloat16 : at::kHalf;
}

at::Tensor decode(const at::Tensor& codes, at::IntArrayRef sizes, std::int64_t rows, at::ScalarType dtype,
                  recipes::Format format, const float* scale_inv, std::int64_t scale_stride) {
  const at::Tensor dense = codes.is_contiguous() ? codes : codes.view(at::kByte).contiguous();
  at::Tensor out = at::empty(sizes, codes.options().dtype(dtype));
  kernels::DecodeArgs args;
  args.codes = static_cast<const std::uint8_t*>(dense.const_data_ptr());
  args.rows = rows;
  args.cols = rows == 0 ? 0 : codes.numel() / rows;
  args.format = format;
  args.y = out.mutable_data_ptr();
  args.type = ops::float_type_of(dtype);
  args.scale_inv = scale_inv;
  args.scale_row_stride = scale_stride;
  kernels::decode_from_fp8(args);
  return out;
}

at::Tensor decode(const at::Tensor& codes, at::IntArrayRef sizes, std::int64_t cols, at::ScalarType dtype,
                  const Scheme& scheme, std::int64_t first_row, const float* scale_inv, std::int64_t scales) {
  const at::Tensor dense = codes.is_contiguous() ? codes : codes.view(at::kByte).contiguous();
  at::Tensor out = at::empty(sizes, codes.options().dtype(dtype));
  if (codes.numel() == 0) return out;
  decode_weight_rows(static_cast<const std::uint8_t*>(dense.const_data_ptr()), codes.numel() / cols, cols, first_row,
                     scale_inv, scales, scheme, out.mutable_data_ptr(), ops::float_type_of(dtype));
  return out;
}

Quantizer::Quantizer(const Numbers& numbers, float scale_inv) : numbers_(numbers), scale_inv_(scale_inv) {
  if (!(scale_inv > 0.0f) || !std::isfinite(scale_inv))
    throw std::invalid_argument("scale_inv: found " + std::to_string(scale_inv) +
                                ", expected a positive finite number");
  scale_tensor_ = at::full({1}, scale_for(numbers, scale_inv, "scale_inv"), at::kFloat);
  scale_inv_tensor_ = at::full({1}, scale_inv, at::kFloat);
}

Quantizer::Quantizer(const Numbers& numbers, Over over, const recipes::ScaleMethod& method)
    : numbers_(numbers), over_(over), method_(method) {}

Quantizer::Quantizer(const Numbers& numbers, std::int64_t group)
    : numbers_(numbers), over_(Over::group), group_(group) {
  if (group < 1)
    throw std::invalid_argument("activation groups: found " + std::to_string(group) + " columns, expected at least 1");
  if (numbers.convention != Convention::own)
    throw std::invalid_argument("activation groups: INC's convention has none, expected the own convention");
}

Codes Quantizer::cast(const at::Tensor& x) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const runtime::DeviceKindScope kind(kind_of(numbers_.dialect));
  const at::Tensor source = x.to(source_dtype(numbers_));
  if (!dynamic())
    return {ops::call_cast_to_fp8(source.contiguous(), scale_tensor_, ops::dtype_of(numbers_.format)),
            scale_inv_tensor_};
  if (over_ == Over::group) return cast_groups(source.contiguous());
  if (over_ != Over::column || source.dim() < 2) return cast_dynamic(source.contiguous());
  const Codes turned = cast_dynamic(source.transpose(-2, -1).contiguous());  // columns as rows
  return {turned.codes.transpose(-2, -1),
          turned.scale_inv.dim() < 2 ? turned.scale_inv : turned.scale_inv.transpose(-2, -1)};
}

Codes Quantizer::cast_dynamic(const at::Tensor& source) const {
  const bool per_row = over_ != Over::tensor && source.dim() > 0;
  const std::int64_t cols = per_row ? source.size(-1) : source.numel();
  const auto sizes = source.sizes();
  const std::int64_t rows =
      per_row ? std::accumulate(sizes.begin(), sizes.end() - 1, std::int64_t{1}, std::multiplies<>()) : 1;
  at::Tensor scale = at::empty({rows}, source.options().dtype(at::kFloat)), scale_inv = at::empty_like(scale);
  float *inv = scale_inv.mutable_data_ptr<float>(), *into = scale.mutable_data_ptr<float>();
  kernels::amax_rows(source.const_data_ptr(), ops::float_type_of(source.scalar_type()), rows, cols, cols, inv);
  if (numbers_.convention == Convention::inc)
    recipes::inc_dynamic_scale_inv(inv, rows, method_, {numbers_.dialect, numbers_.format, numbers_.hp}, inv);
  for (std::int64_t r = 0; r < rows; ++r) {
    if (!std::isfinite(inv[r])) {
      inv[r] = into[r] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    if (numbers_.convention == Convention::own)
      inv[r] = recipes::scale_inv_from_amax(inv[r], numbers_.fp8_max(), "activation");
    into[r] = numbers_.convention == Convention::own ? 1.0f / inv[r] : recipes::inc_scale(inv[r], numbers_.hp);
  }
  std::vector<std::int64_t> shape(static_cast<std::size_t>(source.dim()), 1);
  if (per_row) {
    shape = source.sizes().vec();
    shape.back() = 1;
  }
  return {ops::call_cast_to_fp8(source, scale, ops::dtype_of(numbers_.format), shape),
          per_row ? scale_inv.view(shape) : scale_inv};
}

Codes Quantizer::cast_groups(const at::Tensor& source) const {
  const std::int64_t cols = source.dim() == 0 ? 1 : source.size(-1), rows = cols == 0 ? 0 : source.numel() / cols;
  std::vector<std::int64_t> shape = source.sizes().vec();
  if (!shape.empty()) shape.back() = kernels::blocks_of(cols, group_);
  Codes out{at::empty(source.sizes(), source.options().dtype(ops::dtype_of(numbers_.format))),
            at::empty(shape, source.options().dtype(at::kFloat))};
  float* inv = out.scale_inv.mutable_data_ptr<float>();
  kernels::BlockCastArgs args;
  args.x = source.const_data_ptr();
  args.type = ops::float_type_of(source.scalar_type());
  args.rows = rows;
  args.cols = args.row_stride = cols;
  args.codes = static_cast<std::uint8_t*>(out.codes.mutable_data_ptr());
  args.format = numbers_.format;
  args.max = numbers_.fp8_max();
  args.block_rows = 1;
  args.block_cols = group_;
  args.rule = kernels::BlockRule::amax_over_max;
  args.scale_inv = inv;
  kernels::cast_blocks(args);
  for (std::int64_t i = 0; i < out.scale_inv.numel(); ++i) {
    if (!std::isfinite(inv[i])) inv[i] = std::numeric_limits<float>::quiet_NaN();
  }
  return out;
}

at::Tensor Quantizer::values(const Codes& c, at::ScalarType dtype) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const float* inv = c.scale_inv.const_data_ptr<float>();
  if (over_ == Over::group && !scale_inv_.has_value()) {
    Scheme groups;  // they lie over an activation as blocks of one row do over a weight
    static_cast<Numbers&>(groups) = numbers_;
    groups.weights = WeightGranularity::block;
    groups.block = {1, group_};
    const std::int64_t cols = c.codes.dim() == 0 ? 1 : c.codes.size(-1);
    return decode(c.codes, c.codes.sizes(), cols, dtype, groups, 0, inv, c.scale_inv.numel());
  }
  if (c.scale_inv.numel() == 1) return decode(c.codes, c.codes.sizes(), 1, dtype, numbers_.format, inv, 0);
  if (over_ == Over::column && c.codes.dim() >= 2) {
    return values_of_rows(c.codes.transpose(-2, -1), c.scale_inv.transpose(-2, -1), dtype).transpose(-2, -1);
  }
  return values_of_rows(c.codes, c.scale_inv, dtype);
}

at::Tensor Quantizer::values_of_rows(const at::Tensor& codes, const at::Tensor& scale_inv, at::ScalarType dtype) const {
  const at::Tensor inv = scale_inv.contiguous();
  return decode(codes, codes.sizes(), inv.numel(), dtype, numbers_.format, inv.const_data_ptr<float>(), 1);
}

at::Tensor Quantizer::through_fp8(const at::Tensor& x) const {
  StraightThrough op;
  op.forward = [this](const std::vector<at::Tensor>& in) { return values(cast(in[0]), in[0].scalar_type()); };
  op.differentiable = [](const std::vector<at::Tensor>& in) { return in[0]; };
  return straight_through(op, {x});
}

at::ScalarType compute_dtype(const at::Tensor& x) {
  return runtime::autocast::region_dtype().value_or(x.scalar_type());
}

}  // namespace fp8::quant
