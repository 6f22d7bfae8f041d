// SPDX-License-Identifier: Apache-2.0
// c10d's operators on hpu tensors: one boxed kernel for all of them, no copies.
//
//   c10d::allreduce_(Tensor[] tensors, ProcessGroup, ReduceOp, ...) -> (Tensor[], Work)      at HPU
//     tensors, Tensor[], Tensor[][] -> CPU aliases -> the same operator at CPU: the group's CPU backend
//     Work -> DeviceWork; what else comes back is the first argument, so the caller's own tensors
//
// The first argument is what a call writes, if it writes. fp8 tensors travel as the bytes that they are; only codes
// whose scales would stay behind are refused (BlockTag::check_access), and sums of codes, which would be sums of bytes.
// Sums, means, minima and maxima of the other dtypes are Gloo's own.
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/distributed/device_work.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime::distributed {
namespace {

struct Collective {
  const char* name;
  bool writes;  ///< its first argument
};
constexpr Collective kCollectives[] = {{"allgather_", true},
                                       {"_allgather_base_", true},
                                       {"allgather_coalesced_", true},
                                       {"allgather_into_tensor_coalesced_", true},
                                       {"allreduce_", true},
                                       {"allreduce_coalesced_", true},
                                       {"alltoall_", true},
                                       {"alltoall_base_", true},
                                       {"barrier", false},
                                       {"broadcast_", true},
                                       {"check_for_nan", false},
                                       {"gather_", true},
                                       {"monitored_barrier_", false},
                                       {"recv_", true},
                                       {"recv_any_source_", true},
                                       {"reduce_", true},
                                       {"reduce_scatter_", true},
                                       {"_reduce_scatter_base_", true},
                                       {"reduce_scatter_tensor_coalesced_", true},
                                       {"scatter_", true},
                                       {"send", false}};

bool writes(std::string_view op) {  // "c10d::send"
  for (const Collective& c : kCollectives)
    if (op.substr(6) == c.name) return c.writes;
  return false;
}

/// f(tensor) for each tensor of an argument.
template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, f);
  }
}

/// f(tensor) in the place of each tensor of an argument, in new lists.
template <class F>
c10::IValue with_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(f(t));
    return list;
  }
  if (!value.isList() || value.isIntList()) return value;
  c10::impl::GenericList lists(value.toList().elementType());
  for (const c10::IValue& list : value.toListRef()) lists.push_back(with_each_tensor(list, f));
  return lists;
}

std::optional<c10d::ReduceOp> reduce_op_of(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  const auto index = schema.argumentIndexWithName("reduce_op");
  if (!index.has_value()) return std::nullopt;
  return *arguments[*index].toCustomClass<c10d::ReduceOp>();
}

/// HCCL's.
void check_reduce_op(const c10d::ReduceOp& op) {
  constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  using Op = c10d::ReduceOp;
  if (op.op_ == Op::SUM || op.op_ == Op::AVG || op.op_ == Op::MIN || op.op_ == Op::MAX) return;
  TORCH_CHECK_TYPE(false, "Unsupported ReduceOp ", op.op_ < std::size(kNames) ? kNames[op.op_] : "UNUSED",
                   ". Supported ops in HCCL are: sum, min, max");
}

/// What a call may not do to its operands: it would lose what they mean.
void check_operands(const std::string& op, bool reduces, at::ArrayRef<c10::IValue> arguments) {
  std::optional<at::ScalarType> codes, others;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& t) {
      if (!t.defined()) return;
      if (const Block* block = block_of(t); block != nullptr && block->tag) block->tag->check_access(op, t);
      const bool fp8 = c10::isFloat8Type(t.scalar_type());
      TORCH_CHECK(
          !fp8 || !reduces, "[", op, "] found a tensor of ", t.scalar_type(),
          " codes, of which no sum, minimum or maximum is taken; allowed: Float, BFloat16, Half, Double, integer",
          " types, as .to() or hpu::cast_from_fp8 gives them");
      auto& seen = fp8 ? codes : others;
      if (!seen.has_value() || fp8) {
        TORCH_CHECK(!fp8 || !seen.has_value() || *seen == t.scalar_type(), "[", op, "] found tensors of ", *seen,
                    " and of ", t.scalar_type(), ", allowed: codes of one format");
        seen = t.scalar_type();
      }
    });
  }
  TORCH_CHECK(!codes.has_value() || !others.has_value() || op == "c10d::barrier", "[", op, "] found tensors of ",
              *codes, " and of ", *others, ", allowed: codes of one format, or none");
}

void collective(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  const std::size_t count = schema.arguments().size(), first = stack->size() - count;
  const auto arguments = at::ArrayRef<c10::IValue>(*stack).slice(first);
  const LeafScope leaf(schema, arguments);
  const auto reduce_op = reduce_op_of(schema, arguments);
  if (reduce_op.has_value()) check_reduce_op(*reduce_op);
  check_operands(name, reduce_op.has_value(), arguments);

  const auto operands = std::make_shared<Operands>();
  const c10::IValue result = arguments[0];
  for (std::size_t i = 0; i < count; ++i) {
    c10::IValue& argument = (*stack)[first + i];
    argument =
        with_each_tensor(argument, [&](const at::Tensor& t) { return operands->alias(t, i == 0 && writes(name)); });
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveAliases);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);

  const std::size_t results = schema.returns().size();
  if (results == 0) return;
  c10::IValue& work = stack->back();
  work = device_work(work.toCustomClass<c10d::Work>(), operands);
  if (results == 2) (*stack)[stack->size() - 2] = result;
}

FP8_LIBRARY_IMPL(c10d, HPU, m) {
  for (const Collective& c : kCollectives) m.impl(c.name, torch::CppFunction::makeFromBoxedFunction<&collective>());
}

}  // namespace
}  // namespace fp8::runtime::distributed
