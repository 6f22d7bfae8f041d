// SPDX-License-Identifier: Apache-2.0
// All 256 codes of both formats to every type, on every level, against the formats' definitions in double precision.

#include "fp8/runtime/kernels/cast.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

using test::value_of;

/// f32 product, then one rounding to the output type.
double expected(int code, Format format, float scale, FloatType type) {
  const double product = value_of(code, format) * static_cast<double>(scale);  // exact in double
  return test::round_to(static_cast<double>(static_cast<float>(product)), type);
}

void expect_value(const void* y, FloatType type, std::size_t i, int code, Format format, float scale,
                  const std::string& what) {
  const double want = expected(code, format, scale, type), got = test::element(y, type, i);
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << what << " code " << code;
    if (std::isnan(value_of(code, format))) {
      ASSERT_EQ(test::sign_of(y, type, i), (code & 0x80) != 0) << what << " code " << code;
    }
  } else {
    ASSERT_EQ(got, want) << what << " code " << code << " scale " << scale;
    ASSERT_EQ(test::sign_of(y, type, i), std::signbit(want)) << what << " code " << code;
  }
}

TEST(DecodeTable, IsTheFormat) {
  for (Format format : {Format::E4M3, Format::E5M2})
    for (int code = 0; code < 256; ++code) {
      const float got = decode_table(format)[code];
      const double want = value_of(code, format);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << code;
      } else {
        EXPECT_EQ(static_cast<double>(got), want) << code;
      }
      EXPECT_EQ(std::signbit(got), code >= 128);
    }
  EXPECT_EQ(decode_table(Format::E4M3)[0x7E], 448.0f);
  EXPECT_EQ(decode_table(Format::E4M3)[0x77], 240.0f);
  EXPECT_EQ(decode_table(Format::E4M3)[0x01], 0x1p-9f);
  EXPECT_EQ(decode_table(Format::E5M2)[0x7B], 57344.0f);
  EXPECT_EQ(decode_table(Format::E5M2)[0x01], 0x1p-16f);
}

TEST(DecodeTable, Gaudi2ReadsTheHighestExponentAsInfinityAndNan) {
  for (int code = 0; code < 256; ++code) {
    const float got = decode_table(Format::E4M3, Dialect::gaudi2)[code];
    const int magnitude = code & 0x7F;
    EXPECT_EQ(std::signbit(got), code >= 128) << code;
    if (magnitude < 0x78) {
      EXPECT_EQ(got, decode_table(Format::E4M3)[code]) << code;
    } else {
      EXPECT_TRUE(magnitude == 0x78 ? std::isinf(got) : std::isnan(got)) << code;
    }
    const float e5m2 = decode_table(Format::E5M2, Dialect::gaudi2)[code];
    EXPECT_EQ(std::memcmp(&e5m2, &decode_table(Format::E5M2)[code], sizeof e5m2), 0) << code;
  }
}

struct Case {
  FloatType type;
  Format format;
};

struct Decode : testing::TestWithParam<Case> {
  /// Codes [rows, n / rows] to GetParam()'s type at y.
  static DecodeArgs args_of(const std::uint8_t* codes, std::size_t rows, std::size_t n, void* y,
                            const float* scale_inv) {
    DecodeArgs args;
    args.codes = codes, args.rows = static_cast<std::int64_t>(rows), args.cols = static_cast<std::int64_t>(n / rows);
    args.format = GetParam().format, args.type = GetParam().type;
    args.y = y, args.scale_inv = scale_inv;
    return args;
  }
};

constexpr float kScales[] = {1.0f,   0.0625f, 0.731f, 37.1f, -3.0f,   0.0f,  -0.0f,
                             1e-30f, 1e-38f,  1e-41f, 1e30f, 3.4e38f, 1.17f, 0.0023412f};

