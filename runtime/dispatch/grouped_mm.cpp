// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/grouped_mm.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "fp8/runtime/dispatch/fallback.h"

namespace fp8::runtime {
namespace {

/// What the CPU's kernel asks of the last two dimensions.
bool fits(const at::Tensor& t) {
  const std::int64_t rows = t.size(-2), columns = t.size(-1), unit = 16 / t.element_size();
  const std::int64_t outer = t.stride(-2), inner = t.stride(-1);
  if (outer == 1 && inner >= std::max<std::int64_t>(1, rows)) return inner % unit == 0;
  return inner == 1 && outer >= std::max<std::int64_t>(1, columns) && outer % unit == 0;
}

/// fp8 is left to the fallback: codes have no layout that makes them values.
bool is_operand(const at::Tensor& t) {
  const auto type = t.scalar_type();
  return (t.dim() == 2 || t.dim() == 3) && t.numel() > 0 &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

/// The same values in rows that are a multiple of 16 bytes apart.
at::Tensor fitted(const at::Tensor& t) {
  if (fits(t)) return t;
  const std::int64_t unit = 16 / t.element_size();
  auto sizes = t.sizes().vec();
  sizes.back() = (sizes.back() + unit - 1) / unit * unit;
  return at::empty(sizes, t.options()).narrow(-1, 0, t.size(-1)).copy_(t);
}

}  // namespace

bool fit_grouped_mm(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const std::size_t i : {0, 1}) {
    c10::IValue& operand = torch::jit::peek(*stack, i, op.schema().arguments().size());
    if (operand.isTensor() && is_operand(operand.toTensor())) operand = fitted(operand.toTensor());
  }
  return false;
}

}  // namespace fp8::runtime
