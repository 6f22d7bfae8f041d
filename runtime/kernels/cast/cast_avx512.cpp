// SPDX-License-Identifier: Apache-2.0
// The cast and the decode for level avx512; see cast_avx512.h.
#include "fp8/runtime/kernels/cast/cast_avx512.h"

namespace fp8::kernels {

extern const CastKernels kCastAvx512 = cast_kernels_of<Avx512<false>>();
extern const DecodeKernels kDecodeAvx512 = decode_kernels_of<Avx512<false>>();

}  // namespace fp8::kernels
