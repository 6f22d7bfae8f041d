// SPDX-License-Identifier: Apache-2.0
// Codes that a kernel writes beside a tensor: cast_once() finds exactly those that it would have made.
#include <c10/core/InferenceMode.h>

#include <limits>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/fp8_tensor.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using runtime::CastBeside;
using runtime::CastSpec;
using runtime::Fp8Tensor;
using runtime::ScaleLayout;
using runtime::ScaleRule;

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

}  // namespace
}  // namespace fp8::test
