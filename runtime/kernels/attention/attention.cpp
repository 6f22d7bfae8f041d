// SPDX-License-Identifier: Apache-2.0
// Checks, chunks and threads around the products of attention_simd.cpp.
#include "fp8/runtime/kernels/attention.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kGrain = 200000;  // multiply-adds per range: some microseconds, as waking a thread takes
constexpr std::int64_t kScratchBytes = 2 * sizeof(float) + sizeof(std::uint16_t);  // a key's element and a value's, f16
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <class Data>
void check_operand(const char* name, const HeadsOf<Data>& operand) {
  if (operand.data == nullptr) io::fail<std::invalid_argument>("attention: {} must not be null", name);
  if (operand.batch < 0 || operand.head < 0 || operand.row < 0)
    io::fail<std::invalid_argument>("attention: {}'s strides must not be negative", name);
}

void check(const AttentionArgs& args) {
  if (args.rows > kMostAttentionRows)
    io::fail<std::invalid_argument>("attention: found {} rows, allowed are {}", args.rows, kMostAttentionRows);
  const std::int64_t unit = args.type == FloatType::F32 ? 4 : 8;
  if (args.width < 1 || args.width > kMostAttentionWidth || args.width % unit != 0)
    io::fail<std::invalid_argument>("attention: width is {}, must be a multiple of {} up to {}", args.width, unit,
                                    kMostAttentionWidth);
  check_matrix("attention: batch x heads", args.batch, args.heads, args.heads);
  check_matrix("attention: heads x rows", args.batch * args.heads, args.rows, args.rows);
  check_matrix("attention: queries", args.batch * args.heads * args.rows, args.width, args.width);
  check_matrix("attention: keys", args.batch * args.heads, args.keys, args.keys);
  check_matrix("attention: keys x width", args.batch * args.heads * args.keys, args.width, args.width);
  if (args.keys < 1) throw std::invalid_argument("attention: found no keys");
}

void check_codes(const char* name, const std::optional<AttentionCodes>& codes, std::int64_t row, std::int64_t width) {
  if (codes.has_value() && row != width)
    io::fail<std::invalid_argument>("attention: {}'s rows of codes are {} apart, must be {}", name, row, width);
}

/// kType: what is in memory. The kernels take T: f16 is widened.
template <FloatType kType>
class Attention {
  using Stored = std::conditional_t<kType == FloatType::F32, float, std::uint16_t>;
  using T = std::conditional_t<kType == FloatType::BF16, std::uint16_t, float>;

 public:
  explicit Attention(const AttentionArgs& args)
      : args_(args),
        groups_(args.batch * args.heads),
        chunks_((args.keys + kAttentionChunk - 1) / kAttentionChunk),
        part_(args.rows * (args.width + 2)) {}

