// SPDX-License-Identifier: Apache-2.0
// hpu:: operators on cache layout, 4-bit formats and the deprecated ones.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/ops/cast/low_bit.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/ops/gemm/gemm_v1.h"
#include "fp8/runtime/ops/layout/layout.h"

namespace fp8::runtime::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor from_int4(const Tensor& input, const Tensor& scale, const OptionalTensor& zero_point, at::ScalarType dtype) {
  return convert_from_int4(input, scale, zero_point, dtype, true);
}
Tensor from_uint4(const Tensor& input, const Tensor& scale, const OptionalTensor& zero_point, at::ScalarType dtype) {
  return convert_from_int4(input, scale, zero_point, dtype, false);
}
Tensor int4_meta(const Tensor& input, const Tensor&, const OptionalTensor&, at::ScalarType dtype) {
  return convert_from_int4_meta(input, dtype);
}
Tensor fp4_meta(const Tensor& input, bool, int64_t axis, std::string_view dtype) {
  return fake_quant_fp4_meta(input, axis, dtype);
}

Tensor reorder_meta(const Tensor& self, const Tensor& start, const Tensor& end, const Tensor& beam_idx) {
  check_kv_reorder(self, start, end, beam_idx);
  return at::empty(self.sizes(), self.options());
}
Tensor& reorder_meta_(Tensor& self, const Tensor& start, const Tensor& end, const Tensor& beam_idx) {
  check_kv_reorder(self, start, end, beam_idx);
  return self;
}

/// The movers call other operators only: these see to the codes of converted weights, and serve meta tensors as they
/// are.
template <class Impl>
void register_movers(const Impl& impl) {
  impl("in_place_interleave", &in_place_interleave);
  impl("in_place_interleave_", &in_place_interleave_);
  impl("fp8_copy_", &fp8_copy_);
  impl("fp8_transpose", &fp8_transpose);
  impl("fp8_permute", &fp8_permute);
  impl("fp8_reshape", &fp8_reshape);
  impl("fp8_index_select_v2", &fp8_index_select_v2);
  impl("fp8_repeat_v2", &fp8_repeat_v2);
}

}  // namespace

FP8_LIBRARY_IMPL(hpu, HPU, m) {
  Edge edge(m, "hpu");
  register_movers([&](const char* name, auto kernel) { edge.impl(name, kernel, Codes::passed_on); });
  edge.impl("fp8_index_copy_", &fp8_index_copy_);  // moves bytes
  edge.impl("kv_reorder", &kv_reorder);
  edge.impl("kv_reorder_", &kv_reorder_);
  edge.impl("fp8_kv_reorder_", &fp8_kv_reorder_);
  edge.impl("convert_from_int4", &from_int4);
  edge.impl("convert_from_uint4", &from_uint4);
  edge.impl("fake_quant_fp4", &fake_quant_fp4);
  edge.impl("fp8_gemm", &fp8_gemm_v1);
}

FP8_LIBRARY_IMPL(hpu, Meta, m) {
  register_movers([&](const char* name, auto kernel) { m.impl(name, kernel); });
  m.impl("fp8_index_copy_", &fp8_index_copy_);
  m.impl("kv_reorder", &reorder_meta);
  m.impl("kv_reorder_", &reorder_meta_);
  m.impl("fp8_kv_reorder_", &reorder_meta_);
  m.impl("convert_from_int4", &int4_meta);
  m.impl("convert_from_uint4", &int4_meta);
  m.impl("fake_quant_fp4", &fp4_meta);
  m.impl("fp8_gemm", &fp8_gemm_v1_meta);
}

}  // namespace fp8::runtime::ops
