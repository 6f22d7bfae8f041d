// SPDX-License-Identifier: Apache-2.0
// Codes on the host. A copy of a converted weight in CPU memory carries its mark (device/block.h), and a dispatch
// key that no other CPU tensor has brings every op on it here first:
//
//   views, same-dtype copies (to(hpu), clone), empty_like, pickling     go on; copies are marked in their turn
//   to(kFloat), mm, cat, index_select, tolist, ...                      throw with the module's and the op's name
//
// The key is the one that upstream keeps for libraries outside of it (DeferredInit); views inherit it.
#pragma once
#include <ATen/core/Tensor.h>

namespace fp8::runtime {

/// Gives a CPU tensor the key.
void guard_host_codes(const at::Tensor& cpu);
/// Whether it has it: it, or what it is a view of, was a host copy of codes.
bool is_guarded(const at::Tensor& t);

}  // namespace fp8::runtime
