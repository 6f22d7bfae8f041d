// SPDX-License-Identifier: Apache-2.0
// Which kernel each aten op has at DispatchKey::HPU. A table of the own ones; the fallback for the rest, registered per
// op name: as a mere `_` fallback structured ops would go meta -> empty -> out= (2-3 hops) and convolution would pick
// another path.
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_native.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_native.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/arange_native.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/cos_native.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/exp_native.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_native.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_native.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_native.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_native.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_native.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_native.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/sqrt_native.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_native.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>

#include <cstring>
#include <numeric>
#include <set>

#include "fp8/runtime/dispatch/minimal_ops.h"
#include "fp8/runtime/dispatch/own_ops.h"
#include "fp8/runtime/dispatch/pointwise.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::runtime {
namespace {

/// Of the tanh's approximation; the exact one's kernel is another library's.
at::Tensor gelu(c10::DispatchKeySet keys, const at::Tensor& x, c10::string_view approximate) {
  if (approximate != "tanh" || small_block(x) == nullptr)
    return Unboxed<at::_ops::gelu, CpuFallback>::call(keys, x, approximate);
  return small_unary<at::native::structured_gelu_out_cpu>(x, approximate);
}

/// x^2 is x . x, on the CPU too.
at::Tensor pow(c10::DispatchKeySet keys, const at::Tensor& x, const c10::Scalar& exponent) {
  const bool square = (exponent.isFloatingPoint() || exponent.isIntegral(/*includeBool=*/false)) && exponent.equal(2);
  at::Tensor y = square ? small_pointwise(kernels::Pointwise::mul, PointwiseOperands(x, x)) : at::Tensor();
  return y.defined() ? y : Unboxed<at::_ops::pow_Tensor_Scalar, CpuFallback>::call(keys, x, exponent);
}

at::Tensor where(c10::DispatchKeySet keys, const at::Tensor& mask, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor y = small_where(mask, a, b);
  return y.defined() ? y : Unboxed<at::_ops::where_self, CpuFallback>::call(keys, mask, a, b);
}

at::Tensor masked_fill(c10::DispatchKeySet keys, const at::Tensor& x, const at::Tensor& mask,
                       const c10::Scalar& value) {
  at::Tensor y = small_masked_fill(x, mask, value);
  return y.defined() ? y : Unboxed<at::_ops::masked_fill_Scalar, CpuFallback>::call(keys, x, mask, value);
}

/// The CPU's function asks tensors for sizes and memory, and allocates its results where x lies.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(c10::DispatchKeySet keys, const at::Tensor& x,
                                                          c10::SymIntArrayRef shape,
                                                          const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias, double eps) {
  const auto fits = [&](const std::optional<at::Tensor>& t) {
    return !t.has_value() || !t->defined() || (small_block(*t) != nullptr && t->scalar_type() == x.scalar_type());
  };
  const auto sizes = c10::asIntArrayRefSlowOpt(shape);
  if (sizes.has_value() && small_block(x) != nullptr && fits(weight) && fits(bias))
    return at::native::layer_norm_cpu(x, *sizes, weight, bias, eps);
  return Unboxed<at::_ops::native_layer_norm, CpuFallback>::call(keys, x, shape, weight, bias, eps);
}

/// True if x's bytes may be written here; those of a larger one are worth all threads.
bool is_written_here(const at::Tensor& x) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  return !leaves_heard() && plain_block(x) != nullptr && x.numel() != 0 && x.nbytes() <= kMostBytes;
}

at::Tensor& zero_(c10::DispatchKeySet keys, at::Tensor& x) {
  if (!is_written_here(x)) return Unboxed<at::_ops::zero_, CpuFallback>::call(keys, x);
  std::memset(plain_data(x), 0, x.nbytes());
  return x;
}

/// The CPU's conversion of the value, and its error.
template <class T>
void fill_elements(const at::Tensor& x, const c10::Scalar& value) {
  std::fill_n(reinterpret_cast<T*>(plain_data(x)), x.numel(), value.to<T>());
}

at::Tensor& fill_(c10::DispatchKeySet keys, at::Tensor& x, const c10::Scalar& value) {
  const at::ScalarType type = is_written_here(x) && !value.isSymbolic() ? x.scalar_type() : at::ScalarType::Undefined;
  switch (type) {
    case at::kFloat: fill_elements<float>(x, value); return x;
    case at::kBFloat16: fill_elements<at::BFloat16>(x, value); return x;
    case at::kLong: fill_elements<std::int64_t>(x, value); return x;
    default: return Unboxed<at::_ops::fill__Scalar, CpuFallback>::call(keys, x, value);
  }
}

