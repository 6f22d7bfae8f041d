// SPDX-License-Identifier: Apache-2.0
// gemm's arguments: it reads and writes nothing beside the operands that they name, and wrong ones are refused by the
// name of their field.

#include "runtime/kernels/gemm_problem.h"

namespace fp8::kernels {
namespace {

using test::Problem;

// Every operand and y end where readable memory ends (masked vector loads escape a sanitizer, not this).
TEST(Gemm, StaysWithinItsBuffers) {
  using Guarded = test::GuardedBuffer<std::uint8_t>;
  for (const SimdLevel level : every_level()) {
    for (const std::int64_t m : {1, 5, 17, 35})
      for (const std::int64_t n : {1, 15, 17, 66})
        for (const std::int64_t k : {1, 5, 61, 67, 257}) {
          Problem p;
          p.m = m, p.n = n, p.k = k;
          p.a_type = static_cast<Storage>(k % 5), p.y_type = static_cast<FloatType>(n % 3), p.w_channels = true,
          p.has_bias = true;
          p.fill(2);
          p.a_scale = {0x1p-12f};
          const auto guard = [](Guarded& buffer, const void* from, std::size_t bytes) {
            std::memcpy(buffer.data(), from, bytes);
          };
          Guarded a(p.a.size()), w(p.w.size()), packed(p.packed.size()), bias(p.bias.size()),
              scale(p.w_scale.size() * 4), y(p.y0.size());
          guard(a, p.a.data(), p.a.size());
          guard(w, p.w.data(), p.w.size());
          guard(packed, p.packed.data(), p.packed.size());
          guard(bias, p.bias.data(), p.bias.size());
          guard(scale, p.w_scale.data(), p.w_scale.size() * 4);
          for (const Layout layout : {Layout::packed, Layout::row_major}) {
            GemmArgs args = p.args(layout, p.y0);
            args.a = a.data(), args.w = layout == Layout::packed ? packed.data() : w.data(), args.bias = bias.data();
            args.w_scale_inv = reinterpret_cast<const float*>(scale.data()), args.y = y.data();
            gemm(args);
            p.check(std::vector<std::uint8_t>(y.data(), y.data() + p.y0.size()), name_of(level));
            if (HasFatalFailure()) return;
          }
        }
  }
}

TEST(Gemm, WrongArgumentsNameTheField) {
  Problem p;
  p.m = 2, p.n = 3, p.k = 4;
  p.fill(1);
  std::vector<std::uint8_t> y = p.y0;
  const auto message = [&](auto change) {
    GemmArgs args = p.args(Layout::row_major, y);
    change(args);
    return error_of<std::invalid_argument>([&] { gemm(args); });
  };
  EXPECT_EQ(message([](GemmArgs& g) { g.m = -1; }), "[gemm] m must be >= 0, got -1");
  EXPECT_EQ(message([](GemmArgs& g) { g.a_stride = 3; }), "[gemm] a_stride must be >= k = 4, got 3");
  EXPECT_EQ(message([](GemmArgs& g) { g.y_stride = 2; }), "[gemm] y_stride must be >= n = 3, got 2");
  EXPECT_EQ(message([](GemmArgs& g) { g.w_scale_stride = 2; }), "[gemm] w_scale_stride must be 0 or 1, got 2");
  EXPECT_EQ(message([](GemmArgs& g) { g.w = nullptr; }), "[gemm] w must be a pointer, got null");
  EXPECT_EQ(message([](GemmArgs& g) { g.n = std::numeric_limits<std::int64_t>::max(); }).substr(0, 14),
            "[packed_bytes]");
}

// gemm_together: every output as gemm() alone gives it, to the bit, and within the tolerance of f64 sums; on every
// level, with products of mixed sizes, layouts, formats and outputs, scales in groups, Gaudi2's codes, 1 to 3 threads.

constexpr Layout kLayouts[] = {Layout::packed, Layout::row_major};

/// Products of one a. group: 0, or columns that share a scale, in blocks of 5 rows of w.
struct Together {
  std::vector<Problem> all;
  std::int64_t group = 0;
  Dialect dialect = Dialect::ocp;
  std::vector<float> scales;  // of groups, for a and for each w

  Together(std::int64_t m, std::int64_t k, Storage a_type, const std::vector<std::int64_t>& widths) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      Problem& p = all.emplace_back();
      p.m = m, p.n = widths[i], p.k = k, p.a_type = a_type;
      p.a_gap = 3, p.y_gap = static_cast<std::int64_t>(i);
      p.a_rows = true, p.w_channels = i % 2 == 1;
      p.has_bias = i % 3 == 1, p.accumulate = i % 3 == 2;
      p.w_format = i % 4 == 3 ? Format::E5M2 : Format::E4M3;
      p.y_type = i % 2 == 0 ? FloatType::F32 : FloatType::BF16;
      p.fill(static_cast<unsigned>(100 * m + k) + static_cast<unsigned>(i));
      p.a = all.front().a;
      p.a_scale = all.front().a_scale;
    }
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    scales.resize(static_cast<std::size_t>((m + 200) * (k + 1)));
    for (float& scale : scales) scale = std::exp2(normal(random));
  }

