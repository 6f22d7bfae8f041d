// SPDX-License-Identifier: Apache-2.0
// Host memory that carries a tag as a Block does: a copy of tagged memory has the same meaning, wherever it lies. Only
// copies that somebody marks have one; every other CPU tensor is as upstream makes it.
//
//   CPU StorageImpl --DataPtr--> HostBlock { memory, tag }      memory: the DataPtr that was there before
#pragma once
#include <ATen/core/Tensor.h>

#include "fp8/runtime/device/block.h"

namespace fp8::runtime {

struct HostBlock {
  c10::DataPtr memory;
  c10::intrusive_ptr<BlockTag> tag;
};

/// On the TensorImpl of bytes that are a tagged storage itself (set_(Storage), as deep copies of storages make them),
/// no view of it.
struct WholeStorage final : c10::BackendMeta {};

/// The HostBlock below a CPU tensor; null if it has none.
HostBlock* host_block_of(const at::TensorBase& t);

/// The same, made where there is none. t: a CPU tensor with memory.
HostBlock& make_host_block(const at::TensorBase& t);

/// The tag of a tensor's memory, on hpu or of a host copy; null if none.
inline c10::intrusive_ptr<BlockTag> tag_of_memory(const at::TensorBase& t) {
  if (Block* block = block_of(t)) return block->tag;
  const HostBlock* host = host_block_of(t);
  return host == nullptr ? nullptr : host->tag;
}

}  // namespace fp8::runtime
