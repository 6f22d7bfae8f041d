// SPDX-License-Identifier: Apache-2.0
// Where a kernel at AutocastHPU hands its call on.
#pragma once
#include <c10/core/DispatchKeySet.h>

namespace fp8::runtime::autocast {

inline c10::DispatchKeySet below_autocast(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::AutocastHPU);
}

}  // namespace fp8::runtime::autocast
