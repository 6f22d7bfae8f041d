// SPDX-License-Identifier: Apache-2.0
// Answers for a weight that has become fp8: activations are cast, the product runs on codes, the result comes out in
// the compute dtype.
//
//   static         matmul(cast(x), w, bias), the cast with input_scale           runtime/fp8_tensor/product.h
//   dynamic        per row: input_scale_inv = f32(amax / fp8_max), then the same
//   weights only   linear(x, w, bias)
//   blocks         either; x in groups of block.cols columns, or in high precision
//   qdq            linear(cast and decoded x, decoded w, bias) in the compute dtype
//   conv1d         as a convolution of images of height 1; conv3d: the convolution of decoded values
//
// Under the own convention the cast rounds once; under INC's x and the product are in hp_dtype, as on the device. The
// compute dtype is the autocast region's, else x's.
#pragma once

#include "fp8/quant/handlers/node_handler.h"
#include "fp8/runtime/intercept/intercept.h"
#include "fp8/runtime/modules/linear_together.h"

namespace fp8::quant {

struct ConvolutionGeometry;

class Fp8Handler final : public runtime::OpHandler,
                         public runtime::TogetherHandler,
                         public std::enable_shared_from_this<Fp8Handler> {
 public:
  /// weight_scale_inv: f32 on hpu, one value, one per row of the weight, or [rows, cols] of its grid of blocks.
  /// original_dtype: what dequantize() gives back. Throws std::invalid_argument for INC's convention with blocks.
  Fp8Handler(Scheme scheme, at::Tensor weight_scale_inv, at::ScalarType original_dtype);

  at::Tensor linear(const runtime::LinearCall& call) override;
  std::vector<at::Tensor> linear_together(const at::Tensor& x, at::ArrayRef<runtime::WholeWeight> weights) override;
  runtime::NextCast input_cast(at::ScalarType dtype) const override;
  at::Tensor convolution(const runtime::ConvolutionCall& call) override;
  at::Tensor dequantize(const runtime::WeightTag& tag, const runtime::WeightView& view,
                        const at::Tensor& weight) override;
  at::Tensor embedding(const runtime::WeightTag& tag, const runtime::WeightView& view, const at::Tensor& weight,
                       const at::Tensor& indices) override;
  bool owns_values() const override { return true; }
  std::string scales() const override;
  bool one_scale() const override { return weight_scale_inv_.numel() == 1; }
  /// set_weight_scale_inv() moves no copy's scale.
  std::shared_ptr<runtime::OpHandler> for_copy(const at::Tensor&) const override {
    return std::make_shared<Fp8Handler>(scheme_, weight_scale_inv_, original_dtype_);
  }
  std::shared_ptr<runtime::OpHandler> with_scales_of(const std::shared_ptr<runtime::OpHandler>& source) const override;
  std::string describe() const override { return scheme_.describe(); }
  std::optional<at::ScalarType> values_dtype() const override { return original_dtype_; }
  at::Tensor scale_inv_values() const override { return weight_scale_inv_; }
  runtime::TogetherHandler* together() override { return this; }
  static constexpr std::string_view kKind = "fp8::quant::Fp8Handler";
  std::string_view kind() const override { return kKind; }

  const Scheme& scheme() const { return scheme_; }
  const at::Tensor& weight_scale_inv() const { return weight_scale_inv_; }
  at::ScalarType original_dtype() const { return original_dtype_; }

  /// Puts another scale in force, from the next call on; codes stay as they are. Not while a forward runs. Throws
  /// std::invalid_argument where the scheme has no such single scale (dynamic, per channel or block) or the value is
  /// not positive and finite.
  void set_input_scale_inv(float scale_inv);
  void set_weight_scale_inv(float scale_inv);

  /// From the next call on: its input is looked at once, and a warning says if the static scale loses most of it.
  void watch_input(std::shared_ptr<InputWatch> watch);

  /// More products without gradient will follow, so that it pays to pack the weight for them (serve()).
  void expect_products() { again_ = true; }

  /// The forward product without autograd. weight: [N, K] codes, the rows `view` says.
  at::Tensor product(const runtime::WeightView& view, const at::Tensor& weight, const at::Tensor& x,
                     const std::optional<at::Tensor>& bias) const;
  /// The 2-D convolution without autograd. weight: all of the codes [C_out, C_in / groups, R, S]; x: [B, C_in, H, W];
  /// one activation scale.
  at::Tensor convolution_product(const ConvolutionGeometry& geometry, const at::Tensor& weight, const at::Tensor& x,
                                 const std::optional<at::Tensor>& bias) const;
  /// All of a weight [N, ...] with its scales.
  runtime::Fp8Tensor all_of(const at::Tensor& weight) const;
  /// All of a convolution's weight as values of `dtype`.
  at::Tensor all_values(const at::Tensor& weight, at::ScalarType dtype) const;
  /// The rows of the weight that `view` says (upright [N, K] codes) as values of `dtype`.
  at::Tensor values(const runtime::WeightView& view, const at::Tensor& upright, at::ScalarType dtype) const;

 private:
  std::pair<at::Tensor, std::int64_t> column_blocks(std::int64_t first_col, std::int64_t cols) const;
  /// The rows and columns that `view` says, with their scales.
  runtime::Fp8Tensor weight_of(const runtime::WeightView& view, const at::Tensor& upright) const;
  at::Tensor block_product(const runtime::Fp8Tensor& w, const at::Tensor& x, at::ScalarType compute,
                           const std::optional<at::Tensor>& bias) const;
  bool has_blocks() const { return scheme_.has_blocks(); }
  /// True if products of the two, by codes and one kernel, take x alike.
  bool takes_x_as(const Fp8Handler& other) const;
  at::Tensor convolution_of_values(const runtime::ConvolutionCall& call) const;
  void make_quantizers();
  void look_at(const runtime::WeightTag& tag, const at::Tensor& x);

  Scheme scheme_;
  at::Tensor weight_scale_inv_;
  std::optional<Quantizer> input_, image_;  ///< image_: of convolutions, where tokens are no rows; none: weights only
  at::ScalarType original_dtype_;
  std::shared_ptr<InputWatch> watch_;
  std::atomic<bool> unseen_{false};  ///< the next input is to be looked at
  std::atomic<bool> again_{false};   ///< Fp8Tensor::again
};

/// The handler of a weight that is in fp8; null for any other tensor.
Fp8Handler* fp8_handler(const at::Tensor& weight);
/// As above, of the memory alone: also of a copy on the host.
Fp8Handler* fp8_handler_in_memory(const at::Tensor& weight);

// Fake quantization, for training: weight and activation go through fp8 and back at each call, the product is in high
// precision. The weight keeps its dtype and its values; gradients pass the casts as they are (straight-through), so
// weight, input and bias learn.
//
//   y = linear(through_fp8(x), through_fp8(w), bias)        dx = dy . w'      dw = dy^T . x'

class FakeQuantHandler final : public runtime::OpHandler {
 public:
  /// weight_scale_inv: one value or one per row of the weight. Throws std::invalid_argument for block scales.
  FakeQuantHandler(const Scheme& scheme, std::vector<float> weight_scale_inv);