TEST_P(Decode, AllCodesOneScale) {
  const auto [type, format] = GetParam();
  // 256 codes are short, 8192 take the path of long runs.
  for (std::size_t n : {std::size_t{256}, std::size_t{8192}}) {
    std::vector<std::uint8_t> codes(n);
    for (std::size_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
    for (float scale : kScales) {
      std::vector<char> first;
      for (const SimdLevel level : every_level()) {
        std::vector<char> y(n * static_cast<std::size_t>(size_of(type)));
        DecodeArgs args = args_of(codes.data(), 4, n, y.data(), scale == 1.0f ? nullptr : &scale);
        decode_from_fp8(args);
        for (std::size_t i = 0; i < n; ++i) {
          expect_value(y.data(), type, i, codes[i], format, scale, name_of(level));
          if (HasFatalFailure()) return;
        }
        if (first.empty()) first = y;
        EXPECT_EQ(y == first, true) << name_of(level) << " differs in bits from scalar, scale " << scale;
      }
    }
  }
}

TEST_P(Decode, ScalePerRowAndPerColumn) {
  const auto [type, format] = GetParam();
  std::mt19937 random(3);
  constexpr std::size_t kRows = 9;
  for (std::size_t cols : {std::size_t{1}, std::size_t{77}, std::size_t{2500}}) {
    const std::size_t n = kRows * cols;
    std::vector<std::uint8_t> codes(n);
    for (auto& code : codes) code = static_cast<std::uint8_t>(random());
    std::vector<float> scales(n);
    for (auto& scale : scales)
      scale = std::ldexp(1.0f + static_cast<float>(random() % 1000) / 999, static_cast<int>(random() % 20) - 10);
    for (const auto& layout : {ScaleLayout::per_row(), ScaleLayout::per_column(), ScaleLayout::blocks(1, 1)}) {
      const std::size_t row_stride = layout.cols == 0 ? 1 : layout.rows * cols, col_stride = layout.cols != 0 ? 1 : 0;
      for (const SimdLevel level : every_level()) {
        std::vector<char> y(n * static_cast<std::size_t>(size_of(type)));
        DecodeArgs args = args_of(codes.data(), kRows, n, y.data(), scales.data());
        args.layout = layout;
        decode_from_fp8(args);
        for (std::size_t i = 0; i < n; ++i) {
          const float scale = scales[i / cols * row_stride + i % cols * col_stride];
          expect_value(y.data(), type, i, codes[i], format, scale, name_of(level));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Codes from 0x78 on stand alone between others, so that a vector holds both: their neighbours keep ocp's bits.
TEST_P(Decode, Gaudi2CodesFrom0x78AreInfinityAndNanOnEveryLevel) {
  const auto [type, format] = GetParam();
  const auto size = static_cast<std::size_t>(size_of(type));
  for (std::size_t n : {std::size_t{64}, std::size_t{8192}}) {
    std::vector<std::uint8_t> codes(n);
    for (std::size_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(i % 5 == 0 ? i * 7 + i / 256 : i % 0x78);
    std::vector<float> scales(n);
    for (std::size_t i = 0; i < n; ++i) scales[i] = 0.5f + static_cast<float>(i % 97);
    for (bool per_element : {false, true}) {
      std::vector<char> first;
      for (const SimdLevel level : every_level()) {
        std::vector<char> y(n * size), ocp(n * size);
        DecodeArgs args = args_of(codes.data(), 1, n, ocp.data(), scales.data());
        if (per_element) args.layout = ScaleLayout::per_column();
        decode_from_fp8(args);
        args.y = y.data();
        args.dialect = Dialect::gaudi2;
        decode_from_fp8(args);
        for (std::size_t i = 0; i < n; ++i) {
          const int magnitude = codes[i] & 0x7F;
          if (format == Format::E5M2 || magnitude < 0x78) {
            ASSERT_EQ(std::memcmp(y.data() + i * size, ocp.data() + i * size, size), 0) << name_of(level) << " " << i;
            continue;
          }
          const double got = test::element(y.data(), type, i);
          ASSERT_TRUE(magnitude == 0x78 ? std::isinf(got) : std::isnan(got))
              << name_of(level) << " code " << int{codes[i]};
          ASSERT_EQ(test::sign_of(y.data(), type, i), codes[i] >= 0x80) << name_of(level) << " code " << int{codes[i]};
        }
        if (first.empty()) first = y;
        EXPECT_EQ(y == first, true) << name_of(level) << " differs in bits from scalar";
      }
    }
  }
}

TEST_P(Decode, ShortRunsTouchNothingOutside) {
  const auto [type, format] = GetParam();
  const std::size_t size = static_cast<std::size_t>(size_of(type));
  for (const SimdLevel level : every_level())
    for (std::size_t n = 0; n <= 130; ++n)
      for (bool per_element : {false, true}) {
        test::GuardedBuffer<std::uint8_t> codes(n);
        test::GuardedBuffer<float> scales(per_element ? n : 1);
        for (std::size_t i = 0; i < n; ++i) codes.data()[i] = static_cast<std::uint8_t>(37 * i + n);
        for (std::size_t i = 0; i < (per_element ? n : 1); ++i) scales.data()[i] = 0.25f + static_cast<float>(i);
        test::GuardedBuffer<char> guarded(n * size);
        std::vector<char> padded((n + 6) * size, 0x5A);
        for (char* y : {guarded.data(), padded.data() + 3 * size}) {
          DecodeArgs args = args_of(codes.data(), 1, n, y, scales.data());
          if (per_element) args.layout = ScaleLayout::per_column();
          decode_from_fp8(args);
          for (std::size_t i = 0; i < n; ++i) {
            expect_value(y, type, i, codes.data()[i], format, scales.data()[per_element ? i : 0], name_of(level));
            if (HasFatalFailure()) return;
          }
        }
        EXPECT_EQ(std::count(padded.begin(), padded.begin() + static_cast<std::ptrdiff_t>(3 * size), 0x5A),
                  static_cast<std::ptrdiff_t>(3 * size));
        EXPECT_EQ(std::count(padded.end() - static_cast<std::ptrdiff_t>(3 * size), padded.end(), 0x5A),
                  static_cast<std::ptrdiff_t>(3 * size));
      }
}

TEST_P(Decode, BigOutputsOnSeveralThreads) {
  const auto [type, format] = GetParam();
  const std::size_t n = static_cast<std::size_t>(streaming_bytes()) / 2 + 12'345;
  std::vector<std::uint8_t> codes(n);
  for (std::size_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(i * 13 + i / 256);
  const float scale = 0.731f;
  std::vector<double> want(256);
  for (int code = 0; code < 256; ++code) want[static_cast<std::size_t>(code)] = expected(code, format, scale, type);
  const Threads pool(3);
  for (const SimdLevel level : every_level()) {
    std::vector<char> y(n * static_cast<std::size_t>(size_of(type)));
    DecodeArgs args = args_of(codes.data(), 1, n, y.data(), &scale);
    decode_from_fp8(args);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double got = test::element(y.data(), type, i);
      wrong += got != want[codes[i]] && !(std::isnan(got) && std::isnan(want[codes[i]]));
    }
    EXPECT_EQ(wrong, 0u) << name_of(level);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Decode,
                         testing::Values(Case{FloatType::F32, Format::E4M3}, Case{FloatType::F32, Format::E5M2},
                                         Case{FloatType::BF16, Format::E4M3}, Case{FloatType::BF16, Format::E5M2},
                                         Case{FloatType::F16, Format::E4M3}, Case{FloatType::F16, Format::E5M2}),
                         [](const auto& info) {
                           return std::string(name_of(info.param.type)) + "_" + name_of(info.param.format);
                         });

TEST(HasNaNCode, EachCodeAloneAndHidden) {
  for (Format format : {Format::E4M3, Format::E5M2})
    for (Dialect dialect : {Dialect::gaudi2, Dialect::gaudi3, Dialect::ocp})
      for (int code = 0; code < 256; ++code) {
        const double value = value_of(code, format);
        const bool want =
            !std::isfinite(value) || (format == Format::E4M3 && dialect == Dialect::gaudi2 && std::fabs(value) > 240);
        std::vector<std::uint8_t> codes(5001, 0x77 & (format == Format::E5M2 ? 0x3B : 0xFF));
        codes[4999] = static_cast<std::uint8_t>(code);
        EXPECT_EQ(has_nan_code(codes.data(), 5001, format, dialect), want)
            << code << name_of(format) << name_of(dialect);
        EXPECT_FALSE(has_nan_code(codes.data(), 4999, format, dialect));
      }
  EXPECT_FALSE(has_nan_code(nullptr, 0, Format::E4M3, Dialect::ocp));
  EXPECT_THROW(has_nan_code(nullptr, 1, Format::E4M3, Dialect::ocp), std::invalid_argument);
  EXPECT_THROW(has_nan_code(nullptr, -1, Format::E4M3, Dialect::ocp), std::invalid_argument);
}

TEST(DecodeErrors, BadArguments) {
  std::uint8_t codes[4] = {};
  float y[4] = {}, scale[4] = {};
  DecodeArgs good{.codes = codes};
  good.rows = good.cols = 2;
  good.y = y;
  good.scale_inv = scale;
  EXPECT_NO_THROW(decode_from_fp8(good));
  test::expect_refused(
      decode_from_fp8, good, [](auto& a) { a.rows = -1; },
      [](auto& a) { a.rows = std::int64_t{1} << 40, a.cols = std::int64_t{1} << 40; },
      [](auto& a) { a.codes = nullptr; }, [](auto& a) { a.y = nullptr; }, [](auto& a) { a.layout.cols = 3; });
  EXPECT_NO_THROW(decode_from_fp8(DecodeArgs{}));
}

}  // namespace
}  // namespace fp8::kernels
