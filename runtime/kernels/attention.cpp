// SPDX-License-Identifier: Apache-2.0
// Checks, chunks and threads around the products of attention_simd.cpp.
#include "fp8/runtime/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "fp8/runtime/kernels/attention_kernels.h"
#include "fp8/runtime/kernels/check_matrix.h"
#include "fp8/runtime/kernels/f32_math.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/scratch.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kGrain = 200000;  // multiply-adds per range: some microseconds, as waking a thread takes
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument("attention: " + what); }

template <class Data>
void check_operand(const char* name, const HeadsOf<Data>& operand) {
  if (operand.data == nullptr) fail(std::string(name) + " must not be null");
  if (operand.batch < 0 || operand.head < 0 || operand.row < 0)
    fail(std::string(name) + "'s strides must not be negative");
}

void check(const AttentionArgs& args) {
  if (args.type != FloatType::BF16 && args.type != FloatType::F32) fail("type must be BF16 or F32");
  if (args.rows > kMostAttentionRows)
    fail("found " + std::to_string(args.rows) + " rows, allowed are " + std::to_string(kMostAttentionRows));
  const std::int64_t unit = args.type == FloatType::BF16 ? 8 : 4;
  if (args.width < 1 || args.width > kMostAttentionWidth || args.width % unit != 0)
    fail("width is " + std::to_string(args.width) + ", must be a multiple of " + std::to_string(unit) + " up to " +
         std::to_string(kMostAttentionWidth));
  check_matrix("attention: batch x heads", args.batch, args.heads, args.heads);
  check_matrix("attention: heads x rows", args.batch * args.heads, args.rows, args.rows);
  check_matrix("attention: queries", args.batch * args.heads * args.rows, args.width, args.width);
  check_matrix("attention: keys", args.batch * args.heads, args.keys, args.keys);
  check_matrix("attention: keys x width", args.batch * args.heads * args.keys, args.width, args.width);
  if (args.keys < 1) fail("found no keys");
}

float widened(float x) { return x; }
float widened(std::uint16_t x) { return bf16_to_f32(x); }
void narrow(float x, float& y) { y = x; }
void narrow(float x, std::uint16_t& y) { y = f32_to_bf16(x); }

template <class T>
class Attention {
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
    parallel_for(groups_ * chunks_, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) one_chunk(i / chunks_, i % chunks_);
    });
    parallel_for(groups_, std::max<std::int64_t>(1, kGrain / (chunks_ * part_)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t g = begin; g < end; ++g)
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

  void widen_queries() {
    for (std::int64_t g = 0; g < groups_; ++g) {
      for (std::int64_t r = 0; r < args_.rows; ++r) {
        const T* from = row_of<const T>(args_.q, g, r);
        std::transform(from, from + args_.width, q_ + (g * args_.rows + r) * args_.width,
                       [](T x) { return widened(x); });
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
    chunk.k = row_of<const T>(args_.k, group, first), chunk.k_stride = args_.k.row;
    chunk.v = row_of<const T>(args_.v, group, first), chunk.v_stride = args_.v.row;
    chunk.scores = scores, chunk.out = out;
    kernels_.scores(chunk);
    float *m = out + args_.rows * args_.width, *l = m + args_.rows;
    for (std::int64_t r = 0; r < args_.rows; ++r) {
      float* row = scores + r * kAttentionChunk;
      scale_and_mask(row, chunk.keys,
                     args_.mask.data == nullptr ? nullptr : row_of<const T>(args_.mask, group, r) + first);
      m[r] = weigh(row, chunk.keys);
      l[r] = sum_of(row, chunk.keys);
    }
    kernels_.values(chunk);
  }

  void scale_and_mask(float* scores, std::int64_t n, const T* mask) const {
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
    T* y = row_of<T>(args_.y, group, row);
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
  args.type == FloatType::BF16 ? Attention<std::uint16_t>(args).run() : Attention<float>(args).run();
}

}  // namespace fp8::kernels
