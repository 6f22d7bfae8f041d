// SPDX-License-Identifier: Apache-2.0
// Convolutions with a tagged weight: conv1d/2d/3d, conv_transpose1d/2d/3d (typed modules, scripted code), _convolution
// (traced), convolution (below them).
//
//   conv             x w bias stride padding dilation groups
//   conv_transpose   x w bias stride padding output_padding groups dilation
//   convolution      x w bias stride padding dilation transposed output_padding groups
#include <ATen/ops/constant_pad_nd.h>

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

/// Where an op has its arguments.
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

}  // namespace fp8::runtime
