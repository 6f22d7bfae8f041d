// SPDX-License-Identifier: Apache-2.0
// Activations into fp8 and back: what the handlers of all module types share.
//
//   static        scale_inv given                         one value
//   dynamic       scale_inv = method(amax) at each call   one value, one per row (dim -1) or column (dim -2),
//                                                         or one per group of neighbours in a row
//
//   codes = cast(x * scale)   own convention: x in f32, one rounding   INC's: x and the product in hp, as on the device
//
// A row of zeros gets scale 1 and zero codes; one with NaN or Inf comes out NaN when its scale is made at the call.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "fp8/quant/scheme/scheme.h"
#include "fp8/runtime/device/device.h"

namespace fp8::quant {

/// fp8 codes and their multipliers out of fp8.
struct Codes {
  at::Tensor codes;
  /// f32: [1], or the shape of codes with 1 in the dimension that shares a scale, groups: the number of groups in the
  /// last; on the host when static
  at::Tensor scale_inv;
};

/// The device whose arithmetic `dialect` is.
runtime::DeviceKind kind_of(recipes::Dialect dialect);

/// The dtype that `numbers` cast from: f32 under the own convention, hp under INC's.
at::ScalarType source_dtype(const Numbers& numbers);

/// codes, seen as [rows, cols] -> values of `dtype` in `sizes`. The product is taken in f32 and rounded once.
/// scale_inv: f32 on the host, row r's at r * scale_stride.
at::Tensor decode(const at::Tensor& codes, at::IntArrayRef sizes, std::int64_t rows, at::ScalarType dtype,
                  recipes::Format format, const float* scale_inv, std::int64_t scale_stride);

/// The same by the rule of decode_weight_rows(): codes, seen as rows of `cols`, are those from first_row on of a weight
/// with the scheme's scales.
at::Tensor decode(const at::Tensor& codes, at::IntArrayRef sizes, std::int64_t cols, at::ScalarType dtype,
                  const Scheme& scheme, std::int64_t first_row, const float* scale_inv, std::int64_t scales);

class Quantizer {
 public:
  /// Which elements share a scale that is made at the call.
  enum class Over : std::uint8_t { tensor, row, column, group };

  /// Static. Throws std::invalid_argument for a scale_inv that is not positive and finite.
  Quantizer(const Numbers& numbers, float scale_inv);
  /// Dynamic. method: INC's convention only.
  Quantizer(const Numbers& numbers, Over over, const recipes::ScaleMethod& method);
  /// Dynamic, one scale per `group` neighbours in a row (fewer at its end). Throws std::invalid_argument for a group <
  /// 1 and for INC's convention.
  Quantizer(const Numbers& numbers, std::int64_t group);

  /// x: f32, bf16 or f16 on hpu.
  Codes cast(const at::Tensor& x) const;
  at::Tensor values(const Codes& codes, at::ScalarType dtype) const;
  /// What x becomes on its way through fp8, in its own dtype. Straight-through: the gradient passes as it is.
  at::Tensor through_fp8(const at::Tensor& x) const;

  bool dynamic() const { return !scale_inv_.has_value(); }
  /// Static only.
  float scale_inv() const { return scale_inv_.value(); }
  const Numbers& numbers() const { return numbers_; }

 private:
  Codes cast_dynamic(const at::Tensor& source) const;
  Codes cast_groups(const at::Tensor& source) const;
  at::Tensor values_of_rows(const at::Tensor& codes, const at::Tensor& scale_inv, at::ScalarType dtype) const;

  Numbers numbers_;
  std::optional<float> scale_inv_;
  at::Tensor scale_tensor_, scale_inv_tensor_;  ///< static, on the host: the operators read them there
  Over over_ = Over::tensor;
  std::int64_t group_ = 0;
  recipes::ScaleMethod method_;
};

/// The dtype an operation computes in: the autocast region's, else x's.
at::ScalarType compute_dtype(const at::Tensor& x);

}  // namespace fp8::quant
