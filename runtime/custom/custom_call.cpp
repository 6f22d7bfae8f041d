// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/custom/custom_call.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/safe_numerics.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>

#include <exception>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime {

const c10::IValue& HostCall::argument(std::size_t i) const {
  TORCH_CHECK(i < arguments_.size(), "[", op_, "] the kernel asks for argument ", i, ", found ", arguments_.size(),
              " arguments");
  return arguments_[i];
}

const at::Tensor& HostCall::tensor(std::size_t i) const {
  const c10::IValue& value = argument(i);
  TORCH_CHECK(value.isTensor(), "[", op_, "] the kernel asks for the tensor in argument ", i, ", found ",
              value.tagKind());
  return value.toTensor();
}

const at::Tensor& HostCall::result(std::size_t i) const {
  TORCH_CHECK(i < results_.size(), "[", op_, "] the kernel asks for result ", i, ", found ", results_.size(),
              " results");
  return results_[i];
}

const at::Tensor& HostCall::of_type(const at::Tensor& t, at::ScalarType wanted, const char* what, std::size_t i) const {
  TORCH_CHECK(t.scalar_type() == wanted, "[", op_, "] ", what, " ", i, ": found ", t.scalar_type(),
              ", the kernel takes ", wanted);
  return t;
}

const void* HostCall::params_of(std::size_t bytes) const {
  TORCH_CHECK(params_ != nullptr && bytes == bytes_, "[", op_, "] params: found ", params_ != nullptr ? bytes_ : 0,
              " bytes, the kernel takes ", bytes);
  return params_;
}

namespace detail {
namespace {

/// The arguments as a kernel gets them, and what keeps their memory.
struct Operands {
  std::vector<c10::IValue> on_host;
  std::vector<at::Tensor> kept;
};

at::Tensor on_host(const std::string& op, const at::Tensor& t, bool dense, Operands& operands) {
  TORCH_CHECK(t.defined(), "[", op, "] found an undefined tensor, allowed: tensors on hpu");
  TORCH_CHECK(t.is_hpu() || t.is_cpu(), "[", op, "] found an operand on ", t.device(), ", allowed: hpu and cpu");
  TORCH_CHECK(t.layout() == at::kStrided && !t.is_nested(), "[", op, "] found an operand of layout ",
              t.is_nested() ? std::string("Nested") : c10::str(t.layout()), ", allowed: dense tensors");
  if (Block* block = block_of(t); block != nullptr && block->tag) block->tag->check_access(op, t);
  operands.kept.push_back(t);
  const at::Tensor alias = t.is_hpu() ? cpu_alias(t) : t.detach();
  return dense ? alias.resolve_conj().resolve_neg().contiguous() : alias;
}

Operands operands_of(const std::string& op, CustomArguments arguments, bool dense) {
  Operands operands{arguments.vec(), {}};
  for (c10::IValue& value : operands.on_host)
    replace_tensors(value, [&](const at::Tensor& t) { return on_host(op, t, dense, operands); });
  return operands;
}

/// Memory that others see too stays theirs.
at::Tensor as_new(const at::Tensor& t, const Operands& operands) {
  bool shared = t.requires_grad() || t.use_count() > 1 || t.storage().use_count() > 1;
  const auto same = [&](const at::Tensor& argument) { shared = shared || argument.storage().is_alias_of(t.storage()); };
  each_tensor(operands.on_host, same);
  return shared ? t.detach().clone() : t;
}

void check_result(const std::string& op, const at::Tensor& t, std::size_t i, const ResultForm* form) {
  TORCH_CHECK(t.defined(), "[", op, "] result ", i, ": the kernel returned an undefined tensor");
  TORCH_CHECK(t.is_cpu() && t.layout() == at::kStrided && !t.is_nested(), "[", op, "] result ", i,
              ": the kernel returned a tensor of ", t.device(), " and layout ", c10::str(t.layout()),
              ", allowed: dense ones on the cpu");
  if (form == nullptr) return;
  TORCH_CHECK(t.scalar_type() == form->dtype, "[", op, "] result ", i, ": the kernel returned ", t.scalar_type(),
              ", the shape function says ", form->dtype);
  TORCH_CHECK(t.sizes() == at::IntArrayRef(form->sizes), "[", op, "] result ", i, ": the kernel returned the sizes ",
              t.sizes(), ", the shape function says ", at::IntArrayRef(form->sizes));
}

std::vector<at::Tensor> run_tensor_kernel(const CustomOpState& op, at::Device device, CustomArguments arguments,
                                          const std::vector<ResultForm>& forms, std::size_t count) {
  std::optional<HostAllocationsFor> within_limit;
  if (device.is_hpu()) within_limit.emplace(device.index(), op.name.c_str());
  const Operands operands = operands_of(op.name, arguments, /*dense=*/false);
  std::vector<at::Tensor> returned;
  named_call(op.name, "kernel", [&] {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveAliases);
    returned = op.tensors(operands.on_host);
  });
  TORCH_CHECK(returned.size() == count, "[", op.name, "] the kernel returned ", returned.size(),
              " tensors, the schema says ", count);
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < count; ++i) {
    check_result(op.name, returned[i], i, forms.empty() ? nullptr : &forms[i]);
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveAliases);
    results.push_back(as_new(std::exchange(returned[i], at::Tensor()), operands));
    if (device.is_hpu()) adopt(results.back(), device.index());
  }
  return results;
}

