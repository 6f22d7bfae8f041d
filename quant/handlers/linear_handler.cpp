// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/linear_handler.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>

#include "fp8/runtime/fp8_tensor/product.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/gemm/gemm.h"

namespace fp8::quant {
namespace {

namespace ops = runtime::ops;
using runtime::Fp8Tensor;

std::optional<at::Tensor> bias_in(const std::optional<at::Tensor>& bias, at::ScalarType compute) {
  return bias.has_value() && bias->defined() && !ops::is_high_precision(bias->scalar_type())
             ? std::optional<at::Tensor>(bias->to(compute))
             : bias;
}

bool wants_gradient(const at::Tensor& x, const std::optional<at::Tensor>& bias) {
  return at::GradMode::is_enabled() && (x.requires_grad() || (bias.has_value() && bias->requires_grad()));
}

}  // namespace

Fp8Handler* fp8_handler(const at::Tensor& weight) {
  const auto* tag = weight.defined() ? runtime::find_tag(weight) : nullptr;
  return tag == nullptr ? nullptr : runtime::handler_as<Fp8Handler>(tag->handler.get());
}

Fp8Handler* fp8_handler_in_memory(const at::Tensor& weight) {
  const auto tag = runtime::tag_in_memory(weight);
  return tag ? runtime::handler_as<Fp8Handler>(tag->handler.get()) : nullptr;
}

Fp8Handler::Fp8Handler(Scheme scheme, at::Tensor weight_scale_inv, at::ScalarType original_dtype)
    : scheme_(std::move(scheme)), weight_scale_inv_(std::move(weight_scale_inv)), original_dtype_(original_dtype) {
  if (has_blocks() && scheme_.convention != Convention::own)
    throw std::invalid_argument("block scales: expected the own convention, found INC's");
  if (has_blocks() && weight_scale_inv_.dim() != 2)
    throw std::invalid_argument("block scales: expected a grid [rows, cols]");
  make_quantizers();
}

void Fp8Handler::make_quantizers() {
  using runtime::ScaleLayout;
  const bool per_token = scheme_.activations == ActivationScaling::dynamic_token;
  switch (scheme_.activations) {
    case ActivationScaling::none: break;
    case ActivationScaling::static_tensor: input_ = image_ = Quantizer(scheme_, scheme_.input_scale_inv); break;
    case ActivationScaling::dynamic_token:
    case ActivationScaling::dynamic_tensor:
      input_ =
          Quantizer(scheme_, per_token ? ScaleLayout::per_row() : ScaleLayout::per_tensor(), scheme_.activation_method);
      image_ = Quantizer(scheme_, ScaleLayout::per_tensor(), scheme_.activation_method);
      break;
    case ActivationScaling::dynamic_group:
      if (scheme_.block.cols < 1)
        io::fail<std::invalid_argument>("activation groups: found {} columns, expected at least 1", scheme_.block.cols);
      input_ = Quantizer(scheme_, ScaleLayout::blocks(1, scheme_.block.cols), {}, scheme_.is_mx());
      break;
  }
}

std::string Fp8Handler::scales() const {
  const at::Tensor host = runtime::cpu_alias(weight_scale_inv_).contiguous();
  const std::string_view bytes(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  Scheme codes = scheme_;  // what the activations are cast with is no part of the weight's meaning
  codes.activations = ActivationScaling::none;
  return io::message("{}, {}, {} scales {}", codes.describe(), scheme_.block.text(), host.numel(),
                     io::checksum_text(io::checksum(bytes)));
}

std::shared_ptr<runtime::OpHandler> Fp8Handler::with_scales_of(
    const std::shared_ptr<runtime::OpHandler>& source) const {
  const auto* other = runtime::handler_as<Fp8Handler>(source.get());
  if (other == nullptr) return nullptr;
  const Scheme& its = other->scheme_;
  const bool alike = its.format == scheme_.format && its.dialect == scheme_.dialect && its.weights == scheme_.weights &&
                     its.block.rows == scheme_.block.rows && its.block.cols == scheme_.block.cols &&
                     other->weight_scale_inv_.sizes() == weight_scale_inv_.sizes();
  if (!alike) return nullptr;
  auto made = std::make_shared<Fp8Handler>(scheme_, other->weight_scale_inv_, original_dtype_);
  if (watch_ != nullptr) made->watch_input(watch_);
  made->again_ = again_.load();
  return made;
}

void Fp8Handler::watch_input(std::shared_ptr<InputWatch> watch) {
  watch_ = std::move(watch);
  unseen_ = scheme_.is_static();
}

void Fp8Handler::look_at(const runtime::WeightTag& tag, const at::Tensor& x) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;  // values: enough to tell
  if (!unseen_.load(std::memory_order_relaxed) || !unseen_.exchange(false) || !ops::is_high_precision(x.scalar_type()))
    return;
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor dense = x.detach().contiguous();
  const Underflow seen = underflow_of_scale(dense.const_data_ptr(), ops::float_type_of(dense.scalar_type()),
                                            std::min(dense.numel(), kMost), scheme_.input_scale, scheme_.format);
  if (!seen.most() || watch_->said.exchange(true)) return;
  TORCH_WARN("[fp8] ", tag.module_names(), ": ", std::lround(100 * seen.share()),
             " % of the values of its first input that are not zero become zero under its static scale (scale_inv ",
             scheme_.input_scale_inv, "); other modules may lose theirs too and are not named");
}

void Fp8Handler::set_input_scale_inv(float scale_inv) {
  if (!scheme_.is_static())
    io::fail<std::invalid_argument>("expected static activations, found {}", name_of(scheme_.activations));
  Scheme changed = scheme_;
  changed.input_scale_inv = scale_inv;
  const Quantizer checked(changed, scale_inv);
  changed.input_scale = scale_for(changed, scale_inv, "input");
  scheme_ = changed;
  input_ = image_ = checked;
  unseen_ = watch_ != nullptr;
}

void Fp8Handler::set_weight_scale_inv(float scale_inv) {
  if (weight_scale_inv_.numel() != 1)
    io::fail<std::invalid_argument>("expected one weight scale, found {}", weight_scale_inv_.numel());
  if (!(scale_inv > 0.0f) || !std::isfinite(scale_inv))
    throw std::invalid_argument("scale_inv: expected a positive finite number");
  weight_scale_inv_ = at::full(weight_scale_inv_.sizes(), scale_inv, weight_scale_inv_.options());
}

/// The grid over a view's columns, and how many of them share a scale there: 1 where the view begins within a block.
std::pair<at::Tensor, std::int64_t> Fp8Handler::column_blocks(std::int64_t first_col, std::int64_t cols) const {
  const std::int64_t block = scheme_.block.cols, groups = cols == 0 ? 0 : (cols - 1) / block + 1;
  if (first_col % block == 0) return {weight_scale_inv_.narrow(1, first_col / block, groups).contiguous(), block};
  const at::Tensor at =
      at::arange(first_col, first_col + cols, weight_scale_inv_.options().dtype(at::kLong)).floor_divide(block);
  return {weight_scale_inv_.index_select(1, at), 1};
}

Fp8Tensor Fp8Handler::weight_of(const runtime::WeightView& view, const at::Tensor& upright) const {
  Fp8Tensor w{upright};
  w.dialect = scheme_.dialect;
  w.reused = again_.load(std::memory_order_relaxed);
  if (has_blocks()) {
    const auto [grid, cols] = column_blocks(view.first_col, upright.size(-1));
    w.grid = grid;
    w.layout = {scheme_.block.rows, cols, view.first_row};
    w.power_of_two = scheme_.power_of_two;
  } else if (weight_scale_inv_.numel() == 1) {
    w.scale_inv = *weight_scale_inv_.const_data_ptr<float>();
  } else {
    const bool all = view.rows == weight_scale_inv_.size(0);
    w.grid = all ? weight_scale_inv_ : weight_scale_inv_.narrow(0, view.first_row, view.rows);
    w.layout = runtime::ScaleLayout::per_row();
  }
  return w;
}

Fp8Tensor Fp8Handler::all_of(const at::Tensor& weight) const {
  const std::int64_t rows = weight.size(0);
  return weight_of({0, rows, 0, weight.numel() / std::max<std::int64_t>(rows, 1), 0, false, true}, weight);
}

/// Blocks of x and of the weight lie over the same columns, unless the view begins within a block.
at::Tensor Fp8Handler::block_product(const Fp8Tensor& w, const at::Tensor& x, at::ScalarType compute,
                                     const std::optional<at::Tensor>& bias) const {
  if (!input_.has_value()) return runtime::linear(x.to(compute), w, compute, bias);
  const Fp8Tensor in = input_->cast_once(x);
  if (w.layout.cols == scheme_.block.cols) return runtime::matmul(in, false, w, true, compute, bias);
  return runtime::linear(runtime::dequantize(in, at::kFloat), w, at::kFloat, bias).to(compute);
}

at::Tensor Fp8Handler::product(const runtime::WeightView& view, const at::Tensor& weight, const at::Tensor& x,
                               const std::optional<at::Tensor>& bias) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const runtime::DeviceKindScope kind(kind_of(scheme_.dialect));
  const at::ScalarType compute = compute_dtype(x);
  const auto b = bias_in(bias, compute);
  if (scheme_.compute == Compute::qdq)
    return at::linear(input_.has_value() ? input_->through_fp8(x.to(compute)) : x.to(compute),
                      values(view, weight, compute), b);
  const Fp8Tensor w = weight_of(view, weight);
  if (has_blocks()) return block_product(w, x, compute, b);
  if (!input_.has_value()) return runtime::linear(x.to(compute), w, compute, b);
  return runtime::matmul(input_->cast_once(x), false, w, true, compute, b);
}

