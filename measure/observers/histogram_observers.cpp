// SPDX-License-Identifier: Apache-2.0
// The observers that keep a histogram, and differ in what they read off it at the end.
#include <functional>
#include <optional>
#include <stdexcept>

#include "fp8/measure/observers/built_in_observers.h"
#include "fp8/measure/observers/histogram.h"
#include "fp8/measure/observers/observer_parameters.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::measure {
namespace {

using Threshold = std::function<float(const Histogram&)>;

class HistogramObserver final : public Observer {
 public:
  HistogramObserver(int bins, Threshold threshold) : histogram_(bins), threshold_(std::move(threshold)) {}

  void observe(const Observed& x) override {
    const auto* seen = std::any_cast<Histogram>(&x.memo());
    if (seen == nullptr || seen->bins() != histogram_.bins()) {
      Histogram h(histogram_.bins());
      // The order of values does not matter: a permuted tensor is counted as it lies in memory.
      const bool as_it_lies = runtime::ops::is_high_precision(x.tensor().scalar_type()) &&
                              x.tensor().unsafeGetTensorImpl()->is_non_overlapping_and_dense();
      const at::Tensor& t = as_it_lies ? x.tensor() : x.values();
      h.add(t.const_data_ptr(), runtime::ops::float_type_of(t.scalar_type()), t.numel());
      x.memo() = std::move(h);
      seen = std::any_cast<Histogram>(&x.memo());
    }
    histogram_.merge(*seen);
    found_.reset();
  }
  void observe_part(const Observed& part, const PartOf&) override { observe(part); }
  Amax result() const override {
    if (!found_) found_ = threshold_(histogram_);
    return {*found_};
  }
  void merge(const Observer& other) override {
    const auto* same = dynamic_cast<const HistogramObserver*>(&other);
    if (same == nullptr) throw std::invalid_argument("merge: expected an observer of the same kind");
    histogram_.merge(same->histogram_);
    found_.reset();
  }
  io::Json state() const override { return histogram_.to_json(); }
  void restore(const io::Json& state, const std::string& where) override {
    histogram_ = Histogram::from_json(state, where);
    found_.reset();
  }

 private:
  Histogram histogram_;
  Threshold threshold_;
  mutable std::optional<float> found_;  ///< what threshold_ says of histogram_ as it is
};

std::unique_ptr<Observer> make(const ObserverContext& context, Threshold threshold) {
  if (context.affordable) {
    threshold = [threshold = std::move(threshold), target = Fp8Target{context.format, context.fp8_max}](
                    const Histogram& h) { return affordable_threshold(h, threshold(h), target); };
  }
  return std::make_unique<HistogramObserver>(static_cast<int>(context.parameter(kBins)), std::move(threshold));
}

}  // namespace

std::unique_ptr<Observer> make_histogram(const ObserverContext& context) {
  return make(context, [](const Histogram& h) { return h.amax(); });
}

std::unique_ptr<Observer> make_percentile(const ObserverContext& context) {
  const double percent = context.parameter(kPercentile);
  return make(context, [percent](const Histogram& h) { return percentile_threshold(h, percent); });
}

std::unique_ptr<Observer> make_mse(const ObserverContext& context) {
  const Fp8Target target{context.format, context.fp8_max};
  return make(context, [target](const Histogram& h) { return mse_threshold(h, target); });
}

std::unique_ptr<Observer> make_kl(const ObserverContext& context) {
  const Fp8Target target{context.format, context.fp8_max};
  return make(context, [target](const Histogram& h) { return kl_threshold(h, target); });
}

}  // namespace fp8::measure
