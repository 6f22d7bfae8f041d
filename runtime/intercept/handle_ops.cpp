// SPDX-License-Identifier: Apache-2.0
// Convolutions with a tagged weight: conv1d/2d/3d, conv_transpose1d/2d/3d (typed modules, scripted code), _convolution
// (traced), convolution (below them).
//
//   conv             x w bias stride padding dilation groups
//   conv_transpose   x w bias stride padding output_padding groups dilation
//   convolution      x w bias stride padding dilation transposed output_padding groups
#include <ATen/ops/_unique.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "fp8/runtime/intercept/intercept.h"

namespace fp8::runtime {
namespace {

/// One value stands for all spatial dimensions.
std::vector<std::int64_t> expanded(const c10::IValue& value, std::int64_t spatial) {
  auto list = value.toIntVector();
  if (list.size() == 1) list.assign(static_cast<std::size_t>(spatial), list[0]);
  return list;
}

/// "valid" -> 0, "same" -> d * (k - 1) / 2 on each side. Where that is no whole number, one more on the far side, which
/// goes to `extra` (constant_pad_nd's argument, last dimension first).
std::vector<std::int64_t> padding_of(const std::string& mode, const at::Tensor& weight,
                                     const std::vector<std::int64_t>& dilation, std::vector<std::int64_t>& extra) {
  std::vector<std::int64_t> padding(dilation.size(), 0);
  if (mode == "valid") return padding;
  for (std::size_t i = 0; i < padding.size(); ++i) {
    const std::int64_t total = dilation[i] * (weight.size(static_cast<std::int64_t>(i) + 2) - 1);
    padding[i] = total / 2;
    if (total % 2 == 0) continue;
    extra.resize(2 * padding.size());
    extra[2 * (padding.size() - 1 - i) + 1] = 1;
  }
  return padding;
}

/// The places of an op's arguments.
struct Places {
  std::size_t dilation, groups;
  bool transposed;
};
Places places_of(OpShape shape, const Arguments& arguments) {
  if (shape == OpShape::conv_transpose) return {7, 6, true};
  if (shape == OpShape::convolution) return {5, 8, arguments[6].toBool()};
  return {5, 6, false};
}

}  // namespace

std::optional<at::Tensor> handle_convolution(OpShape shape, const Arguments& arguments) {
  const auto w = tagged_operand(arguments, 1);
  if (!w.has_value()) return std::nullopt;
  const bool whole = w->tensor.sizes() == at::IntArrayRef(w->tag->sizes) && w->view.whole && !w->view.transposed;
  TORCH_CHECK(whole || !w->tag->handler->owns_values(), "[", arguments.op.schema().name(), "] the weight of module '",
              w->tag->module_names(), "' is ", w->tag->dtype, ": expected all of it as it is, got sizes ",
              w->tensor.sizes(), " and strides ", w->tensor.strides());
  if (!whole) return std::nullopt;
  const Places places = places_of(shape, arguments);
  const bool transposed = places.transposed;
  const std::int64_t spatial = w->tensor.dim() - 2, groups = arguments[places.groups].toInt();
  const auto stride = expanded(arguments[3], spatial), dilation = expanded(arguments[places.dilation], spatial);
  std::vector<std::int64_t> extra;
  const auto padding = shape == OpShape::conv_padding_mode
                           ? padding_of(std::string(arguments[4].toStringView()), w->tensor, dilation, extra)
                           : expanded(arguments[4], spatial);
  at::Tensor x = arguments.tensor(0);
  const bool single = x.dim() == spatial + 1;  // one image without the batch dimension
  if (single) x = x.unsqueeze(0);
  if (!extra.empty()) x = at::constant_pad_nd(x, extra, 0);
  const std::function<at::Tensor()> original = [&] {
    const at::Tensor y = arguments.run(-1, {});
    return single ? y.unsqueeze(0) : y;
  };
  if (transposed && w->tag->handler->owns_values()) {
    return arguments.run(1, w->tag->handler->dequantize(*w->tag, w->view, w->tensor));
  }
  const auto bias = arguments.optional_tensor(2);
  const at::Tensor y = w->tag->handler->convolution(
      ConvolutionCall{*w->tag, w->tensor, x, bias, stride, padding, dilation, transposed, groups, original});
  return single ? y.squeeze(0) : y;
}

// embedding_bag with a weight of codes: the handler gives the rows that are asked for, each once; the bags are then
// made of those by the op itself.
//
//   indices  7 2 7 5    rows 2 5 7, decoded    bags of rows at  2 0 2 1

namespace {

/// The place of `index` among `rows` (sorted); nullopt if it does not.
std::optional<std::int64_t> position_of(std::int64_t index, const at::Tensor& rows) {
  const at::Tensor host = cpu_alias(rows).to(at::kLong);
  const auto* begin = host.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    if (begin[i] == index) return i;
  }
  return std::nullopt;
}

std::optional<std::int64_t> padding_of(const Arguments& arguments, std::int64_t embeddings) {
  const bool has_padding = arguments.op.schema().overload_name() == "padding_idx";
  if (!has_padding || arguments[8].isNone()) return std::nullopt;
  const std::int64_t index = arguments[8].toInt();
  TORCH_CHECK(index >= -embeddings && index < embeddings, "padding_idx must be within the number of embeddings, -",
              embeddings, " through ", embeddings - 1, ", but got ", index);
  return index < 0 ? index + embeddings : index;
}

}  // namespace

