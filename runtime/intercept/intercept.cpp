// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/intercept/intercept.h"

#include <ATen/TracerMode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm_ops.h>
#include <c10/core/GradMode.h>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/dispatch/minimal_ops.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/dispatch/own_ops.h"
#include "fp8/runtime/dispatch/unboxed.h"
#include "fp8/runtime/intercept/autocast_rules.h"
#include "fp8/runtime/lazy/lazy_call.h"
#include "fp8/runtime/leaf/pending_work.h"
#include "fp8/runtime/tape/recorder.h"

namespace fp8::runtime {
namespace {

thread_local int g_paused = 0;

class Interceptor;

/// Composite ops decompose, and their decomposition runs where no handler takes them; the others have a
/// derivative.
struct Row {
  const char* name;
  const char* overload;
  OpShape shape;
  bool composite;
  /// Adds the op's kernel without a stack (Passing); null: it has none.
  void (*add)(torch::Library& library, c10::DispatchKey key, std::unique_ptr<Interceptor> interceptor) = nullptr;
  bool is_convolution_itself() const {
    return shape == OpShape::convolution && std::string_view(name) == "aten::convolution";
  }
};

/// A converted weight is used with values: codes beside it have an unknown scale, and mostly come from
/// x.to(weight.dtype()).
void check_no_codes(const c10::FunctionSchema& op, at::ArrayRef<c10::IValue> arguments) {
  const WeightTag* converted = nullptr;
  const at::Tensor* codes = nullptr;
  std::size_t at = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor() || !arguments[i].toTensor().defined()) continue;
    const at::Tensor& t = arguments[i].toTensor();
    const WeightTag* tag = find_tag(t);
    if (tag != nullptr && tag->handler->owns_values() && t.scalar_type() == tag->dtype) {
      converted = tag;
    } else if (c10::isFloat8Type(t.scalar_type())) {
      codes = &t;
      at = i;
    }
  }
  TORCH_CHECK(converted == nullptr || codes == nullptr, "[", op.name(), "] module '", converted->module_names(),
              "': expected values beside its converted weight, got ", codes->scalar_type(), " codes as '",
              op.arguments()[at].name(),
              "', whose scale nobody knows; where their dtype was taken from the weight, take ",
              "fp8::values_dtype(weight) instead of weight.dtype()");
}

/// True if a transform of torch.func is above this call; tensors may be wrapped.
bool is_transformed(c10::DispatchKeySet keys) { return keys.has(c10::DispatchKey::FuncTorchDynamicLayerBackMode); }

/// The tag of the weight that the wrappers of torch.func's grad, vjp and jvp hold.
const WeightTag* tag_below(const at::Tensor& t) {
  const auto* wrapper = at::functorch::maybeGetTensorWrapper(t);
  return wrapper == nullptr ? find_tag(t) : tag_below(wrapper->value());
}

/// Autograd's part of a call that needs no gradient, backward or forward: none.
bool needs_no_gradient(const at::Tensor& t) {
  return !t.defined() || (!(t.requires_grad() && c10::GradMode::is_enabled()) && !t._fw_grad(0).defined());
}
template <class T>
bool needs_no_gradient(const T&) {
  return true;
}

/// Derivatives that a product would not have in fp8: in forward mode its tangent is dropped, and torch.func
/// differentiates the operator above the handler, with the weight's values.
void check_derivatives(const c10::FunctionSchema& op, at::ArrayRef<c10::IValue> arguments) {
  const WeightTag *converted = nullptr, *transformed = nullptr;
  bool tangent = false, differentiated = false;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor& t = argument.toTensor();
    const WeightTag* tag = tag_below(t);
    if (tag != nullptr && tag->handler->owns_values()) converted = tag;
    const bool wrapped = tag != nullptr && at::functorch::maybeGetTensorWrapper(t) != nullptr;
    if (wrapped && tag->handler->own_backward()) transformed = tag;
    tangent = tangent || t._fw_grad(/*level=*/0).defined();
    differentiated = differentiated || !needs_no_gradient(t);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(converted == nullptr || !tangent, "[", op.name(), "] module '", converted->module_names(),
                              "': a product in fp8 has no forward-mode derivative, found an input with a tangent");
  TORCH_CHECK_NOT_IMPLEMENTED(
      transformed == nullptr || !differentiated, "[", op.name(), "] module '", transformed->module_names(),
      "': torch.func (grad, vjp, jvp and what is made of them) would differentiate this product in high precision: "
      "expected a backward pass, or a call where the module is not in fp8");
}

