// SPDX-License-Identifier: Apache-2.0
// The lists in force, and what they mean for one call. Each listed ATen op has one boxed kernel at AutocastHPU (every
// overload that takes tensors and writes none of them); ops in no list fall through at no cost.
//
//   casts      arg.to(dtype), recorded by autograd, never cached; only float16, bfloat16 and float32 tensors on hpu,
//              in lists and optionals too. Integers, float64, complex, fp8 codes and CPU tensors are left alone.
//   refused    what a cast runs itself (to, _to_copy, empty_like, ...) or whose dtype is the caller's wish (type_as):
//              a warning names it where a list does, and it is left alone.
//   linear     reaches C++ nn::Linear, which calls addmm(b, x, w.t()) or matmul(x, w.t()): where those are in no list
//              themselves, calls of that form follow `linear`.
//   tagged     a weight with an op handler keeps its tag: the intercepted op gets its arguments uncast, hands them to
//              the handler, and casts them as here when the op itself is to run (intercept.cpp). A listed composite
//              around such ops (einsum, lstm, ...) leaves a call with a tagged weight to their rules.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>

#include "fp8/runtime/autocast/lists.h"

namespace fp8::runtime::autocast {

/// Puts `lists` in force, for every thread and from the next call on; an op that was in none before gets its kernel
/// now. Returns what to tell the user: names that are no op that can be cast, each with the nearest one that is (they
/// are ignored). At start the lists are from_environment()'s, warnings on stderr.
std::vector<std::string> set_lists(AutocastLists lists);
AutocastLists lists();
/// As set_lists(), for Python: a list that is not given stays as it is.
std::vector<std::string> set_given_lists(const std::optional<std::vector<std::string>>& lower,
                                         const std::optional<std::vector<std::string>>& fp32);
/// The result that set_lists would have.
std::vector<std::string> check_lists(const AutocastLists& lists);

/// Other lists (process-wide) while it lives.
class ListsGuard {
 public:
  explicit ListsGuard(AutocastLists lists) : before_(autocast::lists()) { set_lists(std::move(lists)); }
  ~ListsGuard() { set_lists(std::move(before_)); }
  ListsGuard& operator=(ListsGuard&&) = delete;

 private:
  AutocastLists before_;
};

/// The rule of a list for an op (lists.h); lower_first: of a normalization, whose first argument alone is cast.
enum class Rule : std::uint8_t { none, lower, lower_first, fp32, promote };

/// The casts of a region in one call.
struct CallCast {
  at::ScalarType to = at::kFloat;      ///< the arguments' new dtype
  bool first_only = false;             ///< of the first argument
  at::ScalarType region = at::kFloat;  ///< the region's dtype as the op's inside should see it
};

/// nullopt: nothing, as no region is on, the op is in no list, or a promoting op has nothing to cast.
/// arguments: the op's, in the schema's order.
std::optional<CallCast> cast_of_call(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

/// cast_of_call() for an op with a rule of its own (runtime/custom).
std::optional<CallCast> cast_by_rule(Rule rule, at::ArrayRef<c10::IValue> arguments);

/// Casts `count` arguments in place; lists are replaced, not edited.
void cast_arguments(const CallCast& cast, c10::IValue* arguments, std::size_t count);

/// The result of a handler in the dtype that the op would have had.
at::Tensor cast_result(const std::optional<CallCast>& cast, const at::Tensor& result);

}  // namespace fp8::runtime::autocast
