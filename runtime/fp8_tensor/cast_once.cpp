// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/cast_once.h"

#include <ATen/core/ivalue.h>

#include <mutex>
#include <optional>
#include <vector>

#include "fp8/runtime/device/block.h"

namespace fp8::runtime {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;

/// The casts and the amax of one tensor at one version; hangs on its Block.
struct Known final : c10::intrusive_ptr_target {
  struct Cast {
    CastSpec spec;
    at::ScalarType from;
    Fp8Tensor result;
  };

  std::mutex mutex;
  WeakTensor tensor{c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>()};
  std::uint32_t version = 0;
  std::vector<Cast> casts;
  std::optional<float> amax;
  at::ScalarType amax_from = at::kFloat;

  /// Forgets what is not of x as it is now.
  void turn_to(const at::Tensor& x) {
    const std::uint32_t now = x.unsafeGetTensorImpl()->version_counter().current_version();
    if (version == now && !tensor.expired() && tensor._unsafe_get_target() == x.unsafeGetTensorImpl()) return;
    tensor = WeakTensor(x.getIntrusivePtr());
    version = now;
    casts.clear();
    amax.reset();
  }

  const Fp8Tensor* find(const at::Tensor& values, const CastSpec& spec) const {
    for (const Cast& cast : casts) {
      if (cast.from == values.scalar_type() && cast.spec.same_result(spec) &&
          cast.result.codes.sizes() == values.sizes())
        return &cast.result;
    }
    return nullptr;
  }
  /// False where the cast must run for its amax.
  bool tell_amax(const at::Tensor& values, const CastSpec& spec) const {
    if (spec.amax == nullptr) return true;
    if (!amax.has_value() || amax_from != values.scalar_type()) return false;
    *spec.amax = *amax;
    return true;
  }

  void keep(const at::Tensor& values, CastSpec spec, const Fp8Tensor& result) {
    constexpr std::size_t kMost = 4;  // two formats, along rows and columns
    if (spec.amax != nullptr) keep_amax(values, *spec.amax);
    if (find(values, spec) != nullptr) return;
    if (casts.size() == kMost) casts.erase(casts.begin());
    spec.amax = nullptr;
    casts.push_back({spec, values.scalar_type(), result});
  }
  void keep_amax(const at::Tensor& values, float value) {
    amax = value;
    amax_from = values.scalar_type();
  }
};

/// Null where nothing can be kept.
Block* block_to_keep_in(const at::Tensor& x) {
  Block* block = x.is_inference() ? nullptr : block_of(x);
  return block == nullptr || block->tag ? nullptr : block;  // a weight: its owner casts it
}

c10::intrusive_ptr<Known> known_of(const at::Tensor& x) {
  Block* block = block_to_keep_in(x);
  if (block == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(block->casts_mutex);
  if (!block->casts) block->casts = c10::make_intrusive<Known>();
  return c10::static_intrusive_pointer_cast<Known>(block->casts);
}

bool may_be_kept(const CastSpec& spec) { return !spec.stochastic.has_value() && spec.scales == nullptr; }

}  // namespace

// Casts run outside of the lock: profilers may call back from them.
Fp8Tensor cast_once(const at::Tensor& x, const at::Tensor& values, const CastSpec& spec) {
  const auto known = may_be_kept(spec) ? known_of(x) : nullptr;
  if (known == nullptr) return quantize(values, spec);
  {
    const std::lock_guard<std::mutex> lock(known->mutex);
    known->turn_to(x);
    const Fp8Tensor* found = known->find(values, spec);
    if (found != nullptr && known->tell_amax(values, spec)) return *found;
  }
  const OrdinaryTensors kept;
  const Fp8Tensor result = quantize(values, spec);
  const std::lock_guard<std::mutex> lock(known->mutex);
  known->turn_to(x);
  known->keep(values, spec, result);
  return result;
}

void keep_cast(const at::Tensor& x, const CastSpec& spec, const Fp8Tensor& result) {
  const auto known = may_be_kept(spec) && !result.codes.is_inference() ? known_of(x) : nullptr;
  if (known == nullptr) return;
  const std::lock_guard<std::mutex> lock(known->mutex);
  known->turn_to(x);
  known->keep(x, spec, result);
}

bool may_keep_casts(const at::Tensor& x) { return block_to_keep_in(x) != nullptr; }

std::pair<Fp8Tensor, Fp8Tensor> cast_both_once(const at::Tensor& x, const at::Tensor& values, const CastSpec& first,
                                               const CastSpec& second) {
  const auto known = may_be_kept(first) && may_be_kept(second) ? known_of(x) : nullptr;
  if (known == nullptr) return quantize_both(values, first, second);
  {
    const std::lock_guard<std::mutex> lock(known->mutex);
    known->turn_to(x);
    const Fp8Tensor *one = known->find(values, first), *other = known->find(values, second);
    if (one != nullptr && other != nullptr && known->tell_amax(values, first)) return {*one, *other};
  }
  const OrdinaryTensors kept;
  auto both = quantize_both(values, first, second);
  const std::lock_guard<std::mutex> lock(known->mutex);
  known->turn_to(x);
  known->keep(values, first, both.first);
  known->keep(values, second, both.second);
  return both;
}

float amax_once(const at::Tensor& x, const at::Tensor& values) {
  const auto known = known_of(x);
  if (known == nullptr) return amax_of(values);
  {
    const std::lock_guard<std::mutex> lock(known->mutex);
    known->turn_to(x);
    if (known->amax.has_value() && known->amax_from == values.scalar_type()) return *known->amax;
  }
  const float amax = amax_of(values);
  const std::lock_guard<std::mutex> lock(known->mutex);
  known->turn_to(x);
  known->keep_amax(values, amax);
  return amax;
}

namespace {

bool is_of_rows(const CastSpec& spec) {
  if (spec.stochastic.has_value() || spec.amax != nullptr || spec.transpose) return false;
  if (spec.rule == ScaleRule::given) return spec.layout.one();
  return spec.rule == ScaleRule::amax_over_max && spec.layout == ScaleLayout::per_row();
}

}  // namespace

CastBeside::CastBeside(const at::Tensor& y, const NextCast& next) : y_(y) {
  if (!next.has_value() || !is_of_rows(*next) || y.dim() == 0 || y.numel() == 0 || !may_keep_casts(y)) return;
  spec_ = &*next;
  result_ = room_for_cast(y, *next);
}

kernels::CastArgs CastBeside::rows() const {
  if (spec_ == nullptr) return {};
  kernels::CastArgs cast{*spec_};
  cast.codes = static_cast<std::uint8_t*>(result_.codes.mutable_data_ptr());
  if (result_.grid.defined()) cast.grid = result_.grid.mutable_data_ptr<float>();
  return cast;
}

void CastBeside::keep() const {
  if (spec_ == nullptr) return;
  finish_cast(*spec_, result_);
  keep_cast(y_, *spec_, result_);
}

}  // namespace fp8::runtime
