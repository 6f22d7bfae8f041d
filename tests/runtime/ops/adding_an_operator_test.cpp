// SPDX-License-Identifier: Apache-2.0
// Everything that one more operator of the device needs: its schema, its kernels behind the edge, its work on an
// Fp8Tensor. Scripts, meta tensors, profilers and the checks of operands know it then as they know the vendor's.
#include <ATen/ops/empty.h>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/ops/common/edge.h"
#include "runtime/ops/op_call.h"

namespace fp8::runtime::ops {
namespace {

/// fp8_sample::negate(codes, scale_inv, out_dtype): -codes * scale_inv. codes: fp8, any sizes; scale_inv: one value.
at::Tensor negate_meta(const at::Tensor& codes, const at::Tensor&, at::ScalarType out_dtype) {
  check_fp8("negate", "codes", codes.scalar_type());
  return at::empty(codes.sizes(), codes.options().dtype(out_dtype));
}

at::Tensor negate(const at::Tensor& codes, const at::Tensor& scale_inv, at::ScalarType out_dtype) {
  check_fp8("negate", "codes", codes.scalar_type());
  Fp8Tensor x{codes};
  x.scale_inv = -scale_of(scale_inv, std::nullopt).values.at(0);
  return decode(x, out_dtype);
}

FP8_LIBRARY_FRAGMENT(fp8_sample, m) { m.def("negate(Tensor codes, Tensor scale_inv, ScalarType out_dtype) -> Tensor"); }
FP8_LIBRARY_IMPL(fp8_sample, HPU, m) { Edge(m, "fp8_sample").impl("negate", &negate); }
FP8_LIBRARY_IMPL(fp8_sample, Meta, m) { m.impl("negate", &negate_meta); }

}  // namespace
}  // namespace fp8::runtime::ops

namespace fp8::test {
namespace {

at::Tensor negated(const at::Tensor& codes, const at::Tensor& scale_inv) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fp8_sample::negate", "");
  torch::jit::Stack args{codes, scale_inv, code(at::kFloat)};
  op.callBoxed(args);
  return args[0].toTensor();
}

TEST(AddingAnOperator, RunsOnTheDeviceAndOnMetaTensors) {
  const at::Tensor x = random_codes({3, 5}, kE4M3, 1), half = at::full({1}, 0.5);
  EXPECT_TRUE(same_bits(negated(x, half), (values_of(x) * -0.5).to(at::kFloat)));
  const at::Tensor meta = negated(at::empty({3, 5}, at::device(at::kMeta).dtype(kE4M3)), half);
  EXPECT_TRUE(meta.is_meta() && meta.sizes() == x.sizes());
}

TEST(AddingAnOperator, ChecksItsOperandsAsAllDo) {
  const at::Tensor x = random_codes({4, 4}, kE4M3, 1), half = at::full({1}, 0.5);
  EXPECT_REFUSED(negated(at::ones({2}, on_hpu()), half), "[negate] expected codes");
  at::Tensor w = at::ones({4, 4}, on_hpu());
  convert_to_codes(w, "fc1", std::make_shared<CodesHandler>(0.5), 0.5);
  EXPECT_REFUSED(negated(w, half), "fp8_sample::negate", "module 'fc1'");
}

}  // namespace
}  // namespace fp8::test
