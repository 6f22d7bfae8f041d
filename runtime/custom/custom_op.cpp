// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/custom/custom_op.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

#include "fp8/runtime/custom/custom_call.h"
#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/device/registration.h"

namespace fp8::runtime {
namespace detail {
namespace {

using c10::DispatchKey;

constexpr std::string_view kTaken[] = {"aten", "prim", "prims", "hpu", "fp8", "quantized_decomposed"};

/// Unloading waits so long for calls: one whose thread is gone (fork()) or that unloads itself never ends.
constexpr std::chrono::seconds kLongestCall{5};

/// The dispatcher's kernel of one key.
class CustomKernel final : public c10::OperatorKernel {
 public:
  using Run = void (*)(const std::shared_ptr<CustomOpState>&, const c10::OperatorHandle&, c10::DispatchKeySet,
                       torch::jit::Stack&);
  CustomKernel(std::shared_ptr<CustomOpState> op, Run run) : op_(std::move(op)), run_(run) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const std::shared_ptr<CustomOpState> op = op_;
    run_(op, handle, keys, *stack);
  }

 private:
  std::shared_ptr<CustomOpState> op_;
  Run run_;
};

bool is_tensor_type(c10::TypePtr type) {
  while (type->kind() == c10::TypeKind::ListType || type->kind() == c10::TypeKind::OptionalType)
    type = type->containedType(0);
  return type->kind() == c10::TypeKind::TensorType;
}

bool is_identifier(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !text.empty() && !(text[0] >= '0' && text[0] <= '9') && std::all_of(text.begin(), text.end(), fits);
}

void check_name(const std::string& name) {
  const auto colons = name.find("::"), dot = name.find('.');
  const bool sound = colons != std::string::npos && is_identifier(std::string_view(name).substr(0, colons)) &&
                     is_identifier(std::string_view(name).substr(colons + 2, dot - colons - 2)) &&
                     (dot == std::string::npos || is_identifier(std::string_view(name).substr(dot + 1)));
  TORCH_CHECK(sound, "[custom op] name: found '", name, "', allowed: space::op or space::op.overload");
  const std::string_view space = std::string_view(name).substr(0, colons);
  TORCH_CHECK(std::find(std::begin(kTaken), std::end(kTaken), space) == std::end(kTaken), "[", name, "] namespace '",
              space, "' is taken, allowed: one of your own");
}

c10::FunctionSchema parsed(const std::string& name, const std::string& text) {
  try {
    return torch::jit::parseSchema(name + text);
  } catch (const std::exception& error) {
    std::string reason = error.what();
    reason.erase(0, std::min(reason.find_first_not_of(" \n"), reason.size()));
    reason = reason.substr(0, reason.find('\n'));
    while (!reason.empty() && (reason.back() == ':' || reason.back() == ' ')) reason.pop_back();
    TORCH_CHECK(false, "[", name, "] schema: found '", text, "', allowed: '(Tensor a, int n) -> Tensor' and its like (",
                reason, ")");
  }
}

void check_schema(const std::string& name, const c10::FunctionSchema& schema) {
  const auto aliases = [](const c10::Argument& a) { return a.alias_info() != nullptr; };
  const auto& [in, out] = std::pair(schema.arguments(), schema.returns());
  TORCH_CHECK(std::none_of(in.begin(), in.end(), aliases) && std::none_of(out.begin(), out.end(), aliases), "[", name,
              "] schema: found an argument that is written or returned, allowed: operators that return new tensors");
  TORCH_CHECK(std::any_of(in.begin(), in.end(), [](const c10::Argument& a) { return is_tensor_type(a.type()); }), "[",
              name, "] schema: found no tensor among the arguments, which says on what device the operator runs");
  const auto is_tensor = [](const c10::Argument& a) { return a.type()->kind() == c10::TypeKind::TensorType; };
  TORCH_CHECK(!out.empty() && std::all_of(out.begin(), out.end(), is_tensor), "[", name,
              "] schema: found a result that is no Tensor, allowed: -> Tensor, -> (Tensor, Tensor)");
}

/// Registrations, one at a time: a name is asked for and then taken.
std::mutex& registering() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

}  // namespace

/// One operator in the dispatcher.
struct CustomOpRegistration {
  std::shared_ptr<CustomOpState> op;
  std::unique_ptr<torch::Library> library;

  CustomOpRegistration(std::shared_ptr<CustomOpState> state, c10::FunctionSchema schema) : op(std::move(state)) {
    const std::string space = op->name.substr(0, op->name.find("::"));
    library = std::make_unique<torch::Library>(torch::Library::FRAGMENT, space, std::nullopt, __FILE__, __LINE__);
    library->def(std::move(schema), {at::Tag::pt2_compliant_tag});
    using Op = const std::shared_ptr<CustomOpState>&;
    using Handle = const c10::OperatorHandle&;
    using Keys = c10::DispatchKeySet;
    using Stack = torch::jit::Stack;
    const CustomKernel::Run run = [](Op o, Handle h, Keys, Stack& s) { run_on_device(*o, h.schema(), s); };
    impl(DispatchKey::HPU, run);
    impl(DispatchKey::CPU, run);
    impl(DispatchKey::Meta, [](Op o, Handle h, Keys, Stack& s) { run_on_meta(*o, h.schema(), s); });
    if (op->rule != autocast::Rule::none)
      impl(DispatchKey::AutocastHPU, [](Op o, Handle h, Keys k, Stack& s) { run_in_autocast(*o, h, k, s); });
    if (op->backward || !op->backward_op.empty()) {
      impl(DispatchKey::Autograd, [](Op o, Handle h, Keys k, Stack& s) { run_in_autograd(o, h, k, s); });
    } else {
      library->impl(local_name().c_str(),
                    torch::dispatch(DispatchKey::Autograd, torch::autograd::autogradNotImplementedFallback()));
    }
  }

