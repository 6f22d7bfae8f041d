// SPDX-License-Identifier: Apache-2.0
// Products of f32 for both datapaths.
#include "fp8/runtime/kernels/gemm/gemm_avx512bf16.h"

namespace fp8::kernels {

extern const GemmKernels kF32Kernels[2] = {kernels_of<SumF32>(XLayout::F32), kernels_of<Shared<SumF32>>(XLayout::F32)};

}  // namespace fp8::kernels
