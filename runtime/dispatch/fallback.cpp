// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/fallback.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cmath>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

/// Results that have no place in the device's memory: upstream's kernel made them on the CPU.
void check_dense(const std::string& op, const at::Tensor& result) {
  const bool dense =
      result.layout() == at::kStrided && !result.is_nested() && result.unsafeGetTensorImpl()->has_storage();
  TORCH_CHECK(dense, "[", op, "] hpu holds dense tensors only, found a result of layout ",
              result.is_nested() ? std::string("Nested") : c10::str(result.layout()), ": call it on .cpu()");
}

/// Collectives of another library work on memory that it shares between processes. Where its launcher has not set that
/// up, which it does for devices that it knows, the call ends the process: DeepSpeed's inference_all_reduce_ does so
/// for a CPU tensor too (its workspace is null), so no alias of ours is at fault or could help. Schemas, keys and
/// results are those of any in-place operator: nothing but its name says that it is one. Words are a last resort, which
/// collectives of other names pass.
void refuse_collective(std::string_view name) {
  for (const std::string_view own : {"aten::", "c10d::", "_c10d_", "fp8::", "hpu::"})
    if (name.starts_with(own)) return;
  const std::string_view op = name.substr(name.find("::") + 2);
  for (const std::string_view word : {"all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter",
                                      "reducescatter", "all_to_all", "alltoall"}) {
    TORCH_CHECK_NOT_IMPLEMENTED(op.find(word) == std::string_view::npos, "[", name,
                                "] is a collective of another library's own, which works on host memory that it has "
                                "set up for the CPU: expected one of torch.distributed (backend hccl or gloo) for "
                                "tensors on hpu, or a call on .cpu()");
  }
}

/// An alias that a kernel may keep: the memory lives as long as it.
at::Tensor lasting_alias(const at::Tensor& hpu) {
  struct Memory {
    c10::Storage hpu, alias;  // the alias keeps codes in rows
  };
  at::Tensor cpu = cpu_alias(hpu);
  auto memory = std::make_unique<Memory>(Memory{hpu.storage(), cpu.storage()});
  void* const first = memory->alias.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  c10::DataPtr data(first, memory.release(), [](void* held) { delete static_cast<Memory*>(held); }, c10::kCPU);
  cpu.unsafeGetTensorImpl()->set_storage_keep_dtype(
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), hpu.storage().nbytes(),
                                            std::move(data), /*allocator=*/nullptr, /*resizable=*/false));
  return cpu;
}

/// The arguments of one call and their aliases. foreign: of an operator of another library, which may keep what it is
/// given, and give what it keeps.
class Frame {
 public:
  explicit Frame(const c10::OperatorHandle& op, bool foreign = false)
      : name_(op.operator_name().name), foreign_(foreign), devices_(name_) {}

  at::Tensor alias(const at::Tensor& t, const FallbackOperand& operand) {
    if (!t.defined()) return t;
    if (t.device().type() != c10::kHPU) {
      if (t.dim() > 0 && t.device().is_cpu() && !operand.on_host) {
        devices_.see(t);
        host_.push_back(t);
        host_written_ = host_written_ || operand.written;
      }
      return t;
    }
    if (Block* block = block_of(t); block != nullptr && block->tag) block->tag->check_access(name_, t);
    devices_.see_device(t.device().index());
    if (c10::isFloat8Type(t.scalar_type())) float8_ = t.scalar_type();
    at::Tensor cpu = foreign_ && !operand.written ? lasting_alias(t) : cpu_alias(t);
    aliases_.push_back({cpu, t, storage_impl_of(cpu), operand.written});
    return cpu;
  }

  void see_device(c10::DeviceIndex index) { devices_.see_device(index); }

  /// Host operands beside hpu ones: refused, or true, and moved() gives what to take for them.
  bool moves_operands() const {
    if (!devices_.mixed()) return false;
    const bool learns = c10::GradMode::is_enabled() &&
                        std::any_of(host_.begin(), host_.end(), [](const at::Tensor& t) { return t.requires_grad(); });
    using Host = OperandDevices::Host;
    devices_.settle(host_written_ ? Host::is_written : learns ? Host::needs_gradient : Host::is_read);
    return true;
  }
  at::Tensor moved(const at::Tensor& t) {
    const bool host = std::any_of(host_.begin(), host_.end(), [&](const at::Tensor& h) { return h.is_same(t); });
    if (!host) return t;
    const at::Tensor on_device = devices_.moved(t);
    aliases_.push_back({cpu_alias(on_device), on_device, nullptr, false});  // keeps it while the kernel runs
    auto& alias = aliases_.back();
    alias.cpu_storage = storage_impl_of(alias.cpu);
    return alias.cpu;
  }

