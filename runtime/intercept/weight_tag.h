// SPDX-License-Identifier: Apache-2.0
// The mark on a weight. It is put in two places: on the TensorImpl (kept by detach, load and optimizer steps, lost by
// views) and on the memory block (kept by views, t(), InferenceMode, lost when the storage is replaced). Looking it up
// costs some 3 ns.
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

  void check_access(const std::string& op, const at::Tensor& tensor) const override;
  void check_copy(const at::Tensor& to, const at::Tensor& from) const override;
  void copied(const at::Tensor& to, const at::Tensor& from) const override;
  void check_replace(const at::Tensor& self, at::ScalarType dtype) const override;
  void replaced(const at::Tensor& self) override;
  c10::intrusive_ptr<c10::BackendMeta> clone(const c10::intrusive_ptr<c10::BackendMeta>& self) const override {
    return self;
  }
};

/// Tags `weight` (on hpu, contiguous). A weight that is tagged already (tied) gets `module` added when the handler is
/// the same, and the new handler otherwise. Throws for a tensor that is not on hpu or not contiguous.
void tag_weight(const at::Tensor& weight, const std::string& module, std::shared_ptr<OpHandler> handler);

/// Takes the mark off again (both places).
void untag_weight(const at::Tensor& weight);

/// The tag of a tensor's memory; if only the TensorImpl has one (memory replaced by load), it is put on the memory too.
/// Null if none.
const WeightTag* find_tag(const at::Tensor& tensor);

/// What part of the tagged parameter `tensor` is; nullopt if its strides fit no part of it.
std::optional<WeightView> view_of(const WeightTag& tag, const at::Tensor& tensor);

}  // namespace fp8::runtime
