// SPDX-License-Identifier: Apache-2.0
// The order of an fp8 weight's codes in its memory. Decoding a token is bound by reading the weights, and the kernels
// read them fastest packed (kernels/gemm.h): a permutation of the bytes of every 16 rows, so it takes no memory.
//
//   row by row  --- products without gradient, again and again --->  packed
//               <-- whoever else reads or writes the memory --------
//
// cpu_alias() and CodesReader put packed codes back into rows. Any other way to their address throws: nobody takes one
// order for the other. Each time they had to be put back, the next change waits for twice as many products.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <shared_mutex>

#include "fp8/runtime/kernels/gemm.h"

namespace fp8::runtime {

/// Of a Block whose codes products have read.
struct CodeOrder {
  std::shared_mutex mutex;  ///< shared: the order stays as it is; alone: it is changed
  std::atomic<bool> packed = false;
  std::int64_t rows = 0, cols = 0;  ///< of the packed matrix
  std::atomic<std::int64_t> products = 0, wanted = 2;
};

/// The codes of a tensor on hpu or on the host, for as long as it is read: meanwhile nobody changes their order. One of
/// a tensor at a time on a thread.
class CodesReader {
 public:
  /// Row by row.
  explicit CodesReader(const at::Tensor& codes);
  /// For x . codes^T with codes [N, K], in whatever order they lie. again: more such products will follow, so that it
  /// pays to pack a weight that has its memory for itself (N a multiple of 16, K of 4).
  static CodesReader for_product(const at::Tensor& codes, bool again);

  kernels::Layout layout() const { return layout_; }
  /// Packed codes; of others the tensor knows.
  const std::uint8_t* packed() const { return packed_; }

 private:
  CodesReader() = default;

  std::shared_lock<std::shared_mutex> lock_;
  kernels::Layout layout_ = kernels::Layout::row_major;
  const std::uint8_t* packed_ = nullptr;
};

struct Block;

/// Puts packed codes back into rows; quick where there are none. storage: the block's.
void unpack_codes(Block& block, c10::StorageImpl& storage);

}  // namespace fp8::runtime
