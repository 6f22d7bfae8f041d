// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/device/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include <vector>

#include "fp8/runtime/device/device.h"

namespace fp8::runtime {
namespace {

class HpuGenerator final : public c10::GeneratorImpl {
 public:
  HpuGenerator(at::Generator cpu, c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(c10::kHPU, device), c10::DispatchKeySet(c10::DispatchKey::HPU)),
        cpu_(std::move(cpu)) {}
  void set_current_seed(std::uint64_t seed) override { cpu_.set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { cpu_.set_offset(offset); }
  std::uint64_t get_offset() const override { return cpu_.get_offset(); }
  std::uint64_t current_seed() const override { return cpu_.current_seed(); }
  std::uint64_t seed() override { return cpu_.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu_.unsafeGetGeneratorImpl()->get_state(); }
  const at::Generator& cpu() const { return cpu_; }

 private:
  HpuGenerator* clone_impl() const override { return new HpuGenerator(cpu_.clone(), device().index()); }
  at::Generator cpu_;
};

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto& all = *new const std::vector<at::Generator>([] {  // not destroyed: threads may outlive main()
    std::vector<at::Generator> generators;
    for (int i = 0; i < device_count(); ++i) {
      generators.push_back(
          at::make_generator<HpuGenerator>(at::detail::getDefaultCPUGenerator(), static_cast<c10::DeviceIndex>(i)));
    }
    return generators;
  }());
  const int index = device < 0 ? current_device() : device;
  TORCH_CHECK(index < device_count(), "Invalid device id ", index, ", the machine emulates ", device_count());
  return all[index];
}

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<HpuGenerator>(at::detail::createCPUGenerator(), device < 0 ? current_device() : device);
}

at::Generator cpu_generator(const at::Generator& generator) {
  if (!generator.defined() || generator.device().type() != c10::kHPU) return generator;
  return dynamic_cast<const HpuGenerator&>(*generator.unsafeGetGeneratorImpl()).cpu();
}

}  // namespace fp8::runtime
