// SPDX-License-Identifier: Apache-2.0
// Operations without a weight, for Python: torch.classes.fp8.Node(type) is a module of op_modules.h that measuring and
// converting take by the name that its model gives it.
//
//   node = torch.classes.fp8.Node("Matmul")
//   y = node.matmul(a, b)              torch.matmul(a, b), measured or in fp8 where the model is
#pragma once
#include <ATen/core/List.h>
#include <torch/custom_class.h>

#include "fp8/runtime/intercept/module_handler.h"

namespace fp8::runtime {

class OpModule;

class Node final : public torch::CustomClassHolder {
 public:
  /// type: "Matmul", "B2BMatmul", "Softmax", "ModuleFusedSDPA", "KVCache", "VLLMKVCache",
  /// "VllmMixtureOfExpertsOp"; c10::Error for others.
  explicit Node(std::string type);

  const std::string& type() const { return type_; }
  const std::shared_ptr<ModuleSlot>& slot() const;

  at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) const;
  at::Tensor softmax(const at::Tensor& x, std::int64_t dim) const;
  /// Fused attention, as at::scaled_dot_product_attention. q: [..., H, L, E], k and v: [..., Hkv, S, E].
  at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                       std::optional<double> scale, bool enable_gqa) const;

  /// Values -> what the cache holds: fp8 codes of the same sizes, or the values.
  at::Tensor store(const at::Tensor& current) const;
  /// What the cache holds -> values of like's dtype.
  at::Tensor fetch(const at::Tensor& stored, const at::Tensor& like) const;

  /// The module; c10::Error naming `what` where it is of another class.
  template <class Module>
  Module& as(const char* what) const;

  /// One line of what handles it; "": nothing does.
  std::string describe() const;
  /// A node of the same type, handled by the same handler: a converted model's copy.
  c10::intrusive_ptr<Node> copy() const;

 private:
  /// c10::Error naming `what` where the module is no cache.
  void check_cache(const char* what) const;

  std::string type_;
  std::shared_ptr<OpModule> module_;
};

using NodeList = c10::List<c10::intrusive_ptr<Node>>;

}  // namespace fp8::runtime
