// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/sight.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/le.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace fp8::models {
namespace {

at::Tensor starts_of(const Rows& rows) { return at::tensor(rows.starts, at::kLong); }

}  // namespace

at::Tensor Rows::positions() const {
  const auto columns = at::arange(first, first + count, at::kLong).unsqueeze(0);
  return (starts.empty() ? columns : columns - starts_of(*this).unsqueeze(1)).to(at::kFloat);
}

std::int64_t Rows::in_use() const {
  return first + count - (starts.empty() ? 0 : *std::min_element(starts.begin(), starts.end()));
}

at::Tensor Sight::seen(std::int64_t rows) const {
  return band.defined() ? band.as_strided({rows, band.numel() - rows + 1}, {1, 1}).flip(0) : mask;
}

Sight sight_of(const Rows& rows, const LayerKind& kind, at::Device device) {
  const std::int64_t end = rows.first + rows.count;
  const bool window = kind.window > 0 && kind.window < end;
  const bool chunk = kind.chunk > 0 && kind.chunk < end;
  Sight sight;
  if (!rows.causal) {
    if (!window) return sight;
    const auto at = at::arange(end, at::kLong);
    sight.mask = at::lt((at.unsqueeze(1) - at).abs(), kind.window).to(device);
    return sight;
  }
  if (rows.starts.empty() && rows.count == 1) {
    const std::int64_t last = end - 1;
    if (window) sight.first = end - kind.window;
    if (chunk) sight.first = std::max(sight.first, last / kind.chunk * kind.chunk);
    return sight;
  }
  if (rows.starts.empty() && rows.first == 0 && !window && !chunk) {
    sight.causal = true;
    return sight;
  }
  if (rows.starts.empty() && !chunk) {  // column - row, from that of the last row and column 0
    const auto ahead = at::arange(1 - end, rows.count, at::kLong);
    auto band = at::le(ahead, 0);
    if (window) band = band.logical_and(at::gt(ahead, -kind.window));
    sight.band = band.to(device);
    return sight;
  }
  const auto row = at::arange(rows.first, end, at::kLong).unsqueeze(1), column = at::arange(0, end, at::kLong);
  auto mask = at::le(column, row);
  if (window) mask = mask.logical_and(at::lt(row - column, kind.window));
  if (!rows.starts.empty()) {
    const auto start = starts_of(rows).view({-1, 1, 1, 1});
    mask = mask.logical_and(at::ge(column, start));
    if (chunk)
      mask = mask.logical_and((row - start).div(kind.chunk, "floor").eq((column - start).div(kind.chunk, "floor")));
  } else if (chunk) {
    mask = mask.logical_and(row.div(kind.chunk, "floor").eq(column.div(kind.chunk, "floor")));
  }
  sight.mask = mask.to(device);
  return sight;
}

}  // namespace fp8::models
