// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/minimal_ops.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/_has_compatible_shallow_copy_type_native.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/resolve_neg_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>
#include <numeric>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/dispatch/pointwise.h"

namespace fp8::runtime {
namespace {

constexpr c10::DispatchKeySet kHpuKey(c10::DispatchKey::HPU);

bool is_float8(at::ScalarType type) { return c10::isFloat8Type(type); }

/// Codes of a converted weight read so are the caller's; as any other type they would be taken for values.
bool is_bytes(at::ScalarType type) {
  return c10::isIntegralType(type, /*includeBool=*/true) && c10::elementSize(type) == 1;
}

c10::DeviceGuard guard_for(std::optional<at::Device> device) {
  const at::Device d = device.value_or(at::Device(c10::kHPU));
  return c10::DeviceGuard(d.has_index() ? d : at::Device(c10::kHPU, current_device()));
}

/// Of a new tensor: the default where none is asked for.
at::ScalarType checked_dtype(std::optional<at::ScalarType> asked) {
  const at::ScalarType dtype = asked.value_or(at::get_default_dtype_as_scalartype());
  check_takes(dtype, DtypeUse::tensors, "hpu");
  return dtype;
}

/// The tag on a tensor's memory, or the one its TensorImpl carries (memory may have been replaced since).
c10::intrusive_ptr<BlockTag> tag_of(const at::Tensor& t) {
  if (const auto tag = tag_of_memory(t)) return tag;
  return c10::intrusive_ptr<BlockTag>::reclaim_copy(
      dynamic_cast<BlockTag*>(t.unsafeGetTensorImpl()->get_backend_meta()));
}

void check_replace(const at::Tensor& self, const at::Tensor& source, const BlockTag* tag) {
  if (!is_float8(self.scalar_type()) && !is_float8(source.scalar_type())) return;
  if (tag != nullptr) tag->check_replace(self, source);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "[hpu] set_: expected a source of dtype ", self.scalar_type(),
              ", got ", source.scalar_type(), "; set_ would take its bytes for float8 codes");
}

/// The source of a copy on the host. Where Gaudi2 converts to or from E4M3, upstream's conversion does not know that
/// the highest exponent is infinity and NaN there: codes are read here, and values saturate as in the device's casts.
at::Tensor as_gaudi2_converts(const at::Tensor& to, const at::Tensor& from) {
  const at::Tensor source = cpu_alias(from);
  constexpr auto kE4M3 = at::kFloat8_e4m3fn;
  if ((from.scalar_type() == kE4M3) == (to.scalar_type() == kE4M3) || device_kind() != DeviceKind::gaudi2)
    return source;
  if (to.scalar_type() == kE4M3) {
    const bool real = at::isFloatingType(from.scalar_type()) || at::isIntegralType(from.scalar_type(), true);
    const float max = kernels::fp8_max(kernels::Format::E4M3, kernels::Dialect::gaudi2);
    return to.is_hpu() && real ? source.to(at::kFloat).clamp(-max, max) : source;
  }
  if (!from.is_hpu()) return source;
  const at::Tensor codes = source.view(at::kByte).contiguous(), values = at::empty(codes.sizes(), at::kFloat);
  kernels::DecodeArgs args;
  args.codes = codes.const_data_ptr<std::uint8_t>();
  args.rows = 1;
  args.cols = codes.numel();
  args.y = values.mutable_data_ptr();
  args.dialect = kernels::Dialect::gaudi2;
  kernels::decode_from_fp8(args);
  return values;
}

}  // namespace

at::Tensor empty_memory_format(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool>,
                               std::optional<at::MemoryFormat> memory_format) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "[hpu] empty: expected layout Strided, got ", *layout);
  const auto guard = guard_for(device);
  return at::detail::empty_generic(size, hpu_allocator(), kHpuKey, checked_dtype(dtype), memory_format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool>) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "[hpu] empty_strided: expected layout Strided, got ",
              *layout);
  const auto guard = guard_for(device);
  return at::detail::empty_strided_generic(size, stride, hpu_allocator(), kHpuKey, checked_dtype(dtype));
}

