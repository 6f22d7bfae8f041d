// SPDX-License-Identifier: Apache-2.0
// mixture_of_experts on fp8 weights, expert by expert with the kernels' product:
//
//   rows of hidden [n, H] --gemm w1 | w2--> f32 [n, 2F] --act, mul--> f32 [n, F] --cast--> codes
//   --gemm w3--> f32 [n, H] --rw--> sum f32 [T, H]
//
// Scratch: one expert's rows. The sum adds experts in ascending order, so it depends on no thread count.
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstring>

#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/moe/moe.h"

namespace fp8::runtime::ops {
namespace {

/// Activations of a product: rows of codes or of high precision values, with one multiplier for all or per row.
struct Rows {
  at::Tensor data;  // [n, k] contiguous
  std::vector<float> scale;
};

/// The weight as [N, K] bytes.
at::Tensor upright(const at::Tensor& w, bool permuted) {
  const at::Tensor codes = w.view(at::kByte), transposed = permuted ? codes : codes.t();
  if (transposed.is_contiguous()) return transposed;
  const at::Tensor dense = codes.contiguous();
  if (permuted) return dense;
  at::Tensor out = at::empty({w.size(1), w.size(0)}, codes.options());
  kernels::transpose_bytes(static_cast<const std::uint8_t*>(dense.const_data_ptr()), w.size(0), w.size(1),
                           static_cast<std::uint8_t*>(out.mutable_data_ptr()));
  return out;
}

at::Tensor gathered(const at::Tensor& t, const std::vector<std::int64_t>& rows) {
  const at::Tensor from = t.is_contiguous() ? t : t.contiguous();
  at::Tensor out = at::empty({static_cast<std::int64_t>(rows.size()), t.size(1)}, t.options());
  const auto bytes = static_cast<std::size_t>(t.size(1)) * t.element_size();
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  for (std::size_t i = 0; bytes > 0 && i < rows.size(); ++i) {
    std::memcpy(to + i * bytes, source + static_cast<std::size_t>(rows[i]) * bytes, bytes);
  }
  return out;
}

kernels::GemmArgs product_of(const Rows& a, const at::Tensor& w, kernels::Format format, float* y,
                             std::int64_t y_stride) {
  kernels::GemmArgs g;
  g.m = a.data.size(0);
  g.n = w.size(0);
  g.k = w.size(1);
  g.a = a.data.const_data_ptr();
  g.a_type = storage_of(a.data.scalar_type());
  g.a_stride = g.k;
  g.w = static_cast<const std::uint8_t*>(w.const_data_ptr());
  g.w_format = format;
  g.a_scale_inv = a.scale.empty() ? nullptr : a.scale.data();
  g.a_scale_stride = a.scale.size() > 1 ? 1 : 0;
  g.y = y;
  g.y_stride = y_stride;
  g.dialect = reading();
  return g;
}

void check_scale(const char* name, std::size_t e, const Scale& s, std::int64_t many) {
  const auto count = static_cast<std::int64_t>(s.values.size());
  TORCH_CHECK(count == 1 || count == many, "[mixture_of_experts] expected d_scale_", name, "[", e, "] of 1 or ", many,
              " elements, got ", count);
}

/// y = a . w^T * scales: one multiplier or one per output.
void multiply(const Rows& a, const at::Tensor& w, kernels::Format format, const Scale& scale, float* y,
              std::int64_t y_stride) {
  const CodesReader by_rows(w);
  kernels::GemmArgs g = product_of(a, w, format, y, y_stride);
  g.w_scale_inv = scale.values.data();
  g.w_scale_stride = scale.values.size() > 1 ? 1 : 0;
  kernels::gemm(g);
}

/// The multiplier of each output in one column of blocks. The scale has the weight's orientation.
std::vector<float> block_column(const Scale& scale, std::int64_t block, std::int64_t outputs, std::int64_t column,
                                bool permuted) {
  std::vector<float> factors(static_cast<std::size_t>(outputs));
  for (std::int64_t n = 0; n < outputs; ++n) {
    const std::int64_t row = n / block, at = permuted ? row * scale.shape[1] + column : column * scale.shape[1] + row;
    factors[static_cast<std::size_t>(n)] = scale.values[static_cast<std::size_t>(at)];
  }
  return factors;
}

/// y = sum over blocks of K: a[:, block] . w[:, block]^T * scale[:, block], sums in f32.
void multiply_blocks(const Rows& a, const at::Tensor& w, kernels::Format format, const Scale& scale, std::int64_t block,
                     bool permuted, float* y, std::int64_t y_stride) {
  const std::int64_t outputs = w.size(0), k = w.size(1);
  if (k == 0) return multiply(a, w, format, Scale{{1.0f}, {}}, y, y_stride);
  const CodesReader by_rows(w);
  const auto* codes = static_cast<const std::uint8_t*>(w.const_data_ptr());
  std::vector<std::uint8_t> part(static_cast<std::size_t>(outputs * std::min(block, k)));
  for (std::int64_t begin = 0; begin < k; begin += block) {
    const std::int64_t width = std::min(block, k - begin);
    kernels::parallel_each(outputs, 512, [&](std::int64_t n) {
      std::memcpy(part.data() + n * width, codes + n * k + begin, static_cast<std::size_t>(width));
    });
    const std::vector<float> factors = block_column(scale, block, outputs, begin / block, permuted);
    kernels::GemmArgs g = product_of(a, w, format, y, y_stride);
    g.k = width;
    g.a = static_cast<const char*>(a.data.const_data_ptr()) + begin * a.data.element_size();
    g.a_stride = k;
    g.w = part.data();
    g.w_scale_inv = factors.data();
    g.w_scale_stride = 1;
    g.accumulate = begin > 0;
    kernels::gemm(g);
  }
}

class Experts {
 public:
  Experts(const MoeCall& call, const MoeScales& scales) : c_(call), s_(scales) { check(); }