  at::Tensor linear(const runtime::LinearCall& call) override;
  at::Tensor convolution(const runtime::ConvolutionCall& call) override { return call.original(); }
  at::Tensor dequantize(const runtime::WeightTag&, const runtime::WeightView&, const at::Tensor& weight) override {
    return weight;
  }
  bool owns_values() const override { return false; }
  bool own_backward() const override { return true; }
  static constexpr std::string_view kKind = "fp8::quant::FakeQuantHandler";
  std::string_view kind() const override { return kKind; }
  std::string describe() const override { return scheme_.describe(); }

  const Scheme& scheme() const { return scheme_; }
  const std::vector<float>& weight_scale_inv() const { return weight_scale_inv_; }

 private:
  at::Tensor weight_through_fp8(const at::Tensor& weight, std::int64_t first_row) const;

  Scheme scheme_;
  std::vector<float> weight_scale_inv_;
  std::optional<Quantizer> input_;
};

// A mixture of experts in fp8. The experts' weights are converted modules of their own (their tags hold the scales);
// the handler brings the scales of the activations: one of the hidden states, one of every expert's intermediate
// values.
//
//   h = act(x' . w1) * (x' . w2)      x' = cast(hidden states)
//   y = sum over experts of router weight * (cast(h) . w3)
//
// Only the tokens of an expert are multiplied with its weights. In bf16 with static scales it is
// hpu::mixture_of_experts.fp8_fused_weights. Gradients are straight-through.

class Fp8MoeHandler final : public NodeHandler, public std::enable_shared_from_this<Fp8MoeHandler> {
 public:
  explicit Fp8MoeHandler(const NodeScheme& scheme) : NodeHandler(scheme) {}
  /// Throws c10::Error for weights that are no fp8 codes, or in another number than the scales.
  at::Tensor mixture_of_experts(const runtime::MoeCall& call) override;

 private:
  at::Tensor mix(const runtime::MoeCall& call, const at::Tensor& hidden) const;
  at::Tensor with_operator(const runtime::MoeCall& call, const runtime::Fp8Tensor& x) const;
  at::Tensor expert(const runtime::MoeCall& call, std::size_t e, const runtime::Fp8Tensor& x,
                    at::ScalarType compute) const;
  const Quantizer& intermediate(std::size_t e) const { return scheme().dynamic ? input(1) : input(1 + e); }
};

}  // namespace fp8::quant