std::optional<torch::jit::Stack> handle_embedding_bag(const Arguments& arguments) {
  const auto w = tagged_operand(arguments, 0);
  if (!w.has_value() || !w->tag->handler->owns_values()) return std::nullopt;
  TORCH_CHECK(!w->view.transposed && w->view.batch == 0, "[aten::embedding_bag] the weight of module '",
              w->tag->module_names(), "' is ", w->tag->dtype, ": expected whole rows, got sizes ", w->tensor.sizes(),
              " and strides ", w->tensor.strides());
  const at::Tensor indices = arguments.tensor(1);
  const auto padding = padding_of(arguments, w->view.rows);
  auto [rows, places] = at::_unique(indices.reshape({-1}), /*sorted=*/true, /*return_inverse=*/true);
  if (rows.numel() == 0) rows = at::zeros({1}, indices.options());  // bags of nothing still want the row length
  const at::Tensor decoded = w->tag->handler->embedding(*w->tag, w->view, w->tensor, rows);
  const std::int64_t mode = arguments[4].toInt();
  auto [bags, bag_of, sizes, largest] = at::embedding_bag(
      decoded, places.reshape(indices.sizes()).to(indices.scalar_type()), arguments.tensor(2), false, mode, false,
      arguments.optional_tensor(6), arguments[7].toBool(), padding.has_value() ? position_of(*padding, rows) : padding);
  constexpr std::int64_t kMax = 2;
  if (mode == kMax && largest.numel() > 0) {  // rows of the weight, not of what was decoded; an empty bag's stay 0
    const at::Tensor original = at::index_select(rows, 0, largest.reshape({-1})).reshape(largest.sizes());
    largest = at::where(at::eq(sizes.unsqueeze(1), 0), largest, original.to(largest.scalar_type()));
  }
  return torch::jit::Stack{bags, bag_of, sizes, largest};
}

// Products with a tagged weight, brought to the one form a handler knows: y = x . w^T + bias.
//
//   x @ w.t()   ->  linear(x, w)
//   w @ x       ->  linear(x.t(), w).t()
//   w @ v       ->  linear(v, w)
//   x @ w, factors other than 1, embedding of a strange view  ->  dequantize, then the original op

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

/// A form that no handler has a kernel for: the op with what the handler takes for the weight's values, or as if
/// untagged where that is the weight itself.
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

/// _grouped_mm(x, w, offs, bias, out_dtype): rows [offs[e - 1], offs[e]) of x times expert e. Rows behind the last
/// group are zeros.
std::optional<at::Tensor> grouped_product(const Arguments& arguments, const Operand& w) {
  const at::Tensor x = arguments.tensor(0);
  const auto ends = arguments.optional_tensor(2);
  const bool stacked = w.index == 1 && w.view.transposed && w.view.batch > 0 && x.dim() == 2;
  if (!stacked || !ends.has_value() || arguments.optional_tensor(3).has_value()) return without_kernel(arguments, w);
  const auto original = [&] { return arguments.run(-1, {}); };
  if (!w.tag->handler->owns_values()) return call_linear(w, x, std::nullopt, original);  // watchers see it as a whole
  const at::Tensor host = cpu_alias(*ends).to(at::kLong).contiguous();
  TORCH_CHECK(host.numel() == w.view.batch, "[", w.op, "] module '", w.tag->module_names(), "': expected ",
              w.view.batch, " offsets, one for each expert, got ", host.numel());
  std::vector<at::Tensor> parts;
  std::int64_t row = 0;
  for (std::int64_t e = 0; e < w.view.batch; ++e) {
    const std::int64_t end = std::clamp(host.const_data_ptr<std::int64_t>()[e], row, x.size(0));
    if (end > row) parts.push_back(call_linear(expert(w, e), x.narrow(0, row, end - row), std::nullopt, original));
    row = end;
  }
  if (row < x.size(0)) parts.push_back(at::zeros({x.size(0) - row, w.view.rows / w.view.batch}, x.options()));
  if (parts.empty()) return at::zeros({0, w.view.rows / w.view.batch}, x.options());
  const at::Tensor y = at::cat(parts);
  return arguments[4].isNone() ? y : y.to(arguments[4].toScalarType());
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
  // The places of the two factors among the arguments.
  const bool adds = shape == OpShape::addmm || shape == OpShape::addmv || shape == OpShape::baddbmm;
  const int left = adds ? 1 : 0, right = left + 1;
  std::optional<Operand> w;
  for (int index : {right, left}) {
    if (!w.has_value() && !(shape == OpShape::embedding && index == right)) w = tagged_operand(arguments, index);
  }
  if (!w.has_value()) return std::nullopt;
  if (shape == OpShape::linear) return linear_op(arguments, *w);
  if (shape == OpShape::embedding) return embedding_op(arguments, *w);
  if (shape == OpShape::grouped_mm) return grouped_product(arguments, *w);
  // One element is its own transpose: it stands as the op needs it.
  if (w->view.cols == 1 && w->view.rows == std::max<std::int64_t>(w->view.batch, 1))
    w->view.transposed = w->index == right;
  if (adds) return add_product(arguments, *w);
  return matrix_product(arguments, *w, w->index == right ? left : right);
}

}  // namespace fp8::runtime
