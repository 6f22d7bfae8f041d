// SPDX-License-Identifier: Apache-2.0
// Norms and gated activations that write their codes too: y as without, the codes of y by the reference, which rounds
// by search, and to the bit those of a cast afterwards; on every level, for odd sizes, rows apart with NaN between
// them, rows of zeros, infinities and NaN, memory that ends where the operands do.
#include "fp8/runtime/kernels/attention/decoder_math.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "runtime/kernels/cast_test.h"
#include "support/values.h"

namespace fp8::kernels {
namespace {

using namespace test;

constexpr std::int64_t kRows = 4, kGap = 3;
constexpr FloatType kTypes[] = {FloatType::BF16, FloatType::F32};
constexpr std::int64_t kSizes[] = {1, 7, 31, 32, 33, 100, 777};

/// Bytes of n elements, each of which is NaN.
class Elements {
 public:
  Elements(FloatType type, std::int64_t n) : type_(type), bytes_(static_cast<std::size_t>(n * size_of(type))) {
    std::memset(bytes_.data(), 0xFF, static_cast<std::size_t>(n * size_of(type)));
  }
  std::uint8_t* at(std::int64_t i) { return bytes_.data() + i * size_of(type_); }
  void set(std::int64_t i, float x) {
    const std::uint16_t half = f32_to_bf16(x);
    type_ == FloatType::BF16 ? std::memcpy(at(i), &half, 2) : std::memcpy(at(i), &x, 4);
  }

 private:
  FloatType type_;
  GuardedBuffer<std::uint8_t> bytes_;
};

/// Two operands [kRows, n] with kGap elements of NaN between rows, and a weight [n]: a row of numbers, one of zeros,
/// one with a NaN, one with an infinity.
struct Operands {
  FloatType type;
  std::int64_t n;
  Elements x, other, weight;

  Operands(FloatType type, std::int64_t n)
      : type(type), n(n), x(type, kRows * (n + kGap) - kGap), other(type, kRows * (n + kGap) - kGap), weight(type, n) {
    std::mt19937 random(static_cast<unsigned>(n));
    std::normal_distribution<float> normal(0.1f, 3);
    for (std::int64_t i = 0; i < n; ++i) {
      weight.set(i, normal(random));
      for (std::int64_t r = 0; r < kRows; ++r)
        x.set(r * stride() + i, r == 1 ? 0.0f : normal(random)), other.set(r * stride() + i, normal(random));
    }
    x.set(2 * stride() + n / 2, std::numeric_limits<float>::quiet_NaN());
    x.set(3 * stride() + n / 2, std::numeric_limits<float>::infinity());
  }
  std::int64_t stride() const { return n + kGap; }
};

struct Kernel {
  const char* name;
  std::function<void(Operands&, void* y, const CastArgs& cast)> run;
};

template <class Args>
Args args_of(Operands& p, void* y, const CastArgs& cast) {
  Args args;
  args.type = p.type, args.rows = kRows, args.n = p.n;
  args.y = y, args.cast = cast;
  return args;
}

template <class Args>
Args norm_args(Operands& p, void* y, const CastArgs& cast) {
  auto args = args_of<Args>(p, y, cast);
  args.x = p.x.at(0), args.x_stride = p.stride();
  args.weight = p.weight.at(0), args.eps = 1e-5f;
  return args;
}

const Kernel kKernels[] = {
    {"rms_norm", [](Operands& p, void* y, const CastArgs& cast) { rms_norm(norm_args<RmsNormArgs>(p, y, cast)); }},
    {"wide rms_norm",
     [](Operands& p, void* y, const CastArgs& cast) {
       auto args = norm_args<RmsNormArgs>(p, y, cast);
       args.wide = true, args.offset = 1;
       rms_norm(args);
     }},
    {"layer_norm",
     [](Operands& p, void* y, const CastArgs& cast) { layer_norm(norm_args<LayerNormArgs>(p, y, cast)); }},
    {"silu_mul",
     [](Operands& p, void* y, const CastArgs& cast) {
       auto args = args_of<SiluMulArgs>(p, y, cast);
       args.gate = p.x.at(0), args.up = p.other.at(0);
       args.gate_stride = args.up_stride = p.stride();
       silu_mul(args);
     }},
};

/// How one cast is asked for; scale 0: one per row.
struct Asked {
  Target target;
  float scale;
  bool round_product;
};

/// What two passes give, the second of them by the scalar code.
struct Separate {
  std::vector<std::uint8_t> y, codes;
  std::vector<float> scale_inv;

