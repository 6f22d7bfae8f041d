// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/byte_rows.h"

#include <ATen/ops/cat_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/plain.h"
#include "fp8/runtime/dispatch/unboxed.h"
#include "fp8/runtime/leaf/leaf.h"

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
  if (tensors.size() == 0 || leaves_heard()) return {};
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

/// The CPU's kernel refuses others, each in its words.
template <class Index>
bool are_rows(at::ArrayRef<Index> indices, std::int64_t rows) {
  return std::all_of(indices.begin(), indices.end(), [rows](Index i) { return i >= 0 && i < rows; });
}

template <class Index>
at::Tensor rows_at(const at::Tensor& table, const at::Tensor& indices) {
  const at::ArrayRef<Index> wanted(reinterpret_cast<const Index*>(plain_data(indices)),
                                   static_cast<std::size_t>(indices.numel()));
  const std::size_t row = table.nbytes() / static_cast<std::size_t>(table.size(0));
  if (wanted.size() > kMostBytes / row || !are_rows(wanted, table.size(0))) return {};
  c10::SmallVector<std::int64_t, 8> sizes(indices.sizes().begin(), indices.sizes().end());
  sizes.append(table.sizes().begin() + 1, table.sizes().end());
  at::Tensor y = empty_plain(sizes, table.scalar_type());
  const char* from = plain_data(table);
  char* to = plain_data(y);
  for (const Index i : wanted) {
    std::memcpy(to, from + static_cast<std::size_t>(i) * row, row);
    to += row;
  }
  return y;
}

}  // namespace

at::Tensor cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, std::int64_t dim) {
  at::Tensor y = small_cat(tensors, dim);
  return y.defined() ? y : Unboxed<at::_ops::cat, CpuFallback>::call(keys, tensors, dim);
}

at::Tensor rows_of_table(const at::Tensor& table, const at::Tensor& indices) {
  const Block *rows = plain_block(table), *at = plain_block(indices);
  if (rows == nullptr || at == nullptr || rows->device != current_device() || at->device != rows->device) return {};
  if (leaves_heard() || table.numel() == 0 || indices.numel() == 0) return {};
  if (indices.scalar_type() == at::kLong) return rows_at<std::int64_t>(table, indices);
  return indices.scalar_type() == at::kInt ? rows_at<std::int32_t>(table, indices) : at::Tensor();
}

at::Tensor index_select(c10::DispatchKeySet keys, const at::Tensor& table, std::int64_t dim, const at::Tensor& index) {
  at::Tensor y = dim == 0 && index.dim() == 1 ? rows_of_table(table, index) : at::Tensor();
  return y.defined() ? y : Unboxed<at::_ops::index_select, CpuFallback>::call(keys, table, dim, index);
}

}  // namespace fp8::runtime