at::Tensor view_dtype(const at::Tensor& self, at::ScalarType dtype) {
  const Block* block = dtype == self.scalar_type() || is_bytes(dtype) ? nullptr : block_of(self);
  if (block != nullptr && block->tag) block->tag->check_access("aten::view", self);
  return at::native::view_dtype(self, checked_dtype(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(self.device());
  if (self.sizes() != size) {
    if (Block* block = block_of(self); block != nullptr && block->tag) block->tag->check_access("aten::resize_", self);
  }
  auto* impl = self.unsafeGetTensorImpl();
  const std::vector<int64_t> sizes = self.sizes().vec(), strides = self.strides().vec();
  try {
    return at::native::resize_(self, size, memory_format);  // the storage is host memory: the CPU's resize fits
  } catch (...) {                                           // it sets the sizes before there is memory for them
    impl->set_sizes_and_strides(sizes, strides);
    throw;
  }
}

namespace {

at::Tensor& reseat(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(source.device().is_hpu(), "[hpu] set_: expected a storage on hpu, got one on ", source.device());
  auto* impl = self.unsafeGetTensorImpl();
  std::vector<int64_t> strides(stride.begin(), stride.end());
  if (stride.empty()) {  // empty means contiguous
    strides.resize(size.size());
    int64_t next = 1;
    for (std::size_t i = size.size(); i-- > 0;) {
      strides[i] = next;
      next *= std::max<int64_t>(size[i], 1);
    }
  }
  TORCH_CHECK(strides.size() == size.size() && offset >= 0,
              "[hpu] set_: expected one stride per size and an offset >= 0, got ", strides.size(), " strides for ",
              size.size(), " sizes, offset ", offset);
  const auto needed = at::detail::computeStorageNbytes(size, strides, self.itemsize(), offset);
  if (needed > source.nbytes()) {
    const c10::DeviceGuard guard(source.device());
    at::native::resize_bytes_cpu(source.unsafeGetStorageImpl(), needed);  // refuses storages that can't grow
  }
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, strides, offset);
  return self;
}

void refuse_values(const at::Tensor& self, const at::Storage& source) {
  const Block* block = block_of(source.unsafeGetStorageImpl());
  if (block == nullptr || !block->tag || is_bytes(self.scalar_type())) return;
  for (const auto dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    if (dtype == self.scalar_type()) continue;
    at::Tensor codes = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(source), kHpuKey,
                                                                c10::scalarTypeToTypeMeta(dtype));
    reseat(codes, source, 0, {static_cast<int64_t>(source.nbytes())}, {});
    block->tag->check_access("aten::set_", codes);
  }
}

}  // namespace

at::Tensor& set_source_storage_offset(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                                      at::IntArrayRef stride) {
  refuse_values(self, source);
  const auto tag = tag_of(self);
  if (!tag || !is_float8(self.scalar_type()) || !source.device().is_hpu())
    return reseat(self, std::move(source), offset, size, stride);
  at::Tensor there =
      at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(source), kHpuKey, self.dtype());
  reseat(there, source, offset, size, stride);
  tag->check_replace(self, there);
  tag->replaced(self, there);
  return reseat(self, std::move(source), offset, size, stride);
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const auto numel = static_cast<int64_t>(source.nbytes() / self.itemsize());
  set_source_storage_offset(self, std::move(source), 0, {numel}, {});
  if (self.scalar_type() == at::kByte && tag_of_memory(self))
    self.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<WholeStorage>());
  return self;
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  const auto tag = tag_of(self);  // lives on when the old memory goes
  check_replace(self, source, tag.get());
  if (tag) tag->replaced(self, source);
  return reseat(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  const auto guard = guard_for(self.device());
  c10::Storage empty(c10::Storage::use_byte_size_t(), 0, hpu_allocator()->allocate(0), hpu_allocator(),
                     /*resizable=*/true);
  return reseat(self, std::move(empty), 0, {0}, {1});
}

at::Tensor resolve_neg(const at::Tensor& self) {
  if (const auto tag = tag_of_memory(self)) tag->check_access("aten::resolve_neg", self);
  return at::native::resolve_neg(self);
}

bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  if (const auto tag = tag_of(self); tag && from.defined() && !self.is_same(from)) {
    if (self.scalar_type() == from.scalar_type()) tag->check_replace(self, from);
    tag->replaced(self, from);
  }
  return at::native::_has_compatible_shallow_copy_type(self, from);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  LeafScope leaf("aten::copy_", source);
  auto tag = tag_of_memory(self);
  if (!tag) tag = tag_of_memory(source);
  if (tag) tag->check_copy(self, source);
  if (!small_copy(self, source)) {
    at::Tensor to_cpu = cpu_alias(self);
    c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                             c10::autocast_dispatch_keyset);
    at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), to_cpu, as_gaudi2_converts(self, source),
                                non_blocking);
  }
  if (tag) tag->copied(self, source);
  leaf.gives(self);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  at::Tensor to = destination;
  return copy_(to, self, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  at::Tensor to = destination;
  if (to.sizes() != self.sizes()) to.resize_(self.sizes());
  return copy_(to, self, false);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == c10::kHPU && (!stream.device().has_index() || stream.device() == self.device()),
              "[hpu] record_stream: expected a stream of ", self.device(), ", got one of ", stream.device());
}

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // a larger copy is worth all threads

