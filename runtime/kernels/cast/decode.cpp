// SPDX-License-Identifier: Apache-2.0
// Matrices, scales, threads and levels around the decodes of one run (cast_kernels.h).
#include <algorithm>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/cast/cast_kernels.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

// A code is decoded from a table of 256 values built out of the formats' definitions:
//
//   E4M3   f16 with the exponent bias 7 instead of 15: value = f16(s 0eeee mmm0000000) * 2^8, except
//            ocp, gaudi3   S.1111.111 = NaN
//            gaudi2        S.1111.000 = infinity, all other S.1111.mmm = NaN
//   E5M2   the upper half of an f16

float value_of(std::uint32_t code, Format format, Dialect dialect) {
  if (format == Format::E5M2) return f16_to_f32(static_cast<std::uint16_t>(code << 8));
  const std::uint32_t sign = (code & 0x80) << 8;
  const bool ieee = dialect == Dialect::gaudi2;
  if (ieee && (code & 0x7F) == 0x78) return f16_to_f32(static_cast<std::uint16_t>(sign | 0x7C00));
  if ((code & 0x7F) > (ieee ? 0x78u : 0x7Eu)) return f16_to_f32(static_cast<std::uint16_t>(sign | 0x7E00));
  return f16_to_f32(static_cast<std::uint16_t>(sign | ((code & 0x7F) << 7))) * 256.0f;
}

std::array<float, 256> table_of(Format format, Dialect dialect = Dialect::ocp) {
  std::array<float, 256> table;
  for (std::uint32_t code = 0; code < 256; ++code) table[code] = value_of(code, format, dialect);
  return table;
}

template <FloatType T>
void decode_values(const DecodeSpan& span, const float* table) {
  for (std::int64_t i = 0; i < span.n; ++i) {
    const float y = table[span.codes[i]] * span.scales[span.per_element ? i : 0];
    if (T == FloatType::F32) static_cast<float*>(span.y)[i] = y;
    if (T == FloatType::BF16) static_cast<std::uint16_t*>(span.y)[i] = f32_to_bf16(y);
    if (T == FloatType::F16) static_cast<std::uint16_t*>(span.y)[i] = f32_to_f16(y);
  }
}

template <FloatType T, Format F>
void decode_span(const DecodeSpan& span) {
  decode_values<T>(span, decode_table(F));
}

}  // namespace

const float* decode_table(Format format, Dialect dialect) {
  static const std::array<float, 256> e4m3 = table_of(Format::E4M3), e5m2 = table_of(Format::E5M2),
                                      ieee = table_of(Format::E4M3, Dialect::gaudi2);
  if (format == Format::E5M2) return e5m2.data();
  return dialect == Dialect::gaudi2 ? ieee.data() : e4m3.data();
}

void decode_by_table(const DecodeSpan& span, FloatType type, const float* table) {
  switch (type) {
    case FloatType::F32: return decode_values<FloatType::F32>(span, table);
    case FloatType::BF16: return decode_values<FloatType::BF16>(span, table);
    case FloatType::F16: return decode_values<FloatType::F16>(span, table);
  }
}

extern const DecodeKernels kDecodeScalar = {{
    {decode_span<FloatType::F32, Format::E4M3>, decode_span<FloatType::F32, Format::E5M2>},
    {decode_span<FloatType::BF16, Format::E4M3>, decode_span<FloatType::BF16, Format::E5M2>},
    {decode_span<FloatType::F16, Format::E4M3>, decode_span<FloatType::F16, Format::E5M2>},
}};

