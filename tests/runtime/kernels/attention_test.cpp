// SPDX-License-Identifier: Apache-2.0
// The documented sums, to the bit on every level; their distance from attention in double; operands with gaps of NaN
// that end where readable memory does; keys and values that are codes; rows that see nothing, infinity and NaN.
#include "fp8/runtime/kernels/attention.h"

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kBatch = 2, kHeads = 3;

constexpr FloatType kTypes[] = {FloatType::BF16, FloatType::F16, FloatType::F32};

std::uint16_t half_of(FloatType type, float x) { return type == FloatType::BF16 ? f32_to_bf16(x) : f32_to_f16(x); }

float rounded(FloatType type, float x) {
  const std::uint16_t half = half_of(type, x);
  return type == FloatType::F32 ? x : load_element(&half, type, 0);
}

/// [kBatch, kHeads, rows, width] at the end of readable memory, rows `gap` elements of NaN apart.
class Heads {
 public:
  Heads(FloatType type, std::int64_t rows, std::int64_t width, std::int64_t gap)
      : type_(type),
        rows_(rows),
        stride_(width + gap),
        half_(type == FloatType::F32 ? 0 : count(width)),
        f32_(type == FloatType::F32 ? count(width) : 0) {
    for (std::int64_t i = 0; i < elements(width); ++i) write(i, kNaN);
  }
  void fill(std::int64_t width, unsigned seed, float spread) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, spread);
    for (std::int64_t g = 0; g < kBatch * kHeads; ++g)
      for (std::int64_t r = 0; r < rows_; ++r)
        for (std::int64_t i = 0; i < width; ++i) set(g, r, i, normal(random));
  }
  float at(std::int64_t g, std::int64_t r, std::int64_t i) {
    const auto index = static_cast<std::size_t>((g * rows_ + r) * stride_ + i);
    return type_ == FloatType::F32 ? f32_.data()[index]
                                   : load_element(half_.data(), type_, static_cast<std::int64_t>(index));
  }
  void set(std::int64_t g, std::int64_t r, std::int64_t i, float x) { write((g * rows_ + r) * stride_ + i, x); }
  template <class Data>
  HeadsOf<Data> view() {
    void* data = type_ == FloatType::F32 ? static_cast<void*>(f32_.data()) : half_.data();
    return {static_cast<Data*>(data), kHeads * rows_ * stride_, rows_ * stride_, stride_};
  }

 private:
  std::int64_t elements(std::int64_t width) const { return (kBatch * kHeads * rows_ - 1) * stride_ + width; }
  std::size_t count(std::int64_t width) const { return static_cast<std::size_t>(elements(width)); }
  void write(std::int64_t i, float x) {
    if (type_ == FloatType::F32)
      f32_.data()[i] = x;
    else
      half_.data()[i] = half_of(type_, x);
  }

  FloatType type_;
  std::int64_t rows_, stride_;
  test::GuardedBuffer<std::uint16_t> half_;
  test::GuardedBuffer<float> f32_;
};

struct Problem {
  FloatType type;
  std::int64_t rows, keys, width;
  bool masked;
  Heads q, k, v, mask, y;
  std::vector<float> logsumexp;

  Problem(FloatType type, std::int64_t rows, std::int64_t keys, std::int64_t width, bool masked = false,
          std::int64_t gap = 0, float spread = 1)
      : type(type),
        rows(rows),
        keys(keys),
        width(width),
        masked(masked),
        q(type, rows, width, gap),
        k(type, keys, width, gap),
        v(type, keys, width, 2 * gap),
        mask(type, rows, keys, gap),
        y(type, rows, width, gap),
        logsumexp(static_cast<std::size_t>(kBatch * kHeads * rows)) {
    const auto seed = static_cast<unsigned>(rows * 1000 + keys * 10 + width);
    q.fill(width, seed, spread), k.fill(width, seed + 1, spread), v.fill(width, seed + 2, 1);
    mask.fill(keys, seed + 3, 2);
    for (std::int64_t r = 0; r < rows; ++r) mask.set(1, r, keys / 2, -kInfinity);
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(width)); }
  AttentionArgs args() {
    AttentionArgs out;
    out.type = type, out.batch = kBatch, out.heads = kHeads, out.rows = rows, out.keys = keys, out.width = width;
    out.q = q.view<const void>(), out.k = k.view<const void>(), out.v = v.view<const void>(), out.y = y.view<void>();
    if (masked) out.mask = mask.view<const void>();
    out.scale = scale();
    out.logsumexp = {logsumexp.data(), kHeads * rows, rows, 1};
    return out;
  }
  std::vector<std::uint32_t> bits() {
    std::vector<std::uint32_t> out;
    for (std::int64_t g = 0; g < kBatch * kHeads; ++g)
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < width; ++i) out.push_back(std::bit_cast<std::uint32_t>(y.at(g, r, i)));
    for (float x : logsumexp) out.push_back(std::bit_cast<std::uint32_t>(x));
    return out;
  }
};

