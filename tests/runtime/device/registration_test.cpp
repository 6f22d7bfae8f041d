// SPDX-License-Identifier: Apache-2.0
// The library registers itself when it is loaded: not twice in a process, and it stays registered while a thread may
// still use it.
#include "fp8/runtime/device/registration.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <dlfcn.h>
#include <sys/wait.h>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::test {
namespace {

/// The file that the runtime was loaded from.
std::string runtime_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&runtime::init), &info) == 0) return "";
  return std::filesystem::canonical(info.dli_fname).string();
}

int exit_code_of(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Registration, AThreadThatOutlivesMainComputesOnAsOnTheCpu) {
  for (const std::string device : {"cpu", "hpu"})
    EXPECT_EQ(exit_code_of(std::string(FP8_BINARY_DIR "/bin/exit_program ") + device + " " + runtime_file()), 0)
        << device;
}

/// Exit code 0 if everything went on with the first copy.
[[noreturn]] void load_a_copy(const std::string& copy) {
  if (dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) std::_Exit(2);
  bool well = error_of([] { runtime::init(); }).empty();
  well = well && same_bits(at::relu(hpu(at::full({3}, -1.0f))) + 2, at::full({3}, 2.0f));
  well = well && !runtime::may_register(dlsym(dlopen(copy.c_str(), RTLD_NOW | RTLD_NOLOAD), "_ZN3fp87runtime4initEv"));
  std::_Exit(well ? 0 : 1);
}

TEST(RegistrationDeathTest, ASecondCopyRegistersNothingAndSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TempDir dir;
  const std::string copy = (dir / "libfp8_runtime.so.0").string();
  std::filesystem::copy_file(runtime_file(), copy);
  EXPECT_EXIT(load_a_copy(copy), ::testing::ExitedWithCode(0),
              "fp8: error: .*libfp8_runtime.so.0 registers nothing: .*loaded already, from .*load one of the two");
}

// what() of our errors: the message alone, where LibTorch's own has a page of backtrace.

std::string what_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Errors, WhatIsTheMessageAlone) {
  const at::Tensor x = at::ones({4, 4}, on_hpu());
  const std::vector<std::function<void()>> mistakes = {
      [] { runtime::set_memory_limit(0); },   // a call of ours
      [] { runtime::memory_stats(99); },      // one with a plain text
      [&] { at::add(x, at::ones({4, 4})); },  // through the dispatcher
      [&] { x.detach().set_(at::ones({1}, on_hpu(at::kFloat8_e4m3fn))); },
      [] { runtime::autocast::set_autocast_hpu_dtype(at::kDouble); },
      [] { at::empty({std::int64_t{1} << 50}, on_hpu()); },          // c10::OutOfMemoryError
      [&] { runtime::quantize(x, {.layout = {-1, 1}}); },            // fp8_tensor
      [&] { at::exp(at::empty({2}, on_hpu(at::kFloat8_e4m3fn))); },  // c10::NotImplementedError
  };
  for (std::size_t i = 0; i < mistakes.size(); ++i) {
    const std::string text = what_of(mistakes[i]);
    EXPECT_NE(text, "") << i;
    EXPECT_EQ(text.find('\n'), std::string::npos) << i << ": " << text;
    EXPECT_THAT(text, Not(HasSubstr("Exception raised"))) << i << ": " << text;
    EXPECT_EQ(text, error_of(mistakes[i])) << i;
  }
}

TEST(Errors, LibTorchsVariableBringsTheBacktraceBack) {
  setenv("TORCH_SHOW_CPP_STACKTRACES", "1", 1);
  const std::string text = what_of([] { runtime::set_memory_limit(0); });
  unsetenv("TORCH_SHOW_CPP_STACKTRACES");
  EXPECT_THAT(text, HasSubstr("[set_memory_limit] expected bytes > 0, got 0"));
  EXPECT_THAT(text, HasSubstr("Exception raised from set_memory_limit"));
}

// Random numbers on hpu are the CPU's, seed by seed.

TEST(Generator, ManualSeedGivesTheCpusNumbers) {
  torch::manual_seed(42);
  const at::Tensor cpu = at::randn({100}), cpu_next = at::rand({5});
  torch::manual_seed(42);
  EXPECT_TRUE(same_bits(at::randn({100}, on_hpu()), cpu));
  EXPECT_TRUE(same_bits(at::rand({5}, on_hpu()), cpu_next));
}

