// SPDX-License-Identifier: Apache-2.0
// An operator of a user's own (custom_op.h) and one call of it, for the sources of this folder.
#pragma once

#include <atomic>

#include "fp8/runtime/custom/custom_op.h"
#include "fp8/runtime/dispatch/operand_devices.h"

namespace fp8::runtime::detail {

/// As the dispatcher has it.
struct CustomOpState : CustomOpParts {
  explicit CustomOpState(CustomOpParts parts) : CustomOpParts(std::move(parts)) {}

  std::atomic<int> running{0};
  std::atomic<bool> gone{false};
};

/// A call of one of the state's functions, which may lie in a library that is about to go. Throws where it is gone.
class Running {
 public:
  explicit Running(CustomOpState& op);
  ~Running() { op_.running.fetch_sub(1); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  CustomOpState& op_;
};

/// Runs a function of the user's; what it throws gets "[op] what: " in front, once.
void named_call(const std::string& op, const char* what, const std::function<void()>& call);

/// The shape function's answer for `count` results, checked. Throws c10::Error where there is none.
std::vector<ResultForm> forms_of(const std::string& op, const ShapeFunction& shape, CustomArguments arguments,
                                 std::size_t count);

/// Runs `kernel` on host memory; the results are new tensors on `device` (hpu or CPU). arguments: tensors on it or
/// 0-dim ones of the CPU.
std::vector<at::Tensor> run_host_kernel(const std::string& op, const HostKernel& kernel, at::Device device,
                                        CustomArguments arguments, const std::vector<ResultForm>& forms,
                                        const void* params = nullptr, std::size_t bytes = 0);

/// Kernels of the dispatch keys; the arguments are replaced by the results.
void run_on_device(CustomOpState& op, const c10::FunctionSchema& schema, torch::jit::Stack& stack);
void run_on_meta(CustomOpState& op, const c10::FunctionSchema& schema, torch::jit::Stack& stack);
void run_in_autograd(const std::shared_ptr<CustomOpState>& op, const c10::OperatorHandle& handle,
                     c10::DispatchKeySet keys, torch::jit::Stack& stack);
void run_in_autocast(const CustomOpState& op, const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                     torch::jit::Stack& stack);

/// f(tensor) for each tensor of the arguments, in lists and optionals too.
template <class F>
void each_tensor(CustomArguments arguments, F&& f) {
  for (const c10::IValue& value : arguments) for_each_tensor(value, f);
}

}  // namespace fp8::runtime::detail
