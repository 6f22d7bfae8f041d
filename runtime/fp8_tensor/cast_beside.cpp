// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/cast_beside.h"

#include <ATen/ops/empty.h>

#include "fp8/runtime/fp8_tensor/cast_once.h"
#include "fp8/runtime/fp8_tensor/cast_scales.h"
#include "fp8/runtime/fp8_tensor/dtypes.h"

namespace fp8::runtime {
namespace {

bool is_of_rows(const CastSpec& spec) {
  if (spec.stochastic.has_value() || spec.amax != nullptr) return false;
  if (spec.rule == ScaleRule::given) return spec.layout.one();
  return spec.rule == ScaleRule::amax_over_max && spec.layout == ScaleLayout::per_row();
}

}  // namespace

CastBeside::CastBeside(const at::Tensor& y, const NextCast& next) : y_(y) {
  if (!next.has_value() || !is_of_rows(*next) || y.dim() == 0 || y.numel() == 0 || !may_keep_casts(y)) return;
  spec_ = &*next;
  result_.codes = at::empty(y.sizes(), y.options().dtype(dtype_of(next->format)));
  result_.layout = next->layout;
  if (next->rule == ScaleRule::given)
    result_.scale_inv = next->scale_inv;
  else
    result_.grid = grid_of_rows(y);
}

kernels::RowCast CastBeside::rows() const {
  kernels::RowCast cast;
  if (spec_ == nullptr) return cast;
  cast.codes = static_cast<std::uint8_t*>(result_.codes.mutable_data_ptr());
  cast.format = spec_->format;
  cast.max = kernels::fp8_max(spec_->format, spec_->dialect);
  cast.scale = multiplier(*spec_, y_.scalar_type());
  cast.round_product = spec_->vendor;
  if (result_.grid.defined()) cast.scale_inv = result_.grid.mutable_data_ptr<float>();
  return cast;
}

void CastBeside::keep() const {
  if (spec_ == nullptr) return;
  if (result_.grid.defined()) spoil(result_.grid.mutable_data_ptr<float>(), result_.grid.numel());
  keep_cast(y_, *spec_, result_);
}

}  // namespace fp8::runtime