/// True if all tagged operands have handlers that read no address now.
bool may_wait(at::ArrayRef<c10::IValue> arguments) {
  return std::ranges::all_of(arguments, [](const c10::IValue& value) {
    const WeightTag* tag = value.isTensor() ? find_tag(value.toTensor()) : nullptr;
    return tag == nullptr || tag->handler->may_wait();
  });
}

/// The row's use of dtypes, where it multiplies.
constexpr std::optional<DtypeUse> use_of(OpShape shape) {
  switch (shape) {
    case OpShape::embedding:
    case OpShape::embedding_bag:
    case OpShape::grouped_mm: return std::nullopt;
    case OpShape::conv:
    case OpShape::conv_padding_mode:
    case OpShape::conv_transpose:
    case OpShape::convolution: return DtypeUse::conv;
    default: return DtypeUse::mm;
  }
}

/// Operands that the device does not multiply are named here; float8 codes by the fallback, which knows a way out.
void check_multiplies(DtypeUse use, const char* op, const at::Tensor& t) {
  if (t.defined() && !c10::isFloat8Type(t.scalar_type())) check_takes(t.scalar_type(), use, op);
}
template <class T>
void check_multiplies(DtypeUse, const char*, const T&) {}

/// One registered kernel: knows its row, its key and upstream's kernel for that key.
class Interceptor final : public c10::OperatorKernel {
 public:
  Interceptor(const Row& row, const c10::FunctionSchema& schema, c10::DispatchKey key,
              std::optional<c10::SafeKernelFunction> upstream)
      : row_(row), key_(key), fallback_(schema), upstream_(std::move(upstream)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const std::size_t count = op.schema().arguments().size();
    const auto arguments = at::ArrayRef<c10::IValue>(*stack).slice(stack->size() - count);
    if (is_transformed(keys) && g_paused == 0) check_derivatives(op.schema(), arguments);
    if (g_paused != 0 || !meets_tagged(arguments)) return original(op, keys, stack);
    settle_devices(op.schema(), *stack, count);  // before a handler computes with what the device would refuse
    check_no_codes(op.schema(), arguments);
    check_derivatives(op.schema(), arguments);
    if (Recorder* recorder = key_ == c10::DispatchKey::AutogradHPU ? Recorder::current() : nullptr;
        recorder != nullptr && !needs_gradient(arguments))
      return record(*recorder, op, keys.remove(c10::DispatchKey::Fake), *stack, count);
    std::optional<RunsAtOnce> addresses;  // handlers read them
    if (detail::g_finish_work.load(std::memory_order_acquire) != nullptr && !may_wait(arguments)) [[unlikely]] {
      addresses.emplace();
      keys = keys.remove(kHeardKey);
    }
    // A region's kernel leaves calls with a tagged weight to us: uncast, and with autocast still on.
    const auto cast = autocast::cast_of_call(op, arguments);
    const auto region = cast.has_value() ? cast->region : autocast::region_dtype();
    if (auto results = handle(op, keys, *stack, cast, region)) {
      torch::jit::drop(*stack, count);
      for (auto& result : *results) stack->push_back(std::move(result));
      return;
    }
    if (!cast.has_value()) return original(op, keys, stack);
    autocast::cast_arguments(*cast, stack->data() + (stack->size() - count), count);
    const autocast::InsideOp inside(region);
    original(op, keys, stack);
  }

