// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/attention/norm.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/attention/attention_rows.h"
#include "fp8/runtime/ops/common/arguments.h"

namespace fp8::runtime::ops {
namespace {

constexpr std::int64_t kBlockRows = 64;  // rows whose part of dgamma is summed on its own

void check_norm(const at::Tensor& x, const at::Tensor& gamma) {
  for (const at::Tensor* t : {&x, &gamma}) {
    TORCH_CHECK(is_high_precision(t->scalar_type()),
                "[rms_norm] expected data_in and gamma of dtype Float, BFloat16 or Half, got ", t->scalar_type());
  }
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) > 0 && gamma.numel() == x.size(-1),
              "[rms_norm] expected data_in [..., N] and gamma [N], got sizes ", x.sizes(), " and ", gamma.sizes());
}

std::vector<std::int64_t> row_sizes(const at::Tensor& x) {
  auto sizes = x.sizes().vec();
  sizes.back() = 1;
  return sizes;
}

at::Tensor host_of(const at::Tensor& t) { return cpu_alias(t.detach()).contiguous(); }

std::int64_t grain_of(std::int64_t n) { return std::max<std::int64_t>(1, 32768 / n); }

}  // namespace

std::tuple<at::Tensor, at::Tensor> rms_norm_meta(const at::Tensor& data_in, const at::Tensor& gamma, double) {
  check_norm(data_in, gamma);
  const auto type = data_in.scalar_type() == gamma.scalar_type() ? data_in.scalar_type() : at::kFloat;
  const auto options = data_in.options().dtype(type);
  return {at::empty(data_in.sizes(), options), at::empty(row_sizes(data_in), options)};
}

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& data_in, const at::Tensor& gamma, double epsilon) {
  LeafScope leaf("hpu::rms_norm", data_in, gamma);
  const auto [y, inverse] = rms_norm_meta(data_in, gamma, epsilon);
  const at::Tensor x = host_of(data_in), g = host_of(gamma);
  const std::int64_t n = x.size(-1), rows = x.numel() / n;
  std::vector<float> gammas;
  const float* weight = as_f32(g, 0, n, gammas);
  const at::Tensor out = y, inverse_out = inverse;
  kernels::parallel_for(rows, grain_of(n), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> scratch, result(static_cast<std::size_t>(n));
    for (std::int64_t r = begin; r < end; ++r) {
      const float* row = as_f32(x, r * n, n, scratch);
      double squares = 0;
      for (std::int64_t i = 0; i < n; ++i) squares += static_cast<double>(row[i]) * row[i];
      const auto factor = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(n) + epsilon));
      for (std::int64_t i = 0; i < n; ++i) result[static_cast<std::size_t>(i)] = row[i] * factor * weight[i];
      store_f32(result.data(), n, out, r * n);
      store_f32(&factor, 1, inverse_out, r);
    }
  });
  leaf.gives(y, inverse);
  return {y, inverse};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor& grad_in, const at::Tensor& data_in,
                                                          const at::Tensor& gamma, const at::Tensor& inverse_rms, bool,
                                                          int64_t bwd_mode) {
  check_norm(data_in, gamma);
  TORCH_CHECK(is_high_precision(grad_in.scalar_type()) && is_high_precision(inverse_rms.scalar_type()),
              "[rms_norm_backward] expected grad_in and inverse_rms of dtype Float, BFloat16 or Half, got ",
              grad_in.scalar_type(), " and ", inverse_rms.scalar_type());
  TORCH_CHECK(grad_in.sizes() == data_in.sizes() && inverse_rms.numel() == data_in.numel() / data_in.size(-1),
              "[rms_norm_backward] expected grad_in of sizes ", data_in.sizes(), " and inverse_rms of ",
              at::IntArrayRef(row_sizes(data_in)), ", got ", grad_in.sizes(), " and ", inverse_rms.sizes());
  TORCH_CHECK(bwd_mode == 0 || bwd_mode == 1, "[rms_norm_backward] expected bwd_mode 0 or 1, got ", bwd_mode);
  const auto type = data_in.scalar_type();
  const bool same = type == grad_in.scalar_type() && type == gamma.scalar_type() && type == inverse_rms.scalar_type();
  const auto options = data_in.options().dtype(same ? type : at::kFloat);
  return {at::empty(data_in.sizes(), options), at::empty(gamma.sizes(), options)};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_in, const at::Tensor& data_in,
                                                     const at::Tensor& gamma, const at::Tensor& inverse_rms,
                                                     bool use_stages, int64_t bwd_mode) {
  LeafScope leaf("hpu::rms_norm_backward", grad_in, data_in, gamma, inverse_rms);
  const auto results = rms_norm_backward_meta(grad_in, data_in, gamma, inverse_rms, use_stages, bwd_mode);
  const at::Tensor &dx = std::get<0>(results), &dgamma = std::get<1>(results);
  const at::Tensor x = host_of(data_in), dy = host_of(grad_in), g = host_of(gamma), inverse = host_of(inverse_rms);
  const std::int64_t n = x.size(-1), rows = x.numel() / n, blocks = (rows + kBlockRows - 1) / kBlockRows;
  std::vector<float> gammas;
  const float* weight = as_f32(g, 0, n, gammas);
  std::vector<double> parts(static_cast<std::size_t>(blocks * n), 0.0);  // dgamma of each block
  kernels::parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> xs, ys, rs, result(static_cast<std::size_t>(n));
    for (std::int64_t r = begin * kBlockRows; r < std::min(rows, end * kBlockRows); ++r) {
      const float *row = as_f32(x, r * n, n, xs), *grad = as_f32(dy, r * n, n, ys), factor = *as_f32(inverse, r, 1, rs);
      double* part = parts.data() + r / kBlockRows * n;
      double dot = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const float normal = row[i] * factor;
        dot += static_cast<double>(grad[i] * weight[i]) * normal;
        part[i] += static_cast<double>(grad[i]) * normal;
      }
      const auto mean = static_cast<float>(dot / static_cast<double>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        result[static_cast<std::size_t>(i)] = factor * (grad[i] * weight[i] - row[i] * factor * mean);
      }
      store_f32(result.data(), n, dx, r * n);
    }
  });
  std::vector<float> total(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (std::int64_t b = 0; b < blocks; ++b) sum += parts[static_cast<std::size_t>(b * n + i)];
    total[static_cast<std::size_t>(i)] = static_cast<float>(sum);
  }
  store_f32(total.data(), n, dgamma, 0);
  leaf.gives(dx, dgamma);
  return results;
}

}  // namespace fp8::runtime::ops
