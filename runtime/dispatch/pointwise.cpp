// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/pointwise.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/dispatch/plain.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/profile/trace.h"

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
    case at::kDouble:
      return static_cast<float>(*t.const_data_ptr<double>());
    case at::kFloat:
      return *t.const_data_ptr<float>();
    case at::kLong:
      return static_cast<float>(*t.const_data_ptr<std::int64_t>());
    default:
      return std::nullopt;
  }
}

bool is_one(const c10::Scalar& alpha) {
  return alpha.isFloatingPoint() ? alpha.toDouble() == 1 : alpha.isIntegral(false) && alpha.equal(1);
}

bool rounds_numbers(kernels::Pointwise op) { return op == kernels::Pointwise::add || op == kernels::Pointwise::sub; }

/// What pointwise() takes, but y; false where the call is none of this file's.
bool fill(kernels::PointwiseArgs& args, const PointwiseOperands& operands) {
  const at::Tensor& a = operands.a;
  const Block* block = plain_block(a);
  if (block == nullptr || trace_enabled() || block->device != current_device()) return false;
  const at::ScalarType type = a.scalar_type();
  if (type != at::kFloat && type != at::kBFloat16) return false;
  if (operands.alpha != nullptr && !is_one(*operands.alpha)) return false;
  args.type = type == at::kFloat ? kernels::FloatType::F32 : kernels::FloatType::BF16;
  args.n = a.numel();
  if (args.n == 0 || args.n > kMostElements) return false;
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

/// Neither the same memory nor apart.
bool overlap(const char* a, const char* b, std::size_t bytes) {
  const std::ptrdiff_t n = static_cast<std::ptrdiff_t>(bytes);
  return a - b < n && b - a < n;
}

}  // namespace

at::Tensor empty_plain(at::IntArrayRef sizes, at::ScalarType type) {
  return at::detail::empty_generic(sizes, hpu_allocator(), c10::DispatchKeySet(c10::DispatchKey::HPU), type,
                                   std::nullopt);
}

at::Tensor small_pointwise(kernels::Pointwise op, const PointwiseOperands& operands) {
  kernels::PointwiseArgs args;
  args.op = op;
  if (!fill(args, operands)) return {};
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

bool small_copy(const at::Tensor& to, const at::Tensor& from) {
  if (plain_block(to) == nullptr || plain_block(from) == nullptr) return false;
  const std::int64_t n = to.numel();
  if (n == 0 || n > kMostElements || to.sizes() != from.sizes()) return false;
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
