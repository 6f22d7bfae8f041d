// SPDX-License-Identifier: Apache-2.0
// Which kernel each aten op has at DispatchKey::HPU. A table of the own ones; the fallback for the rest, registered per
// op name: as a mere `_` fallback structured ops would go meta -> empty -> out= (2-3 hops) and convolution would pick
// another path.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <set>
#include <string>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/minimal_ops.h"
#include "fp8/runtime/dispatch/own_ops.h"
#include "fp8/runtime/dispatch/unboxed.h"

namespace fp8::runtime {
namespace {

/// Own kernels, and ops that must stay composites of them: a clone in the fallback would bypass copy_ and lose tags.
const std::set<std::string> kNotFallback = {"aten::empty",
                                            "aten::empty_strided",
                                            "aten::as_strided",
                                            "aten::view",
                                            "aten::_reshape_alias",
                                            "aten::_unsafe_view",
                                            "aten::resize_",
                                            "aten::set_",
                                            "aten::copy_",
                                            "aten::_copy_from",
                                            "aten::clone",
                                            "aten::_copy_from_and_resize",
                                            "aten::copy",
                                            "aten::_to_copy",
                                            "aten::contiguous",
                                            "aten::lift",
                                            "aten::lift_fresh",
                                            "aten::detach",
                                            "aten::alias",
                                            "aten::_fused_sdp_choice",
                                            "aten::_scaled_dot_product_flash_attention_for_cpu",
                                            "aten::linear",
                                            "aten::matmul",
                                            "aten::addmm",
                                            "aten::mm",
                                            "aten::addmv",
                                            "aten::mv",
                                            "aten::bmm",
                                            "aten::baddbmm",
                                            "aten::embedding",
                                            "aten::equal",
                                            "aten::histc",
                                            "aten::_grouped_mm",
                                            "aten::allclose",
                                            "aten::_convolution",
                                            "aten::convolution",
                                            "aten::_has_same_storage_numel",
                                            "aten::record_stream",
                                            "aten::is_pinned",
                                            "aten::_pin_memory",
                                            "aten::resize_as_",
                                            "aten::empty_like",
                                            "aten::_lazy_clone"};

/// Ops with float8 arithmetic of our own (ops/cast/float8_math.cpp), in place too.
const std::set<std::string> kArithmetic = {"add", "sub", "rsub", "mul", "div", "neg",   "abs",   "eq",
                                           "ne",  "lt",  "le",   "gt",  "ge",  "isnan", "isinf", "sum"};

bool is_arithmetic(const std::string& name) {  // "aten::add_"
  const std::string op = name.substr(6);
  return kArithmetic.count(op) != 0 ||
         (!op.empty() && op.back() == '_' && kArithmetic.count(op.substr(0, op.size() - 1)) != 0);
}

/// Of what a list or an optional holds, or of the type itself.
c10::TypeKind innermost_kind(const c10::Type& type) {
  const auto kind = type.kind();
  const bool holds = kind == c10::TypeKind::ListType || kind == c10::TypeKind::OptionalType;
  return holds ? innermost_kind(*type.containedType(0)) : kind;
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
  return tensors && !returns_view(schema) && kNotFallback.count(schema.name()) == 0 && !is_arithmetic(schema.name());
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
    if (!has_unboxed_kernel(full)) add_boxed<CpuFallback>(*op);
  }
  register_unboxed_kernels(m);
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
  add_named<BeforeFallback<&fit_grouped_mm>>("aten::_grouped_mm");
  m.impl("record_stream", &record_stream);
}

}  // namespace
}  // namespace fp8::runtime
