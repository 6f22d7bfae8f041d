// SPDX-License-Identifier: Apache-2.0
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>

#include <limits>

#include "fp8/runtime/kernels/attention.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/attention/attention.h"

namespace fp8::runtime::ops {
namespace {

constexpr std::int64_t kBlockRows = 64;  // rows whose part of dgamma is summed on its own

void check_norm(const at::Tensor& x, const at::Tensor& gamma) {
  for (const at::Tensor* t : {&x, &gamma}) {
    check_high_precision("rms_norm", "data_in and gamma of dtype", t->scalar_type());
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

namespace {

constexpr const char* kOp = "rotary_pos_embedding";

/// f32 rows [rows, width] of sin or cos, and which of them each row of the input uses.
struct Table {
  at::Tensor values;
  std::int64_t width = 0;
};

Table table_of(const at::Tensor& t) { return {cpu_alias(t.detach()).to(at::kFloat).contiguous(), t.size(-1)}; }

/// sin's row for every row of input, sin broadcasting to input's leading sizes.
std::vector<std::int64_t> rows_by_broadcast(const at::Tensor& input, const at::Tensor& sin) {
  std::vector<std::int64_t> stride(static_cast<std::size_t>(input.dim()) - 1, 0);
  const std::int64_t lead = input.dim() - sin.dim();
  std::int64_t step = 1;
  for (std::int64_t i = sin.dim() - 2; i >= 0; step *= sin.size(i--)) {
    stride[static_cast<std::size_t>(i + lead)] = sin.size(i) == 1 ? 0 : step;
  }
  return offsets_of(input.sizes().slice(0, stride.size()), stride);
}

/// sin's row for every row of input, by position.
std::vector<std::int64_t> rows_by_position(const at::Tensor& input, const at::Tensor& sin, const at::Tensor& ids) {
  const std::int64_t batch = input.size(0), length = input.size(-2), heads = input.dim() == 4 ? input.size(1) : 1;
  const at::Tensor host = cpu_alias(ids.detach()).to(at::kLong).expand({batch, length}).contiguous();
  const std::int64_t* id = host.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    TORCH_CHECK(id[i] >= 0 && id[i] < sin.size(-2), "[", kOp, "] expected position_ids from 0 to ", sin.size(-2) - 1,
                ", got ", id[i]);
  }
  std::vector<std::int64_t> rows;
  rows.reserve(static_cast<std::size_t>(batch * heads * length));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) rows.insert(rows.end(), id + b * length, id + (b + 1) * length);
  }
  return rows;
}

void check_positions(const at::Tensor& input, const at::Tensor& sin, const at::Tensor& ids) {
  TORCH_CHECK((input.dim() == 3 || input.dim() == 4) && sin.dim() >= 2, "[", kOp,
              "] expected input [B, H, T, D] or [B, T, D] and sin [..., positions, D] beside position_ids, got sizes ",
              input.sizes(), " and ", sin.sizes());
  TORCH_CHECK(ids.scalar_type() == at::kInt || ids.scalar_type() == at::kLong, "[", kOp,
              "] expected position_ids of dtype Int or Long, got ", ids.scalar_type());
  const std::int64_t expected[] = {input.size(0), input.size(-2)};
  TORCH_CHECK(at::is_expandable_to(ids.sizes(), expected), "[", kOp, "] expected position_ids of sizes ",
              at::IntArrayRef(expected), ", got ", ids.sizes());
  for (std::int64_t i = 0; i + 2 < sin.dim(); ++i) {
    TORCH_CHECK(sin.size(i) == 1, "[", kOp, "] expected leading sizes 1 of sin and cos beside position_ids, got ",
                sin.sizes());
  }
}

/// One row; `sign` is +1 forward and -1 backward, where the rotation is undone.
void rotate_row(const float* x, const float* sin, const float* cos, std::int64_t n, bool pairwise, bool backward,
                float* y) {
  const std::int64_t half = n / 2, next = pairwise ? 1 : half, step = pairwise ? 2 : 1;
  for (std::int64_t i = 0; i < half; ++i) {
    const std::int64_t a = i * step, b = a + next;
    if (backward) {
      y[a] = x[a] * cos[a] + x[b] * sin[b];
      y[b] = x[b] * cos[b] - x[a] * sin[a];
    } else {
      y[a] = x[a] * cos[a] - x[b] * sin[a];
      y[b] = x[b] * cos[b] + x[a] * sin[b];
    }
  }
}

}  // namespace

at::Tensor rotary_pos_embedding_meta(const at::Tensor& input, const at::Tensor& sin, const at::Tensor& cos,
                                     const std::optional<at::Tensor>& position_ids, int64_t offset, int64_t mode) {
  TORCH_CHECK(mode == 0 || mode == 1, "[", kOp, "] expected mode 0 (BLOCKWISE) or 1 (PAIRWISE), got ", mode);
  for (const at::Tensor* t : {&input, &sin, &cos}) {
    check_high_precision(kOp, "input, sin and cos of dtype", t->scalar_type());
  }
  TORCH_CHECK(input.dim() >= 1 && input.size(-1) % 2 == 0, "[", kOp, "] expected an even last size of input, got ",
              input.sizes());
  TORCH_CHECK(sin.sizes() == cos.sizes() && sin.dim() >= 1, "[", kOp, "] expected sin and cos of equal sizes, got ",
              sin.sizes(), " and ", cos.sizes());
  TORCH_CHECK(offset >= 0 && (mode == 0 || offset == 0), "[", kOp,
              "] expected offset >= 0, and 0 in mode PAIRWISE, got ", offset);
  TORCH_CHECK(sin.size(-1) - offset >= input.size(-1), "[", kOp, "] expected ", input.size(-1),
              " columns of sin and cos after offset ", offset, ", got ", sin.size(-1));
  if (position_ids.has_value() && position_ids->defined()) {
    check_positions(input, sin, *position_ids);
  } else {
    const auto lead = [](const at::Tensor& t) { return t.sizes().slice(0, static_cast<std::size_t>(t.dim()) - 1); };
    TORCH_CHECK(at::is_expandable_to(lead(sin), lead(input)), "[", kOp,
                "] expected sin and cos that broadcast to input of sizes ", input.sizes(), ", got ", sin.sizes());
  }
  return at::empty(input.sizes(), input.options());
}

at::Tensor rotary_pos_embedding(const at::Tensor& input, const at::Tensor& sin, const at::Tensor& cos,
                                const std::optional<at::Tensor>& position_ids, int64_t offset, int64_t mode,
                                bool backward) {
  LeafScope leaf(backward ? "hpu::rotary_pos_embedding_backward" : "hpu::rotary_pos_embedding", input, sin, cos);
  const at::Tensor out = rotary_pos_embedding_meta(input, sin, cos, position_ids, offset, mode);
  const at::Tensor x = cpu_alias(input.detach()).contiguous();
  const Table sines = table_of(sin), cosines = table_of(cos);
  const auto rows = position_ids.has_value() && position_ids->defined() ? rows_by_position(input, sin, *position_ids)
                                                                        : rows_by_broadcast(input, sin);
  const std::int64_t n = input.size(-1), count = n == 0 ? 0 : x.numel() / n;
  const float *s = sines.values.const_data_ptr<float>(), *c = cosines.values.const_data_ptr<float>();
  kernels::parallel_for(count, std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(n, 1)),
                        [&](std::int64_t begin, std::int64_t end) {
                          std::vector<float> scratch, y(static_cast<std::size_t>(n));
                          for (std::int64_t r = begin; r < end; ++r) {
                            const std::int64_t at = rows[static_cast<std::size_t>(r)] * sines.width + offset;
                            rotate_row(as_f32(x, r * n, n, scratch), s + at, c + at, n, mode == 1, backward, y.data());
                            store_f32(y.data(), n, out, r * n);
                          }
                        });
  leaf.gives(out);
  return out;
}

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

/// The beginning of row `row` of `t`, expanded to `sizes`.
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