  void run() {
    thread_local Scratch scratch;
    const std::int64_t queries = groups_ * args_.rows * args_.width;
    q_ = reinterpret_cast<float*>(scratch.get(4 * (queries + groups_ * chunks_ * part_)));
    parts_ = q_ + queries;
    widen_queries();
    const std::int64_t work = 2 * std::min(args_.keys, kAttentionChunk) * args_.rows * args_.width;
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / work);
    parallel_each(groups_ * chunks_, grain, [&](std::int64_t i) { one_chunk(i / chunks_, i % chunks_); });
    parallel_each(groups_, std::max<std::int64_t>(1, kGrain / (chunks_ * part_)), [&](std::int64_t g) {
      for (std::int64_t r = 0; r < args_.rows; ++r) put_together(g, r);
    });
  }

 private:
  template <class Element, class Data>
  Element* row_of(const HeadsOf<Data>& operand, std::int64_t group, std::int64_t row) const {
    return static_cast<Element*>(operand.data) + group / args_.heads * operand.batch +
           group % args_.heads * operand.head + row * operand.row;
  }
  /// Of one head and chunk: out [rows, width], then m and l of each row.
  float* part(std::int64_t group, std::int64_t chunk) const { return parts_ + (group * chunks_ + chunk) * part_; }

  static float widened(Stored x) { return load_element(&x, kType, 0); }
  static void narrow(float x, Stored& y) {
    if constexpr (kType == FloatType::BF16)
      y = f32_to_bf16(x);
    else if constexpr (kType == FloatType::F16)
      y = f32_to_f16(x);
    else
      y = x;
  }

  void widen_queries() {
    for (std::int64_t g = 0; g < groups_; ++g) {
      for (std::int64_t r = 0; r < args_.rows; ++r) {
        const Stored* from = row_of<const Stored>(args_.q, g, r);
        std::transform(from, from + args_.width, q_ + (g * args_.rows + r) * args_.width, widened);
      }
    }
  }

  void one_chunk(std::int64_t group, std::int64_t index) const {
    alignas(64) float scores[kMostAttentionRows * kAttentionChunk];
    const std::int64_t first = index * kAttentionChunk;
    float* out = part(group, index);
    AttentionChunk<T> chunk;
    chunk.rows = args_.rows, chunk.keys = std::min(kAttentionChunk, args_.keys - first), chunk.width = args_.width;
    chunk.q = q_ + group * args_.rows * args_.width;
    thread_local Scratch scratch;
    const bool copies = kType == FloatType::F16 || args_.k_codes || args_.v_codes;
    auto* space = copies ? scratch.get(kAttentionChunk * args_.width * kScratchBytes) : nullptr;
    std::tie(chunk.k, chunk.k_stride) = rows_of(args_.k, args_.k_codes, group, first, chunk.keys, space, 0);
    std::tie(chunk.v, chunk.v_stride) = rows_of(args_.v, args_.v_codes, group, first, chunk.keys, space, 1);
    chunk.scores = scores, chunk.out = out;
    kernels_.scores(chunk);
    float *m = out + args_.rows * args_.width, *l = m + args_.rows;
    for (std::int64_t r = 0; r < args_.rows; ++r) {
      float* row = scores + r * kAttentionChunk;
      scale_and_mask(row, chunk.keys,
                     args_.mask.data == nullptr ? nullptr : row_of<const Stored>(args_.mask, group, r) + first);
      m[r] = weigh(row, chunk.keys);
      l[r] = sum_of(row, chunk.keys);
    }
    kernels_.values(chunk);
  }

  /// Keys or values of a chunk as the kernels take them, and how far apart their rows are: in place, or made in
  /// `space`, which has room for both (`index` says whose) and for f16 on its way.
  std::pair<const T*, std::int64_t> rows_of(const HeadsOf<const void>& operand,
                                            const std::optional<AttentionCodes>& codes, std::int64_t group,
                                            std::int64_t first, std::int64_t count, std::uint8_t* space,
                                            std::int64_t index) const {
    const std::int64_t all = kAttentionChunk * args_.width;
    T* to = reinterpret_cast<T*>(space) + index * all;
    auto* half = reinterpret_cast<std::uint16_t*>(space + 2 * all * static_cast<std::int64_t>(sizeof(T)));
    if (codes) {
      DecodeArgs decode;
      decode.codes = row_of<const std::uint8_t>(operand, group, first);
      decode.rows = count, decode.cols = args_.width, decode.format = codes->format, decode.dialect = codes->dialect;
      decode.y = kType == FloatType::F16 ? static_cast<void*>(half) : to, decode.type = kType;
      decode.scale_inv = &codes->scale_inv;
      decode_from_fp8(decode);
      if constexpr (kType == FloatType::F16) kernels_.widen(half, to, count * args_.width);
      return {to, args_.width};
    }
    if constexpr (kType == FloatType::F16) {
      for (std::int64_t j = 0; j < count; ++j)
        kernels_.widen(row_of<const Stored>(operand, group, first + j), to + j * args_.width, args_.width);
      return {to, args_.width};
    } else {
      return {row_of<const T>(operand, group, first), operand.row};
    }
  }

  void scale_and_mask(float* scores, std::int64_t n, const Stored* mask) const {
    for (std::int64_t j = 0; j < n; ++j) scores[j] *= args_.scale;
    for (std::int64_t j = 0; j < n && mask != nullptr; ++j) scores[j] += widened(mask[j]);
  }

  /// Scores to p; returns m, -inf where nothing is seen.
  float weigh(float* scores, std::int64_t n) const {
    const float m = max_of(scores, n);
    if (std::isfinite(m)) {
      exp_shifted(scores, n, m);
      kernels_.round(scores, n);
      return m;
    }
    // +inf - +inf is NaN. Of -inf alone, or -inf and NaN, which max_of passes over, the one sees nothing.
    for (std::int64_t j = 0; j < n; ++j) scores[j] = m > 0 || std::isnan(scores[j]) ? kNaN : 0;
    return m > 0 ? 0 : m;
  }

  void put_together(std::int64_t group, std::int64_t row) const {
    const std::int64_t rows = args_.rows, width = args_.width;
    const auto m_of = [&](std::int64_t c) { return part(group, c)[rows * width + row]; };
    const auto l_of = [&](std::int64_t c) { return part(group, c)[rows * width + rows + row]; };
    float most = -kInfinity;
    for (std::int64_t c = 0; c < chunks_; ++c) most = std::max(most, m_of(c));
    float* sum = part(group, 0) + row * width;  // the first chunk's, in place
    float total = 0;
    for (std::int64_t c = 0; c < chunks_; ++c) {
      float w = 0;  // of what sees nothing: 0, or NaN where that is in it
      if (m_of(c) != -kInfinity) {
        w = m_of(c);
        exp_shifted(&w, 1, most);
      }
      const float* out = part(group, c) + row * width;
      for (std::int64_t i = 0; i < width; ++i) sum[i] = c == 0 ? w * out[i] : sum[i] + w * out[i];
      total = c == 0 ? w * l_of(c) : total + w * l_of(c);
    }
    const float inverse = total == 0 ? 0 : 1 / total;
    Stored* y = row_of<Stored>(args_.y, group, row);
    for (std::int64_t i = 0; i < width; ++i) narrow(sum[i] * inverse, y[i]);
    if (args_.logsumexp.data != nullptr) *row_of<float>(args_.logsumexp, group, row) = most + std::log(total);
  }

  const AttentionArgs& args_;
  const AttentionKernels<T>& kernels_ = attention_kernels_in_force<T>();
  std::int64_t groups_, chunks_, part_;
  float *q_ = nullptr, *parts_ = nullptr;
};

}  // namespace

void attention(const AttentionArgs& args) {
  check(args);
  if (args.batch * args.heads * args.rows == 0) return;
  check_operand("q", args.q);
  check_operand("k", args.k);
  check_operand("v", args.v);
  check_operand("y", args.y);
  if (args.mask.data != nullptr) check_operand("mask", args.mask);
  if (args.logsumexp.data != nullptr) check_operand("logsumexp", args.logsumexp);
  check_codes("k", args.k_codes, args.k.row, args.width);
  check_codes("v", args.v_codes, args.v.row, args.width);
  switch (args.type) {
    case FloatType::BF16: return Attention<FloatType::BF16>(args).run();
    case FloatType::F16: return Attention<FloatType::F16>(args).run();
    case FloatType::F32: return Attention<FloatType::F32>(args).run();
  }
}

}  // namespace fp8::kernels