/// attention.h's formula for one row: y [width], and its logsumexp at the end.
std::vector<float> documented(Problem& p, std::int64_t g, std::int64_t row) {
  const auto width = static_cast<std::size_t>(p.width);
  std::vector<float> ms, ls;
  std::vector<std::vector<float>> os;
  for (std::int64_t first = 0; first < p.keys; first += 256) {
    std::vector<float> s;
    for (std::int64_t j = first; j < std::min(p.keys, first + 256); ++j) {
      float sum[2] = {};
      for (std::int64_t d = 0; d < p.width; ++d) sum[d % 2] = sum[d % 2] + p.q.at(g, row, d) * p.k.at(g, j, d);
      s.push_back((sum[0] + sum[1]) * p.scale() + (p.masked ? p.mask.at(g, row, j) : 0.0f));
    }
    const auto n = static_cast<std::int64_t>(s.size());
    ms.push_back(max_of(s.data(), n));
    exp_shifted(s.data(), n, ms.back());
    for (float& x : s) x = p.type == FloatType::F16 ? x : rounded(p.type, x);
    ls.push_back(sum_of(s.data(), n));
    os.emplace_back(width, 0.0f);
    for (std::int64_t j = 0; j < n; ++j)
      for (std::size_t d = 0; d < width; ++d)
        os.back()[d] =
            os.back()[d] + s[static_cast<std::size_t>(j)] * p.v.at(g, first + j, static_cast<std::int64_t>(d));
  }
  const float most = *std::max_element(ms.begin(), ms.end());
  std::vector<float> y(width, 0.0f);
  float total = 0;
  for (std::size_t c = 0; c < ms.size(); ++c) {
    float w = ms[c];
    exp_shifted(&w, 1, most);
    for (std::size_t d = 0; d < width; ++d) y[d] = y[d] + w * os[c][d];
    total = total + w * ls[c];
  }
  for (float& x : y) x = rounded(p.type, x * (1 / total));
  y.push_back(most + std::log(total));
  return y;
}

/// softmax(scale q k^T + mask) v in double, and the sum of |p v|.
std::pair<std::vector<double>, std::vector<double>> exact(Problem& p, std::int64_t g, std::int64_t row) {
  std::vector<double> s, y(static_cast<std::size_t>(p.width), 0.0), size = y;
  for (std::int64_t j = 0; j < p.keys; ++j) {
    double sum = p.masked ? p.mask.at(g, row, j) / static_cast<double>(p.scale()) : 0.0;
    for (std::int64_t d = 0; d < p.width; ++d) sum += static_cast<double>(p.q.at(g, row, d)) * p.k.at(g, j, d);
    s.push_back(sum * p.scale());
  }
  const double most = *std::max_element(s.begin(), s.end());
  double total = 0;
  for (double& x : s) total += x = std::exp(x - most);
  for (std::int64_t j = 0; j < p.keys; ++j)
    for (std::int64_t d = 0; d < p.width; ++d) {
      const double term = s[static_cast<std::size_t>(j)] / total * p.v.at(g, j, d);
      y[static_cast<std::size_t>(d)] += term, size[static_cast<std::size_t>(d)] += std::abs(term);
    }
  return {y, size};
}

void expect_documented(Problem& p, const char* where) {
  for (std::int64_t g = 0; g < kBatch * kHeads; ++g)
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const std::vector<float> expected = documented(p, g, r);
      for (std::int64_t i = 0; i < p.width; ++i)
        ASSERT_EQ(p.y.at(g, r, i), expected[static_cast<std::size_t>(i)])
            << where << ": head " << g << ", row " << r << ", " << i << "; " << p.rows << " x " << p.keys << " x "
            << p.width;
      ASSERT_EQ(p.logsumexp[static_cast<std::size_t>(g * p.rows + r)], expected.back()) << where;
    }
}

TEST(Attention, IsTheDocumentedSumOnEveryLevel) {
  for (const SimdLevel level : every_level())
    for (const auto type : kTypes) {
      for (const std::int64_t width : {8, 40, 64, 72, 96, 128, 256})
        for (const std::int64_t keys : {1, 15, 16, 17, 257}) {
          Problem p(type, width == 8 ? 5 : 1, keys, width, /*masked=*/keys == 17, /*gap=*/keys % 2);
          attention(p.args());
          expect_documented(p, name_of(level));
        }
      for (const std::int64_t rows : {2, 3, 4, 5, 6, 7, 8, 16}) {
        Problem p(type, rows, 600, 16, /*masked=*/rows % 2 == 0, /*gap=*/3);
        attention(p.args());
        expect_documented(p, name_of(level));
      }
    }
}

