// SPDX-License-Identifier: Apache-2.0
// Who answers for a weight. measure, quant and transformer_engine derive from OpHandler; the runtime meets a tagged
// weight in an op and hands the call over. The runtime does not know what a handler does with it.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>

namespace fp8::runtime {

struct WeightTag;

/// Which part of a tagged parameter an op met. The parameter is seen as [rows, cols]: a Linear's [N, K], stacked
/// experts [E, N, K] as [E*N, K], a convolution's [C_out, C_in/groups, ...] as [C_out, rest].
struct WeightView {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_col = 0, cols = 0;
  std::int64_t batch =
      0;  ///< 3-D views: number of [rows/batch, cols] matrices; 0 for 2-D (and whole convolution weights)
  bool transposed = false;  ///< the op met [cols, rows] (w.t(), w.transpose(1, 2)), which is what x @ w^T looks like
  bool whole = false;       ///< all of the parameter
};

/// y = x . w^T + bias. x: [..., K]; weight: the view as [N, K] on hpu; bias: [N] or none; y: [..., N].
struct LinearCall {
  const WeightTag& tag;
  const WeightView& view;
  const at::Tensor& weight;
  const at::Tensor& x;
  const std::optional<at::Tensor>& bias;
  const std::function<at::Tensor()>& original;  ///< the op as if nobody had tagged the weight
};

/// A convolution of any rank. weight: the whole parameter; x: [B, C_in, ...], y: [B, C_out, ...].
struct ConvolutionCall {
  const WeightTag& tag;
  const at::Tensor& weight;
  const at::Tensor& x;
  const std::optional<at::Tensor>& bias;
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  std::int64_t groups;
  const std::function<at::Tensor()>& original;
};

class OpHandler {
 public:
  virtual ~OpHandler() = default;

  /// 2-D weights and single experts of stacked ones.
  virtual at::Tensor linear(const LinearCall& call) = 0;
  virtual at::Tensor convolution(const ConvolutionCall& call) = 0;

  /// The weight (a view of it, in the view's own orientation and shape) in high precision, for ops that the handler has
  /// no kernel for: embedding, x @ w, addmv with factors, ... A handler that only watches returns it unchanged.
  virtual at::Tensor dequantize(const WeightTag& tag, const WeightView& view, const at::Tensor& weight) = 0;

  /// Rows of the weight. indices: any shape; result: indices' shape + [cols]. The default gathers from dequantize().
  virtual at::Tensor embedding(const WeightTag& tag, const WeightView& view, const at::Tensor& weight,
                               const at::Tensor& indices);

  /// True: the memory holds fp8 codes, and any op nobody handled must be refused. False: plain values, nothing to
  /// refuse.
  virtual bool owns_values() const = 0;

  /// Somebody takes the mark off on purpose (the operator fp8::untag): nobody is to put it back.
  virtual void taken_off() {}

  // Of handlers that own values. What copies of codes mean rests on these (weight_copy.h).

  /// What turns the codes into values, as text: equal texts decode alike. Empty: nobody can tell.
  virtual std::string scales() const { return {}; }
  /// Whether one number is the scale of every code, and so of every part.
  virtual bool one_scale() const { return false; }
  /// Who answers for `copy`: all of the codes elsewhere (hpu or cpu), or with one_scale() a part. Null: this one.
  virtual std::shared_ptr<OpHandler> for_copy(const at::Tensor& /*copy*/) const { return nullptr; }
  /// Who answers for this one's memory once all the codes of `source`'s weight are there. Null: it can't be told.
  virtual std::shared_ptr<OpHandler> with_scales_of(const std::shared_ptr<OpHandler>& source) const {
    const OpHandler& other = *source;
    return typeid(*this) == typeid(other) ? source : nullptr;
  }

  /// One line for print-outs and messages: format, granularity, dialect.
  virtual std::string describe() const = 0;
};

}  // namespace fp8::runtime
