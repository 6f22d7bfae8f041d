// SPDX-License-Identifier: Apache-2.0
// Operations without a weight inside TorchScript code, as operators that ask a slot before they do what they always
// did. measure (script_nodes.h) puts them in the place of aten::matmul, bmm, softmax and scaled_dot_product_attention:
//
//   %has : bool = fp8::has_script_nodes(%self)              false: an instance that was copied before its class was
//   rewritten %nodes = prim::If(%has) { self._fp8_nodes } { None } %p = fp8::script_softmax(%nodes, 0, "softmax",
//   "Softmax", %x, %dim, %dtype)
//
// index, name and type say which slot of the instance, and what measurements call it. Without a handler the result is
// the original operator's, bit for bit, gradients included.
#pragma once
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <vector>

#include "fp8/runtime/intercept/module_handler.h"

namespace fp8::runtime {

/// The slots of one module instance: a TorchScript attribute. A copy or a file holds as many, all empty.
class ScriptNodes final : public torch::CustomClassHolder {
 public:
  explicit ScriptNodes(std::size_t count);
  std::size_t size() const { return slots_.size(); }
  const std::shared_ptr<ModuleSlot>& slot(std::size_t index) const { return slots_.at(index); }

 private:
  std::vector<std::shared_ptr<ModuleSlot>> slots_;
};

/// The attribute's name and its type, Optional[__torch__.torch.classes.fp8.ScriptNodes].
inline constexpr const char* kScriptNodesAttribute = "_fp8_nodes";
c10::TypePtr script_nodes_type();

c10::IValue make_script_nodes(std::size_t count);
/// Null for None.
c10::intrusive_ptr<ScriptNodes> script_nodes_of(const c10::IValue& value);

/// aten::matmul -> "fp8::script_matmul"; nullptr if there is none. Inputs are those of the aten operator, after nodes,
/// index, name, type.
const char* script_op_of(const std::string& aten_op);
/// What a key-value cache's module is given, as its readers will see it: fp8::script_cache(nodes, index, name, type,
/// x).
inline constexpr const char* kScriptCacheOp = "fp8::script_cache";
inline constexpr const char* kHasScriptNodesOp = "fp8::has_script_nodes";

}  // namespace fp8::runtime
