// SPDX-License-Identifier: Apache-2.0
// Which operations each backend casts, against LibTorch's own autocast on the CPU.
#include <ATen/autocast_mode.h>

#include <stdexcept>

#include "fp8/transformer_engine/convert/precision_plugin.h"
#include "support/enum_names.h"
#include "support/hpu_test.h"

namespace fp8::te {
namespace {

using test::hpu;

struct Dtypes {
  at::ScalarType mm, quotient;
  bool operator==(const Dtypes&) const = default;
};

/// Of a product of f32, and of a quotient of bf16, which only the device's list runs in f32.
Dtypes of(const at::Tensor& x) {
  const at::Tensor half = x.to(at::kBFloat16);
  return {at::mm(x, x).scalar_type(), at::div(half, half).scalar_type()};
}

constexpr Dtypes kNone = {at::kFloat, at::kBFloat16}, kCpuRegion = {at::kBFloat16, at::kBFloat16},
                 kHpuRegion = {at::kBFloat16, at::kFloat};

TEST(HalfPrecision, EachBackendCastsItsOwnDevicesOperations) {
  const at::Tensor host = at::ones({2, 2}), device = hpu(host);
  {
    const HalfPrecisionContext region(true);
    EXPECT_EQ(of(host), kNone);
    EXPECT_EQ(of(device), kHpuRegion);
  }
  {
    const HalfPrecisionContext region(true, HalfPrecisionBackend::cpu_amp);
    EXPECT_EQ(of(host), kCpuRegion);
    EXPECT_EQ(of(device), kNone);
  }
  for (const auto& row : enum_names<HalfPrecisionBackend>) {
    const HalfPrecisionContext region(false, row.value);
    EXPECT_EQ(of(host), kNone);
    EXPECT_EQ(of(device), kNone);
  }
}

TEST(HalfPrecision, TheStateBeforeComesBack) {
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  try {
    const HalfPrecisionContext outer(true, HalfPrecisionBackend::cpu_amp);
    { const HalfPrecisionContext inner(true, HalfPrecisionBackend::cpu_amp); }
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}

/// LibTorch keeps what it cast of a weight: the next step must not compute with the one before.
TEST(HalfPrecision, AStepOnTheCpuSeesTheNewWeights) {
  const at::Tensor w = at::full({2, 2}, 3.0f).requires_grad_(), x = at::eye(2);
  const auto step = [&] {
    const HalfPrecisionContext region(true, HalfPrecisionBackend::cpu_amp);
    return at::mm(x, w).to(at::kFloat).detach().clone();
  };
  EXPECT_TRUE(at::equal(step(), at::full({2, 2}, 3.0f)));
  {
    const at::NoGradGuard no_grad;
    w.mul_(2);
  }
  EXPECT_TRUE(at::equal(step(), at::full({2, 2}, 6.0f)));
}

TEST(HalfPrecision, Names) { test::check_names<HalfPrecisionBackend>(); }

}  // namespace
}  // namespace fp8::te
