// SPDX-License-Identifier: Apache-2.0
// gemm on AVX2 + FMA + F16C: codes -> f16 -> f32 with vcvtph2ps, f32 products.
//
//   E4M3   f16 bits = (sign extended c << 7) & 0xBFFF, the value times 2^-8 (subnormals included);
//          the 256 comes in finish()
//   E5M2   f16 bits = c << 8, the value itself (infinity and NaN included)
//
// 8 codes of a line are 4 channels x (k, k+1): a vector of 8 products of which neighbours belong together. So x is
// broadcast in pairs, acc holds 4 vectors per row and block, and finish() adds neighbours once. E4M3's NaN would read
// as 480: ranges of k are scanned, and those with a NaN take a decode with two more instructions.
#include <immintrin.h>

#include "fp8/runtime/kernels/gemm/gemm_groups-inl.h"

namespace fp8::kernels {
namespace {

constexpr int kAccFloats = 32;               // per row and block: 4 vectors
constexpr std::int64_t kPanelBytes = 16384;  // 64 lines x 8 vectors of 8 floats
constexpr int kPanelRows = 6;

enum class Reading { E4M3, E4M3WithNan, E5M2 };

// 8 codes (4 channels x 2 k) -> 8 f32
template <Reading kReading>
[[gnu::always_inline]] inline __m256 decode8(const std::uint8_t* p) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  if constexpr (kReading == Reading::E5M2) return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), codes));
  __m128i half = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7), _mm_set1_epi16(static_cast<short>(0xBFFF)));
  if constexpr (kReading == Reading::E4M3WithNan) {
    const __m128i all = _mm_set1_epi16(0x3F80);
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, all), all);
    half = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7E00)));
  }
  return _mm256_cvtph_ps(half);
}

[[gnu::always_inline]] inline __m256 pair(const float* x) {
  return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(x)));
}

// acc (R rows x vectors [g, g + G) of one block) += lines . x
template <Reading kReading, int R, int G>
void multiply_lines(const std::uint8_t* p, std::int64_t lines, std::int64_t prefetch, const float* x, float* acc,
                    std::int64_t acc_stride, bool first, int g) {
  __m256 c[R][G];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i)
      c[r][i] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(acc + r * acc_stride + (g + i) * 8);
  p += g * 16;
  for (std::int64_t q = 0; q < lines; ++q, p += kLineBytes, x += 4 * R) {
    _mm_prefetch(reinterpret_cast<const char*>(p + prefetch), _MM_HINT_T0);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
      for (int i = 0; i < G; ++i) {
        const __m256 w = decode8<kReading>(p + i * 16 + half * 8);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) c[r][i] = _mm256_fmadd_ps(w, pair(x + half * 2 * R + 2 * r), c[r][i]);
      }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) _mm256_storeu_ps(acc + r * acc_stride + (g + i) * 8, c[r][i]);
}

// Panel of one block: [2 halves of 8 channels][line][k pair][2 vectors].
template <Reading kReading>
void decode_panel(const std::uint8_t* p, std::int64_t lines, std::int64_t prefetch, float* panel) {
  for (int h = 0; h < 2; ++h)
    for (std::int64_t q = 0; q < lines; ++q) {
      _mm_prefetch(reinterpret_cast<const char*>(p + q * kLineBytes + prefetch), _MM_HINT_T0);
      for (int v = 0; v < 4; ++v, panel += 8)
        _mm256_store_ps(panel, decode8<kReading>(p + q * kLineBytes + (h * 2 + v % 2) * 16 + v / 2 * 8));
    }
}

