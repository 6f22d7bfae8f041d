// SPDX-License-Identifier: Apache-2.0
// Products with a tagged weight, brought to the one form a handler knows: y = x . w^T + bias.
//
//   x @ w.t()   ->  linear(x, w)
//   w @ x       ->  linear(x.t(), w).t()
//   w @ v       ->  linear(v, w)
//   x @ w, factors other than 1, embedding of a strange view  ->  dequantize, then the original op
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "fp8/runtime/intercept/intercept.h"

namespace fp8::runtime {
namespace {

/// The op with the weight in high precision; what a handler without a kernel for the form gets.
at::Tensor with_dequantized(const Arguments& arguments, const Operand& w) {
  return arguments.run(w.index, w.tag->handler->dequantize(*w.tag, w.view, w.tensor));
}

/// One matrix of a stacked weight.
Operand expert(const Operand& w, std::int64_t e) {
  Operand one = w;
  one.view.rows = w.view.rows / w.view.batch;
  one.view.first_row = w.view.first_row + e * one.view.rows;
  one.view.batch = 0;
  one.view.whole = false;
  one.tensor = w.tensor.select(0, e);
  return one;
}

/// The view as [N, K] (or [E, N, K]) whatever its orientation in the op.
at::Tensor upright(const Operand& w) { return w.view.transposed ? w.tensor.transpose(-2, -1) : w.tensor; }

at::Tensor call_linear(const Operand& w, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                       const std::function<at::Tensor()>& original) {
  TORCH_CHECK(!w.tag->handler->owns_values() || !c10::isFloat8Type(x.scalar_type()), "[", w.op,
              "] the input of module '", w.tag->module_names(), "' is ", x.scalar_type(),
              ": expected values, got codes whose scale nobody knows");
  return w.tag->handler->linear(LinearCall{*w.tag, w.view, upright(w), x, bias, original});
}

/// y[..., e, :, :] = x[..., e, :, :] . w[e]^T, expert by expert; x broadcasts over experts, and one expert over x's.
at::Tensor batched_linear(const Operand& w, const at::Tensor& x, const std::function<at::Tensor()>& original) {
  const std::int64_t experts = w.view.batch;
  if (!w.tag->handler->owns_values())
    return call_linear(w, x, std::nullopt, original);  // watchers see the op as a whole
  if (experts == 1) {
    const at::Tensor y = call_linear(expert(w, 0), x, std::nullopt, original);
    return x.dim() < 3 ? y.unsqueeze(0) : y;
  }
  TORCH_CHECK(x.dim() < 3 || x.size(-3) == 1 || x.size(-3) == experts, "[", w.op, "] module '", w.tag->module_names(),
              "': expected a batch of 1 or ", experts, ", got an input of sizes ", x.sizes());
  std::vector<at::Tensor> y;
  for (std::int64_t e = 0; e < experts; ++e) {
    const at::Tensor xe = x.dim() < 3 ? x : x.select(-3, x.size(-3) == 1 ? 0 : e);
    y.push_back(call_linear(expert(w, e), xe, std::nullopt, original));
  }
  return at::stack(y, -std::min<std::int64_t>(x.dim(), 2) - 1);
}

at::Tensor product(const Operand& w, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                   const std::function<at::Tensor()>& original) {
  return w.view.batch > 0 ? batched_linear(w, x, original) : call_linear(w, x, bias, original);
}

/// A form that no handler has a kernel for: the op with what the handler takes for the weight's values, or as if nobody
/// was there where that is the weight itself.
std::optional<at::Tensor> without_kernel(const Arguments& arguments, const Operand& w) {
  const at::Tensor values = w.tag->handler->dequantize(*w.tag, w.view, w.tensor);
  if (values.is_same(w.tensor)) return std::nullopt;
  return arguments.run(w.index, values);
}

/// x @ w (weight on the right) or w @ x (on the left), no bias. x: argument `other`. original_ran: gets true if the
/// result is the whole op's, self and factors included.
std::optional<at::Tensor> matrix_product(const Arguments& arguments, const Operand& w, int other,
                                         bool* original_ran = nullptr) {
  const at::Tensor x = arguments.tensor(other);
  const bool right = w.index > other;
  const auto original = [&] {
    if (original_ran != nullptr) *original_ran = true;
    return arguments.run(-1, {});
  };
  if (right && w.view.transposed) return product(w, x, std::nullopt, original);
  if (!right && !w.view.transposed) {
    if (x.dim() == 1) return product(w, x, std::nullopt, original);
    const at::Tensor y = product(w, x.transpose(-2, -1), std::nullopt, [&] { return original().transpose(-2, -1); });
    return y.transpose(-2, -1);
  }
  return without_kernel(arguments, w);
}

/// beta * self + alpha * (a @ b), a = argument 1, b = argument 2.
std::optional<at::Tensor> add_product(const Arguments& arguments, const Operand& w) {
  if (w.view.transposed != (w.index == 2)) return without_kernel(arguments, w);
  const at::Tensor self = arguments.tensor(0), x = arguments.tensor(3 - w.index);
  const auto beta = arguments[3].toScalar(), alpha = arguments[4].toScalar();
  const bool is_bias =
      self.dim() == 1 && w.view.batch == 0 && self.size(0) == w.view.rows && (w.index == 2 || x.dim() == 1);
  if (is_bias && beta.equal(1) && alpha.equal(1)) {
    return call_linear(w, x, self, [&] { return arguments.run(-1, {}); });
  }
  bool original_ran = false;
  const auto y = matrix_product(arguments, w, 3 - w.index, &original_ran);
  if (!y.has_value() || original_ran) return y;
  const at::Tensor scaled = alpha.equal(1) ? *y : at::mul(*y, alpha);
  return beta.equal(0) ? scaled : at::add(scaled, self, beta);  // beta 0 ignores what self holds, NaN too
}

std::optional<at::Tensor> linear_op(const Arguments& arguments, const Operand& w) {
  if (w.index == 0) return without_kernel(arguments, w);
  const bool upright_weight = !w.view.transposed && w.view.batch == 0;
  if (upright_weight) {
    return call_linear(w, arguments.tensor(0), arguments.optional_tensor(2), [&] { return arguments.run(-1, {}); });
  }
  return without_kernel(arguments, w);
}

std::optional<at::Tensor> embedding_op(const Arguments& arguments, const Operand& w) {
  if (!w.tag->handler->owns_values()) return std::nullopt;
  if (w.view.transposed || w.view.batch > 0) return with_dequantized(arguments, w);
  return w.tag->handler->embedding(*w.tag, w.view, w.tensor, arguments.tensor(1));
}

}  // namespace

std::optional<at::Tensor> handle_matrix_op(OpShape shape, const Arguments& arguments) {
  // Where the two factors stand among the arguments.
  const bool adds = shape == OpShape::addmm || shape == OpShape::addmv || shape == OpShape::baddbmm;
  const int left = adds ? 1 : 0, right = left + 1;
  std::optional<Operand> w;
  for (int index : {right, left}) {
    if (!w.has_value() && !(shape == OpShape::embedding && index == right)) w = tagged_operand(arguments, index);
  }
  if (!w.has_value()) return std::nullopt;
  if (shape == OpShape::linear) return linear_op(arguments, *w);
  if (shape == OpShape::embedding) return embedding_op(arguments, *w);
  // One element is its own transpose: it stands as the op needs it.
  if (w->view.cols == 1 && w->view.rows == std::max<std::int64_t>(w->view.batch, 1))
    w->view.transposed = w->index == right;
  if (adds) return add_product(arguments, *w);
  return matrix_product(arguments, *w, w->index == right ? left : right);
}

}  // namespace fp8::runtime
