// SPDX-License-Identifier: Apache-2.0
// Regions: what is on, in which dtype, how they nest and end, and that upstream's own calls mean the same.
#include "fp8/runtime/autocast/autocast.h"

#include <ATen/autocast_mode.h>

#include <stdexcept>
#include <thread>

#include "support/hpu_test.h"

namespace fp8::test {
namespace {

namespace autocast = runtime::autocast;
using autocast::AutocastGuard;

at::ScalarType dtype_of_mm() {
  const at::Tensor a = at::ones({2, 2}, on_hpu());
  return at::mm(a, a).scalar_type();
}

TEST(Region, OffUnlessAskedFor) {
  EXPECT_FALSE(autocast::is_autocast_hpu_enabled());
  EXPECT_EQ(autocast::region_dtype(), std::nullopt);
  EXPECT_EQ(dtype_of_mm(), at::kFloat);
}

TEST(Region, Bfloat16UnlessSaidOtherwise) {
  const AutocastGuard region;
  EXPECT_TRUE(autocast::is_autocast_hpu_enabled());
  EXPECT_EQ(autocast::autocast_hpu_dtype(), at::kBFloat16);
  EXPECT_EQ(autocast::region_dtype(), at::kBFloat16);
  EXPECT_EQ(dtype_of_mm(), at::kBFloat16);
}

/// Each pair of outer and inner regions; after the inner one the outer counts again, after that none.
TEST(Region, NestingMatrix) {
  struct State {
    at::ScalarType dtype;
    bool enabled;
    at::ScalarType product() const { return enabled ? dtype : at::kFloat; }
  };
  const std::vector<State> states = {
      {at::kBFloat16, true}, {at::kHalf, true}, {at::kBFloat16, false}, {at::kHalf, false}};
  for (const State& outer : states) {
    for (const State& inner : states) {
      const AutocastGuard first(outer.dtype, outer.enabled);
      EXPECT_EQ(dtype_of_mm(), outer.product());
      {
        const AutocastGuard second(inner.dtype, inner.enabled);
        EXPECT_EQ(dtype_of_mm(), inner.product());
        EXPECT_EQ(autocast::region_dtype().has_value(), inner.enabled);
      }
      EXPECT_EQ(dtype_of_mm(), outer.product());
    }
    EXPECT_EQ(dtype_of_mm(), at::kFloat);
  }
}

TEST(Region, EndsWithAnException) {
  const auto thrower = [] {
    const AutocastGuard region(at::kHalf);
    throw std::runtime_error("inside");
  };
  EXPECT_EQ(error_of(thrower), "inside");
  EXPECT_FALSE(autocast::is_autocast_hpu_enabled());
  EXPECT_EQ(autocast::autocast_hpu_dtype(), at::kBFloat16);
  const AutocastGuard outer;
  EXPECT_REFUSED(at::mm(at::ones({2, 3}, on_hpu()), at::ones({2, 3}, on_hpu())), "mat1 and mat2 shapes");
  EXPECT_TRUE(autocast::is_autocast_hpu_enabled());
  EXPECT_EQ(dtype_of_mm(), at::kBFloat16);
}

TEST(Region, OtherDtypesAreRefusedAndChangeNothing) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kFloat8_e4m3fn, at::kInt}) {
    EXPECT_REFUSED(AutocastGuard region(dtype), "autocast on hpu", "allowed: BFloat16, Half");
    EXPECT_REFUSED(autocast::set_autocast_hpu_dtype(dtype), "allowed: BFloat16, Half");
    EXPECT_EQ(error_of([&] { AutocastGuard hole(dtype, false); }), "");
  }
  EXPECT_EQ(autocast::autocast_hpu_dtype(), at::kBFloat16);
  EXPECT_FALSE(autocast::is_autocast_hpu_enabled());
}

TEST(Region, UpstreamsCallsAndOursAreOneState) {
  at::autocast::set_autocast_enabled(at::kHPU, true);
  at::autocast::set_autocast_dtype(at::kHPU, at::kHalf);
  EXPECT_TRUE(autocast::is_autocast_hpu_enabled());
  EXPECT_EQ(autocast::region_dtype(), at::kHalf);
  EXPECT_EQ(dtype_of_mm(), at::kHalf);
  {
    const AutocastGuard region;
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kHPU), at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kHPU, false);
    EXPECT_EQ(dtype_of_mm(), at::kFloat);
  }
  EXPECT_EQ(dtype_of_mm(), at::kHalf);
  at::autocast::set_autocast_enabled(at::kHPU, false);
  autocast::set_autocast_hpu_dtype(at::kBFloat16);
  EXPECT_EQ(dtype_of_mm(), at::kFloat);
}

TEST(Region, DecoratedFunctions) {
  auto product =
      autocast::autocast_fn([](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b); }, at::kHalf);
  const at::Tensor a = at::ones({2, 2}, on_hpu());
  EXPECT_EQ(product(a, a).scalar_type(), at::kHalf);
  EXPECT_EQ(product(a, a).scalar_type(), at::kHalf);
  EXPECT_FALSE(autocast::is_autocast_hpu_enabled());
  const AutocastGuard region;
  auto exact = autocast::autocast_fn([&](const at::Tensor& x) { return at::mm(x, x); }, at::kBFloat16, false);
  EXPECT_EQ(exact(a).scalar_type(), at::kFloat);
}

TEST(Region, IsOfItsThread) {
  const AutocastGuard region;
  at::ScalarType other = at::kDouble, half = at::kDouble;
  std::thread([&] {
    other = dtype_of_mm();
    const AutocastGuard inside(at::kHalf);
    half = dtype_of_mm();
  }).join();
  EXPECT_EQ(other, at::kFloat);
  EXPECT_EQ(half, at::kHalf);
  EXPECT_EQ(dtype_of_mm(), at::kBFloat16);
}

TEST(InsideOp, TurnsCastsOffAndKeepsTheRegionReadable) {
  EXPECT_EQ(autocast::region_dtype(), std::nullopt);
  const AutocastGuard region(at::kHalf);
  {
    const autocast::InsideOp inside;
    EXPECT_EQ(dtype_of_mm(), at::kFloat);
    EXPECT_EQ(autocast::region_dtype(), at::kHalf);
    {
      const AutocastGuard hole(at::kBFloat16, false);
      EXPECT_EQ(autocast::region_dtype(), std::nullopt);
    }
    EXPECT_EQ(autocast::region_dtype(), at::kHalf);
    const autocast::OutsideOp outside(inside.was_enabled());
    EXPECT_EQ(dtype_of_mm(), at::kHalf);
  }
  EXPECT_EQ(dtype_of_mm(), at::kHalf);
}

}  // namespace
}  // namespace fp8::test
