// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "fp8/quant/checkpoint/stacked_experts.h"

namespace fp8::quant {
namespace {

constexpr std::int64_t kTile = 32;  // squares of 2 or 4 KiB: source and destination stay in the first cache
constexpr std::int64_t kCountedBytes = std::int64_t{1} << 20;

/// out[r, c] = in[c * in_stride + r * step]: out [rows, cols] dense.
template <class Word>
void transpose(const std::uint8_t* in, std::int64_t in_stride, std::int64_t step, std::uint8_t* out, std::int64_t rows,
               std::int64_t cols) {
  constexpr auto kWord = static_cast<std::int64_t>(sizeof(Word));
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const std::int64_t r1 = std::min(r0 + kTile, rows);
    for (std::int64_t c0 = 0; c0 < cols; c0 += kTile) {
      const std::int64_t c1 = std::min(c0 + kTile, cols);
      for (std::int64_t r = r0; r < r1; ++r) {
        const std::uint8_t* from = in + (c0 * in_stride + r * step) * kWord;
        std::uint8_t* to = out + (r * cols + c0) * kWord;
        for (std::int64_t c = c0; c < c1; ++c, from += in_stride * kWord, to += kWord)
          std::memcpy(to, from, sizeof(Word));
      }
    }
  }
}

void transpose(const std::uint8_t* in, std::int64_t in_stride, std::int64_t step, std::uint8_t* out, std::int64_t rows,
               std::int64_t cols, std::int64_t width) {
  switch (width) {
    case 1: return transpose<std::uint8_t>(in, in_stride, step, out, rows, cols);
    case 2: return transpose<std::uint16_t>(in, in_stride, step, out, rows, cols);
    case 4: return transpose<std::uint32_t>(in, in_stride, step, out, rows, cols);
    default: return transpose<std::uint64_t>(in, in_stride, step, out, rows, cols);
  }
}

/// Bytes [first, first + count) of a tensor, in values of `width`.
void read_values(const io::Checkpoint& checkpoint, const std::string& tensor, std::int64_t first, std::int64_t count,
                 std::int64_t width, std::uint8_t* destination) {
  checkpoint.read(tensor, destination, static_cast<std::uint64_t>(first * width),
                  static_cast<std::uint64_t>(count * width));
}

}  // namespace

std::string WeightSlice::place() const { return expert < 0 ? tensor : tensor + ", expert " + std::to_string(expert); }

WeightSlice whole_weight(const io::TensorInfo& tensor) {
  return {tensor.name, 0, tensor.shape.at(0), tensor.shape.at(1), tensor.shape.at(1), 1};
}

void read_rows(const io::Checkpoint& checkpoint, const WeightSlice& s, std::int64_t first_row, std::int64_t rows,
               void* destination, std::vector<std::uint8_t>& scratch) {
  io::ensure(first_row >= 0 && rows >= 0 && first_row + rows <= s.rows, "rows of the slice");
  const std::int64_t width = io::size_of(checkpoint.info(s.tensor).dtype);
  auto* out = static_cast<std::uint8_t*>(destination);
  if (rows == 0 || s.cols == 0) return;
  const std::int64_t start = s.first + first_row * s.row_stride;
  if (!s.is_transposed()) {
    if (s.row_stride == s.cols) return read_values(checkpoint, s.tensor, start, rows * s.cols, width, out);
    for (std::int64_t r = 0; r < rows; ++r)
      read_values(checkpoint, s.tensor, start + r * s.row_stride, s.cols, width, out + r * s.cols * width);
    return;
  }
  const std::int64_t run = (rows - 1) * s.row_stride + 1;  // of each of the tensor's rows
  scratch.resize(static_cast<std::size_t>(s.cols * run * width));
  if (run == s.col_stride) {
    read_values(checkpoint, s.tensor, start, s.cols * run, width, scratch.data());
  } else {
    for (std::int64_t c = 0; c < s.cols; ++c)
      read_values(checkpoint, s.tensor, start + c * s.col_stride, run, width, scratch.data() + c * run * width);
  }
  transpose(scratch.data(), run, s.row_stride, out, rows, s.cols, width);
}

NonFinite count_nonfinite(const io::Checkpoint& checkpoint, const WeightSlice& s) {
  const auto dtype = checkpoint.info(s.tensor).dtype;
  const std::int64_t step =
      std::max<std::int64_t>(1, kCountedBytes / std::max<std::int64_t>(1, s.cols * io::size_of(dtype)));
  std::vector<std::uint8_t> values, scratch;
  NonFinite found;
  for (std::int64_t row = 0; row < s.rows; row += step) {
    const std::int64_t rows = std::min(step, s.rows - row);
    values.resize(static_cast<std::size_t>(rows * s.cols * io::size_of(dtype)));
    read_rows(checkpoint, s, row, rows, values.data(), scratch);
    const NonFinite part = count_nonfinite(values.data(), dtype, rows * s.cols);
    found.nan += part.nan;
    found.inf += part.inf;
  }
  return found;
}

void refuse_nonfinite(const io::Checkpoint& checkpoint, const WeightSlice& s) {
  refuse_nonfinite(checkpoint, s.place(), count_nonfinite(checkpoint, s), static_cast<std::uint64_t>(s.values()));
}

}  // namespace fp8::quant
