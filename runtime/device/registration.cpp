// SPDX-License-Identifier: Apache-2.0
// All state stands in functions and is never destroyed: the first question comes from the first static initialiser of
// the library, the last from a thread that outlives main().
#include "fp8/runtime/device/registration.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <link.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::runtime {
namespace {

/// A library of this process: where it was loaded, and from which file.
struct Loaded {
  const void* base = nullptr;
  std::string file = "?";
};

/// Not by dladdr, which looks for the symbol, too: a scan of all that the library has.
Loaded library_of(const void* address) {
  struct Search {
    std::uintptr_t address;
    Loaded found;
  } search{reinterpret_cast<std::uintptr_t>(address), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* data) {
        auto& [wanted, found] = *static_cast<Search*>(data);
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& part = library->dlpi_phdr[i];
          const std::uintptr_t begin = library->dlpi_addr + part.p_vaddr;
          if (part.p_type != PT_LOAD || wanted - begin >= part.p_memsz) continue;
          found.base = reinterpret_cast<const void*>(library->dlpi_addr);
          found.file = *library->dlpi_name != 0 ? library->dlpi_name : "the program";
          return 1;
        }
        return 0;
      },
      &search);
  return search.found;
}

/// "libfp8_quant" of "/opt/lib/libfp8_quant.so.0".
std::string name_of(const std::string& file) {
  const std::string name = file.substr(file.rfind('/') + 1);
  return name.substr(0, name.find(".so"));
}

std::string refusal(const Loaded& own, const std::string& what, const Loaded& other) {
  return own.file + " registers nothing: " + what + " " + other.file + "; load one of the two";
}

/// Why this copy of the runtime may not have the device; empty: it may. The answer of the first call, before this
/// copy's own guard is there, counts.
const std::string& device_refusal() {
  static const std::string& reason = *new std::string([]() -> std::string {
    const Loaded own = library_of(reinterpret_cast<const void*>(&device_refusal));
    if (!c10::impl::hasDeviceGuardImpl(c10::kHPU)) {
      return make_room() ? "" : own.file + " registers nothing: this process has cuda for its accelerator";
    }
    const auto* guard = c10::impl::getDeviceGuardImpl(c10::kHPU);
    const void* methods = *reinterpret_cast<const void* const*>(guard);  // they lie in the library that owns the device
    return refusal(own, "the hpu device belongs already to", library_of(methods));
  }());
  return reason;
}

/// The first copy of each library that this runtime has seen, and those that were refused.
struct Seen {
  std::mutex mutex;
  std::map<std::string, Loaded> first;
  std::map<const void*, std::string> refused;  ///< by base
};

/// The function that after_definitions() was given; constant-initialized, as definitions may come before.
constinit std::atomic<void (*)()> g_after_definitions = nullptr;

Seen& seen() {
  static Seen& all = *new Seen;
  return all;
}

}  // namespace

bool may_register(const void* inside) {
  const Loaded own = library_of(inside);
  Seen& all = seen();
  const std::lock_guard lock(all.mutex);
  if (all.refused.count(own.base) != 0) return false;
  std::string reason = device_refusal();
  if (reason.empty()) {
    const auto [first, added] = all.first.emplace(name_of(own.file), own);
    if (added || first->second.base == own.base) return true;
    reason = refusal(own, "this library is loaded already, from", first->second);
  }
  if (all.refused.empty()) std::fprintf(stderr, "fp8: error: %s\n", reason.c_str());
  all.refused.emplace(own.base, std::move(reason));
  return false;
}

void require_registered() { TORCH_CHECK(device_refusal().empty(), "[hpu] ", device_refusal()); }

bool add_library(torch::Library::Kind kind, const char* name, std::optional<c10::DispatchKey> key, const char* file,
                 std::uint32_t line, void (*define)(torch::Library&)) {
  if (!may_register(reinterpret_cast<const void*>(define))) return false;
  define(*new torch::Library(kind, name, key, file, line));  // lives as long as the process
  if (const auto act = g_after_definitions.load(); kind != torch::Library::IMPL && act != nullptr) act();
  return true;
}

void define(torch::Library& library, std::string_view schemas) {
  std::string schema;
  for (const std::string& word : io::words(schemas)) {
    schema += (schema.empty() ? "" : " ") + word;
    if (word.back() != ';') continue;
    schema.pop_back();
    library.def(schema.c_str());
    schema.clear();
  }
}

void after_definitions(void (*act)()) {
  g_after_definitions = act;
  act();
}

