// SPDX-License-Identifier: Apache-2.0
// A program outside the tree: finds the installed headers, links the installed libraries, casts six values to E4M3.
// The codes are written down from the format's definition (bias 7, three mantissa bits, saturation at 448). It names no
// symbol of the runtime, which must be loaded all the same: that library registers the device.
#include <link.h>

#include <cstdio>
#include <cstring>

#include "fp8/fp8.h"
#include "fp8/runtime/kernels/cast.h"

/// Called per loaded library: nonzero, which ends the walk, for the one whose name holds `wanted`.
static int is_library(dl_phdr_info* info, std::size_t, void* wanted) {
  return std::strstr(info->dlpi_name, static_cast<const char*>(wanted)) != nullptr;
}

int main() {
  namespace kernels = fp8::kernels;
  if (kernels::fp8_max(kernels::Format::E4M3, kernels::Dialect::gaudi2) != 240.0f) return 1;

  const float x[6] = {1.0f, -2.0f, 448.0f, 1000.0f, 0.001953125f, -0.0f};
  const std::uint8_t expected[6] = {0x38, 0xC0, 0x7E, 0x7E, 0x01, 0x80};
  std::uint8_t codes[6] = {};
  kernels::CastArgs args;
  args.x = x;
  args.rows = 1;
  args.cols = args.row_stride = 6;
  args.codes = codes;
  args.max = kernels::fp8_max(kernels::Format::E4M3, kernels::Dialect::ocp);
  kernels::cast_to_fp8(args);
  if (std::memcmp(codes, expected, sizeof codes) != 0) {
    std::fprintf(stderr, "consumer: wrong codes %02x %02x %02x %02x %02x %02x\n", codes[0], codes[1], codes[2],
                 codes[3], codes[4], codes[5]);
    return 1;
  }
  char runtime[] = "libfp8_runtime.so";
  if (dl_iterate_phdr(is_library, runtime) == 0) {
    std::fprintf(stderr, "consumer: %s is not loaded, the linker dropped it\n", runtime);
    return 1;
  }
  std::printf("fp8 %s\n", FP8_VERSION);
  return 0;
}