/// All codes, NaN among them where `nan`, then by chance.
std::vector<std::uint8_t> some_codes(std::size_t count, unsigned seed, bool nan) {
  std::vector<std::uint8_t> codes(count);
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<std::uint8_t>(i < 256 ? i : random());
    const int magnitude = codes[i] & 0x7F;
    if (!nan && magnitude > 0x50) codes[i] = static_cast<std::uint8_t>(codes[i] - 0x30);
  }
  return codes;
}

/// p with keys and values that are codes: the same bits as with what decode_from_fp8 makes of them.
void expect_as_decoded(FloatType type, Format format, Dialect dialect, bool nan) {
  Problem p(type, 3, 300, 40, /*masked=*/true);
  const auto count = static_cast<std::size_t>(kBatch * kHeads * p.keys * p.width);
  const AttentionCodes k{format, 0.037f, dialect}, v{format, 0.3f, dialect};
  test::GuardedBuffer<std::uint8_t> k_codes(count), v_codes(count);
  const auto fill = [&](auto& buffer, const AttentionCodes& of, unsigned seed, Heads& values) {
    const auto codes = some_codes(count, seed, nan);
    std::copy(codes.begin(), codes.end(), buffer.data());
    DecodeArgs decode;
    decode.codes = codes.data(), decode.rows = 1, decode.cols = static_cast<std::int64_t>(count);
    decode.format = of.format, decode.dialect = of.dialect, decode.scale_inv = &of.scale_inv;
    decode.type = type, decode.y = const_cast<void*>(values.view<const void>().data);
    decode_from_fp8(decode);
  };
  fill(k_codes, k, 1, p.k);
  fill(v_codes, v, 2, p.v);
  attention(p.args());
  const auto expected = p.bits();
  if (!nan) expect_documented(p, "decoded");
  AttentionArgs args = p.args();
  args.k.data = k_codes.data(), args.k_codes = k;
  args.v.data = v_codes.data(), args.v_codes = v;
  for (std::int64_t i = 0; i < p.width; ++i) p.y.set(1, 0, i, kNaN);
  attention(args);
  EXPECT_EQ(p.bits(), expected);
  args.k.data = p.k.view<const void>().data, args.k_codes = {};  // values alone
  attention(args);
  EXPECT_EQ(p.bits(), expected);
}

TEST(Attention, OfCodesIsThatOfTheirValues) {
  for (const SimdLevel level : every_level())
    for (const auto type : kTypes)
      for (const bool nan : {false, true}) {
        SCOPED_TRACE(std::string(name_of(level)) + (nan ? ", NaN" : ""));
        expect_as_decoded(type, Format::E4M3, Dialect::ocp, nan);
        expect_as_decoded(type, Format::E4M3, Dialect::gaudi2, nan);
        expect_as_decoded(type, Format::E5M2, Dialect::ocp, nan);
      }
}

/// All f16, infinity and NaN too, as values of keys that have all the weight.
TEST(Attention, ValuesOfF16AreReadExactly) {
  for (const SimdLevel level : every_level())
    for (int first = 0; first < 0x10000; first += 256) {
      Problem p(FloatType::F16, 1, 1, 256);
      for (int i = 0; i < 256; ++i) {
        const auto bits = static_cast<std::uint16_t>(first + i);
        p.v.set(0, 0, i, load_element(&bits, FloatType::F16, 0));
      }
      attention(p.args());
      for (int i = 0; i < 256; ++i) {
        const float value = p.v.at(0, 0, i), y = p.y.at(0, 0, i);
        ASSERT_TRUE(y == value || (std::isnan(y) && std::isnan(value))) << name_of(level) << ": " << first + i;
      }
    }
}

TEST(Attention, IsCloseToTheExactOne) {
  for (const auto type : kTypes)
    for (const float spread : {0.3f, 1.5f}) {
      Problem p(type, 4, 1000, 64, /*masked=*/true, 0, spread);
      attention(p.args());
      for (std::int64_t g = 0; g < kBatch * kHeads; ++g)
        for (std::int64_t r = 0; r < p.rows; ++r) {
          const auto [y, size] = exact(p, g, r);
          for (std::size_t i = 0; i < y.size(); ++i) {
            // p and y are rounded once each; sums of up to 256 terms and a score's error add little.
            const double unit = type == FloatType::BF16 ? 0x1p-8 : type == FloatType::F16 ? 0x1p-11 : 0x1p-16;
            EXPECT_NEAR(p.y.at(g, r, static_cast<std::int64_t>(i)), y[i], unit * (size[i] + std::abs(y[i])));
          }
        }
    }
}

