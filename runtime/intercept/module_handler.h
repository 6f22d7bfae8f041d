// SPDX-License-Identifier: Apache-2.0
// The handler of an operation that has no weight of its own: the products, softmax and key-value cache of attention,
// mixtures of experts, and operations of one's own. A weight finds its handler through its tag; these find theirs
// through a slot that the module holds (runtime/modules) or that a TorchScript node is bound to. An empty slot costs a
// null check.
//
// measure and quant derive from ModuleHandler; the default of every operation is what the module does unhandled.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/intercept/handler_kind.h"

namespace fp8::runtime {

using OriginalOp = std::function<at::Tensor()>;  ///< the op as without a handler
using OriginalOps = std::function<std::vector<at::Tensor>()>;

/// a . b, batched as at::matmul.
struct MatmulCall {
  const at::Tensor& a;
  const at::Tensor& b;
  const OriginalOp& original;
};

/// softmax of x over dim.
struct SoftmaxCall {
  const at::Tensor& x;
  std::int64_t dim;
  const OriginalOp& original;
};

/// softmax(q . k^T * scale + mask) . v. q: [..., H, L, E], k: [..., Hkv, S, E], v: [..., Hkv, S, Ev].
struct AttentionCall {
  const at::Tensor& q;
  const at::Tensor& k;
  const at::Tensor& v;
  std::optional<at::Tensor> mask;  ///< bool (true: seen) or added to the logits
  double dropout_p = 0.0;
  bool is_causal = false;
  std::optional<double> scale;        ///< default 1 / sqrt(E)
  bool enable_gqa = false;            ///< Hkv divides H
  std::string softmax_mode = "None";  ///< "fast", "fp32" or "None"
  std::optional<at::Tensor> valid_seq_len;
  std::string seq_padding_type = "left";
  const OriginalOp& original;
};

/// y = sum over experts e of router_weight * (act(x . w1[e]) * (x . w2[e])) . w3[e], as hpu::mixture_of_experts.
struct MoeCall {
  const at::Tensor& hidden_states;         ///< [tokens, H]
  const at::Tensor& expert_routing_table;  ///< [tokens, top_k] int64
  const at::Tensor& router_weights;        ///< [tokens, top_k]
  const std::vector<at::Tensor>& w12;      ///< per expert, gate and up stacked: [2 I, H] when permuted_weights
  const std::vector<at::Tensor>& w3;       ///< per expert: [H, I] when permuted_weights
  bool permuted_weights;
  std::string activation;                 ///< "silu", "gelu", "relu"
  std::int64_t experts_min, experts_max;  ///< this rank's experts, inclusive
  const OriginalOp& original;
};

/// Any other operation: tensors in, tensors out.
struct TensorsCall {
  const std::vector<at::Tensor>& inputs;
  const OriginalOps& original;
};

class ModuleHandler {
 public:
  virtual ~ModuleHandler() = default;

  virtual at::Tensor matmul(const MatmulCall& call) { return call.original(); }
  virtual at::Tensor softmax(const SoftmaxCall& call) { return call.original(); }
  virtual at::Tensor attention(const AttentionCall& call) { return call.original(); }
  virtual at::Tensor mixture_of_experts(const MoeCall& call) { return call.original(); }

  virtual std::vector<at::Tensor> tensors(const TensorsCall& call) { return call.original(); }

  /// Key-value caches. cache_dtype: what a cache of values of `dtype` is allocated in. store: values -> what the cache
  /// holds. fetch: what the cache holds -> values of `dtype`.
  virtual at::ScalarType cache_dtype(at::ScalarType dtype) const { return dtype; }
  virtual at::Tensor store(const at::Tensor& current) { return current; }
  virtual at::Tensor fetch(const at::Tensor& stored, at::ScalarType dtype) { return stored.to(dtype); }

  /// The class, to the folder that it is of (handler_kind.h).
  virtual std::string_view kind() const { return {}; }
  /// One line for print-outs and messages.
  virtual std::string describe() const = 0;
};

/// op(), or with a handler handle(*handler, original): autocast is off inside, and for the original op, which is op, as
/// it was around the handler.
template <class Op, class Handle>
std::invoke_result_t<const Op&> by_handler(ModuleHandler* handler, const Op& op, const Handle& handle) {
  if (handler == nullptr) return op();
  const autocast::InsideOp inside;
  const std::function<std::invoke_result_t<const Op&>()> original = [was_enabled = inside.was_enabled(), op] {
    const autocast::OutsideOp outside(was_enabled);
    return op();
  };
  return handle(*handler, original);
}

/// The place of a module's handler, shared by the module and the code that sets the handler.
struct ModuleSlot {
  std::shared_ptr<ModuleHandler> handler;  ///< null: the module does what it always did
};

// Operations without a weight inside TorchScript code, as operators that ask a slot before they do what they always
// did. measure (module_tree.h) puts them in the place of aten::matmul, bmm, softmax and scaled_dot_product_attention:
//
//   %has : bool = fp8::has_script_nodes(%self)              false: an instance that was copied before its class was
//   rewritten %nodes = prim::If(%has) { self._fp8_nodes } { None } %p = fp8::script_softmax(%nodes, 0, "softmax",
//   "Softmax", %x, %dim, %dtype)
//
// index, name and type say which slot of the instance, and what measurements call it. Without a handler the result is
// the original operator's, bit for bit, gradients included.

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
/// The input of a key-value cache's module, as its readers will see it: fp8::script_cache(nodes, index, name, type,
/// x).
inline constexpr const char* kScriptCacheOp = "fp8::script_cache";
inline constexpr const char* kHasScriptNodesOp = "fp8::has_script_nodes";

}  // namespace fp8::runtime
