// SPDX-License-Identifier: Apache-2.0
// Casts with a scale per block against the formulas of cast.h in f64, every level, thread count and kind of
// block; rows of x have gaps full of NaN, which nobody may read into an amax.
#include "runtime/kernels/cast_test.h"

namespace fp8::kernels {
namespace {

using namespace test;

// 1 x B, B x 1, B x B; whole and partial tiles; blocks beyond the matrix, wide ones, more columns than one unit of
// work.
const Shape kShapes[] = {{1, 1, 1, 1},      {5, 256, 1, 128},    {7, 1000, 1, 128},  {300, 37, 128, 1},
                         {64, 64, 16, 16},  {130, 333, 32, 32},  {9, 2100, 4, 3},    {33, 5000, 1, 16},
                         {3, 1700, 1, 513}, {70, 600, 64, 4096}, {20, 77, 9999, 10}, {40, 4111, 128, 128},
                         {2, 90, 1, 1}};

float max_of_type(FloatType type) {
  return type == FloatType::F32    ? std::numeric_limits<float>::max()
         : type == FloatType::BF16 ? std::bit_cast<float>(0x7F7F0000u)
                                   : 65504.0f;
}

double scale_rule(double amax, FloatType type, float max, float epsilon, bool power_of_two) {
  if (amax < static_cast<double>(epsilon)) amax = static_cast<double>(epsilon);
  if (amax == 0 || !std::isfinite(amax)) return 1;
  double scale = static_cast<double>(static_cast<float>(static_cast<double>(max) / amax));
  if (std::isinf(scale)) scale = static_cast<double>(max_of_type(type));
  return power_of_two ? std::ldexp(1.0, std::ilogb(scale)) : scale;
}

BlockCastArgs args_for(const Matrix& x, const Shape& s, Target target, std::vector<std::uint8_t>& codes,
                       std::vector<float>& scale_inv) {
  codes.assign(static_cast<std::size_t>(s.rows * s.cols), 0xAA);
  scale_inv.assign(static_cast<std::size_t>(tiles(s.rows, s.block_rows) * tiles(s.cols, s.block_cols)), -1.0f);
  auto args = matrix_args<BlockCastArgs>(x.data(), x.type, s.rows, s.cols, x.stride(), codes.data());
  args.format = target.format;
  args.max = target.max;
  args.layout = ScaleLayout::blocks(s.block_rows, s.block_cols);
  args.grid = scale_inv.data();
  return args;
}

/// Codes and scales against the formula.
void expect_blocks(const Matrix& x, const Shape& s, const BlockCastArgs& args, const std::string& what) {
  const std::vector<double> values = grid(args.format, *args.max);
  for (std::int64_t tr = 0; tr < tiles(s.rows, s.block_rows); ++tr)
    for (std::int64_t tc = 0; tc < tiles(s.cols, s.block_cols); ++tc) {
      const double scale = scale_rule(amax_of(x, s, tr, tc), x.type, *args.max, args.amax_epsilon, args.power_of_two);
      ASSERT_EQ(args.grid[tr * tiles(s.cols, s.block_cols) + tc], static_cast<float>(1 / scale)) << what;
      for (std::int64_t r = tr * s.block_rows; r < std::min(s.rows, (tr + 1) * s.block_rows); ++r)
        for (std::int64_t c = tc * s.block_cols; c < std::min(s.cols, (tc + 1) * s.block_cols); ++c)
          ASSERT_EQ(int{args.codes[r * s.cols + c]}, code_of(x, r, c, scale, values))
              << what << " at " << r << ", " << c;
    }
}

TEST(BlockCast, FollowsTheFormulaForEveryShape) {
  unsigned seed = 1;
  for (const Shape& s : kShapes)
    for (const FloatType type : {FloatType::F32, FloatType::BF16, FloatType::F16}) {
      const Matrix x(type, s.rows, s.cols, ++seed);
      const Target& target = kTargets[seed % 3];
      std::vector<std::uint8_t> codes;
      std::vector<float> scale_inv;
      for (const SimdLevel level : every_level()) {
        const Threads pool(level == levels().back() ? 3 : 1);
        BlockCastArgs args = args_for(x, s, target, codes, scale_inv);
        args.power_of_two = seed % 2 == 0;
        cast_blocks(args);
        expect_blocks(x, s, args,
                      std::string(name_of(level)) + " " + name_of(type) + " shape " + std::to_string(&s - kShapes));
      }
    }
}

TEST(BlockCast, ReadsAndWritesOnlyItsElements) {
  for (const Shape& s : {Shape{3, 1001, 1, 128}, {33, 35, 16, 16}, {5, 700, 1, 600}}) {
    const std::size_t n = static_cast<std::size_t>(s.rows * s.cols);
    GuardedBuffer<float> x(n);
    GuardedBuffer<std::uint8_t> codes(n);
    GuardedBuffer<float> scale_inv(static_cast<std::size_t>(tiles(s.rows, s.block_rows) * tiles(s.cols, s.block_cols)));
    std::fill(x.data(), x.data() + n, 2.0f);
    for (const SimdLevel level : every_level()) {
      auto args = matrix_args<BlockCastArgs>(x.data(), FloatType::F32, s.rows, s.cols, s.cols, codes.data());
      args.layout = ScaleLayout::blocks(s.block_rows, s.block_cols);
      args.grid = scale_inv.data();
      cast_blocks(args);
      // 448: 2 is every block's amax.
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(codes.data()[i], 0x7E) << name_of(level);
    }
  }
}

TEST(BlockCast, SpecialValuesOfTheAmax) {
  const float tiny = std::numeric_limits<float>::denorm_min(), huge = std::numeric_limits<float>::max();
  const std::vector<float> x = {0.0f, -0.0f, tiny, 0.0f,  huge,  1.0f,   kInf,   3.0f,   -kInf,  0.0f,
                                kNaN, 3.0f,  1.0f, -0.5f, 448.f, -448.f, 1e-37f, 1e-39f, 240.0f, 1.0f};
  for (const bool power_of_two : {false, true})
    for (const SimdLevel level : every_level()) {
      std::vector<std::uint8_t> codes(20);
      std::vector<float> scale_inv(10);
      auto args = matrix_args<BlockCastArgs>(x.data(), FloatType::F32, 1, 20, 20, codes.data());
      args.layout.cols = 2;
      args.grid = scale_inv.data();
      args.power_of_two = power_of_two;
      cast_blocks(args);
      const std::vector<double> values = grid(Format::E4M3, 448.0f);
      for (std::size_t i = 0; i < 10; ++i) {
        const double a = std::fabs(static_cast<double>(x[2 * i])), b = std::fabs(static_cast<double>(x[2 * i + 1]));
        const double amax = std::isnan(a) ? a : std::max(a, b);
        const double scale = scale_rule(amax, FloatType::F32, 448.0f, 0, power_of_two);
        EXPECT_EQ(scale_inv[i], static_cast<float>(1 / scale)) << i << name_of(level);
        for (const std::size_t j : {2 * i, 2 * i + 1}) {
          const double y = static_cast<double>(static_cast<float>(static_cast<double>(x[j]) * scale));
          EXPECT_EQ(int{codes[j]}, nearest_on_grid(y, values) | (std::signbit(x[j]) ? 0x80 : 0)) << j;
        }
      }
    }
}

TEST(BlockCast, EpsilonIsTheSmallestAmax) {
  const Shape s = {4, 64, 1, 16};
  Matrix x(FloatType::F32, s.rows, s.cols, 5);
  for (std::int64_t c = 0; c < 16; ++c) x.f32[static_cast<std::size_t>(c)] = 0.0f;
  std::vector<std::uint8_t> codes;
  std::vector<float> scale_inv;
  BlockCastArgs args = args_for(x, s, kTargets[0], codes, scale_inv);
  args.amax_epsilon = 20.0f;  // above some blocks' amax, below others'
  cast_blocks(args);
  expect_blocks(x, s, args, "epsilon");
  EXPECT_EQ(scale_inv[0], 1.0f / (448.0f / 20.0f));
}

TEST(BlockCast, StochasticRoundingHasTheBitsOfThePlainCast) {
  const Shape s = {40, 1100, 8, 32};
  const Matrix x(FloatType::BF16, s.rows, s.cols, 8);
  std::vector<std::uint8_t> codes, first;
  std::vector<float> scale_inv;
  for (const SimdLevel level : levels())
    for (const int threads : {1, 4}) {
      const ScopedSimdLevel scoped(level);
      const Threads pool(threads);
      BlockCastArgs args = args_for(x, s, kTargets[0], codes, scale_inv);
      args.stochastic = 99;
      cast_blocks(args);
      if (first.empty()) {  // row by row with the scales spread out, by the cast without blocks
        std::vector<float> scales(static_cast<std::size_t>(s.cols));
        first.resize(codes.size());
        std::vector<std::uint8_t> all(codes.size());
        for (std::int64_t band = 0; band < s.rows / s.block_rows; ++band) {
          for (std::int64_t c = 0; c < s.cols; ++c) {
            const double amax = amax_of(x, s, band, c / s.block_cols);
            scales[static_cast<std::size_t>(c)] = static_cast<float>(scale_rule(amax, x.type, 448.0f, 0, false));
          }
          CastArgs plain = matrix_args(x.data(), x.type, s.rows, s.cols, x.stride(), all.data());
          plain.scales = scales.data();
          plain.layout = ScaleLayout::per_column();
          plain.stochastic = 99;
          cast_to_fp8(plain);
          const std::ptrdiff_t begin = band * s.block_rows * s.cols, end = begin + s.block_rows * s.cols;
          std::copy(all.begin() + begin, all.begin() + end, first.begin() + begin);
        }
      }
      expect_same(codes, first, std::string(name_of(level)) + " threads " + std::to_string(threads));
    }
}

// --- the rules of checkpoints

double inverse_rule(double amax, float max, bool power_of_two) {
  if (amax == 0) return 1;
  const double inv =
      std::max(static_cast<double>(static_cast<float>(amax / static_cast<double>(max))), std::ldexp(1.0, -126));
  return power_of_two ? std::exp2(std::ceil(std::log2(inv))) : inv;
}

TEST(BlockCast, AmaxOverMaxFollowsTheFormulaForEveryShape) {
  unsigned seed = 70;
  for (const Shape& s : kShapes)
    for (const FloatType type : {FloatType::F32, FloatType::BF16, FloatType::F16}) {
      Matrix x(type, s.rows, s.cols, ++seed);
      for (std::int64_t c = 0; c < std::min(s.cols, s.block_cols); ++c) {  // the first block of the first band: zeros
        for (std::int64_t r = 0; r < std::min(s.rows, s.block_rows); ++r) {
          const auto i = static_cast<std::size_t>(r * x.stride() + c);
          if (type == FloatType::F32)
            x.f32[i] = 0;
          else
            x.half[i] = 0;
        }
      }
      const Target& target = kTargets[seed % 3];
      const std::vector<double> values = grid(target.format, target.max);
      for (const SimdLevel level : every_level()) {
        const Threads pool(level == levels().back() ? 3 : 1);
        const std::string what =
            std::string(name_of(level)) + " " + name_of(type) + " shape " + std::to_string(&s - kShapes);
        std::vector<std::uint8_t> codes, again;
        std::vector<float> scale_inv, unused;
        BlockCastArgs args = args_for(x, s, target, codes, scale_inv);
        args.rule = ScaleRule::amax_over_max;
        args.power_of_two = seed % 2 == 0;
        cast_blocks(args);
        std::vector<float> amax(scale_inv.size()), scale;
        CastArgs largest_of = args;
        largest_of.grid = amax.data();
        amax_blocks(largest_of);
        const std::int64_t across = tiles(s.cols, s.block_cols);
        for (std::size_t i = 0; i < scale_inv.size(); ++i) {
          const double largest =
              amax_of(x, s, static_cast<std::int64_t>(i) / across, static_cast<std::int64_t>(i) % across);
          ASSERT_EQ(static_cast<double>(amax[i]), largest) << what;
          ASSERT_EQ(static_cast<double>(scale_inv[i]), inverse_rule(largest, target.max, args.power_of_two))
              << what << " block " << i;
          scale.push_back(static_cast<float>(1 / static_cast<double>(scale_inv[i])));
        }
        for (std::int64_t r = 0; r < s.rows; ++r)
          for (std::int64_t c = 0; c < s.cols; ++c) {
            const double by =
                static_cast<double>(scale[static_cast<std::size_t>(r / s.block_rows * across + c / s.block_cols)]);
            ASSERT_EQ(int{codes[static_cast<std::size_t>(r * s.cols + c)]}, code_of(x, r, c, by, values))
                << what << " at " << r << ", " << c;
          }
        BlockCastArgs given = args_for(x, s, target, again, unused);
        given.rule = ScaleRule::given;
        given.scales = scale.data();
        given.grid = nullptr;
        cast_blocks(given);
        expect_same(again, codes, what + " given");
      }
    }
}

TEST(BlockCast, AmaxOverMaxTellsWhatIsNotFinite) {
  const std::vector<float> x = {0.0f, -0.0f, 1e-45f, 0.0f,   3e38f, 1.0f,    kInf,
                                3.0f, kNaN,  3.0f,   448.0f, -1.0f, -449.0f, 1.0f};
  for (const bool power_of_two : {false, true}) {
    std::vector<std::uint8_t> codes(x.size());
    std::vector<float> found(x.size() / 2);
    const auto n = static_cast<std::int64_t>(x.size());
    auto args = matrix_args<BlockCastArgs>(x.data(), FloatType::F32, 1, n, n, codes.data());
    args.layout.cols = 2;
    args.grid = found.data();
    args.rule = ScaleRule::amax_over_max;
    args.power_of_two = power_of_two;
    cast_blocks(args);
    EXPECT_EQ(found[0], 1.0f);
    EXPECT_EQ(found[1], 0x1p-126f);
    EXPECT_EQ(static_cast<double>(found[2]), inverse_rule(static_cast<double>(3e38f), 448.0f, power_of_two));
    EXPECT_EQ(found[3], kInf);
    EXPECT_TRUE(std::isnan(found[4]));
    EXPECT_EQ(found[5], 1.0f);
    EXPECT_EQ(found[6], power_of_two ? 2.0f : 449.0f / 448.0f);
    EXPECT_EQ(codes[10], 0x7E);
  }
}

// --- refusals

TEST(BlockCast, NamesWhatItCannotTake) {
  std::vector<float> x(16), scale_inv(16);
  std::vector<std::uint8_t> codes(16), e8m0(16);
  auto good = matrix_args<BlockCastArgs>(x.data(), FloatType::F32, 4, 4, 4, codes.data());
  good.grid = scale_inv.data();
  cast_blocks(good);
  const auto refused = [&](auto&& change, const char* word) {
    BlockCastArgs args = good;
    change(args);
    EXPECT_ERROR(std::invalid_argument, cast_blocks(args), word);
  };
  refused([](BlockCastArgs& a) { a.rows = -1; }, "-1 x 4");
  refused([](BlockCastArgs& a) { a.row_stride = 3; }, "row_stride is 3");
  refused([](BlockCastArgs& a) { a.layout.cols = 0; }, "blocks of 1 x 0");
  refused([](BlockCastArgs& a) { a.x = nullptr; }, "must not be null");
  refused([](BlockCastArgs& a) { a.grid = nullptr; }, "must not be null");
  refused([](BlockCastArgs& a) { a.max = 449.0f; }, "max is 449");
  refused([](BlockCastArgs& a) { a.amax_epsilon = kNaN; }, "amax_epsilon is nan");
  refused([](BlockCastArgs& a) { a.amax_epsilon = -1.0f; }, "amax_epsilon is -1");
  BlockDecodeArgs decode;
  decode.codes = codes.data();
  decode.rows = decode.cols = 4;
  decode.y = x.data();
  EXPECT_ERROR(std::invalid_argument, decode_blocks(decode), "got neither");
  decode.scale_inv = scale_inv.data();
  decode.e8m0 = e8m0.data();
  EXPECT_ERROR(std::invalid_argument, decode_blocks(decode), "got both");
  BlockCastArgs empty;  // no elements: nothing is needed
  cast_blocks(empty);
  empty.rows = 5;
  cast_blocks(empty);
  cast_mx(MxCastArgs{});
  decode_blocks(BlockDecodeArgs{});
}

// Decodes with a scale per block against the formula in f64, for f32 and E8M0 scales, every level and kind of block.

const Shape kDecodedShapes[] = {{1, 1, 1, 1},        {7, 1000, 1, 128},  {300, 37, 128, 1},
                                {130, 333, 32, 32},  {9, 2100, 4, 3},    {3, 1700, 1, 513},
                                {70, 600, 64, 4096}, {20, 77, 9999, 10}, {40, 4111, 128, 128}};

TEST(BlockDecode, IsTheRoundedProduct) {
  unsigned seed = 70;
  for (const Shape& s : kDecodedShapes) {
    std::mt19937 random(++seed);
    const std::size_t n = static_cast<std::size_t>(s.rows * s.cols);
    const std::int64_t across = tiles(s.cols, s.block_cols);
    std::vector<std::uint8_t> codes(n), e8m0(static_cast<std::size_t>(tiles(s.rows, s.block_rows) * across));
    std::vector<float> scale_inv(e8m0.size());
    for (auto& code : codes) code = static_cast<std::uint8_t>(random() % 0x78 | (random() & 0x80));
    for (auto& e : e8m0) e = static_cast<std::uint8_t>(117 + random() % 20);
    for (auto& v : scale_inv)
      v = std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096, static_cast<int>(random() % 12) - 8);
    for (const Format format : {Format::E4M3, Format::E5M2})
      for (const FloatType type : {FloatType::F32, FloatType::BF16, FloatType::F16})
        for (const bool mx : {false, true})
          for (const SimdLevel level : every_level()) {
            const Threads pool(level == levels().back() ? 3 : 1);
            std::vector<float> y(n);  // room for any type
            BlockDecodeArgs args;
            args.codes = codes.data();
            args.rows = s.rows;
            args.cols = s.cols;
            args.format = format;
            args.layout = ScaleLayout::blocks(s.block_rows, s.block_cols);
            args.scale_inv = mx ? nullptr : scale_inv.data();
            args.e8m0 = mx ? e8m0.data() : nullptr;
            args.y = y.data();
            args.type = type;
            decode_blocks(args);
            for (std::size_t i = 0; i < n; ++i) {
              const auto r = static_cast<std::int64_t>(i) / s.cols, c = static_cast<std::int64_t>(i) % s.cols;
              const auto tile = static_cast<std::size_t>(r / s.block_rows * across + c / s.block_cols);
              const double scale = mx ? std::ldexp(1.0, e8m0[tile] - 127) : static_cast<double>(scale_inv[tile]);
              const double value = grid_value(codes[i] & 0x7F, format) * (codes[i] & 0x80 ? -1.0 : 1.0);
              ASSERT_EQ(element(y.data(), type, i),
                        round_to(static_cast<double>(static_cast<float>(value * scale)), type))
                  << name_of(level) << " " << name_of(type) << " element " << i;
            }
          }
  }
}

TEST(BlockDecode, NaNScalesAndTheSmallestExponent) {
  const std::vector<std::uint8_t> codes = {0x38, 0xB8}, e8m0 = {0x00, 0xFF};  // 1, -1
  std::vector<float> y(2);
  BlockDecodeArgs args;
  args.codes = codes.data();
  args.rows = 1;
  args.cols = 2;
  args.layout.cols = 1;
  args.e8m0 = e8m0.data();
  args.y = y.data();
  for (const SimdLevel level : every_level()) {
    decode_blocks(args);
    EXPECT_EQ(y[0], 0x1p-127f) << name_of(level);
    EXPECT_TRUE(std::isnan(y[1]));
  }
}

// MX casts, with a power of two (E8M0) per 32 elements of a row or a column, against the formula of block_cast.h in
// f64, on every level.

int e8m0_by_definition(double amax, float max) {
  const float v = static_cast<float>(amax * static_cast<double>(1.0f / max));
  if (std::isnan(v)) return 0xFF;
  for (int e = 0; e < 0xFE; ++e)
    if (std::ldexp(1.0, e - 127) >= static_cast<double>(v)) return e;
  return 0xFE;
}

TEST(MxCast, FollowsTheFormulaInBothDirections) {
  unsigned seed = 40;
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 320}, {64, 33}, {100, 2500}, {31, 32}, {33, 31}})
    for (const bool columnwise : {false, true})
      for (const FloatType type : {FloatType::F32, FloatType::BF16, FloatType::F16}) {
        const Matrix x(type, rows, cols, ++seed);
        const Target& target = kTargets[seed % 3];
        const Shape s = {rows, cols, columnwise ? 32 : 1, columnwise ? 1 : 32};
        const std::vector<double> values = grid(target.format, target.max);
        const std::int64_t across = tiles(cols, s.block_cols);
        std::vector<int> want;
        for (std::int64_t tile = 0; tile < tiles(rows, s.block_rows) * across; ++tile)
          want.push_back(e8m0_by_definition(amax_of(x, s, tile / across, tile % across), target.max));
        for (const SimdLevel level : every_level()) {
          std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * cols));
          std::vector<std::uint8_t> e8m0(static_cast<std::size_t>(tiles(rows, s.block_rows) * across));
          auto args = matrix_args<MxCastArgs>(x.data(), type, rows, cols, x.stride(), codes.data());
          args.format = target.format;
          args.max = target.max;
          args.layout = ScaleLayout::blocks(s.block_rows, s.block_cols);
          args.e8m0 = e8m0.data();
          cast_mx(args);
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < cols; ++c) {
              const auto tile = static_cast<std::size_t>(r / s.block_rows * across + c / s.block_cols);
              const int e = want[tile];
              ASSERT_EQ(int{e8m0[tile]}, e) << name_of(level);
              ASSERT_EQ(int{codes[static_cast<std::size_t>(r * cols + c)]},
                        code_of(x, r, c, std::ldexp(1.0, 127 - e), values))
                  << name_of(level) << " " << r << ", " << c;
            }
        }
      }
}