  at::Tensor run(const std::vector<ExpertRows>& rows) const {
    check_scales();
    const auto options = c_.hidden.options().dtype(at::kFloat);
    const at::Tensor sum = at::zeros(c_.hidden.sizes(), options);
    const at::Tensor router = cpu_alias(c_.router_weights.detach()).to(at::kFloat).contiguous();
    for (std::size_t e = 0; e < rows.size(); ++e) {
      if (!rows[e].token.empty()) add(sum, rows[e], expert(e, rows[e]), router.const_data_ptr<float>());
    }
    return sum.to(at::kBFloat16);
  }

 private:
  bool blockwise() const { return s_.block_size > 0; }

  void check() const {
    if (blockwise()) {
      TORCH_CHECK(is_high_precision(c_.hidden.scalar_type()),
                  "[mixture_of_experts] expected hidden_states of dtype Float, BFloat16 or Half with blockwise scales, "
                  "got ",
                  c_.hidden.scalar_type());
    } else {
      check_fp8("mixture_of_experts", "hidden_states", c_.hidden.scalar_type());
    }
    for (const auto* list : {&c_.w1, &c_.w2, &c_.w3}) {
      for (const auto& w : *list) {
        check_fp8("mixture_of_experts", "weights", w.scalar_type());
        TORCH_CHECK(w.scalar_type() == list->front().scalar_type(),
                    "[mixture_of_experts] expected weights of one dtype, got ", list->front().scalar_type(), " and ",
                    w.scalar_type());
      }
    }
  }

  void check_scales() const {
    const auto check_list = [&](const char* name, const std::vector<Scale>& scales, const std::vector<at::Tensor>& w) {
      TORCH_CHECK(scales.size() == w.size(), "[mixture_of_experts] expected d_scale_", name, " of ", w.size(),
                  " elements, one per expert, got ", scales.size());
      for (std::size_t e = 0; e < w.size(); ++e) {
        if (!blockwise()) {
          check_scale(name, e, scales[e], w[e].size(c_.permuted ? 0 : 1));
          continue;
        }
        const std::int64_t rows = (w[e].size(0) + s_.block_size - 1) / s_.block_size,
                           cols = (w[e].size(1) + s_.block_size - 1) / s_.block_size;
        TORCH_CHECK(scales[e].shape == (std::vector<std::int64_t>{rows, cols}),
                    "[mixture_of_experts] expected d_scale_", name, "[", e, "] of sizes [", rows, ", ", cols, "], got ",
                    at::IntArrayRef(scales[e].shape));
      }
    };
    check_list(c_.fused() ? "w12" : "w1", s_.w1, c_.w1);
    check_list("w2", s_.w2, c_.w2);
    check_list("w3", s_.w3, c_.w3);
    const auto count = static_cast<std::int64_t>(s_.hidden.values.size());
    TORCH_CHECK(blockwise() || count == 1 || count == c_.hidden.size(0),
                "[mixture_of_experts] expected d_scale_hidden_states of 1 or ", c_.hidden.size(0), " elements, got ",
                count);
    TORCH_CHECK(s_.intermediate.empty() || s_.intermediate.size() == c_.experts(),
                "[mixture_of_experts] expected d_scale_intermediate_hidden_states of ", c_.experts(),
                " elements, one per expert, got ", s_.intermediate.size());
  }

  void times(const Rows& a, const at::Tensor& weight, const Scale& scale, float* y, std::int64_t y_stride) const {
    const at::Tensor w = upright(weight, c_.permuted);
    const kernels::Format format = format_of(weight.scalar_type());
    if (blockwise()) return multiply_blocks(a, w, format, scale, s_.block_size, c_.permuted, y, y_stride);
    multiply(a, w, format, scale, y, y_stride);
  }

