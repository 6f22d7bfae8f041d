// SPDX-License-Identifier: Apache-2.0
// The casts, on every level of this machine, bit for bit against rounding by search on the format's value grid.
#include "runtime/kernels/cast_test.h"

namespace fp8::kernels {
namespace {

using namespace test;
using test::expect_same;

constexpr float kScales[] = {1.0f, 1.0f / 16, 8.0f, 1024.0f, 0.731f, 37.1f, 1e-30f, 1e30f, -2.5f};
constexpr std::uint8_t kUntouched = 0xA5;

/// Casts x at every level and compares codes and amax with the reference.
void check_all_levels(const void* x, FloatType type, std::size_t n, float scale, Target target, bool round_product) {
  const Reference want = reference(x, type, n, {scale}, target, round_product);
  for (const SimdLevel level : every_level()) {
    std::vector<std::uint8_t> codes(n);
    float amax = -1.0f;
    CastArgs args = args_for(x, type, n, target, &scale, codes.data());
    args.vendor = round_product;
    args.amax = &amax;
    cast_to_fp8(args);
    const std::string what = std::string(name_of(level)) + " " + name_of(type) + " " + name_of(target.format) +
                             " max " + std::to_string(target.max) + " scale " + std::to_string(scale);
    expect_same(codes, want.codes, what);
    if (std::isnan(want.amax)) {
      EXPECT_TRUE(std::isnan(amax)) << what;
    } else {
      EXPECT_EQ(amax, want.amax) << what;
    }
  }
}

class AllHalves : public testing::TestWithParam<FloatType> {};

TEST_P(AllHalves, EveryInputEveryScale) {
  std::vector<std::uint16_t> x(65536);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint16_t>(i);
  for (Target target : kTargets)
    for (float scale : kScales)
      for (bool round_product : {false, true}) {
        check_all_levels(x.data(), GetParam(), x.size(), scale, target, round_product);
        if (HasFatalFailure()) return;
      }
}

INSTANTIATE_TEST_SUITE_P(Cast, AllHalves, testing::Values(FloatType::BF16, FloatType::F16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// Without NaN, where one scale 2^k has a way of its own for bf16: up to where it ends, and beyond.
TEST(Cast, EveryBf16ByPowersOfTwo) {
  std::vector<std::uint16_t> x(65536);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto magnitude = static_cast<std::uint16_t>(i & 0x7FFF);
    x[i] = static_cast<std::uint16_t>((i & 0x8000) | std::min<std::uint16_t>(magnitude, 0x7F80));
  }
  for (Target target : kTargets)
    for (int power : {-127, -101, -100, -17, -1, 0, 1, 2, 13, 99, 100, 101, 127})
      for (float sign : {1.0f, -1.0f}) {
        check_all_levels(x.data(), FloatType::BF16, x.size(), std::ldexp(sign, power), target, power % 2 != 0);
        if (HasFatalFailure()) return;
      }
}

TEST(Cast, TenMillionF32) {
  const std::vector<float> x = hard_inputs(10'000'000);
  for (Target target : kTargets) check_all_levels(x.data(), FloatType::F32, x.size(), 1.0f, target, false);
}

TEST(Cast, HardF32WithScales) {
  const std::vector<float> x = hard_inputs(200'000);
  for (Target target : kTargets)
    for (float scale : kScales) check_all_levels(x.data(), FloatType::F32, x.size(), scale, target, false);
}

/// Every short length, at an odd address, NaN before and after the input, sentinels around the output; then once more
/// with the input and the scales ending at an unreadable page.
class ShortRuns : public testing::TestWithParam<FloatType> {};

TEST_P(ShortRuns, TouchNothingOutside) {
  const FloatType type = GetParam();
  const std::size_t size = static_cast<std::size_t>(size_of(type));
  const std::vector<std::uint16_t> halves = random_halves(512, type, 3);
  std::vector<float> floats(512);
  for (std::size_t i = 0; i < 512; ++i) floats[i] = static_cast<float>(half_value(halves[i], FloatType::F16));
  const char* source = type == FloatType::F32 ? reinterpret_cast<const char*>(floats.data())
                                              : reinterpret_cast<const char*>(halves.data());
  const std::vector<float> scales = {3.0f, -0.5f, 37.1f, 1.0f, 0.731f};
  for (const SimdLevel level : every_level())
    for (std::size_t n = 0; n <= 130; ++n)
      for (bool per_element : {false, true}) {
        std::vector<char> padded((n + 200) * size, static_cast<char>(0xFF));  // 0xFF.. is a NaN of every type
        const std::size_t offset = 64 * size + size;
        std::memcpy(padded.data() + offset, source, n * size);
        GuardedBuffer<float> guarded_scales(n + 1);
        for (std::size_t i = 0; i < n; ++i) guarded_scales.data()[i + 1] = scales[per_element ? i % 5 : 0];
        guarded_scales.data()[0] = scales[0];
        GuardedBuffer<char> guarded(n * size);
        std::memcpy(guarded.data(), source, n * size);

        const std::vector<float> used = per_element ? scales : std::vector<float>{scales[0]};
        const Reference want = reference(source, type, n, used, kTargets[0]);
        for (const char* x :
             {static_cast<const char*>(padded.data() + offset), static_cast<const char*>(guarded.data())}) {
          std::vector<std::uint8_t> codes(n + 6, kUntouched);
          float amax = -1.0f;
          CastArgs args =
              args_for(x, type, n, kTargets[0], guarded_scales.data() + (per_element ? 1 : 0), codes.data() + 3);
          if (per_element) args.layout = ScaleLayout::per_column();
          args.amax = &amax;
          cast_to_fp8(args);
          EXPECT_EQ(std::count(codes.begin(), codes.begin() + 3, kUntouched), 3);
          EXPECT_EQ(std::count(codes.end() - 3, codes.end(), kUntouched), 3);
          expect_same({codes.begin() + 3, codes.end() - 3}, want.codes,
                      std::string(name_of(level)) + " n=" + std::to_string(n));
          EXPECT_EQ(amax, want.amax) << name_of(level) << " n=" << n;
          if (HasFailure()) return;
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Cast, ShortRuns, testing::Values(FloatType::F32, FloatType::BF16, FloatType::F16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Cast, StridesAndScaleLayouts) {
  constexpr std::size_t kRows = 7, kCols = 201, kStride = 230;
  for (FloatType type : {FloatType::F32, FloatType::BF16, FloatType::F16}) {
    const std::size_t size = static_cast<std::size_t>(size_of(type));
    std::vector<char> x(kRows * kStride * size, static_cast<char>(0xFF));  // NaN between the rows
    const std::vector<std::uint16_t> halves = random_halves(2 * kRows * kCols, type, 5);
    std::vector<char> dense(kRows * kCols * size);
    for (std::size_t i = 0; i < kRows * kCols; ++i) {
      const float f = static_cast<float>(half_value(halves[i], type));
      if (type == FloatType::F32) std::memcpy(dense.data() + 4 * i, &f, 4);
      if (type != FloatType::F32) std::memcpy(dense.data() + 2 * i, &halves[i], 2);
    }
    for (std::size_t r = 0; r < kRows; ++r)
      std::memcpy(x.data() + r * kStride * size, dense.data() + r * kCols * size, kCols * size);
    std::vector<float> scales(kRows * kCols);
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.3f + 0.01f * static_cast<float>(i % 977);

    for (const auto& layout :
         {ScaleLayout::per_tensor(), ScaleLayout::per_row(), ScaleLayout::per_column(), ScaleLayout::blocks(1, 1)}) {
      const int row_stride = layout == ScaleLayout::per_row() ? 1
                             : layout.has_blocks()            ? static_cast<int>(kCols)
                                                              : 0,
                col_stride = layout.cols != 0 ? 1 : 0;
      std::vector<float> expanded(kRows * kCols);
      for (std::size_t i = 0; i < expanded.size(); ++i)
        expanded[i] =
            scales[i / kCols * static_cast<std::size_t>(row_stride) + i % kCols * static_cast<std::size_t>(col_stride)];
      const Reference want = reference(dense.data(), type, kRows * kCols, expanded, kTargets[2]);
      for (const SimdLevel level : every_level()) {
        std::vector<std::uint8_t> codes(kRows * kCols);
        float amax = -1.0f;
        CastArgs args = args_for(x.data(), type, kCols, kTargets[2], scales.data(), codes.data());
        args.rows = kRows;
        args.row_stride = kStride;
        args.layout = layout;
        args.amax = &amax;
        cast_to_fp8(args);
        expect_same(codes, want.codes, std::string(name_of(level)) + " " + name_of(type));
        EXPECT_EQ(amax, want.amax);
      }
    }
  }
}

TEST(Cast, SameOnAnyThreadCountLevelAndChunk) {
  const std::vector<float> x = hard_inputs(1'000'003);
  const float scale = 0.731f;
  for (Format format : {Format::E4M3, Format::E5M2}) {
    const Target target = {format, fp8_max(format, Dialect::gaudi2)};
    std::vector<std::uint8_t> first;
    for (int threads : {1, 3, 8}) {
      Threads scoped_threads(threads);
      for (const SimdLevel level : every_level()) {
        std::vector<std::uint8_t> codes(x.size());
        CastArgs args = args_for(x.data(), FloatType::F32, x.size(), target, &scale, codes.data());
        args.stochastic = 42;
        cast_to_fp8(args);
        if (first.empty()) first = codes;
        expect_same(codes, first, std::string(name_of(level)) + " " + std::to_string(threads) + " threads");
      }
    }
  }
}

TEST(Cast, BigOutputsAreStoredAroundTheCachesAndEqual) {
  const std::size_t n = static_cast<std::size_t>(streaming_bytes()) + 4099;
  const std::vector<std::uint16_t> part = random_halves(1 << 16, FloatType::BF16, 9);
  std::vector<std::uint16_t> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = part[i & 0xFFFF];
  const float scale = 37.1f;
  const Reference want = reference(part.data(), FloatType::BF16, part.size(), {scale}, kTargets[1]);
  for (const SimdLevel level : every_level()) {
    std::vector<std::uint8_t> codes(n + 8);
    cast_to_fp8(args_for(x.data(), FloatType::BF16, n, kTargets[1], &scale, codes.data() + 5));  // unaligned
    for (std::size_t i = 0; i < n; ++i)
      ASSERT_EQ(codes[i + 5], want.codes[i & 0xFFFF]) << name_of(level) << " element " << i;
  }
}

TEST(Cast, RefusesWhatItCannotDo) {
  std::vector<float> x(4);
  std::vector<std::uint8_t> codes(4);
  const CastArgs good = args_for(x.data(), FloatType::F32, 4, kTargets[0], x.data(), codes.data());
  EXPECT_NO_THROW(cast_to_fp8(good));
  expect_refused(
      cast_to_fp8, good, [](auto& a) { a.rows = -1; }, [](auto& a) { a.cols = -4; },
      [](auto& a) { a.rows = 2, a.row_stride = 3; },
      [](auto& a) { a.rows = std::int64_t{1} << 40, a.row_stride = std::int64_t{1} << 40; },
      [](auto& a) { a.x = nullptr; }, [](auto& a) { a.codes = nullptr; }, [](auto& a) { a.max = 449.0f; },
      [](auto& a) { a.max = 241.0f; }, [](auto& a) { a.max = 0.0f; },
      [](auto& a) { a.max = std::numeric_limits<float>::quiet_NaN(); }, [](auto& a) { a.layout.cols = 2; });
}

TEST(Cast, NothingToDo) {
  float amax = -1.0f;
  CastArgs args;
  args.amax = &amax;
  EXPECT_NO_THROW(cast_to_fp8(args));
  EXPECT_EQ(amax, 0.0f);
  args.rows = 5;
  EXPECT_NO_THROW(cast_to_fp8(args));
  std::vector<float> scale_inv(5, -1.0f);
  EXPECT_NO_THROW(cast_rows_dynamic(args, scale_inv.data()));
  EXPECT_EQ(scale_inv, std::vector<float>(5, 1.0f));
}

// Casts that write their codes transposed, too: beside the cast alone and a transpose by two loops.

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
  for (const FloatType type : {FloatType::F32, FloatType::BF16, FloatType::F16})
    for (const auto& [rows, cols, stride] : kMatrices) {
      Input x(type, rows, cols, stride);
      for (const SimdLevel level : every_level())
        for (const int threads : {1, 2}) {
          const Threads pool(threads);
          const float scale = threads == 1 ? 16.0f : 3.7f;
          CastArgs args = x.args(rows, cols, stride, threads == 1 ? Format::E4M3 : Format::E5M2);
          args.scale = scale;
          check(args, name_of(level) + std::string(" ") + std::to_string(rows) + "x" + std::to_string(cols));
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
    for (const auto& layout : {ScaleLayout::per_tensor(), ScaleLayout::per_row(), ScaleLayout::per_column()})
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
