// SPDX-License-Identifier: Apache-2.0
// Norms, rotary embeddings and gated activations: the documented formulas, to the bit on every level; their distance
// from exact results; odd sizes, rows apart with NaN between them, memory that ends where the operands do.
#include "fp8/runtime/kernels/attention/decoder_math.h"

#include "fp8/runtime/kernels/float_bits.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

/// Elements of bf16 or f32, at the end of readable memory, NaN until set.
class Array {
 public:
  Array(FloatType type, std::int64_t n)
      : type_(type),
        bf16_(static_cast<std::size_t>(type == FloatType::BF16 ? n : 0)),
        f32_(static_cast<std::size_t>(type == FloatType::F32 ? n : 0)) {
    for (std::int64_t i = 0; i < n; ++i) set(i, std::numeric_limits<float>::quiet_NaN());
  }
  void* data() { return type_ == FloatType::BF16 ? static_cast<void*>(bf16_.data()) : f32_.data(); }
  float at(std::int64_t i) { return type_ == FloatType::BF16 ? bf16_to_f32(bf16_.data()[i]) : f32_.data()[i]; }
  void set(std::int64_t i, float x) {
    if (type_ == FloatType::BF16)
      bf16_.data()[i] = f32_to_bf16(x);
    else
      f32_.data()[i] = x;
  }

 private:
  FloatType type_;
  test::GuardedBuffer<std::uint16_t> bf16_;
  test::GuardedBuffer<float> f32_;
};

float rounded(FloatType type, float x) { return type == FloatType::BF16 ? bf16_to_f32(f32_to_bf16(x)) : x; }

constexpr FloatType kTypes[] = {FloatType::BF16, FloatType::F32};

struct Norm {
  FloatType type;
  std::int64_t rows, n, gap;
  Array x, weight, y;

  Norm(FloatType type, std::int64_t rows, std::int64_t n, std::int64_t gap, float spread = 1)
      : type(type),
        rows(rows),
        n(n),
        gap(gap),
        x(type, rows == 0 ? 0 : (rows - 1) * (n + gap) + n),
        weight(type, n),
        y(type, rows * n) {
    std::mt19937 random(static_cast<unsigned>(rows * 100 + n));
    std::normal_distribution<float> normal(0.1f, spread);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < n; ++i) x.set(r * (n + gap) + i, normal(random));
    for (std::int64_t i = 0; i < n; ++i) weight.set(i, 1 + normal(random) / 8);
  }
  RmsNormArgs args() {
    RmsNormArgs out;
    out.type = type, out.rows = rows, out.n = n;
    out.x = x.data(), out.x_stride = n + gap;
    out.weight = weight.data(), out.eps = 1e-5f, out.y = y.data();
    return out;
  }
  float at_x(std::int64_t r, std::int64_t i) { return x.at(r * (n + gap) + i); }
};

/// Of value(0), value(1), ... in decoder_math.h's order.
template <class Value>
float sum_of(std::int64_t n, const Value& value) {
  float s[32] = {};
  for (std::int64_t i = 0; i < n; ++i) s[i % 32] = s[i % 32] + value(i);
  for (int step : {16, 8, 4, 2, 1})
    for (int j = 0; j < step; ++j) s[j] = s[j] + s[j + step];
  return s[0];
}

/// decoder_math.h's r.
float factor_of(Norm& p, std::int64_t r, float mean = 0) {
  const auto square = [&](std::int64_t i) { return (p.at_x(r, i) - mean) * (p.at_x(r, i) - mean); };
  return 1.0f / std::sqrt(sum_of(p.n, square) / static_cast<float>(p.n) + 1e-5f);
}

