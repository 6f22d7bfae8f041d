// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/fake_quant_handler.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>

#include <stdexcept>

#include "fp8/quant/handlers/straight_through.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {

FakeQuantHandler::FakeQuantHandler(const Scheme& scheme, std::vector<float> weight_scale_inv)
    : scheme_(scheme), weight_scale_inv_(std::move(weight_scale_inv)) {
  if (scheme_.weights == WeightGranularity::block)
    throw std::invalid_argument("fake quantization: found block scales, allowed are scales per tensor or channel");
  if (scheme_.activations == ActivationScaling::static_tensor) input_.emplace(scheme_, scheme_.input_scale_inv);
}

at::Tensor FakeQuantHandler::weight_through_fp8(const at::Tensor& weight, std::int64_t first_row) const {
  StraightThrough op;
  op.forward = [&](const Tensors& in) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor w = in[0].detach().contiguous();
    const std::int64_t rows = w.size(0), cols = rows == 0 ? 0 : w.numel() / rows;
    const bool per_row = weight_scale_inv_.size() > 1;
    WeightScales scales;
    for (std::int64_t r = 0; r < (per_row ? rows : 1); ++r) {
      scales.scale_inv.push_back(weight_scale_inv_[static_cast<std::size_t>(per_row ? first_row + r : 0)]);
      scales.scale.push_back(scale_for(scheme_, scales.scale_inv.back(), "weight"));
    }
    const at::Tensor codes = at::empty(w.sizes(), w.options().dtype(runtime::ops::dtype_of(scheme_.format)));
    cast_weight_rows(w.const_data_ptr(), runtime::ops::float_type_of(w.scalar_type()), rows, cols, 0, scales, scheme_,
                     static_cast<std::uint8_t*>(codes.mutable_data_ptr()));
    runtime::Fp8Tensor fp8{codes.view({rows, cols})};
    fp8.scale_inv = scales.scale_inv[0];
    if (per_row) {
      fp8.layout = runtime::ScaleLayout::per_row();
      fp8.grid = at::from_blob(scales.scale_inv.data(), rows, at::kFloat);
    }
    return runtime::dequantize(fp8, w.scalar_type()).view(w.sizes());
  };
  op.differentiable = [](const Tensors& in) { return in[0]; };
  return straight_through(op, {weight});
}

at::Tensor FakeQuantHandler::linear(const runtime::LinearCall& call) {
  const at::ScalarType compute = compute_dtype(call.x);
  const at::Tensor x = call.x.to(compute);
  const auto bias =
      call.bias.has_value() && call.bias->defined() ? std::optional<at::Tensor>(call.bias->to(compute)) : std::nullopt;
  return at::linear(input_.has_value() ? input_->through_fp8(x) : x,
                    weight_through_fp8(call.weight, call.view.first_row).to(compute), bias);
}

}  // namespace fp8::quant
