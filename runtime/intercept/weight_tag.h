// SPDX-License-Identifier: Apache-2.0
// The mark on a weight. It is put in two places: on the TensorImpl (kept by detach, load and optimizer steps, lost by
// views) and on the memory block (kept by views, t(), InferenceMode, lost when the storage is replaced). A block holds
// as many as there are weights in it, each with its place. Looking one up costs a few ns.
//
// The meaning of copies of a marked weight, on hpu and on the host: weight_copy.h.
#pragma once

#include <functional>
#include <memory>
#include <typeinfo>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/handler_kind.h"

namespace fp8::runtime {

// The handler of a weight. measure, quant and transformer_engine derive from OpHandler; the runtime finds a tagged
// weight in an op and hands the call over. The runtime does not know what a handler does with it.

struct WeightTag;
class QuantizedParameter;
class TogetherHandler;

/// The part of a tagged parameter that an op has. The parameter is seen as [rows, cols]: a Linear's [N, K], stacked
/// experts [E, N, K] as [E*N, K], a convolution's [C_out, C_in/groups, ...] as [C_out, rest].
struct WeightView {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_col = 0, cols = 0;
  std::int64_t batch =
      0;  ///< 3-D views: number of [rows/batch, cols] matrices; 0 for 2-D (and whole convolution weights)
  bool transposed = false;  ///< the op has [cols, rows] (w.t(), w.transpose(1, 2)), which is what x @ w^T looks like
  bool whole = false;       ///< all of the parameter
};

/// y = x . w^T + bias. x: [..., K]; weight: the view as [N, K] on hpu; bias: [N] or none; y: [..., N].
struct LinearCall {
  const WeightTag& tag;
  const WeightView& view;
  const at::Tensor& weight;
  const at::Tensor& x;
  const std::optional<at::Tensor>& bias;
  const std::function<at::Tensor()>& original;  ///< the op as with an untagged weight
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

  /// True: the memory holds fp8 codes, and any op without a handler must be refused. False: plain values, nothing to
  /// refuse.
  virtual bool owns_values() const = 0;

  /// The mark is taken off on purpose (the operator fp8::untag) and is not to be put back.
  virtual void taken_off() {}

  // Of handlers that own values. What copies of codes mean rests on these (weight_copy.h).

  /// The scales that turn the codes into values, as text: equal texts decode alike. Empty: unknown.
  virtual std::string scales() const { return {}; }
  /// True if one number is the scale of every code, and so of every part.
  virtual bool one_scale() const { return false; }
  /// The handler of `copy`: all of the codes elsewhere (hpu or cpu), or with one_scale() a part. Null: this one.
  virtual std::shared_ptr<OpHandler> for_copy(const at::Tensor& /*copy*/) const { return nullptr; }
  /// The handler of this one's memory once all the codes of `source`'s weight are there. Null: it can't be told.
  virtual std::shared_ptr<OpHandler> with_scales_of(const std::shared_ptr<OpHandler>& source) const {
    const OpHandler& other = *source;
    return typeid(*this) == typeid(other) ? source : nullptr;
  }

  /// False: the codes' scales are not at hand, and every use is refused.
  virtual bool has_known_scales() const { return true; }
  /// The dtype that the values had before they were codes; nullopt: what dequantize() gives.
  virtual std::optional<at::ScalarType> values_dtype() const { return std::nullopt; }
  /// f32: one value, one per row, or a grid of blocks; undefined: unknown.
  virtual at::Tensor scale_inv_values() const { return {}; }

  /// Itself, where the parameter learns in fp8, and where it answers for several weights at once.
  virtual QuantizedParameter* quantized_parameter() { return nullptr; }
  virtual TogetherHandler* together() { return nullptr; }

  /// True: its products have a backward other than that of the operator with dequantize()'s values, now, on this
  /// thread. torch.func (grad, vjp, jvp) must not differentiate them: it sees the operator above the handler.
  virtual bool own_backward() const { return false; }
  /// True: it reads no address at the call, so lazy mode may run its products later.
  virtual bool may_wait() const { return false; }

  /// The class, to the folder that it is of (handler_kind.h).
  virtual std::string_view kind() const { return {}; }
  /// One line for print-outs and messages: format, granularity, dialect.
  virtual std::string describe() const = 0;
};

struct WeightTag final : BlockTag {
  std::vector<std::string> modules;  ///< names of the modules that own it; several when tied
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;
  std::shared_ptr<OpHandler> handler;

  /// "model.layers.0.mlp.up_proj" or, tied, "a, b".
  std::string module_names() const;

  /// "the weight of module 'up_proj' is Float8_e4m3fn (E4M3 per tensor)", for messages.
  std::string describe() const;

  /// Takes over t's sizes, strides, offset and dtype.
  void lie_at(const at::Tensor& t);
  /// True if t is the whole weight as it lies in memory.
  bool is(const at::Tensor& t) const;
  /// True if all of t's elements, or some, are in the weight's memory. t: in the same storage.
  bool holds(const at::Tensor& t) const;
  bool meets(const at::Tensor& t) const;
  /// True if t's elements are codes of this weight: some of them are in its memory, and read in its dtype.
  bool has_codes_of(const at::Tensor& t) const;

