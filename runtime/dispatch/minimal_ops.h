// SPDX-License-Identifier: Apache-2.0
// The few ops an hpu tensor needs to exist: make, view, resize, re-seat, copy. Everything else goes through the
// fallback.
#pragma once
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Stream.h>

#include <optional>

namespace fp8::runtime {

at::Tensor empty_memory_format(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, std::optional<at::Device> device,
                               std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format);
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory);
/// A view of the bytes as another dtype.
at::Tensor view_dtype(const at::Tensor& self, at::ScalarType dtype);
const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> memory_format);

/// set_ in its four forms. Upstream compares no dtypes: bytes of one type would silently become values of another, so a
/// source of another dtype than a float8 self is refused, and a tag may refuse more (codes of unknown or other scales).
at::Tensor& set_source_storage(at::Tensor& self, at::Storage source);
at::Tensor& set_source_storage_offset(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                                      at::IntArrayRef stride);
at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source);
at::Tensor& set_nothing(at::Tensor& self);

/// The one op that set_data calls, before it replaces self's memory by that of `from`: a tag may refuse
/// the memory, or go along to it.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from);

/// The last op before Python's tolist() reads the memory itself: a tag may refuse.
at::Tensor resolve_neg(const at::Tensor& self);

/// Between any of hpu and cpu. A tagged float8 weight is copied only to its own dtype, and its scales go along.
/// On gaudi2 E4M3 codes are converted as that device reads them (0x78 is infinity) and saturates (240).
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination);

/// Nothing to keep alive: work is done when its call returns. Throws c10::Error for a stream of another device.
void record_stream(at::Tensor& self, c10::Stream stream);

// Operations on plain tensors (unboxed.h) that copy rows of bytes: of tensors one after the other, or of a table.
// Results of more than 2^20 bytes are worth all threads, and go to unboxed.h as all else does.
//
//   cat            [.., n1, ..], [.., n2, ..], ...          ->  [.., n1 + n2 + ..., ..]
//   index_select   [n, ..] along 0, index [m]               ->  [m, ..]
//   embedding      [n, d], indices [..] of int64 or int32   ->  [.., d]

/// Of one dtype and device, with sizes that agree but along dim; not of an empty one among them.
at::Tensor cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, std::int64_t dim);

at::Tensor index_select(c10::DispatchKeySet keys, const at::Tensor& table, std::int64_t dim, const at::Tensor& index);

/// [indices' sizes, table's sizes from 1 on]; undefined where the call is none of this file's: an index that is no row,
/// too large a result, a trace, ...
at::Tensor rows_of_table(const at::Tensor& table, const at::Tensor& indices);

}  // namespace fp8::runtime
