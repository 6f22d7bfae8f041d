// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <set>

#include "fp8/configs/module_types.h"
#include "fp8/measure/model/module_tree.h"

namespace fp8::measure {
namespace {

using configs::ModuleKind;
using torch::jit::Block, torch::jit::Graph, torch::jit::GraphFunction, torch::jit::Node, torch::jit::Value;

/// LibTorch caches what it compiled per function and offers no way to forget it; the pointer to the member reaches the
/// cache.
using Executors = std::array<std::optional<torch::jit::GraphExecutor>, 4>;
Executors& executors_of(GraphFunction& function);
template <Executors GraphFunction::*Member>
struct ReachExecutors {
  friend Executors& executors_of(GraphFunction& function) { return function.*Member; }
};
template struct ReachExecutors<&GraphFunction::executors_>;

/// One node of a class, as its code says it.
struct NodeSpec {
  std::size_t index;
  std::string name;  ///< relative to the module; "": the module itself
  std::string type;
};

/// The name of an aten op, and of its node.
struct OpKind {
  const char* aten;
  const char* name;
  const char* type;
  ModuleKind kind;
  std::size_t optional = 0, flags = 0;  ///< older files lack the last arguments: None up to the first, then false

  const configs::KindInfo& info() const { return configs::info_of(kind); }
};
constexpr OpKind kOps[] = {
    {"aten::matmul", "matmul", "Matmul", ModuleKind::matmul},
    {"aten::bmm", "matmul", "Matmul", ModuleKind::matmul},
    {"aten::softmax", "softmax", "Softmax", ModuleKind::softmax},
    {"aten::scaled_dot_product_attention", "sdpa", "ModuleFusedSDPA", ModuleKind::fused_sdpa, 7, 8}};
constexpr std::size_t kNodeInputs = 4;  // nodes, index, name, type

template <class Visit>
void for_each_node(Block* block, const Visit& visit) {
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    Node* node = *it;
    ++it;  // visit may destroy the node
    for (Block* inner : node->blocks()) for_each_node(inner, visit);
    visit(node);
  }
}

/// The tensor comes from an attribute or constant by views alone: a weight.
bool is_weight(const Value* value) {
  static const std::set<std::string> views = {"aten::t",       "aten::transpose",  "aten::permute", "aten::view",
                                              "aten::reshape", "aten::to",         "aten::expand",  "aten::unsqueeze",
                                              "aten::squeeze", "aten::contiguous", "aten::numpy_T", "aten::detach"};
  for (const Node* node = value->node();; node = node->inputs()[0]->node()) {
    if (node->kind() == torch::jit::prim::GetAttr || node->kind() == torch::jit::prim::Constant) return true;
    if (!views.contains(node->kind().toQualString()) || node->inputs().empty()) return false;
  }
}

const OpKind* op_kind(const Node* node) {
  const std::string name = node->kind().toQualString();
  for (const auto& op : kOps) {
    if (name != op.aten || node->outputs().size() != 1 || !node->input(0)->type()->isSubtypeOf(*c10::TensorType::get()))
      continue;
    const bool weight = op.info().product && (is_weight(node->input(0)) || is_weight(node->input(1)));
    return weight ? nullptr : &op;
  }
  return nullptr;
}

/// The function that a CallFunction, or a CallMethod on `self`, runs; null for any other node.
GraphFunction* own_callee(const Node* node, const Value* self) {
  if (node->kind() == torch::jit::prim::CallFunction) {
    const auto type = node->input(0)->type()->cast<c10::FunctionType>();
    return type ? torch::jit::tryToGraphFunction(*type->function()) : nullptr;
  }
  if (node->kind() != torch::jit::prim::CallMethod || node->input(0) != self) return nullptr;
  const auto type = self->type()->cast<c10::ClassType>();
  return type ? torch::jit::tryToGraphFunction(type->getMethod(node->s(torch::jit::attr::name))) : nullptr;
}

/// True if the function's code, with what it calls of its own, has a node of ours to be. `open`: functions being looked
/// at (recursion).
bool has_ops(GraphFunction& function, std::set<const GraphFunction*>& open) {
  function.ensure_defined();
  if (!open.insert(&function).second) return false;
  const auto graph = function.graph();
  const Value* self = graph->inputs().empty() ? nullptr : graph->inputs()[0];
  bool found = false;
  for_each_node(graph->block(), [&](Node* node) {
    if (found) return;
    GraphFunction* callee = own_callee(node, self);
    found = op_kind(node) != nullptr || (callee != nullptr && has_ops(*callee, open));
  });
  open.erase(&function);
  return found;
}

/// Brings the code of own methods and functions that have ops into `graph`, until there is none left.
void inline_own_calls(Graph& graph) {
  for (int depth = 0; depth < 64; ++depth) {  // recursion can't be unrolled
    bool changed = false;
    for_each_node(graph.block(), [&](Node* node) {
      GraphFunction* callee = own_callee(node, graph.inputs()[0]);
      std::set<const GraphFunction*> open;
      if (callee == nullptr || !has_ops(*callee, open)) return;
      if (node->kind() == torch::jit::prim::CallFunction) node->removeInput(0);
      torch::jit::inlineCallTo(node, callee);
      changed = true;
    });
    if (!changed) return;
  }
}

/// Rewrites the methods of one class.
class ClassRewriter {
 public:
  ClassRewriter(const c10::ClassTypePtr& type, const std::set<std::string>& called) : type_(type) {
    known_ = configs::find_module_type(type_->name()->name());
    std::vector<torch::jit::Function*> methods;
    if (auto* forward = type_->findMethod("forward")) methods.push_back(forward);
    for (const auto& name : called)
      if (name != "forward") methods.push_back(type_->findMethod(name));
    for (auto* method : methods)
      if (auto* function = method != nullptr ? torch::jit::tryToGraphFunction(*method) : nullptr) rewrite(*function);
    if (count_ > 0) type_->addOrCheckAttribute(runtime::kScriptNodesAttribute, runtime::script_nodes_type());
  }
  bool changed() const { return count_ > 0; }

