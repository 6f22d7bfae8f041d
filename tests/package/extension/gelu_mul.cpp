// SPDX-License-Identifier: Apache-2.0
#include <ATen/Dispatch.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include "fp8/runtime/runtime.h"

using namespace fp8::runtime;

static void gelu_mul(const HostCall& call) {
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, call.tensor(0).scalar_type(), "gelu_mul", [&] {
    const scalar_t *a = call.in<scalar_t>(0), *b = call.in<scalar_t>(1);
    for (int64_t i = 0; i < call.tensor(0).numel(); ++i)
      call.out<scalar_t>(0)[i] = a[i] * 0.5 * (1 + std::erf(a[i] * M_SQRT1_2)) * b[i];
  });
}
static std::vector<at::Tensor> gradients(CustomArguments in) {
  const at::Tensor dy = in[0].toTensor(), a = in[1].toTensor(), b = in[2].toTensor();
  return {at::gelu_backward(dy * b, a), dy * at::gelu(a)};
}
FP8_EXTENSION(m) {
  CustomOp op("my::gelu_mul");
  op.schema("(Tensor a, Tensor b) -> Tensor").shape(elementwise()).kernel(gelu_mul);
  m.add(op.backward("my::gelu_mul_backward").autocast(autocast::Rule::lower));
  const char* schema = "(Tensor dy, Tensor a, Tensor b) -> (Tensor, Tensor)";
  m.add(CustomOp("my::gelu_mul_backward").schema(schema).shape(same_as({1, 2})).kernel(gradients));
}
