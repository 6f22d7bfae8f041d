// SPDX-License-Identifier: Apache-2.0
// What the fp8 operators share: scales as f32 arrays with broadcast strides.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "fp8/runtime/fp8_tensor/dtypes.h"
#include "fp8/runtime/kernels/format.h"

namespace fp8::runtime::ops {

using runtime::check_fp8;
using runtime::dtype_of;
using runtime::float_type_of;
using runtime::format_of;
using runtime::is_fp8;
using runtime::is_high_precision;
using runtime::storage_of;

/// How the device in force reads E4M3 codes: gaudi2 on Gaudi2, else gaudi3 (= ocp). To be asked on the calling thread,
/// not in the pool's: a DeviceKindScope is a thread's own.
kernels::Dialect reading();

/// A scale argument: empty means 1; `shape` broadcasts against the tensor it scales.
struct Scale {
  std::vector<float> values;
  std::vector<std::int64_t> shape;
  bool none() const { return values.empty(); }
  bool per_tensor() const { return values.size() == 1; }
};

/// From an optional tensor (hpu or cpu, f32/bf16/f16) and an optional shape. Throws the vendor's text when numel(scale)
/// differs from prod(shape). Without a shape the tensor's own is taken.
Scale scale_of(const std::optional<at::Tensor>& scale, at::OptionalIntArrayRef shape);
Scale scale_of(double scale, at::OptionalIntArrayRef shape);
Scale scale_of(at::ArrayRef<double> scale, at::OptionalIntArrayRef shape);

/// Rounds the values to `type` (the vendor's ops take scales in the tensor's own arithmetic).
void round_to(Scale& scale, at::ScalarType type);

/// A [rows, cols] matrix's broadcast: value(r, c) = values[r * row_stride + c * col_stride]; nullopt if the shape fits
/// no such pattern of a tensor of `sizes` (its last dimension being cols).
struct Broadcast {
  std::int64_t row_stride = 0, col_stride = 0;
};
std::optional<Broadcast> broadcast_of(const Scale& scale, at::IntArrayRef sizes);

}  // namespace fp8::runtime::ops
