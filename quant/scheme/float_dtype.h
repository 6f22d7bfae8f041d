// SPDX-License-Identifier: Apache-2.0
// A file's dtype and the kernels' word for it. No torch here.
#pragma once
#include "fp8/recipes/recipes.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

/// F32, BF16 or F16: what the kernels cast from and decode to.
inline bool is_float(io::DType t) { return t == io::DType::F32 || t == io::DType::BF16 || t == io::DType::F16; }

/// t: one that is_float().
inline recipes::FloatType float_type(io::DType t) {
  return t == io::DType::F32    ? recipes::FloatType::F32
         : t == io::DType::BF16 ? recipes::FloatType::BF16
                                : recipes::FloatType::F16;
}

inline io::DType file_type(recipes::FloatType t) {
  return t == recipes::FloatType::F32    ? io::DType::F32
         : t == recipes::FloatType::BF16 ? io::DType::BF16
                                         : io::DType::F16;
}

}  // namespace fp8::quant
