// SPDX-License-Identifier: Apache-2.0
// The autograd of operators of a user's own: one node of autograd for all of them. Tensors are saved as autograd wants
// them (a changed one throws), all else of the call stays beside.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/custom/custom_call.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What backward needs beside the saved tensors.
struct SavedCall : torch::CustomClassHolder {
  std::shared_ptr<CustomOpState> op;
  std::vector<c10::IValue> arguments;  ///< undefined tensors where tensors are
  std::size_t results = 0;
};

/// Takes the tensors out, in order.
variable_list take_tensors(std::vector<c10::IValue>& arguments) {
  variable_list tensors;
  for (c10::IValue& value : arguments) {
    replace_tensors(value, [&](const at::Tensor& t) {
      tensors.push_back(t);
      return at::Tensor();
    });
  }
  return tensors;
}

/// And puts them back.
std::vector<c10::IValue> with_tensors(std::vector<c10::IValue> arguments, at::TensorList tensors) {
  std::size_t next = 0;
  for (c10::IValue& value : arguments) replace_tensors(value, [&](const at::Tensor&) { return tensors[next++]; });
  return arguments;
}

variable_list call_backward_op(const CustomOpState& op, const BackwardCall& call) {
  const auto dot = op.backward_op.find('.');
  const std::string overload = dot == std::string::npos ? "" : op.backward_op.substr(dot + 1);
  const auto found = c10::Dispatcher::singleton().findSchema({op.backward_op.substr(0, dot), overload});
  TORCH_CHECK(found.has_value(), "[", op.name, "] backward: found no operator '", op.backward_op, "'");
  torch::jit::Stack stack;
  for (const at::Tensor& t : call.gradients) stack.emplace_back(t);
  stack.insert(stack.end(), call.arguments.begin(), call.arguments.end());
  for (const at::Tensor& t : call.results) stack.emplace_back(t);
  TORCH_CHECK(stack.size() == found->schema().arguments().size(), "[", op.name, "] backward: '", op.backward_op,
              "' takes ", found->schema().arguments().size(), " arguments, there are ", stack.size(),
              ": the gradients, the arguments", op.saves_results ? ", the results" : "");
  found->callBoxed(stack);
  variable_list gradients;
  for (const c10::IValue& value : stack) {
    TORCH_CHECK(value.isTensor() || value.isTensorList() || value.isNone(), "[", op.name, "] backward: '",
                op.backward_op, "' returned ", value.tagKind(), ", allowed: tensors");
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) gradients.push_back(t);
    } else {
      gradients.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
  }
  return gradients;
}

void check_gradients(const CustomOpState& op, const variable_list& gradients, at::TensorList tensors) {
  TORCH_CHECK(gradients.size() == tensors.size(), "[", op.name, "] backward gave ", gradients.size(),
              " gradients, the arguments hold ", tensors.size(), " tensors");
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined() || !tensors[i].defined()) continue;
    TORCH_CHECK(gradients[i].sizes() == tensors[i].sizes(), "[", op.name, "] backward gave tensor ", i,
                " a gradient of the sizes ", gradients[i].sizes(), ", it has ", tensors[i].sizes());
  }
}

struct CustomFunction : torch::autograd::Function<CustomFunction> {
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<SavedCall>& call,
                               const c10::OperatorHandle& handle, c10::DispatchKeySet keys, at::TensorList tensors) {
    torch::jit::Stack stack = with_tensors(call->arguments, tensors);
    handle.redispatchBoxed(keys & c10::after_autograd_keyset, &stack);
    variable_list results, saved = tensors.vec();
    for (const c10::IValue& value : stack) results.push_back(value.toTensor());
    if (call->op->saves_results) saved.insert(saved.end(), results.begin(), results.end());
    call->results = results.size();
    context->save_for_backward(std::move(saved));
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto call = c10::static_intrusive_pointer_cast<SavedCall>(context->saved_data["call"].toCapsule());
    CustomOpState& op = *call->op;
    const Running running(op);
    const variable_list saved = context->get_saved_variables();
    const at::TensorList tensors =
        at::TensorList(saved).slice(0, saved.size() - (op.saves_results ? call->results : 0));
    variable_list found;
    {
      const at::NoGradGuard no_grad;
      const autocast::InsideOp inside(std::nullopt);  // the forward's casts were made there
      const std::vector<c10::IValue> arguments = with_tensors(call->arguments, tensors);
      const BackwardCall asked{gradients, arguments, at::TensorList(saved).slice(tensors.size())};
      if (!op.backward_op.empty()) {
        found = call_backward_op(op, asked);
      } else {
        named_call(op.name, "backward", [&] { found = op.backward(asked); });
      }
    }
    check_gradients(op, found, tensors);
    variable_list result(3);  // of forward's first arguments
    for (const at::Tensor& g : found) result.push_back(ops::once_differentiable(g, op.name, {}, gradients));
    return result;
  }
};

}  // namespace

void run_in_autograd(const std::shared_ptr<CustomOpState>& op, const c10::OperatorHandle& handle,
                     c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const std::size_t count = handle.schema().arguments().size(), first = stack.size() - count;
  bool needed = false;
  each_tensor(CustomArguments(stack).slice(first), [&](const at::Tensor& t) {
    if (!t.defined()) return;
    TORCH_CHECK(!t._fw_grad(/*level=*/0).defined(), "[", op->name,
                "] found a forward-mode tangent, allowed: none: ", "its backward is for reverse mode");
    needed = needed || (at::GradMode::is_enabled() && t.requires_grad());
  });
  if (!needed) return handle.redispatchBoxed(keys & c10::after_autograd_keyset, &stack);
  auto call = c10::make_intrusive<SavedCall>();
  call->op = op;
  call->arguments.assign(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  const variable_list tensors = take_tensors(call->arguments);
  variable_list results = CustomFunction::apply(call, handle, keys, at::TensorList(tensors));
  torch::jit::drop(stack, count);
  for (at::Tensor& t : results) stack.emplace_back(std::move(t));
}

}  // namespace fp8::runtime::detail
