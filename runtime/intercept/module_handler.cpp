// SPDX-License-Identifier: Apache-2.0
// The operators are TorchScript's own (not the dispatcher's): they take a module, they decompose into plain ATen calls.
#include "fp8/runtime/intercept/module_handler.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/custom_class.h>

#include "fp8/runtime/device/registration.h"

namespace fp8::runtime {
namespace {

using c10::IValue;
using torch::jit::Stack;

/// The arguments of a call, taken off the stack: nodes, index, name, type, then the aten operator's.
struct Call {
  Call(Stack& stack, std::size_t count) : values(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end()) {
    torch::jit::drop(stack, count);
    if (const auto nodes = script_nodes_of(values[0]); nodes != nullptr) {
      const auto index = static_cast<std::size_t>(values[1].toInt());
      if (index < nodes->size()) handler = nodes->slot(index)->handler;
    }
  }
  const at::Tensor& tensor(std::size_t i) const { return values[4 + i].toTensor(); }
  const IValue& operator[](std::size_t i) const { return values[4 + i]; }

  std::vector<IValue> values;
  std::shared_ptr<ModuleHandler> handler;  ///< held: a handler that is taken off during its call lives on to the end
};

template <at::Tensor (*Product)(const at::Tensor&, const at::Tensor&)>
void product(Stack& stack) {
  const Call call(stack, 6);
  stack.emplace_back(by_handler(
      call.handler.get(), [&] { return Product(call.tensor(0), call.tensor(1)); },
      [&](ModuleHandler& handler, const OriginalOp& original) {
        return handler.matmul({call.tensor(0), call.tensor(1), original});
      }));
}

void softmax(Stack& stack) {
  const Call call(stack, 7);
  const auto dtype = call[2].toOptional<at::ScalarType>();
  stack.emplace_back(by_handler(
      call.handler.get(), [&] { return at::softmax(call.tensor(0), call[1].toInt(), dtype); },
      [&](ModuleHandler& handler, const OriginalOp& original) {
        const at::Tensor x = dtype.has_value() ? call.tensor(0).to(*dtype) : call.tensor(0);
        return handler.softmax({x, call[1].toInt(), original});
      }));
}

void attention(Stack& stack) {
  const Call call(stack, 12);
  const auto mask = call[3].toOptional<at::Tensor>();
  const auto scale = call[6].toOptional<double>();
  const double dropout = call[4].toDouble();
  const bool causal = call[5].toBool(), gqa = call[7].toBool();
  const at::Tensor &q = call.tensor(0), &k = call.tensor(1), &v = call.tensor(2);
  stack.emplace_back(by_handler(
      call.handler.get(), [&] { return at::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale, gqa); },
      [&](ModuleHandler& handler, const OriginalOp& original) {
        return handler.attention({q, k, v, mask, dropout, causal, scale, gqa, "None", std::nullopt, "left", original});
      }));
}

void cache(Stack& stack) {
  const Call call(stack, 5);
  const at::Tensor& x = call.tensor(0);
  stack.emplace_back(call.handler ? call.handler->fetch(call.handler->store(x), x.scalar_type()) : x);
}

/// True but for an instance that is older than its class's attribute: its object has no room for it.
void has_script_nodes(Stack& stack) {
  const IValue module = torch::jit::pop(stack);
  const auto& object = module.toObjectRef();
  const auto slot = object.type()->findAttributeSlot(kScriptNodesAttribute);
  stack.emplace_back(!slot.has_value() || *slot < object.slots().size());
}

#define FP8_NODE "Any nodes, int index, str name, str type, "
void register_operators() {
  const torch::jit::RegisterOperators operators({
      torch::jit::Operator("fp8::script_matmul(" FP8_NODE "Tensor self, Tensor other) -> Tensor", product<at::matmul>,
                           c10::AliasAnalysisKind::FROM_SCHEMA),
      torch::jit::Operator("fp8::script_bmm(" FP8_NODE "Tensor self, Tensor mat2) -> Tensor", product<at::bmm>,
                           c10::AliasAnalysisKind::FROM_SCHEMA),
      torch::jit::Operator("fp8::script_softmax(" FP8_NODE "Tensor self, int dim, int? dtype) -> Tensor", softmax,
                           c10::AliasAnalysisKind::FROM_SCHEMA),
      torch::jit::Operator(
          "fp8::script_attention(" FP8_NODE
          "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, float? scale, "
          "bool enable_gqa) -> Tensor",
          attention, c10::AliasAnalysisKind::FROM_SCHEMA),
      torch::jit::Operator("fp8::script_cache(" FP8_NODE "Tensor(a) current) -> Tensor(a)", cache,
                           c10::AliasAnalysisKind::FROM_SCHEMA),
      torch::jit::Operator("fp8::has_script_nodes(Any module) -> bool", has_script_nodes,
                           c10::AliasAnalysisKind::FROM_SCHEMA),
  });
}
#undef FP8_NODE

void register_class() {
  torch::class_<ScriptNodes>("fp8", "ScriptNodes")
      .def(torch::init<std::int64_t>())
      .def_pickle([](const c10::intrusive_ptr<ScriptNodes>& self) { return static_cast<std::int64_t>(self->size()); },
                  [](std::int64_t count) {
                    TORCH_CHECK(count >= 0 && count < (1 << 20), "[fp8] ScriptNodes: found ", count,
                                " slots, allowed: 0 to ", 1 << 20);
                    return c10::make_intrusive<ScriptNodes>(static_cast<std::size_t>(count));
                  });
}

[[maybe_unused]] const bool g_script_ops_registered = [] {
  if (!may_register(reinterpret_cast<const void*>(&has_script_nodes))) return false;
  register_operators();
  register_class();
  return true;
}();

}  // namespace

ScriptNodes::ScriptNodes(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) slots_.push_back(std::make_shared<ModuleSlot>());
}

c10::TypePtr script_nodes_type() {
  return c10::OptionalType::create(c10::getCustomClassType<c10::intrusive_ptr<ScriptNodes>>());
}

IValue make_script_nodes(std::size_t count) { return IValue(c10::make_intrusive<ScriptNodes>(count)); }

c10::intrusive_ptr<ScriptNodes> script_nodes_of(const IValue& value) {
  return value.isNone() ? nullptr : value.toCustomClass<ScriptNodes>();
}

const char* script_op_of(const std::string& aten_op) {
  constexpr std::pair<std::string_view, const char*> kTable[] = {
      {"aten::matmul", "fp8::script_matmul"},
      {"aten::bmm", "fp8::script_bmm"},
      {"aten::softmax", "fp8::script_softmax"},
      {"aten::scaled_dot_product_attention", "fp8::script_attention"}};
  for (const auto& [aten, ours] : kTable)
    if (aten == aten_op) return ours;
  return nullptr;
}

}  // namespace fp8::runtime
