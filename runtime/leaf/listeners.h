// SPDX-License-Identifier: Apache-2.0
// Who listens to leaves, and what a thread is about: shared by the sources of this folder.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime::detail {

/// The innermost scopes of this thread.
struct ThreadScopes {
  const std::string* module = nullptr;
  const char* phase = nullptr;
  const LeafRecord* leaf = nullptr;  ///< the outermost
  const char* op = nullptr;          ///< of the outermost OpScope
  bool backward = false;
};
ThreadScopes& thread_scopes();

/// `call` for each listener, none of which goes meanwhile.
void each_listener(const std::function<void(LeafListener&)>& call);

/// Nodes [first, end) of autograd that this thread made belong to `module`. The newest 65536 ranges are kept.
void remember_nodes(const std::string& module, std::int64_t first, std::int64_t end);
/// While it stands, leaves of a backward node get the module that made the node. Once at a time.
void watch_backward();
void leave_backward();

/// Additions and multiplications of a known operation from its operands' sizes; 0 of any other.
std::int64_t flops_of(std::string_view op, std::span<const LeafTensor> inputs, std::span<const LeafTensor> outputs);

}  // namespace fp8::runtime::detail