  GemmArgs args(std::size_t i, std::vector<std::uint8_t>& y) const {
    GemmArgs g = all[i].args(kLayouts[i % 2], y);
    g.a = all.front().a.data();
    g.dialect = dialect;
    if (group == 0) return g;
    g.blocks.cols = group, g.blocks.rows = 5, g.blocks.first_row = static_cast<std::int64_t>(i);
    g.a_scale_inv = scales.data(), g.w_scale_inv = scales.data() + i;
    return g;
  }

  void check(const std::string& what) const {
    std::vector<std::vector<std::uint8_t>> alone, together;
    for (const Problem& p : all) alone.push_back(p.y0), together.push_back(p.y0);
    std::vector<GemmArgs> products;
    for (std::size_t i = 0; i < all.size(); ++i) {
      gemm(args(i, alone[i]));
      products.push_back(args(i, together[i]));
    }
    gemm_together(products);
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(together[i], alone[i]) << what << " product " << i;
      if (group == 0 && dialect == Dialect::ocp) all[i].check(together[i], what);
    }
  }
};

struct GemmTogether : testing::TestWithParam<SimdLevel> {
  ~GemmTogether() override { set_num_threads(before_); }
  const ScopedSimdLevel level_{GetParam()};
  const int before_ = num_threads();
};

TEST_P(GemmTogether, GivesTheBitsOfEach) {
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    for (const std::int64_t m : {1, 2, 5, 17, 40})
      for (const std::int64_t k : {1, 33, 130})
        for (const auto type : {Storage::BF16, Storage::F32, Storage::E4M3}) {
          const std::string what = std::to_string(threads) + " threads, " + std::to_string(m) + " x " +
                                   std::to_string(k) + " " + std::to_string(static_cast<int>(type));
          Together(m, k, type, {130, 1, 37, 16, 0, 64}).check(what);
          if (HasFatalFailure()) return;
        }
  }
}

// More rows than a chunk holds, so many groups of blocks that rows are not cut, and so few that they are.
TEST_P(GemmTogether, GivesThemForManyRowsAndGroups) {
  set_num_threads(2);
  Together(530, 5, Storage::BF16, {16, 3}).check("many rows");
  Together(3, 5, Storage::BF16, {16 * 70, 16 * 3 + 1, 16 * 30}).check("many groups");
  Together(0, 5, Storage::BF16, {16, 3}).check("no rows");
  Together(2, 0, Storage::BF16, {16, 3}).check("no columns");
  Together(2, 4, Storage::BF16, {0, 0}).check("no channels");
}

TEST_P(GemmTogether, GivesThemWithScalesInGroups) {
  for (const std::int64_t m : {1, 19}) {
    Together t(m, 130, m == 1 ? Storage::E4M3 : Storage::BF16, {37, 16, 100});
    t.group = 32;
    t.check("groups, m " + std::to_string(m));
  }
}

TEST_P(GemmTogether, GivesThemWithGaudi2Codes) {
  Together t(9, 70, Storage::E4M3, {37, 16, 5});
  t.dialect = Dialect::gaudi2;
  t.all.front().a[2 * 73 + 5] = 0x78;  // infinity
  t.all[1].w[3 * 70 + 9] = 0xFE;       // NaN
  t.all[2].w[4 * 70] = 0xF8;           // -infinity
  for (Problem& p : t.all) p.pack();
  std::vector<std::uint8_t> y = t.all.back().y0;
  gemm(t.args(2, y));
  EXPECT_FALSE(std::isfinite(test::load(y, FloatType::F32, 2 * t.all.back().y_stride())));
  t.check("gaudi2");
}

TEST(GemmTogetherArguments, MustShareTheirActivations) {
  const Together t(4, 8, Storage::BF16, {16, 5});
  std::vector<std::uint8_t> y0 = t.all[0].y0, y1 = t.all[1].y0;
  const auto message = [&](auto change) {
    std::vector<GemmArgs> products = {t.args(0, y0), t.args(1, y1)};
    change(products[1]);
    return error_of<std::invalid_argument>([&] { gemm_together(products); });
  };
  const std::vector<std::uint8_t> other(t.all[0].a);
  EXPECT_THAT(message([](GemmArgs& args) { args.m = 3; }), StartsWith("[gemm] m must be "));
  EXPECT_THAT(message([](GemmArgs& args) { args.k = 7; }), StartsWith("[gemm] k must be "));
  EXPECT_THAT(message([](GemmArgs& args) { args.blocks.cols = 4; }), StartsWith("[gemm] blocks.cols must be "));
  EXPECT_THAT(message([&](GemmArgs& args) { args.a = other.data(); }), StartsWith("[gemm] a must be "));
  EXPECT_THAT(message([](GemmArgs& args) { args.a_type = Storage::F16; }), StartsWith("[gemm] a must be "));
  EXPECT_THAT(message([](GemmArgs& args) { args.a_stride += 1; }), StartsWith("[gemm] a must be "));
  EXPECT_THAT(message([](GemmArgs& args) { args.w = nullptr; }), StartsWith("[gemm] w must be "));
  EXPECT_EQ(message([](GemmArgs&) {}), "");
  gemm_together({});
}

INSTANTIATE_TEST_SUITE_P(Levels, GemmTogether, testing::ValuesIn(levels()),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace fp8::kernels