TEST(RmsNorm, FollowsItsFormulaOnEveryLevel) {
  for (const SimdLevel level : every_level())
    for (FloatType type : kTypes)
      for (std::int64_t n : {1, 7, 31, 32, 33, 64, 100, 777}) {
        Norm p(type, 3, n, n % 3);
        rms_norm(p.args());
        for (std::int64_t r = 0; r < 3; ++r) {
          const float factor = factor_of(p, r);
          for (std::int64_t i = 0; i < n; ++i)
            ASSERT_EQ(p.y.at(r * n + i), rounded(type, p.weight.at(i) * rounded(type, p.at_x(r, i) * factor)))
                << name_of(level) << " n " << n << " at " << r << ", " << i;
        }
        for (const float offset : {0.0f, 1.0f}) {
          auto args = p.args();
          args.wide = true, args.offset = offset;
          rms_norm(args);
          for (std::int64_t r = 0; r < 3; ++r) {
            const float factor = factor_of(p, r);
            for (std::int64_t i = 0; i < n; ++i)
              ASSERT_EQ(p.y.at(r * n + i), rounded(type, (offset + p.weight.at(i)) * (p.at_x(r, i) * factor)))
                  << name_of(level) << " wide, n " << n << " at " << r << ", " << i;
          }
        }
      }
}

TEST(RmsNorm, IsWithinItsBoundOfTheExactResult) {
  constexpr std::int64_t n = 5000;
  Norm p(FloatType::F32, 2, n, 0, 30);
  rms_norm(p.args());
  for (std::int64_t r = 0; r < 2; ++r) {
    double squares = 0;
    for (std::int64_t i = 0; i < n; ++i)
      squares += static_cast<double>(p.at_x(r, i)) * static_cast<double>(p.at_x(r, i));
    const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(1e-5f));
    // Half of the sum's relative error and six roundings.
    const double bound = ((static_cast<double>(n) / 32 + 7) / 2 + 6) * 0x1p-24;
    for (std::int64_t i = 0; i < n; ++i) {
      const double exact = static_cast<double>(p.at_x(r, i)) * factor * static_cast<double>(p.weight.at(i));
      EXPECT_NEAR(static_cast<double>(p.y.at(r * n + i)), exact, bound * std::fabs(exact));
    }
  }
}

TEST(RmsNorm, ThreadsAndOtherRowsChangeNoBit) {
  Norm many(FloatType::BF16, 64, 1000, 0), one(FloatType::BF16, 1, 1000, 0);
  for (std::int64_t i = 0; i < 1000; ++i) one.x.set(i, many.at_x(40, i)), one.weight.set(i, many.weight.at(i));
  const Threads three(3);
  rms_norm(many.args());
  const Threads single(1);
  rms_norm(one.args());
  for (std::int64_t i = 0; i < 1000; ++i) ASSERT_EQ(one.y.at(i), many.y.at(40 * 1000 + i)) << i;
}

TEST(RmsNorm, RefusesWhatItCannotIndex) {
  Norm p(FloatType::BF16, 2, 8, 0);
  test::expect_refused(
      rms_norm, p.args(), [](auto& args) { args.type = FloatType::F16; }, [](auto& args) { args.rows = -1; },
      [](auto& args) { args.x_stride = 7; }, [](auto& args) { args.weight = nullptr; },
      [](auto& args) { args.y = nullptr; });
}

LayerNormArgs layer_args(Norm& p) {
  LayerNormArgs args;
  args.type = p.type, args.rows = p.rows, args.n = p.n;
  args.x = p.x.data(), args.x_stride = p.n + p.gap;
  args.eps = 1e-5f, args.y = p.y.data();
  return args;
}

