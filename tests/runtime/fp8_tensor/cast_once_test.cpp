// SPDX-License-Identifier: Apache-2.0
// When codes are shared, and when they must not be.
#include <c10/core/InferenceMode.h>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/fp8_tensor.h"
#include "fp8/runtime/fp8_tensor/gemm.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using runtime::CastBeside;
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

// Codes that a kernel writes beside a tensor: cast_once() finds exactly those that it would have made.

const CastSpec kEachRow{.layout = ScaleLayout::per_row(), .rule = ScaleRule::amax_over_max};

/// As a kernel does that has written y.
void cast_beside(const at::Tensor& y, const CastSpec& spec) {
  const CastBeside cast(y, spec);
  const kernels::CastArgs rows = cast.rows();
  const std::int64_t n = y.size(-1), count = n == 0 ? 0 : y.numel() / n;
  const char* first = static_cast<const char*>(runtime::cpu_alias(y).const_data_ptr());
  for (std::int64_t r = 0; r < count && rows.codes != nullptr; ++r)
    kernels::cast_row(rows, runtime::float_type_of(y.scalar_type()),
                      first + r * n * static_cast<std::int64_t>(y.element_size()), r, n);
  cast.keep();
}

/// Whether cast_once() has no need to cast: it doesn't see a write through Tensor::data.
bool is_known(const at::Tensor& y, const CastSpec& spec) {
  y.data().zero_();
  return runtime::cast_once(y, y, spec).codes.view(at::kByte).count_nonzero().item<std::int64_t>() != 0;
}

TEST(CastBeside, IsTheCastOfItsTensorToTheBit) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto format : {kernels::Format::E4M3, kernels::Format::E5M2})
      for (const auto dialect : {kernels::Dialect::ocp, kernels::Dialect::gaudi2})
        for (CastSpec spec : {kEachRow, CastSpec{.scale = 3.3f, .scale_inv = 1 / 3.3f},
                              CastSpec{.scale = 3.3f, .scale_inv = 1 / 3.3f, .vendor = true}}) {
          spec.format = format, spec.max = kernels::fp8_max(format, dialect);
          at::Tensor values = at::randn({2, 3, 33}) * 100;
          values[0][1].zero_();
          values[1][0][5] = infinity, values[1][2][7] = nan;
          const at::Tensor y = hpu(values.to(dtype));
          const Fp8Tensor expected = runtime::quantize(y, spec);
          cast_beside(y, spec);
          const Fp8Tensor found = runtime::cast_once(y, y, spec);
          EXPECT_TRUE(same_bits(found.codes, expected.codes));
          EXPECT_TRUE(same_bits(found.grid, expected.grid));
          EXPECT_EQ(found.scale_inv, expected.scale_inv);
          EXPECT_TRUE(found.layout == expected.layout);
          EXPECT_TRUE(is_known(y, spec));
        }
}

TEST(CastBeside, OtherCastsAreMadeAsWithout) {
  const at::Tensor y = hpu(at::randn({3, 40}));
  cast_beside(y, kEachRow);
  const CastSpec other{.scale = 2, .scale_inv = 0.5f};
  EXPECT_TRUE(same_bits(runtime::cast_once(y, y, other).codes, runtime::quantize(y, other).codes));
  y.add_(1);
  EXPECT_TRUE(same_bits(runtime::cast_once(y, y, kEachRow).codes, runtime::quantize(y, kEachRow).codes));
}

TEST(CastBeside, MakesNoneWhereNobodyCouldFindIt) {
  const CastSpec blocks{.layout = ScaleLayout::blocks(1, 8), .rule = ScaleRule::amax_over_max},
      tensor{.rule = ScaleRule::amax_over_max}, stochastic{.stochastic = 3};
  const at::Tensor y = hpu(at::randn({3, 40}));
  for (const CastSpec& spec : {blocks, tensor, stochastic}) EXPECT_EQ(CastBeside(y, spec).rows().codes, nullptr);
  EXPECT_EQ(CastBeside(y, std::nullopt).rows().codes, nullptr);
  EXPECT_EQ(CastBeside(at::randn({3, 40}), kEachRow).rows().codes, nullptr) << "no memory of ours";
  EXPECT_EQ(CastBeside(hpu(at::randn({3, 0})), kEachRow).rows().codes, nullptr);
  EXPECT_NE(CastBeside(y, kEachRow).rows().codes, nullptr);
  EXPECT_FALSE(is_known(y, kEachRow)) << "not kept";
  const c10::InferenceMode inference;
  EXPECT_EQ(CastBeside(hpu(at::randn({3, 40})), kEachRow).rows().codes, nullptr) << "no version";
}

// Codes of any strides as dense rows: the same bytes that contiguous() gives.

void expect_rows(const at::Tensor& codes) {
  kernels::Scratch scratch;
  const runtime::DenseCodes dense(codes, scratch);
  const at::Tensor rows = codes.cpu().contiguous();
  EXPECT_EQ(std::memcmp(dense.data(), rows.const_data_ptr(), static_cast<std::size_t>(rows.numel())), 0)
      << codes.sizes() << " " << codes.strides();
}

TEST(DenseCodes, OfAnyStrides) {
  torch::manual_seed(1);
  const at::Tensor all = at::randint(0, 256, {3, 70, 130}, at::kByte).to(kHpu);
  for (const auto type : {at::kByte, at::kFloat8_e4m3fn}) {
    const at::Tensor codes = all.view(type);
    expect_rows(codes);
    expect_rows(codes.transpose(1, 2));
    expect_rows(codes[1].t());
    expect_rows(codes.narrow(2, 3, 50).transpose(1, 2));
    expect_rows(codes.narrow(1, 3, 50));
    expect_rows(codes.transpose(0, 1));
    expect_rows(codes.narrow(1, 0, 0).transpose(1, 2));
    expect_rows(codes.select(2, 5));
  }
}

TEST(DenseCodes, WhatIsDenseIsReadWhereItIs) {
  const at::Tensor codes = at::zeros({4, 8}, at::kByte).to(kHpu);
  kernels::Scratch scratch;
  EXPECT_EQ(runtime::DenseCodes(codes, scratch).data(), codes.const_data_ptr());
  EXPECT_NE(runtime::DenseCodes(codes.t(), scratch).data(), codes.const_data_ptr());
  const runtime::WeightCodes weight(codes, /*again=*/false, scratch);
  EXPECT_EQ(weight.layout(), kernels::Layout::row_major);
  EXPECT_EQ(weight.data(), codes.const_data_ptr());
}

}  // namespace
}  // namespace fp8::test