  Separate(const Kernel& kernel, Operands& p, const Asked& asked)
      : y(static_cast<std::size_t>(kRows * p.n * size_of(p.type))),
        codes(static_cast<std::size_t>(kRows * p.n)),
        scale_inv(kRows) {
    kernel.run(p, y.data(), {});
    const ScopedSimdLevel scalar(SimdLevel::scalar);
    CastArgs args = args_for(y.data(), p.type, static_cast<std::size_t>(p.n), asked.target, &asked.scale, codes.data());
    args.rows = kRows;
    args.vendor = asked.round_product;
    asked.scale == 0 ? cast_rows_dynamic(args, scale_inv.data()) : cast_to_fp8(args);
  }
  const void* row(const Operands& p, std::int64_t r) const { return y.data() + r * p.n * size_of(p.type); }
};

void expect_reference(const Separate& expected, const std::vector<std::uint8_t>& codes, const Operands& p,
                      const Asked& asked, const std::string& what) {
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto n = static_cast<std::size_t>(p.n);
    float scale = asked.scale;
    if (scale == 0) {
      if (r > 1) continue;  // NaN or infinite: as cast_rows_dynamic
      const float amax = reference(expected.row(p, r), p.type, n, {1.0f}, asked.target).amax;
      scale = amax == 0 ? 1.0f : 1.0f / (amax / asked.target.max);
    }
    const auto want = reference(expected.row(p, r), p.type, n, {scale}, asked.target, asked.round_product);
    const auto first = codes.begin() + r * p.n;
    expect_same({first, first + p.n}, want.codes, what + ", row " + std::to_string(r));
  }
}

void expect_two_passes(const Kernel& kernel, Operands& p, const Asked& asked, const std::string& what) {
  const Separate expected(kernel, p, asked);
  const std::size_t y_bytes = expected.y.size(), n = expected.codes.size();
  GuardedBuffer<std::uint8_t> y(y_bytes), codes(n);
  GuardedBuffer<float> scale_inv(kRows);
  CastArgs cast;
  cast.codes = codes.data();
  cast.format = asked.target.format, cast.max = asked.target.max;
  cast.scales = &asked.scale, cast.vendor = asked.round_product;
  if (asked.scale == 0) cast.grid = scale_inv.data();
  kernel.run(p, y.data(), cast);
  ASSERT_EQ(std::memcmp(y.data(), expected.y.data(), y_bytes), 0) << what;
  const std::vector<std::uint8_t> found(codes.data(), codes.data() + n);
  expect_same(found, expected.codes, what);
  if (asked.scale == 0) {
    ASSERT_EQ(std::memcmp(scale_inv.data(), expected.scale_inv.data(), kRows * sizeof(float)), 0) << what;
  }
  expect_reference(expected, found, p, asked, what);
}

TEST(RowCast, IsThatOfASecondPassOnEveryLevel) {
  for (const SimdLevel level : every_level()) {
    for (const Kernel& kernel : kKernels)
      for (FloatType type : kTypes)
        for (std::int64_t n : kSizes) {
          Operands p(type, n);
          for (const Target& target : kTargets)
            for (const float scale : {0.0f, 1.0f, 37.3f, 0x1p-12f})
              for (const bool round_product : {false, true}) {
                if (scale == 0 && round_product) continue;
                expect_two_passes(kernel, p, {target, scale, round_product},
                                  std::string(name_of(level)) + " " + kernel.name + " " + name_of(type) + " n " +
                                      std::to_string(n) + " to " + name_of(target.format) + " by " +
                                      std::to_string(scale));
                if (::testing::Test::HasFatalFailure()) return;
              }
        }
  }
}

TEST(RowCast, ThreadsChangeNoBit) {
  constexpr std::int64_t kMany = 200, n = 1000;
  Elements x(FloatType::BF16, kMany * n), weight(FloatType::BF16, n);
  for (std::int64_t i = 0; i < kMany * n; ++i) x.set(i, std::sin(static_cast<float>(i)));
  for (std::int64_t i = 0; i < n; ++i) weight.set(i, std::cos(static_cast<float>(i)));
  const auto run = [&](int threads) {
    const Threads scoped(threads);
    std::vector<std::uint16_t> y(kMany * n);
    std::vector<std::uint8_t> codes(kMany * n);
    std::vector<float> scale_inv(kMany);
    RmsNormArgs args;
    args.rows = kMany, args.n = args.x_stride = n;
    args.x = x.at(0), args.weight = weight.at(0), args.y = y.data();
    args.cast.codes = codes.data(), args.cast.grid = scale_inv.data();
    rms_norm(args);
    return std::pair(codes, scale_inv);
  };
  EXPECT_EQ(run(1), run(3));
}

TEST(RowCast, RefusesAMaxThatIsNoValueOfTheFormat) {
  Operands p(FloatType::BF16, 8);
  std::vector<std::uint8_t> y(kRows * 8 * 2), codes(kRows * 8);
  CastArgs cast;
  cast.codes = codes.data(), cast.max = 449;
  for (const Kernel& kernel : kKernels) EXPECT_THROW(kernel.run(p, y.data(), cast), std::invalid_argument);
  cast.codes = nullptr;  // no cast: not read
  for (const Kernel& kernel : kKernels) kernel.run(p, y.data(), cast);
}

// cast_rows_dynamic: the scale of each row by its formula, the codes by the reference with that scale.

TEST(CastRowsDynamic, ScalesEveryRowByItsOwnAmax) {
  struct Shape {
    std::size_t rows, cols;
  };
  for (Shape shape : {Shape{37, 129}, {2, 200'000}, {1, 1}}) {
    std::mt19937 random(13);
    std::normal_distribution<float> normal;
    std::vector<float> x(shape.rows * shape.cols);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = normal(random) * std::ldexp(1.0f, static_cast<int>(i / shape.cols));
    for (const SimdLevel level : every_level()) {
      std::vector<std::uint8_t> codes(x.size());
      std::vector<float> scale_inv(shape.rows);
      CastArgs args = args_for(x.data(), FloatType::F32, shape.cols, kTargets[0], nullptr, codes.data());
      args.rows = static_cast<std::int64_t>(shape.rows);
      cast_rows_dynamic(args, scale_inv.data());
      for (std::size_t r = 0; r < shape.rows; ++r) {
        float amax = 0.0f;
        for (std::size_t c = 0; c < shape.cols; ++c) amax = std::max(amax, std::fabs(x[r * shape.cols + c]));
        ASSERT_EQ(scale_inv[r], amax / 448.0f);
        const Reference want =
            reference(&x[r * shape.cols], FloatType::F32, shape.cols, {1.0f / (amax / 448.0f)}, kTargets[0]);
        const auto first = codes.begin() + static_cast<std::ptrdiff_t>(r * shape.cols);
        expect_same({first, first + static_cast<std::ptrdiff_t>(shape.cols)}, want.codes, name_of(level));
      }
    }
  }
}

TEST(CastRowsDynamic, ZeroTinyAndNaNRows) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {0.0f, -0.0f, 1e-43f, 0.0f, 1.0f, nan};
  std::vector<std::uint8_t> codes(6);
  std::vector<float> scale_inv(3);
  CastArgs args = args_for(x.data(), FloatType::F32, 2, kTargets[0], nullptr, codes.data());
  args.rows = 3;
  cast_rows_dynamic(args, scale_inv.data());
  EXPECT_EQ(scale_inv[0], 1.0f);
  EXPECT_EQ(codes[0], 0x00);
  EXPECT_EQ(codes[1], 0x80);
  EXPECT_EQ(scale_inv[1], std::numeric_limits<float>::min());
  EXPECT_EQ(codes[2], 0x00);  // 1e-43 * 2^126 is far below half of 2^-9
  EXPECT_EQ(codes[3], 0x00);
  EXPECT_TRUE(std::isnan(scale_inv[2]));
  EXPECT_EQ(codes[4] & 0x7F, 0x7F);
}

TEST(CastRowsDynamic, StochasticBitsAreThoseOfTheWholeMatrix) {
  const std::vector<float> x = hard_inputs(30'000);
  auto numbers = collected(x, [](float v) { return std::isfinite(v) && std::fabs(v) < 1e6f ? v : 1.0f; });
  std::vector<std::uint8_t> dynamic(numbers.size()), given(numbers.size());
  std::vector<float> scale_inv(30), scale(30);
  CastArgs args = args_for(numbers.data(), FloatType::F32, 1000, kTargets[0], nullptr, dynamic.data());
  args.rows = 30;
  args.stochastic = 3;
  cast_rows_dynamic(args, scale_inv.data());
  for (std::size_t r = 0; r < 30; ++r) scale[r] = 1.0f / scale_inv[r];
  args.codes = given.data();
  args.scales = scale.data();
  args.layout = ScaleLayout::per_row();
  cast_to_fp8(args);
  expect_same(dynamic, given, "dynamic");
}

// Stochastic rounding: neighbours with the right probability, nothing lost, the same bits everywhere.

TEST(StochasticCast, RoundsToANeighbourWithTheRightProbability) {
  constexpr std::size_t kDraws = 200'000;
  struct Case {
    Format format;
    float x;
  };
  for (const Case& c : {Case{Format::E4M3, 18.5f},
                        {Format::E4M3, -0.0007f},
                        {Format::E4M3, 0.0101f},
                        {Format::E4M3, 300.0f},
                        {Format::E5M2, 18.5f},
                        {Format::E5M2, 1.7e-5f},
                        {Format::E5M2, -40000.0f}}) {
    const Target target = {c.format, fp8_max(c.format, Dialect::ocp)};
    const std::vector<double> values = grid(c.format, target.max);
    const double a = std::fabs(static_cast<double>(c.x));
    const std::size_t above =
        static_cast<std::size_t>(std::upper_bound(values.begin(), values.end(), a) - values.begin());
    const double p = (a - values[above - 1]) / (values[above] - values[above - 1]);
    for (std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0xdeadbeefcafe}}) {
      const std::vector<float> x(kDraws, c.x);
      std::vector<std::uint8_t> codes(kDraws);
      CastArgs args = args_for(x.data(), FloatType::F32, kDraws, target, nullptr, codes.data());
      args.stochastic = seed;
      cast_to_fp8(args);
      std::size_t up = 0;
      for (std::uint8_t code : codes) {
        ASSERT_TRUE((code & 0x7Fu) == above || (code & 0x7Fu) + 1u == above);
        ASSERT_EQ((code & 0x80) != 0, c.x < 0);
        up += (code & 0x7Fu) == above;
      }
      const double sigma = std::sqrt(p * (1 - p) / kDraws);
      EXPECT_NEAR(static_cast<double>(up) / kDraws, p, 5 * sigma) << c.x << " seed " << seed;
    }
  }
}

TEST(StochasticCast, KeepsGridValuesNaNAndSaturates) {
  for (Target target : kTargets) {
    std::vector<float> x;
    std::vector<std::uint8_t> want;
    const std::vector<double> values = grid(target.format, target.max);
    for (std::size_t i = 0; i < values.size(); ++i) {
      x.insert(x.end(), {static_cast<float>(values[i]), -static_cast<float>(values[i])});
      want.insert(want.end(), {static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(i | 0x80)});
    }
    const std::uint8_t top = static_cast<std::uint8_t>(values.size() - 1);
    x.insert(x.end(), {1e30f, -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()});
    want.insert(want.end(), {top, static_cast<std::uint8_t>(top | 0x80), 0x7F});
    for (const SimdLevel level : every_level())
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        std::vector<std::uint8_t> codes(x.size());
        CastArgs args = args_for(x.data(), FloatType::F32, x.size(), target, nullptr, codes.data());
        args.stochastic = seed;
        cast_to_fp8(args);
        expect_same(codes, want, name_of(level));
      }
  }
}