TEST(LayerNorm, FollowsItsFormulaOnEveryLevel) {
  for (const SimdLevel level : every_level())
    for (FloatType type : kTypes)
      for (std::int64_t n : {1, 7, 31, 32, 33, 64, 100, 777}) {
        Norm p(type, 3, n, n % 3);
        Array bias(type, n);
        for (std::int64_t i = 0; i < n; ++i) bias.set(i, static_cast<float>(i % 5) - 2.3f);
        for (const int given : {0, 1, 2, 3}) {
          LayerNormArgs args = layer_args(p);
          if (given & 1) args.weight = p.weight.data();
          if (given & 2) args.bias = bias.data();
          layer_norm(args);
          for (std::int64_t r = 0; r < 3; ++r) {
            const float mean = sum_of(n, [&](std::int64_t i) { return p.at_x(r, i); }) / static_cast<float>(n);
            const float factor = factor_of(p, r, mean);
            for (std::int64_t i = 0; i < n; ++i) {
              float expected = (p.at_x(r, i) - mean) * factor;
              if (given & 1) expected = expected * p.weight.at(i);
              if (given & 2) expected = expected + bias.at(i);
              ASSERT_EQ(p.y.at(r * n + i), rounded(type, expected))
                  << name_of(level) << " n " << n << " given " << given << " at " << r << ", " << i;
            }
          }
        }
      }
}

// Far from 0, where sums of squares that are subtracted would leave nothing.
TEST(LayerNorm, IsCloseToTheExactResultFarFromZero) {
  constexpr std::int64_t n = 5000;
  Norm p(FloatType::F32, 1, n, 0);
  for (std::int64_t i = 0; i < n; ++i) p.x.set(i, 1000 + p.x.at(i));
  layer_norm(layer_args(p));
  double mean = 0, squares = 0;
  for (std::int64_t i = 0; i < n; ++i) mean += static_cast<double>(p.x.at(i)) / static_cast<double>(n);
  for (std::int64_t i = 0; i < n; ++i) squares += std::pow(static_cast<double>(p.x.at(i)) - mean, 2);
  const double root = std::sqrt(squares / static_cast<double>(n) + static_cast<double>(1e-5f));
  // The mean's error, (n / 32 + 7) roundings of 1000 at most, is that of every element.
  const double bound = 1000 * (static_cast<double>(n) / 32 + 7) * 0x1p-24 / root;
  for (std::int64_t i = 0; i < n; ++i)
    EXPECT_NEAR(static_cast<double>(p.y.at(i)), (static_cast<double>(p.x.at(i)) - mean) / root, bound);
}

TEST(LayerNorm, RefusesWhatItCannotIndex) {
  Norm p(FloatType::BF16, 2, 8, 0);
  test::expect_refused(
      layer_norm, layer_args(p), [](auto& args) { args.type = FloatType::F16; }, [](auto& args) { args.rows = -1; },
      [](auto& args) { args.x_stride = 7; }, [](auto& args) { args.x = nullptr; },
      [](auto& args) { args.y = nullptr; });
}

/// gate and up as halves of one row, with `gap` elements after them.
struct Gated {
  FloatType type;
  std::int64_t rows, n, stride;
  Array both, y;

  Gated(FloatType type, std::int64_t rows, std::int64_t n, std::int64_t gap)
      : type(type), rows(rows), n(n), stride(2 * n + gap), both(type, rows * stride - gap), y(type, rows * n) {
    std::mt19937 random(static_cast<unsigned>(n));
    std::normal_distribution<float> normal(0, 4);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < 2 * n; ++i) both.set(r * stride + i, normal(random));
  }
  SiluMulArgs args() {
    SiluMulArgs out;
    const std::int64_t size = type == FloatType::BF16 ? 2 : 4;
    out.type = type, out.rows = rows, out.n = n;
    out.gate = both.data(), out.gate_stride = out.up_stride = stride;
    out.up = static_cast<char*>(both.data()) + n * size, out.y = y.data();
    return out;
  }
};

