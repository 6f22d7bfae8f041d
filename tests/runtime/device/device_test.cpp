// SPDX-License-Identifier: Apache-2.0
// Count, kind, current device, guard, streams and events of the emulated hpu.
#include "fp8/runtime/device/device.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <thread>

#include "support/enum_names.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using runtime::DeviceKind;
using runtime::DeviceKindScope;

TEST(Device, OneByDefault) {
  if (std::getenv("FP8_HPU_DEVICES") != nullptr) GTEST_SKIP() << "FP8_HPU_DEVICES is set";
  EXPECT_EQ(runtime::device_count(), 1);
  EXPECT_EQ(runtime::current_device(), 0);
}

TEST(Device, InitMayBeCalledTwice) {
  EXPECT_NO_THROW(runtime::init());
  EXPECT_NO_THROW(runtime::init());
}

TEST(DeviceKind, DefaultIsGaudi3AndScopesNest) {
  if (std::getenv("FP8_HPU_DEVICE") != nullptr) GTEST_SKIP() << "FP8_HPU_DEVICE is set";
  EXPECT_EQ(runtime::device_kind(), DeviceKind::gaudi3);
  EXPECT_EQ(runtime::device_dialect("op"), kernels::Dialect::gaudi3);
  {
    const DeviceKindScope two(DeviceKind::gaudi2);
    EXPECT_EQ(runtime::device_dialect("op"), kernels::Dialect::gaudi2);
    {
      const DeviceKindScope one(DeviceKind::gaudi);
      EXPECT_REFUSED(runtime::device_dialect("some_op"), "[some_op]", "not supported on GAUDI", "gaudi2, gaudi3");
    }
    EXPECT_EQ(runtime::device_kind(), DeviceKind::gaudi2);
  }
  EXPECT_EQ(runtime::device_kind(), DeviceKind::gaudi3);
}

TEST(DeviceKind, AScopeIsItsThreadsOwn) {
  const auto outside = runtime::device_kind();
  const DeviceKindScope two(DeviceKind::gaudi2);
  DeviceKind other = DeviceKind::gaudi;
  std::thread([&] { other = runtime::device_kind(); }).join();
  EXPECT_EQ(other, outside);
}

TEST(DeviceKind, Names) {
  check_names<DeviceKind>();
  EXPECT_STREQ(runtime::name_of(DeviceKind::gaudi), "GAUDI");
  EXPECT_STREQ(runtime::name_of(DeviceKind::gaudi2), "GAUDI2");
  EXPECT_STREQ(runtime::name_of(DeviceKind::gaudi3), "GAUDI3");
}

TEST(Guard, RefusesADeviceThatDoesNotExist) {
  const auto* guard = c10::impl::getDeviceGuardImpl(at::kHPU);
  EXPECT_EQ(guard->type(), at::kHPU);
  EXPECT_REFUSED(guard->setDevice(at::Device(at::kHPU, 1)), "Invalid device id", "hpu:1");
  EXPECT_REFUSED(guard->setDevice(at::Device(at::kCPU)), "Invalid device id", "cpu");
  EXPECT_REFUSED(at::empty({2}, at::TensorOptions().device(at::Device(at::kHPU, 5))), "Invalid device id");
  EXPECT_EQ(guard->getDevice(), kHpu);
}

TEST(Guard, ExchangeReturnsThePrevious) {
  const auto* guard = c10::impl::getDeviceGuardImpl(at::kHPU);
  EXPECT_EQ(guard->exchangeDevice(kHpu), kHpu);
  const c10::DeviceGuard scope(kHpu);
  EXPECT_EQ(scope.current_device(), kHpu);
}

TEST(Streams, TheDefaultOneServesAllAndIsAlwaysDone) {
  const auto* guard = c10::impl::getDeviceGuardImpl(at::kHPU);
  const c10::Stream stream = guard->getStream(kHpu);
  EXPECT_EQ(stream, guard->getDefaultStream(kHpu));
  EXPECT_EQ(stream, guard->getNewStream(kHpu, 0));
  EXPECT_EQ(stream, guard->getStreamFromGlobalPool(kHpu, true));
  EXPECT_TRUE(stream.query());
  EXPECT_NO_THROW(stream.synchronize());
  EXPECT_NO_THROW(guard->synchronizeDevice(0));
}

TEST(Events, AreCompleteAsSoonAsRecorded) {
  const auto* guard = c10::impl::getDeviceGuardImpl(at::kHPU);
  c10::Event event(at::kHPU);
  event.record(guard->getStream(kHpu));
  EXPECT_TRUE(event.query());
  EXPECT_NO_THROW(event.block(guard->getStream(kHpu)));
  EXPECT_NO_THROW(event.synchronize());
}

TEST(Events, TellTheTimeBetweenThem) {
  const auto* guard = c10::impl::getDeviceGuardImpl(at::kHPU);
  c10::Event first(at::kHPU, c10::EventFlag::BACKEND_DEFAULT), second(at::kHPU, c10::EventFlag::BACKEND_DEFAULT);
  const auto start = std::chrono::steady_clock::now();
  first.record(guard->getStream(kHpu));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  second.record(guard->getStream(kHpu));
  const double around = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GE(first.elapsedTime(second), 20.0);
  EXPECT_LE(first.elapsedTime(second), around);
  EXPECT_EQ(first.elapsedTime(second), -second.elapsedTime(first));
}

// The environment is read at the first question, so each of these asks in a process of its own.
void ask_with(const char* name, const char* value) {
  setenv(name, value, 1);
  const std::string text = error_of([] {
    runtime::device_count();
    runtime::device_kind();
    at::empty({2}, on_hpu());
  });
  std::fputs(text.c_str(), stderr);
  std::_Exit(text.empty() ? 0 : 3);
}

TEST(EnvironmentDeathTest, BadValuesAreNamedWithWhatIsAllowed) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  for (const char* bad : {"0", "17", "two", "1x", "-1"}) {
    EXPECT_EXIT(ask_with("FP8_HPU_DEVICES", bad), ::testing::ExitedWithCode(3),
                "FP8_HPU_DEVICES: found '" + std::string(bad) + "', allowed: an integer from 1 to 16");
  }
  EXPECT_EXIT(ask_with("FP8_HPU_DEVICE", "gaudi4"), ::testing::ExitedWithCode(3),
              "FP8_HPU_DEVICE: found 'gaudi4', allowed: gaudi, gaudi2, gaudi3");
  for (const char* bad : {"lots", "0", "-5", "3Q", "1e30", "nan"}) {
    EXPECT_EXIT(ask_with("FP8_HPU_MEMORY", bad), ::testing::ExitedWithCode(3),
                "FP8_HPU_MEMORY: found '" + std::string(bad) + "', allowed: a number of bytes > 0");
  }
  EXPECT_EXIT(ask_with("FP8_HPU_MEMORY", "0.5G"), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(ask_with("FP8_HPU_MEMORY", "7"), ::testing::ExitedWithCode(3),
              "out of memory on hpu:0: tried to allocate 8 bytes, 0 of 7 are in use");
}

}  // namespace
}  // namespace fp8::test
