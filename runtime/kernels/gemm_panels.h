// SPDX-License-Identifier: Apache-2.0
// Row-major weights that several chunks of rows are multiplied with, packed once for all of them: a panel of channels
// at a time, so that scratch does not grow with n.
#pragma once
#include <functional>

#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/gemm_kernels.h"

namespace fp8::kernels {

/// run(part) for parts of a product with a row-major weight and k > 0: the same rows, and channels of which the weight
/// lies packed in scratch of the calling thread, until run returns. Packs on the threads of the pool.
void for_panels(const GemmArgs& args, const GemmKernels& kernels, const std::function<void(const GemmArgs&)>& run);

}  // namespace fp8::kernels
