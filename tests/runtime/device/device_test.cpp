// SPDX-License-Identifier: Apache-2.0
// Count, kind, current device, guard, streams and events of the emulated hpu.
#include "fp8/runtime/device/device.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "fp8/runtime/autocast/autocast.h"
#include "support/enum_names.h"
#include "support/hpu_test.h"
#include "support/operator_call.h"

namespace fp8::test {
namespace {

using kernels::DeviceKind;
using runtime::DeviceKind;
using runtime::DeviceKindScope;
using runtime::DtypeUse;
using runtime::kDtypes;
using runtime::takes;

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
    EXPECT_EQ(call_fp8("device_name", {}).toStringRef(), "GAUDI2");
    EXPECT_EQ(runtime::device_dialect("op"), kernels::Dialect::gaudi2);
    within(DeviceKindScope(DeviceKind::gaudi), [&] {
      EXPECT_REFUSED(runtime::device_dialect("some_op"), "[some_op]", "not supported on GAUDI", "gaudi2, gaudi3");
    });
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
  for (const char* bad : {"0", "17", "two", "1x", "-1"})
    EXPECT_EXIT(ask_with("FP8_HPU_DEVICES", bad), ::testing::ExitedWithCode(3),
                "FP8_HPU_DEVICES: found '" + std::string(bad) + "', allowed: an integer from 1 to 16");
  EXPECT_EXIT(ask_with("FP8_HPU_DEVICE", "gaudi4"), ::testing::ExitedWithCode(3),
              "FP8_HPU_DEVICE: found 'gaudi4', allowed: gaudi, gaudi2, gaudi3");
  for (const char* bad : {"lots", "0", "-5", "3Q", "1e30", "nan"})
    EXPECT_EXIT(ask_with("FP8_HPU_MEMORY", bad), ::testing::ExitedWithCode(3),
                "FP8_HPU_MEMORY: found '" + std::string(bad) + "', allowed: a number of bytes > 0");
  EXPECT_EXIT(ask_with("FP8_HPU_MEMORY", "0.5G"), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(ask_with("FP8_HPU_MEMORY", "7"), ::testing::ExitedWithCode(3),
              "out of memory on hpu:0: tried to allocate 8 bytes, 0 of 7 are in use");
}

// The table of dtypes against what lightning-habana's own tests create on each generation, and every cell of it against
// what the operations do.

constexpr DeviceKind kKinds[] = {DeviceKind::gaudi, DeviceKind::gaudi2, DeviceKind::gaudi3};

TEST(Capabilities, WhatTheVendorsTestsMakeOnEachGeneration) {
  for (const DeviceKind kind : kKinds) {
    const DeviceKindScope scope(kind);
    for (const auto type : {at::kChar, at::kShort, at::kInt, at::kLong, at::kFloat, at::kBFloat16, at::kBool})
      EXPECT_EQ(at::scalar_tensor(42, on_hpu(type)).scalar_type(), type);
    for (const auto type : {at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kHalf})
      EXPECT_EQ(error_of([&] { at::scalar_tensor(42, on_hpu(type)); }).empty(), kind != DeviceKind::gaudi)
          << name_of(kind) << type;
  }
}

/// True if it runs; the table, or the host's kernels, refuse the others.
bool runs(const std::function<void()>& f) {
  try {
    f();
    return true;
  } catch (const c10::NotImplementedError& error) {
    return false;
  }
}

TEST(Capabilities, EveryCellIsWhatHappens) {
  for (const auto& [type, row] : kDtypes) {
    const at::Tensor a = at::zeros({4, 4 * static_cast<std::int64_t>(c10::elementSize(type))}, on_hpu(at::kByte));
    const at::Tensor matrix = a.view(type), image = matrix.view({1, 1, 4, 4}), filter = matrix.view({1, 1, 4, 4});
    for (const DeviceKind kind : kKinds) {
      const DeviceKindScope scope(kind);
      const std::string cell = std::string(name_of(kind)) + " " + name_of(row);
      EXPECT_EQ(runs([&] { at::empty({2}, on_hpu(type)); }), takes(kind, type, DtypeUse::tensors)) << cell;
      EXPECT_EQ(runs([&] { at::mm(matrix, matrix); }), takes(kind, type, DtypeUse::mm)) << cell;
      EXPECT_EQ(runs([&] { at::addmm(matrix, matrix, matrix); }), takes(kind, type, DtypeUse::mm)) << cell;
      EXPECT_EQ(runs([&] { at::conv2d(image, filter); }), takes(kind, type, DtypeUse::conv)) << cell;
      EXPECT_EQ(error_of([&] { runtime::autocast::AutocastGuard region(type); }).empty(),
                takes(kind, type, DtypeUse::autocast))
          << cell;
    }
  }
}

TEST(Capabilities, NoDtypeIsMissing) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::Undefined); ++i) {
    const auto type = static_cast<at::ScalarType>(i);
    const bool listed =
        std::any_of(std::begin(kDtypes), std::end(kDtypes), [&](const auto& p) { return p.type == type; });
    const std::string name = c10::toString(type);
    const bool odd = name.find("QInt") != std::string::npos || name.find("QUInt") != std::string::npos ||
                     name.find("Bits") != std::string::npos ||
                     (name.find("Int") != std::string::npos && c10::elementSize(type) == 1);  // Int1 to UInt7
    EXPECT_NE(listed, odd) << name;
  }
}