 private:
  bool is(bool configs::KindInfo::*what) const { return known_ != nullptr && configs::info_of(known_->kind).*what; }

  void rewrite(GraphFunction& function) {
    function.ensure_defined();
    auto graph = function.graph();
    if (graph->inputs().empty()) return;
    nodes_ = nullptr;
    if (is(&configs::KindInfo::cache)) {
      rewrite_cache(*graph, function.name());
      return;
    }
    std::set<const GraphFunction*> open;
    if (!has_ops(function, open)) return;
    inline_own_calls(*graph);
    torch::jit::ConstantPropagationImmutableTypes(graph);  // `if dtype is None` of functional.softmax
    torch::jit::EliminateDeadCode(graph);
    std::vector<std::pair<Node*, const OpKind*>> found;
    for_each_node(graph->block(), [&](Node* node) {
      if (const auto* op = op_kind(node)) found.emplace_back(node, op);
    });
    for (const auto& [node, op] : found) replace(*graph, node, *op);
  }

  /// A class of the table is one node, whatever of its kind its code holds.
  NodeSpec spec_for(const OpKind& op) {
    const bool same = known_ != nullptr && known_->kind == op.kind;
    if (same || (op.info().product && is(&configs::KindInfo::product))) {
      count_ = std::max<std::size_t>(count_, 1);
      return {0, "", std::string(known_->name)};
    }
    if (known_ != nullptr && count_ == 0) count_ = 1;  // place 0 is the module's own
    std::string name = op.name;
    for (int i = 1; !taken_.insert(name).second || type_->hasAttribute(name); ++i)
      name = std::string(op.name) + "_" + std::to_string(i);
    return {count_++, name, op.type};
  }

