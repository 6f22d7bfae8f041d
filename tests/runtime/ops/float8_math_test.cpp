// SPDX-License-Identifier: Apache-2.0
// mul, isclose and allclose of float8 tensors on hpu.
#include "op_call.h"

namespace fp8::test {
namespace {

using at::Tensor;

std::vector<int> codes_for(const Tensor& v, at::ScalarType type, double max = 448) {
  std::vector<int> codes;
  const Tensor flat = v.to(at::kDouble).flatten().contiguous();
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    codes.push_back(code_of(flat.const_data_ptr<double>()[i], type == kE5M2, type == kE5M2 ? 57344 : max));
  return codes;
}

TEST(Float8Mul, ByNumbersZeroDimTensorsAndItsLike) {
  for (const auto type : {kE4M3, kE5M2}) {
    const Tensor x = random_codes({4, 6}, type, 1), y = random_codes({6}, type, 2);
    EXPECT_TRUE(same_bits(x * 1.0, x));
    EXPECT_EQ((x * 3).scalar_type(), type);
    EXPECT_EQ(codes_of(x * 1.7), codes_for(values_of(x).to(at::kFloat) * 1.7f, type));
    EXPECT_EQ(codes_of(x * torch::tensor(1.7f, on_hpu())), codes_for(values_of(x).to(at::kFloat) * 1.7f, type));
    EXPECT_EQ(codes_of(2.0 * x), codes_for(values_of(x) * 2, type));
    EXPECT_EQ(codes_of(x * y), codes_for(values_of(x) * values_of(y), type));
    Tensor in_place = x.clone();
    const void* data = in_place.data_ptr();
    in_place.mul_(0.5);
    EXPECT_EQ(in_place.data_ptr(), data);
    EXPECT_EQ(codes_of(in_place), codes_for(values_of(x) * 0.5, type));
  }
}

TEST(Float8Mul, SaturatesAsTheDeviceDoes) {
  const Tensor x = random_codes({64}, kE4M3, 1);
  EXPECT_EQ(codes_of(x * 1000.0), codes_for(values_of(x) * 1000, kE4M3, 448));
  const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
  EXPECT_EQ(codes_of(x * 1000.0), codes_for(values_of(x) * 1000, kE4M3, 240));
}

TEST(Float8Mul, AZeroDimFloat8FactorHasItsValue) {
  const Tensor x = at::randn({5}, on_hpu()), half = at::full({}, 0.5f, on_hpu()).to(kE4M3);
  EXPECT_TRUE(same_bits(x * half, x * 0.5));
}

TEST(Float8Mul, PromotionsThatPyTorchRefusesStayRefused) {
  const Tensor x = random_codes({6}, kE4M3, 1);
  EXPECT_TRUE(throws_with({"Promotion for Float8 Types is not supported"}, [&] { x* at::ones({6}, on_hpu()); }));
  EXPECT_TRUE(throws_with({"Promotion for Float8 Types is not supported"}, [&] { x* random_codes({6}, kE5M2, 1); }));
}

TEST(Float8Mul, ATaggedWeightIsRefusedByName) {
  Tensor w = at::ones({4, 4}, on_hpu());
  convert_to_codes(w, "layer", std::make_shared<CodesHandler>(0.5), 0.5);
  EXPECT_TRUE(throws_with({"aten::mul", "module 'layer'"}, [&] { w * 2.0; }));
}

TEST(Float8Mul, OtherDtypesAsBefore) {
  const Tensor x = at::randn({4, 3}), y = at::randn({3});
  EXPECT_TRUE(same_bits(hpu(x) * hpu(y), x * y));
  EXPECT_TRUE(same_bits(hpu(x) * 2, x * 2));
  Tensor out = at::empty({4, 3}, on_hpu()), in_place = hpu(x);
  at::mul_out(out, hpu(x), hpu(y));
  EXPECT_TRUE(same_bits(out, x * y));
  EXPECT_TRUE(same_bits(in_place.mul_(3), x * 3));
  EXPECT_TRUE(same_bits(at::mul(hpu(x), at::Scalar(1.5)), x * 1.5));
}

TEST(Float8IsClose, ComparesValues) {
  for (const auto type : {kE4M3, kE5M2}) {
    const Tensor x = random_codes({4, 6}, type, 1);
    EXPECT_TRUE(at::allclose(x, x.clone()));
    const Tensor y = x * 1.5, expected = at::isclose(values_of(x), values_of(y), 0.1, 0.2);
    EXPECT_TRUE(same_bits(at::isclose(x, y, 0.1, 0.2), expected));
    EXPECT_FALSE(at::allclose(x, y));
    EXPECT_TRUE(at::allclose(x, y, 0.6, 0.1));
    const c10::InferenceMode inference;
    EXPECT_TRUE(same_bits(at::isclose(x, y, 0.1, 0.2), expected));
  }
  const Tensor zeros = hpu(at::tensor({0, 128}, at::kByte).view(kE4M3));
  EXPECT_TRUE(at::allclose(zeros[0], zeros[1])) << "-0 equals 0";
  const Tensor nan = hpu(at::full({1}, 127, at::kByte).view(kE4M3));
  EXPECT_FALSE(at::allclose(nan, nan));
  EXPECT_TRUE(at::allclose(nan, nan, 1e-5, 1e-8, true));
}

TEST(Float8IsClose, ATaggedWeightsValuesHaveItsScale) {
  const Tensor values = hpu(at::tensor({1.f, 2.f, 4.f, -8.f})).view({2, 2});
  Tensor a = values.clone(), b = values.clone(), twice = values * 2;
  convert_to_codes(a, "a", std::make_shared<CodesHandler>(0.5), 0.5);
  convert_to_codes(b, "b", std::make_shared<CodesHandler>(0.25), 0.25);   // other codes, the same values
  convert_to_codes(twice, "c", std::make_shared<CodesHandler>(1.0), 1.0);  // a's codes, other values
  EXPECT_TRUE(at::allclose(a, b));
  EXPECT_FALSE(at::allclose(a, twice));
}

TEST(Float8IsClose, OtherDtypesAsBefore) {
  const Tensor x = at::randn({4}), y = x + 1e-9;
  EXPECT_TRUE(at::allclose(hpu(x), hpu(y)));
  EXPECT_TRUE(same_bits(at::isclose(hpu(x), hpu(x + 1)), at::isclose(x, x + 1)));
  EXPECT_TRUE(throws_with({"did not match"}, [&] { at::isclose(random_codes({4}, kE4M3, 1), hpu(x)); }));
}

}  // namespace
}  // namespace fp8::test
