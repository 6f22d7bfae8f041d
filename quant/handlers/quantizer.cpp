// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/quantizer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "fp8/quant/handlers/straight_through.h"
#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/fp8_tensor/cast_once.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {
namespace ops = runtime::ops;
using runtime::Fp8Tensor;
using runtime::ScaleLayout;

runtime::DeviceKind kind_of(recipes::Dialect dialect) {
  return dialect == recipes::Dialect::gaudi2 ? runtime::DeviceKind::gaudi2 : runtime::DeviceKind::gaudi3;
}

at::ScalarType source_dtype(const Numbers& numbers) {
  if (numbers.convention == Convention::own || numbers.hp == recipes::FloatType::F32) return at::kFloat;
  return numbers.hp == recipes::FloatType::BF16 ? at::kBFloat16 : at::kHalf;
}

Quantizer::Quantizer(const Numbers& numbers, float scale_inv) : numbers_(numbers), scale_inv_(scale_inv) {
  if (!(scale_inv > 0.0f) || !std::isfinite(scale_inv))
    throw std::invalid_argument("scale_inv: found " + std::to_string(scale_inv) +
                                ", expected a positive finite number");
  scale_ = scale_for(numbers, scale_inv, "scale_inv");
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

namespace {

/// Columns as rows.
at::Tensor turned(const at::Tensor& x) { return x.transpose(-2, -1); }

Fp8Tensor turned(Fp8Tensor x) {
  x.codes = turned(x.codes);
  if (x.layout.one()) return x;
  x.grid = turned(x.grid);
  x.layout = ScaleLayout::per_column();
  return x;
}

/// A grid of one scale is that scale.
Fp8Tensor simplified(Fp8Tensor x) {
  if (x.layout.one() || x.grid.numel() != 1 || x.grid.scalar_type() != at::kFloat) return x;
  x.scale_inv = *x.grid.const_data_ptr<float>();
  x.grid = at::Tensor();
  x.layout = ScaleLayout::per_tensor();
  return x;
}

}  // namespace

/// All but the scales that INC's methods make at each call.
runtime::CastSpec Quantizer::spec() const {
  runtime::CastSpec spec{.format = numbers_.format, .dialect = numbers_.dialect};
  spec.vendor = numbers_.convention == Convention::inc;
  if (!dynamic()) {
    spec.scale = scale_;
    spec.scale_inv = *scale_inv_;
    return spec;
  }
  spec.rule = runtime::ScaleRule::amax_over_max;
  if (over_ == Over::group) spec.layout = ScaleLayout::blocks(1, group_);
  if (over_ == Over::row || over_ == Over::column) spec.layout = ScaleLayout::per_row();
  return spec;
}

bool Quantizer::casts_as(const Quantizer& other) const {
  return spec().same_result(other.spec()) && over_ == other.over_ && group_ == other.group_ &&
         source_dtype(numbers_) == source_dtype(other.numbers_) && method_ == other.method_;
}

Fp8Tensor Quantizer::cast(const at::Tensor& x, bool once) const {
  TORCH_CHECK(x.is_hpu(), "[cast_to_fp8] expected an activation on hpu, got one on ", x.device());
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::ScalarType dtype = numbers_.convention == Convention::inc    ? source_dtype(numbers_)
                               : ops::is_high_precision(x.scalar_type()) ? x.scalar_type()
                                                                         : at::kFloat;
  const bool columns = dynamic() && over_ == Over::column && x.dim() >= 2;
  const at::Tensor source = columns ? turned(x.to(dtype)) : x.to(dtype);
  if (dynamic() && numbers_.convention == Convention::inc) {
    const Fp8Tensor result = simplified(cast_by_method(source.contiguous()));
    return columns ? turned(result) : result;
  }
  runtime::CastSpec how = spec();
  if (x.dim() == 0 && dynamic()) how.layout = ScaleLayout::per_tensor();
  const Fp8Tensor result =
      simplified(once && !columns ? runtime::cast_once(x, source, how) : runtime::quantize(source, how));
  return columns ? turned(result) : result;
}

Fp8Tensor Quantizer::cast(const at::Tensor& x) const { return cast(x, false); }
Fp8Tensor Quantizer::cast_once(const at::Tensor& x) const { return cast(x, true); }

std::optional<runtime::CastSpec> Quantizer::cast_of(at::ScalarType dtype) const {
  const bool inc = numbers_.convention == Convention::inc;
  if (!ops::is_high_precision(dtype) || (inc && (dynamic() || source_dtype(numbers_) != dtype)) ||
      over_ == Over::column)
    return std::nullopt;
  return spec();
}

Fp8Tensor Quantizer::with_scale(const at::Tensor& codes) const {
  Fp8Tensor x{codes};
  x.scale_inv = scale_inv();
  return x;
}

/// INC's dynamic scales. source: contiguous, in hp.
Fp8Tensor Quantizer::cast_by_method(const at::Tensor& source) const {
  const bool per_row = over_ != Over::tensor && source.dim() > 0;
  auto sizes = source.sizes().vec();
  if (per_row) sizes.back() = 1;
  const at::Tensor grid =
      at::empty(per_row ? at::IntArrayRef(sizes) : at::IntArrayRef({1}), source.options().dtype(at::kFloat));
  const std::int64_t rows = grid.numel(), cols = per_row ? source.size(-1) : source.numel();
  float* scale_inv = grid.mutable_data_ptr<float>();
  kernels::amax_rows(source.const_data_ptr(), ops::float_type_of(source.scalar_type()), rows, cols, cols, scale_inv);
  recipes::inc_dynamic_scale_inv(scale_inv, rows, method_, {numbers_.dialect, numbers_.format, numbers_.hp}, scale_inv);
  std::vector<float> scales(static_cast<std::size_t>(rows));
  for (std::size_t r = 0; r < scales.size(); ++r) {
    if (!std::isfinite(scale_inv[r])) scale_inv[r] = std::numeric_limits<float>::quiet_NaN();
    scales[r] = std::isnan(scale_inv[r]) ? scale_inv[r] : recipes::inc_scale(scale_inv[r], numbers_.hp);
  }
  runtime::CastSpec how = spec();
  how.rule = runtime::ScaleRule::given;
  how.layout = per_row ? ScaleLayout::per_row() : ScaleLayout::per_tensor();
  how.scale = rows > 0 ? scales[0] : 1.0f;
  how.scales = scales.data();
  Fp8Tensor result = runtime::quantize(source, how);
  result.layout = ScaleLayout::per_row();
  result.grid = grid;
  return result;
}

at::Tensor Quantizer::through_fp8(const at::Tensor& x) const {
  StraightThrough op;
  op.forward = [this](const std::vector<at::Tensor>& in) {
    return runtime::dequantize(cast(in[0]), in[0].scalar_type());
  };
  op.differentiable = [](const std::vector<at::Tensor>& in) { return in[0]; };
  return straight_through(op, {x});
}

at::ScalarType compute_dtype(const at::Tensor& x) {
  return runtime::autocast::region_dtype().value_or(x.scalar_type());
}

}  // namespace fp8::quant
