// SPDX-License-Identifier: Apache-2.0
// Where a weight's values stand in a checkpoint: a matrix of its own, or one expert's part of a tensor that stacks
// many. No torch here.
//
// A weight is upright, [rows, cols] = [out, in]; its value (r, c) is value number first + r * row_stride + c *
// col_stride of the tensor:
//
//                                    first               row_stride   col_stride
//   a matrix [out, in]               0                   in           1
//   expert e of [E, out, in]         e * out * in        in           1
//   expert e of [E, in, out]         e * in * out        1            out
//   its "up" in fused [E, 2 I, H]    (2 e + 1) * I * H   H            1            gate's rows above up's
//   the same, interleaved            2 e * I * H + H     2 H          1            gate and up by turns
//   its "up" in fused [E, H, 2 I]    2 e * I * H + I     1            2 I
//   the same, interleaved            2 e * I * H + 1     2            2 I
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fp8/quant/forms/nonfinite.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

struct WeightSlice {
  std::string tensor;
  std::int64_t first = 0, rows = 0, cols = 0, row_stride = 0, col_stride = 1;
  std::int64_t expert = -1;  ///< whose it is, in a stack of many; -1: the tensor is no stack

  bool is_transposed() const { return col_stride != 1; }
  std::int64_t values() const { return rows * cols; }
  /// "TENSOR" or "TENSOR, expert 3", for messages.
  std::string place() const;
};

/// All of a tensor [rows, cols].
WeightSlice whole_weight(const io::TensorInfo& tensor);

/// Rows [first_row, first_row + rows) of a slice into `destination`, [rows, slice.cols] dense in the tensor's dtype.
/// Reads the bytes of these values (of interleaved columns: their neighbours too), each once. scratch keeps its memory
/// from call to call; no more of it is used than the rows take (interleaved columns: twice that). Throws io::Error.
void read_rows(const io::Checkpoint& checkpoint, const WeightSlice& slice, std::int64_t first_row, std::int64_t rows,
               void* destination, std::vector<std::uint8_t>& scratch);

/// NaN and Inf among the slice's values, chunk by chunk.
NonFinite count_nonfinite(const io::Checkpoint& checkpoint, const WeightSlice& slice);

/// Counts and throws io::Error "FOLDER: TENSOR, expert 3: expected finite weights, found NaN in ...".
[[noreturn]] void refuse_nonfinite(const io::Checkpoint& checkpoint, const WeightSlice& slice);

}  // namespace fp8::quant