at::Tensor Fp8Handler::linear(const runtime::LinearCall& call) {
  look_at(call.tag, call.x);
  if (wants_gradient(call.x, call.bias))
    return product_with_gradient(shared_from_this(), call.view, call.weight, call.x, call.bias);
  return product(call.view, call.weight, call.x, call.bias);
}

bool Fp8Handler::takes_x_as(const Fp8Handler& other) const {
  return scheme_.compute == Compute::fp8 && other.scheme_.compute == Compute::fp8 &&
         has_blocks() == other.has_blocks() && (!has_blocks() || scheme_.block.cols == other.scheme_.block.cols) &&
         scheme_.dialect == other.scheme_.dialect && input_.has_value() == other.input_.has_value() &&
         (!input_.has_value() || input_->casts_as(*other.input_));
}

std::vector<at::Tensor> Fp8Handler::linear_together(const at::Tensor& x, at::ArrayRef<runtime::WholeWeight> weights) {
  std::vector<Fp8Tensor> all;
  all.reserve(weights.size());
  for (const auto& [tag, weight] : weights) {
    auto* handler = runtime::handler_as<Fp8Handler>(tag.handler.get());
    if (handler == nullptr || !takes_x_as(*handler)) return {};
    handler->look_at(tag, x);
    all.push_back(handler->all_of(weight));
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const runtime::DeviceKindScope kind(kind_of(scheme_.dialect));
  if (!input_.has_value()) return runtime::products_together(x, all, x.scalar_type());
  return runtime::products_together(input_->cast_once(x), all, x.scalar_type());
}

runtime::NextCast Fp8Handler::input_cast(at::ScalarType dtype) const {
  return scheme_.compute == Compute::fp8 && input_.has_value() ? input_->cast_of(dtype) : std::nullopt;
}

at::Tensor Fp8Handler::values(const runtime::WeightView& view, const at::Tensor& upright, at::ScalarType dtype) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  // Rows are output channels, whatever lies in them: of a convolution [C_in, R, S].
  const std::int64_t rows = view.whole ? upright.size(0) : view.rows;
  const bool as_rows = upright.dim() != 2 && view.batch == 0 && rows > 0;
  const at::Tensor codes = as_rows ? upright.view(at::kByte).reshape({rows, -1}).view(upright.scalar_type()) : upright;
  return runtime::dequantize(weight_of(view, codes), dtype).view(upright.sizes());
}

