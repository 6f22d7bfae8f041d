// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/operator_name.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <torch/nn/module.h>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/trainer/trainer_run.h"

namespace fp8::trainer {
namespace {

/// The module that an operation is of: that of its parameter, or of the last parameter before it.
struct ModulePlace {
  std::string module;
  bool known = false;   ///< false: no parameter was used so far
  bool behind = false;  ///< it has no parameter itself
};

struct Anomaly {
  std::string op;
  ModulePlace place;
  std::string node;  ///< of autograd, in backward
  bool made = false;
  bool nan = false;
};

bool looked_at(const at::Tensor& t) {
  return t.defined() && t.layout() == at::kStrided && t.has_storage() && !t.is_nested() && !t.is_meta() &&
         t.numel() > 0 && at::isFloatingType(t.scalar_type()) && !c10::isFloat8Type(t.scalar_type());
}

/// Read on the host, without an operator that the watch would record.
struct Content {
  explicit Content(const at::Tensor& t) {
    const at::NoGradGuard no_grad;
    const at::Tensor here = runtime::cpu_alias(t.detach());
    if (std::isfinite(here.sum(at::kFloat).item<float>())) return;  // a sum of finite ones may be infinite, too
    nan = at::isnan(here).any().item<bool>();
    inf = at::isinf(here).any().item<bool>();
  }
  bool nan = false, inf = false;
};

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() && a.storage().is_alias_of(b.storage());
}

/// Memory that holds anything yet.
bool is_uninitialized(std::string_view op) {
  return std::ranges::any_of(
      std::array<std::string_view, 5>{"aten::empty", "aten::new_empty", "aten::_empty", "aten::resize_", "aten::set_"},
      [&](auto name) { return op.starts_with(name); });
}

/// Of one operation, from its begin to its end.
struct Operation : at::ObserverContext {
  std::vector<at::Tensor> inputs;
  bool scalar_nan = false, scalar_inf = false;
  ModulePlace place;  ///< of the operation
  int depth_before = 0;
  bool outermost = false;   ///< its inner operations may work on memory that is not filled yet
  std::string node_before;  ///< of a backward node: what ran around it
  ModulePlace place_before;
};

}  // namespace

struct AnomalyWatch::State final : runtime::LeafListener {
  explicit State(torch::nn::Module& network) : listening(*this) {
    for (const auto& p : network.named_parameters()) {
      if (!p.value().has_storage()) continue;
      const auto dot = p.key().rfind('.');
      modules.try_emplace(p.value().storage().unsafeGetStorageImpl(),
                          dot == std::string::npos ? "" : p.key().substr(0, dot));
    }
  }

