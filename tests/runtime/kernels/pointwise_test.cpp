// SPDX-License-Identifier: Apache-2.0
// Pointwise operations against C++'s own arithmetic, element by element: every level, odd sizes, special values, memory
// that ends where the operands do; NaN is told, and leaves what it would be written to in place.
#include "fp8/runtime/kernels/optim/pointwise.h"

#include "fp8/runtime/kernels/float_bits.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

using enum Pointwise;
constexpr Pointwise kAll[] = {add, sub, mul, div, neg, abs, relu};

float computed(Pointwise op, float a, float b) {
  switch (op) {
    case add: return a + b;
    case sub: return a - b;
    case mul: return a * b;
    case div: return a / b;
    case neg: return -a;
    case abs: return std::fabs(a);
    case relu: return a < 0 ? 0.0f : a;
  }
  return 0;
}

template <class T>
float value(T bits);
template <>
float value(float x) {
  return x;
}
template <>
float value(std::uint16_t bits) {
  return bf16_to_f32(bits);
}
template <class T>
T rounded(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return f32_to_bf16(x);
}
template <class T>
constexpr FloatType kType = std::is_same_v<T, float> ? FloatType::F32 : FloatType::BF16;

/// No NaN: zeros, subnormals, the largest, infinities (among them where no result is NaN), and normal numbers.
template <class T>
void fill(T* x, std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  const float special[] = {0.0f, -0.0f, 1e-40f, -1e-39f, 3e38f, -3e38f, 1.0f, 0x1.01p0f, 0x1.008p0f, -0x1.018p-3f};
  for (std::int64_t i = 0; i < n; ++i) x[i] = rounded<T>(random() % 3 == 0 ? special[random() % 10] : normal(random));
}

template <class T>
class PointwiseOf : public ::testing::Test {};
using Types = ::testing::Types<float, std::uint16_t>;
TYPED_TEST_SUITE(PointwiseOf, Types);

TYPED_TEST(PointwiseOf, ComputesAsCppDoesOnEveryLevel) {
  using T = TypeParam;
  for (const SimdLevel level : every_level())
    for (const Pointwise op : kAll)
      for (const std::int64_t n : {1, 3, 7, 8, 16, 17, 33, 1000}) {
        const auto count = static_cast<std::size_t>(n);
        test::GuardedBuffer<T> a(count), b(count), y(count);
        fill(a.data(), n, 1), fill(b.data(), n, 2);
        for (const bool number : {false, true}) {
          PointwiseArgs args;
          args.op = op, args.type = kType<T>, args.n = n;
          args.a = a.data(), args.b = number ? nullptr : b.data(), args.number = 1.7f, args.y = y.data();
          bool nan = false;
          std::vector<T> expected(count);
          for (std::size_t i = 0; i < count; ++i) {
            const float result = computed(op, value(a.data()[i]), number ? 1.7f : value(b.data()[i]));
            nan = nan || std::isnan(result);
            expected[i] = rounded<T>(result);
          }
          ASSERT_EQ(pointwise(args), !nan) << name_of(level) << " " << static_cast<int>(op) << " n " << n;
          if (!nan) {
            ASSERT_EQ(std::memcmp(y.data(), expected.data(), count * sizeof(T)), 0) << static_cast<int>(op);
          }
          args.y = a.data();  // in place
          std::vector<T> before(a.data(), a.data() + n);
          ASSERT_EQ(pointwise(args), !nan);
          ASSERT_EQ(std::memcmp(a.data(), nan ? before.data() : expected.data(), count * sizeof(T)), 0);
          std::copy(before.begin(), before.end(), a.data());
        }
      }
}

TYPED_TEST(PointwiseOf, TellsOfOneNanWhereverItIs) {
  using T = TypeParam;
  constexpr std::int64_t n = 37;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    Pointwise op;
    float a, b;
  } cases[] = {{add, inf, -inf}, {sub, inf, inf}, {mul, 0, inf}, {div, 0, 0},   {add, nan, 1},
               {mul, 1, nan},    {neg, nan, 0},   {abs, nan, 0}, {relu, nan, 0}};
  for (const SimdLevel level : every_level())
    for (const auto& one : cases)
      for (std::int64_t at = 0; at < n; ++at) {
        std::vector<T> a(n, rounded<T>(1)), b(n, rounded<T>(2)), y(n);
        PointwiseArgs args;
        args.op = one.op, args.type = kType<T>, args.n = n;
        args.a = a.data(), args.b = b.data(), args.y = y.data();
        EXPECT_TRUE(pointwise(args));
        a[at] = rounded<T>(one.a), b[at] = rounded<T>(one.b);
        EXPECT_FALSE(pointwise(args)) << name_of(level) << " " << static_cast<int>(one.op) << " at " << at;
        const std::vector<T> before = b;
        args.y = b.data();
        EXPECT_FALSE(pointwise(args));
        EXPECT_EQ(std::memcmp(b.data(), before.data(), n * sizeof(T)), 0) << "what is NaN was written";
      }
}

TEST(Convert, RoundsToNearestEvenAndTellsOfNan) {
  for (const SimdLevel level : every_level())
    for (const std::int64_t n : {1, 8, 19, 100}) {
      const auto count = static_cast<std::size_t>(n);
      test::GuardedBuffer<float> x(count), back(count);
      test::GuardedBuffer<std::uint16_t> y(count);
      fill(x.data(), n, 3);
      ASSERT_TRUE(narrow(x.data(), y.data(), n)) << name_of(level);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(y.data()[i], f32_to_bf16(x.data()[i])) << x.data()[i];
      widen(y.data(), back.data(), n);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(bits_of(back.data()[i]), std::uint32_t{y.data()[i]} << 16);
      x.data()[count - 1] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_FALSE(narrow(x.data(), y.data(), n));
    }
}

TEST(Pointwise, RefusesWhatItCannotCompute) {
  float x = 1;
  PointwiseArgs args;
  args.n = 1, args.a = args.y = &x;
  args.type = FloatType::F16;
  EXPECT_THROW(pointwise(args), std::invalid_argument);
  args.type = FloatType::F32, args.n = -1;
  EXPECT_THROW(pointwise(args), std::invalid_argument);
  args.n = 1, args.a = nullptr;
  EXPECT_THROW(pointwise(args), std::invalid_argument);
  args.n = 0, args.y = nullptr;
  EXPECT_TRUE(pointwise(args));
}

}  // namespace
}  // namespace fp8::kernels