/// Positions: whole numbers one after the other, without the empty tensor that the CPU's function makes larger.
at::Tensor arange_from(const c10::Scalar& start, const c10::Scalar& end, std::optional<at::ScalarType> dtype,
                       std::optional<at::Layout> layout, std::optional<at::Device> device,
                       std::optional<bool> pin_memory) {
  constexpr std::int64_t kMostElements = 32768, kLargest = std::int64_t{1} << 52;
  const auto is_whole = [](const c10::Scalar& s) {
    return s.isIntegral(/*includeBool=*/false) && !s.isSymbolic() && s.toLong() >= -kLargest && s.toLong() <= kLargest;
  };
  if (!leaves_heard() && dtype.value_or(at::kLong) == at::kLong && layout.value_or(at::kStrided) == at::kStrided &&
      !pin_memory.value_or(false) && is_whole(start) && is_whole(end)) {
    const std::int64_t first = start.toLong(), count = end.toLong() - first;
    if (count >= 0 && count <= kMostElements) {
      at::Tensor y = empty_memory_format({count}, at::kLong, layout, device, pin_memory, std::nullopt);
      auto* numbers = reinterpret_cast<std::int64_t*>(plain_data(y));
      std::iota(numbers, numbers + count, first);
      return y;
    }
  }
  return at::native::arange(start, end, c10::Scalar(1), dtype, layout, device, pin_memory);
}

at::Tensor arange(const c10::Scalar& end, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                  std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return arange_from(c10::Scalar(0), end, dtype, layout, device, pin_memory);
}

/// A row's kernel that is a function here.
template <auto* kKernel>
void add(torch::Library& aten, const char* full) {
  aten.impl(full, TORCH_FN(*kKernel));
}

constexpr UnboxedRow kUnboxed[] = {
    {"aten::_log_softmax", add_softmax<at::_ops::_log_softmax, at::native::structured_log_softmax_cpu_out>},
    {"aten::_log_softmax_backward_data", add_unboxed<at::_ops::_log_softmax_backward_data, CpuFallback>},
    {"aten::_softmax", add_softmax<at::_ops::_softmax, at::native::structured_softmax_cpu_out>},
    {"aten::_softmax_backward_data", add_unboxed<at::_ops::_softmax_backward_data, CpuFallback>},
    {"aten::arange", add<&arange>},
    {"aten::arange.start", add<&arange_from>},
    {"aten::argmax", add_unboxed<at::_ops::argmax, CpuFallback>},
    {"aten::cat", add<&cat>},
    {"aten::cos", add_unary<at::_ops::cos, at::native::structured_cos_out>},
    {"aten::exp", add_unary<at::_ops::exp, at::native::structured_exp_out>},
    {"aten::fill_.Scalar", add<&fill_>},
    {"aten::gather", add_unboxed<at::_ops::gather, CpuFallback>},
    {"aten::gelu", add<&gelu>},
    {"aten::gelu_backward", add_unboxed<at::_ops::gelu_backward, CpuFallback>},
    {"aten::index_select", add<&index_select>},
    {"aten::masked_fill.Scalar", add<&masked_fill>},
    {"aten::mean.dim", add_unboxed<at::_ops::mean_dim, CpuFallback>},
    {"aten::native_layer_norm", add<&layer_norm>},
    {"aten::native_layer_norm_backward", add_unboxed<at::_ops::native_layer_norm_backward, CpuFallback>},
    {"aten::pow.Tensor_Scalar", add<&pow>},
    {"aten::relu", add_pointwise<kernels::Pointwise::relu, at::_ops::relu, CpuFallback>},
    {"aten::relu_", add_pointwise<kernels::Pointwise::relu, at::_ops::relu_, CpuFallback>},
    {"aten::rsqrt", add_unary<at::_ops::rsqrt, at::native::structured_rsqrt_out>},
    {"aten::sigmoid", add_unary<at::_ops::sigmoid, at::native::structured_sigmoid_out>},
    {"aten::silu", add_unary<at::_ops::silu, at::native::structured_silu_out>},
    {"aten::sin", add_unary<at::_ops::sin, at::native::structured_sin_out>},
    {"aten::sqrt", add_unary<at::_ops::sqrt, at::native::structured_sqrt_out>},
    {"aten::tanh", add_unary<at::_ops::tanh, at::native::structured_tanh_out>},
    {"aten::tanh_backward", add_unboxed<at::_ops::tanh_backward, CpuFallback>},
    {"aten::threshold_backward", add_unboxed<at::_ops::threshold_backward, CpuFallback>},
    {"aten::where.self", add<&where>},
    {"aten::zero_", add<&zero_>},
};

