// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/pointwise.h"

#include <c10/util/accumulate.h>

#include <cstring>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::runtime {
namespace {

constexpr std::int64_t kMostElements = 32768;  // from here on the CPU's kernels use all threads

/// As add and sub read it; none: no number of one float.
std::optional<float> number_of(const c10::Scalar& s) {
  if (s.isFloatingPoint()) return static_cast<float>(s.toDouble());
  if (s.isIntegral(/*includeBool=*/false) && !s.isSymbolic()) return static_cast<float>(s.toLong());
  return std::nullopt;
}

/// Of a tensor of dimension 0 on the host.
std::optional<float> number_of(const at::Tensor& t) {
  constexpr c10::DispatchKeySet kKeys =
      c10::DispatchKeySet(c10::DispatchKey::CPU) | c10::DispatchKeySet(c10::DispatchKey::AutogradCPU) |
      c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) | c10::DispatchKeySet(c10::DispatchKey::AutocastCPU);
  if (!t.defined() || !kKeys.has_all(t.key_set()) || t.dim() != 0 || !t.has_storage()) return std::nullopt;
  switch (t.scalar_type()) {
    case at::kDouble: return static_cast<float>(*t.const_data_ptr<double>());
    case at::kFloat: return *t.const_data_ptr<float>();
    case at::kLong: return static_cast<float>(*t.const_data_ptr<std::int64_t>());
    default: return std::nullopt;
  }
}

bool is_one(const c10::Scalar& alpha) {
  return alpha.isFloatingPoint() ? alpha.toDouble() == 1 : alpha.isIntegral(false) && alpha.equal(1);
}

bool rounds_numbers(kernels::Pointwise op) { return op == kernels::Pointwise::add || op == kernels::Pointwise::sub; }

/// The arguments of pointwise(), but y; false where the call is none of this file's.
bool fill(kernels::PointwiseArgs& args, const PointwiseOperands& operands) {
  const at::Tensor& a = operands.a;
  const Block* block = small_block(a);
  if (block == nullptr) return false;
  if (operands.alpha != nullptr && !is_one(*operands.alpha)) return false;
  const at::ScalarType type = a.scalar_type();
  args.type = type == at::kFloat ? kernels::FloatType::F32 : kernels::FloatType::BF16;
  args.n = a.numel();
  args.a = plain_data(a);
  std::optional<float> number;
  if (operands.b != nullptr) {
    const at::Tensor& b = *operands.b;
    if (const Block* other = plain_block(b); other != nullptr) {
      args.b = plain_data(b);
      return other->device == block->device && b.scalar_type() == type && b.sizes() == a.sizes();
    }
    number = number_of(b);
  } else if (operands.number != nullptr) {
    number = number_of(*operands.number);
  } else {
    return true;
  }
  if (!number.has_value()) return false;
  const bool rounds = type == at::kBFloat16 && rounds_numbers(args.op);
  args.number = rounds ? kernels::bf16_to_f32(kernels::f32_to_bf16(*number)) : *number;
  return true;
}

/// b beside the rows of a, [n] each: one number a row, or one row for all; undefined where it is neither.
at::Tensor by_rows(kernels::Pointwise op, const PointwiseOperands& operands) {
  constexpr std::int64_t kLeastColumns = 16;  // below, the CPU's one pass is faster
  const at::Tensor &a = operands.a, &b = *operands.b;
  if (small_block(a) == nullptr || small_block(b) == nullptr || a.scalar_type() != b.scalar_type()) return {};
  if (operands.alpha != nullptr && !is_one(*operands.alpha)) return {};
  const std::int64_t n = a.size(-1), rows = a.numel() / n;
  const bool numbers = b.dim() == a.dim() && b.size(-1) == 1 && b.numel() == rows &&
                       b.sizes().slice(0, b.sizes().size() - 1) == a.sizes().slice(0, a.sizes().size() - 1);
  const bool row = b.dim() <= a.dim() && b.size(-1) == n && b.numel() == n;
  if (n < kLeastColumns || (!numbers && !row)) return {};
  at::Tensor y = empty_plain(a.sizes(), a.scalar_type());
  const bool is_f32 = a.scalar_type() == at::kFloat;
  const std::int64_t bytes = n * static_cast<std::int64_t>(a.element_size());
  kernels::PointwiseArgs args;
  args.op = op, args.type = is_f32 ? kernels::FloatType::F32 : kernels::FloatType::BF16, args.n = n;
  for (std::int64_t r = 0; r < rows; ++r) {
    args.a = plain_data(a) + r * bytes, args.y = plain_data(y) + r * bytes;
    if (row)
      args.b = plain_data(b);
    else
      args.number = is_f32 ? reinterpret_cast<const float*>(plain_data(b))[r]
                           : kernels::bf16_to_f32(reinterpret_cast<const std::uint16_t*>(plain_data(b))[r]);
    if (!kernels::pointwise(args)) return {};
  }
  return y;
}

