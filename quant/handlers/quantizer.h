// SPDX-License-Identifier: Apache-2.0
// Activations into fp8 and back: what the handlers of all module types share.
//
//   static        scale_inv given                         one value
//   dynamic       scale_inv = method(amax) at each call   one value, one per row (dim -1) or column (dim -2),
//                                                         or one per group of neighbours in a row
//
//   codes = cast(x * scale)   own convention: the product in f32, one rounding   INC's: x and the product in hp, as on
//                             the device
//
// A row of zeros gets scale 1 and zero codes; one with NaN or Inf comes out NaN when its scale is made at the call.
#pragma once

#include "fp8/quant/scheme/scheme.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::quant {

/// The device whose arithmetic `dialect` is.
runtime::DeviceKind kind_of(recipes::Dialect dialect);

/// The dtype that `numbers` cast from: f32 under the own convention, hp under INC's.
at::ScalarType source_dtype(const Numbers& numbers);

class Quantizer {
 public:
  /// Static. Throws std::invalid_argument for a scale_inv that is not positive and finite.
  Quantizer(const Numbers& numbers, float scale_inv);
  /// Dynamic: scales are made at the call, one for the tensor, or per row, column or group of neighbours in a row
  /// (fewer at its end). method: INC's convention only. mx: groups of 32 with E8M0 scales, as training makes them.
  /// Throws std::invalid_argument for groups under INC's convention.
  Quantizer(const Numbers& numbers, const runtime::ScaleLayout& layout, const recipes::ScaleMethod& method = {},
            bool mx = false);

  /// x: f32, bf16 or f16 on hpu; throws c10::Error for others. Scales per column: of the last dimension but one.
  runtime::Fp8Tensor cast(const at::Tensor& x) const;
  /// As cast(), for products whose siblings cast the same x: the codes are never written to (fp8_tensor/cast.h).
  runtime::Fp8Tensor cast_once(const at::Tensor& x) const;
  /// How cast_once() casts an x of `dtype`, with dimensions; none where it's another tensor that it casts.
  std::optional<runtime::CastSpec> cast_of(at::ScalarType dtype) const;
  /// Codes that were cast earlier. Static only.
  runtime::Fp8Tensor with_scale(const at::Tensor& codes) const;
  /// x cast to fp8 and back, in its own dtype. Straight-through: the gradient passes as it is.
  at::Tensor through_fp8(const at::Tensor& x) const;

  /// True if both make the same of any x.
  bool casts_as(const Quantizer& other) const;

  bool dynamic() const { return !scale_inv_.has_value(); }
  /// Static only.
  float scale_inv() const { return scale_inv_.value(); }
  const Numbers& numbers() const { return numbers_; }

 private:
  bool columns() const { return layout_ == runtime::ScaleLayout::per_column(); }
  runtime::CastSpec spec() const;
  runtime::Fp8Tensor cast(const at::Tensor& x, bool once) const;
  runtime::Fp8Tensor cast_by_method(const at::Tensor& source) const;

  Numbers numbers_;
  std::optional<float> scale_inv_;
  float scale_ = 1.0f;           ///< static
  runtime::ScaleLayout layout_;  ///< dynamic
  bool mx_ = false;
  recipes::ScaleMethod method_;
};

/// The dtype an operation computes in: the autocast region's, else x's.
at::ScalarType compute_dtype(const at::Tensor& x);

// Straight-through gradients: the forward pass computes in fp8, the backward pass is that of the same operation on the
// dequantized values.

class Fp8Handler;

/// A 2-D convolution apart from its operands. One value per spatial dimension.
struct ConvolutionGeometry {
  std::vector<std::int64_t> stride, padding, dilation;
  std::int64_t groups = 1;
};

/// For x and bias of a quantized product: dx = dy . dequantized(w), db = sum of dy.
at::Tensor product_with_gradient(const std::shared_ptr<const Fp8Handler>& handler, const runtime::WeightView& view,
                                 const at::Tensor& weight, const at::Tensor& x, const std::optional<at::Tensor>& bias);

/// As above, of a 2-D convolution: dx = the transposed convolution of dy with the dequantized w, db = sum of dy over
/// all but channels.
at::Tensor convolution_with_gradient(const std::shared_ptr<const Fp8Handler>& handler,
                                     const ConvolutionGeometry& geometry, const at::Tensor& weight, const at::Tensor& x,
                                     const std::optional<at::Tensor>& bias);

using Tensors = std::vector<at::Tensor>;

/// Any operation of several tensors and one result.
struct StraightThrough {
  std::function<at::Tensor(const Tensors&)> forward;         ///< in fp8, no gradients asked
  std::function<Tensors(const Tensors&)> values;             ///< inputs as fp8 saw them; empty: as they are
  std::function<at::Tensor(const Tensors&)> differentiable;  ///< of those values, in ATen ops
};

/// op.forward(inputs), with gradients for the inputs when they are wanted. One to three inputs, all defined.
at::Tensor straight_through(const StraightThrough& op, const Tensors& inputs);

}  // namespace fp8::quant
