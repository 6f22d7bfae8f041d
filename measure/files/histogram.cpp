// SPDX-License-Identifier: Apache-2.0
// Counting, merging and storing histograms (histogram.h says what one is).
#include "fp8/measure/files/histogram.h"

#include <charconv>
#include <mutex>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::measure {
namespace {

constexpr std::int64_t kGrain = 1 << 16;  // values per task: worth the task's own counters

/// e with 2^(e-1) <= v < 2^e.
int exponent_above(float v) {
  int e = 0;
  std::frexp(v, &e);
  return e;
}

[[noreturn]] void bad(const std::string& where, const std::string& what) { io::fail<io::Error>("{}: {}", where, what); }

/// "3,,,1a" -> counts[0] = 3, counts[3] = 26.
void parse_counts(std::string_view text, std::vector<std::uint64_t>& counts, const std::string& where) {
  std::size_t bin = 0;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view digits = text.substr(0, comma);
    if (bin >= counts.size()) bad(where, io::message("expected at most {} counts, found more", counts.size()));
    if (!digits.empty()) {
      const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), counts[bin], 16);
      if (end.ec != std::errc() || end.ptr != digits.data() + digits.size() || counts[bin] >> 52 != 0)
        bad(where, "expected hexadecimal counts below 2^52, found " + io::in_quotes(digits));
    }
    ++bin;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
}

std::uint64_t count_from(const io::Json& json, const char* key, const std::string& where) {
  const auto value = json.value(key, io::Json());
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() >> 52 == 0
                                               : value.is_number_integer() && value.get<std::int64_t>() >= 0;
  if (!fits) bad(where + "." + key, "expected an integer from 0 to 2^52 - 1");
  return value.get<std::uint64_t>();
}

constexpr int kCandidates = 256;
constexpr int kPointsPerBin = 4;  // a bin's mean error is taken at so many points of it
constexpr double kUnseen = 4;  // other data has more large values than the calibration saw: clipped ones count so often

/// Bins in use, from the first: the largest value lies in the last of them.
int used_bins(const Histogram& h) {
  return std::min(h.bins(), static_cast<int>(h.amax() * (h.bins() / h.range())) + 1);
}

/// Codes of `values` cast with a threshold, and the values that they stand for.
class Caster {
 public:
  explicit Caster(const Fp8Target& target) : target_(target) {}

  void cast(const std::vector<float>& values, float threshold) {
    const auto n = static_cast<std::int64_t>(values.size());
    codes_.resize(values.size());
    decoded_.resize(values.size());
    const float scale_inv = std::max(threshold / target_.max, std::numeric_limits<float>::min());
    const float scale = 1.0f / scale_inv;
    kernels::cast_to_fp8(kernels::dense_cast(values.data(), 1, n, codes_.data(), target_.format, target_.max, &scale));
    kernels::DecodeArgs decode;
    decode.codes = codes_.data();
    decode.rows = 1, decode.cols = n;
    decode.format = target_.format;
    decode.y = decoded_.data(), decode.scale_inv = &scale_inv;
    kernels::decode_from_fp8(decode);
  }
  const std::vector<std::uint8_t>& codes() const { return codes_; }
  const std::vector<float>& decoded() const { return decoded_; }

 private:
  Fp8Target target_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> decoded_;
};

/// E(t) of histogram.h, times the number of values.
class SquaredError {
 public:
  SquaredError(const Histogram& h, const Fp8Target& target) : caster_(target) {
    for (int i = 0; i < h.bins(); ++i) {
      if (h.counts()[i] == 0) continue;
      const double low = h.edge(i), width = std::min<double>(h.edge(i + 1), h.amax()) - low;
      for (int k = 0; k < kPointsPerBin; ++k) {
        points_.push_back(static_cast<float>(low + width * (k + 0.5) / kPointsPerBin));
        weights_.push_back(static_cast<double>(h.counts()[i]) / kPointsPerBin);
      }
    }
  }

  /// Values above the threshold count `clipped` times.
  double at(float threshold, double clipped = 1) {
    caster_.cast(points_, threshold);
    double error = 0;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const double difference = static_cast<double>(points_[i]) - caster_.decoded()[i];
      error += (points_[i] > threshold ? clipped : 1.0) * weights_[i] * difference * difference;
    }
    return error;
  }

 private:
  std::vector<float> points_;
  std::vector<double> weights_;
  Caster caster_;
};

