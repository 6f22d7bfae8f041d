// SPDX-License-Identifier: Apache-2.0
// What a converted weight shows of itself to code that knows nothing of codes.
//
//   std::cout << weight          its values and describe_weight()'s line (print_weight.cpp); Python's print the same.
//                                A copy as f64 to the host, which printers ask for, is the handler's values
//   x.to(fp8::values_dtype(w))   the dtype that activations want, where weight.dtype() is that of the codes
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace fp8 {

/// The dtype of a weight's values: of a converted one, what it had before (where its handler knows, else what it
/// dequantizes to); of any other tensor, its own. Views of a weight too.
at::ScalarType values_dtype(const at::Tensor& weight);

/// "weight of 'fc1': E4M3 tensor weights, ..., scale_inv 0.0123"; many scales as "scale_inv 0.011 to 0.02 (64 values)";
/// empty for a tensor that is no converted weight.
std::string describe_weight(const at::Tensor& weight);

namespace runtime {

/// The values of a converted weight, or of a part of it (rows, columns, an element), in its shape. Throws c10::Error
/// naming the module for other parts. Of a copy of codes on the host: on the host.
at::Tensor values_of_weight(const at::Tensor& weight);

/// What a handler that holds codes may tell of them: it derives from this too.
class CodedWeight {
 public:
  virtual ~CodedWeight() = default;
  virtual at::ScalarType values_dtype() const = 0;
  /// f32: one value, one per row, or a grid of blocks.
  virtual at::Tensor scale_inv_values() const = 0;
};

}  // namespace runtime
}  // namespace fp8
