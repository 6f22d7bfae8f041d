// SPDX-License-Identifier: Apache-2.0
// Products with Gaudi2's E4M3, whose codes from 0x78 on are infinity and NaN. The kernels of all levels read codes as
// ocp does, which is the same below 0x78. Every output that meets such a code is infinity or NaN whatever the other
// factors are: these outputs are computed here, one by one in f32, and written over what the kernels made of them.
//
// No cast to Gaudi2's E4M3 writes such codes, so all this is a look at the codes of both operands.
#pragma once
#include <cstdint>
#include <vector>

#include "fp8/runtime/kernels/gemm.h"

namespace fp8::kernels {

class NonFiniteOutputs {
 public:
  /// Finds the rows of a and of w that hold such codes and computes their outputs, from y as it is before the product.
  explicit NonFiniteOutputs(const GemmArgs& args);
  void write() const;

 private:
  float output(std::int64_t row, std::int64_t channel) const;

  const GemmArgs& args_;
  std::vector<std::int64_t> rows_, channels_;
  std::vector<float> of_rows_, of_channels_;  ///< [rows_, n] and [m, channels_]
};

}  // namespace fp8::kernels
