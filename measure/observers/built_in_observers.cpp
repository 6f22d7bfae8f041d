// SPDX-License-Identifier: Apache-2.0
// The observers of the library: those that keep maxima or sizes (maxabs, maxabs_per_channel, shape), histograms, files.
#include <torch/csrc/jit/serialization/pickle.h>

#include <typeinfo>

#include "fp8/measure/observers/observer.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::measure {
namespace {

/// other as the same class, or an error.
template <class Same>
const Same& same_kind(const Same& self, const Observer& other) {
  if (typeid(self) != typeid(other)) throw std::invalid_argument("merge: expected an observer of the same kind");
  return static_cast<const Same&>(other);
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

/// The largest of what each call found, in every place.
class LargestObserver : public Observer {
 public:
  Amax result() const override { return amax_.empty() ? Amax{0.0f} : amax_; }
  void merge(const Observer& other) override { take_larger(amax_, same_kind(*this, other).amax_); }
  io::Json state() const override { return {{"amax", amax_}}; }
  void restore(const io::Json& state, const std::string& where) override { amax_ = amax_from(state, where); }

 protected:
  Amax amax_;
};

class MaxAbs final : public LargestObserver {
 public:
  explicit MaxAbs(std::optional<std::int64_t> slice_dim) : slice_dim_(slice_dim) {}
  void observe(const Observed& x) override {
    take_larger(amax_, slice_dim_.has_value() ? amax_along(x.values(), *slice_dim_) : Amax{x.amax()});
  }
  void observe_part(const Observed& part, const PartOf&) override { observe(part); }

 private:
  std::optional<std::int64_t> slice_dim_;
};

class MaxAbsPerChannel final : public LargestObserver {
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

 private:
  struct Found {
    std::int64_t dim;
    Amax amax;
  };
  std::int64_t dim_;
  bool per_expert_;
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
    histogram_.merge(same_kind(*this, other).histogram_);
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
  mutable std::optional<float> found_;  ///< the result of threshold_ for histogram_ as it is
};

std::unique_ptr<Observer> make(const ObserverContext& context, Threshold threshold) {
  if (context.affordable)
    threshold = [threshold = std::move(threshold), target = Fp8Target{context.format, context.fp8_max}](
                    const Histogram& h) { return affordable_threshold(h, threshold(h), target); };
  return std::make_unique<HistogramObserver>(static_cast<int>(context.parameter(kBins)), std::move(threshold));
}

/// Every tensor as a file that Python's torch.load reads, for a look at what a model computes. Those of an earlier
/// run are moved to backup_tensorsR_{dd-mm_HH-MM-SS}.
///
///   FOLDER/tensorsR/{module}_{input0|weight|output0}_iter{n}.pt n counts the tensor's calls; R = "" or _{rank}_{world}
class Save final : public Observer {
 public:
  explicit Save(const ObserverContext& context)
      : folder_(context.folder / ("tensors" + configs::rank_suffix(context.rank))),
        limit_(static_cast<std::int64_t>(context.parameter(kSaveMib) * 1048576.0)),
        bytes_saved_(context.bytes_saved ? context.bytes_saved : std::make_shared<std::atomic<std::int64_t>>(0)) {
    std::string module = context.module.empty() ? "model" : context.module;
    std::replace(module.begin(), module.end(), '/', '_');
    stem_ = module + "_" + context.tensor + "_iter";
  }

  void observe(const Observed& x) override {
    amax_ = std::max(amax_, x.amax());
    const std::int64_t call = calls_++;
    const auto size = static_cast<std::int64_t>(x.tensor().nbytes());
    // Counted before it is written: what does not fit any more is left out, the smaller ones after it may still fit.
    const std::int64_t before = bytes_saved_->fetch_add(size);
    if (before + size > limit_) {
      bytes_saved_->fetch_sub(size);
      return;
    }
    if (before == 0) put_earlier_run_aside();
    const auto bytes = torch::jit::pickle_save(x.tensor().detach().clone(at::MemoryFormat::Contiguous));
    std::filesystem::create_directories(folder_);
    io::AtomicFile file(folder_ / (stem_ + std::to_string(call) + ".pt"), bytes.size());
    file.append(bytes.data(), bytes.size());
    file.commit();
  }
  Amax result() const override { return {amax_}; }
  void merge(const Observer& other) override { amax_ = std::max(amax_, other.result().at(0)); }
  io::Json state() const override { return {{"amax", amax_}, {"calls", calls_}}; }
  void restore(const io::Json& state, const std::string& where) override {
    const auto number = [&](const char* key) {
      const io::Json value = state.is_object() ? state.value(key, io::Json()) : io::Json();
      if (!value.is_number() || !(value.get<double>() >= 0) || value.get<double>() > 3.4028234663852886e38)
        bad_state(where + "." + key, "a number >= 0", value);
      return value;
    };
    amax_ = number("amax").get<float>();
    const io::Json calls = number("calls");
    if (!calls.is_number_integer()) bad_state(where + ".calls", "an integer", calls);
    calls_ = calls.get<std::int64_t>();
  }

 private:
  /// Files of an earlier, longer run would look like this run's last calls.
  void put_earlier_run_aside() const {
    if (!std::filesystem::exists(folder_) || std::filesystem::is_empty(folder_)) return;
    std::filesystem::rename(folder_, backup_path(folder_.parent_path(), folder_.filename().string()));
  }

  std::filesystem::path folder_;
  std::string stem_;
  std::int64_t limit_;
  std::shared_ptr<std::atomic<std::int64_t>> bytes_saved_;
  std::int64_t calls_ = 0;
  float amax_ = 0.0f;
};

}  // namespace

std::unique_ptr<Observer> make_built_in(std::string_view name, const ObserverContext& context) {
  const bool heads = context.head_dim.has_value();  // readers of a cache take its values for heads
  if (name == "maxabs" || (name == "maxabs_per_channel" && heads))
    return std::make_unique<MaxAbs>(context.per_expert ? std::int64_t{0} : context.head_dim);
  if (name == "maxabs_per_channel") return std::make_unique<MaxAbsPerChannel>(context);
  if (name == "save") return std::make_unique<Save>(context);
  if (name == "shape") return std::make_unique<Shape>();
  // The others keep a histogram, and differ in what they read off it at the end.
  if (name == "histogram") return make(context, [](const Histogram& h) { return h.amax(); });
  if (name == "percentile")
    return make(context, [percent = context.parameter(kPercentile)](const Histogram& h) {
      return percentile_threshold(h, percent);
    });
  const Fp8Target target{context.format, context.fp8_max};
  if (name == "mse") return make(context, [target](const Histogram& h) { return mse_threshold(h, target); });
  return make(context, [target](const Histogram& h) { return kl_threshold(h, target); });
}

}  // namespace fp8::measure
