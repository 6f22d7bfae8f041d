// SPDX-License-Identifier: Apache-2.0
// When codes are shared, and when they must not be.
#include <c10/core/InferenceMode.h>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using runtime::CastSpec;
using runtime::Fp8Tensor;
using runtime::ScaleLayout;
using runtime::ScaleRule;

bool shared(const Fp8Tensor& a, const Fp8Tensor& b) { return a.codes.is_same(b.codes); }

const CastSpec kRows{.layout = ScaleLayout::per_row(), .rule = ScaleRule::amax_over_max};

TEST(CastOnce, SharesCodesOfTheSameCast) {
  const at::Tensor x = hpu(at::randn({4, 64}));
  const Fp8Tensor first = runtime::cast_once(x, x, kRows);
  EXPECT_TRUE(shared(first, runtime::cast_once(x, x, kRows)));
  EXPECT_TRUE(same_bits(first.codes.view(at::kByte), runtime::quantize(x, kRows).codes.view(at::kByte)));
  EXPECT_FALSE(shared(first, runtime::cast_once(x, x, {.scale = 2})));
  EXPECT_FALSE(shared(runtime::cast_once(x, x, {.scale = 2}), runtime::cast_once(x, x, {.scale = 4})));
  EXPECT_FALSE(shared(first, runtime::cast_once(x, x.to(at::kBFloat16), kRows)));
  EXPECT_TRUE(shared(first, runtime::cast_once(x, x, kRows))) << "others do not drive it out";
}

TEST(CastOnce, AnyChangeOfTheTensorCastsAgain) {
  const at::Tensor x = hpu(at::randn({4, 64}));
  const Fp8Tensor first = runtime::cast_once(x, x, kRows);
  x.view({-1}).slice(0, 0, 1).add_(1);  // through a view
  const Fp8Tensor second = runtime::cast_once(x, x, kRows);
  EXPECT_FALSE(shared(first, second));
  EXPECT_TRUE(same_bits(second.codes.view(at::kByte), runtime::quantize(x, kRows).codes.view(at::kByte)));
  const at::Tensor part = x.slice(0, 0, 2);
  EXPECT_EQ(runtime::cast_once(part, part, kRows).codes.size(0), 2);
  EXPECT_FALSE(shared(second, runtime::cast_once(x, x, kRows))) << "one tensor of the memory at a time";
}

TEST(CastOnce, WhatHasNoVersionOrDrawsNumbersIsCastEachTime) {
  const at::Tensor x = hpu(at::randn({4, 64}));
  const CastSpec stochastic{.stochastic = 7};
  EXPECT_FALSE(shared(runtime::cast_once(x, x, stochastic), runtime::cast_once(x, x, stochastic)));
  const c10::InferenceMode inference;
  const at::Tensor y = hpu(at::randn({4, 64}));
  EXPECT_FALSE(shared(runtime::cast_once(y, y, kRows), runtime::cast_once(y, y, kRows)));
}

TEST(CastOnce, WhatInferenceModeKeepsIsOrdinary) {
  const at::Tensor x = hpu(at::randn({4, 64})), y = hpu(at::randn({4, 64}));
  const CastSpec turned{.format = kernels::Format::E5M2};
  {
    const c10::InferenceMode inference;
    EXPECT_FALSE(runtime::cast_once(x, x, kRows).codes.is_inference());
    EXPECT_FALSE(runtime::cast_both_once(y, y, {.scale = 2}, turned).first.codes.is_inference());
    EXPECT_TRUE(c10::InferenceMode::is_enabled() && !at::GradMode::is_enabled());
    EXPECT_TRUE(at::ones({2}, on_hpu()).is_inference());
    const at::Tensor z = hpu(at::randn({4, 64}));
    runtime::keep_cast(x, {.scale = 8}, runtime::quantize(z, {.scale = 8}));  // of an inference tensor: not kept
  }
  EXPECT_FALSE(runtime::cast_once(x, x, {.scale = 8}).codes.is_inference());
  EXPECT_TRUE(same_bits(runtime::cast_once(x, x, kRows).codes.view(at::kByte),
                        runtime::quantize(x, kRows).codes.view(at::kByte)));
}

TEST(CastOnce, TellsTheAmaxOfEachAsker) {
  const at::Tensor x = hpu(at::tensor({1.0f, -3.0f, 2.0f}));
  float amax = 0;
  const Fp8Tensor silent = runtime::cast_once(x, x, {.scale = 2});
  EXPECT_FALSE(shared(silent, runtime::cast_once(x, x, {.scale = 2, .amax = &amax}))) << "it had to look";
  EXPECT_EQ(amax, 3.0f);
  amax = 0;
  EXPECT_TRUE(shared(silent, runtime::cast_once(x, x, {.scale = 2, .amax = &amax})));
  EXPECT_EQ(amax, 3.0f);
  EXPECT_EQ(runtime::amax_once(x, x), 3.0f);
  x.mul_(2);
  EXPECT_EQ(runtime::amax_once(x, x), 6.0f);
}

TEST(CastOnce, BothFormats) {
  const at::Tensor x = hpu(at::randn({4, 64}));
  const CastSpec narrow{.scale = 2}, wide{.format = kernels::Format::E5M2};
  const auto first = runtime::cast_both_once(x, x, narrow, wide), again = runtime::cast_both_once(x, x, narrow, wide);
  EXPECT_TRUE(shared(first.first, again.first) && shared(first.second, again.second));
  EXPECT_TRUE(shared(first.second, runtime::cast_once(x, x, wide)));
}

TEST(CastOnce, BothLayoutsOfOneCast) {
  const at::Tensor x = hpu(at::randn({4, 64})), y = hpu(at::randn({4, 64}));
  const CastSpec spec{.scale = 2};
  CastSpec turned = spec;
  turned.transpose = true;
  float amax = 0;
  CastSpec telling = spec;
  telling.amax = &amax;
  const auto first = runtime::cast_both_once(x, x, telling, turned);
  EXPECT_EQ(amax, x.abs().max().item<float>());
  const auto again = runtime::cast_both_once(x, x, spec, turned);
  EXPECT_TRUE(shared(first.first, again.first) && shared(first.second, again.second));
  EXPECT_TRUE(shared(first.first, runtime::cast_once(x, x, spec)));
  const Fp8Tensor before = runtime::cast_once(y, y, spec);
  const auto both = runtime::cast_both_once(y, y, spec, turned);
  EXPECT_TRUE(both.second.codes.t().is_contiguous());
  EXPECT_TRUE(same_bits(both.second.codes.view(at::kByte).contiguous(), before.codes.view(at::kByte)));
}

// The codes go with the tensor.
TEST(CastOnce, KeepsNothingLongerThanTheTensor) {
  at::Tensor x = hpu(at::randn({4, 64}));
  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> codes(
      runtime::cast_once(x, x, kRows).codes.getIntrusivePtr());
  EXPECT_FALSE(codes.expired());
  x = at::Tensor();
  EXPECT_TRUE(codes.expired());
  at::Tensor y = hpu(at::randn({4, 64}));
  CastSpec turned;
  turned.transpose = true;
  codes = decltype(codes)(runtime::cast_both_once(y, y, {}, turned).second.codes.getIntrusivePtr());
  y = at::Tensor();
  EXPECT_TRUE(codes.expired());
}

}  // namespace
}  // namespace fp8::test
