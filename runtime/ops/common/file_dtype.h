// SPDX-License-Identifier: Apache-2.0
// The dtypes that LibTorch's tensors and files of tensors have in common.
#pragma once
#include <c10/core/ScalarType.h>

#include <utility>

#include "fp8/runtime/io/tensors/tensor_file.h"

namespace fp8::runtime::ops {

inline constexpr std::pair<at::ScalarType, io::DType> kFileDTypes[] = {
    {at::kBool, io::DType::BOOL},
    {at::kByte, io::DType::U8},
    {at::kChar, io::DType::I8},
    {at::kShort, io::DType::I16},
    {at::kInt, io::DType::I32},
    {at::kLong, io::DType::I64},
    {at::kHalf, io::DType::F16},
    {at::kBFloat16, io::DType::BF16},
    {at::kFloat, io::DType::F32},
    {at::kDouble, io::DType::F64},
    {at::kFloat8_e4m3fn, io::DType::F8_E4M3},
    {at::kFloat8_e5m2, io::DType::F8_E5M2},
};

/// Empty for a dtype that files lack.
inline std::optional<io::DType> file_dtype(at::ScalarType dtype) {
  for (const auto& [own, stored] : kFileDTypes)
    if (own == dtype) return stored;
  return std::nullopt;
}

/// Empty for a dtype that LibTorch lacks.
inline std::optional<at::ScalarType> tensor_dtype(io::DType dtype) {
  for (const auto& [own, stored] : kFileDTypes)
    if (stored == dtype) return own;
  return std::nullopt;
}

}  // namespace fp8::runtime::ops
