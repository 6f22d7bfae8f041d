// SPDX-License-Identifier: Apache-2.0
// An operator of a user's own, which all of fp8 knows: the dispatcher, autograd, autocast, TorchScript, traces,
// profilers, Meta tensors (and with them torch.export), Python.
//
//   FP8_EXTENSION(m) {                                                 in a library (extension.h), or in a program:
//     m.add(CustomOp("my::gelu_mul")                                   const auto op = CustomOp(...)....add();
//               .schema("(Tensor a, Tensor b) -> Tensor")
//               .shape(elementwise())                                  sizes and dtypes of the results
//               .kernel([](const HostCall& call) { ... })              what fills them (host_call.h)
//               .backward("my::gelu_mul_backward")
//               .autocast(autocast::Rule::promote));
//   }
//
//   call -> AutocastHPU: rule -> Autograd: backward -> HPU: one device, one leaf (leaf/leaf.h), kernel on host memory
//                                                      CPU: the same kernel       Meta: the shape function
//
// A kernel of another kind takes the arguments with CPU tensors over the device's memory (strides as they are) and
// returns new ones, whose memory becomes the device's. Every error of a call names the operator.
#pragma once

#include <memory>
#include <utility>

#include "fp8/runtime/custom/host_call.h"
#include "fp8/runtime/intercept/autocast_rules.h"

namespace fp8::runtime {

/// A call's arguments, in the schema's order.
using CustomArguments = at::ArrayRef<c10::IValue>;

/// The sizes and dtype of a result, known before it is computed.
struct ResultForm {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
};

/// One form per result. The tensors may be on hpu, the CPU or Meta: to be asked for sizes and dtypes alone.
using ShapeFunction = std::function<std::vector<ResultForm>(CustomArguments arguments)>;

ResultForm like(const at::Tensor& t);
/// Result i has the sizes and dtype of argument arguments[i].
ShapeFunction same_as(std::vector<std::size_t> arguments);
inline ShapeFunction same_as(std::size_t argument) { return same_as(std::vector{argument}); }
/// All tensors among the arguments have the same sizes and dtype, and so has the one result; others are refused.
ShapeFunction elementwise();

/// Tensors of the CPU in, new tensors of the CPU out, one per result.
using TensorKernel = std::function<std::vector<at::Tensor>(CustomArguments arguments)>;

struct BackwardCall {
  at::TensorList gradients;   ///< one per result, zeros where none is needed
  CustomArguments arguments;  ///< as autocast left them, on their device
  at::TensorList results;     ///< with save_results() only
};

/// One gradient for each tensor among the arguments, in their order, of its sizes; undefined: none.
using BackwardFunction = std::function<std::vector<at::Tensor>(const BackwardCall& call)>;

namespace detail {
/// As CustomOp collects it.
struct CustomOpParts {
  std::string name;         ///< "my::gelu_mul"
  const void* caller = {};  ///< in the library that made it
  ShapeFunction shape;
  HostKernel host;
  TensorKernel tensors;
  BackwardFunction backward;
  std::string backward_op;
  bool saves_results = false;
  autocast::Rule rule = autocast::Rule::none;
};
struct CustomOpRegistration;
}  // namespace detail

/// The operator is there while this lives. The end waits for calls that are on their way; no thread may begin one
/// meanwhile. A graph of autograd that outlives it throws in backward, by name.
class CustomOpHandle {
 public:
  CustomOpHandle() = default;
  explicit CustomOpHandle(std::unique_ptr<detail::CustomOpRegistration> registration);
  ~CustomOpHandle();
  CustomOpHandle(CustomOpHandle&&) noexcept;
  CustomOpHandle& operator=(CustomOpHandle&&) noexcept;

  /// For the life of the process; the library that made the CustomOp is not unloaded any more.
  void keep() &&;

 private:
  std::unique_ptr<detail::CustomOpRegistration> registration_;
};

class CustomOp {
 public:
  /// name: "space::op" or "space::op.overload", in a namespace of one's own.
  explicit CustomOp(std::string name);

  /// "(Tensor a, Tensor? b=None, *, float eps=1e-5) -> (Tensor, Tensor)": at least one tensor in, tensors out, nothing
  /// written in place.
  CustomOp& schema(std::string text) { return set(schema_, std::move(text)); }
  /// Needed by kernels on host pointers, and for Meta tensors. What a kernel on tensors returns is checked by it.
  CustomOp& shape(ShapeFunction function) { return set(parts_->shape, std::move(function)); }
  CustomOp& kernel(HostKernel function) { return set(parts_->host, std::move(function)); }
  CustomOp& kernel(TensorKernel function) { return set(parts_->tensors, std::move(function)); }
  /// Called in no-grad mode: second derivatives are refused by name. Without one, backward() itself is.
  CustomOp& backward(BackwardFunction function) { return set(parts_->backward, std::move(function)); }
  /// The operator "op(gradients..., arguments..., [results...]) -> gradients", looked up when it is first needed.
  CustomOp& backward(std::string op);
  /// Backward gets the results too, which are kept for it.
  CustomOp& save_results() { return set(parts_->saves_results, true); }
  /// The casts of the arguments in a region; `none` without it.
  CustomOp& autocast(autocast::Rule rule) { return set(parts_->rule, rule); }

  /// Throws c10::Error naming the operator: a name that is taken or none, a schema that does not parse, no kernel.
  [[nodiscard]] CustomOpHandle add() const;

 private:
  template <class T>
  CustomOp& set(T& part, T value) {
    part = std::move(value);
    return *this;
  }

  std::shared_ptr<detail::CustomOpParts> parts_;
  std::string schema_;
};

}  // namespace fp8::runtime
