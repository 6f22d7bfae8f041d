// SPDX-License-Identifier: Apache-2.0
// What the fallback has to know of an operator, read off its schema once, when its kernel is registered: a call then
// visits the arguments that matter and asks the schema nothing.
//
//   index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool accumulate) -> Tensor(a!)
//     operands  {0, written} {1, on_host} {2}          accumulate is passed on as it is
#pragma once
#include <ATen/core/function_schema.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace fp8::runtime {

/// An argument that can hold a tensor, a device or a generator, in a list, an optional or a list of lists too.
struct FallbackOperand {
  std::uint16_t index = 0;
  bool written = false;
  bool on_host = false;  ///< may lie on the CPU beside hpu ones: indices and sequence lengths
};

struct FallbackPlan {
  static constexpr std::uint16_t kNone = 0xFFFF;

  explicit FallbackPlan(const c10::FunctionSchema& schema);

  std::uint16_t arguments = 0, results = 0;
  std::uint16_t host_result = kNone;  ///< stays on the CPU: the batch sizes of a packed sequence
  std::uint16_t number = kNone;       ///< the value that fill_ (and so full, constant_pad_nd) and its like write
  c10::SmallVector<FallbackOperand, 6> operands;
};

}  // namespace fp8::runtime
