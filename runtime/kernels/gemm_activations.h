// SPDX-License-Identifier: Apache-2.0
// Activations of a gemm in the order its kernel reads them (XLayout in gemm_kernels.h), converted exactly.
#pragma once
#include <cstdint>

#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/gemm_kernels.h"

namespace fp8::kernels {

/// Bytes of one activation element in a layout, and the k that a layout's rows are padded to a multiple of.
constexpr int element_bytes(XLayout layout) {
  return layout == XLayout::BF16Pair || layout == XLayout::BF16Tile ? 2 : 4;
}
constexpr int k_unit(XLayout layout) { return layout == XLayout::BF16Tile ? kTileK : kLineK; }

/// Packs rows [row0, row0 + rows) of args.a into ceil(rows / tile_rows) tiles of tile_rows x padded_k elements
/// (padded_k = k rounded up to k_unit); rows and k beyond the matrix become 0. Those of bf16 take BF16, E4M3 and E5M2
/// only (F32 and F16 would round). Uses the threads of the pool when there is enough to do.
void pack_activations(const GemmArgs& args, std::int64_t row0, std::int64_t rows, int tile_rows, XLayout layout,
                      void* out);

}  // namespace fp8::kernels