/// The first hpu tensor's device, else the CPU.
at::Device device_of(CustomArguments arguments) {
  at::Device device(at::kCPU);
  each_tensor(arguments, [&](const at::Tensor& t) {
    if (device.is_cpu() && t.defined() && t.is_hpu()) device = t.device();
  });
  return device;
}

bool elements_overflow(const std::vector<std::int64_t>& sizes, std::size_t item) {
  std::uint64_t bytes = item;
  bool overflow = false;
  for (const std::int64_t size : sizes)
    overflow = c10::mul_overflows(bytes, static_cast<std::uint64_t>(size), &bytes) || overflow;
  return overflow || bytes > static_cast<std::uint64_t>(INT64_MAX);
}

void put_results(torch::jit::Stack& stack, std::size_t arguments, std::vector<at::Tensor> results) {
  torch::jit::drop(stack, arguments);
  for (at::Tensor& t : results) stack.emplace_back(std::move(t));
}

}  // namespace

Running::Running(CustomOpState& op) : op_(op) {
  op_.running.fetch_add(1);
  if (!op_.gone.load()) return;
  op_.running.fetch_sub(1);
  TORCH_CHECK(false, "[", op_.name, "] is not registered any more: its library was unloaded");
}

void named_call(const std::string& op, const char* what, const std::function<void()>& call) {
  const auto named = [&](const char* text) {
    const std::string own = "[" + op + "]";
    return std::string_view(text).starts_with(own) ? std::string(text) : own + " " + what + ": " + text;
  };
  try {
    call();
  } catch (const c10::OutOfMemoryError& error) {
    throw c10::OutOfMemoryError(named(error.what_without_backtrace()), nullptr);
  } catch (const c10::NotImplementedError& error) {
    throw c10::NotImplementedError(named(error.what_without_backtrace()), nullptr);
  } catch (const c10::Error& error) {
    throw c10::Error(named(error.what_without_backtrace()), nullptr);
  } catch (const std::exception& error) {
    throw c10::Error(named(error.what()), nullptr);
  } catch (...) {
    throw c10::Error(named("threw what is no std::exception"), nullptr);
  }
}

