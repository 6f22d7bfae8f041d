// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/operand_devices.h"

#include <ATen/core/function_schema.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>

#include "fp8/runtime/device/device.h"

namespace fp8::runtime {
namespace {

constexpr const char* kFlag = "FP8_HPU_MOVE_HOST_OPERANDS";
constexpr const char* kTorchs = "Expected all tensors to be on the same device, but found at least two devices, hpu:";

}  // namespace

void OperandDevices::meet(c10::DeviceIndex index) {
  TORCH_CHECK(device_ < 0, "[", op_, "] operands on more than one device. ", kTorchs, static_cast<int>(device_),
              " and hpu:", static_cast<int>(index), "!");
  device_ = index;
}

void OperandDevices::settle(Host host) const {
  const bool moves = moves_host_operands();
  const char* way_out =
      !moves ? "move it with .to(\"hpu\"), or have FP8_HPU_MOVE_HOST_OPERANDS=1 move it"
      : host == Host::is_written
          ? "one on the cpu is to be written: only operands that are read are moved"
          : "one on the cpu needs a gradient, which would not find the way back: move it with .to(\"hpu\")";
  TORCH_CHECK(moves && host == Host::is_read, "[", op_, "] operands on more than one device. ", kTorchs,
              static_cast<int>(device_), " and cpu! ", way_out);
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true))
    TORCH_WARN("[", op_, "] an operand on the cpu was moved to hpu:", static_cast<int>(device_), " (", kFlag,
               "=1; the device itself refuses it). Further ones are moved without a word.");
}

void settle_devices(const c10::FunctionSchema& op, torch::jit::Stack& stack, std::size_t count) {
  TORCH_INTERNAL_ASSERT(count <= stack.size() && count <= op.arguments().size());
  OperandDevices devices(op.name());
  const std::size_t first = stack.size() - count;
  bool written = false;
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& value = stack[first + i];
    const auto* info = op.arguments()[i].alias_info();
    bool host = false;
    if (value.isTensor()) host = devices.see(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& t : value.toTensorVector()) host = devices.see(t) || host;
    written = written || (host && info != nullptr && info->isWrite());
  }
  if (!devices.mixed()) return;
  devices.settle(written ? OperandDevices::Host::is_written : OperandDevices::Host::is_read);
  for (std::size_t i = 0; i < count; ++i) {
    replace_tensors(stack[first + i], [&](const at::Tensor& t) {
      return t.defined() && t.device().is_cpu() && t.dim() > 0 ? devices.moved(t) : t;
    });
  }
}

void settle_devices(std::string_view op, std::initializer_list<at::Tensor*> operands) {
  const at::Tensor& first = **operands.begin();
  const auto elsewhere = [&](const at::Tensor* t) { return t->defined() && t->device() != first.device(); };
  if (first.defined() && std::none_of(operands.begin(), operands.end(), elsewhere))
    return;  // the usual case allocates nothing
  const std::string name(op);
  OperandDevices devices(name);
  for (const at::Tensor* t : operands) devices.see(*t);
  if (!devices.mixed()) return;
  devices.settle(OperandDevices::Host::is_read);
  for (at::Tensor* t : operands) {
    if (t->defined() && t->device().is_cpu() && t->dim() > 0) *t = devices.moved(*t);
  }
}

}  // namespace fp8::runtime