/// One operand: for each of the outer indices, so many bytes.
struct Piece {
  const char* data;
  std::size_t bytes;
};

/// True if a tensor of the first one's dtype and device fits beside it.
bool fits(const at::Tensor& first, const at::Tensor& t, std::size_t dim) {
  const Block* block = plain_block(t);
  if (block == nullptr || block->device != current_device() || t.scalar_type() != first.scalar_type() ||
      t.dim() != first.dim() || t.numel() == 0)
    return false;
  if (t.dim() > 3 && t.suggest_memory_format() != at::MemoryFormat::Contiguous) return false;
  const at::IntArrayRef sizes = t.sizes(), wanted = first.sizes();
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (i != dim && sizes[i] != wanted[i]) return false;
  return true;
}

at::Tensor small_cat(const at::ITensorListRef& tensors, std::int64_t dim) {
  if (tensors.size() == 0 || leaves_heard()) return {};
  const at::Tensor& first = *tensors.begin();
  if (!first.defined() || dim >= first.dim() || dim < -first.dim()) return {};
  const auto at = static_cast<std::size_t>(dim < 0 ? dim + first.dim() : dim);
  c10::SmallVector<std::int64_t, 8> sizes(first.sizes().begin(), first.sizes().end());
  const std::int64_t outer = std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(at),
                                             std::int64_t{1}, std::multiplies<>());
  c10::SmallVector<Piece, 8> pieces;
  std::size_t row = 0;
  sizes[at] = 0;
  for (const at::Tensor& t : tensors) {
    if (!fits(first, t, at)) return {};
    pieces.push_back({plain_data(t), t.nbytes() / static_cast<std::size_t>(outer)});
    row += pieces.back().bytes;
    sizes[at] += t.size(static_cast<std::int64_t>(at));
  }
  if (row * static_cast<std::size_t>(outer) > kMostBytes) return {};
  at::Tensor y = empty_plain(sizes, first.scalar_type());
  char* to = plain_data(y);
  for (std::int64_t i = 0; i < outer; ++i) {
    for (Piece& piece : pieces) {
      std::memcpy(to, piece.data, piece.bytes);
      to += piece.bytes;
      piece.data += piece.bytes;
    }
  }
  return y;
}

/// The CPU's kernel refuses others, each in its words.
template <class Index>
bool are_rows(at::ArrayRef<Index> indices, std::int64_t rows) {
  return std::all_of(indices.begin(), indices.end(), [rows](Index i) { return i >= 0 && i < rows; });
}

template <class Index>
at::Tensor rows_at(const at::Tensor& table, const at::Tensor& indices) {
  const at::ArrayRef<Index> wanted(reinterpret_cast<const Index*>(plain_data(indices)),
                                   static_cast<std::size_t>(indices.numel()));
  const std::size_t row = table.nbytes() / static_cast<std::size_t>(table.size(0));
  if (wanted.size() > kMostBytes / row || !are_rows(wanted, table.size(0))) return {};
  c10::SmallVector<std::int64_t, 8> sizes(indices.sizes().begin(), indices.sizes().end());
  sizes.append(table.sizes().begin() + 1, table.sizes().end());
  at::Tensor y = empty_plain(sizes, table.scalar_type());
  const char* from = plain_data(table);
  char* to = plain_data(y);
  for (const Index i : wanted) {
    std::memcpy(to, from + static_cast<std::size_t>(i) * row, row);
    to += row;
  }
  return y;
}

}  // namespace

at::Tensor cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, std::int64_t dim) {
  at::Tensor y = small_cat(tensors, dim);
  return y.defined() ? y : Unboxed<at::_ops::cat, CpuFallback>::call(keys, tensors, dim);
}

at::Tensor rows_of_table(const at::Tensor& table, const at::Tensor& indices) {
  const Block *rows = plain_block(table), *at = plain_block(indices);
  if (rows == nullptr || at == nullptr || rows->device != current_device() || at->device != rows->device) return {};
  if (leaves_heard() || table.numel() == 0 || indices.numel() == 0) return {};
  if (indices.scalar_type() == at::kLong) return rows_at<std::int64_t>(table, indices);
  return indices.scalar_type() == at::kInt ? rows_at<std::int32_t>(table, indices) : at::Tensor();
}

at::Tensor index_select(c10::DispatchKeySet keys, const at::Tensor& table, std::int64_t dim, const at::Tensor& index) {
  at::Tensor y = dim == 0 && index.dim() == 1 ? rows_of_table(table, index) : at::Tensor();
  return y.defined() ? y : Unboxed<at::_ops::index_select, CpuFallback>::call(keys, table, dim, index);
}

}  // namespace fp8::runtime
