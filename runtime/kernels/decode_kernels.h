// SPDX-License-Identifier: Apache-2.0
// Between decode.cpp, which knows matrices, threads and levels, and the code of each level, which decodes one run. Only
// PODs and plain functions, for the reason given in cast_kernels.h.
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/format.h"

namespace fp8::kernels {

/// One run of contiguous codes.
struct DecodeSpan {
  const std::uint8_t* codes;  // [n]
  std::int64_t n;
  void* y;              // [n]
  const float* scales;  // one value, or n with per_element
  bool per_element;
  bool stream;  // store around the caches
};

using DecodeKernel = void (*)(const DecodeSpan& span);

struct DecodeKernels {
  DecodeKernel of[3][2];  // [FloatType][Format]
};

/// The decode of the level in force.
DecodeKernel decode_kernel_in_force(FloatType type, Format format);

/// y[i] = entries[codes[i] & 0x7F], sign bit flipped where the code's is set: one scale for the whole run, folded into
/// the table. 16-bit outputs only.
using TableDecodeKernel = void (*)(const DecodeSpan& span, const std::uint16_t* entries);

/// The same code by code from a table of 256 values: the bits that every level gives.
void decode_by_table(const DecodeSpan& span, FloatType type, const float* table);

extern const DecodeKernels kDecodeScalar;
#if defined(__x86_64__)
extern const DecodeKernels kDecodeAvx2;
extern const DecodeKernels kDecodeAvx512;
extern const TableDecodeKernel kTableDecodeAvx512Vbmi;
#endif

}  // namespace fp8::kernels