void add_kernel(const c10::OperatorName& op, c10::DispatchKey key, c10::BoxedKernel kernel) {
  static auto& kept = *new std::vector<c10::RegistrationHandleRAII>;  // each takes its kernel back when it ends
  static auto& mutex = *new std::mutex;
  auto handle = c10::Dispatcher::singleton().registerImpl(
      op, key, c10::KernelFunction::makeFromBoxedKernel(std::move(kernel)), std::nullopt, nullptr, "fp8 runtime");
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(handle));
}

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

namespace {

/// Regions in use, end by begin. Not destroyed: tensors may outlive main().
struct Regions {
  std::mutex mutex;
  std::map<const char*, const char*> ends;
};

Regions& regions() {
  static Regions& all = *new Regions;
  return all;
}

void unpin(void* context) {
  auto* const memory = static_cast<c10::DataPtr*>(context);
  {
    const std::lock_guard lock(regions().mutex);
    regions().ends.erase(static_cast<const char*>(memory->get()));
  }
  delete memory;
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const memory = new c10::DataPtr(c10::GetCPUAllocator()->allocate(bytes));
    auto* const begin = static_cast<char*>(memory->get());
    if (begin != nullptr) {
      const std::lock_guard lock(regions().mutex);
      regions().ends[begin] = begin + bytes;
    }
    return {begin, memory, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static auto& allocator = *new PinnedAllocator;
  return &allocator;
}

bool is_pinned(const void* pointer) {
  const auto* const at = static_cast<const char*>(pointer);
  const std::lock_guard lock(regions().mutex);
  auto after = regions().ends.upper_bound(at);
  return after != regions().ends.begin() && at < (--after)->second;
}

namespace {

/// ATen makes the hooks at its first question, once for all. Those that are made already give their place to another
/// object, which ATen finds as it found them. Hooks have no members, so nothing is lost.
template <class Hooks, class Interface>
void take_the_place_of(const Interface& made) {
  static_assert(sizeof(Hooks) == sizeof(void*), "it takes the place of any object with virtual functions");
  new (const_cast<Interface*>(&made)) Hooks;
}

struct HPUHooks final : at::HPUHooksInterface {
  void init() const override {}
  bool hasHPU() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { guard()->setDevice({c10::kHPU, index}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return guard()->exchangeDevice({c10::kHPU, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 || index >= device_count() ? current_device() : exchangeDevice(index);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  c10::Device getDeviceFromPtr(void*) const override { return {c10::kHPU, current_device()}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return make_generator(index); }

 private:
  static const c10::impl::DeviceGuardImplInterface* guard() { return c10::impl::getDeviceGuardImpl(c10::kHPU); }
};

std::unique_ptr<at::HPUHooksInterface> make_hooks(at::HPUHooksArgs) { return std::make_unique<HPUHooks>(); }

/// Not REGISTER_HPU_HOOKS: the registry ends the process where the key is taken. The key must be exactly "HPUHooks":
/// with another one nothing fails until the first backward.
[[maybe_unused]] const bool g_hooks_registered = [] {
  if (!may_register(reinterpret_cast<const void*>(&make_hooks))) return false;
  at::HPUHooksRegistry()->Register("HPUHooks", &make_hooks);
  const auto& hooks = at::detail::getHPUHooks();
  if (!hooks.isBuilt()) take_the_place_of<HPUHooks>(hooks);  // a backward, say, came before this library
  return true;
}();

constexpr const char* kCuda = "CUDAHooks";

/// CUDA's hooks of a LibTorch for the CPU, but for the error that a user meets and the versions that programs print.
struct NoCuda final : at::CUDAHooksInterface {
  void init() const override {
    TORCH_CHECK(false, "[cuda] expected a GPU when fp8 was loaded, found none: the accelerator of this process is hpu");
  }
  long versionCuDNN() const override { return built().versionCuDNN(); }
  long versionRuntimeCuDNN() const override { return built().versionRuntimeCuDNN(); }
  long versionCUDART() const override { return built().versionCUDART(); }

 private:
  static const at::CUDAHooksInterface& built() {
    static const auto& hooks = *at::CUDAHooksRegistry()->Create(kCuda, {}).release();
    return hooks;
  }
};

}  // namespace

bool make_room() {
  if (!at::CUDAHooksRegistry()->Has(kCuda)) return true;  // no question: CUDA might be loaded later
  const auto& cuda = at::detail::getCUDAHooks();
  if (!cuda.isBuilt()) return true;
  if (cuda.hasROCM() || cuda.getNumGPUs() > 0 || dynamic_cast<const void*>(&cuda) != &cuda) return false;
  take_the_place_of<NoCuda>(cuda);
  return !at::detail::getCUDAHooks().isBuilt();
}

}  // namespace fp8::runtime
