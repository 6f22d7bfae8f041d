// SPDX-License-Identifier: Apache-2.0
// Attention's products (simd_kernels.h) in Highway's portable vectors, compiled once per target. Products of two bf16
// are exact, so that a fused multiply-add and two operations give the same bits; f32 takes two.
#include <cstring>

#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fp8/runtime/kernels/attention/attention_simd.cpp"
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors of no fixed size
#endif
#include <hwy/foreach_target.h>
// After foreach_target, which redefines the target:
#include <hwy/highway.h>

#include "fp8/runtime/kernels/highway/f32_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fp8::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using KeyTag = hn::CappedTag<float, 16>;
using WordTag = hn::RebindToUnsigned<KeyTag>;
using Keys = hn::Vec<KeyTag>;  ///< one value of each of kKeys keys
using Words = hn::Vec<WordTag>;
inline constexpr std::int64_t kKeys = static_cast<std::int64_t>(hn::MaxLanes(KeyTag()));

template <class T, class V>
HWY_INLINE V MultiplyAdd(V a, V b, V sum) {
  if constexpr (std::is_same_v<T, float>)
    return hn::Add(sum, hn::Mul(a, b));
  else
    return hn::MulAdd(a, b, sum);
}

#if HWY_TARGET == HWY_SCALAR

/// words[i]: word i (4 bytes) of the key.
HWY_INLINE void LoadWords(const std::uint8_t* p, std::int64_t /*stride*/, Words words[4]) {
  std::uint32_t word[4];
  std::memcpy(word, p, sizeof word);
  for (int i = 0; i < 4; ++i) words[i] = hn::Set(WordTag(), word[i]);
}

#else

/// 16 bytes of every fourth key: block b of the vector is from key 4 b.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const std::uint8_t* p, std::int64_t stride) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, D>(), p));
  } else {
    const hn::Half<D> half;
    const std::uint8_t* upper = p + static_cast<std::int64_t>(hn::MaxLanes(d) / 2) * stride;
    return hn::Combine(d, LoadBlocks(half, upper, stride), LoadBlocks(half, p, stride));
  }
}