/// The k-th of the thresholds that are tried; the last is amax.
float candidate(const Histogram& h, int k) {
  return static_cast<float>(static_cast<double>(h.amax()) * k / kCandidates);
}

/// KL(P || Q) of the first `below` bins; infinite where Q has nothing and P something.
double divergence(const Histogram& h, int below, int used, const std::vector<std::uint8_t>& codes) {
  const auto& counts = h.counts();
  double outliers = 0, inside = 0;
  for (int i = 0; i < used; ++i) (i < below ? inside : outliers) += static_cast<double>(counts[i]);
  if (inside == 0) return std::numeric_limits<double>::infinity();
  double kl = 0;
  for (int begin = 0, end; begin < below; begin = end) {  // bins of one code: magnitudes rise, so do codes
    double sum = 0;
    int held = 0;
    for (end = begin; end < below && codes[end] == codes[begin]; ++end) {
      sum += static_cast<double>(counts[end]);
      held += counts[end] != 0;
    }
    const double q = held > 0 ? sum / held / inside : 0.0;
    for (int i = begin; i < end; ++i) {
      const double p = (static_cast<double>(counts[i]) + (i == below - 1 ? outliers : 0.0)) / (inside + outliers);
      if (p == 0.0) continue;
      if (counts[i] == 0) return std::numeric_limits<double>::infinity();
      kl += p * std::log(p / q);
    }
  }
  return kl;
}

}  // namespace

Histogram::Histogram(int bins) {
  if (bins < 16 || bins > 65536) io::fail<std::invalid_argument>("bins: found {}, allowed: 16 to 65536", bins);
  counts_.resize(static_cast<std::size_t>(bins));
}

double Histogram::range() const { return exponent_ == kNoExponent ? 0.0 : std::ldexp(1.0, exponent_); }
double Histogram::edge(int i) const { return range() * i / bins(); }

void Histogram::grow(int exponent) {
  if (exponent_ == kNoExponent) exponent_ = exponent;
  if (exponent <= exponent_) return;
  const int shift = std::min(exponent - exponent_, 40);  // 65536 bins are one after 16
  for (std::size_t i = 1; i < counts_.size(); ++i) {
    const std::size_t to = i >> shift;
    if (to != i) counts_[to] += std::exchange(counts_[i], 0);
  }
  exponent_ = exponent;
}

void Histogram::add(const void* x, kernels::FloatType type, std::int64_t n) {
  const float amax = kernels::amax(x, type, n);
  if (!std::isfinite(amax)) throw std::invalid_argument("histogram: expected finite values");
  total_ += static_cast<std::uint64_t>(n);
  if (amax == 0.0f) {
    zeros_ += static_cast<std::uint64_t>(n);
    return;
  }
  amax_ = std::max(amax_, amax);
  grow(exponent_above(amax));
  const double per_unit = bins() / range();  // a power of two times bins: v * per_unit is exact
  std::mutex mutex;
  kernels::parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint64_t> counts(counts_.size());
    std::uint64_t zeros = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const double v = std::fabs(kernels::load_element(x, type, i));
      if (v == 0.0) {
        ++zeros;
      } else {
        ++counts[static_cast<std::size_t>(v * per_unit)];
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    zeros_ += zeros;
    for (std::size_t i = 0; i < counts.size(); ++i) counts_[i] += counts[i];
  });
}

void Histogram::merge(const Histogram& other) {
  if (other.bins() != bins())
    io::fail<std::invalid_argument>("histograms of {} and {} bins can't be merged", bins(), other.bins());
  zeros_ += other.zeros_;
  total_ += other.total_;
  if (other.exponent_ == kNoExponent) return;
  Histogram larger = other;
  larger.grow(exponent_);
  grow(larger.exponent_);
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += larger.counts_[i];
  amax_ = std::max(amax_, other.amax_);
}

io::Json Histogram::to_json() const {
  std::string counts;
  std::size_t used = counts_.size();
  while (used > 0 && counts_[used - 1] == 0) --used;
  for (std::size_t i = 0; i < used; ++i) {
    char digits[16];
    if (i != 0) counts += ',';
    if (counts_[i] != 0) counts.append(digits, std::to_chars(digits, digits + sizeof digits, counts_[i], 16).ptr);
  }
  return {{"bins", bins()},
          {"exponent", exponent_ == kNoExponent ? io::Json() : io::Json(exponent_)},
          {"amax", amax_},
          {"zeros", zeros_},
          {"counts", counts}};
}

