// SPDX-License-Identifier: Apache-2.0
// How often this program took memory from the heap: malloc, calloc, posix_memalign, aligned_alloc, and so operator new;
// LibTorch's too, for the program's functions come before glibc's.
#pragma once

namespace fp8::test {

/// Whether this build can count: on glibc, and no sanitizer has put functions of its own in that place.
bool counts_allocations();
/// Since the program began.
long allocations();

}  // namespace fp8::test
