// SPDX-License-Identifier: Apache-2.0
// One value of all ranks, as strategies of training loops ask for it: by the operation's name, as a new tensor.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>

#include "fp8/runtime/distributed/process_group.h"

namespace fp8::runtime::distributed {

/// tensor: f32, bf16, f16 or int64 on hpu or cpu; it stays as it is. op: "sum", "min", "max", "mean" or "avg" (the sum
/// divided by the number of ranks). Returns its sizes and dtype, but for the mean of int64, which is made f32 before it
/// is summed. Throws c10::TypeError for any other op, in the vendor's words; c10::Error as the group does.
at::Tensor reduce(const at::Tensor& tensor, std::string_view op, ProcessGroup& group);

}  // namespace fp8::runtime::distributed
