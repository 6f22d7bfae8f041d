// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fp8::runtime {

/// Lets the host's vector math (cos, sin, exp, ... of ATen's CPU kernels) find out what the CPU is, on one thread.
///
/// MKL's vector functions find it out in the first call of the process, and note it in two steps without a lock: the
/// number of the CPU, then the number of the code for it (mkl_vml_serv_cpu_detect in LibTorch 2.13). A second thread
/// that reads between them takes the code of another CPU, and its half of the first tensor has other last bits: a
/// rotation's angles differ between two runs of one program. Cheap after the first call; threads may call it at once.
void settle_host_math();

}  // namespace fp8::runtime