TEST(Capabilities, TheFirstGenerationRefusesFp8AndF16WhereverTheyWouldComeToBe) {
  const at::Tensor host = at::ones({2, 2}, at::kHalf), half = at::ones({2, 2}, on_hpu(at::kHalf));
  const DeviceKindScope scope(DeviceKind::gaudi);
  const at::Tensor x = at::ones({2, 2}, on_hpu());
  const char* message =
      "[hpu] Half tensors not supported on Gaudi, Gaudi2 or higher required (FP8_HPU_DEVICE); allowed on GAUDI: Float, "
      "BFloat16, Char, Byte, Short, Int, Long, Bool";
  const std::vector<std::function<void()>> ways = {[&] { at::empty({2}, on_hpu(at::kHalf)); },
                                                   [&] { at::empty_strided({2}, {1}, on_hpu(at::kHalf)); },
                                                   [&] { at::full({2}, 1, on_hpu(at::kHalf)); },
                                                   [&] { at::ones_like(x, at::kHalf); },
                                                   [&] { x.to(at::kHalf); },
                                                   [&] { host.to(kHpu); },
                                                   [&] { x.new_zeros({2}, on_hpu(at::kHalf)); },
                                                   [&] { at::sum(x, at::kHalf); },
                                                   [&] { half.clone(); },
                                                   [&] { at::relu(half); },
                                                   [&] { x.view(at::kHalf); },
                                                   [&] { torch::nn::Linear(2, 2)->to(kHpu, at::kHalf); }};
  for (std::size_t i = 0; i < ways.size(); ++i) EXPECT_TRUE(throws_with({message}, ways[i])) << i;
  EXPECT_REFUSED(x.to(at::kFloat8_e4m3fn), "Float8_e4m3fn tensors not supported on Gaudi, Gaudi2 or higher required");
  EXPECT_EQ(half.cpu().scalar_type(), at::kHalf);  // what was made on another device is not lost

  std::string elsewhere;
  std::thread([&] { elsewhere = error_of([&] { x.to(at::kHalf); }); }).join();
  EXPECT_EQ(elsewhere, "");  // the scope is this thread's
}

TEST(Capabilities, ProductsAndRegionsNameThemselves) {
  const at::Tensor half = at::ones({2, 2}, on_hpu(at::kHalf)), flags = at::ones({2, 2}, on_hpu(at::kBool));
  EXPECT_REFUSED(at::mm(flags, flags), "[aten::mm] Bool not supported on GAUDI3, allowed: Float, BFloat16, Half, ");
  EXPECT_REFUSED(at::bmm(flags.unsqueeze(0), flags.unsqueeze(0)), "[aten::bmm] Bool");
  EXPECT_REFUSED(at::mv(flags, flags[0]), "[aten::mv] Bool");
  EXPECT_REFUSED(at::conv2d(flags.view({1, 1, 2, 2}), flags.view({1, 1, 2, 2})),
                 "olution] Bool not supported on GAUDI3, allowed: ");
  const DeviceKindScope scope(DeviceKind::gaudi);
  EXPECT_REFUSED(at::mm(half, half),
                 "[aten::mm] Half not supported on Gaudi, Gaudi2 or higher required (FP8_HPU_DEVICE); allowed "
                 "on GAUDI: Float, BFloat16, Char");
  EXPECT_REFUSED(at::linear(half, half, half[0]), "[aten::addmm] Half");
  EXPECT_REFUSED(
      runtime::autocast::AutocastGuard region(at::kHalf),
      "autocast on hpu: found dtype Half, allowed: BFloat16 (Half not supported on Gaudi, Gaudi2 or higher required)");
  EXPECT_FALSE(runtime::autocast::is_autocast_hpu_enabled());
}

/// lightning-habana's test_hpu_dtypes_op_output_dtype.
TEST(Promotion, ProductsSumsAndQuotients) {
  for (const auto type : {at::kChar, at::kShort, at::kInt, at::kLong, at::kBFloat16, at::kFloat}) {
    const at::Tensor a = at::tensor({1, 2, 2, 1}, at::kInt).view({2, 2}).to(type).to(kHpu);
    const bool real = at::isFloatingType(type);
    EXPECT_EQ(at::mm(a, a).scalar_type(), type);
    EXPECT_TRUE(same_bits(at::mm(a, a), at::mm(a.cpu(), a.cpu())));
    EXPECT_EQ(at::add(a, a).scalar_type(), type);
    EXPECT_EQ(at::div(a, a).scalar_type(), real ? type : at::kFloat);
    const runtime::autocast::AutocastGuard region;
    EXPECT_EQ(at::mm(a, a).scalar_type(), real ? at::kBFloat16 : type) << type;
    EXPECT_EQ(at::add(a, a).scalar_type(), type);
    EXPECT_EQ(at::div(a, a).scalar_type(), at::kFloat) << type;
  }
}

TEST(Promotion, SumsOfTwoDtypesAsLibTorchSays) {
  const auto types = {at::kBool, at::kChar, at::kByte,     at::kShort, at::kInt,
                      at::kLong, at::kHalf, at::kBFloat16, at::kFloat};
  for (const auto left : types)
    for (const auto right : types) {
      const at::Tensor a = at::ones({2}, on_hpu(left)), b = at::ones({2}, on_hpu(right));
      const auto together = at::promote_types(left, right);
      EXPECT_EQ(at::add(a, b).scalar_type(), together) << left << right;
      EXPECT_EQ(at::div(a, b).scalar_type(), at::isFloatingType(together) ? together : at::kFloat) << left << right;
    }
}

}  // namespace
}  // namespace fp8::test
