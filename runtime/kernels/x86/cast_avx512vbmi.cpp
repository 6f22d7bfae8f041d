// SPDX-License-Identifier: Apache-2.0
// The cast for level avx512bf16, whose CPUs permute single bytes across two vectors (VBMI); see cast_avx512.h.
#include "fp8/runtime/kernels/x86/cast_avx512.h"

namespace fp8::kernels {

extern const CastKernels kCastAvx512Vbmi = cast_kernels_of<Avx512<true>>();

}  // namespace fp8::kernels