template <int R>
void multiply_panel(const float* w, std::int64_t steps, const float* x, float* acc, std::int64_t acc_stride,
                    bool first) {
  __m256 c[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    c[r][0] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(acc + r * acc_stride);
    c[r][1] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(acc + r * acc_stride + 8);
  }
  for (std::int64_t s = 0; s < steps; ++s, w += 16, x += 2 * R) {
    const __m256 w0 = _mm256_load_ps(w), w1 = _mm256_load_ps(w + 8);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256 item = pair(x + 2 * r);
      c[r][0] = _mm256_fmadd_ps(w0, item, c[r][0]);
      c[r][1] = _mm256_fmadd_ps(w1, item, c[r][1]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    _mm256_storeu_ps(acc + r * acc_stride, c[r][0]);
    _mm256_storeu_ps(acc + r * acc_stride + 8, c[r][1]);
  }
}

using PanelFunction = void (*)(const float*, std::int64_t, const float*, float*, std::int64_t, bool);

template <Reading kReading>
void multiply_block(const MultiplyArgs& args, const std::uint8_t* lines, float* acc) {
  static constexpr PanelFunction kPanel[] = {multiply_panel<1>, multiply_panel<2>, multiply_panel<3>,
                                             multiply_panel<4>, multiply_panel<5>, multiply_panel<6>};
  const int rows = args.plan.tile_rows;
  const std::int64_t acc_stride = static_cast<std::int64_t>(args.blocks) * kAccFloats;
  const float* x = static_cast<const float*>(args.x);
  if (!args.plan.panel) {
    const auto run = [&](auto function, int groups) {
      for (int g = 0; g < 4; g += groups)
        function(lines, args.range_lines, args.prefetch, x, acc, acc_stride, args.first, g);
    };
    switch (rows) {
      case 1: return run(multiply_lines<kReading, 1, 4>, 4);
      case 2: return run(multiply_lines<kReading, 2, 4>, 4);
      case 3: return run(multiply_lines<kReading, 3, 2>, 2);
      default: return run(multiply_lines<kReading, 4, 2>, 2);
    }
  }
  float* panel = static_cast<float*>(args.panel);
  decode_panel<kReading>(lines, args.range_lines, args.prefetch, panel);
  for (std::int64_t t = 0; t < args.tiles; ++t, x += args.x_tile_stride / 4, acc += rows * acc_stride)
    for (int h = 0; h < 2; ++h)
      kPanel[rows - 1](panel + h * args.range_lines * 32, args.range_lines * 2, x, acc + h * 16, acc_stride,
                       args.first);
}

bool has_nan(const std::uint8_t* p, std::int64_t lines) {
  const __m256i magnitude = _mm256_set1_epi8(0x7F);
  __m256i found = _mm256_setzero_si256();
  for (std::int64_t q = 0; q < lines; ++q, p += kLineBytes) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
    found = _mm256_or_si256(found, _mm256_or_si256(_mm256_cmpeq_epi8(_mm256_and_si256(a, magnitude), magnitude),
                                                   _mm256_cmpeq_epi8(_mm256_and_si256(b, magnitude), magnitude)));
  }
  return _mm256_testz_si256(found, found) == 0;
}

void multiply_whole(const MultiplyArgs& args) {
  for (int block = 0; block < args.blocks; ++block) {
    const std::uint8_t* lines = args.lines + block * args.block_stride;
    float* acc = args.acc + block * kAccFloats;
    if (args.format == Format::E5M2)
      multiply_block<Reading::E5M2>(args, lines, acc);
    else if (has_nan(lines, args.range_lines))
      multiply_block<Reading::E4M3WithNan>(args, lines, acc);
    else
      multiply_block<Reading::E4M3>(args, lines, acc);
  }
}

void multiply(const MultiplyArgs& args) {
  args.group == nullptr ? multiply_whole(args) : multiply_groups(args, kAccFloats, multiply_whole);
}

GemmPlan plan(std::int64_t m) {
  GemmPlan plan;
  plan.blocks = 1;
  plan.panel = m > 4;
  const std::int64_t tiles = (m + kPanelRows - 1) / kPanelRows;
  plan.tile_rows = static_cast<int>(m > 4 ? (m + tiles - 1) / tiles : m);
  plan.range_lines = plan.packed_range_lines = 64;
  return plan;
}

// 4 rows x 16 codes: 16-bit unpacks as in the AVX-512 form, one group of 4 channels of 4 lines.
void pack_group(__m128i r0, __m128i r1, __m128i r2, __m128i r3, std::uint8_t* out) {
  const __m128i even_lo = _mm_unpacklo_epi16(r0, r2), even_hi = _mm_unpackhi_epi16(r0, r2);
  const __m128i odd_lo = _mm_unpacklo_epi16(r1, r3), odd_hi = _mm_unpackhi_epi16(r1, r3);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi16(even_lo, odd_lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + kLineBytes), _mm_unpackhi_epi16(even_lo, odd_lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * kLineBytes), _mm_unpacklo_epi16(even_hi, odd_hi));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * kLineBytes), _mm_unpackhi_epi16(even_hi, odd_hi));
}

