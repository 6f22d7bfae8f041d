// SPDX-License-Identifier: Apache-2.0
// Data parallel training: every rank has the whole model, and its own part of the batch.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
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

/// The same by one buffer that stays: Optimum's all_reduce_gradients(model, fusion_buffer_dtype). Its dtype is what
/// travels, so bf16 is half of the message, of gradients that are rounded to it before and while they are added.
///
///   buffer  | w0 | w1 | w2 ...| which there are |  = gradient / ranks        one message
class FusedGradients {
 public:
  /// names: as many. dtype: f32, bf16 or f16, else c10::Error.
  FusedGradients(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                 std::shared_ptr<ProcessGroup> group, at::ScalarType dtype = at::kBFloat16);

  /// Once a step, after its last backward; a gradient that only some ranks have is treated as above. Throws c10::Error
  /// for sparse gradients, and for ranks whose parameters with requires_grad differ.
  void all_reduce();

 private:
  void make_buffer(const std::vector<std::size_t>& learning);

  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  std::shared_ptr<ProcessGroup> group_;
  at::ScalarType dtype_;
  at::Tensor buffer_;  ///< none before the first call
  std::vector<std::size_t> learning_;
};

}  // namespace fp8::runtime::distributed