// e^x is within 2^-22 of the real one; the sum, the quotient and the product round once each.
TEST(SiluMul, IsWithinItsBoundOnEveryLevelWithTheSameBits) {
  for (FloatType type : kTypes)
    for (std::int64_t n : {1, 7, 16, 33, 100, 777}) {
      std::vector<float> first;
      for (const SimdLevel level : every_level()) {
        Gated p(type, 3, n, n % 3);
        silu_mul(p.args());
        std::vector<float> found;
        for (std::int64_t r = 0; r < 3; ++r)
          for (std::int64_t i = 0; i < n; ++i) {
            const double gate = static_cast<double>(p.both.at(r * p.stride + i)),
                         up = static_cast<double>(p.both.at(r * p.stride + n + i));
            const double exact = gate / (1 + std::exp(-gate)) * up;
            const double steps = type == FloatType::BF16 ? 0x1.01p-7 : 0x1p-21;  // two roundings to bf16, 2^-8 each
            found.push_back(p.y.at(r * n + i));
            ASSERT_NEAR(static_cast<double>(found.back()), exact, std::fabs(exact) * steps)
                << name_of(level) << " n " << n << " at " << r << ", " << i;
          }
        if (first.empty()) first = found;
        ASSERT_EQ(found, first) << name_of(level) << " n " << n;
      }
    }
}

TEST(SiluMul, SpecialValues) {
  for (const SimdLevel level : every_level()) {
    Gated p(FloatType::F32, 1, 20, 0);
    for (std::int64_t i = 0; i < 20; ++i) p.both.set(20 + i, 2);
    const float infinity = std::numeric_limits<float>::infinity();
    p.both.set(0, infinity), p.both.set(1, -1e30f), p.both.set(2, std::nanf("")), p.both.set(3, 0.0f);
    p.both.set(17, infinity), p.both.set(18, -1e30f), p.both.set(19, std::nanf(""));
    silu_mul(p.args());
    EXPECT_EQ(p.y.at(0), infinity) << name_of(level);
    EXPECT_EQ(p.y.at(1), 0.0f);
    EXPECT_TRUE(std::isnan(p.y.at(2)));
    EXPECT_EQ(p.y.at(3), 0.0f);
    EXPECT_EQ(p.y.at(17), infinity);
    EXPECT_EQ(p.y.at(18), 0.0f);
    EXPECT_TRUE(std::isnan(p.y.at(19)));
  }
}

TEST(SiluMul, RefusesWhatItCannotIndex) {
  Gated p(FloatType::BF16, 2, 8, 0);
  test::expect_refused(
      silu_mul, p.args(), [](auto& args) { args.type = FloatType::F16; }, [](auto& args) { args.n = -1; },
      [](auto& args) { args.up_stride = 7; }, [](auto& args) { args.up = nullptr; });
}

struct Turn {
  FloatType type;
  std::int64_t batch, length, heads, width, gap;
  Array x, cos, sin, y;

  /// x lies as a projection leaves it, [batch, length, heads, width], with `gap` elements after each position.
  Turn(FloatType type, std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t width,
       std::int64_t gap)
      : type(type),
        batch(batch),
        length(length),
        heads(heads),
        width(width),
        gap(gap),
        x(type, batch * length * (heads * width + gap) - gap),
        cos(type, length * width),
        sin(type, length * width),
        y(type, batch * heads * length * width) {
    std::mt19937 random(static_cast<unsigned>(length * 100 + width));
    std::normal_distribution<float> normal;
    for (std::int64_t p = 0; p < batch * length; ++p)
      for (std::int64_t i = 0; i < heads * width; ++i) x.set(p * (heads * width + gap) + i, normal(random));
    for (std::int64_t i = 0; i < length * width; ++i)
      cos.set(i, std::cos(normal(random))), sin.set(i, std::sin(normal(random)));
  }
  RotaryArgs args() {
    RotaryArgs out;
    out.type = type, out.batch = batch, out.length = length, out.heads = heads, out.width = width;
    out.x = x.data(), out.x_head = width, out.x_length = heads * width + gap, out.x_batch = length * out.x_length;
    out.cos = cos.data(), out.sin = sin.data(), out.y = y.data();
    return out;
  }
};