namespace {

constexpr std::int64_t kGrain = 64 * 1024;  // codes per range: some 5 us of work, and a multiple of every vector
constexpr std::int64_t kTableRun = 1024;    // a table of 128 products pays for itself from about this many codes
constexpr float kOne = 1.0f;

const DecodeKernels& kernels_in_force() {
#if defined(__x86_64__)
  if (simd_level() >= SimdLevel::avx512) return kDecodeAvx512;
  if (simd_level() == SimdLevel::avx2) return kDecodeAvx2;
#endif
  return kDecodeScalar;
}

/// Null where the level has none.
TableDecodeKernel table_kernel_in_force() {
#if defined(__x86_64__)
  if (simd_level() >= SimdLevel::avx512bf16) return kTableDecodeAvx512Vbmi;
#endif
  return nullptr;
}

/// entries[i] = the decoded value of code i < 128.
void fill_table(const DecodeArgs& args, float scale, std::uint16_t* entries) {
  const float* value = decode_table(args.format);
  for (int i = 0; i < 128; ++i) {
    const float y = value[i] * scale;
    entries[i] = args.type == FloatType::BF16 ? f32_to_bf16(y) : f32_to_f16(y);
  }
  // NaN keeps the code's sign whatever the scale's is.
  for (int i = 0; i < 128; ++i) {
    if (std::isnan(value[i])) entries[i] &= 0x7FFF;
  }
}

void check(const DecodeArgs& args) {
  check_matrix("decode_from_fp8", args.rows, args.cols, args.cols);
  if (args.rows > 0 && args.cols > 0 && (args.codes == nullptr || args.y == nullptr))
    throw std::invalid_argument("decode_from_fp8: codes and y must not be null for a non-empty matrix");
  if (args.scale_inv != nullptr) check_along_rows("decode_from_fp8", args.layout);
}

/// The largest magnitude among n codes: codes sort like magnitudes.
std::uint8_t largest_code(const std::uint8_t* codes, std::int64_t n) {
  std::uint8_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint8_t magnitude = codes[i] & 0x7F;
    largest = largest < magnitude ? magnitude : largest;
  }
  return largest;
}

/// The first code that is no finite number.
std::uint8_t first_non_finite(Format format, Dialect dialect) {
  return format == Format::E5M2 ? 0x7C : dialect == Dialect::gaudi2 ? 0x78 : 0x7F;
}

/// One row's part: through a table of products where that is faster and equal, else element by element.
class RunDecoder {
 public:
  RunDecoder(const DecodeArgs& args, bool stream)
      : args_(args),
        stream_(stream),
        kernel_(decode_kernel_in_force(args.type, args.format)),
        table_kernel_(args.type == FloatType::F32 || args.layout.cols != 0 ? nullptr : table_kernel_in_force()) {
    if (table_kernel_ != nullptr && args.layout.rows == 0) fill_table(args, *args.scale_inv, shared_table_);
  }

  void decode(std::int64_t row, std::int64_t col, std::int64_t n) const {
    const std::int64_t at = row * args_.cols + col;
    DecodeSpan span;
    span.codes = args_.codes + at;
    span.n = n;
    span.y = static_cast<char*>(args_.y) + at * size_of(args_.type);
    span.scales = args_.scale_inv + args_.layout.at(row, col, args_.cols);
    span.per_element = args_.layout.cols != 0;
    span.stream = stream_;
    if (args_.dialect == Dialect::gaudi2 && args_.format == Format::E4M3 && largest_code(span.codes, n) >= 0x78) {
      return decode_by_table(span, args_.type, decode_table(args_.format, args_.dialect));
    }
    // An infinite code times zero is a NaN whose sign is the platform's, not the code's: not for a table of magnitudes.
    const bool plain_scale = std::isfinite(*span.scales) && *span.scales != 0.0f;
    if (table_kernel_ == nullptr || !plain_scale || (args_.layout.rows != 0 && n < kTableRun)) {
      kernel_(span);
    } else if (args_.layout.rows == 0) {
      table_kernel_(span, shared_table_);
    } else {
      alignas(64) std::uint16_t table[128];
      fill_table(args_, *span.scales, table);
      table_kernel_(span, table);
    }
  }

 private:
  const DecodeArgs& args_;
  bool stream_;
  DecodeKernel kernel_;
  TableDecodeKernel table_kernel_;
  alignas(64) std::uint16_t shared_table_[128];
};

}  // namespace

DecodeKernel decode_kernel_in_force(FloatType type, Format format) {
  return kernels_in_force().of[static_cast<int>(type)][static_cast<int>(format)];
}

