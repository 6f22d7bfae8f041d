// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/native/float8_math.h"

#include <ATen/ops/isclose_native.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/intercept/op_handler.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/ops/native/cast.h"

namespace fp8::runtime::ops {
namespace {

void check_access(const std::string& op, const at::Tensor& t) {
  if (const Block* block = block_of(t); block != nullptr && block->tag) block->tag->check_access(op, t);
}

at::Tensor plain(const at::Tensor& t) {
  return is_fp8(t.scalar_type()) ? cast_from_fp8(t, Scale{}, at::kFloat) : t;
}

/// Codes of a tagged weight have a scale that only its handler knows.
at::Tensor values_of(const at::Tensor& t) {
  const WeightTag* tag = find_tag(t);
  if (tag == nullptr || !tag->handler->owns_values() || t.scalar_type() != tag->dtype) return plain(t);
  const auto view = view_of(*tag, t);
  TORCH_CHECK(view.has_value(), "[aten::isclose] the weight of module '", tag->module_names(), "' is ", tag->dtype,
              ": expected all of it or whole rows, got sizes ", t.sizes(), " and strides ", t.strides());
  return tag->handler->dequantize(*tag, *view, t);
}

}  // namespace

void multiply_or_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const at::Tensor a = torch::jit::peek(*stack, 0, 2).toTensor(), b = torch::jit::peek(*stack, 1, 2).toTensor();
  if (!is_fp8(a.scalar_type()) && !is_fp8(b.scalar_type())) return cpu_fallback(op, keys, stack);
  const std::string& name = op.schema().name();
  check_access(name, a);
  check_access(name, b);
  const at::ScalarType type = at::result_type(a, b);  // refuses what PyTorch refuses, in its words
  at::Tensor y = at::mul(plain(a), plain(b));
  y = is_fp8(type) ? std::get<0>(cast_to_fp8_v2(y.to(at::kFloat), Scale{}, false, false, type)) : y.to(type);
  torch::jit::drop(*stack, 2);
  stack->emplace_back(op.schema().arguments()[0].alias_info() != nullptr ? at::Tensor(a).copy_(y) : y);
}

at::Tensor isclose(const at::Tensor& self, const at::Tensor& other, double rtol, double atol, bool equal_nan) {
  if (self.scalar_type() != other.scalar_type() || !is_fp8(self.scalar_type()))
    return at::native::isclose(self, other, rtol, atol, equal_nan);
  return at::native::isclose(values_of(self), values_of(other), rtol, atol, equal_nan);
}

namespace {

TORCH_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("mul.Tensor", torch::CppFunction::makeFromBoxedFunction<&multiply_or_fallback>());
  m.impl("mul_.Tensor", torch::CppFunction::makeFromBoxedFunction<&multiply_or_fallback>());
  m.impl("isclose", &isclose);
}
TORCH_LIBRARY_IMPL(aten, AutogradHPU, m) { m.impl("isclose", &isclose); }

}  // namespace
}  // namespace fp8::runtime::ops
