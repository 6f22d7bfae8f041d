// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/attention/softmax.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/f32_math.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/attention/attention_rows.h"

namespace fp8::runtime::ops {
namespace {

void check_fused_add(const at::Tensor& input, const at::Tensor& add, bool scaled) {
  TORCH_CHECK(add.scalar_type() == at::kBFloat16, "Input fused_add must be of dtype: ", at::kBFloat16);
  TORCH_CHECK(scaled, "FusedAdd available only for Float8 output, but input scale is not given.");
  const std::int64_t rank = input.dim();
  TORCH_CHECK(rank == add.dim(), "FusedAdd tensor must have the same rank as the input tensor");
  TORCH_CHECK(rank == 0 || (input.size(0) == add.size(0) && input.size(rank - 1) == add.size(rank - 1)),
              "FusedAdd tensor must have the same first and last dim as the input tensor");
  for (std::int64_t i = 1; i < rank - 1; ++i) {
    TORCH_CHECK(add.size(i) == 1 || add.size(i) == input.size(i),
                "FusedAdd tensor's dim other than first and last should be equal to 1 or the same as the input tensor");
  }
}

void check(const at::Tensor& input, int64_t dim, const SoftmaxScales& s, const std::optional<at::Tensor>& add) {
  const auto type = input.scalar_type();
  TORCH_CHECK(type == at::kBFloat16 || type == at::kFloat8_e4m3fn,
              "Input tensor must be of torch.bfloat16 or torch.float8_e4m3fn dtype.");
  TORCH_CHECK(s.input.none() == s.output.none(), "Output and input scales must be both given or None");
  TORCH_CHECK(type != at::kFloat8_e4m3fn || !s.input.none(),
              "If Input is of torch.float8_e4m3fn dtype then input scale must be given.");
  for (const Scale* scale : {&s.input, &s.output, &s.inv_attn_heads}) {
    TORCH_CHECK(scale->values.size() <= 1, "[softmax_fp8] expected scales of one element, got ", scale->values.size());
  }
  const std::int64_t rank = std::max<std::int64_t>(input.dim(), 1);
  TORCH_CHECK(at::maybe_wrap_dim(dim, input.dim()) == rank - 1, "[softmax_fp8] expected the last dimension, -1 or ",
              rank - 1, ", got dim ", dim);
  if (add.has_value() && add->defined()) check_fused_add(input, *add, !s.input.none());
}

/// One row: scores in, probabilities out.
void softmax_row(float* x, std::int64_t n) {
  const float max = kernels::max_of(x, n);
  if (max == -std::numeric_limits<float>::infinity() && std::none_of(x, x + n, [](float v) { return std::isnan(v); })) {
    std::fill(x, x + n, 0.0f);
    return;
  }
  kernels::exp_shifted(x, n, std::clamp(max, -std::numeric_limits<float>::max(), std::numeric_limits<float>::max()));
  const float inverse = 1.0f / kernels::sum_of(x, n);
  for (std::int64_t i = 0; i < n; ++i) x[i] *= inverse;
}

/// Where row `row` of `t`, expanded to `sizes`, begins.
std::int64_t row_offset(const at::Tensor& t, at::IntArrayRef sizes, std::int64_t row) {
  std::int64_t offset = 0;
  for (std::int64_t i = static_cast<std::int64_t>(sizes.size()) - 2; i >= 0; --i) {
    offset += row % sizes[static_cast<std::size_t>(i)] * t.stride(i);
    row /= sizes[static_cast<std::size_t>(i)];
  }
  return offset;
}

}  // namespace

at::Tensor softmax_fp8_meta(const at::Tensor& input, int64_t dim, const SoftmaxScales& scales,
                            const std::optional<at::Tensor>& fused_add) {
  check(input, dim, scales, fused_add);
  return at::empty(input.sizes(), input.options().dtype(scales.input.none() ? at::kBFloat16 : at::kFloat8_e4m3fn));
}

at::Tensor softmax_fp8(const at::Tensor& input, int64_t dim, const SoftmaxScales& scales,
                       const std::optional<at::Tensor>& fused_add) {
  LeafScope leaf("hpu::softmax_fp8", input);
  const at::Tensor out = softmax_fp8_meta(input, dim, scales, fused_add);
  const auto dialect = device_dialect("softmax_fp8");
  const at::Tensor host = cpu_alias(input.detach());
  const at::Tensor x =
      is_fp8(host.scalar_type()) ? host.view(at::kByte).contiguous().view(host.scalar_type()) : host.contiguous();
  const bool adds = fused_add.has_value() && fused_add->defined();
  const at::Tensor add = adds ? cpu_alias(fused_add->detach()).expand(input.sizes()) : at::Tensor();
  const std::int64_t cols = input.dim() == 0 ? 1 : input.size(-1), rows = cols == 0 ? 0 : input.numel() / cols;
  const float heads = scales.inv_attn_heads.none() ? 1.0f : scales.inv_attn_heads.values[0];
  const float factor = heads * (scales.input.none() ? 1.0f : scales.input.values[0]);

  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(cols, 1));
  kernels::parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(cols)), scratch;
    for (std::int64_t r = begin; r < end; ++r) {
      const float* from = as_f32(x, r * cols, cols, scratch, dialect);
      for (std::int64_t i = 0; i < cols; ++i) row[static_cast<std::size_t>(i)] = from[i] * factor;
      if (adds) {
        const auto* more = static_cast<const std::uint16_t*>(add.const_data_ptr()) + row_offset(add, input.sizes(), r);
        for (std::int64_t i = 0; i < cols; ++i) {
          row[static_cast<std::size_t>(i)] += kernels::bf16_to_f32(more[i * add.stride(-1)]);
        }
      }
      softmax_row(row.data(), cols);
      if (out.scalar_type() == at::kBFloat16) {
        store_f32(row.data(), cols, out, r * cols);
        continue;
      }
      const float max = kernels::fp8_max(kernels::Format::E4M3, dialect);
      kernels::cast_to_fp8(kernels::dense_cast(row.data(), 1, cols, bytes_at(out, r * cols), kernels::Format::E4M3, max,
                                               scales.output.values.data()));
    }
  });
  leaf.gives(out);
  return out;
}

}  // namespace fp8::runtime::ops