  /// Functions go while the library that they lie in is there.
  ~CustomOpRegistration() {
    op->gone.store(true);
    const auto end = std::chrono::steady_clock::now() + kLongestCall;
    while (op->running.load() != 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(registering());
    library.reset();
    if (op->running.load() != 0) {  // its functions stay, it may be in one
      std::fprintf(stderr, "fp8: warning: [%s] unloaded within a call of it, or while one never ends\n",
                   op->name.c_str());
      (void)new std::shared_ptr<CustomOpState>(op);
      return;
    }
    op->shape = nullptr;
    op->host = nullptr;
    op->tensors = nullptr;
    op->backward = nullptr;
  }

 private:
  std::string local_name() const { return op->name.substr(op->name.find("::") + 2); }
  void impl(DispatchKey key, CustomKernel::Run run) {
    library->impl(
        local_name().c_str(),
        torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CustomKernel>(op, run))));
  }
};

}  // namespace detail

CustomOpHandle::CustomOpHandle(std::unique_ptr<detail::CustomOpRegistration> registration)
    : registration_(std::move(registration)) {}
CustomOpHandle::~CustomOpHandle() = default;
CustomOpHandle::CustomOpHandle(CustomOpHandle&&) noexcept = default;
CustomOpHandle& CustomOpHandle::operator=(CustomOpHandle&&) noexcept = default;

void CustomOpHandle::keep() && {
  if (registration_ == nullptr) return;
  keep_library(registration_->op->caller);
  (void)registration_.release();
}

ResultForm like(const at::Tensor& t) { return {t.sizes().vec(), t.scalar_type()}; }

ShapeFunction same_as(std::vector<std::size_t> arguments) {
  return [arguments = std::move(arguments)](CustomArguments given) {
    std::vector<ResultForm> forms;
    for (const std::size_t i : arguments) {
      TORCH_CHECK(i < given.size() && given[i].isTensor(), "same_as(", i, "): found no tensor in argument ", i);
      forms.push_back(like(given[i].toTensor()));
    }
    return forms;
  };
}

ShapeFunction elementwise() {
  return [](CustomArguments given) {
    std::vector<ResultForm> forms;
    detail::each_tensor(given, [&](const at::Tensor& t) {
      if (forms.empty()) forms.push_back(like(t));
      const auto& [sizes, dtype] = forms.front();
      TORCH_CHECK(t.sizes() == at::IntArrayRef(sizes) && t.scalar_type() == dtype, "found ", t.scalar_type(), " ",
                  t.sizes(), " beside ", dtype, " ", at::IntArrayRef(sizes),
                  ", allowed: tensors of one size and dtype");
    });
    return forms;
  };
}

CustomOp::CustomOp(std::string name) : parts_(std::make_shared<detail::CustomOpParts>()) {
  parts_->name = std::move(name);
  parts_->caller = __builtin_return_address(0);
}

CustomOp& CustomOp::backward(std::string op) {
  TORCH_CHECK(!op.empty(), "[", parts_->name, "] backward: found '', allowed: the name of an operator");
  parts_->backward_op = std::move(op);
  return *this;
}

CustomOpHandle CustomOp::add() const {
  const std::string& name = parts_->name;
  require_registered();
  detail::check_name(name);
  c10::FunctionSchema schema = detail::parsed(name, schema_);
  detail::check_schema(name, schema);
  TORCH_CHECK(!parts_->host != !parts_->tensors, "[", name, "] found ", parts_->host ? "two kernels" : "no kernel",
              ", allowed: one");
  TORCH_CHECK(!parts_->host || parts_->shape, "[", name, "] has no shape function: a kernel on host pointers needs",
              " .shape(), which says the sizes and dtypes of its results");
  TORCH_CHECK(!parts_->backward || parts_->backward_op.empty(), "[", name,
              "] found two backwards, a function and an operator's name, allowed: one");
  const std::lock_guard lock(detail::registering());
  const auto there = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  TORCH_CHECK(!there.has_value(), "[", name, "] found an operator of that name, ",
              there.has_value() ? there->debug() : "", ", allowed: a name that is not taken");
  auto state = std::make_shared<detail::CustomOpState>(*parts_);
  return CustomOpHandle(std::make_unique<detail::CustomOpRegistration>(std::move(state), std::move(schema)));
}

}  // namespace fp8::runtime