TEST(Rotary, FollowsItsFormulaOnEveryLevel) {
  for (const SimdLevel level : every_level())
    for (FloatType type : kTypes)
      for (std::int64_t width : {2, 6, 32, 66, 128}) {
        Turn p(type, 2, 5, 3, width, width % 4);
        rotary(p.args());
        const auto round = [&](float x) { return rounded(type, x); };
        for (std::int64_t r = 0; r < 2 * 3 * 5; ++r) {
          const std::int64_t l = r % 5, h = r / 5 % 3, b = r / 15, half = width / 2;
          const std::int64_t from = (b * 5 + l) * (3 * width + p.gap) + h * width;
          for (std::int64_t i = 0; i < half; ++i) {
            const float left = p.x.at(from + i), right = p.x.at(from + half + i);
            const auto cos = [&](std::int64_t j) { return p.cos.at(l * width + j); };
            const auto sin = [&](std::int64_t j) { return p.sin.at(l * width + j); };
            ASSERT_EQ(p.y.at(r * width + i), round(round(left * cos(i)) - round(right * sin(i))))
                << name_of(level) << " width " << width;
            ASSERT_EQ(p.y.at(r * width + half + i), round(round(right * cos(half + i)) + round(left * sin(half + i))))
                << name_of(level) << " width " << width;
          }
        }
      }
}

TEST(Rotary, TurnsByTheAngle) {
  Turn p(FloatType::F32, 1, 1, 1, 2, 0);
  const float angle = 0.75f;
  for (std::int64_t i = 0; i < 2; ++i) p.cos.set(i, std::cos(angle)), p.sin.set(i, std::sin(angle));
  p.x.set(0, std::cos(0.5f)), p.x.set(1, std::sin(0.5f));
  rotary(p.args());
  EXPECT_NEAR(p.y.at(0), std::cos(1.25f), 1e-6f);
  EXPECT_NEAR(p.y.at(1), std::sin(1.25f), 1e-6f);
}

TEST(Rotary, AnglesOfEachOfTheBatch) {
  constexpr std::int64_t kWidth = 34;
  Turn both(FloatType::BF16, 2, 1, 3, kWidth, 5), first(FloatType::BF16, 1, 1, 3, kWidth, 5);
  Array cos(FloatType::BF16, 2 * kWidth), sin(FloatType::BF16, 2 * kWidth);
  for (std::int64_t i = 0; i < 2 * kWidth; ++i)
    cos.set(i, std::cos(static_cast<float>(i))), sin.set(i, std::sin(static_cast<float>(i)));
  RotaryArgs args = both.args();
  args.cos = cos.data(), args.sin = sin.data(), args.angle_batch = kWidth;
  rotary(args);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < kWidth; ++i)
      first.cos.set(i, cos.at(b * kWidth + i)), first.sin.set(i, sin.at(b * kWidth + i));
    for (std::int64_t i = 0; i < 3 * kWidth; ++i) first.x.set(i, both.x.at(b * (3 * kWidth + 5) + i));
    rotary(first.args());
    for (std::int64_t i = 0; i < 3 * kWidth; ++i)
      ASSERT_EQ(first.y.at(i), both.y.at(b * 3 * kWidth + i)) << b << " " << i;
  }
}

TEST(Rotary, RefusesWhatItCannotIndex) {
  Turn p(FloatType::BF16, 1, 2, 2, 8, 0);
  test::expect_refused(
      rotary, p.args(), [](auto& args) { args.type = FloatType::F16; }, [](auto& args) { args.width = 7; },
      [](auto& args) { args.batch = -1; }, [](auto& args) { args.x_head = -8; },
      [](auto& args) { args.angle_batch = -1; }, [](auto& args) { args.heads = std::int64_t{1} << 59; },
      [](auto& args) { args.sin = nullptr; });
}

}  // namespace
}  // namespace fp8::kernels
