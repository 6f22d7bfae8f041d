// SPDX-License-Identifier: Apache-2.0
// Casts that write their codes transposed, too: beside the cast alone and a transpose by two loops.

#include "runtime/kernels/cast_test.h"

namespace fp8::kernels {
namespace {

using test::expect_same;

std::vector<std::uint8_t> turned(const std::vector<std::uint8_t>& codes, std::int64_t rows, std::int64_t cols) {
  std::vector<std::uint8_t> out(codes.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      out[static_cast<std::size_t>(c * rows + r)] = codes[static_cast<std::size_t>(r * cols + c)];
  return out;
}

/// Room for n codes that ends where readable memory does, with a guard in front.
class Room {
 public:
  explicit Room(std::int64_t n) : size_(static_cast<std::size_t>(n)), buffer_(size_ + kFront) {
    std::fill_n(buffer_.data(), size_ + kFront, std::uint8_t{0xEE});
  }
  std::uint8_t* data() { return buffer_.data() + kFront; }
  std::vector<std::uint8_t> codes() {
    EXPECT_TRUE(std::all_of(buffer_.data(), data(), [](std::uint8_t byte) { return byte == 0xEE; }));
    return {data(), data() + size_};
  }

 private:
  static constexpr std::size_t kFront = 64;
  std::size_t size_;
  test::GuardedBuffer<std::uint8_t> buffer_;
};

/// [rows, cols] of hard inputs, rows `stride` apart with NaN between them.
class Input {
 public:
  Input(FloatType type, std::int64_t rows, std::int64_t cols, std::int64_t stride)
      : type_(type), buffer_(static_cast<std::size_t>(((rows - 1) * stride + cols) * size_of(type))) {
    const auto n = static_cast<std::size_t>((rows - 1) * stride + cols);
    const auto values = test::hard_inputs(n);
    const auto halves = test::random_halves(n, type, 5);
    for (std::size_t i = 0; i < n; ++i) {
      const bool between = static_cast<std::int64_t>(i) % stride >= cols;
      if (type == FloatType::F32) {
        const float x = between ? std::numeric_limits<float>::quiet_NaN() : finite(values[i]);
        std::memcpy(buffer_.data() + i * 4, &x, 4);
      } else {
        const std::uint16_t x = between ? 0x7FFF : halves[i];
        std::memcpy(buffer_.data() + i * 2, &x, 2);
      }
    }
  }
  CastArgs args(std::int64_t rows, std::int64_t cols, std::int64_t stride, Format format) {
    CastArgs args = test::matrix_args(buffer_.data(), type_, rows, cols, stride, nullptr);
    args.format = format;
    args.max = fp8_max(format, Dialect::ocp);
    return args;
  }

 private:
  /// All but every 50th NaN: so that runs without any are met, too.
  float finite(float x) { return std::isnan(x) && ++met_ % 50 != 0 ? 1.5f : x; }

  FloatType type_;
  int met_ = 0;
  test::GuardedBuffer<std::uint8_t> buffer_;
};

/// The cast alone, its transpose, and the amax, where `args` says no codes.
struct Expected {
  std::vector<std::uint8_t> codes, transposed;
  float amax = 0.0f;

  explicit Expected(CastArgs args) : codes(static_cast<std::size_t>(args.rows * args.cols)) {
    args.codes = codes.data(), args.transposed = nullptr, args.amax = &amax;
    cast_to_fp8(args);
    transposed = turned(codes, args.rows, args.cols);
  }
};

bool same_number(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void check(CastArgs args, const std::string& what) {
  const Expected want(args);
  Room codes(args.rows * args.cols), transposed(args.rows * args.cols), alone(args.rows * args.cols);
  float amax = -1.0f;
  args.amax = &amax;
  args.codes = codes.data(), args.transposed = transposed.data();
  cast_to_fp8(args);
  expect_same(codes.codes(), want.codes, what);
  expect_same(transposed.codes(), want.transposed, what + ", transposed");
  EXPECT_TRUE(same_number(amax, want.amax)) << what;
  args.codes = nullptr, args.transposed = alone.data();
  cast_to_fp8(args);
  expect_same(alone.codes(), want.transposed, what + ", transposed only");
}

constexpr std::array<std::int64_t, 3> kMatrices[] = {{1, 1, 1},         {1, 1000, 1000}, {7, 3, 5},
                                                     {64, 64, 64},      {65, 129, 140},  {130, 1025, 1025},
                                                     {200, 1100, 1111}, {3, 2500, 2503}};

TEST(CastTransposed, IsTheCastAndItsTransposeOnEveryLevel) {
  for (const FloatType type : {FloatType::F32, FloatType::BF16, FloatType::F16}) {
    for (const auto& [rows, cols, stride] : kMatrices) {
      Input x(type, rows, cols, stride);
      for (const SimdLevel level : levels()) {
        const ScopedSimdLevel scoped(level);
        for (const int threads : {1, 2}) {
          const Threads pool(threads);
          const float scale = threads == 1 ? 16.0f : 3.7f;
          CastArgs args = x.args(rows, cols, stride, threads == 1 ? Format::E4M3 : Format::E5M2);
          args.scale = scale;
          check(args, name_of(level) + std::string(" ") + std::to_string(rows) + "x" + std::to_string(cols));
        }
      }
    }
  }
}

TEST(CastTransposed, EveryScaleLayoutAndKindOfRounding) {
  constexpr std::int64_t kRows = 70, kCols = 1200;
  std::vector<float> scales(kCols);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.25f * static_cast<float>(i % 37) - 2.0f;
  const Threads pool(2);
  for (const FloatType type : {FloatType::F32, FloatType::BF16}) {
    Input x(type, kRows, kCols, kCols);
    for (const auto& layout : {ScaleLayout::per_tensor(), ScaleLayout::per_row(), ScaleLayout::per_column()}) {
      for (const bool stochastic : {false, true}) {
        CastArgs args = x.args(kRows, kCols, kCols, Format::E5M2);
        args.scales = scales.data() + (layout.cols == 0 ? 11 : 0), args.layout = layout;
        if (stochastic) args.stochastic = 99;
        args.vendor = layout.rows != 0;
        check(args, "scales " + std::to_string(layout.rows) + std::to_string(layout.cols) +
                        (stochastic ? ", stochastic" : ""));
      }
    }
  }
}

TEST(CastTransposed, OfTwoCastsEachAsItIsWanted) {
  constexpr std::int64_t kRows = 129, kCols = 1088;
  const float narrow = 3.0f, wide = 0.7f;
  Input x(FloatType::F32, kRows, kCols, kCols);
  CastArgs first = x.args(kRows, kCols, kCols, Format::E4M3), second = x.args(kRows, kCols, kCols, Format::E5M2);
  first.scale = narrow, second.scale = wide;
  const Expected a(first), b(second);
  for (const bool both : {false, true}) {
    Room one(kRows * kCols), other(kRows * kCols), turned_one(kRows * kCols), turned_other(kRows * kCols);
    float amax = -1.0f;
    first.codes = one.data(), first.transposed = both ? turned_one.data() : nullptr, first.amax = &amax;
    second.codes = both ? other.data() : nullptr, second.transposed = turned_other.data();
    cast_to_fp8_twice(first, second);
    expect_same(one.codes(), a.codes, "first");
    expect_same(turned_other.codes(), b.transposed, "second, transposed");
    EXPECT_TRUE(same_number(amax, a.amax));
    if (!both) continue;
    expect_same(turned_one.codes(), a.transposed, "first, transposed");
    expect_same(other.codes(), b.codes, "second");
  }
}

TEST(CastTransposed, OfMoreThanTheCachesHold) {
  const std::int64_t cols = 1024, rows = (streaming_bytes() / cols + 64) / 64 * 64;
  std::vector<std::uint16_t> x(static_cast<std::size_t>(rows * cols));
  const auto values = test::random_halves(static_cast<std::size_t>(rows), FloatType::BF16, 3);
  for (std::int64_t r = 0; r < rows; ++r) std::fill_n(x.data() + r * cols, cols, values[static_cast<std::size_t>(r)]);
  std::vector<std::uint8_t> one(values.size()), space(x.size() + 64);
  std::uint8_t* out = space.data() + (64 - reinterpret_cast<std::uintptr_t>(space.data()) % 64) % 64;
  CastArgs args = test::matrix_args(values.data(), FloatType::BF16, 1, rows, rows, one.data());
  cast_to_fp8(args);
  args.x = x.data(), args.rows = rows, args.cols = args.row_stride = cols;
  args.codes = nullptr, args.transposed = out;
  cast_to_fp8(args);
  for (std::int64_t c = 0; c < cols; ++c) ASSERT_TRUE(std::equal(one.begin(), one.end(), out + c * rows)) << c;
}

TEST(CastTransposed, NothingToDoAndWhatIsRefused) {
  float amax = 1.0f;
  CastArgs args;
  args.cols = args.row_stride = 5;
  std::uint8_t byte = 0;
  args.transposed = &byte, args.amax = &amax;
  cast_to_fp8(args);
  EXPECT_EQ(amax, 0.0f);
  const float x[5] = {};
  args.rows = 1, args.x = x, args.transposed = nullptr;
  EXPECT_THROW(cast_to_fp8(args), std::invalid_argument);
  args.transposed = &byte;
  float scale_inv;
  EXPECT_THROW(cast_rows_dynamic(args, &scale_inv), std::invalid_argument) << "it writes rows only";
}

}  // namespace
}  // namespace fp8::kernels
