// SPDX-License-Identifier: Apache-2.0
// Matrices, scales, threads and levels around the decodes of one run (cast_kernels.h).
#include "fp8/runtime/kernels/decode.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>

#include "fp8/runtime/kernels/cast_kernels.h"
#include "fp8/runtime/kernels/check_matrix.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
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
  if (args.rows > 0 && args.cols > 0 && (args.codes == nullptr || args.y == nullptr)) {
    throw std::invalid_argument("decode_from_fp8: codes and y must not be null for a non-empty matrix");
  }
  if (args.scale_inv != nullptr && !args.layout.along_rows()) {
    throw std::invalid_argument("decode_from_fp8: found scales over " + std::to_string(args.layout.rows) + " x " +
                                std::to_string(args.layout.cols) + " elements, allowed are 0 and 1");
  }
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

}  // namespace fp8::kernels
