// SPDX-License-Identifier: Apache-2.0
// Products of bf16 for datapaths of 512 bits (wide_datapath() of simd.h).
#include "fp8/runtime/kernels/gemm/gemm_avx512bf16.h"

namespace fp8::kernels {

extern const GemmKernels kDotWide = kernels_of<Shared<SumBf16>>(XLayout::BF16Pair);

}  // namespace fp8::kernels
