// SPDX-License-Identifier: Apache-2.0
// The cast for level avx512; see cast_avx512.h.
#include "fp8/runtime/kernels/x86/cast_avx512.h"

namespace fp8::kernels {

extern const CastKernels kCastAvx512 = cast_kernels_of<Avx512<false>>();

}  // namespace fp8::kernels
