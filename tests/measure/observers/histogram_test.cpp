// SPDX-License-Identifier: Apache-2.0
// Counts against a plain recount, whatever the order, the division into calls and the order of merging.
#include "fp8/measure/files/histogram.h"

#include <random>

#include "fp8/measure/files/observer_types.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::measure {
namespace {

using kernels::FloatType;

std::vector<float> normal(std::size_t n, std::uint32_t seed, float sigma = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0.0f, sigma);
  std::vector<float> values(n);
  for (auto& v : values) v = distribution(generator);
  return values;
}

void add(Histogram& h, const std::vector<float>& values) {
  h.add(values.data(), FloatType::F32, static_cast<std::int64_t>(values.size()));
}

Histogram histogram_of(const std::vector<float>& values, int bins = 2048) {
  Histogram h(bins);
  add(h, values);
  return h;
}

/// Each value put into its bin by comparing with the edges.
void expect_counts(const Histogram& h, const std::vector<float>& values) {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(h.bins()));
  std::uint64_t zeros = 0;
  for (float v : values) {
    const double magnitude = std::fabs(static_cast<double>(v));
    if (magnitude == 0) {
      ++zeros;
      continue;
    }
    int low = 0, high = h.bins();  // edge(low) <= magnitude < edge(high)
    while (high - low > 1) (h.edge((low + high) / 2) <= magnitude ? low : high) = (low + high) / 2;
    ++counts[static_cast<std::size_t>(low)];
  }
  EXPECT_EQ(h.counts(), counts);
  EXPECT_EQ(h.zeros(), zeros);
  EXPECT_EQ(h.total(), values.size());
}

TEST(Histogram, CountsEveryValueInItsBin) {
  for (const int bins : {16, 1000, 2048, 65536}) {
    auto values = normal(100000, 1);
    values.insert(values.end(), {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 4.0f, 8.0f, 1e-45f});
    const auto h = histogram_of(values, bins);
    EXPECT_EQ(h.amax(), 8.0f);
    EXPECT_EQ(h.range(), 16.0);
    expect_counts(h, values);
  }
}

TEST(Histogram, TakesEveryFloatingType) {
  std::vector<std::uint16_t> bf16, f16;
  std::vector<float> from_bf16, from_f16;
  for (float v : normal(5000, 2)) {
    bf16.push_back(kernels::f32_to_bf16(v)), from_bf16.push_back(kernels::bf16_to_f32(bf16.back()));
    f16.push_back(kernels::f32_to_f16(v)), from_f16.push_back(kernels::f16_to_f32(f16.back()));
  }
  Histogram a, b;
  a.add(bf16.data(), FloatType::BF16, 5000);
  b.add(f16.data(), FloatType::F16, 5000);
  EXPECT_EQ(a, histogram_of(from_bf16));
  EXPECT_EQ(b, histogram_of(from_f16));
}

TEST(Histogram, DoesNotDependOnOrderNorOnCalls) {
  auto values = normal(30000, 3);
  values[17] = 1e6f, values[20000] = -3e37f, values[5] = 1e-40f;
  const auto whole = histogram_of(values);
  expect_counts(whole, values);
  std::mt19937 generator(4);
  for (int i = 0; i < 5; ++i) {
    std::shuffle(values.begin(), values.end(), generator);
    Histogram h;
    for (std::size_t begin = 0; begin < values.size();) {
      const std::size_t end = std::min(values.size(), begin + generator() % 7000);
      add(h, {values.begin() + static_cast<std::ptrdiff_t>(begin), values.begin() + static_cast<std::ptrdiff_t>(end)});
      begin = end;
    }
    EXPECT_EQ(h, whole);
  }
}

