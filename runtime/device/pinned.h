// SPDX-License-Identifier: Apache-2.0
// Pinned host memory: the CPU's, remembered, so that is_pinned() tells what pin_memory() did.
#pragma once
#include <c10/core/Allocator.h>

namespace fp8::runtime {

c10::Allocator* pinned_allocator();
/// Whether `pointer` lies in memory that pinned_allocator() gave and that was not freed.
bool is_pinned(const void* pointer);

}  // namespace fp8::runtime