TEST(Attention, NeitherThreadsNorOtherRowsChangeARow) {
  Problem all(FloatType::BF16, 8, 900, 64);
  attention(all.args());
  const auto expected = all.bits();
  for (int threads : {1, 2, 5}) {
    const Threads pool(threads);
    attention(all.args());
    EXPECT_EQ(all.bits(), expected) << threads;
  }
  AttentionArgs one = all.args();
  for (std::int64_t i = 0; i < all.width; ++i) all.y.set(2, 7, i, kNaN);
  one.rows = 1, one.batch = 1, one.heads = 1, one.logsumexp = {};
  one.q.data = static_cast<const std::uint16_t*>(one.q.data) + 2 * one.q.head + 7 * one.q.row;
  one.k.data = static_cast<const std::uint16_t*>(one.k.data) + 2 * one.k.head;
  one.v.data = static_cast<const std::uint16_t*>(one.v.data) + 2 * one.v.head;
  one.y.data = static_cast<std::uint16_t*>(one.y.data) + 2 * one.y.head + 7 * one.y.row;
  attention(one);
  EXPECT_EQ(all.bits(), expected);
}

TEST(Attention, KeysThatNobodySees) {
  for (const auto type : {FloatType::BF16, FloatType::F32}) {
    Problem p(type, 2, 520, 16, /*masked=*/true), rest(type, 2, 520, 16, /*masked=*/true);
    for (std::int64_t j = 0; j < 520; ++j) {
      p.mask.set(0, 0, j, -kInfinity);               // no key at all
      if (j < 300) p.mask.set(0, 1, j, -kInfinity);  // no key of the first chunk
      if (j < 300)
        for (std::int64_t i = 0; i < 16; ++i) p.v.set(0, j, i, 100);
    }
    attention(p.args());
    for (std::int64_t i = 0; i < 16; ++i) {
      EXPECT_EQ(p.y.at(0, 0, i), 0);
      EXPECT_LT(std::abs(p.y.at(0, 1, i)), 5);
    }
    EXPECT_EQ(p.logsumexp[0], -kInfinity);
    EXPECT_TRUE(std::isfinite(p.logsumexp[1]));
  }
}

TEST(Attention, NaNAndInfinityShow) {
  const auto row_is_nan = [](Problem& p, std::int64_t r) {
    for (std::int64_t i = 0; i < p.width; ++i)
      if (!std::isnan(p.y.at(0, r, i))) return false;
    return true;
  };
  for (const float bad : {kNaN, kInfinity})
    for (const std::int64_t key : {0, 300}) {
      Problem p(FloatType::BF16, 2, 301, 16);
      for (std::int64_t i = 0; i < 16; ++i) p.q.set(0, 0, i, 1), p.q.set(0, 1, i, -1);
      p.k.set(0, key, 3, bad);
      attention(p.args());
      EXPECT_TRUE(row_is_nan(p, 0)) << bad << " " << key;
      EXPECT_EQ(row_is_nan(p, 1), std::isnan(bad)) << key;  // -inf: that key has no weight
      Problem seen(FloatType::BF16, 1, 301, 16, /*masked=*/true);
      for (std::int64_t j = 0; j < 301; ++j) seen.mask.set(0, 0, j, j == key ? bad : -kInfinity);
      attention(seen.args());
      EXPECT_TRUE(row_is_nan(seen, 0)) << bad << " " << key;
    }
}

TEST(Attention, WrongArgumentsAreErrors) {
  Problem p(FloatType::BF16, 2, 20, 16);
  const auto message = [&](auto&& change) {
    AttentionArgs args = p.args();
    change(args);
    return error_of<std::invalid_argument>([&] { attention(args); });
  };
  EXPECT_EQ(message([](auto&) {}), "");
  EXPECT_EQ(message([](auto& a) { a.heads = 0, a.q = {}; }), "");
  EXPECT_EQ(message([](auto& a) { a.k_codes = AttentionCodes(), a.k.row = 17; }),
            "attention: k's rows of codes are 17 apart, must be 16");
  EXPECT_EQ(message([](auto& a) { a.rows = 17; }), "attention: found 17 rows, allowed are 16");
  EXPECT_EQ(message([](auto& a) { a.width = 12; }), "attention: width is 12, must be a multiple of 8 up to 256");
  EXPECT_EQ(message([](auto& a) { a.width = 264; }), "attention: width is 264, must be a multiple of 8 up to 256");
  EXPECT_EQ(message([](auto& a) { a.keys = 0; }), "attention: found no keys");
  EXPECT_EQ(message([](auto& a) { a.q.data = nullptr; }), "attention: q must not be null");
  EXPECT_EQ(message([](auto& a) { a.v.row = -1; }), "attention: v's strides must not be negative");
  EXPECT_NE(message([](auto& a) { a.keys = std::int64_t{1} << 60; }), "");
  EXPECT_NE(message([](auto& a) { a.batch = -1; }), "");
}

}  // namespace
}  // namespace fp8::kernels