TEST(StochasticCast, EveryTypeAndLayoutIsTheSameOnEveryLevel) {
  for (FloatType type : {FloatType::BF16, FloatType::F16}) {
    const std::vector<std::uint16_t> x = random_halves(777, type, 11);
    std::vector<float> scales(777);
    for (std::size_t i = 0; i < 777; ++i) scales[i] = 0.01f * static_cast<float>(i + 1);
    for (int variant = 0; variant < 8; ++variant) {
      std::vector<std::uint8_t> first;
      for (const SimdLevel level : every_level()) {
        std::vector<std::uint8_t> codes(777);
        CastArgs args = args_for(x.data(), type, 777, kTargets[variant & 1 ? 2 : 0], scales.data(), codes.data());
        if ((variant & 2) != 0) args.layout = ScaleLayout::per_column();
        args.vendor = (variant & 4) != 0;
        args.stochastic = 5;
        cast_to_fp8(args);
        if (first.empty()) first = codes;
        expect_same(codes, first, std::string(name_of(level)) + " variant " + std::to_string(variant));
      }
    }
  }
}

TEST(StochasticCast, IsTheSameOnAnyLevelThreadsAndCut) {
  constexpr std::size_t kN = 200'003;  // several ranges of the pool and an odd end
  const std::vector<float> x = hard_inputs(kN);
  for (const Target& target : kTargets)
    for (const bool flush : {false, true}) {
      std::vector<std::uint8_t> first;
      for (const SimdLevel level : levels())
        for (const int threads : {1, 3}) {
          const ScopedSimdLevel scoped(level);
          const Threads pool(threads);
          const float scale = 1.7f;
          std::vector<std::uint8_t> codes(kN);
          CastArgs args = args_for(x.data(), FloatType::F32, kN, target, &scale, codes.data());
          args.flush_subnormal = flush;
          args.stochastic = 77;
          cast_to_fp8(args);
          if (first.empty()) first = codes;
          expect_same(codes, first, std::string(name_of(level)) + " threads " + std::to_string(threads));
          // Rows of other lengths hold the same elements: 200003 = 109 * 1834 + 97.
          std::vector<std::uint8_t> cut(109 * 1834);
          args.rows = 1834;
          args.cols = args.row_stride = 109;
          args.codes = cut.data();
          cast_to_fp8(args);
          expect_same(cut, {first.begin(), first.begin() + 109 * 1834}, std::string("rows, ") + name_of(level));
        }
    }
}