void pack_lines(const std::uint8_t* w, std::int64_t row_stride, int rows, std::int64_t k, std::int64_t prefetch,
                std::uint8_t* lines) {
  std::int64_t k0 = 0;
  if (rows == 16)
    // 4 rows x 64 codes before the next 4 rows: 16 rows a power of two apart would not fit their one set of L1.
    for (; k0 + 64 <= k; k0 += 64, lines += 16 * kLineBytes)
      for (int g = 0; g < 4; ++g) {
        const std::uint8_t* row = w + 4 * g * row_stride + k0;
        for (int i = 0; i < 4; ++i)
          _mm_prefetch(reinterpret_cast<const char*>(row + i * row_stride + prefetch), _MM_HINT_T1);
        for (int part = 0; part < 4; ++part) {
          __m128i r[4];
          for (int i = 0; i < 4; ++i)
            r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i * row_stride + part * 16));
          pack_group(r[0], r[1], r[2], r[3], lines + part * 4 * kLineBytes + g * 16);
        }
      }
  for (; k0 < k; k0 += kLineK, lines += kLineBytes)
    for (int c = 0; c < kBlockChannels; ++c)
      for (int j = 0; j < kLineK; ++j)
        lines[c / 4 * 16 + j / 2 * 8 + c % 4 * 2 + j % 2] =
            c < rows && k0 + j < k ? w[c * row_stride + k0 + j] : std::uint8_t{0};
}

// f32 -> bf16, RNE in integers; NaN becomes quiet.
inline __m128i to_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i lsb = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), lsb), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i picked = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(picked), _mm256_extracti128_si256(picked, 1));
}

inline __m256 load8(const void* base, FloatType type, std::int64_t index) {
  if (type == FloatType::F32) return _mm256_loadu_ps(static_cast<const float*>(base) + index);
  const __m128i half =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const std::uint16_t*>(base) + index));
  if (type == FloatType::BF16) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  return _mm256_cvtph_ps(half);
}

inline void store8(void* base, FloatType type, std::int64_t index, __m256 value) {
  if (type == FloatType::F32) return _mm256_storeu_ps(static_cast<float*>(base) + index, value);
  const __m128i half =
      type == FloatType::BF16 ? to_bf16(value) : _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<std::uint16_t*>(base) + index), half);
}

// Fewer than 8 values go through a small buffer: nothing beyond them is read or written.
inline __m256 load_some(const void* base, FloatType type, std::int64_t index, int count) {
  if (count >= 8) return load8(base, type, index);
  const int size = type == FloatType::F32 ? 4 : 2;
  unsigned char buffer[32] = {};
  const unsigned char* from = static_cast<const unsigned char*>(base) + index * size;
  for (int i = 0; i < count * size; ++i) buffer[i] = from[i];
  return load8(buffer, type, 0);
}

inline void store_some(void* base, FloatType type, std::int64_t index, int count, __m256 value) {
  if (count >= 8) return store8(base, type, index, value);
  const int size = type == FloatType::F32 ? 4 : 2;
  unsigned char buffer[32];
  store8(buffer, type, 0, value);
  unsigned char* to = static_cast<unsigned char*>(base) + index * size;
  for (int i = 0; i < count * size; ++i) to[i] = buffer[i];
}

void finish(const FinishArgs& args) {
  const __m256 factor = _mm256_set1_ps(args.format == Format::E4M3 ? 256.0f : 1.0f);
  for (std::int64_t r = 0; r < args.rows; ++r) {
    const __m256 a_scale = _mm256_set1_ps(args.a_scale_inv[r * args.a_scale_stride]);
    for (int c = 0; c < args.channels; c += 8) {
      const int count = args.channels - c;
      const float* acc = args.acc + r * args.blocks * kAccFloats + c / 8 * 16;
      // neighbours: (n0 n1 n4 n5 | n2 n3 n6 n7) -> n0 .. n7
      const __m256 pairs = _mm256_hadd_ps(_mm256_loadu_ps(acc), _mm256_loadu_ps(acc + 8));
      const __m256 sum = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(pairs), 0xD8));
      const __m256 w_scale = args.w_scale_stride == 0 ? _mm256_set1_ps(args.w_scale_inv[0])
                                                      : load_some(args.w_scale_inv, FloatType::F32, c, count);
      __m256 value = _mm256_mul_ps(_mm256_mul_ps(sum, factor), _mm256_mul_ps(a_scale, w_scale));
      if (args.bias) value = _mm256_add_ps(value, load_some(args.bias, args.bias_type, c, count));
      const std::int64_t at = r * args.y_stride + c;
      if (args.accumulate) value = _mm256_add_ps(value, load_some(args.y, args.y_type, at, count));
      store_some(args.y, args.y_type, at, count, value);
    }
  }
}

}  // namespace

const GemmKernels* gemm_kernels_avx2() {
  static constexpr GemmKernels kKernels{XLayout::F32Pair, kAccFloats, plan, kPanelBytes, pack_lines,
                                        multiply,         nullptr,    0,    finish};
  return &kKernels;
}

}  // namespace fp8::kernels
