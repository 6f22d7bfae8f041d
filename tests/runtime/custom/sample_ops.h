// SPDX-License-Identifier: Apache-2.0
// Operators for the tests of this folder, and calls of operators by name.
#pragma once
#include <ATen/Dispatch.h>
#include <torch/torch.h>

#include "fp8/runtime/custom/custom_op.h"

namespace fp8::test {

/// The operator's results.
inline std::vector<at::Tensor> call_op(const std::string& name, std::vector<c10::IValue> arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  op.callBoxed(arguments);
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : arguments) results.push_back(value.toTensor());
  return results;
}

/// y = gelu(a) b, element by element, in any floating dtype; computed in f64.
inline void gelu_mul(const runtime::HostCall& call) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, call.tensor(0).scalar_type(), "gelu_mul", [&] {
    const scalar_t *a = call.in<scalar_t>(0), *b = call.in<scalar_t>(1);
    scalar_t* y = call.out<scalar_t>(0);
    for (std::int64_t i = 0; i < call.tensor(0).numel(); ++i) {
      const double x = static_cast<double>(a[i]);
      y[i] = static_cast<scalar_t>(0.5 * x * (1 + std::erf(x * M_SQRT1_2)) * static_cast<double>(b[i]));
    }
  });
}

/// d gelu(a) b / da, d / db by the formulas, with ATen.
inline std::vector<at::Tensor> gelu_mul_gradients(const runtime::BackwardCall& call) {
  const at::Tensor a = call.arguments[0].toTensor(), b = call.arguments[1].toTensor(), &dy = call.gradients[0];
  const at::Tensor cdf = 0.5 * (1 + at::erf(a * M_SQRT1_2)), pdf = at::exp(-0.5 * a * a) * (M_2_SQRTPI * M_SQRT1_2 / 2);
  return {dy * b * (cdf + a * pdf), dy * a * cdf};
}

inline runtime::CustomOp gelu_mul_op(const std::string& name) {
  return runtime::CustomOp(name)
      .schema("(Tensor a, Tensor b) -> Tensor")
      .shape(runtime::elementwise())
      .kernel(gelu_mul)
      .backward(gelu_mul_gradients);
}

}  // namespace fp8::test