TEST(StochasticCast, IsUnbiasedOverManyValues) {
  // The error of each element has mean 0 and is at most one step, so its sum over n elements stays within 5 sqrt(n)
  // steps / 2, whatever the values: here from below the smallest number to the largest.
  constexpr std::size_t kN = 400'000;
  std::mt19937 random(3);
  for (const Target& target : {kTargets[0], kTargets[2]}) {
    const std::vector<double> values = grid(target.format, target.max);
    std::vector<float> x(kN);
    for (float& v : x) {
      const std::size_t i = random() % (values.size() - 1);
      const double f = (random() % 65536) / 65536.0;
      v = static_cast<float>(values[i] + f * (values[i + 1] - values[i]));
    }
    std::vector<std::uint8_t> codes(kN);
    CastArgs args = args_for(x.data(), FloatType::F32, kN, target, nullptr, codes.data());
    args.stochastic = 9;
    cast_to_fp8(args);
    double steps = 0;
    for (std::size_t i = 0; i < kN; ++i) {
      const double a = static_cast<double>(x[i]);
      const auto above = std::upper_bound(values.begin(), values.end() - 1, a);
      steps += (values[codes[i]] - a) / (*above - *(above - 1));
    }
    EXPECT_LT(std::fabs(steps), 5 * 0.5 * std::sqrt(static_cast<double>(kN)));
  }
}

