// SPDX-License-Identifier: Apache-2.0
// What torch.func (grad, vjp, jvp) must not differentiate: it sees the operator above a handler, and the weight's
// values.
#pragma once

namespace fp8::runtime {

/// A handler whose products have a backward other than that of the operator with dequantize()'s values.
class OwnBackward {
 public:
  virtual ~OwnBackward() = default;
  /// Now, on this thread.
  virtual bool own_backward() const = 0;
};

}  // namespace fp8::runtime
