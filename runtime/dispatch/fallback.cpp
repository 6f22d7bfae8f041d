// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/fallback.h"

#include <ATen/core/List.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <string_view>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/generator.h"
#include "fp8/runtime/profile/trace.h"

namespace fp8::runtime {
namespace {

/// Ops whose CPU arguments beside hpu ones are part of their contract: indices and sequence lengths.
constexpr std::string_view kMixedDevices[] = {"aten::index",
                                              "aten::index_put",
                                              "aten::index_put_",
                                              "aten::_index_put_impl_",
                                              "aten::_pack_padded_sequence",
                                              "aten::_pad_packed_sequence"};

/// Results that stay on the CPU: the batch sizes of a packed sequence.
bool stays_on_cpu(std::string_view op, std::size_t result) {
  return op == "aten::_pack_padded_sequence" && result == 1;
}

bool mixes_devices(std::string_view op) {
  for (auto name : kMixedDevices) {
    if (name == op) return true;
  }
  return false;
}

/// The arguments of one call and their aliases.
class Frame {
 public:
  explicit Frame(const c10::OperatorHandle& op) : name_(op.operator_name().name) {}

  at::Tensor alias(const at::Tensor& t, bool written) {
    if (!t.defined()) return t;
    if (t.device().type() != c10::kHPU) {
      if (t.dim() > 0 && t.device().is_cpu()) cpu_argument_ = true;
      return t;
    }
    if (Block* block = block_of(t); block != nullptr && block->tag) block->tag->check_access(name_, t);
    see_device(t.device().index());
    at::Tensor cpu = cpu_alias(t);
    aliases_.push_back({cpu, t, cpu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), written});
    return cpu;
  }

  void see_device(c10::DeviceIndex index) {
    TORCH_CHECK(device_ < 0 || device_ == index,
                "Expected all tensors to be on the same device, but found at least two devices, hpu:",
                static_cast<int>(device_), " and hpu:", static_cast<int>(index), "! (in ", name_, ")");
    device_ = index;
  }

  void check_devices() const {
    TORCH_CHECK(!(cpu_argument_ && device_ >= 0) || mixes_devices(name_),
                "Expected all tensors to be on the same device, but found at least two devices, hpu:",
                static_cast<int>(device_), " and cpu! (in ", name_, ")");
  }

  /// Written arguments take over the size that the CPU kernel gave their alias.
  void write_back() {
    for (auto& a : aliases_) {
      if (!a.written) continue;
      auto* hpu = a.hpu.unsafeGetTensorImpl();
      adopt_resized_alias(hpu->unsafe_storage().unsafeGetStorageImpl());
      if (hpu->sizes() != a.cpu.sizes() || hpu->strides() != a.cpu.strides() ||
          hpu->storage_offset() != a.cpu.storage_offset()) {
        hpu->set_sizes_and_strides(a.cpu.sizes(), a.cpu.strides(), a.cpu.storage_offset());
      }
    }
  }

  at::Tensor result(const at::Tensor& out, std::size_t index) {
    if (!out.defined() || !out.device().is_cpu() || stays_on_cpu(name_, index)) return out;
    auto* impl = out.unsafeGetTensorImpl();
    for (auto& a : aliases_) {
      if (a.cpu.unsafeGetTensorImpl() == impl) return a.hpu;
    }
    if (!impl->has_storage()) return out;
    auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    for (auto& a : aliases_) {
      if (a.cpu_storage == storage) return view_on(a.hpu.storage(), out);
    }
    adopt(out, device_ < 0 ? current_device() : device_);
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
  c10::SmallVector<Alias, 8> aliases_;
  c10::DeviceIndex device_ = -1;
  bool cpu_argument_ = false;
};

/// Tensor?[]; TorchScript's lists have a type object of their own, which isOptionalTensorList() takes for another type.
bool is_optional_tensor_list(const c10::IValue& value) {
  if (!value.isList() || value.isTensorList()) return value.isOptionalTensorList();
  const auto optional = value.toList().elementType()->cast<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::TensorType;
}

void alias_argument(c10::IValue& value, bool written, Frame& frame) {
  if (value.isTensor()) {
    value = frame.alias(value.toTensor(), written);
  } else if (value.isTensorList()) {  // a new list: the caller's is not ours to edit
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(frame.alias(t, written));
    value = std::move(list);
  } else if (is_optional_tensor_list(value)) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& t : value.toListRef()) {
      list.push_back(t.isTensor() ? std::optional<at::Tensor>(frame.alias(t.toTensor(), written)) : std::nullopt);
    }
    value = std::move(list);
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    if (device.is_hpu()) {
      frame.see_device(device.has_index() ? device.index() : current_device());
      value = c10::Device(c10::kCPU);
    }
  } else if (value.isGenerator()) {
    value = cpu_generator(value.toGenerator());
  }
}

void wrap_result(c10::IValue& value, std::size_t index, Frame& frame) {
  if (value.isTensor()) {
    value = frame.result(value.toTensor(), index);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(frame.result(t, index));
    value = std::move(list);
  }
}

}  // namespace

void cpu_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const std::size_t first = stack->size() - arguments.size();
  if (trace_enabled()) trace_op(schema.name(), at::ArrayRef<c10::IValue>(*stack).slice(first));
  Frame frame(op);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* info = arguments[i].alias_info();
    alias_argument((*stack)[first + i], info != nullptr && info->isWrite(), frame);
  }
  frame.check_devices();
  {
    c10::impl::ExcludeDispatchKeyGuard below(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
        c10::DispatchKeySet(c10::DispatchKey::Tracer));  // a trace must not record aliases
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  frame.write_back();
  const std::size_t results = schema.returns().size();
  for (std::size_t i = 0; i < results; ++i) wrap_result((*stack)[stack->size() - results + i], i, frame);
}

void equal_or_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto holds_tagged_codes = [](const at::Tensor& t) {
    const Block* block = block_of(t);
    return block != nullptr && block->tag && c10::isFloat8Type(t.scalar_type());
  };
  const at::Tensor a = torch::jit::peek(*stack, 0, 2).toTensor(), b = torch::jit::peek(*stack, 1, 2).toTensor();
  if (!holds_tagged_codes(a) || !holds_tagged_codes(b)) return cpu_fallback(op, keys, stack);
  const bool same = a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() &&
                    a.sizes() == b.sizes() && a.strides() == b.strides();
  torch::jit::drop(*stack, 2);
  stack->emplace_back(same);
}

}  // namespace fp8::runtime