  void replace(Graph& graph, Node* node, const OpKind& op) {
    const NodeSpec spec = spec_for(op);
    Value* nodes = nodes_value(graph);
    const torch::jit::WithInsertPoint at(node);
    Node* ours = graph.create(c10::Symbol::fromQualString(runtime::script_op_of(op.aten)), 1);
    ours->addInput(nodes);
    ours->addInput(graph.insertConstant(static_cast<std::int64_t>(spec.index)));
    ours->addInput(graph.insertConstant(spec.name));
    ours->addInput(graph.insertConstant(spec.type));
    for (Value* input : node->inputs()) ours->addInput(input);
    while (ours->inputs().size() < kNodeInputs + op.optional) ours->addInput(graph.insertConstant(c10::IValue()));
    while (ours->inputs().size() < kNodeInputs + op.flags) ours->addInput(graph.insertConstant(false));
    ours->setSourceRange(node->sourceRange());
    ours->output()->copyMetadata(node->output());
    graph.insertNode(ours);
    node->output()->replaceAllUsesWith(ours->output());
    node->destroy();
  }

  /// Passes a cache's new tensor through the node: the argument called cur, current or input, else the first tensor.
  void rewrite_cache(Graph& graph, const std::string& method) {
    if (method != "forward" && method != "update") return;
    Value* given = nullptr;
    for (Value* input : graph.inputs().slice(1)) {
      if (!input->type()->isSubtypeOf(*c10::OptionalType::ofTensor())) continue;
      const std::string name = input->debugNameBase();
      const bool named = name == "cur" || name == "current" || name == "input";
      if (given == nullptr || named) given = input;
      if (named) break;
    }
    if (given == nullptr || !given->type()->isSubtypeOf(*c10::TensorType::get())) return;
    Value* nodes = nodes_value(graph);
    const torch::jit::WithInsertPoint at(nodes->node()->next());
    Node* ours = graph.create(c10::Symbol::fromQualString(runtime::kScriptCacheOp), 1);
    ours->addInput(nodes);
    ours->addInput(graph.insertConstant(0));
    ours->addInput(graph.insertConstant(""));
    ours->addInput(graph.insertConstant(std::string(known_->name)));
    graph.insertNode(ours);
    given->replaceAllUsesWith(ours->output());
    ours->addInput(given);
    count_ = std::max<std::size_t>(count_, 1);
  }

  /// The instance's slots, or None: made once at the top of the graph.
  Value* nodes_value(Graph& graph) {
    if (nodes_ != nullptr) return nodes_;
    Block* top = graph.block();
    const torch::jit::WithInsertPoint at(*top->nodes().begin());
    Value* self = graph.inputs()[0];
    Node* has = graph.insertNode(graph.create(c10::Symbol::fromQualString(runtime::kHasScriptNodesOp), {self}, 1));
    has->output()->setType(c10::BoolType::get());
    Node* branch = graph.insertNode(graph.create(torch::jit::prim::If, {has->output()}, 1));
    Block *yes = branch->addBlock(), *no = branch->addBlock();
    {
      const torch::jit::WithInsertPoint inside(yes);
      Node* get = graph.insertNode(graph.create(torch::jit::prim::GetAttr, {self}, 1));
      get->s_(torch::jit::attr::name, runtime::kScriptNodesAttribute);
      get->output()->setType(runtime::script_nodes_type());
      yes->registerOutput(get->output());
    }
    {
      const torch::jit::WithInsertPoint inside(no);
      no->registerOutput(graph.insertConstant(c10::IValue()));
    }
    branch->output()->setType(runtime::script_nodes_type());
    return nodes_ = branch->output();
  }