  /// h = act(x . w1) * (x . w2), f32 [n, F].
  at::Tensor intermediate(std::size_t e, const Rows& x) const {
    const std::int64_t inner = c_.w3[e].size(c_.permuted ? 1 : 0);
    at::Tensor both = at::empty({x.data.size(0), 2 * inner}, c_.hidden.options().dtype(at::kFloat));
    auto* y = static_cast<float*>(both.mutable_data_ptr());
    times(x, c_.w1[e], s_.w1[e], y, 2 * inner);
    if (!c_.fused()) times(x, c_.w2[e], s_.w2[e], y + inner, 2 * inner);
    const at::Tensor gate = both.narrow(1, 0, inner), up = both.narrow(1, inner, inner);
    return at::mul(c_.activated(gate), up).contiguous();
  }

  /// h as the second product takes it.
  Rows quantized(std::size_t e, const at::Tensor& h) const {
    if (blockwise()) return {h.to(c_.hidden.scalar_type()), {}};
    const std::int64_t n = h.size(0), inner = h.size(1);
    Rows out{at::empty(h.sizes(), c_.hidden.options()), {}};
    const kernels::Format format = format_of(c_.hidden.scalar_type());
    kernels::CastArgs args = kernels::dense_cast(h.const_data_ptr<float>(), n, inner,
                                                 static_cast<std::uint8_t*>(out.data.mutable_data_ptr()), format,
                                                 kernels::fp8_max(format, device_dialect("mixture_of_experts")));
    if (s_.intermediate.empty()) {
      out.scale.resize(static_cast<std::size_t>(n));
      kernels::cast_rows_dynamic(args, out.scale.data());
      return out;
    }
    const Scale& d = s_.intermediate[e];
    TORCH_CHECK(d.per_tensor() && d.values[0] > 0 && std::isfinite(d.values[0]) && std::isfinite(1.0f / d.values[0]),
                "[mixture_of_experts] expected d_scale_intermediate_hidden_states[", e,
                "] of 1 element, positive and finite, got ", (d.per_tensor() ? d.values[0] : NAN), " (",
                d.values.size(), " elements); tokens were routed to this expert: did calibration meet it?");
    args.scale = 1.0f / d.values[0];
    kernels::cast_to_fp8(args);
    out.scale = d.values;
    return out;
  }

  at::Tensor expert(std::size_t e, const ExpertRows& rows) const {
    Rows x{gathered(c_.hidden, rows.token), {}};
    if (!blockwise()) {
      x.scale = s_.hidden.values;
      if (x.scale.size() > 1) {
        x.scale.clear();
        for (const std::int64_t token : rows.token)
          x.scale.push_back(s_.hidden.values[static_cast<std::size_t>(token)]);
      }
    }
    const Rows h = quantized(e, intermediate(e, x));
    const std::int64_t hidden = c_.hidden.size(1);
    at::Tensor y = at::empty({h.data.size(0), hidden}, c_.hidden.options().dtype(at::kFloat));
    times(h, c_.w3[e], s_.w3[e], static_cast<float*>(y.mutable_data_ptr()), hidden);
    return y;
  }

  /// sum[token] += rw * y, columns in parallel: a token may be routed to one expert twice.
  void add(const at::Tensor& sum, const ExpertRows& rows, const at::Tensor& y, const float* router) const {
    const std::int64_t hidden = sum.size(1), slots = c_.table.size(1);
    auto* to = static_cast<float*>(sum.mutable_data_ptr());
    const auto* from = static_cast<const float*>(y.const_data_ptr());
    kernels::parallel_for(hidden, 512, [&](std::int64_t begin, std::int64_t end) {
      for (std::size_t i = 0; i < rows.token.size(); ++i) {
        const float weight = router[rows.token[i] * slots + rows.slot[i]];
        float* out = to + rows.token[i] * hidden;
        const float* in = from + static_cast<std::int64_t>(i) * hidden;
        for (std::int64_t h = begin; h < end; ++h) out[h] += weight * in[h];
      }
    });
  }

  const MoeCall& c_;
  const MoeScales& s_;
};

}  // namespace

at::Tensor mixture_of_experts_fp8(const MoeCall& call, const MoeScales& scales) {
  LeafScope leaf("hpu::mixture_of_experts.fp8", call.hidden, call.table, call.router_weights, call.w1, call.w2,
                 call.w3);
  (void)device_dialect("mixture_of_experts");  // refuses the first generation
  Experts experts(call, scales);
  const std::vector<ExpertRows> rows = group_tokens(call);
  at::Tensor y = experts.run(rows);
  leaf.gives(y);
  leaf.flops(flops_of(call, rows));
  return y;
}

}  // namespace fp8::runtime::ops
