// SPDX-License-Identifier: Apache-2.0
// Several processes that train one model. What amax reduction needs of them; more comes with distributed training.
#pragma once
#include <cstddef>

namespace fp8::runtime::distributed {

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// values[i] becomes the largest values[i] of all ranks (NaN if any is NaN). Every rank calls it with the same count, in the same order.
  virtual void all_reduce_max(float* values, std::size_t count) = 0;
  virtual void barrier() = 0;
};

}  // namespace fp8::runtime::distributed
