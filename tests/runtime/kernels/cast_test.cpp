// SPDX-License-Identifier: Apache-2.0
// The casts, on every level of this machine, bit for bit against rounding by search on the format's value grid.
#include "runtime/kernels/cast_test.h"

namespace fp8::kernels {
namespace {

using namespace test;

constexpr float kScales[] = {1.0f, 1.0f / 16, 8.0f, 1024.0f, 0.731f, 37.1f, 1e-30f, 1e30f, -2.5f};
constexpr std::uint8_t kUntouched = 0xA5;

/// Casts x at every level and compares codes and amax with the reference.
void check_all_levels(const void* x, FloatType type, std::size_t n, float scale, Target target, bool round_product) {
  const Reference want = reference(x, type, n, {scale}, target, round_product);
  for (SimdLevel level : levels()) {
    ScopedSimdLevel scoped(level);
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
  for (Target target : kTargets) {
    for (float scale : kScales) {
      for (bool round_product : {false, true}) {
        check_all_levels(x.data(), GetParam(), x.size(), scale, target, round_product);
        if (HasFatalFailure()) return;
      }
    }
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
  for (Target target : kTargets) {
    for (int power : {-127, -101, -100, -17, -1, 0, 1, 2, 13, 99, 100, 101, 127}) {
      for (float sign : {1.0f, -1.0f}) {
        check_all_levels(x.data(), FloatType::BF16, x.size(), std::ldexp(sign, power), target, power % 2 != 0);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Cast, TenMillionF32) {
  const std::vector<float> x = hard_inputs(10'000'000);
  for (Target target : kTargets) check_all_levels(x.data(), FloatType::F32, x.size(), 1.0f, target, false);
}

TEST(Cast, HardF32WithScales) {
  const std::vector<float> x = hard_inputs(200'000);
  for (Target target : kTargets) {
    for (float scale : kScales) check_all_levels(x.data(), FloatType::F32, x.size(), scale, target, false);
  }
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
  for (SimdLevel level : levels()) {
    ScopedSimdLevel scoped(level);
    for (std::size_t n = 0; n <= 130; ++n) {
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
      for (std::size_t i = 0; i < expanded.size(); ++i) {
        expanded[i] =
            scales[i / kCols * static_cast<std::size_t>(row_stride) + i % kCols * static_cast<std::size_t>(col_stride)];
      }
      const Reference want = reference(dense.data(), type, kRows * kCols, expanded, kTargets[2]);
      for (SimdLevel level : levels()) {
        ScopedSimdLevel scoped(level);
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
      for (SimdLevel level : levels()) {
        ScopedSimdLevel scoped(level);
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
  for (SimdLevel level : levels()) {
    ScopedSimdLevel scoped(level);
    std::vector<std::uint8_t> codes(n + 8);
    cast_to_fp8(args_for(x.data(), FloatType::BF16, n, kTargets[1], &scale, codes.data() + 5));  // unaligned
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(codes[i + 5], want.codes[i & 0xFFFF]) << name_of(level) << " element " << i;
    }
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

}  // namespace
}  // namespace fp8::kernels