at::Tensor Fp8Handler::dequantize(const runtime::WeightTag&, const runtime::WeightView& view,
                                  const at::Tensor& weight) {
  const at::ScalarType dtype = runtime::autocast::region_dtype().value_or(original_dtype_);
  return view.transposed ? values(view, weight.transpose(-2, -1), dtype).transpose(-2, -1)
                         : values(view, weight, dtype);
}

at::Tensor Fp8Handler::embedding(const runtime::WeightTag&, const runtime::WeightView& view, const at::Tensor& weight,
                                 const at::Tensor& indices) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor flat = indices.reshape({-1});
  const at::Tensor codes = weight.view(at::kByte).index_select(0, flat).view(weight.scalar_type());
  auto sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  Fp8Tensor rows = weight_of(view, codes);
  if (has_blocks()) {  // each row with its row of the grid
    rows.grid = rows.grid.index_select(0, flat.add(view.first_row).floor_divide(scheme_.block.rows));
    rows.layout = runtime::ScaleLayout::blocks(1, rows.layout.cols);
  } else if (!rows.layout.one()) {
    rows.grid = rows.grid.index_select(0, flat);
  }
  return runtime::dequantize(rows, original_dtype_).view(sizes);
}

at::Tensor Fp8Handler::convolution_of_values(const runtime::ConvolutionCall& call) const {
  const at::ScalarType compute = compute_dtype(call.x);
  const auto bias =
      call.bias.has_value() && call.bias->defined() ? std::optional<at::Tensor>(call.bias->to(compute)) : std::nullopt;
  const std::vector<std::int64_t> output_padding(static_cast<std::size_t>(call.weight.dim() - 2), 0);
  const at::Tensor x = image_.has_value() ? image_->through_fp8(call.x.to(compute)) : call.x.to(compute);
  return at::convolution(x, all_values(call.weight, compute), bias, call.stride, call.padding, call.dilation, false,
                         output_padding, call.groups);
}

