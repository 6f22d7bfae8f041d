// SPDX-License-Identifier: Apache-2.0
// MultiplyArgs::group for levels that end groups outside of their registers: plain loops, included by each level's unit
// and compiled with its flags; in an anonymous namespace, so that no copy is shared.
#pragma once
#include "fp8/runtime/kernels/gemm/gemm_kernels.h"

namespace fp8::kernels {
namespace {

/// The end of group g.
void add_scaled(const MultiplyArgs& args, std::int64_t g, int acc_floats) {
  const GroupScales& group = *args.group;
  const std::int64_t width = std::int64_t{args.blocks} * acc_floats;
  for (std::int64_t r = 0; r < group.rows; ++r) {
    const float a = group.a_scale != nullptr ? group.a_scale[r * group.groups + g] : 1.0f;
    const float* __restrict acc = args.acc + r * width;
    const float* __restrict scale = group.lane_scale + g * width;
    float* __restrict total = group.total + r * width;
    if (g == 0) {
      for (std::int64_t i = 0; i < width; ++i) total[i] = acc[i] * (a * scale[i]);
    } else {
      for (std::int64_t i = 0; i < width; ++i) total[i] += acc[i] * (a * scale[i]);
    }
  }
}

/// `multiply` for the parts of the range that lie in one group each. Activations of 4 bytes.
template <class Multiply>
void multiply_groups(const MultiplyArgs& range, int acc_floats, const Multiply& multiply) {
  const GroupScales& group = *range.group;
  const std::int64_t end = range.begin_line + range.range_lines;
  MultiplyArgs part = range;
  for (std::int64_t line = range.begin_line; line < end;) {
    const std::int64_t g = line / group.lines, group_end = (g + 1) * group.lines,
                       next = end < group_end ? end : group_end;  // no std::min: another unit could end up calling it
    part.first = line == g * group.lines;
    part.range_lines = next - line;
    part.lines = range.lines + (line - range.begin_line) * kLineBytes;
    part.x = static_cast<const float*>(range.x) + (line - range.begin_line) * kLineK * range.plan.tile_rows;
    multiply(part);
    line = next;
    if (line == group_end || line == group.all_lines) add_scaled(range, g, acc_floats);
  }
}

}  // namespace
}  // namespace fp8::kernels
