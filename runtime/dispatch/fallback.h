// SPDX-License-Identifier: Apache-2.0
// The zero-copy fallback: an hpu op runs the very CPU kernel, on aliases of its arguments' memory, so results are bit
// equal.
//
//   hpu arguments -> cpu_alias -> op at DispatchKey::CPU -> results: the same TensorImpl  -> the original hpu tensor
//                                                                    the same storage     -> a view on the hpu storage
//                                                                    fresh                -> its memory moves, no copy
//
// Two functions of torch are not bit-equal all the same: linalg_lstsq with the driver gelsy (the CPU's default), whose
// LAPACK gives other last bits from one call to the next on the CPU too, and Python's
// F.linear_cross_entropy(options=...), which chooses its arithmetic by the device's name (name acc_policy and
// chunking_method in the options to have the CPU's).
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

// The fallback's knowledge of an operator, read off its schema once, when its kernel is registered: a call then
// visits the arguments that matter and asks the schema nothing.
//
//   index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool accumulate) -> Tensor(a!)
//     operands  {0, written} {1, on_host} {2}          accumulate is passed on as it is

namespace fp8::runtime {

/// An argument that can hold a tensor, a device or a generator, in a list, an optional or a list of lists too.
struct FallbackOperand {
  std::uint16_t index = 0;
  bool written = false;
  bool on_host = false;  ///< may lie on the CPU beside hpu ones: indices and sequence lengths
};

struct FallbackPlan {
  static constexpr std::uint16_t kNone = 0xFFFF;

  explicit FallbackPlan(const c10::FunctionSchema& schema);

  std::uint16_t arguments = 0, results = 0;
  std::uint16_t host_result = kNone;  ///< stays on the CPU: the batch sizes of a packed sequence
  std::uint16_t number = kNone;       ///< the value that fill_ (and so full, constant_pad_nd) and its like write
  c10::SmallVector<FallbackOperand, 6> operands;
};

/// The keys above a kernel that runs on aliases: a trace must not record them either.
constexpr c10::DispatchKeySet kAboveAliases = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                              c10::autocast_dispatch_keyset |
                                              c10::DispatchKeySet(c10::DispatchKey::Tracer);

/// Boxed kernel for any op. Refuses CPU tensors of dim > 0 beside hpu ones, as a real device does (operand_devices.h;
/// but for the arguments of kHostArguments), memory whose tag objects, and results that are not dense (sparse ones
/// would stay on the CPU). What upstream has no float8 kernel for is refused with the op's name, as are collectives of
/// other libraries; an operator of theirs may keep an argument, and give what it keeps (which is copied).
void cpu_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// The fallback of one operator, whose schema was read when this was registered.
class CpuFallback final : public c10::OperatorKernel {
 public:
  explicit CpuFallback(const c10::FunctionSchema& schema) : plan_(schema) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const;

 private:
  FallbackPlan plan_;
};

/// A kernel that takes some of an operator's calls, and leaves all others to the fallback. kTake: true where it took
/// the call and put the results in the arguments' place.
template <bool (*kTake)(const c10::OperatorHandle& op, torch::jit::Stack* stack)>
class BeforeFallback final : public c10::OperatorKernel {
 public:
  explicit BeforeFallback(const c10::FunctionSchema& schema) : fallback_(schema) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
    if (!kTake(op, stack)) fallback_(op, keys, stack);
  }

 private:
  CpuFallback fallback_;
};

/// aten::equal (BeforeFallback). Two tagged float8 weights are equal only when they are the same memory: codes may
/// agree where scales don't, and torch::jit::freeze() merges the constants that it takes for equal.
bool equal_of_tagged(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// True if a result is an argument's memory seen otherwise, and nothing is written.
bool returns_view(const c10::FunctionSchema& schema);

}  // namespace fp8::runtime