TEST(Generator, DropoutBernoulliAndRandpermFollow) {
  const at::Tensor x = at::ones({50, 20});
  const auto draw = [&](const at::Tensor& like) {
    torch::manual_seed(7);
    const at::Tensor dropped = at::dropout(like, 0.3, true), coins = at::bernoulli(like * 0.5);
    return at::cat({dropped.flatten(), coins.flatten(), at::randperm(30, like.options()).flatten()}).cpu();
  };
  EXPECT_TRUE(same_bits(draw(hpu(x)), draw(x)));
}

TEST(Generator, AnOwnOneIsIndependentOfTheDefault) {
  at::Generator own = runtime::make_generator();
  EXPECT_EQ(own.device(), kHpu);
  own.set_current_seed(5);
  EXPECT_EQ(own.current_seed(), 5u);
  at::Generator cpu = at::make_generator<at::CPUGeneratorImpl>(5);
  torch::manual_seed(1);
  const at::Tensor untouched = at::randn({3}, on_hpu());
  torch::manual_seed(1);
  const at::Tensor a = at::randn({40}, own, on_hpu());
  EXPECT_TRUE(same_bits(a, at::randn({40}, cpu)));
  EXPECT_TRUE(same_bits(at::randn({3}, on_hpu()), untouched));
}

TEST(Generator, StateCanBeKeptAndRestored) {
  at::Generator own = runtime::make_generator();
  own.set_current_seed(9);
  at::randn({10}, own, on_hpu());
  const at::Tensor state = own.get_state();
  const at::Tensor a = at::randn({10}, own, on_hpu());
  own.set_state(state);
  EXPECT_TRUE(same_bits(at::randn({10}, own, on_hpu()), a));
}

TEST(Generator, ACloneGoesItsOwnWay) {
  at::Generator own = runtime::make_generator();
  own.set_current_seed(3);
  at::Generator copy = own.clone();
  const at::Tensor a = at::randn({10}, own, on_hpu());
  EXPECT_TRUE(same_bits(at::randn({10}, copy, on_hpu()), a));
}

TEST(Generator, TheDefaultOneWrapsTheCpus) {
  torch::manual_seed(77);
  EXPECT_EQ(runtime::default_generator().current_seed(), 77u);
  EXPECT_EQ(runtime::cpu_generator(runtime::default_generator()), at::detail::getDefaultCPUGenerator());
  const at::Generator cpu = at::make_generator<at::CPUGeneratorImpl>(5);
  EXPECT_EQ(runtime::cpu_generator(cpu), cpu);
  EXPECT_REFUSED(runtime::default_generator(4), "Invalid device id 4");
}

// ATen's questions about the accelerator, which HPUHooks answers; and CUDA, which leaves them to it.

TEST(Hooks, AtenSeesTheDevice) {
  EXPECT_TRUE(at::globalContext().hasHPU());
  EXPECT_EQ(at::detail::getHPUHooks().deviceCount(), runtime::device_count());
  EXPECT_TRUE(at::detail::getHPUHooks().isAvailable());
  EXPECT_TRUE(at::detail::getHPUHooks().isBuilt());
  EXPECT_EQ(at::detail::getHPUHooks().getCurrentDevice(), 0);
}

TEST(Hooks, ItIsTheAccelerator) {
  EXPECT_EQ(at::getAccelerator(), at::kHPU);
  EXPECT_EQ(at::accelerator::deviceCount(), runtime::device_count());
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 0);
  EXPECT_NO_THROW(at::accelerator::setDeviceIndex(0));
  EXPECT_NO_THROW(at::accelerator::synchronizeDevice(0));
}

TEST(Hooks, DefaultGeneratorComesThroughTheContext) {
  EXPECT_EQ(at::globalContext().defaultGenerator(kHpu), runtime::default_generator());
  EXPECT_NE(at::detail::getHPUHooks().getNewGenerator(0), runtime::default_generator());
}

TEST(Hooks, PinnedMemoryIsKnownAsSuch) {
  const at::Tensor x = at::arange(1000, at::kFloat);
  EXPECT_FALSE(x.is_pinned());
  const void* freed = nullptr;
  {
    const at::Tensor pinned = x.pin_memory();
    EXPECT_TRUE(pinned.is_pinned());
    EXPECT_TRUE(pinned.narrow(0, 999, 1).is_pinned()) << "a view of its end";
    EXPECT_TRUE(same_bits(pinned, x));
    EXPECT_EQ(pinned.pin_memory().const_data_ptr(), pinned.const_data_ptr()) << "pinned already";
    EXPECT_TRUE(same_bits(pinned.to(kHpu, /*non_blocking=*/true), x));
    EXPECT_TRUE(at::empty({3}, at::TensorOptions().pinned_memory(true)).is_pinned());
    freed = pinned.const_data_ptr();
  }
  EXPECT_FALSE(runtime::is_pinned(freed));
  EXPECT_FALSE(hpu(x).is_pinned());
  EXPECT_REFUSED(hpu(x).pin_memory(), "cannot pin", "only dense CPU tensors") << "as on any device";
}

