// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/attention/rotary.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/attention/attention_rows.h"
#include "fp8/runtime/ops/common/arguments.h"

namespace fp8::runtime::ops {
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
  std::vector<std::int64_t> rows = {0}, stride(static_cast<std::size_t>(input.dim()), 0);
  const std::int64_t lead = input.dim() - sin.dim();
  std::int64_t step = 1;
  for (std::int64_t i = sin.dim() - 2; i >= 0; step *= sin.size(i--)) {
    stride[static_cast<std::size_t>(i + lead)] = sin.size(i) == 1 ? 0 : step;
  }
  for (std::int64_t i = 0; i + 1 < input.dim(); ++i) {
    std::vector<std::int64_t> next;
    next.reserve(rows.size() * static_cast<std::size_t>(input.size(i)));
    for (const std::int64_t base : rows) {
      for (std::int64_t j = 0; j < input.size(i); ++j) next.push_back(base + j * stride[static_cast<std::size_t>(i)]);
    }
    rows = std::move(next);
  }
  return rows;
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
    TORCH_CHECK(is_high_precision(t->scalar_type()), "[", kOp,
                "] expected input, sin and cos of dtype Float, BFloat16 or Half, got ", t->scalar_type());
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

}  // namespace fp8::runtime::ops
