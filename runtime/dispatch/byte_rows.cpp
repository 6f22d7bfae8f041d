// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/cat.h"

#include <ATen/ops/cat_ops.h>
#include <c10/util/SmallVector.h>

#include <cstring>
#include <numeric>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/plain.h"
#include "fp8/runtime/dispatch/unboxed.h"
#include "fp8/runtime/profile/trace.h"

namespace fp8::runtime {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // a larger copy is worth all threads

/// One operand: for each of the outer indices, so many bytes.
struct Piece {
  const char* data;
  std::size_t bytes;
};

/// Whether a tensor of the first one's dtype and device fits beside it.
bool fits(const at::Tensor& first, const at::Tensor& t, std::size_t dim) {
  const Block* block = plain_block(t);
  if (block == nullptr || block->device != current_device() || t.scalar_type() != first.scalar_type() ||
      t.dim() != first.dim() || t.numel() == 0)
    return false;
  if (t.dim() > 3 && t.suggest_memory_format() != at::MemoryFormat::Contiguous) return false;
  const at::IntArrayRef sizes = t.sizes(), wanted = first.sizes();
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (i != dim && sizes[i] != wanted[i]) return false;
  return true;
}

at::Tensor small_cat(const at::ITensorListRef& tensors, std::int64_t dim) {
  if (tensors.size() == 0 || trace_enabled()) return {};
  const at::Tensor& first = *tensors.begin();
  if (!first.defined() || dim >= first.dim() || dim < -first.dim()) return {};
  const auto at = static_cast<std::size_t>(dim < 0 ? dim + first.dim() : dim);
  c10::SmallVector<std::int64_t, 8> sizes(first.sizes().begin(), first.sizes().end());
  const std::int64_t outer = std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(at),
                                             std::int64_t{1}, std::multiplies<>());
  c10::SmallVector<Piece, 8> pieces;
  std::size_t row = 0;
  sizes[at] = 0;
  for (const at::Tensor& t : tensors) {
    if (!fits(first, t, at)) return {};
    pieces.push_back({plain_data(t), t.nbytes() / static_cast<std::size_t>(outer)});
    row += pieces.back().bytes;
    sizes[at] += t.size(static_cast<std::int64_t>(at));
  }
  if (row * static_cast<std::size_t>(outer) > kMostBytes) return {};
  at::Tensor y = empty_plain(sizes, first.scalar_type());
  char* to = plain_data(y);
  for (std::int64_t i = 0; i < outer; ++i) {
    for (Piece& piece : pieces) {
      std::memcpy(to, piece.data, piece.bytes);
      to += piece.bytes;
      piece.data += piece.bytes;
    }
  }
  return y;
}

}  // namespace

at::Tensor cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, std::int64_t dim) {
  at::Tensor y = small_cat(tensors, dim);
  return y.defined() ? y : Unboxed<at::_ops::cat, cpu_fallback>::call(keys, tensors, dim);
}

}  // namespace fp8::runtime
