// SPDX-License-Identifier: Apache-2.0
// Memory of large tensors, in huge pages, and where a program wants it kept for the next one of its size. A fresh
// mapping costs a page fault for each 2 MiB, in which the kernel clears them: more than most kernels that then fill it.
//
//   freed --> kept, and the kernel's to take while memory is short (MADV_FREE) --> the next of that size, or up to 1/8
//              \-- kept longest, past keep_large_blocks() or the device's limit, or by give_back_kept() --> the host
//
// The books count tensors, not what is kept. A program that measures what it holds, or that meets many sizes once each,
// keeps nothing.
#pragma once
#include <c10/core/Allocator.h>

#include <cstddef>

namespace fp8::runtime {

constexpr std::size_t kLargeFrom = std::size_t{4} << 20;  ///< below, page faults cost less than the rounding

/// Zeros or what a freed tensor left. Undefined (null) where the host has none. bytes >= kLargeFrom.
c10::DataPtr allocate_large(std::size_t bytes);

/// From now on at most `most` bytes are kept; 0: nothing is, as at the start.
void keep_large_blocks(std::size_t most);

/// Of all that is kept now, at most `most` bytes stay.
void give_back_kept(std::size_t most = 0);

/// Bytes of the host that no tensor has.
std::size_t kept_bytes();

}  // namespace fp8::runtime