  /// Upstream's errors about float8 name neither the op nor a way out.
  [[noreturn]] void rethrow(const c10::Error& error) const {
    const std::string text = error.what_without_backtrace();
    if (!float8_.has_value() || text.find("not implemented for 'Float8_") == std::string::npos) throw;
    throw c10::NotImplementedError(  // without a backtrace, which C10_THROW_ERROR would add
        c10::str("[", name_, "] has no kernel for ", *float8_, " codes: take their values with hpu::cast_from_fp8 or",
                 " .to(); where the dtype came from a converted weight, take fp8::values_dtype(weight) instead of",
                 " weight.dtype() (", text, ")"),
        nullptr);
  }

  /// Upstream's kernels convert a value for E4M3 codes as ocp does. Gaudi2's highest exponent is infinity and NaN: the
  /// device saturates below it.
  bool saturates_values() const { return float8_ == at::kFloat8_e4m3fn && device_kind() == DeviceKind::gaudi2; }

  /// Written arguments take over the size that the CPU kernel gave their alias.
  void write_back() {
    for (auto& a : aliases_) {
      if (!a.written) continue;
      auto* hpu = a.hpu.unsafeGetTensorImpl();
      adopt_resized_alias(storage_impl_of(a.hpu));
      if (hpu->sizes() != a.cpu.sizes() || hpu->strides() != a.cpu.strides() ||
          hpu->storage_offset() != a.cpu.storage_offset()) {
        hpu->set_sizes_and_strides(a.cpu.sizes(), a.cpu.strides(), a.cpu.storage_offset());
      }
      if (a.hpu.is_complex() && a.hpu.is_conj() != a.cpu.is_conj()) hpu->_set_conj(a.cpu.is_conj());
      if (a.hpu.is_neg() != a.cpu.is_neg()) hpu->_set_neg(a.cpu.is_neg());
    }
  }

  /// After an error: written arguments keep the memory that they had.
  void undo() {
    for (auto& a : aliases_)
      if (a.written) drop_resized_alias(storage_impl_of(a.hpu));
  }

  c10::DeviceIndex device() const { return devices_.device() < 0 ? current_device() : devices_.device(); }

  /// references: to `out` here.
  at::Tensor result(const at::Tensor& out, std::size_t references) {
    if (!out.defined() || !out.device().is_cpu()) return out;
    auto* impl = out.unsafeGetTensorImpl();
    for (auto& a : aliases_) {
      if (a.cpu.unsafeGetTensorImpl() == impl) return a.hpu;
    }
    check_dense(name_, out);
    auto* storage = storage_impl_of(out);
    for (auto& a : aliases_) {
      if (a.cpu_storage == storage) return view_on(a.hpu.storage(), out);
    }
    if (foreign_ && (out.use_count() > references || out.storage().use_count() > 1))
      return out.to(at::Device(at::kHPU, device()));
    adopt(out, device());
    aliases_.push_back({at::Tensor(), out, storage, false});
    return out;
  }

 private:
  struct Alias {
    at::Tensor cpu, hpu;
    c10::StorageImpl* cpu_storage;
    bool written;
  };
  const std::string& name_;
  const bool foreign_;
  c10::SmallVector<Alias, 8> aliases_;
  OperandDevices devices_;
  std::vector<at::Tensor> host_;  // operands that lie on the host, where they may not
  bool host_written_ = false;
  std::optional<at::ScalarType> float8_;
};

void alias_operand(c10::IValue& value, const FallbackOperand& operand, Frame& frame) {
  if (replace_tensors(value, [&](const at::Tensor& t) { return frame.alias(t, operand); })) return;
  if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    if (device.is_hpu()) {
      frame.see_device(device.has_index() ? device.index() : current_device());
      value = c10::Device(c10::kCPU);
    }
  } else if (value.isGenerator()) {
    value = cpu_generator(value.toGenerator());
  }
}

/// FallbackPlan::number of codes of Gaudi2.
void saturate_value(c10::IValue& value) {
  const double max = kernels::fp8_max(kernels::Format::E4M3, kernels::Dialect::gaudi2);
  if (value.isDouble()) {
    value = std::isnan(value.toDouble()) ? value.toDouble() : std::clamp(value.toDouble(), -max, max);
  } else if (value.isInt()) {
    value = std::clamp(value.toInt(), static_cast<std::int64_t>(-max), static_cast<std::int64_t>(max));
  } else if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 0) {
    const at::Tensor& t = value.toTensor();
    const auto type = t.scalar_type();
    if ((at::isFloatingType(type) && !c10::isFloat8Type(type)) || at::isIntegralType(type, false))
      value = t.clamp(-max, max);
  }
}

