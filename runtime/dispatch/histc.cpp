// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/dispatch/histc.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

std::int64_t whole(const c10::Scalar& bound, const char* name) {
  const double value = bound.toDouble();
  TORCH_CHECK(bound.isIntegral(false) || value == static_cast<double>(static_cast<std::int64_t>(value)),
              "[aten::histc] expected a whole ", name, " for a tensor of integers, got ", value);
  return bound.isIntegral(false) ? bound.toLong() : static_cast<std::int64_t>(value);
}

/// The greatest count that `type` holds.
std::int64_t most_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return std::numeric_limits<std::uint8_t>::max();
    case at::kChar:
      return std::numeric_limits<std::int8_t>::max();
    case at::kShort:
      return std::numeric_limits<std::int16_t>::max();
    case at::kInt:
      return std::numeric_limits<std::int32_t>::max();
    default:
      return std::numeric_limits<std::int64_t>::max();
  }
}

/// values: int64 on the CPU, contiguous. The counts, likewise.
at::Tensor count(const at::Tensor& values, std::int64_t bins, std::int64_t low, std::int64_t high) {
  const std::int64_t* v = values.const_data_ptr<std::int64_t>();
  const std::int64_t n = values.numel();
  if (low == high && n > 0) {
    const auto [least, most] = std::minmax_element(v, v + n);
    low = *least, high = *most;
  }
  __int128 first = low, last = high;
  if (first == last) --first, ++last;
  at::Tensor counts = at::zeros({bins}, at::kLong);
  std::int64_t* bin = counts.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < n; ++i) {
    if (v[i] < first || v[i] > last) continue;
    const auto place = static_cast<std::int64_t>((v[i] - first) * bins / (last - first));
    ++bin[std::min(place, bins - 1)];
  }
  return counts;
}

}  // namespace

bool histc_of_integers(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t arguments = op.schema().arguments().size();
  const at::Tensor self = torch::jit::peek(*stack, 0, arguments).toTensor();
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return false;
  const LeafScope leaf(op.schema(), torch::jit::last(*stack, arguments));
  const std::int64_t bins = torch::jit::peek(*stack, 1, arguments).toInt();
  const auto low = whole(torch::jit::peek(*stack, 2, arguments).toScalar(), "min");
  const auto high = whole(torch::jit::peek(*stack, 3, arguments).toScalar(), "max");
  TORCH_CHECK(bins >= 1, "[aten::histc] expected bins of 1 or more, got ", bins);
  TORCH_CHECK(low <= high, "[aten::histc] expected min <= max, got ", low, " and ", high);
  const at::Tensor counts = count(cpu_alias(self).to(at::kLong).contiguous(), bins, low, high);
  const std::int64_t most = counts.max().item<std::int64_t>();
  TORCH_CHECK(most <= most_of(self.scalar_type()), "[aten::histc] a bin holds ", most, " elements, more than ",
              self.scalar_type(), " counts; expected a wider dtype");
  at::Tensor out =
      arguments > 4 ? torch::jit::peek(*stack, 4, arguments).toTensor() : at::empty({bins}, self.options());
  if (arguments > 4) {
    TORCH_CHECK(out.scalar_type() == self.scalar_type(), "[aten::histc] expected out of ", self.scalar_type(), ", got ",
                out.scalar_type());
    out.resize_({bins});
  }
  out.copy_(counts);
  torch::jit::drop(*stack, arguments);
  stack->emplace_back(std::move(out));
  return true;
}

}  // namespace fp8::runtime