  void check_access(const std::string& op, const at::Tensor& tensor) const override;
  void check_copy(const at::Tensor& to, const at::Tensor& from) const override;
  void copied(const at::Tensor& to, const at::Tensor& from) const override;
  void check_replace(const at::Tensor& self, const at::Tensor& source) const override;
  void replaced(const at::Tensor& self, const at::Tensor& source) const override;
  c10::intrusive_ptr<c10::BackendMeta> clone(const c10::intrusive_ptr<c10::BackendMeta>& self) const override {
    return self;
  }
};

/// The tags of a block that holds several weights.
struct WeightTags final : BlockTag {
  std::vector<c10::intrusive_ptr<WeightTag>> tags;

  void check_access(const std::string& op, const at::Tensor& tensor) const override;
  void check_copy(const at::Tensor& to, const at::Tensor& from) const override;
  void copied(const at::Tensor& to, const at::Tensor& from) const override;
  void check_replace(const at::Tensor& self, const at::Tensor& source) const override;
  void replaced(const at::Tensor& self, const at::Tensor& source) const override;
};

/// Tags `weight` (on hpu, contiguous). A weight that is tagged already (tied) gets `module` added when the handler is
/// the same, and the new handler otherwise; other weights in the same storage keep theirs. Throws for a tensor that is
/// not on hpu or not contiguous.
void tag_weight(const at::Tensor& weight, const std::string& module, std::shared_ptr<OpHandler> handler);

/// Takes the mark off again (both places).
void untag_weight(const at::Tensor& weight);

/// The tag of the weight that a tensor on hpu is, or is a part of; if only the TensorImpl has one (memory replaced by
/// load), it is put on the memory too. Null if none.
const WeightTag* find_tag(const at::Tensor& tensor);

/// find_tag() for a tensor on hpu or a marked copy on the host, of the memory alone.
c10::intrusive_ptr<WeightTag> tag_in_memory(const at::Tensor& tensor);
/// Puts a tag on the memory of what it lies at (hpu, or cpu: make_host_block), in the place of one of the same sizes
/// there.
void put_tag(const at::Tensor& tensor, c10::intrusive_ptr<WeightTag> tag);

/// The part of the tagged parameter that `tensor` is; nullopt if its strides fit no part of it.
std::optional<WeightView> view_of(const WeightTag& tag, const at::Tensor& tensor);

// A parameter whose memory holds fp8 codes and that learns all the same: its weight tag's handler gives one of these.
// Optimizers read and write its values through it; upstream's optimizers meet an fp8 tensor and throw.
//
//   w8 = cast(w * scale)        step:  w = master, or w8 * scale_inv        update w        assign(w)

class QuantizedParameter {
 public:
  virtual ~QuantizedParameter() = default;

  /// The parameter's values in f32, its shape, on its device: the high-precision copy where one is kept (then the very
  /// tensor, not a copy of it), else the decoded codes.
  virtual at::Tensor values() = 0;

  /// New values (f32, the parameter's shape): they are cast into the parameter's memory with the scale in force.
  virtual void assign(const at::Tensor& values) = 0;

  /// The codes of another one's parameter were copied into this one's memory: their scale comes along. source: the
  /// handler of that one, a quantized_parameter() too.
  virtual void adopt(OpHandler& source) { assign(source.quantized_parameter()->values()); }

  /// The parameter itself, each time it is looked up: its memory may be another one since. It holds this object, which
  /// must not hold it.
  virtual void record_place(const at::Tensor& /*parameter*/) {}
};

/// The QuantizedParameter behind `parameter`; null for an ordinary one.
inline QuantizedParameter* quantized_parameter(const at::Tensor& parameter) {
  const WeightTag* tag = find_tag(parameter);
  auto* found = tag == nullptr ? nullptr : tag->handler->quantized_parameter();
  if (found != nullptr) found->record_place(parameter);
  return found;
}

}  // namespace fp8::runtime

// A converted weight as seen by code that knows nothing of codes.
//
//   std::cout << weight          its values and describe_weight()'s line (weight_values.cpp); Python's print the same.
//                                A copy as f64 to the host, which printers ask for, is the handler's values
//   x.to(fp8::values_dtype(w))   the dtype that activations want, where weight.dtype() is that of the codes

namespace fp8 {

/// The dtype of a weight's values: of a converted one, what it had before (where its handler knows, else what it
/// dequantizes to); of any other tensor, its own. Views of a weight too.
at::ScalarType values_dtype(const at::Tensor& weight);

/// "weight of 'fc1': E4M3 tensor weights, ..., scale_inv 0.0123"; many scales as "scale_inv 0.011 to 0.02 (64 values)";
/// empty for a tensor that is no converted weight.
std::string describe_weight(const at::Tensor& weight);

namespace runtime {

/// The values of a converted weight, or of a part of it (rows, columns, an element), in its shape. Throws c10::Error
/// naming the module for other parts. Of a copy of codes on the host: on the host.
at::Tensor values_of_weight(const at::Tensor& weight);

}  // namespace runtime
}  // namespace fp8
