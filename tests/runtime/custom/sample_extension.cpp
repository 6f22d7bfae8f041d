// SPDX-License-Identifier: Apache-2.0
// An extension for extension_test.cpp: y = 2 x, in f32.
#include "fp8/runtime/custom/extension.h"

using namespace fp8::runtime;

FP8_EXTENSION(m) {
  m.add(CustomOp("sample_ext::twice").schema("(Tensor x) -> Tensor").shape(same_as(0)).kernel([](const HostCall& call) {
    const float* x = call.in<float>(0);
    float* y = call.out<float>(0);
    for (std::int64_t i = 0; i < call.tensor(0).numel(); ++i) y[i] = 2 * x[i];
  }));
}