TEST(Hooks, MaybeExchangeIgnoresWhatDoesNotExist) {
  EXPECT_EQ(at::detail::getHPUHooks().maybeExchangeDevice(99), 0);
  EXPECT_EQ(at::detail::getHPUHooks().maybeExchangeDevice(-1), 0);
}

TEST(Hooks, BackwardFindsTheAccelerator) {
  const at::Tensor x = at::ones({3}, on_hpu()).set_requires_grad(true);
  (x * x).sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), at::full({3}, 2.0f)));
  EXPECT_EQ(x.grad().device(), kHpu);
}

TEST(Hooks, AnErrorInBackwardReachesTheCaller) {
  struct Bad : torch::autograd::Function<Bad> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   const torch::autograd::variable_list&) {
      TORCH_CHECK(false, "backward of Bad");
    }
  };
  const at::Tensor x = at::ones({3}, on_hpu()).set_requires_grad(true);
  EXPECT_REFUSED(Bad::apply(x).sum().backward(), "backward of Bad");
  (x * 3).sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), at::full({3}, 3.0f)));
}

TEST(Hooks, CapabilitiesAreTheDtypesOfTheDevice) {
  using runtime::DeviceKind;
  for (const DeviceKind kind : {DeviceKind::gaudi, DeviceKind::gaudi3}) {
    const runtime::DeviceKindScope scope(kind);
    std::size_t found = 0, allowed = 0;
    at::accelerator::getDeviceCapability(0).forEachSupportedScalarType([&](at::ScalarType type) {
      ++found;
      EXPECT_TRUE(runtime::takes(type, runtime::DtypeUse::tensors)) << type;
    });
    for (const auto& pair : runtime::kDtypes) allowed += runtime::takes(pair.type, runtime::DtypeUse::tensors) ? 1 : 0;
    EXPECT_EQ(found, allowed);
  }
  EXPECT_REFUSED(at::accelerator::getDeviceCapability(9), "Invalid device id");
}

/// The hooks of a LibTorch that was built for CUDA.
template <int gpus, bool rocm>
struct Cuda final : at::CUDAHooksInterface {
  bool isBuilt() const override { return true; }
  bool hasROCM() const override { return rocm; }
  int getNumGPUs() const override { return gpus; }
  long versionCuDNN() const override { return 9; }
};

/// Exit code 0 if make_room() returns `room`, and backward is right where it does.
template <class Hooks>
[[noreturn]] void beside_cuda(bool room) {
  at::CUDAHooksRegistry()->Register("CUDAHooks", [](at::CUDAHooksArgs) -> std::unique_ptr<at::CUDAHooksInterface> {
    return std::make_unique<Hooks>();
  });
  const auto& hooks = at::detail::getCUDAHooks();
  if (!hooks.isBuilt()) new (const_cast<at::CUDAHooksInterface*>(&hooks)) Hooks;  // the question came before
  const auto accelerator = [] { at::getAccelerator(); };
  bool well = error_of(accelerator).find("Cannot have both") != std::string::npos;
  well = well && runtime::make_room() == room && hooks.isBuilt() != room && error_of(accelerator).empty() == room;
  for (const at::Device device : {at::Device(at::kCPU), kHpu}) {
    if (!well || !room) break;
    const at::Tensor x = at::ones({3}, device).set_requires_grad(true);
    (x * x).sum().backward();
    well = same_bits(x.grad(), at::full({3}, 2.0f)) && runtime::make_room();
  }
  if (room)
    well = well && hooks.versionCuDNN() == 9 && error_of([&] { hooks.init(); }).find("found none") != std::string::npos;
  std::_Exit(well ? 0 : 1);
}

TEST(HooksDeathTest, CudaMakesRoomWhereItSeesNoGpu) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto well = ::testing::ExitedWithCode(0);
  EXPECT_EXIT((beside_cuda<Cuda<0, false>>(true)), well, "");
  EXPECT_EXIT((beside_cuda<Cuda<1, false>>(false)), well, "");
  EXPECT_EXIT((beside_cuda<Cuda<0, true>>(false)), well, "") << "ROCm's hooks are of another class";
}

}  // namespace
}  // namespace fp8::test
