// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/code_order.h"

#include <c10/util/Float8_e4m3fn.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>

#include "fp8/runtime/device/block.h"

namespace fp8::runtime {
namespace {

constexpr std::int64_t kMostWanted = std::int64_t{1} << 20;

std::uint8_t* memory_of(const Block& block) { return static_cast<std::uint8_t*>(block.memory.get()); }

CodeOrder& order_of(Block& block) {
  CodeOrder* found = block.order.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto made = std::make_unique<CodeOrder>();
  if (block.order.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *found;
}

/// Rows that begin and end with a group of 16 have their bytes between the same addresses in either order.
bool lies_in_groups(const at::Tensor& codes, std::int64_t cols) {
  return codes.dim() == 2 && codes.is_contiguous() && codes.size(1) == cols && codes.size(0) % 16 == 0 &&
         cols % 4 == 0 && codes.storage_offset() % (16 * cols) == 0;
}

/// Whether `codes` are a matrix of all the block's bytes.
bool fills(const at::Tensor& codes, const Block& block) {
  return codes.numel() > 0 && lies_in_groups(codes, codes.size(-1)) && codes.storage_offset() == 0 &&
         c10::isFloat8Type(codes.scalar_type()) && codes.nbytes() == block.bytes;
}

/// False where they are needed row by row, or there is no memory for it.
bool permute(Block& block, const at::Tensor& codes) {
  if (block.has_alias()) return false;
  try {
    kernels::pack_weight_in_place(memory_of(block), codes.size(0), codes.size(1));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void pack(Block& block, CodeOrder& order, const at::Tensor& codes) {
  const std::unique_lock alone(order.mutex);
  if (order.packed) return;
  // Whoever holds an alias reads rows. One that is made from now on meets `packed`, and waits for the mutex.
  order.packed.store(true, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!permute(block, codes)) {
    order.products = 0;
    order.packed = false;
    return;
  }
  order.rows = codes.size(0);
  order.cols = codes.size(1);
  storage_impl_of(codes)->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "[hpu] the codes of this weight lie packed for products: read them by an op, or through runtime::cpu_alias()");
}

}  // namespace

void unpack_codes(Block& block, c10::StorageImpl& storage) {
  CodeOrder* order = block.order.load(std::memory_order_acquire);
  if (order == nullptr) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!order->packed.load(std::memory_order_seq_cst)) return;
  const std::unique_lock alone(order->mutex);
  if (!order->packed) return;
  kernels::unpack_weight_in_place(memory_of(block), order->rows, order->cols);
  storage.clear_data_ptr_access_error_msg_();
  order->wanted = std::min(kMostWanted, 2 * order->wanted);
  order->products = 0;
  order->packed = false;
}

CodesReader::CodesReader(const at::Tensor& codes) {
  Block* block = block_of(codes);
  if (block == nullptr) return;
  // Weights are tagged: of them others may make packed ones meanwhile, and must wait.
  CodeOrder* order = block->tag ? &order_of(*block) : block->order.load(std::memory_order_acquire);
  while (order != nullptr) {
    unpack_codes(*block, *storage_impl_of(codes));
    lock_ = std::shared_lock(order->mutex);
    if (!order->packed) return;
    lock_.unlock();  // packed again meanwhile
  }
}

CodesReader CodesReader::for_product(const at::Tensor& codes, bool again) {
  Block* block = block_of(codes);
  if (block == nullptr || (!again && block->order.load(std::memory_order_acquire) == nullptr))
    return CodesReader(codes);
  CodeOrder& order = order_of(*block);
  if (again && !order.packed && ++order.products >= order.wanted && fills(codes, *block)) pack(*block, order, codes);
  CodesReader reader;
  reader.lock_ = std::shared_lock(order.mutex);
  if (!order.packed) return reader;
  if (!lies_in_groups(codes, order.cols)) {
    reader.lock_.unlock();
    return CodesReader(codes);
  }
  reader.layout_ = kernels::Layout::packed;
  reader.packed_ = memory_of(*block) + codes.storage_offset();
  return reader;
}

}  // namespace fp8::runtime
