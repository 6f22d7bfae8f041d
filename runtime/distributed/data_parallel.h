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
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class ProcessGroup;
}

namespace fp8::runtime::distributed {

/// What a bucket travels as: half of the bytes, sums that are rounded to it on the way.
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

}  // namespace fp8::runtime::distributed