  void begins(const at::RecordFunction& op, Operation& operation) {
    operation.depth_before = depth;
    if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      depth = 0;
      operation.node_before = std::exchange(node, op.name());
      operation.place_before = place;
      if (const auto made = nodes.find(op.seqNr()); made != nodes.end()) place = made->second;
      return;
    }
    if (!op.operator_name()) return;  // the name of a part of the program: operations are within
    operation.outermost = depth++ == 0;
    if (operation.outermost) {
      bool own = false;
      for (const auto& value : op.inputs()) own |= take(value, operation);
      if (node.empty() && !own) place.behind = true;
      operation.place = place;
    }
    if (node.empty() && op.seqNr() >= 0) nodes[op.seqNr()] = place;
  }

  /// Returns whether an operand is a parameter, in forward.
  bool take(const c10::IValue& value, Operation& operation) {
    if (value.isDouble()) {
      operation.scalar_nan |= std::isnan(value.toDouble());
      operation.scalar_inf |= std::isinf(value.toDouble());
    }
    bool own = false;
    runtime::for_each_tensor(value, [&](const at::Tensor& t) {
      if (!t.defined() || !t.has_storage()) return;
      operation.inputs.push_back(t);
      const auto parameter = modules.find(t.storage().unsafeGetStorageImpl());
      if (!node.empty() || parameter == modules.end()) return;
      place = {parameter->second, true, false};
      own = true;
    });
    return own;
  }

  void ends(const at::RecordFunction& op, const Operation& operation) {
    depth = operation.depth_before;
    if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      node = operation.node_before;
      place = operation.place_before;
      return;
    }
    if (!operation.outermost || (nan && inf) || is_uninitialized(op.name())) return;
    const at::DisableRecordFunctionGuard not_ours;
    for (const auto& value : op.outputs())
      runtime::for_each_tensor(value, [&](const at::Tensor& t) {
        if (looked_at(t)) look(op, operation, t);
      });
  }

  void look(const at::RecordFunction& op, const Operation& operation, const at::Tensor& output) {
    const Content content(output);
    if (!(content.nan && !nan) && !(content.inf && !inf)) return;
    const auto aliases = [&](const at::Tensor& input) { return same_memory(input, output); };
    if (std::ranges::any_of(operation.inputs, aliases)) {  // a view makes nothing
      const auto schema = op.operator_schema();
      if (!schema || !schema->is_mutable()) return;
    }
    bool nan_before = operation.scalar_nan, inf_before = operation.scalar_inf;
    for (const auto& input : operation.inputs) {
      if (!looked_at(input) || aliases(input)) continue;
      const Content had(input);
      nan_before |= had.nan;
      inf_before |= had.inf;
    }
    asked_for |= content.inf && operation.scalar_inf;
    if (content.inf && !inf && !(inf_before && asked_for)) add(op, operation, false, !inf_before);
    if (content.nan && !nan) add(op, operation, true, !nan_before);
  }

  void add(const at::RecordFunction& op, const Operation& operation, bool is_nan, bool made) {
    Anomaly anomaly{op.name(), operation.place, node, made, is_nan};
    if (const auto module = runtime::ModuleScope::current(); !module.empty())
      anomaly.place = {std::string(module), true, false};
    found.push_back(std::move(anomaly));
    (is_nan ? nan : inf) = true;
  }

  std::unordered_map<const void*, std::string> modules;  ///< by a parameter's storage
  std::unordered_map<std::int64_t, ModulePlace> nodes;   ///< the places at which autograd's nodes were made
  ModulePlace place;
  int depth = 0;  ///< of operations in operations
  std::string node;
  std::vector<Anomaly> found;
  bool nan = false, inf = false;  ///< found already
  bool asked_for = false;         ///< a tensor was filled with infinities on purpose
  runtime::Listening listening;   ///< so that backward knows its modules
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
};

namespace {

thread_local AnomalyWatch::State* t_watch = nullptr;

std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction& op) {
  auto operation = std::make_unique<Operation>();
  if (t_watch != nullptr) t_watch->begins(op, *operation);
  return operation;
}

void op_ends(const at::RecordFunction& op, at::ObserverContext* context) {
  if (t_watch != nullptr && context != nullptr) t_watch->ends(op, *static_cast<const Operation*>(context));
}

}  // namespace

AnomalyWatch::AnomalyWatch(torch::nn::Module& network) : state_(std::make_unique<State>(network)) {
  if (t_watch != nullptr)
    throw std::logic_error("[trainer] detect_anomaly: found another on this thread, allowed: one");
  t_watch = state_.get();
  state_->callback =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&op_begins, &op_ends)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

AnomalyWatch::~AnomalyWatch() {
  at::removeCallback(state_->callback);
  t_watch = nullptr;
}

void AnomalyWatch::begin_step() {
  state_->found.clear();
  state_->nodes.clear();
  state_->place = {};
  state_->nan = state_->inf = state_->asked_for = false;
  state_->depth = 0;
}

std::string AnomalyWatch::report() const {
  std::string text;
  for (const auto& a : state_->found) {
    text += (text.empty() ? "" : "; ") + a.op + (a.made ? " made the first " : " met the first ") +
            (a.nan ? "NaN" : "infinite value") + " (" + (a.node.empty() ? "forward" : "backward, " + a.node);
    if (a.place.known && !a.place.module.empty())
      text += std::string(a.place.behind ? ", behind '" : ", in '") + a.place.module + "'";
    text += ")";
  }
  return text;
}

}  // namespace fp8::trainer
