// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/work/fingerprint.h"

#include "fp8/runtime/kernels/simd.h"
#include "fp8/version.h"

namespace fp8::commands {

io::Json with_program(io::Json facts) {
  facts["version"] = FP8_VERSION;
  facts["instruction set"] = kernels::name_of(kernels::simd_level());
  return facts;
}

}  // namespace fp8::commands