/// of(one of std::uint16_t, 32_t, 64_t) for elements of so many bytes; else false.
template <class F>
bool as_words(std::size_t bytes, const F& of) {
  if (bytes == 2) return of(std::uint16_t{}), true;
  if (bytes == 4) return of(std::uint32_t{}), true;
  return bytes == 8 && (of(std::uint64_t{}), true);
}

/// y = mask ? a[i] : b[i]; a: [n], or one for all.
template <class Word>
void choose(const char* mask, const Word* a, bool one, const Word* b, Word* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = mask[i] != 0 ? a[one ? 0 : i] : b[i];
}

/// The elements of `from`, last index fastest.
template <class Word>
void copy_strided(const Word* from, at::IntArrayRef sizes, at::IntArrayRef strides, Word* to) {
  const std::size_t last = sizes.size() - 1;
  c10::SmallVector<std::int64_t, 8> index(last, 0);
  for (;;) {
    for (std::int64_t i = 0; i < sizes[last]; ++i) *to++ = from[i * strides[last]];
    std::size_t d = last;
    for (; d > 0 && ++index[d - 1] == sizes[d - 1]; --d) {
      from -= (sizes[d - 1] - 1) * strides[d - 1];
      index[d - 1] = 0;
    }
    if (d == 0) return;
    from += strides[d - 1];
  }
}

/// True if mask goes with x, element by element.
bool is_mask_of(const at::Tensor& x, const at::Tensor& mask) {
  const Block *block = plain_block(x), *other = plain_block(mask);
  return block != nullptr && other != nullptr && !leaves_heard() && block->device == current_device() &&
         other->device == block->device && mask.scalar_type() == at::kBool && x.numel() > 0 &&
         x.numel() <= kMostElements && mask.sizes() == x.sizes();
}

/// Neither the same memory nor apart.
bool overlap(const char* a, const char* b, std::size_t bytes) {
  const std::ptrdiff_t n = static_cast<std::ptrdiff_t>(bytes);
  return a - b < n && b - a < n;
}

}  // namespace

const Block* small_block(const at::Tensor& t) {
  const Block* block = plain_block(t);
  if (block == nullptr || leaves_heard() || block->device != current_device()) return nullptr;
  const at::ScalarType type = t.scalar_type();
  const std::int64_t n = t.numel();
  return (type == at::kFloat || type == at::kBFloat16) && n > 0 && n <= kMostElements ? block : nullptr;
}

/// at::detail::empty_generic without its questions.
at::Tensor empty_plain(at::IntArrayRef sizes, at::ScalarType type) {
  const caffe2::TypeMeta meta = c10::scalarTypeToTypeMeta(type);
  const std::size_t bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * meta.itemsize();
  c10::Allocator* allocator = hpu_allocator();
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator, /*resizable=*/true));
  at::Tensor y =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::HPU), meta);
  y.unsafeGetTensorImpl()->generic_set_sizes_contiguous(sizes);
  return y;
}