TEST(MxCast, ExponentsOfHardAmaxes) {
  // From the formula alone: powers of two times max, their neighbours, subnormal quotients, the ends of the range.
  for (const float max : {448.0f, 240.0f, 57344.0f}) {
    for (int e = -149; e <= 127; ++e) {
      const float power = static_cast<float>(std::ldexp(1.0, e));
      for (const float base : {power, power * max, power * 1.5f}) {
        if (std::isinf(base)) continue;
        for (const float amax : {base, std::nextafter(base, 0.0f), std::nextafter(base, kInf)})
          EXPECT_EQ(int{e8m0_from_amax(amax, max)}, e8m0_by_definition(static_cast<double>(amax), max))
              << amax << " " << max;
      }
    }
    EXPECT_EQ(e8m0_from_amax(0.0f, max), 0);
    EXPECT_EQ(e8m0_from_amax(kInf, max), 0xFE);
    EXPECT_EQ(e8m0_from_amax(kNaN, max), 0xFF);
  }
  for (int e = 0; e < 0xFF; ++e)
    EXPECT_EQ(static_cast<double>(e8m0_value(static_cast<std::uint8_t>(e))), std::ldexp(1.0, e - 127));
  EXPECT_TRUE(std::isnan(e8m0_value(0xFF)));
}

TEST(MxCast, InfinitiesSaturateAndNaNIsNaNAllOver) {
  std::vector<float> x(96, 1.0f);
  x[3] = -kInf;
  x[40] = kNaN;
  for (const SimdLevel level : every_level()) {
    std::vector<std::uint8_t> codes(96), e8m0(3);
    auto args = matrix_args<MxCastArgs>(x.data(), FloatType::F32, 1, 96, 96, codes.data());
    args.e8m0 = e8m0.data();
    cast_mx(args);
    EXPECT_EQ(e8m0, (std::vector<std::uint8_t>{0xFE, 0xFF, 119}));  // 1 / 448 is between 2^-9 and 2^-8
    EXPECT_EQ(codes[3], 0xFE) << name_of(level);                    // -448
    EXPECT_EQ(codes[0], 0);
    for (std::size_t i = 32; i < 64; ++i) EXPECT_EQ(codes[i] & 0x7F, 0x7F);
    for (std::size_t i = 64; i < 96; ++i) EXPECT_EQ(codes[i], 0x78);  // 256
  }
}

}  // namespace
}  // namespace fp8::kernels
