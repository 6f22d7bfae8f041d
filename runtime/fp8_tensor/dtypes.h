// SPDX-License-Identifier: Apache-2.0
// LibTorch's dtypes and the kernels' formats and types.
#pragma once
#include <c10/core/ScalarType.h>

#include "fp8/runtime/kernels/format.h"

namespace fp8::runtime {

bool is_fp8(at::ScalarType type);                ///< float8_e4m3fn or float8_e5m2
kernels::Format format_of(at::ScalarType type);  ///< of an fp8 dtype
at::ScalarType dtype_of(kernels::Format format);
at::ScalarType dtype_of(kernels::FloatType type);
kernels::FloatType float_type_of(at::ScalarType type);  ///< f32, bf16, f16
kernels::Storage storage_of(at::ScalarType type);       ///< those and the two of fp8
bool is_high_precision(at::ScalarType type);            ///< f32, bf16, f16

/// Throws "[op] expected <what> of dtype float8_e4m3fn or float8_e5m2, got ..." unless it is.
void check_fp8(const char* op, const char* what, at::ScalarType type);

}  // namespace fp8::runtime