/// words[i]: word i (4 bytes) of kKeys keys, from 4 words of each; a transpose of 4 x 4 words in every block.
HWY_INLINE void LoadWords(const std::uint8_t* p, std::int64_t stride, Words words[4]) {
  const WordTag d;
  const hn::Repartition<std::uint64_t, WordTag> d64;
  const Words k0 = LoadBlocks(d, p, stride), k1 = LoadBlocks(d, p + stride, stride),
              k2 = LoadBlocks(d, p + 2 * stride, stride), k3 = LoadBlocks(d, p + 3 * stride, stride);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, k0, k1)),
             low23 = hn::BitCast(d64, hn::InterleaveLower(d, k2, k3)),
             high01 = hn::BitCast(d64, hn::InterleaveUpper(d, k0, k1)),
             high23 = hn::BitCast(d64, hn::InterleaveUpper(d, k2, k3));
  words[0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
  words[1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
  words[2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
  words[3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
}

#endif

/// scores[R rows, kKeys keys] of the keys from k on, `stride` bytes apart.
template <int R, class T>
HWY_INLINE void ScoreTile(const AttentionChunk<T>& chunk, const float* HWY_RESTRICT q, const std::uint8_t* k,
                          std::int64_t stride, float* HWY_RESTRICT scores) {
  constexpr bool kBf16 = !std::is_same_v<T, float>;
  const KeyTag d;
  const WordTag du;
  Keys even[R], odd[R];
  for (int r = 0; r < R; ++r) even[r] = odd[r] = hn::Zero(d);
  for (std::int64_t i = 0; i < chunk.width; i += 16 / static_cast<std::int64_t>(sizeof(T))) {
    Words words[4];
    LoadWords(k + i * static_cast<std::int64_t>(sizeof(T)), stride, words);
    for (int w = 0; w < 4; ++w) {
      if constexpr (kBf16) {
        const Keys first = hn::BitCast(d, hn::ShiftLeft<16>(words[w])),
                   second = hn::BitCast(d, hn::And(words[w], hn::Set(du, 0xFFFF0000u)));
        for (int r = 0; r < R; ++r) {
          const float* x = q + r * chunk.width + i + 2 * w;
          even[r] = MultiplyAdd<T>(hn::Set(d, x[0]), first, even[r]);
          odd[r] = MultiplyAdd<T>(hn::Set(d, x[1]), second, odd[r]);
        }
      } else {
        for (int r = 0; r < R; ++r) {
          Keys& sum = w % 2 == 0 ? even[r] : odd[r];
          sum = MultiplyAdd<T>(hn::Set(d, q[r * chunk.width + i + w]), hn::BitCast(d, words[w]), sum);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) hn::StoreU(hn::Add(even[r], odd[r]), d, scores + r * kAttentionChunk);
}

/// The second cache gets kKeysAhead rows of keys or values before they are read: the CPU by itself stops at each page.
inline constexpr std::int64_t kKeysAhead = 32;
HWY_INLINE void FetchAhead(const void* row, std::int64_t stride, std::int64_t bytes) {
  const auto from = reinterpret_cast<std::uintptr_t>(row) + static_cast<std::uintptr_t>(kKeysAhead * stride);
  for (std::int64_t i = 0; i < bytes; i += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(from + static_cast<std::uintptr_t>(i)), 0, 2);
}

/// All rows of the chunk, four at a time: more sums would not stay in registers.
template <class T>
HWY_INLINE void ScoreTiles(const AttentionChunk<T>& chunk, const std::uint8_t* k, std::int64_t stride, float* scores) {
  for (std::int64_t i = 0; i < kKeys; ++i)
    FetchAhead(k + i * stride, stride, chunk.width * static_cast<std::int64_t>(sizeof(T)));
  for (std::int64_t r = 0; r < chunk.rows; r += 4) {
    const float* q = chunk.q + r * chunk.width;
    float* to = scores + r * kAttentionChunk;
    switch (chunk.rows - r) {
      case 1: ScoreTile<1>(chunk, q, k, stride, to); break;
      case 2: ScoreTile<2>(chunk, q, k, stride, to); break;
      case 3: ScoreTile<3>(chunk, q, k, stride, to); break;
      default: ScoreTile<4>(chunk, q, k, stride, to);
    }
  }
}

template <class T>
void Scores(const AttentionChunk<T>& chunk) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  const auto* k = reinterpret_cast<const std::uint8_t*>(chunk.k);
  const std::int64_t stride = chunk.k_stride * kSize;
  std::int64_t j = 0;
  for (; j + kKeys <= chunk.keys; j += kKeys) ScoreTiles(chunk, k + j * stride, stride, chunk.scores + j);
  if (j == chunk.keys) return;
  if (j != 0) {  // the last tile overlaps the one before it, and gives those scores again
    j = chunk.keys - kKeys;
    return ScoreTiles(chunk, k + j * stride, stride, chunk.scores + j);
  }
  HWY_ALIGN std::uint8_t rows[kKeys * kMostAttentionWidth * kSize];
  const std::int64_t bytes = chunk.width * kSize;
  std::memset(rows, 0, static_cast<std::size_t>(kKeys * bytes));
  for (; j < chunk.keys; ++j) std::memcpy(rows + j * bytes, k + j * stride, static_cast<std::size_t>(bytes));
  ScoreTiles(chunk, rows, bytes, chunk.scores);
}

template <class T>
void Round(float* x, std::int64_t n) {
  if constexpr (!std::is_same_v<T, float>)
    ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR { hn::StoreU(RoundTo<T>(d, hn::LoadU(d, x + i)), d, x + i); });
}

/// 2^112 moves f16's exponent (bias 15) to f32's (127), subnormal ones too; that of infinity and NaN is all ones.
inline void WidenF16(const std::uint16_t* f16, float* to, std::int64_t n) {
  ForVectors(n, [&](auto d, std::size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    const auto bits = hn::PromoteTo(du, hn::LoadU(hn::Rebind<std::uint16_t, decltype(d)>(), f16 + i));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFF)));
    const auto finite = hn::BitCast(du, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
    const auto other = hn::Or(magnitude, hn::Set(du, 0x7F800000));
    const auto value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x0F7FFFFF)), other, finite);
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
    hn::StoreU(hn::BitCast(d, hn::Or(value, sign)), d, to + i);
  });
}

