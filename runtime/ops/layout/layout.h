// SPDX-License-Identifier: Apache-2.0
// Cache layout: hpu::in_place_interleave, kv_reorder, and the deprecated fp8_* movers of codes. Bytes are moved, never
// read as values.
//
//   in_place_interleave   y[j] = x[j / 4]: rows 4i .. 4i+3 all become source row i
//   kv_reorder            y[b, :, .., start[b]:end[b], :] = x[b, beams(b), .., start[b]:end[b], :]
//                         beam_idx[b] = 64 * b0 + 16 * b1 + 4 * b2 + b3: four beams of two bits
#pragma once
#include <ATen/core/Tensor.h>

namespace fp8::runtime::ops {

/// self: 4-D, size(0) a multiple of 4, any dtype.
at::Tensor in_place_interleave(const at::Tensor& self);
at::Tensor& in_place_interleave_(at::Tensor& self);

/// self: [B, 4, ..., S, D]; start, end: int32 [B], 0 <= start <= end <= S; beam_idx: uint8 [B].
at::Tensor kv_reorder(const at::Tensor& self, const at::Tensor& start, const at::Tensor& end,
                      const at::Tensor& beam_idx);
at::Tensor& kv_reorder_(at::Tensor& self, const at::Tensor& start, const at::Tensor& end, const at::Tensor& beam_idx);
/// Throws as kv_reorder does, without looking at values; for meta tensors.
void check_kv_reorder(const at::Tensor& self, const at::Tensor& start, const at::Tensor& end,
                      const at::Tensor& beam_idx);

// --- deprecated: codes as float8, or as int8 / uint8 where a program predates the dtypes
at::Tensor& fp8_copy_(at::Tensor& self, const at::Tensor& source);
/// The last two dimensions change places.
at::Tensor& fp8_transpose(const at::Tensor& input, at::Tensor& out);
at::Tensor& fp8_permute(const at::Tensor& input, at::IntArrayRef dims, at::Tensor& out);
at::Tensor fp8_reshape(const at::Tensor& input, at::IntArrayRef shape);
at::Tensor& fp8_index_copy_(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source);
at::Tensor fp8_index_select_v2(const at::Tensor& self, int64_t dim, const at::Tensor& index);
at::Tensor fp8_repeat_v2(const at::Tensor& self, at::IntArrayRef repeats);
at::Tensor& fp8_kv_reorder_(at::Tensor& self, const at::Tensor& start, const at::Tensor& end,
                            const at::Tensor& beam_idx);

}  // namespace fp8::runtime::ops
