// SPDX-License-Identifier: Apache-2.0
// What the vendor's descriptors (hpu_custom_op.h) call by guid: there a kernel of the accelerator, here one of the
// host.
//
//   KernelRegistry::add("relu_fwd_f32", [](const HostCall& call) { ... });
#pragma once
#include <string>
#include <vector>

#include "fp8/runtime/custom/host_call.h"

namespace fp8::runtime {

class KernelRegistry {
 public:
  /// For the life of the process; the library that calls it is not unloaded any more. Throws c10::Error where the guid
  /// has a kernel.
  static void add(const std::string& guid, HostKernel kernel);
  /// For the operator `op`: throws c10::Error naming both, and the nearest guid, where there is none.
  static const HostKernel& find(const std::string& guid, const std::string& op);
};

}  // namespace fp8::runtime
