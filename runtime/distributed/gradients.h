// SPDX-License-Identifier: Apache-2.0
// Data parallel training: every rank has the whole model, and its own part of the batch.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "fp8/runtime/distributed/process_group.h"

namespace fp8::runtime::distributed {

/// Every rank's parameters become root's. Parameters that are held in fp8 get root's values, cast anew.
void broadcast_parameters(const std::vector<at::Tensor>& parameters, ProcessGroup& group, int root = 0);

/// Every gradient becomes the mean of all ranks' in one message: summed in f32, times 1 / size, rounded to the
/// gradient's dtype. The same bits on every rank. A gradient that only some ranks have counts as zero on the others,
/// which then have it too; one that no rank has stays undefined. Parameters without requires_grad are left out. Throws
/// c10::Error for sparse gradients, and as ProcessGroup does for ranks with other parameters.
void all_reduce_gradients(const std::vector<at::Tensor>& parameters, ProcessGroup& group);

}  // namespace fp8::runtime::distributed
