// SPDX-License-Identifier: Apache-2.0
// ATen's questions to the accelerator of the process: is it there, how many, its generator. at::getAccelerator() asks
// the hooks of each kind whether LibTorch was built for it, and with two of them each backward ends in an error, a CPU
// tensor's too.
#pragma once

namespace fp8::runtime {

/// Makes room for hpu where LibTorch was built for CUDA and this process sees no GPU: from then on it is as one that
/// was built for the CPU. False where CUDA has to stay: it sees a GPU, or its hooks are not as those of LibTorch 2.13.
bool make_room();

}  // namespace fp8::runtime
