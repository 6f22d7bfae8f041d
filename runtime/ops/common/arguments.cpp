// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/common/arguments.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/accumulate.h>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/device.h"

namespace fp8::runtime::ops {
namespace {

std::vector<std::int64_t> shape_or(at::OptionalIntArrayRef shape, std::vector<std::int64_t> own, std::size_t elements) {
  if (!shape.has_value()) return own;
  const auto wanted = static_cast<std::size_t>(c10::multiply_integers(*shape));
  TORCH_CHECK(elements == wanted, "Number of scale elements (", elements,
              ") is not equal to number of scale_shape elements (", wanted, ").");
  return shape->vec();
}

}  // namespace

kernels::Dialect reading() { return kernels::dialect_of(device_kind()); }

Scale scale_of(const std::optional<at::Tensor>& scale, at::OptionalIntArrayRef shape) {
  Scale s;
  if (!scale.has_value() || !scale->defined()) return s;
  TORCH_CHECK(is_high_precision(scale->scalar_type()), "[fp8] expected a scale of dtype Float, BFloat16 or Half, got ",
              scale->scalar_type());
  const at::Tensor host = cpu_alias(scale->detach()).contiguous();
  const auto n = static_cast<std::size_t>(host.numel());
  s.values.resize(n);
  const void* data = host.const_data_ptr();
  for (std::size_t i = 0; i < n; ++i) {
    if (host.scalar_type() == at::kFloat) s.values[i] = static_cast<const float*>(data)[i];
    if (host.scalar_type() == at::kBFloat16) s.values[i] = static_cast<const c10::BFloat16*>(data)[i];
    if (host.scalar_type() == at::kHalf) s.values[i] = static_cast<const c10::Half*>(data)[i];
  }
  s.shape = shape_or(shape, host.sizes().vec(), n);
  return s;
}

Scale scale_of(double scale, at::OptionalIntArrayRef) { return Scale{{static_cast<float>(scale)}, {}}; }

Scale scale_of(at::ArrayRef<double> scale, at::OptionalIntArrayRef shape) {
  Scale s;
  for (double v : scale) s.values.push_back(static_cast<float>(v));
  s.shape = shape_or(shape, {static_cast<std::int64_t>(scale.size())}, scale.size());
  return s;
}

void round_to(Scale& scale, at::ScalarType type) {
  for (float& v : scale.values) {
    if (type == at::kBFloat16) v = c10::BFloat16(v);
    if (type == at::kHalf) v = c10::Half(v);
  }
}

std::optional<Broadcast> broadcast_of(const Scale& scale, at::IntArrayRef sizes) {
  if (scale.none() || scale.per_tensor()) return Broadcast{};
  const std::size_t dims = sizes.size();
  if (scale.shape.size() > dims) return std::nullopt;
  const std::size_t lead = dims - scale.shape.size();
  bool rows = true, columns = true;  // every dimension but the last is the tensor's / every one but the last is 1
  for (std::size_t i = 0; i < dims; ++i) {
    const std::int64_t have = i < lead ? 1 : scale.shape[i - lead];
    if (have != 1 && have != sizes[i]) return std::nullopt;
    if (i + 1 < dims) {
      rows = rows && have == sizes[i];
      columns = columns && have == 1;
    } else {
      rows = rows && have == 1;
      columns = columns && have == sizes[i];
    }
  }
  if (columns) return Broadcast{0, 1};
  if (rows) return Broadcast{1, 0};
  return std::nullopt;
}

}  // namespace fp8::runtime::ops
