// SPDX-License-Identifier: Apache-2.0
// Scales as arguments: shapes, broadcast patterns, rounding.
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/ops/common/file_dtype.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using runtime::ops::broadcast_of;
using runtime::ops::Scale;
using runtime::ops::scale_of;

Scale scale(const std::vector<std::int64_t>& shape) { return scale_of(at::ones(shape), std::nullopt); }

TEST(Arguments, TypesOfTheKernels) {
  for (const auto& [type, name] : enum_names<kernels::FloatType>) {
    EXPECT_TRUE(runtime::ops::float_type_of(runtime::ops::dtype_of(type)) == type) << name;
    EXPECT_FALSE(is_fp8(runtime::ops::storage_of(runtime::ops::dtype_of(type)))) << name;
  }
  for (const auto& [format, name] : enum_names<kernels::Format>) {
    EXPECT_TRUE(runtime::ops::format_of(runtime::ops::dtype_of(format)) == format) << name;
    EXPECT_TRUE(is_fp8(runtime::ops::storage_of(runtime::ops::dtype_of(format)))) << name;
  }
  EXPECT_TRUE(runtime::ops::storage_of(at::kBFloat16) == kernels::Storage::BF16);
  EXPECT_TRUE(runtime::ops::storage_of(at::kFloat8_e5m2) == kernels::Storage::E5M2);
}

TEST(ScaleOf, TakesTensorsOfThreeTypesOnEitherDevice) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::Tensor& t : {at::full({2}, 0.5, type), at::full({2}, 0.5, on_hpu(type))}) {
      const Scale s = scale_of(t, std::nullopt);
      EXPECT_EQ(s.values, (std::vector<float>{0.5f, 0.5f}));
      EXPECT_EQ(s.shape, (std::vector<std::int64_t>{2}));
    }
  }
  EXPECT_TRUE(scale_of(std::optional<at::Tensor>(), std::nullopt).none());
  EXPECT_TRUE(scale_of(2.0, std::nullopt).per_tensor());
  const at::Tensor every_other = at::arange(6, at::kFloat).slice(0, 0, 6, 2);
  EXPECT_EQ(scale_of(every_other, std::nullopt).values, (std::vector<float>{0, 2, 4}));
  EXPECT_REFUSED(scale_of(at::ones({1}, at::kLong), std::nullopt),
                 "expected a scale of dtype Float, BFloat16 or Half, got Long");
}

TEST(ScaleOf, ShapeMustHoldAsManyElements) {
  const std::vector<std::int64_t> six = {6};
  EXPECT_EQ(scale_of(at::ones({6}), std::vector<std::int64_t>{2, 3}).shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_REFUSED(scale_of(at::ones({3}), six),
                 "Number of scale elements (3) is not equal to number of scale_shape elements (6).");
  const std::vector<double> list = {1, 2};
  EXPECT_REFUSED(scale_of(list, six),
                 "Number of scale elements (2) is not equal to number of scale_shape elements (6).");
}

TEST(BroadcastOf, KnowsRowsAndColumns) {
  const auto strides = [](const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& sizes) -> std::vector<std::int64_t> {
    const auto b = broadcast_of(scale(shape), sizes);
    return b.has_value() ? std::vector<std::int64_t>{b->rows, b->cols} : std::vector<std::int64_t>{};
  };
  using V = std::vector<std::int64_t>;
  EXPECT_EQ(strides({}, {4, 6}), (V{0, 0}));
  EXPECT_EQ(strides({1}, {4, 6}), (V{0, 0}));
  EXPECT_EQ(strides({6}, {4, 6}), (V{0, 1}));
  EXPECT_EQ(strides({1, 6}, {4, 6}), (V{0, 1}));
  EXPECT_EQ(strides({4, 1}, {4, 6}), (V{1, 0}));
  EXPECT_EQ(strides({2, 4, 1}, {2, 4, 6}), (V{1, 0}));
  EXPECT_EQ(strides({1, 4, 1}, {2, 4, 6}), V{});  // a pattern of its own
  EXPECT_EQ(strides({4, 6}, {4, 6}), V{});
  EXPECT_EQ(strides({5}, {4, 6}), V{});
  EXPECT_EQ(strides({4}, {4, 6}), V{});
  EXPECT_EQ(strides({2, 1, 1}, {4, 6}), V{});
}

TEST(RoundTo, RoundsToTheTensorsType) {
  Scale s = scale_of(0.3, std::nullopt);
  runtime::ops::round_to(s, at::kFloat);
  EXPECT_EQ(s.values[0], 0.3f);
  runtime::ops::round_to(s, at::kBFloat16);
  EXPECT_EQ(s.values[0], 0.30078125f);  // 77 / 256
}

TEST(FileDType, ThereAndBackWithTheSameSize) {
  for (const auto& [own, stored] : runtime::ops::kFileDTypes) {
    EXPECT_TRUE(runtime::ops::file_dtype(own) == stored) << own;
    EXPECT_TRUE(runtime::ops::tensor_dtype(stored) == own) << own;
    EXPECT_EQ(c10::elementSize(own), static_cast<std::size_t>(io::size_of(stored))) << own;
  }
}

TEST(FileDType, IsEmptyWhereTheOtherHasNone) {
  EXPECT_FALSE(runtime::ops::file_dtype(at::kComplexDouble).has_value());
  EXPECT_FALSE(runtime::ops::file_dtype(at::kQInt8).has_value());
  EXPECT_FALSE(runtime::ops::tensor_dtype(io::DType::C64).has_value());
}

}  // namespace
}  // namespace fp8::test
