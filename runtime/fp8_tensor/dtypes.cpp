// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/dtypes.h"

#include <c10/util/Exception.h>

namespace fp8::runtime {

bool is_fp8(at::ScalarType type) { return type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2; }
kernels::Format format_of(at::ScalarType type) {
  return type == at::kFloat8_e5m2 ? kernels::Format::E5M2 : kernels::Format::E4M3;
}
at::ScalarType dtype_of(kernels::Format format) {
  return format == kernels::Format::E5M2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}
at::ScalarType dtype_of(kernels::FloatType type) {
  return type == kernels::FloatType::F32 ? at::kFloat : type == kernels::FloatType::BF16 ? at::kBFloat16 : at::kHalf;
}
bool is_high_precision(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf; }

kernels::FloatType float_type_of(at::ScalarType type) {
  return type == at::kFloat      ? kernels::FloatType::F32
         : type == at::kBFloat16 ? kernels::FloatType::BF16
                                 : kernels::FloatType::F16;
}

kernels::Storage storage_of(at::ScalarType type) {
  return type == at::kFloat         ? kernels::Storage::F32
         : type == at::kBFloat16    ? kernels::Storage::BF16
         : type == at::kHalf        ? kernels::Storage::F16
         : type == at::kFloat8_e5m2 ? kernels::Storage::E5M2
                                    : kernels::Storage::E4M3;
}

void check_fp8(const char* op, const char* what, at::ScalarType type) {
  TORCH_CHECK(is_fp8(type), "[", op, "] expected ", what, " of dtype Float8_e4m3fn or Float8_e5m2, got ", type);
}

}  // namespace fp8::runtime
