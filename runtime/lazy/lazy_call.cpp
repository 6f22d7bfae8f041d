// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/lazy/lazy_call.h"

#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/pending.h"
#include "fp8/runtime/lazy/lazy_work.h"

namespace fp8::runtime {
namespace {

bool can_wait(const at::Tensor& t) {
  if (!t.defined()) return true;
  if (!t.is_hpu() || t.layout() != at::kStrided || !kOrdinaryKeys.has_all(t.key_set())) return false;
  const PendingMemory* pending = pending_of(storage_impl_of(t));
  return pending == nullptr || pending->failure.empty();
}

/// On the memory of t, with a version of its own.
at::Tensor operand_at_call(const at::Tensor& t) {
  if (!t.defined()) return t;
  return at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                     /*allow_tensor_metadata_change=*/true));
}

KnownResult result_of(const std::optional<PromisedResult>& promise, c10::DeviceIndex device) {
  if (!promise.has_value()) return {};
  const auto strides = c10::contiguous_strides(promise->sizes);
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(promise->sizes)) * c10::elementSize(promise->dtype);
  return {KnownResult::Kind::made,
          0,
          at::DimVector(promise->sizes),
          at::DimVector(strides.begin(), strides.end()),
          promise->dtype,
          bytes,
          device};
}

std::function<void(torch::jit::Stack&)> on_stack(LaterFunction f) {
  return [f = std::move(f)](torch::jit::Stack& stack) {
    std::vector<at::Tensor> given;
    for (c10::IValue& value : stack) given.push_back(std::move(value).toTensor());
    stack.clear();
    for (at::Tensor& result : f(given)) stack.emplace_back(std::move(result));
  };
}

}  // namespace

std::vector<at::Tensor> queue_call(const char* name, at::TensorList operands,
                                   const std::vector<std::optional<PromisedResult>>& results, LaterFunction f,
                                   at::TensorList written) {
  const auto impl_of = [](const at::Tensor& t) { return static_cast<const c10::TensorImpl*>(t.unsafeGetTensorImpl()); };
  std::vector<const c10::TensorImpl*> places;
  std::ranges::transform(written, std::back_inserter(places), impl_of);
  const auto first = std::ranges::find_if(operands, [](const at::Tensor& t) { return t.defined(); });
  if (first == operands.end() || !std::ranges::all_of(operands, can_wait) ||
      (!places.empty() && !detail::is_written_unseen(places))) {
    const RunsAtOnce at_once;
    return f(operands);
  }
  LazyNode node;
  node.name = name;
  node.call = on_stack(std::move(f));
  for (const at::Tensor& t : operands) node.arguments.emplace_back(operand_at_call(t));
  if (operands[0].defined())
    node.first = LazyOrigin{c10::weak_intrusive_ptr<c10::TensorImpl>(operands[0].getIntrusivePtr()),
                            operands[0].unsafeGetTensorImpl()->version_counter().current_version()};
  auto known = std::make_shared<KnownCall>(KnownCall{KnownCall::Way::later});
  std::vector<at::Tensor> all;
  for (const auto& promise : results) {
    known->results.push_back(result_of(promise, first->device().index()));
    all.push_back(promise.has_value() ? promised(known->results.back(), node) : at::Tensor());
  }
  node.own = known, node.known = known.get();
  detail::queue_node(std::move(node));
  return all;
}

}  // namespace fp8::runtime