std::set<std::string, std::less<>> set_of(std::string_view text) {
  const auto names = io::words(text);
  return {names.begin(), names.end()};
}

/// Own kernels, and ops that must stay composites of them: a clone in the fallback would bypass copy_ and lose tags.
const auto kNotFallback = set_of(R"(
empty empty_strided as_strided view _reshape_alias _unsafe_view resize_ set_ copy_ _copy_from clone
_copy_from_and_resize copy _to_copy contiguous lift lift_fresh detach alias _fused_sdp_choice
_scaled_dot_product_flash_attention_for_cpu linear matmul addmm mm addmv mv bmm baddbmm embedding equal histc
_grouped_mm allclose _convolution convolution _has_same_storage_numel record_stream is_pinned _pin_memory resize_as_
empty_like _lazy_clone)");

/// Ops with float8 arithmetic of our own (ops/cast/float8_math.cpp), in place too.
const auto kArithmetic = set_of("add sub rsub mul div neg abs eq ne lt le gt ge isnan isinf sum");

bool is_arithmetic(const std::string& name) {  // "aten::add_"
  const std::string op = name.substr(6);
  return kArithmetic.count(op) != 0 ||
         (!op.empty() && op.back() == '_' && kArithmetic.count(op.substr(0, op.size() - 1)) != 0);
}

bool wants_fallback(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  if (!schema.name().starts_with("aten::") || op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return false;
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional))
    return false;
  bool tensors = false;
  for (const auto& argument : schema.arguments()) {
    const auto kind = innermost_kind(*argument.type());
    if (kind == c10::TypeKind::DeviceObjType || kind == c10::TypeKind::StorageType) return false;
    tensors = tensors || kind == c10::TypeKind::TensorType;
  }
  return tensors && !returns_view(schema) && !kNotFallback.contains(std::string_view(schema.name()).substr(6)) &&
         !is_arithmetic(schema.name());
}

template <class Kernel>
void add_named(const char* name, const char* overload = "") {
  add_boxed<Kernel>(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

FP8_LIBRARY_IMPL(aten, HPU, m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !wants_fallback(*op)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (!has_row(kUnboxed, full)) add_boxed<CpuFallback>(*op);
  }
  register_rows(kUnboxed, m);
}

FP8_LIBRARY_IMPL(_, HPU, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>()); }

// Upstream registers nothing for AutocastHPU: without this, enabling autocast on hpu breaks every op that has no rule
// (runtime/autocast).
FP8_LIBRARY_IMPL(_, AutocastHPU, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

// A composite: without this its kernel below would have no derivative.
FP8_LIBRARY_IMPL(aten, AutogradHPU, m) { m.impl("resolve_neg", &resolve_neg); }

FP8_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  m.impl("view.dtype", &view_dtype);
  m.impl("_reshape_alias",
         static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef, at::IntArrayRef)>(&at::native::_reshape_alias));
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_source_storage);
  m.impl("set_.source_Storage_storage_offset", &set_source_storage_offset);
  m.impl("set_.source_Tensor", &set_source_tensor);
  m.impl("set_", &set_nothing);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  m.impl("resolve_neg", &resolve_neg);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_fused_sdp_choice", &fused_sdp_choice);
  m.impl("_scaled_dot_product_flash_attention_for_cpu", &flash_attention);
  add_named<BeforeFallback<&equal_of_tagged>>("aten::equal");
  add_named<BeforeFallback<&histc_of_integers>>("aten::histc");
  add_named<BeforeFallback<&histc_of_integers>>("aten::histc", "out");
  m.impl("record_stream", &record_stream);
}

}  // namespace

bool has_unboxed_kernel(const std::string& full) { return has_row(kUnboxed, full); }

}  // namespace fp8::runtime