TEST(Histogram, MergingInAnyOrderIsOneHistogramOfAll) {
  const std::vector<std::vector<float>> parts = {
      normal(1000, 5), normal(2000, 6, 1e-5f), {0, 0}, {}, normal(500, 7, 1e6f)};
  std::vector<float> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  std::vector<int> order = {0, 1, 2, 3, 4};
  do {
    Histogram h;
    for (int i : order) h.merge(histogram_of(parts[static_cast<std::size_t>(i)]));
    ASSERT_EQ(h, histogram_of(all));
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_THROW(Histogram(16).merge(Histogram(32)), std::invalid_argument);
}

TEST(Histogram, NothingAndZerosHaveNoRange) {
  Histogram h;
  add(h, {});
  EXPECT_EQ(h, Histogram());
  add(h, {0.0f, -0.0f});
  EXPECT_EQ(h.range(), 0.0);
  EXPECT_EQ(h.amax(), 0.0f);
  EXPECT_EQ(h.zeros(), 2u);
}

TEST(Histogram, RefusesWhatItCannotCount) {
  EXPECT_THROW(Histogram(15), std::invalid_argument);
  EXPECT_THROW(Histogram(65537), std::invalid_argument);
  EXPECT_THROW(histogram_of({1.0f, INFINITY}), std::invalid_argument);
  EXPECT_THROW(histogram_of({1.0f, NAN}), std::invalid_argument);
}

TEST(Histogram, JsonRestoresEveryBit) {
  for (const auto& values :
       {normal(3000, 8), std::vector<float>{0.0f}, std::vector<float>{}, std::vector<float>{1e-45f, 3.4e38f}}) {
    const auto h = histogram_of(values);
    const auto text = h.to_json().dump();
    EXPECT_EQ(Histogram::from_json(io::parse_json(text, "state"), "state"), h) << text;
  }
}

/// `json` with a value of its own: "KEY VALUE".
io::Json changed(io::Json json, const std::string& text) {
  const auto key = text.substr(0, text.find(' '));
  json[key] = io::parse_json(text.substr(key.size()), key);
  return json;
}

TEST(Histogram, JsonOfAnotherMakingIsRefused) {
  const auto good = histogram_of({1.0f, 0.25f, 0.0f}).to_json();
  EXPECT_GOLDEN(error_of<io::Error>([&] { Histogram::from_json(changed(good, text), "F: m.input0"); }));
  EXPECT_THROW(Histogram::from_json(io::Json::array(), "F"), io::Error);
}

// What a QUANT_CONFIG's observer may be, and which measurements it reads.

/// A measurement of one module with that input.
void write_one_module(const std::filesystem::path& prefix, const std::string& observer, float amax) {
  write_measurements(prefix.string(), {.modules = {{"a", {{amax}}, std::nullopt, std::nullopt}}}, {observer, {}});
}

TEST(ConfiguredObserver, QuantizingReadsTheMeasurementOfTheConfigsObserver) {
  const test::TempDir folder;
  write_one_module(folder / "s", "maxabs", 1.0f);
  write_one_module(folder / "s", "percentile", 2.0f);
  const auto input = [&](io::Json json, const std::string& where = {}) {
    if (!json.contains("dump_stats_path")) json["dump_stats_path"] = (folder / "s").string();
    const auto file = measurements_for(configs::parse_quant_config(json, "c.json"), where);
    return std::pair(file.observer, file.modules.at(0).inputs.at(0).at(0));
  };
  const std::pair<std::string, float> maxabs{"maxabs", 1.0f}, percentile{"percentile", 2.0f};
  EXPECT_EQ(input({}), maxabs);
  EXPECT_EQ(input({{"observer", "percentile"}}), percentile);
  EXPECT_EQ(input({{"observer", "percentile"}}, folder.path().string()), percentile);
  EXPECT_REFUSED(input({{"observer", "kl"}}), "s_hooks_kl.json: no such file");
  EXPECT_REFUSED(input({{"dump_stats_path", ""}}),
                 "key 'dump_stats_path': found \"\", but scale_method MAXABS_HW reads measurements there");
  EXPECT_EQ(input({{"dump_stats_path", ""}}, (folder / "s").string()), maxabs) << "a place that is named needs no path";
  for (const char* observer : {"shape", "save"})
    EXPECT_REFUSED(input({{"observer", observer}}), std::string("key 'observer': found \"") + observer + "\"");
  const test::TempDir other;
  write_one_module(other / "s", "percentile", 2.0f);
  EXPECT_EQ(input({}, other.path().string()), percentile) << "the config names no observer";
  EXPECT_REFUSED(input({{"observer", "maxabs"}}, other.path().string()), "key 'observer': found \"maxabs\"",
                 "holds measurements of observer 'percentile'");
}

TEST(ConfiguredObserver, IsOneOfTheTable) {
  const auto options = parse_options();
  const auto knows = [&](const std::string& name) {
    return std::any_of(options.observers.begin(), options.observers.end(),
                       [&](const auto& o) { return o.name == name; });
  };
  EXPECT_TRUE(knows("maxabs") && knows("kl"));
  EXPECT_FALSE(knows("kurtosis"));
}

// Whether scales can be made of what an observer kept is asked of the table.

configs::QuantConfig config_with(const std::string& observer, io::Json keys = io::Json::object()) {
  keys["observer"] = observer;
  return configs::parse_quant_config(keys, "q.json", parse_options());
}

MeasurementFile file_of(const std::string& observer, std::vector<Amax> inputs = {{1.0f}}) {
  return {.modules = {{"m", std::move(inputs), std::nullopt, std::nullopt}}, .observer = observer};
}

TEST(Kept, NoScaleIsMadeOfTheFilesOfShapeAndSave) {
  for (const auto& [observer, keeps] : {std::pair{"shape", "sizes"}, std::pair{"save", "tensors for a look at them"}}) {
    EXPECT_EQ(observer_problem(config_with(observer)),
              std::string("q.json: key 'observer': found \"") + observer + "\", which keeps " + keeps +
                  " and is no ground for scales, allowed where scales are made of measurements: maxabs, "
                  "maxabs_per_channel, histogram, percentile, mse, kl");
    EXPECT_EQ(observer_problem(config_with(observer, {{"scale_method", "unit_scale"}})), "");
    EXPECT_EQ(
        observer_problem(config_with(observer, {{"scale_method", "maxabs_pow2"}, {"dynamic_quantization", true}})), "");
    const auto config = config_with(observer, {{"mode", "AUTO"}});
    EXPECT_REFUSED(refuse_observer_without_amax(config), "key 'observer'");
    MeasurementFile file = file_of(observer);
    if (file.observer == "shape") file.mode = MeasurementMode::shape;
    EXPECT_REFUSED(
        require_amax(file), "measurements: found those of observer '", keeps,
        "is no ground for scales; measure with maxabs, maxabs_per_channel, histogram, percentile, mse or kl");
  }
  for (const char* observer : {"maxabs", "maxabs_per_channel", "histogram", "percentile", "mse", "kl"}) {
    EXPECT_EQ(observer_problem(config_with(observer)), "") << observer;
    EXPECT_NO_THROW(require_amax(file_of(observer))) << observer;
  }
  EXPECT_REFUSED(require_amax(file_of("maxabs", {{1.0f, 2.0f}})),
                 "measurements: m.inputs[0]: expected one amax, found 2");
}

TEST(Kept, ThresholdsAndHeads) {
  for (const char* observer : {"", "maxabs", "maxabs_per_channel", "histogram", "shape", "save"})
    EXPECT_FALSE(has_thresholds(file_of(observer))) << observer;
  for (const char* observer : {"percentile", "mse", "kl", "of_my_own"})
    EXPECT_TRUE(has_thresholds(file_of(observer))) << observer;
  for (const char* observer : {"", "maxabs", "maxabs_per_channel"})
    EXPECT_TRUE(has_heads(file_of(observer))) << observer;
  for (const char* observer : {"histogram", "percentile", "of_my_own"})
    EXPECT_FALSE(has_heads(file_of(observer))) << observer;
}

TEST(ObserverStates, MalformedFilesAreRefusedWithFileAndKey) {
  const test::TempDir dir;
  const auto path = dir / "p_hooks_kl.observers";
  const io::Json good =
      to_json({"kl", recipes::Format::E4M3, 448, {{"bins", 64}}, {{"m", {{"inputs", io::Json::array()}}}}});
  io::write_json(path, good);
  EXPECT_EQ(to_json(read_observer_states(path)), good);
  const auto error = [&](const std::string& text) {
    io::write_json(path, changed(good, text));
    const std::string found = error_of([&] { read_observer_states(path); });
    EXPECT_THAT(found, HasSubstr(path.string()));
    return found;
  };
  EXPECT_GOLDEN(error(text));
  io::write_json(path, io::Json::array());
  EXPECT_REFUSED(read_observer_states(path), path.string());
}

// Thresholds against computations that know nothing of histograms: sorted data, and casts in double precision.

/// |v| rounded to E4M3 (bias 7, 3 bits) or E5M2 (bias 15, 2 bits) in double precision, saturating.
double rounded(double v, double max, kernels::Format format) {
  const int bits = format == kernels::Format::E4M3 ? 3 : 2, lowest = format == kernels::Format::E4M3 ? -6 : -14;
  int e = 0;
  std::frexp(v, &e);
  const double step = std::ldexp(1.0, std::max(e - 1, lowest) - bits);
  return std::min(std::nearbyint(v / step) * step, max);
}

/// The mean squared error of casting the values themselves with a threshold.
double cast_error(const std::vector<float>& values, double threshold, const Fp8Target& target) {
  const double scale_inv = threshold / target.max;
  double sum = 0;
  for (float v : values) {
    const double m = std::fabs(v), d = m - rounded(m / scale_inv, target.max, target.format) * scale_inv;
    sum += d * d;
  }
  return sum / static_cast<double>(values.size());
}

TEST(Thresholds, PercentileIsTheQuantileToOneBin) {
  for (const auto& values : {normal(20000, 1), std::vector<float>{3.0f}, std::vector<float>(50, -2.0f)}) {
    auto sorted = values;
    for (auto& v : sorted) v = std::fabs(v);
    std::sort(sorted.begin(), sorted.end());
    const auto h = histogram_of(values);
    for (const double percent : {0.01, 1.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0}) {
      const auto rank = static_cast<std::size_t>(std::ceil(percent / 100 * static_cast<double>(sorted.size()) - 1e-9));
      const double quantile = sorted[std::max<std::size_t>(rank, 1) - 1];
      const double t = percentile_threshold(h, percent);
      EXPECT_GE(t, quantile) << percent;
      EXPECT_LE(t, quantile + h.range() / h.bins()) << percent;
      EXPECT_LE(t, sorted.back()) << percent;
    }
    EXPECT_EQ(percentile_threshold(h, 100), sorted.back());
  }
}

TEST(Thresholds, PercentileCutsAnOutlierOff) {
  auto values = normal(100000, 2);
  values[77] = 1000.0f;
  EXPECT_LT(percentile_threshold(histogram_of(values), 99.99), 6.0f);
  EXPECT_EQ(percentile_threshold(histogram_of(values), 100), 1000.0f);
}

TEST(Thresholds, PercentileCountsZerosButNeverGivesZero) {
  std::vector<float> values(1000, 0.0f);
  values[1] = 2.0f, values[2] = 100.0f;
  EXPECT_EQ(percentile_threshold(histogram_of(values), 99.9), histogram_of(values).edge(33));  // 2 lies in bin 32
  EXPECT_EQ(percentile_threshold(histogram_of(values), 50), histogram_of(values).edge(33));
}

TEST(Thresholds, PercentilesOutOfRangeAreRefused) {
  for (const double percent : {0.0, -1.0, 100.5, std::nan("")})
    EXPECT_THROW(percentile_threshold(Histogram(), percent), std::invalid_argument);
}

TEST(Thresholds, MseIsTheBestOfAllThresholdsForTheValues) {
  std::map<std::string, std::vector<float>> data = {{"normal", normal(20000, 3)}};
  auto outliers = normal(20000, 4);
  for (int i = 0; i < 4; ++i) outliers[static_cast<std::size_t>(i)] *= 8.0f;
  data["outliers"] = outliers;
  data["uniform"] = std::vector<float>(4096);
  for (std::size_t i = 0; i < 4096; ++i) data["uniform"][i] = static_cast<float>(i) / 4096.0f;
  for (const auto& [name, values] : data)
    for (const Fp8Target target :
         {Fp8Target{}, Fp8Target{kernels::Format::E4M3, 240.0f}, Fp8Target{kernels::Format::E5M2, 57344.0f}}) {
      const auto h = histogram_of(values);
      double least = cast_error(values, h.amax(), target);
      for (int k = 1; k <= 1024; ++k) least = std::min(least, cast_error(values, h.amax() * (k / 1024.0), target));
      const double ours = cast_error(values, mse_threshold(h, target), target);
      EXPECT_LE(ours, least * 1.02) << name << ", max " << target.max;
      EXPECT_LE(ours, cast_error(values, h.amax(), target) * 1.002) << name;  // the bins' share
    }
}

TEST(Thresholds, MseClipsWhereThatPaysAndNotOtherwise) {
  // 2^20 values of +-1 and a single 1.2: 1 is no code of 1.2's scale, a threshold of 1 makes all but one exact.
  std::vector<float> values(1 << 20, 1.0f);
  values[9] = 1.2f;
  const float t = mse_threshold(histogram_of(values), {});
  EXPECT_LT(cast_error(values, t, {}), cast_error(values, 1.2, {}) / 5);
  // One value far above all: clipping it costs more than everything else together.
  auto far = normal(1000, 5);
  far[3] = 1e6f;
  EXPECT_GT(mse_threshold(histogram_of(far), {}), 9.5e5f);
}

/// KL(P || Q) as in the header, from the counts, bin by bin.
double divergence(const Histogram& h, int below, const Fp8Target& target) {
  const double threshold = std::min<double>(h.edge(below), h.amax());
  std::vector<double> p(static_cast<std::size_t>(below)), q(p);
  std::map<double, std::pair<double, int>> codes;  // value of the code -> counts of its bins, bins that hold any
  const auto code = [&](int i) {
    return rounded((h.edge(i) + h.edge(i + 1)) / 2 / threshold * target.max, target.max, target.format);
  };
  double all = 0, inside = 0;
  for (int i = 0; i < h.bins(); ++i) {
    const auto count = static_cast<double>(h.counts()[static_cast<std::size_t>(i)]);
    all += count;
    p[static_cast<std::size_t>(std::min(i, below - 1))] += count;
    if (i >= below) continue;
    inside += count;
    auto& group = codes[code(i)];
    group.first += count;
    group.second += count > 0;
  }
  double kl = 0;
  for (int i = 0; i < below; ++i) {
    const auto [sum, held] = codes[code(i)];
    const double share = p[static_cast<std::size_t>(i)] / all;
    if (share == 0) continue;
    if (h.counts()[static_cast<std::size_t>(i)] == 0) return INFINITY;
    kl += share * std::log(share / (sum / held / inside));
  }
  return kl;
}

TEST(Thresholds, KlIsTheLeastDivergence) {
  for (const std::uint32_t seed : {6u, 7u}) {
    auto values = normal(50000, seed);
    for (int i = 0; i < 3; ++i) values[static_cast<std::size_t>(i)] *= 6.0f;
    const auto h = histogram_of(values);
    for (const Fp8Target target : {Fp8Target{}, Fp8Target{kernels::Format::E5M2, 57344.0f}}) {
      const float t = kl_threshold(h, target);
      int used = h.bins();
      while (h.edge(used - 1) > h.amax()) --used;
      double least = INFINITY;
      float best = 0;
      for (int k = 256; k >= 1; --k) {
        const int below = used * k / 256;
        const double kl = divergence(h, below, target);
        if (kl < least * (1 - 1e-9)) least = kl, best = std::min(static_cast<float>(h.edge(below)), h.amax());
      }
      EXPECT_EQ(t, best);
    }
  }
}

TEST(Thresholds, AnAffordableOneCostsNoMoreThanTheMaximum) {
  auto tail = normal(100000, 8), spike = tail, step = std::vector<float>(1 << 20, 1.0f);
  for (int i = 0; i < 20; ++i) tail[static_cast<std::size_t>(i)] *= 10.0f;
  spike[77] = 300.0f;
  step[9] = 1.2f;
  for (const auto& values : {normal(20000, 9), tail, spike, step}) {
    const auto h = histogram_of(values);
    for (const Fp8Target target :
         {Fp8Target{}, Fp8Target{kernels::Format::E4M3, 240.0f}, Fp8Target{kernels::Format::E5M2, 57344.0f}}) {
      const double whole = cast_error(values, h.amax(), target);
      for (const double percent : {1.0, 50.0, 99.0, 99.99}) {
        const float wanted = percentile_threshold(h, percent), t = affordable_threshold(h, wanted, target);
        EXPECT_GE(t, wanted);
        EXPECT_LE(t, h.amax());
        EXPECT_LE(cast_error(values, t, target), whole * 1.002)
            << percent << ", max " << target.max;  // the bins' share
        double clipped = 0;                        // the share of the values above it
        for (const float v : values) {
          if (std::fabs(v) > wanted)
            clipped += std::pow(std::fabs(v) - wanted, 2.0) / static_cast<double>(values.size());
        }
        if (cast_error(values, wanted, target) + 3 * clipped < whole * 0.99) {
          EXPECT_EQ(t, wanted) << "it costs nothing";
        }
      }
      EXPECT_EQ(affordable_threshold(h, h.amax(), target), h.amax());
    }
  }
  EXPECT_GT(affordable_threshold(histogram_of(spike), 5.0f, {}), 290.0f) << "a single value far above all";
  EXPECT_EQ(affordable_threshold(histogram_of(step), 1.0f, {}), 1.0f) << "clipping pays";
  EXPECT_EQ(affordable_threshold(Histogram(), 0.0f, {}), 0.0f);
}

TEST(Thresholds, AdversarialDataGivesAThresholdWithinTheRange) {
  std::vector<std::vector<float>> data = {
      {0.0f}, {1e-45f}, {3.4e38f}, {1e-45f, 3.4e38f}, std::vector<float>(7, -5.0f), std::vector<float>(1000, 0.0f), {}};
  data.push_back(std::vector<float>(100000, 1e-3f));
  data.back()[5] = 1e30f;
  for (const auto& values : data) {
    const auto h = histogram_of(values);
    for (const float t : {percentile_threshold(h, 99.99), mse_threshold(h, {}), kl_threshold(h, {})}) {
      EXPECT_TRUE(std::isfinite(t));
      EXPECT_LE(t, h.amax());
      EXPECT_EQ(t > 0, h.amax() > 0);
    }
  }
}

}  // namespace
}  // namespace fp8::measure
