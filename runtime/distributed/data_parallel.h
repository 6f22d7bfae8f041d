// SPDX-License-Identifier: Apache-2.0
// Gradients averaged over the ranks while backward still runs: c10d::Reducer, the engine of DistributedDataParallel.
//
//   broadcast_parameters(parameters, ...);  DataParallel ddp(parameters, names, group);
//   for each micro-batch but the last:  no_sync: loss.backward() adds to the gradients of this rank
//   the last:  ddp.before_forward(); loss = ...; ddp.before_backward({loss}); loss.backward();
//
//   backward   | w9 w8 w7 | w6 w5 | w4 ...       a bucket is sent when its last gradient is there
//   messages            [bucket 0] [bucket 1] ...
//
// Modules are converted before: the Reducer hangs on the parameters as they are when it is made.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include "fp8/runtime/distributed/process_group.h"

namespace c10d {
class ProcessGroup;
}

namespace fp8::runtime::distributed {

/// The dtype of a message: half of the bytes, and sums that are rounded to it on the way.
enum class BucketDtype : std::uint8_t { as_it_is, bf16, f16 };

struct DataParallelOptions {
  std::int64_t bucket_cap_mb = 230;      ///< MiB of a bucket, 1 to 65536; the first has 1
  bool find_unused_parameters = false;   ///< parameters that a step may leave out; costs a walk through the graph
  bool static_graph = false;             ///< the same parameters in the same order in each step
  bool gradient_as_bucket_view = false;  ///< .grad is a view of its bucket: no copy. Zero them by zero_gradients()
  BucketDtype bucket_dtype = BucketDtype::as_it_is;
};

class DataParallel {
 public:
  /// parameters: on hpu or cpu, dense; those without requires_grad are left out. names: as many. Throws
  /// std::invalid_argument for options out of range, c10::Error where no parameter learns, for one held in fp8, and
  /// where the ranks' parameters differ in number, dtype or sizes.
  DataParallel(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names,
               c10::intrusive_ptr<c10d::ProcessGroup> group, const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Of a step's last micro-batch, whose backward must meet every parameter unless find_unused_parameters is set.
  void before_forward();
  /// outputs: what backward starts from. The next backward ends with the mean gradients of all ranks.
  void before_backward(const std::vector<at::Tensor>& outputs);
  /// Throws c10::Error naming the parameters that backward has left out, whose gradients are this rank's own.
  void after_backward();

  /// All gradients zero, where they are.
  void zero_gradients();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Data parallel training: every rank has the whole model, and its own part of the batch.

/// Every rank's parameters become root's. Parameters that are held in fp8 get root's values, cast anew.
void broadcast_parameters(const std::vector<at::Tensor>& parameters, ProcessGroup& group, int root = 0);

/// Every gradient becomes the mean of all ranks' in one message: summed in f32, times 1 / size, rounded to the
/// gradient's dtype. The same bits on every rank. A gradient that only some ranks have counts as zero on the others,
/// which then have it too; one that no rank has stays undefined. Parameters without requires_grad are left out. Throws
/// c10::Error for sparse gradients, and as ProcessGroup does for ranks with other parameters.
void all_reduce_gradients(const std::vector<at::Tensor>& parameters, ProcessGroup& group);

/// all_reduce_gradients() by one buffer that stays: Optimum's all_reduce_gradients(model, fusion_buffer_dtype). Its
/// dtype is what travels, so bf16 is half of the message, of gradients that are rounded to it before and while they are
/// added.
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