 private:
  /// In a region the call is cast by us, each time: so a replay must be in one, too.
  static void record(Recorder& recorder, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack& stack, std::size_t count) {
    if (!autocast::is_autocast_hpu_enabled()) return recorder.call(op, keys, &stack);
    torch::jit::Stack own(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    const auto run = [op, keys, dtype = autocast::region_dtype().value()](torch::jit::Stack& arguments) {
      const autocast::AutocastGuard region(dtype);
      op.redispatchBoxed(keys, &arguments);
    };
    recorder.call(op.schema().name().c_str(), run, own);
    torch::jit::drop(stack, count);
    std::ranges::move(own, std::back_inserter(stack));
  }

  std::optional<torch::jit::Stack> handle(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                          const torch::jit::Stack& stack, const std::optional<autocast::CallCast>& cast,
                                          std::optional<at::ScalarType> region) {
    const std::size_t count = op.schema().arguments().size();
    const std::string module = leaves_heard() ? tagged_modules(stack, stack.size() - count) : std::string();
    std::optional<ModuleScope> scope;  // else that of the caller stays
    if (!module.empty()) scope.emplace(module);
    const autocast::InsideOp inside(region);
    const Arguments arguments{op, stack, stack.size() - count, [&](int replaced, const at::Tensor& value) {
                                InterceptionPause pause;
                                torch::jit::Stack copy(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
                                if (replaced >= 0) copy[replaced] = value;
                                if (cast.has_value()) autocast::cast_arguments(*cast, copy.data(), copy.size());
                                const autocast::OutsideOp outside(inside.was_enabled() && !cast.has_value());
                                original(op, keys, &copy);
                                return copy.back().toTensor();
                              }};
    if (row_.shape == OpShape::embedding_bag) return handle_embedding_bag(arguments);
    const bool convolves = row_.shape == OpShape::conv || row_.shape == OpShape::conv_padding_mode ||
                           row_.shape == OpShape::conv_transpose || row_.shape == OpShape::convolution;
    auto result = convolves ? handle_convolution(row_.shape, arguments) : handle_matrix_op(row_.shape, arguments);
    if (!result.has_value()) return std::nullopt;
    return torch::jit::Stack{autocast::cast_result(cast, *result)};
  }

  static bool needs_gradient(at::ArrayRef<c10::IValue> arguments) {
    return at::GradMode::is_enabled() && std::ranges::any_of(arguments, [](const c10::IValue& value) {
             return value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad();
           });
  }

  /// For traces: the modules of the call's weights.
  static std::string tagged_modules(const torch::jit::Stack& stack, std::size_t first) {
    for (std::size_t i = first; i < stack.size(); ++i) {
      const auto* tag = stack[i].isTensor() ? find_tag(stack[i].toTensor()) : nullptr;
      if (tag != nullptr) return tag->module_names();
    }
    return "";
  }

  void original(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (row_.composite || (key_ == c10::DispatchKey::HPU && is_recorded_inside())) {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU),
                         stack);  // a composite's CPU entry is the composite itself
    } else if (key_ == c10::DispatchKey::AutogradHPU && upstream_.has_value()) {
      upstream_->callBoxed(op, keys, stack);
    } else {
      if (const auto use = use_of(row_.shape)) {
        for (const c10::IValue& operand : torch::jit::last(*stack, op.schema().arguments().size()))
          if (operand.isTensor()) check_multiplies(*use, row_.name, operand.toTensor());
      }
      if (row_.shape == OpShape::grouped_mm) fit_grouped_mm(op, stack);
      if (!multiplies_ || !call_few_rows(row_.shape == OpShape::addmm, *stack)) fallback_(op, keys, stack);
    }
  }

  /// torch.jit.trace records not convolution but the _convolution inside it, which must then see hpu tensors, no
  /// aliases.
  bool is_recorded_inside() const { return row_.is_convolution_itself() && at::tracer::impl::is_dispatch_enabled(); }

  const Row& row_;
  c10::DispatchKey key_;
  CpuFallback fallback_;
  bool multiplies_ = row_.shape == OpShape::mm || row_.shape == OpShape::addmm;
  std::optional<c10::SafeKernelFunction> upstream_;
};