/// out[R rows, V vectors of columns] = p[R rows, keys] v.
template <int R, int V, bool kFetch, class T, class D>
HWY_INLINE void ValueTile(D d, const AttentionChunk<T>& chunk, const float* HWY_RESTRICT p, const T* HWY_RESTRICT v,
                          float* HWY_RESTRICT out) {
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  hn::Vec<D> sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < V; ++i) sum[r][i] = hn::Zero(d);
  for (std::int64_t j = 0; j < chunk.keys; ++j) {
    if (kFetch)
      FetchAhead(v + j * chunk.v_stride, chunk.v_stride * static_cast<std::int64_t>(sizeof(T)),
                 V * static_cast<std::int64_t>(kLanes * sizeof(T)));
    hn::Vec<D> value[V];
    for (int i = 0; i < V; ++i) value[i] = LoadAs(d, v + j * chunk.v_stride + i * static_cast<std::int64_t>(kLanes));
    for (int r = 0; r < R; ++r) {
      const auto weight = hn::Set(d, p[r * kAttentionChunk + j]);
      for (int i = 0; i < V; ++i) sum[r][i] = MultiplyAdd<T>(weight, value[i], sum[r][i]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < V; ++i) hn::StoreU(sum[r][i], d, out + r * chunk.width + i * static_cast<std::int64_t>(kLanes));
}

template <int R, bool kFetch, class T>
HWY_INLINE void ValueRows(const AttentionChunk<T>& chunk, const float* p, float* out) {
  constexpr int kVectors = kKeys == 16 ? 4 : 2;  // R x kVectors sums stay in 32 or 16 registers
  const hn::CappedTag<float, 4> four;
  std::int64_t c = 0;
  for (; c + kVectors * kKeys <= chunk.width; c += kVectors * kKeys)
    ValueTile<R, kVectors, kFetch>(KeyTag(), chunk, p, chunk.v + c, out + c);
  for (; c + kKeys <= chunk.width; c += kKeys) ValueTile<R, 1, kFetch>(KeyTag(), chunk, p, chunk.v + c, out + c);
  for (; c < chunk.width; c += static_cast<std::int64_t>(hn::MaxLanes(four)))
    ValueTile<R, 1, kFetch>(four, chunk, p, chunk.v + c, out + c);
}

template <class T>
void Values(const AttentionChunk<T>& chunk) {
  for (std::int64_t r = 0; r < chunk.rows; r += 4) {
    const float* p = chunk.scores + r * kAttentionChunk;
    float* out = chunk.out + r * chunk.width;
    switch (chunk.rows - r) {
      case 1: r == 0 ? ValueRows<1, true>(chunk, p, out) : ValueRows<1, false>(chunk, p, out); break;
      case 2: r == 0 ? ValueRows<2, true>(chunk, p, out) : ValueRows<2, false>(chunk, p, out); break;
      case 3: r == 0 ? ValueRows<3, true>(chunk, p, out) : ValueRows<3, false>(chunk, p, out); break;
      default: r == 0 ? ValueRows<4, true>(chunk, p, out) : ValueRows<4, false>(chunk, p, out);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fp8::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "fp8/runtime/kernels/highway/levels.h"

namespace fp8::kernels {

#define FP8_ATTENTION_KERNELS(of) {of(Scores<T>), of(Round<T>), of(Values<T>), of(WidenF16)}

template <class T>
const AttentionKernels<T>& attention_kernels_in_force() {
  static constexpr AttentionKernels<T> kBaseline = FP8_ATTENTION_KERNELS(HWY_STATIC_DISPATCH),
                                       kAvx2 = FP8_ATTENTION_KERNELS(FP8_AT_AVX2),
                                       kAvx512 = FP8_ATTENTION_KERNELS(FP8_AT_AVX512);
  return of_level(kBaseline, kAvx2, kAvx512);
}

template const AttentionKernels<float>& attention_kernels_in_force();
template const AttentionKernels<std::uint16_t>& attention_kernels_in_force();

}  // namespace fp8::kernels
#endif  // HWY_ONCE
