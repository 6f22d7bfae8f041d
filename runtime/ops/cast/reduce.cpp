// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/cast/reduce.h"

#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/kernels/decode.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/cast/cast.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::runtime::ops {

at::Tensor sum_fp8_meta(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                        std::optional<at::ScalarType> out_dtype) {
  const auto known = [](at::ScalarType type) { return is_fp8(type) || is_high_precision(type); };
  TORCH_CHECK(known(self.scalar_type()),
              "[sum_fp8] expected self of dtype Float8_e4m3fn, Float8_e5m2, Float, BFloat16 or Half, got ",
              self.scalar_type());
  const auto type = out_dtype.value_or(self.scalar_type());
  TORCH_CHECK(known(type), "[sum_fp8] expected out_dtype Float8_e4m3fn, Float8_e5m2, Float, BFloat16 or Half, got ",
              type);
  const auto reduced = at::dim_list_to_bitset(dim, static_cast<std::size_t>(self.dim()));  // throws on bad dimensions
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < self.dim(); ++i) {
    const bool gone = reduced[static_cast<std::size_t>(i)];
    if (!gone || keepdim) sizes.push_back(gone ? 1 : self.size(i));
  }
  return at::empty(sizes, self.options().dtype(type));
}

at::Tensor sum_fp8(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                   std::optional<at::ScalarType> out_dtype) {
  LeafScope leaf("hpu::sum_fp8", self);
  const at::Tensor out = sum_fp8_meta(self, dim, keepdim, out_dtype);
  const at::Tensor x = self.detach();
  const at::Tensor values = is_fp8(x.scalar_type()) ? cast_from_fp8(x, Scale{}, at::kFloat) : x.to(at::kFloat);
  const at::Tensor sum = at::sum(values, dim, keepdim);
  at::Tensor y = is_fp8(out.scalar_type()) ? std::get<0>(cast_to_fp8_v2(sum, Scale{}, false, false, out.scalar_type()))
                                           : sum.to(out.scalar_type());
  leaf.gives(y);
  return y;
}

}  // namespace fp8::runtime::ops