void wrap_result(c10::IValue& value, Frame& frame) {
  if (value.isTensor()) {
    value = frame.result(value.toTensor(), 1);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(frame.result(t, 2));
    value = std::move(list);
  }
}

void run_on_cpu(const c10::OperatorHandle& op, const FallbackPlan& plan, torch::jit::Stack* stack,
                bool foreign = false) {
  const std::size_t first = stack->size() - plan.arguments;
  LeafScope leaf(op.schema(), at::ArrayRef<c10::IValue>(*stack).slice(first));
  Frame frame(op, foreign);
  for (const FallbackOperand& operand : plan.operands) alias_operand((*stack)[first + operand.index], operand, frame);
  if (frame.moves_operands()) {
    for (const FallbackOperand& operand : plan.operands)
      replace_tensors((*stack)[first + operand.index], [&](const at::Tensor& t) { return frame.moved(t); });
  }
  const HostAllocationsFor within_limit(frame.device(), op.operator_name().name.c_str());
  try {
    c10::impl::ExcludeDispatchKeyGuard below(kAboveAliases);
    if (plan.number != FallbackPlan::kNone && frame.saturates_values()) saturate_value((*stack)[first + plan.number]);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    frame.write_back();
  } catch (const c10::Error& error) {
    frame.undo();
    frame.rethrow(error);
  } catch (...) {
    frame.undo();
    throw;
  }
  const std::size_t first_result = stack->size() - plan.results;
  for (std::size_t i = 0; i < plan.results; ++i) {
    if (i != plan.host_result) wrap_result((*stack)[first_result + i], frame);
  }
  leaf.gives(at::ArrayRef<c10::IValue>(*stack).slice(first_result));
}

}  // namespace

void CpuFallback::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) const {
  run_on_cpu(op, plan_, stack);
}

void cpu_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const std::string& name = op.operator_name().name;
  refuse_collective(name);
  run_on_cpu(op, FallbackPlan(op.schema()), stack, /*foreign=*/!name.starts_with("aten::"));
}

bool equal_of_tagged(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const auto holds_tagged_codes = [](const at::Tensor& t) {
    const Block* block = block_of(t);
    return block != nullptr && block->tag && c10::isFloat8Type(t.scalar_type());
  };
  const at::Tensor a = torch::jit::peek(*stack, 0, 2).toTensor(), b = torch::jit::peek(*stack, 1, 2).toTensor();
  if (!holds_tagged_codes(a) || !holds_tagged_codes(b)) return false;
  const bool same =
      same_place(a, b) && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
  torch::jit::drop(*stack, 2);
  stack->emplace_back(same);
  return true;
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

namespace {

/// Ops of whose contract it is part that argument 1 may lie on the CPU, beside hpu ones.
constexpr std::string_view kHostArguments[] = {"aten::index",
                                               "aten::_unsafe_index",
                                               "aten::index_put",
                                               "aten::index_put_",
                                               "aten::_unsafe_index_put",
                                               "aten::_index_put_impl_",
                                               "aten::_pack_padded_sequence",
                                               "aten::_pad_packed_sequence"};

bool may_be_on_host(std::string_view op, std::size_t argument) {
  return argument == 1 && std::ranges::find(kHostArguments, op) != std::end(kHostArguments);
}

/// False for a type whose values hold neither tensor nor place, whatever they are.
bool may_hold_operand(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType: return may_hold_operand(*type.containedType(0));
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::MemoryFormatType: return false;
    default: return true;
  }
}

}  // namespace

FallbackPlan::FallbackPlan(const c10::FunctionSchema& schema)
    : arguments(static_cast<std::uint16_t>(schema.arguments().size())),
      results(static_cast<std::uint16_t>(schema.returns().size())) {
  const std::string& name = schema.name();
  if (name == "aten::_pack_padded_sequence") host_result = 1;
  for (std::uint16_t i = 0; i < arguments; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.name() == "value" || argument.name() == "fill_value") number = i;
    if (!may_hold_operand(*argument.real_type())) continue;
    const c10::AliasInfo* info = argument.alias_info();
    operands.push_back({i, info != nullptr && info->isWrite(), may_be_on_host(name, i)});
  }
}

}  // namespace fp8::runtime
