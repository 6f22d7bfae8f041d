// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/kernels/gemm_panels.h"

#include <algorithm>

#include "fp8/runtime/kernels/scratch.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kPanelBytes = std::int64_t{8} << 20;
constexpr std::int64_t kRowPrefetch = 512;  // ahead in each of 16 rows

// n channels from `first` on, which lie packed.
GemmArgs part_of(const GemmArgs& args, std::int64_t first, std::int64_t n, const std::uint8_t* packed) {
  GemmArgs part = args;
  part.n = n;
  part.w = packed, part.w_layout = Layout::packed;
  part.y = static_cast<std::uint8_t*>(args.y) + first * size_of(args.y_type);
  if (args.bias) part.bias = static_cast<const std::uint8_t*>(args.bias) + first * size_of(args.bias_type);
  if (args.k_group > 0) {
    const std::int64_t row = args.w_first_row + first, groups = (args.k + args.k_group - 1) / args.k_group;
    part.w_scale_inv += row / args.w_block_rows * groups;
    part.w_first_row = row % args.w_block_rows;
  } else if (args.w_scale_inv) {
    part.w_scale_inv += first * args.w_scale_stride;
  }
  return part;
}

}  // namespace

void for_panels(const GemmArgs& args, const GemmKernels& kernels, const std::function<void(const GemmArgs&)>& run) {
  const std::int64_t block_bytes = packed_bytes(kBlockChannels, args.k);
  const std::int64_t blocks = (args.n + kBlockChannels - 1) / kBlockChannels,
                     most = std::clamp<std::int64_t>(kPanelBytes / block_bytes, 1, blocks);
  thread_local Scratch scratch;
  std::uint8_t* packed = scratch.get(most * block_bytes);
  for (std::int64_t block = 0; block < blocks; block += most) {
    const std::int64_t first = block * kBlockChannels, n = std::min(most * kBlockChannels, args.n - first);
    const auto pack = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const std::int64_t row = b * kBlockChannels;
        kernels.pack_lines(args.w + (first + row) * args.k, args.k,
                           static_cast<int>(std::min<std::int64_t>(kBlockChannels, n - row)), args.k, kRowPrefetch,
                           packed + b * block_bytes);
      }
    };
    parallel_for((n + kBlockChannels - 1) / kBlockChannels, 1, std::ref(pack));
    run(part_of(args, first, n, packed));
  }
}

}  // namespace fp8::kernels