bool is_untagged(const at::Tensor& t) { return find_tag(t) == nullptr; }
bool is_untagged(const std::optional<at::Tensor>& t) { return !t.has_value() || is_untagged(*t); }
template <class T>
bool is_untagged(const T&) {
  return true;
}

/// Calls that need neither aliases nor the CPU's kernel.
std::optional<at::Tensor> at_once(const at::Tensor& input, const at::Tensor& weight_t) {
  return few_rows_product(input, weight_t, std::nullopt);
}
std::optional<at::Tensor> at_once(const at::Tensor& self, const at::Tensor& input, const at::Tensor& weight_t,
                                  const at::Scalar& beta, const at::Scalar& alpha) {
  if (!beta.equal(1) || !alpha.equal(1)) return std::nullopt;
  return few_rows_product(input, weight_t, self);
}
std::optional<at::Tensor> at_once(const at::Tensor& table, const at::Tensor& indices, const c10::SymInt&, bool, bool) {
  at::Tensor y = table.dim() == 2 ? rows_of_table(table, indices) : at::Tensor();
  return y.defined() ? std::optional<at::Tensor>(std::move(y)) : std::nullopt;
}

/// The ops of the table that models call for each token have a kernel without a stack in front of the Interceptor,
/// for calls that it would let pass: no tag, no gradient.
template <class Op, bool kComposite, c10::DispatchKey kKey, class Signature = typename Op::schema>
struct Passing;

template <class Op, bool kComposite, c10::DispatchKey kKey, class R, class... Args>
struct Passing<Op, kComposite, kKey, R(Args...)> {
  inline static Interceptor* interceptor = nullptr;

  static R call(c10::DispatchKeySet keys, Args... args) {
    if (g_paused != 0 || is_transformed(keys) || !(is_untagged(args) && ...)) return intercepted(keys, args...);
    if constexpr (kComposite) {
      return Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), args...);
    } else if constexpr (kKey == c10::DispatchKey::AutogradHPU) {
      if (!(needs_no_gradient(args) && ...)) return intercepted(keys, args...);
      const at::AutoDispatchBelowADInplaceOrView below;
      return Op::redispatch(keys & c10::after_autograd_keyset, args...);
    } else {
      if constexpr (!std::is_same_v<Op, at::_ops::embedding>) (check_multiplies(DtypeUse::mm, Op::name, args), ...);
      if constexpr (requires { at_once(args...); }) {
        if (auto y = at_once(args...)) return *std::move(y);
      }
      return Unboxed<Op, CpuFallback>::call(keys, args...);
    }
  }

 private:
  static R intercepted(c10::DispatchKeySet keys, Args... args) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    torch::jit::Stack stack = c10::impl::boxArgs<Args...>(args...);
    (*interceptor)(op, keys, &stack);
    return std::move(stack.back()).toTensor();
  }
};

template <class Op, bool kComposite>
void add_passing(torch::Library& library, c10::DispatchKey key, std::unique_ptr<Interceptor> interceptor) {
  const auto add = [&]<c10::DispatchKey kKey>() {
    using Kernel = Passing<Op, kComposite, kKey>;
    Kernel::interceptor = interceptor.release();  // as long as the process, like its registration
    library.impl(Op::name, TORCH_FN(Kernel::call));
  };
  key == c10::DispatchKey::HPU ? add.template operator()<c10::DispatchKey::HPU>()
                               : add.template operator()<c10::DispatchKey::AutogradHPU>();
}

