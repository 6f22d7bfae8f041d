// SPDX-License-Identifier: Apache-2.0
// The table of intercepted ops. An op that meets a tagged weight is handed to the weight's handler, once, at the
// outermost op: at AutogradHPU (grad and no-grad) or at HPU (InferenceMode). Untagged weights go on as without
// this.
//
//   C++ nn::Linear   2-D + bias: addmm(b, x, w.t())    else: matmul(x, w.t()), += b
//   nn::LSTM, GRU    linear per step and weight, also inside lstm_cell, gru_cell, ...
//   TorchScript      linear(x, w, b)                   einsum: bmm          w @ x: mv / mm with the weight on the left
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::runtime {

/// How to find weight, input and bias among an op's arguments.
enum class OpShape {
  linear,
  addmm,
  mm,
  matmul,
  addmv,
  mv,
  bmm,
  baddbmm,
  grouped_mm,
  embedding,
  embedding_bag,
  conv,
  conv_padding_mode,
  conv_transpose,
  convolution
};

/// True if the table has this op.
bool is_intercepted(const std::string& name, const std::string& overload);
/// True if an op of the table that is called with `arguments` meets a tagged weight.
bool meets_tagged(at::ArrayRef<c10::IValue> arguments);

/// The arguments of one intercepted call.
struct Arguments {
  const c10::OperatorHandle& op;
  const torch::jit::Stack& stack;
  std::size_t first;
  /// Runs the op as without interception, with argument `replaced` (-1: none) given as `value`; inside an
  /// autocast region with the casts that the region makes.
  std::function<at::Tensor(int replaced, const at::Tensor& value)> run;

  const c10::IValue& operator[](std::size_t i) const { return stack[first + i]; }
  at::Tensor tensor(std::size_t i) const { return (*this)[i].isTensor() ? (*this)[i].toTensor() : at::Tensor(); }
  std::optional<at::Tensor> optional_tensor(std::size_t i) const {
    auto t = tensor(i);
    return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
  }
};

/// A tagged operand of a call.
struct Operand {
  const char* op;  ///< name of the op
  const WeightTag* tag;
  WeightView view;
  at::Tensor tensor;
  int index;
};

/// The operand at `index` if it is tagged. Throws if it holds codes and is no view that a handler can describe.
std::optional<Operand> tagged_operand(const Arguments& arguments, int index);

/// The result if an operand is a tagged weight and was handled.
std::optional<at::Tensor> handle_matrix_op(OpShape shape, const Arguments& arguments);
std::optional<at::Tensor> handle_convolution(OpShape shape, const Arguments& arguments);
/// The op's four results.
std::optional<torch::jit::Stack> handle_embedding_bag(const Arguments& arguments);

/// No interception on this thread while it lives (the original op runs inside).
class InterceptionPause {
 public:
  InterceptionPause();
  ~InterceptionPause();
  InterceptionPause& operator=(InterceptionPause&&) = delete;
};
bool interception_paused();

}  // namespace fp8::runtime
