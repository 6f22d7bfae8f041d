// SPDX-License-Identifier: Apache-2.0
// The mark on a weight. It is put in two places: on the TensorImpl (kept by detach, load and optimizer steps, lost by
// views) and on the memory block (kept by views, t(), InferenceMode, lost when the storage is replaced). A block holds
// as many as there are weights in it, each with its place. Looking one up costs a few ns.
//
// What copies of a marked weight mean, on hpu and on the host: weight_copy.h.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/op_handler.h"

namespace fp8::runtime {

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
  /// Whether t is the whole weight as it lies in memory.
  bool is(const at::Tensor& t) const;
  /// Whether all of t's elements, or some, are in the weight's memory. t: in the same storage.
  bool holds(const at::Tensor& t) const;
  bool meets(const at::Tensor& t) const;
  /// Whether t's elements are codes of this weight: some of them are in its memory, and read in its dtype.
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

/// The same for a tensor on hpu or a marked copy on the host, of the memory alone.
c10::intrusive_ptr<WeightTag> tag_in_memory(const at::Tensor& tensor);
/// Puts a tag on the memory of what it lies at (hpu, or cpu: make_host_block), in the place of one of the same sizes
/// there.
void put_tag(const at::Tensor& tensor, c10::intrusive_ptr<WeightTag> tag);

/// What part of the tagged parameter `tensor` is; nullopt if its strides fit no part of it.
std::optional<WeightView> view_of(const WeightTag& tag, const at::Tensor& tensor);

// A parameter whose memory holds fp8 codes and that learns all the same: its weight tag's handler is one of these too.
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

  /// The codes of another one's parameter were copied into this one's memory: their scale comes along.
  virtual void adopt(QuantizedParameter& source) { assign(source.values()); }

  /// The parameter itself, each time it is looked up: its memory may be another one since. It holds this object, which
  /// must not hold it.
  virtual void met(const at::Tensor& /*parameter*/) {}
};

/// The QuantizedParameter behind `parameter`; null for an ordinary one.
inline QuantizedParameter* quantized_parameter(const at::Tensor& parameter) {
  const WeightTag* tag = find_tag(parameter);
  auto* found = tag == nullptr ? nullptr : dynamic_cast<QuantizedParameter*>(tag->handler.get());
  if (found != nullptr) found->met(parameter);
  return found;
}

}  // namespace fp8::runtime

// What a converted weight shows of itself to code that knows nothing of codes.
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

/// What a handler that holds codes may tell of them: it derives from this too.
class CodedWeight {
 public:
  virtual ~CodedWeight() = default;
  virtual at::ScalarType values_dtype() const = 0;
  /// f32: one value, one per row, or a grid of blocks.
  virtual at::Tensor scale_inv_values() const = 0;
};

}  // namespace runtime
}  // namespace fp8
