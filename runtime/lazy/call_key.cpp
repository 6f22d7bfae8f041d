// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/lazy/call_key.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <bit>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/pending.h"

namespace fp8::runtime {
namespace {

constexpr std::size_t kMostTensors = 64;  // each is compared with those before it

/// So that no value is taken for one of another kind.
enum class Part : std::uint64_t { none, undefined, device, host, integer, real, boolean, text, place, list };

constexpr std::uint64_t word(Part kind, std::uint64_t more = 0) { return static_cast<std::uint64_t>(kind) | more << 8; }
std::uint64_t word(std::int64_t value) { return static_cast<std::uint64_t>(value); }
std::uint64_t word(double value) { return std::bit_cast<std::uint64_t>(value); }

}  // namespace

Circumstances Circumstances::present() {
  return {current_device(),
          device_kind(),
          at::get_num_threads(),
          c10::GradMode::is_enabled(),
          c10::InferenceMode::is_enabled(),
          at::globalContext().deterministicAlgorithms(),
          at::get_default_dtype_as_scalartype()};
}

bool CallKey::set(const c10::FunctionSchema& op, at::ArrayRef<c10::IValue> arguments, const Circumstances& c) {
  words_.clear();
  tensors_.clear();
  add(std::bit_cast<std::uint64_t>(&op));
  add(static_cast<std::uint64_t>(c.device) | static_cast<std::uint64_t>(c.kind) << 16 |
      static_cast<std::uint64_t>(c.inference) << 32 | static_cast<std::uint64_t>(c.deterministic) << 33 |
      static_cast<std::uint64_t>(c.dtype) << 40);
  return std::ranges::all_of(arguments, [this](const c10::IValue& value) { return add(value); });
}

std::size_t CallKey::hash() const {
  std::uint64_t hash = 0x9E3779B97F4A7C15;
  for (const std::uint64_t w : words_) hash = (std::rotl(hash, 5) ^ w) * 0x9E3779B97F4A7C15;
  return hash ^ hash >> 32;
}

bool CallKey::add(const c10::TensorImpl& t) {
  if (&t == c10::UndefinedTensorImpl::singleton()) return add(word(Part::undefined)), true;
  if (t.device_type() == c10::kHPU) return add_device(t);
  if (!t.is_cpu() || t.dim() != 0 || t.layout() != at::kStrided) return false;
  add(word(Part::host, static_cast<std::uint64_t>(t.is_wrapped_number()) << 8 |
                           static_cast<std::uint64_t>(c10::typeMetaToScalarType(t.dtype()))));
  return true;
}

bool CallKey::add_device(const c10::TensorImpl& t) {
  if (tensors_.size() == kMostTensors || !kOrdinaryKeys.has_all(t.key_set()) ||
      c10::isFloat8Type(c10::typeMetaToScalarType(t.dtype())))
    return false;
  const auto* memory = t.unsafe_storage().unsafeGetStorageImpl();
  if (const PendingMemory* pending = pending_of(memory)) {
    if (!pending->failure.empty()) return false;
  } else {
    const Block* block = block_of(memory);
    if (block == nullptr || block->tag) return false;
  }
  const auto first = std::ranges::find_if(
      tensors_, [&](const c10::TensorImpl* other) { return other->unsafe_storage().unsafeGetStorageImpl() == memory; });
  const bool shares = first != tensors_.end();
  const auto sizes = t.sizes(), strides = t.strides();
  add(word(Part::device, static_cast<std::uint64_t>(c10::typeMetaToScalarType(t.dtype())) |
                             static_cast<std::uint64_t>(shares) << 8 |
                             static_cast<std::uint64_t>(t.storage_offset() != 0) << 9 |
                             static_cast<std::uint64_t>(t.key_set().has(c10::DispatchKey::ADInplaceOrView)) << 10 |
                             static_cast<std::uint64_t>(static_cast<std::uint8_t>(t.device().index())) << 16 |
                             static_cast<std::uint64_t>(sizes.size()) << 24));
  if (shares) {
    add(word(first - tensors_.begin()));
    add(word(t.storage_offset() - (*first)->storage_offset()));
    add(word(std::ranges::find(tensors_, &t) - tensors_.begin()));
  }
  for (const auto size : sizes) add(word(size));
  for (const auto stride : strides) add(word(stride));
  tensors_.push_back(&t);
  return true;
}

bool CallKey::add(const c10::IValue& value) {
  if (value.isTensor()) return add(*value.unsafeToTensorImpl());
  if (value.isNone()) return add(word(Part::none)), true;
  if (value.isInt()) return add(word(Part::integer)), add(word(value.toInt())), true;
  if (value.isDouble()) return add(word(Part::real)), add(word(value.toDouble())), true;
  if (value.isBool()) return add(word(Part::boolean, value.toBool() ? 1 : 0)), true;
  if (value.isString()) {
    const std::string_view text = value.toStringRef();
    add(word(Part::text, text.size()));
    for (const char c : text) add(static_cast<std::uint64_t>(c));
    return true;
  }
  if (value.isDevice()) {
    const auto device = value.toDevice();
    add(word(Part::place, static_cast<std::uint64_t>(device.type()) << 8 | static_cast<std::uint8_t>(device.index())));
    return true;
  }
  if (!value.isList()) return false;
  const auto elements = value.toListRef();
  add(word(Part::list, elements.size()));
  return std::ranges::all_of(elements, [this](const c10::IValue& element) { return add(element); });
}

}  // namespace fp8::runtime
