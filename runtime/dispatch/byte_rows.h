// SPDX-License-Identifier: Apache-2.0
// Operations on plain tensors (plain.h) that copy rows of bytes: of tensors one after the other, or of a table. Results
// of more than 2^20 bytes are worth all threads, and go to unboxed.h as all else does.
//
//   cat            [.., n1, ..], [.., n2, ..], ...          ->  [.., n1 + n2 + ..., ..]
//   index_select   [n, ..] along 0, index [m]               ->  [m, ..]
//   embedding      [n, d], indices [..] of int64 or int32   ->  [.., d]
#pragma once
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

namespace fp8::runtime {

/// Of one dtype and device, with sizes that agree but along dim; not of an empty one among them.
at::Tensor cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, std::int64_t dim);

at::Tensor index_select(c10::DispatchKeySet keys, const at::Tensor& table, std::int64_t dim, const at::Tensor& index);

/// [indices' sizes, table's sizes from 1 on]; undefined where the call is none of this file's: an index that is no row,
/// too large a result, a trace, ...
at::Tensor rows_of_table(const at::Tensor& table, const at::Tensor& indices);

}  // namespace fp8::runtime