TEST(StochasticCast, FlushesBelowTheSmallestNumberWhenTold) {
  for (const Target& target : {kTargets[0], kTargets[2]}) {
    const float smallest = static_cast<float>(grid(target.format, target.max)[1]);
    std::vector<float> x;
    for (int i = 0; i < 3000; ++i)
      x.insert(x.end(), {std::nextafter(smallest, 0.0f), -smallest * 0.5f, smallest, 1.5f * smallest,
                         std::numeric_limits<float>::quiet_NaN(), 1e-44f});
    for (const SimdLevel level : every_level()) {
      std::vector<std::uint8_t> codes(x.size());
      CastArgs args = args_for(x.data(), FloatType::F32, x.size(), target, nullptr, codes.data());
      args.stochastic = 0;
      args.flush_subnormal = true;
      cast_to_fp8(args);
      std::size_t ones = 0;
      for (std::size_t i = 0; i < codes.size(); i += 6) {
        ASSERT_EQ(codes[i], 0) << name_of(level);
        ASSERT_EQ(codes[i + 1], 0x80);
        ASSERT_EQ(codes[i + 2], 1);
        ASSERT_TRUE(codes[i + 3] == 1 || codes[i + 3] == 2);
        ASSERT_EQ(codes[i + 4], 0x7F);
        ASSERT_EQ(codes[i + 5], 0);
        ones += codes[i + 3] == 1;
      }
      EXPECT_NEAR(static_cast<double>(ones), 1500.0, 5 * std::sqrt(750.0));
    }
  }
}