void decode_from_fp8(const DecodeArgs& given) {
  check(given);
  DecodeArgs args = given;
  if (args.scale_inv == nullptr) {
    args.scale_inv = &kOne;
    args.layout = ScaleLayout::per_tensor();
  }
  if (args.rows <= 1 || args.layout.one()) {  // one long run
    args.cols *= args.rows;
    args.rows = args.cols > 0 ? 1 : 0;
  }
  if (args.rows == 0 || args.cols == 0) return;
  const RunDecoder decoder(args, args.rows * args.cols * size_of(args.type) > streaming_bytes());
  parallel_for(args.rows * args.cols, kGrain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t row = begin / args.cols, col = begin % args.cols, n = std::min(end - begin, args.cols - col);
      decoder.decode(row, col, n);
      begin += n;
    }
  });
}

bool has_nan_code(const std::uint8_t* codes, std::int64_t n, Format format, Dialect dialect) {
  check_matrix("has_nan_code", 1, n, n);
  if (n > 0 && codes == nullptr) throw std::invalid_argument("has_nan_code: codes must not be null");
  const std::uint8_t first = first_non_finite(format, dialect);
  std::atomic<bool> found{false};
  parallel_for(n, 16 * kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end && !found.load(std::memory_order_relaxed); i += 4096) {
      if (largest_code(codes + i, std::min<std::int64_t>(end - i, 4096)) >= first)
        found.store(true, std::memory_order_relaxed);
    }
  });
  return found.load();
}

// Blocks: scales of a band are spread to one per element, then every row of the band is one decode per
// piece.

namespace {

constexpr std::int64_t kPiece = 2048;  // columns of a unit

void check_block_decode(const DecodeArgs& args) {
  check_matrix("decode_blocks", args.rows, args.cols, args.cols);
  check_blocks("decode_blocks", args.layout);
  if (args.rows == 0 || args.cols == 0) return;
  if (args.codes == nullptr || args.y == nullptr)
    throw std::invalid_argument("decode_blocks: codes and y must not be null for a non-empty matrix");
  if ((args.scale_inv == nullptr) == (args.e8m0 == nullptr))
    io::fail<std::invalid_argument>("decode_blocks: expected one of scale_inv and e8m0, got {}",
                                    args.e8m0 == nullptr ? "neither" : "both");
}

/// scales[c] = the scale of column col + c < col + n in this row of the grid.
void spread(const DecodeArgs& args, std::int64_t grid_row, std::int64_t col, std::int64_t n, float* scales) {
  const std::int64_t first = grid_row * blocks_of(args.cols, args.layout.cols);
  for (std::int64_t c = 0; c < n;) {
    const std::int64_t block = (col + c) / args.layout.cols, end = std::min(n, (block + 1) * args.layout.cols - col);
    const float scale = args.e8m0 != nullptr ? e8m0_value(args.e8m0[first + block]) : args.scale_inv[first + block];
    std::fill(scales + c, scales + end, scale);
    c = end;
  }
}

}  // namespace

void decode_blocks(const DecodeArgs& given) {
  check_block_decode(given);
  DecodeArgs args = given;
  if (args.rows == 0 || args.cols == 0) return;
  args.layout.rows = std::min(args.layout.rows, args.rows);
  args.layout.cols = std::min(args.layout.cols, args.cols);
  const DecodeKernel kernel = decode_kernel_in_force(args.type, args.format);
  // Tall bands are cut: rows need each other only for the scales, which are cheap.
  const std::int64_t unit_rows = std::min<std::int64_t>(args.layout.rows, 32);
  const std::int64_t parts = blocks_of(args.layout.rows, unit_rows), across = blocks_of(args.cols, kPiece);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / unit_rows / std::min(kPiece, args.cols));
  parallel_each(blocks_of(args.rows, args.layout.rows) * parts * across, grain, [&](std::int64_t unit) {
    float scales[kPiece];
    const std::int64_t band = unit / across / parts, part = unit / across % parts, col = unit % across * kPiece;
    const std::int64_t n = std::min(kPiece, args.cols - col);
    const std::int64_t row = band * args.layout.rows + part * unit_rows;
    const std::int64_t row_end = std::min({args.rows, (band + 1) * args.layout.rows, row + unit_rows});
    if (row < row_end) spread(args, band, col, n, scales);
    for (std::int64_t r = row; r < row_end; ++r) {
      const std::int64_t at = r * args.cols + col;
      kernel(DecodeSpan{args.codes + at, n, static_cast<char*>(args.y) + at * size_of(args.type), scales, true, false});
    }
  });
}

}  // namespace fp8::kernels