at::Tensor small_pointwise(kernels::Pointwise op, const PointwiseOperands& operands) {
  kernels::PointwiseArgs args;
  args.op = op;
  if (!fill(args, operands)) return operands.b != nullptr ? by_rows(op, operands) : at::Tensor();
  at::Tensor y = empty_plain(operands.a.sizes(), operands.a.scalar_type());
  args.y = plain_data(y);
  return kernels::pointwise(args) ? std::move(y) : at::Tensor();
}

bool small_pointwise_(kernels::Pointwise op, const PointwiseOperands& operands) {
  kernels::PointwiseArgs args;
  args.op = op;
  if (!fill(args, operands)) return false;
  args.y = plain_data(operands.a);
  if (args.b != nullptr && args.b != args.y &&  // overlapping otherwise is for the CPU's kernel to refuse
      overlap(static_cast<const char*>(args.a), static_cast<const char*>(args.b), operands.a.nbytes()))
    return false;
  return kernels::pointwise(args);
}

at::Tensor small_where(const at::Tensor& mask, const at::Tensor& a, const at::Tensor& b) {
  if (!is_mask_of(a, mask) || !is_mask_of(b, mask) || a.scalar_type() != b.scalar_type()) return {};
  at::Tensor y;
  as_words(a.element_size(), [&]<class Word>(Word) {
    y = empty_plain(a.sizes(), a.scalar_type());
    choose(plain_data(mask), reinterpret_cast<const Word*>(plain_data(a)), false,
           reinterpret_cast<const Word*>(plain_data(b)), reinterpret_cast<Word*>(plain_data(y)), a.numel());
  });
  return y;
}

at::Tensor small_masked_fill(const at::Tensor& x, const at::Tensor& mask, const c10::Scalar& number) {
  const std::optional<float> value = number_of(number);
  if (small_block(x) == nullptr || !is_mask_of(x, mask) || !value.has_value()) return {};
  const double most = x.scalar_type() == at::kFloat ? 0x1.fffffep127 : 0x1.fep127;  // the CPU refuses what is not below
  if (const double exact = number.toDouble(); !(std::abs(exact) <= most) && !std::isinf(exact)) return {};
  at::Tensor y = empty_plain(x.sizes(), x.scalar_type());
  if (x.scalar_type() == at::kFloat) {
    choose(plain_data(mask), &*value, true, reinterpret_cast<const float*>(plain_data(x)),
           reinterpret_cast<float*>(plain_data(y)), x.numel());
  } else {
    const std::uint16_t bits = kernels::f32_to_bf16(*value);
    choose(plain_data(mask), &bits, true, reinterpret_cast<const std::uint16_t*>(plain_data(x)),
           reinterpret_cast<std::uint16_t*>(plain_data(y)), x.numel());
  }
  return y;
}

bool small_copy(const at::Tensor& to, const at::Tensor& from) {
  const Block *block = plain_block(to), *source_block = dense_block(from);
  if (block == nullptr || source_block == nullptr) return false;
  const std::int64_t n = to.numel();
  if (n == 0 || n > kMostElements || to.sizes() != from.sizes()) return false;
  if (!from.is_contiguous()) {
    if (source_block == block || to.scalar_type() != from.scalar_type()) return false;
    return as_words(to.element_size(), [&]<class Word>(Word) {
      copy_strided(reinterpret_cast<const Word*>(plain_data(from)), from.sizes(), from.strides(),
                   reinterpret_cast<Word*>(plain_data(to)));
    });
  }
  char *y = plain_data(to), *x = plain_data(from);
  if (overlap(y, x, std::max(to.nbytes(), from.nbytes()))) return false;
  const at::ScalarType type = to.scalar_type(), source = from.scalar_type();
  if (type == source) {
    std::memcpy(y, x, to.nbytes());
    return true;
  }
  if (type == at::kFloat && source == at::kBFloat16) {
    kernels::widen(reinterpret_cast<const std::uint16_t*>(x), reinterpret_cast<float*>(y), n);
    return true;
  }
  return type == at::kBFloat16 && source == at::kFloat &&
         kernels::narrow(reinterpret_cast<const float*>(x), reinterpret_cast<std::uint16_t*>(y), n);
}

}  // namespace fp8::runtime