TEST(CastTwice, EqualsTwoCasts) {
  const std::vector<float> x = hard_inputs(150'000);
  const float s1 = 3.0f, s2 = 0.125f;
  for (const SimdLevel level : every_level()) {
    for (const std::int64_t cols : {1499, 1500}) {  // rows of x with and without a gap
      const std::size_t n = 100 * static_cast<std::size_t>(cols);
      std::vector<std::uint8_t> a(n), b(n), want_a(n), want_b(n);
      float amax = 0, want_amax = 0;
      CastArgs first = args_for(x.data(), FloatType::F32, n, kTargets[2], &s1, a.data());
      first.rows = 100;
      first.cols = cols;
      first.row_stride = 1500;
      first.stochastic = 4;
      CastArgs second = first;
      second.stochastic = {};
      second.format = kTargets[1].format;
      second.max = kTargets[1].max;
      second.scales = &s2;
      second.codes = b.data();
      second.amax = &amax;
      cast_to_fp8_twice(first, second);
      first.codes = want_a.data();
      first.amax = &want_amax;
      second.codes = want_b.data();
      second.amax = nullptr;
      cast_to_fp8(first);
      cast_to_fp8(second);
      expect_same(a, want_a, name_of(level));
      expect_same(b, want_b, name_of(level));
      EXPECT_EQ(std::bit_cast<std::uint32_t>(amax), std::bit_cast<std::uint32_t>(want_amax));
    }
  }
  CastArgs one = args_for(x.data(), FloatType::F32, 4, kTargets[0], nullptr, nullptr);
  std::vector<std::uint8_t> codes(8);
  one.codes = codes.data();
  CastArgs other = one;
  other.cols = 3;
  EXPECT_THROW(cast_to_fp8_twice(one, other), std::invalid_argument);
}

}  // namespace
}  // namespace fp8::kernels