  c10::ClassTypePtr type_;
  const configs::ModuleType* known_;
  std::set<std::string> taken_;
  std::size_t count_ = 0;
  Value* nodes_ = nullptr;
};

/// The nodes that the code of a rewritten class speaks of, by index.
std::vector<NodeSpec> specs_of(const c10::ClassTypePtr& type) {
  std::map<std::size_t, NodeSpec> specs;
  for (auto* method : type->methods()) {
    auto* function = torch::jit::tryToGraphFunction(*method);
    if (function == nullptr) continue;
    for_each_node(function->graph()->block(), [&](Node* node) {
      if (!std::string_view(node->kind().toQualString()).starts_with("fp8::script_")) return;
      const auto index = torch::jit::constant_as<std::int64_t>(node->input(1));
      const auto name = torch::jit::constant_as<std::string>(node->input(2)),
                 kind = torch::jit::constant_as<std::string>(node->input(3));
      if (index && name && kind)
        specs.insert({static_cast<std::size_t>(*index), {static_cast<std::size_t>(*index), *name, *kind}});
    });
  }
  std::vector<NodeSpec> list;
  for (auto& [index, spec] : specs) list.push_back(std::move(spec));
  return list;
}

using Classes = std::map<c10::ClassTypePtr, std::set<std::string>>;

/// The classes of a model, each with the methods that another class's code calls.
Classes classes_of(const torch::jit::Module& model) {
  Classes classes;
  for (const auto& module : model.modules()) classes[module.type()];
  std::vector<std::pair<c10::ClassTypePtr, std::string>> calls;
  for (const auto& [type, unused] : classes) {
    for (auto* method : type->methods()) {
      auto* function = torch::jit::tryToGraphFunction(*method);
      if (function == nullptr) continue;
      function->ensure_defined();
      const auto graph = function->graph();
      for_each_node(graph->block(), [&](Node* node) {
        if (node->kind() != torch::jit::prim::CallMethod || node->input(0) == graph->inputs()[0]) return;
        if (const auto callee = node->input(0)->type()->cast<c10::ClassType>())
          calls.emplace_back(callee, node->s(torch::jit::attr::name));
      });
    }
  }
  for (auto& [type, name] : calls)
    if (const auto found = classes.find(type); found != classes.end()) found->second.insert(name);
  return classes;
}

void forget_optimized(const Classes& classes) {
  for (const auto& [type, unused] : classes) {
    for (auto* method : type->methods()) {
      auto* function = torch::jit::tryToGraphFunction(*method);
      if (function == nullptr) continue;
      function->clear_optimized_graphs();
      executors_of(*function).fill(std::nullopt);
    }
  }
}

/// The slots of one instance; made if it has none.
c10::intrusive_ptr<runtime::ScriptNodes> slots_of(const torch::jit::Module& module, std::size_t count) {
  const auto slot = module.type()->getAttributeSlot(runtime::kScriptNodesAttribute);
  const auto object = module._ivalue();
  if (slot < object->slots().size())
    if (auto nodes = runtime::script_nodes_of(object->getSlot(slot)); nodes != nullptr && nodes->size() >= count)
      return nodes;
  object->setSlot(slot, runtime::make_script_nodes(count));
  return runtime::script_nodes_of(object->getSlot(slot));
}

}  // namespace

std::vector<OpNode> op_nodes(const torch::jit::Module& model) {
  const Classes classes = classes_of(model);
  bool changed = false;
  for (const auto& [type, called] : classes)
    if (!type->hasAttribute(runtime::kScriptNodesAttribute)) changed = ClassRewriter(type, called).changed() || changed;
  if (changed) forget_optimized(classes);
  std::map<c10::ClassTypePtr, std::vector<NodeSpec>> specs;
  for (const auto& [type, unused] : classes)
    if (type->hasAttribute(runtime::kScriptNodesAttribute)) specs[type] = specs_of(type);
  std::vector<OpNode> out;
  for (const auto& item : model.named_modules()) {
    const auto found = specs.find(item.value.type());
    if (found == specs.end() || found->second.empty()) continue;
    const auto slots = slots_of(item.value, found->second.back().index + 1);
    for (const auto& spec : found->second) {
      const std::string dot = item.name.empty() || spec.name.empty() ? "" : ".";
      out.push_back({item.name + dot + spec.name, spec.type, slots->slot(spec.index)});
    }
  }
  return out;
}

}  // namespace fp8::measure