Histogram Histogram::from_json(const io::Json& json, const std::string& where) {
  if (!json.is_object()) bad(where, std::string("expected a histogram, found ") + json.type_name());
  const auto bins = count_from(json, "bins", where);
  if (bins < 16 || bins > 65536) bad(where + ".bins", io::message("found {}, allowed: 16 to 65536", bins));
  Histogram h(static_cast<int>(bins));
  h.zeros_ = count_from(json, "zeros", where);
  const auto counts = json.value("counts", io::Json());
  if (!counts.is_string()) bad(where + ".counts", "expected a string");
  parse_counts(counts.get_ref<const std::string&>(), h.counts_, where + ".counts");
  h.total_ = h.zeros_;
  for (const auto count : h.counts_) h.total_ += count;
  const auto amax = json.value("amax", io::Json());
  if (!amax.is_number() || !(amax.get<double>() >= 0) || amax.get<double>() > 3.4028234663852886e38)
    bad(where + ".amax", "expected a float >= 0");
  h.amax_ = amax.get<float>();
  // The largest value says what the exponent is, and lies in the last bin that is not empty.
  if (h.amax_ > 0.0f) h.exponent_ = exponent_above(h.amax_);
  const auto exponent = json.value("exponent", io::Json());
  const bool agrees = h.amax_ > 0.0f ? exponent == io::Json(h.exponent_) : exponent.is_null();
  std::size_t last = h.counts_.size();
  while (last > 0 && h.counts_[last - 1] == 0) --last;
  const auto bin = h.amax_ > 0.0f ? static_cast<std::size_t>(h.amax_ * (h.bins() / h.range())) + 1 : 0;
  if (!agrees || last != bin) bad(where, "amax, exponent and counts do not belong together");
  return h;
}

// Clipping thresholds from histograms. histogram.h has the formulas and where they come from.

float percentile_threshold(const Histogram& h, double percent) {
  if (!(percent > 0.0 && percent <= 100.0))
    io::fail<std::invalid_argument>("percentile: found {}, allowed: above 0, at most 100", percent);
  if (h.amax() == 0.0f) return 0.0f;
  // 1e-12: 99.99 % of 10000 values are 9999, whatever the product's last bit.
  const double wanted = percent / 100.0 * static_cast<double>(h.total()) * (1.0 - 1e-12);
  double seen = static_cast<double>(h.zeros());
  for (int i = 0; i < h.bins(); ++i) {
    if (h.counts()[i] == 0) continue;  // a threshold of 0 would clip everything: it stays above the lowest value
    seen += static_cast<double>(h.counts()[i]);
    if (seen >= wanted) return std::min(static_cast<float>(h.edge(i + 1)), h.amax());
  }
  return h.amax();
}

float mse_threshold(const Histogram& h, const Fp8Target& target) {
  if (h.amax() == 0.0f) return 0.0f;
  SquaredError error(h, target);
  float best = h.amax();
  double least = std::numeric_limits<double>::infinity();
  for (int k = kCandidates; k >= 1; --k) {
    const float threshold = candidate(h, k);
    const double found = error.at(threshold);
    if (found < least) least = found, best = threshold;
  }
  return best;
}

float affordable_threshold(const Histogram& h, float threshold, const Fp8Target& target) {
  if (!(threshold < h.amax())) return h.amax();
  SquaredError error(h, target);
  const double allowed = error.at(h.amax());
  if (error.at(threshold, kUnseen) <= allowed) return threshold;
  for (int k = 1; k < kCandidates; ++k)
    if (candidate(h, k) > threshold && error.at(candidate(h, k), kUnseen) <= allowed) return candidate(h, k);
  return h.amax();
}

float kl_threshold(const Histogram& h, const Fp8Target& target) {
  if (h.amax() == 0.0f) return 0.0f;
  const int used = used_bins(h);
  std::vector<float> centers;
  for (int i = 0; i < used; ++i) centers.push_back(static_cast<float>((h.edge(i) + h.edge(i + 1)) / 2));
  Caster caster(target);
  float best = h.amax();
  double least = std::numeric_limits<double>::infinity();
  const int candidates = std::min(kCandidates, used);
  for (int k = candidates; k >= 1; --k) {
    const int below = static_cast<int>(static_cast<std::int64_t>(used) * k / candidates);
    const float threshold = std::min(static_cast<float>(h.edge(below)), h.amax());
    caster.cast(centers, threshold);
    const double kl = divergence(h, below, used, caster.codes());
    if (kl < least) least = kl, best = threshold;
  }
  return best;
}

}  // namespace fp8::measure