constexpr Row kIntercepted[] = {
    {"aten::linear", "", OpShape::linear, true, add_passing<at::_ops::linear, true>},
    {"aten::matmul", "", OpShape::matmul, true, add_passing<at::_ops::matmul, true>},
    {"aten::addmm", "", OpShape::addmm, false, add_passing<at::_ops::addmm, false>},
    {"aten::mm", "", OpShape::mm, false, add_passing<at::_ops::mm, false>},
    {"aten::addmv", "", OpShape::addmv, false},
    {"aten::mv", "", OpShape::mv, false},
    {"aten::bmm", "", OpShape::bmm, false, add_passing<at::_ops::bmm, false>},
    {"aten::baddbmm", "", OpShape::baddbmm, false},
    {"aten::_grouped_mm", "", OpShape::grouped_mm, false},
    {"aten::embedding", "", OpShape::embedding, false, add_passing<at::_ops::embedding, false>},
    {"aten::embedding_bag", "", OpShape::embedding_bag, true},
    {"aten::embedding_bag", "padding_idx", OpShape::embedding_bag, true},
    {"aten::conv1d", "", OpShape::conv, true},
    {"aten::conv2d", "", OpShape::conv, true},
    {"aten::conv3d", "", OpShape::conv, true},
    {"aten::conv1d", "padding", OpShape::conv_padding_mode, true},
    {"aten::conv2d", "padding", OpShape::conv_padding_mode, true},
    {"aten::conv3d", "padding", OpShape::conv_padding_mode, true},
    {"aten::conv_transpose1d", "", OpShape::conv_transpose, true},
    {"aten::conv_transpose2d", "input", OpShape::conv_transpose, true},
    {"aten::conv_transpose3d", "input", OpShape::conv_transpose, true},
    {"aten::_convolution", "", OpShape::convolution, false},
    {"aten::_convolution", "deprecated", OpShape::convolution, true},
    {"aten::convolution", "", OpShape::convolution, false},
};

void register_at(torch::Library& library, c10::DispatchKey key) {
  for (const Row& row : kIntercepted) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(row.name, row.overload);
    std::optional<c10::SafeKernelFunction> upstream;
    if (!row.composite && key == c10::DispatchKey::AutogradHPU) upstream = op.getComputedKernelForDispatchKey(key);
    auto interceptor = std::make_unique<Interceptor>(row, op.schema(), key, std::move(upstream));
    if (row.add != nullptr) {
      row.add(library, key, std::move(interceptor));
      continue;
    }
    const std::string full = *row.overload == '\0' ? row.name : std::string(row.name) + "." + row.overload;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(interceptor)));
  }
}

FP8_LIBRARY_IMPL(aten, AutogradHPU, m) { register_at(m, c10::DispatchKey::AutogradHPU); }
FP8_LIBRARY_IMPL(aten, HPU, m) { register_at(m, c10::DispatchKey::HPU); }

}  // namespace

bool is_intercepted(const std::string& name, const std::string& overload) {
  for (const Row& row : kIntercepted)
    if (name == row.name && overload == row.overload) return true;
  return false;
}

/// The cheap question asked of every call: 3 tensors at most can be weights.
bool meets_tagged(at::ArrayRef<c10::IValue> arguments) {
  for (std::size_t i = 0; i < arguments.size() && i < 3; ++i) {
    if (arguments[i].isTensor() && find_tag(arguments[i].toTensor()) != nullptr) return true;
  }
  return false;
}

InterceptionPause::InterceptionPause() { ++g_paused; }
InterceptionPause::~InterceptionPause() { --g_paused; }
bool interception_paused() { return g_paused != 0; }

at::Tensor OpHandler::embedding(const WeightTag& tag, const WeightView& view, const at::Tensor& weight,
                                const at::Tensor& indices) {
  return at::embedding(dequantize(tag, view, weight), indices);
}

std::optional<Operand> tagged_operand(const Arguments& arguments, int index) {
  const at::Tensor t = arguments.tensor(index);
  const WeightTag* tag = t.defined() ? find_tag(t) : nullptr;
  if (tag == nullptr) return std::nullopt;
  const auto view = view_of(*tag, t);
  if (view.has_value()) return Operand{arguments.op.schema().name().c_str(), tag, *view, t, index};
  TORCH_CHECK(!tag->handler->owns_values() || t.scalar_type() != tag->dtype, "[", arguments.op.schema().name(),
              "] the weight of module '", tag->module_names(), "' is ", tag->dtype, " (", tag->handler->describe(),
              "): expected all of it or whole rows, got sizes ", t.sizes(), " and strides ", t.strides());
  return std::nullopt;
}

}  // namespace fp8::runtime