std::vector<ResultForm> forms_of(const std::string& op, const ShapeFunction& shape, CustomArguments arguments,
                                 std::size_t count) {
  TORCH_CHECK(shape != nullptr, "[", op, "] has no shape function: give it one with .shape(), which says the sizes and",
              " dtypes of its results from its arguments'");
  std::vector<ResultForm> forms;
  named_call(op, "shape", [&] { forms = shape(arguments); });
  TORCH_CHECK(forms.size() == count, "[", op, "] the shape function says ", forms.size(), " results, the schema says ",
              count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [sizes, dtype] = forms[i];
    TORCH_CHECK(dtype != at::ScalarType::Undefined, "[", op, "] result ", i, ": the shape function says no dtype");
    const bool sound = std::all_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size >= 0; }) &&
                       !elements_overflow(sizes, c10::elementSize(dtype));
    TORCH_CHECK(sound, "[", op, "] result ", i, ": the shape function says the sizes ", at::IntArrayRef(sizes),
                ", allowed: 0 or more, fewer than 2^63 bytes in all");
  }
  return forms;
}

std::vector<at::Tensor> run_host_kernel(const std::string& op, const HostKernel& kernel, at::Device device,
                                        CustomArguments arguments, const std::vector<ResultForm>& forms,
                                        const void* params, std::size_t bytes) {
  std::optional<HostAllocationsFor> within_limit;
  if (device.is_hpu()) within_limit.emplace(device.index(), op.c_str());
  const Operands operands = operands_of(op, arguments, /*dense=*/true);
  std::vector<at::Tensor> results, on_host;
  for (const auto& [sizes, dtype] : forms) {
    results.push_back(at::empty(sizes, at::TensorOptions().dtype(dtype).device(device)));
    on_host.push_back(cpu_alias(results.back()));
  }
  named_call(op, "kernel", [&] {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveAliases);
    kernel(HostCall(op, operands.on_host, on_host, params, bytes));
  });
  return results;
}

void run_on_device(CustomOpState& op, const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const Running running(op);
  const std::size_t count = schema.arguments().size(), results = schema.returns().size();
  settle_devices(schema, stack, count);
  const CustomArguments arguments = CustomArguments(stack).slice(stack.size() - count);
  const at::Device device = device_of(arguments);
  std::optional<LeafScope> leaf;  // what runs on the CPU is none
  if (device.is_hpu()) leaf.emplace(schema, arguments);
  const c10::NoGradGuard no_grad;
  std::vector<ResultForm> forms;
  if (op.host || op.shape) {
    each_tensor(arguments, [&](const at::Tensor& t) {
      TORCH_CHECK(t.defined(), "[", op.name, "] found an undefined tensor, allowed: tensors on hpu or cpu");
    });
    forms = forms_of(op.name, op.shape, arguments, results);
  }
  std::vector<at::Tensor> made = op.host ? run_host_kernel(op.name, op.host, device, arguments, forms)
                                         : run_tensor_kernel(op, device, arguments, forms, results);
  put_results(stack, count, std::move(made));
  if (leaf) leaf->gives(CustomArguments(stack).slice(stack.size() - results));
}

void run_on_meta(CustomOpState& op, const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const Running running(op);
  const std::size_t count = schema.arguments().size();
  std::vector<at::Tensor> results;
  for (const auto& [sizes, dtype] :
       forms_of(op.name, op.shape, CustomArguments(stack).slice(stack.size() - count), schema.returns().size()))
    results.push_back(at::empty(sizes, at::TensorOptions().dtype(dtype).device(at::kMeta)));
  put_results(stack, count, std::move(results));
}

void run_in_autocast(const CustomOpState& op, const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                     torch::jit::Stack& stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::AutocastHPU);
  const std::size_t count = handle.schema().arguments().size(), first = stack.size() - count;
  const auto cast = autocast::cast_by_rule(op.rule, CustomArguments(stack).slice(first));
  if (!cast.has_value()) return handle.redispatchBoxed(below, &stack);
  autocast::cast_arguments(*cast, stack.data() + first, count);
  const autocast::InsideOp inside(cast->region);
  handle.redispatchBoxed(below, &stack);
}

}  // namespace detail
}  // namespace fp8::runtime

// The autograd of operators of a user's own: one node of autograd for all of them. Tensors are saved as autograd wants
// them (a changed one throws), all else of the call stays beside.

namespace fp8::runtime::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The parts of a call that backward needs beside the saved tensors.
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