at::Tensor Fp8Handler::convolution(const runtime::ConvolutionCall& call) {
  look_at(call.tag, call.x);
  const std::int64_t spatial = call.weight.dim() - 2;
  // No fp8 kernel for these: in high precision with the quantized values, and with ATen's own gradients.
  if (spatial > 2 || !image_.has_value() || has_blocks() || scheme_.compute == Compute::qdq)
    return convolution_of_values(call);
  ConvolutionGeometry geometry{call.stride.vec(), call.padding.vec(), call.dilation.vec(), call.groups};
  at::Tensor weight = call.weight, x = call.x;
  if (spatial == 1) {
    geometry.stride.insert(geometry.stride.begin(), 1);
    geometry.padding.insert(geometry.padding.begin(), 0);
    geometry.dilation.insert(geometry.dilation.begin(), 1);
    weight = weight.unsqueeze(2);
    x = x.unsqueeze(2);
  }
  const at::Tensor y = wants_gradient(call.x, call.bias)
                           ? convolution_with_gradient(shared_from_this(), geometry, weight, x, call.bias)
                           : convolution_product(geometry, weight, x, call.bias);
  return spatial == 1 ? y.squeeze(2) : y;
}

at::Tensor Fp8Handler::convolution_product(const ConvolutionGeometry& g, const at::Tensor& weight, const at::Tensor& x,
                                           const std::optional<at::Tensor>& bias) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const runtime::DeviceKindScope kind(kind_of(scheme_.dialect));
  const at::ScalarType compute = compute_dtype(x);
  const Fp8Tensor in = image_->cast_once(x);
  ops::ConvOptions options{g.stride, g.padding, g.dilation, g.groups, compute, {{in.scale_inv}, {}}, {}};
  options.scale_weight = ops::scale_of(weight_scale_inv_, std::nullopt);
  runtime::OpScope leaf("hpu::conv2d_fp8", in.codes, weight);
  at::Tensor y = ops::conv2d_fp8(in.codes, weight, bias_in(bias, compute), options);
  leaf.gives(y);
  return y;
}

at::Tensor Fp8Handler::all_values(const at::Tensor& weight, at::ScalarType dtype) const {
  const std::int64_t rows = weight.size(0);
  return values({0, rows, 0, weight.numel() / std::max<std::int64_t>(rows, 1), 0, false, true}, weight, dtype);
}

FakeQuantHandler::FakeQuantHandler(const Scheme& scheme, std::vector<float> weight_scale_inv)
    : scheme_(scheme), weight_scale_inv_(std::move(weight_scale_inv)) {
  if (scheme_.has_blocks())
    throw std::invalid_argument("fake quantization: found block scales, allowed are scales per tensor or channel");
  if (scheme_.is_static()) input_.emplace(scheme_, scheme_.input_scale_inv);
}

at::Tensor FakeQuantHandler::weight_through_fp8(const at::Tensor& weight, std::int64_t first_row) const {
  StraightThrough op;
  op.forward = [&](const Tensors& in) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor w = in[0].detach().contiguous();
    const std::int64_t rows = w.size(0), cols = rows == 0 ? 0 : w.numel() / rows;
    const bool per_row = weight_scale_inv_.size() > 1;
    WeightScales scales;
    for (std::int64_t r = 0; r < (per_row ? rows : 1); ++r) {
      scales.scale_inv.push_back(weight_scale_inv_[static_cast<std::size_t>(per_row ? first_row + r : 0)]);
      scales.scale.push_back(scale_for(scheme_, scales.scale_inv.back(), "weight"));
    }
    const at::Tensor codes = at::empty(w.sizes(), w.options().dtype(runtime::ops::dtype_of(scheme_.format)));
    cast_weight_rows(w.const_data_ptr(), runtime::ops::float_type_of(w.scalar_type()), rows, cols, 0, scales, scheme_,
                     static_cast<std::uint8_t*>(codes.mutable_data_ptr()));
    runtime::Fp8Tensor fp8{codes.view({rows, cols})};
    fp8.scale_inv = scales.scale_inv[0];
    if (per_row) {
      fp8.layout = runtime::ScaleLayout::per_row();
      fp8.grid = at::from_blob(scales.scale_inv.data(), rows, at::kFloat);
    }
    return runtime::dequantize(fp8, w.scalar_type()).view(w.sizes());
  };
  op.differentiable = [](const Tensors& in) { return in[0]; };
  return straight_through(op, {weight});
}

at::Tensor FakeQuantHandler::linear(const runtime::LinearCall& call) {
  const at::ScalarType compute = compute_dtype(call.x);
  const at::Tensor x = call.x.to(compute);
  const auto bias =
      call.bias.has_value() && call.bias->defined() ? std::optional<at::Tensor>(call.bias->to(compute)) : std::nullopt;
  return at::linear(input_.has_value() ? input_->through_fp8(x) : x,
                    weight_through_fp8(call.weight, call.view.first_row).to(compute), bias);
}

}  // namespace fp8::quant
