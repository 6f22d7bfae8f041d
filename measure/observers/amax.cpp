// SPDX-License-Identifier: Apache-2.0
// The observers that keep maxima or sizes: maxabs, maxabs_per_channel, shape.
#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "fp8/measure/observers/built_in_observers.h"
#include "fp8/measure/observers/states.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::measure {
namespace {

/// other as the same class, or an error.
template <class Same>
const Same& same_kind(const Same&, const Observer& other) {
  const auto* same = dynamic_cast<const Same*>(&other);
  if (same == nullptr) throw std::invalid_argument("merge: expected an observer of the same kind");
  return *same;
}

/// Elementwise; the shorter counts as padded with zeros.
void take_larger(Amax& into, const Amax& from) {
  if (from.size() > into.size()) into.resize(from.size(), 0.0f);
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

/// {"amax": [...]}: the checked list.
Amax amax_from(const io::Json& state, const std::string& where) {
  if (!state.is_object() || !state.contains("amax") || !state["amax"].is_array())
    bad_state(where, "a list 'amax'", state);
  Amax amax;
  for (const auto& v : state["amax"]) {
    const double value = v.is_number() ? v.get<double>() : -1.0;
    if (!(value >= 0.0) || value > 3.4028234663852886e38) bad_state(where + ".amax", "numbers >= 0 (float)", v);
    amax.push_back(static_cast<float>(value));
  }
  return amax;
}

/// max |x| of each slice of t (contiguous) along `dim`.
Amax amax_along(const at::Tensor& t, std::int64_t dim) {
  if (t.dim() == 0) return amax_along(t.view({1}), 0);
  std::int64_t d = dim < 0 ? dim + t.dim() : dim;
  d = std::clamp<std::int64_t>(d, 0, t.dim() - 1);
  const std::int64_t channels = t.size(d);
  Amax amax(static_cast<std::size_t>(channels), 0.0f);
  if (t.numel() == 0) return amax;
  const std::int64_t others = t.numel() / channels;
  const auto type = runtime::ops::float_type_of(t.scalar_type());
  if (d == t.dim() - 1) {
    kernels::amax_cols(t.const_data_ptr(), type, others, channels, channels, amax.data());
    return amax;
  }
  std::int64_t inner = 1;  // t as [outer, channels, inner]
  for (std::int64_t i = d + 1; i < t.dim(); ++i) inner *= t.size(i);
  Amax rows(static_cast<std::size_t>(t.numel() / inner));
  kernels::amax_rows(t.const_data_ptr(), type, t.numel() / inner, inner, inner, rows.data());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    float& largest = amax[r % amax.size()];
    if (rows[r] > largest) largest = rows[r];
  }
  return amax;
}

class MaxAbs : public Observer {
 public:
  explicit MaxAbs(std::optional<std::int64_t> slice_dim) : slice_dim_(slice_dim) {}
  void observe(const Observed& x) override {
    take_larger(amax_, slice_dim_.has_value() ? amax_along(x.values(), *slice_dim_) : Amax{x.amax()});
  }
  void observe_part(const Observed& part, const PartOf&) override { observe(part); }
  Amax result() const override { return amax_.empty() ? Amax{0.0f} : amax_; }
  void merge(const Observer& other) override { take_larger(amax_, same_kind(*this, other).amax_); }
  io::Json state() const override { return {{"amax", amax_}}; }
  void restore(const io::Json& state, const std::string& where) override { amax_ = amax_from(state, where); }

 private:
  std::optional<std::int64_t> slice_dim_;
  Amax amax_;
};

class MaxAbsPerChannel final : public Observer {
 public:
  explicit MaxAbsPerChannel(const ObserverContext& context)
      : dim_(context.channel_dim), per_expert_(context.per_expert) {}
  void observe(const Observed& x) override {
    auto* found = std::any_cast<Found>(&x.memo());
    if (found == nullptr || found->dim != dim_) {
      const at::Tensor& t = x.values();
      x.memo() = Found{dim_, amax_along(per_expert_ ? t.flatten(0, -2) : t, dim_)};
      found = std::any_cast<Found>(&x.memo());
    }
    take_larger(amax_, found->amax);
  }
  /// Channels that are divided among the parts take their places in the whole list.
  void observe_part(const Observed& part, const PartOf& of) override {
    const auto dims = static_cast<std::int64_t>(of.sizes.size());
    if (of.dim != (dim_ < 0 ? dim_ + dims : dim_)) return observe(part);
    Amax all(static_cast<std::size_t>(of.sizes[static_cast<std::size_t>(of.dim)]), 0.0f);
    const Amax found = amax_along(part.values(), of.dim);
    std::copy(found.begin(), found.end(), all.begin() + of.first);
    take_larger(amax_, all);
  }
  Amax result() const override { return amax_.empty() ? Amax{0.0f} : amax_; }
  void merge(const Observer& other) override { take_larger(amax_, same_kind(*this, other).amax_); }
  io::Json state() const override { return {{"amax", amax_}}; }
  void restore(const io::Json& state, const std::string& where) override { amax_ = amax_from(state, where); }

 private:
  struct Found {
    std::int64_t dim;
    Amax amax;
  };
  std::int64_t dim_;
  bool per_expert_;
  Amax amax_;
};

class Shape final : public Observer {
 public:
  void observe(const Observed& x) override {
    const auto sizes = x.tensor().sizes();
    sizes_.assign(sizes.begin(), sizes.end());
    if (sizes_.empty()) sizes_ = {1.0f};
  }
  void observe_part(const Observed&, const PartOf& of) override { sizes_.assign(of.sizes.begin(), of.sizes.end()); }
  Amax result() const override { return sizes_; }
  /// The last call counts, and the other's is the later one.
  void merge(const Observer& other) override {
    const auto& sizes = same_kind(*this, other).sizes_;
    if (!sizes.empty()) sizes_ = sizes;
  }
  io::Json state() const override { return {{"amax", sizes_}}; }
  void restore(const io::Json& state, const std::string& where) override { sizes_ = amax_from(state, where); }

 private:
  Amax sizes_;  // exact up to 2^24, beyond that the nearest float
};

}  // namespace

std::unique_ptr<Observer> make_maxabs(const ObserverContext& context) {
  return std::make_unique<MaxAbs>(context.per_expert ? std::int64_t{0} : context.head_dim);
}

std::unique_ptr<Observer> make_maxabs_per_channel(const ObserverContext& context) {
  if (context.head_dim.has_value()) return make_maxabs(context);  // readers of a cache take its values for heads
  return std::make_unique<MaxAbsPerChannel>(context);
}

std::unique_ptr<Observer> make_shape(const ObserverContext&) { return std::make_unique<Shape>(); }

}  // namespace fp8::measure
