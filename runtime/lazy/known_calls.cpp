// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/lazy/known_calls.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/tape/heard.h"

namespace fp8::runtime {
namespace {

/// What no tag of a schema says, of operators that write no argument. Without a row each is as right and slower: the
/// first kind would be queued, the second would wait.
constexpr std::pair<std::string_view, HeardOp::Way> kFaster[] = {
    {"aten::empty", HeardOp::Way::looks},
    {"aten::empty_like", HeardOp::Way::looks},
    {"aten::empty_permuted", HeardOp::Way::looks},
    {"aten::empty_strided", HeardOp::Way::looks},
    {"aten::new_empty", HeardOp::Way::looks},
    {"aten::new_empty_strided", HeardOp::Way::looks},
    {"aten::_fused_sdp_choice", HeardOp::Way::looks},
    {"aten::index", HeardOp::Way::learns},  // masks are asked for at the call
};

bool is_ours(const c10::FunctionSchema& schema) {
  return schema.name().starts_with("hpu::") || schema.name().starts_with("fp8::");
}

bool is_list(const c10::Argument& argument) { return argument.type()->isSubtypeOf(*c10::ListType::ofTensors()); }

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// Of ours: what reads or writes lists of tensors asks for nothing but its arguments, unless it calls other operators
/// for autograd, which look at the region. Others may read what the host has.
HeardOp::Way way_of_ours(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  if (op.hasKernelForDispatchKey(c10::DispatchKey::AutogradHPU)) return HeardOp::Way::now;
  const auto& arguments = schema.arguments();
  const auto is_fresh = [](const c10::Argument& result) {
    return result.alias_info() == nullptr && (result.type()->isSubtypeOf(*c10::TensorType::get()) || is_list(result));
  };
  if (schema.returns().empty())
    return std::ranges::any_of(arguments, [](const auto& a) { return is_list(a) && is_written(a); })
               ? HeardOp::Way::step
               : HeardOp::Way::now;
  return std::ranges::any_of(arguments, is_list) && std::ranges::all_of(schema.returns(), is_fresh)
             ? HeardOp::Way::learns
             : HeardOp::Way::now;
}

bool writes_argument(const c10::FunctionSchema& schema) { return std::ranges::any_of(schema.arguments(), is_written); }

HeardOp::Way way_of(const c10::OperatorHandle& op) {
  using Way = HeardOp::Way;
  const c10::FunctionSchema& schema = op.schema();
  if (is_composite(op)) return Way::inside;
  if (is_ours(schema)) return way_of_ours(op);
  if (!schema.name().starts_with("aten::")) return Way::now;
  const auto* known =
      std::ranges::find(kFaster, std::string_view(schema.name()), [](const auto& row) { return row.first; });
  if (known != std::end(kFaster) && !writes_argument(schema)) return known->second;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return Way::random;
  if (op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output) ||
      op.hasTag(at::Tag::inplace_view))
    return Way::now;
  return returns_view(schema) ? Way::looks : Way::learns;
}

}  // namespace

HeardOp::HeardOp(const c10::OperatorHandle& op)
    : way(way_of(op)),
      writes(writes_argument(op.schema())),
      ours(is_ours(op.schema())),
      takes_masks(op.schema().name() == "aten::index") {}

CallLesson::CallLesson(at::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const at::Tensor& t) {
      if (!t.defined() || !t.is_hpu()) return;
      arguments_.push_back({t, t.storage(), t.storage().nbytes(), at::DimVector(t.sizes()), at::DimVector(t.strides()),
                            t.storage_offset()});
    });
}

/// False: such a result can't be foreseen.
bool CallLesson::add(KnownCall& call, const at::Tensor& result, std::vector<const void*>& made) const {
  if (!result.defined()) return call.results.emplace_back(), true;
  if (!result.is_hpu() || result.layout() != at::kStrided) return false;
  const auto same = std::ranges::find_if(arguments_, [&](const Before& b) { return b.tensor.is_same(result); });
  if (same != arguments_.end()) {
    call.results.push_back({KnownResult::Kind::argument, static_cast<std::size_t>(same - arguments_.begin())});
    return true;
  }
  const auto* memory = storage_impl_of(result);
  const Block* block = block_of(memory);
  if (block == nullptr || block->tag || !kOrdinaryKeys.has_all(result.key_set()) || result.storage_offset() != 0 ||
      c10::isFloat8Type(result.scalar_type()) || std::ranges::count(made, memory) != 0 ||
      std::ranges::any_of(arguments_, [&](const Before& b) { return b.memory.unsafeGetStorageImpl() == memory; }))
    return false;
  made.push_back(memory);
  call.results.push_back({KnownResult::Kind::made, 0, at::DimVector(result.sizes()), at::DimVector(result.strides()),
                          result.scalar_type(), result.storage().nbytes(), result.device().index()});
  ++call.made;
  return true;
}

KnownCall CallLesson::learn(const HeardOp& op, at::ArrayRef<c10::IValue> results) const {
  for (const Before& b : arguments_)
    if (storage_impl_of(b.tensor) != b.memory.unsafeGetStorageImpl() || b.memory.nbytes() != b.bytes ||
        b.tensor.sizes() != b.sizes || b.tensor.strides() != b.strides || b.tensor.storage_offset() != b.offset)
      return {};
  const auto is_view = [&](const at::Tensor& t) {
    return t.defined() && t.is_hpu() && std::ranges::any_of(arguments_, [&](const Before& b) {
             return b.memory.unsafeGetStorageImpl() == storage_impl_of(t);
           });
  };
  bool views = !op.writes && !results.empty();
  for (const c10::IValue& value : results) {
    if (!value.isTensor() && !value.isTensorList()) return {};
    for_each_tensor(value, [&](const at::Tensor& t) { views = views && is_view(t); });
  }
  if (views) return {KnownCall::Way::looks};
  KnownCall call{KnownCall::Way::later};
  std::vector<const void*> made;
  for (const c10::IValue& value : results) {
    call.lists.push_back(value.isTensorList() ? static_cast<int>(value.toTensorVector().size()) : -1);
    bool fits = true;
    for_each_tensor(value, [&](const at::Tensor& t) { fits = fits && add(call, t, made); });
    if (!fits) return {};
  }
  return call.made == 0 && !op.writes ? KnownCall{} : call;
}

const KnownCall* KnownCalls::find(const CallKey& key) const {
  const auto found = calls_.find(key);
  return found == calls_.end() ? nullptr : &found->second;
}

void KnownCalls::keep(const CallKey& key, KnownCall call) {
  calls_.emplace(std::pair(key.hash(), Words(key.words().begin(), key.words().end())), std::move(call));
}

}  // namespace fp8::runtime
