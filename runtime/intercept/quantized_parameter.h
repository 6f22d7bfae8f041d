// SPDX-License-Identifier: Apache-2.0
// A parameter whose memory holds fp8 codes and that learns all the same: its weight tag's handler is one of these too.
// Optimizers read and write its values through it; upstream's optimizers meet an fp8 tensor and throw.
//
//   w8 = cast(w * scale)        step:  w = master, or w8 * scale_inv        update w        assign(w)
#pragma once
#include <ATen/core/Tensor.h>

#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::runtime {

class QuantizedParameter {
 public:
  virtual ~QuantizedParameter() = default;

  /// The parameter's values in f32, its shape, on its device: the high-precision copy where one is kept (then the very
  /// tensor, not a copy of it), else the decoded codes.
  virtual at::Tensor values() = 0;

  /// New values (f32, the parameter's shape): they are cast into the parameter's memory with the scale in force.
  virtual void assign(const at::Tensor& values) = 0;

  /// The codes of another one's parameter were copied into this one's memory: their scale comes along.
  virtual void adopt(QuantizedParameter& source) { assign(source.values()); }

  /// The parameter itself, each time it is looked up: its memory may be another one since. It holds this object, which
  /// must not hold it.
  virtual void met(const at::Tensor& /*parameter*/) {}
};

/// The QuantizedParameter behind `parameter`; null for an ordinary one.
inline QuantizedParameter* quantized_parameter(const at::Tensor& parameter) {
  const WeightTag* tag = find_tag(parameter);
  auto* found = tag == nullptr ? nullptr : dynamic_cast<QuantizedParameter*>(tag->handler.get());
  if (found != nullptr) found->met(parameter);
  return found;
}

}  // namespace fp8::runtime
