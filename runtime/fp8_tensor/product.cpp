// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/product.h"

#include <ATen/DimVector.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <limits>

#include "fp8/runtime/dispatch/own_ops.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/gemm.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

kernels::Dialect reading(const Fp8Tensor& a, const Fp8Tensor& b) {
  return a.dialect == kernels::Dialect::gaudi2 ? a.dialect : b.dialect;
}

/// The scales of an operand as factors of the result's rows or columns; `grid` holds them. Throws unless they lie so:
/// `along_rows` of the codes as they are stored.
std::span<const float> factors(const Fp8Tensor& x, bool along_rows, std::int64_t count, at::Tensor& grid) {
  if (x.layout.one()) return {&x.scale_inv, 1};
  const ScaleLayout wanted = along_rows ? ScaleLayout::per_row() : ScaleLayout::per_column();
  TORCH_CHECK(x.layout == wanted && x.grid.numel() == count, "[matmul] expected one scale, or ", count, " along the ",
              along_rows ? "rows" : "columns", " of an operand, got a grid of sizes ", x.grid.sizes(), " over ",
              x.layout.rows, " x ", x.layout.cols);
  grid = x.grid.to(at::kFloat).contiguous();
  return {grid.const_data_ptr<float>(), static_cast<std::size_t>(count)};
}

at::Tensor product_of_codes(const Fp8Tensor& a, bool transpose_a, const Fp8Tensor& b, bool transpose_b,
                            at::ScalarType out, const at::Tensor& bias) {
  OpScope leaf("hpu::fp8_gemm_v2", a.codes, b.codes);
  const GemmShape shape("matmul", a.codes, transpose_a, b.codes, transpose_b);
  at::Tensor a_grid, b_grid;
  GemmTerms terms;
  terms.a_scale_inv = factors(a, !transpose_a, shape.all_rows(), a_grid);
  terms.w_scale_inv = factors(b, transpose_b, shape.n, b_grid);
  terms.bias = bias;
  terms.dialect = reading(a, b);
  terms.reused = b.reused;
  at::Tensor y = gemm(shape, out, terms);
  leaf.gives(y);
  leaf.flops(2 * y.numel() * shape.k);
  return y;
}

/// One scale per row and group of `cols` columns, f32: what the kernel takes; undefined where the scales don't lie so.
at::Tensor scales_of_groups(const Fp8Tensor& x, std::int64_t rows, std::int64_t cols) {
  const std::int64_t k = x.codes.size(-1), groups = kernels::blocks_of(k, cols);
  if (x.layout.one()) return at::full({rows, groups}, x.scale_inv, x.codes.options().dtype(at::kFloat));
  const at::Tensor grid = x.grid.to(x.codes.device()).to(at::kFloat);
  if (x.layout.cols == 0) return grid.reshape({rows, 1}).expand({rows, groups}).contiguous();
  if (x.layout.cols != cols) return {};
  if (x.layout.rows == 1) return grid.reshape({rows, groups}).contiguous();
  return grid.repeat_interleave(x.layout.rows, 0).narrow(0, x.layout.first_row, rows).contiguous();
}

/// The transpose, as a view.
Fp8Tensor transposed(const Fp8Tensor& x) {
  Fp8Tensor result = x;
  result.codes = x.codes.transpose(-2, -1);
  if (x.grid.defined() && x.grid.dim() > 1) result.grid = x.grid.transpose(-2, -1);
  std::swap(result.layout.rows, result.layout.cols);
  return result;
}

/// The product of the values.
at::Tensor product_of_values(const Fp8Tensor& a, bool transpose_a, const Fp8Tensor& b, bool transpose_b,
                             at::ScalarType out, const at::Tensor& bias) {
  const bool exact = a.power_of_two && b.power_of_two && out == at::kBFloat16 && !bias.defined();
  const at::ScalarType type = exact ? at::kBFloat16 : at::kFloat;
  const at::Tensor x = dequantize(a, type), w = dequantize(b, type);
  const at::Tensor y = at::matmul(transpose_a ? x.t() : x, transpose_b ? w.t() : w);
  return (bias.defined() ? y.add_(bias) : y).to(out);
}

Fp8Tensor in_f32(const Fp8Tensor& w) {
  Fp8Tensor result = w;
  result.grid = w.grid.to(at::kFloat);
  return result;
}

}  // namespace

at::Tensor matmul(const Fp8Tensor& a, bool transpose_a, const Fp8Tensor& b, bool transpose_b, at::ScalarType out,
                  const std::optional<at::Tensor>& any_bias) {
  const at::Tensor bias = any_bias.value_or(at::Tensor());
  if (!a.layout.has_blocks() && !b.layout.has_blocks())
    return product_of_codes(a, transpose_a, b, transpose_b, out, bias);
  // A part of a weight that begins within a block can't be transposed: its first column would be that.
  const bool transposes =
      (!transpose_a || (a.codes.dim() == 2 && a.layout.first_row == 0)) && (transpose_b || b.layout.first_row == 0);
  if (transposes && b.layout.has_blocks() && b.codes.dim() == 2) {
    const Fp8Tensor x = transpose_a ? transposed(a) : a, w = transpose_b ? b : transposed(b);
    const std::int64_t k = x.codes.size(-1);
    TORCH_CHECK(w.codes.size(1) == k, "[matmul] expected the inner dimensions to be equal, got A ", a.codes.sizes(),
                transpose_a ? " (transposed)" : "", " and B ", b.codes.sizes(), transpose_b ? " (transposed)" : "");
    const at::Tensor scales = k == 0 ? at::Tensor() : scales_of_groups(x, x.codes.numel() / k, w.layout.cols);
    if (scales.defined()) {
      OpScope leaf("fp8::block_linear", a.codes, b.codes);
      Fp8Tensor factor = in_f32(w);
      factor.power_of_two = x.power_of_two && w.power_of_two;
      at::Tensor y = block_product(x.codes, scales, factor, out, bias);
      leaf.gives(y);
      leaf.flops(2 * y.numel() * k);
      return y;
    }
  }
  return product_of_values(a, transpose_a, b, transpose_b, out, bias);
}

at::Tensor linear(const at::Tensor& x, const Fp8Tensor& w, at::ScalarType out, const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(x.dim() >= 1 && w.codes.dim() == 2 && x.size(-1) == w.codes.size(1),
              "[linear] expected x [..., K] and a weight [N, K], got ", x.sizes(), " and ", w.codes.sizes());
  if (w.layout.has_blocks()) {
    OpScope leaf("fp8::block_linear", x, w.codes);
    at::Tensor y = block_product(x, at::Tensor(), in_f32(w), out, bias.value_or(at::Tensor()));
    leaf.gives(y);
    return y;
  }
  OpScope leaf("fp8::weight_only_linear", x, w.codes);
  TORCH_CHECK(w.layout.one() || (w.layout == ScaleLayout::per_row() && w.grid.numel() == w.codes.size(0)),
              "[linear] expected one scale or one per row of the weight, got sizes ", w.grid.sizes());
  at::Tensor y = weight_only_product(x, w, out, bias.value_or(at::Tensor()));
  leaf.gives(y);
  return y;
}

namespace {

constexpr std::size_t kUsual = 3;  // q, k and v

/// One scale, or one per row of `rows` that the kernel reads where they are.
bool has_plain_scales(const Fp8Tensor& x, std::int64_t rows) {
  return x.layout.one() || (x.layout == ScaleLayout::per_row() && x.grid.numel() == rows && x.grid.is_contiguous() &&
                            x.grid.scalar_type() == at::kFloat);
}

/// Whole blocks that the kernel reads where they are (GemmArgs::blocks).
bool has_block_scales(const Fp8Tensor& w, std::int64_t k) {
  const ScaleLayout& l = w.layout;
  return l.first_row == 0 && k > 0 && (l.cols % 4 == 0 || k <= l.cols) &&
         w.grid.numel() == kernels::blocks_of(w.codes.size(0), l.rows) * kernels::blocks_of(k, l.cols);
}

bool fits(const Fp8Tensor& w, std::int64_t k) {
  return w.codes.dim() == 2 && w.codes.size(1) == k && w.codes.is_contiguous() &&
         (w.layout.has_blocks() ? has_block_scales(w, k) : has_plain_scales(w, w.codes.size(0)));
}

/// Codes x [..., k] beside weights of the layout of `w`.
bool scales_fit(const Fp8Tensor& x, const Fp8Tensor& w) {
  const std::int64_t k = x.codes.size(-1);
  if (k == 0) return false;
  const std::int64_t rows = x.codes.numel() / k;
  if (!w.layout.has_blocks()) return has_plain_scales(x, rows);
  const std::int64_t scales = rows * kernels::blocks_of(k, w.layout.cols);
  if (x.dialect != kernels::Dialect::ocp) return false;  // such a product reads both as the weight's
  if (x.layout.one()) return scales == 1;
  return x.layout == ScaleLayout::blocks(1, w.layout.cols) && x.grid.numel() == scales && x.grid.is_contiguous() &&
         x.grid.scalar_type() == at::kFloat;
}

const float* scales_of(const Fp8Tensor& x) { return x.layout.one() ? &x.scale_inv : x.grid.const_data_ptr<float>(); }

/// The weights' codes as products read them. Threads take the locks in one order, or two could wait for each other.
class AllCodes {
 public:
  explicit AllCodes(at::ArrayRef<Fp8Tensor> weights) : weights_(weights), readers_(weights.size()) {
    c10::SmallVector<std::size_t, kUsual> order(weights.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto memory = [&](std::size_t i) { return weights[i].codes.storage().unsafeGetStorageImpl(); };
    std::ranges::sort(order, std::less<>(), memory);
    ok_ = std::ranges::adjacent_find(order, std::equal_to<>(), memory) == order.end();
    for (std::size_t i = 0; ok_ && i < order.size(); ++i) {
      const Fp8Tensor& w = weights[order[i]];
      readers_[order[i]].emplace(CodesReader::for_product(w.codes, w.reused));
    }
  }
  /// Each has its memory for itself.
  explicit operator bool() const { return ok_; }

  void give(std::size_t i, kernels::GemmArgs& args) const {
    args.w_layout = readers_[i]->layout();
    args.w = args.w_layout == kernels::Layout::packed
                 ? readers_[i]->packed()
                 : static_cast<const std::uint8_t*>(weights_[i].codes.const_data_ptr());
  }

 private:
  at::ArrayRef<Fp8Tensor> weights_;
  std::vector<std::optional<CodesReader>> readers_;
  bool ok_;
};

/// shared: what the products have in common. x: [..., K], contiguous.
std::vector<at::Tensor> run(const kernels::GemmArgs& shared, const at::Tensor& x, at::ArrayRef<Fp8Tensor> weights,
                            at::ScalarType out) {
  const AllCodes codes(weights);
  if (!codes) return {};
  std::vector<at::Tensor> results;
  results.reserve(weights.size());
  c10::SmallVector<kernels::GemmArgs, kUsual> products(weights.size(), shared);
  c10::SmallVector<at::Tensor, kUsual> grids(weights.size());  // of blocks
  at::DimVector sizes(x.sizes());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Fp8Tensor& w = weights[i];
    kernels::GemmArgs& g = products[i];
    sizes.back() = g.n = g.y_stride = w.codes.size(0);
    results.push_back(at::empty(sizes, x.options().dtype(out)));
    g.k = g.a_stride = x.size(-1);
    g.m = c10::multiply_integers(sizes.begin(), sizes.end() - 1);
    codes.give(i, g);
    g.w_format = format_of(w.codes.scalar_type());
    if (w.layout.has_blocks()) {
      g.power_of_two_scales = shared.power_of_two_scales && w.power_of_two;
      grids[i] = w.grid.to(at::kFloat).contiguous();
      g.w_scale_inv = grids[i].const_data_ptr<float>();
      g.blocks = {std::min(w.layout.rows, g.n + 1), columns_of_group(w.layout, g.k)};  // a larger block is the same
    } else {
      g.w_scale_inv = scales_of(w);
      g.w_scale_stride = w.layout.one() ? 0 : 1;
    }
    g.y = results.back().mutable_data_ptr();
    g.y_type = float_type_of(out);
    if (w.dialect == kernels::Dialect::gaudi2) g.dialect = w.dialect;
  }
  kernels::gemm_together({products.data(), products.size()});
  return results;
}

bool all_fit(const at::Tensor& x, at::ArrayRef<Fp8Tensor> weights) {
  const auto fits_as_first = [&](const Fp8Tensor& w) {
    const ScaleLayout &l = w.layout, &first = weights.front().layout;
    return fits(w, x.size(-1)) && l.has_blocks() == first.has_blocks() &&
           (!l.has_blocks() || (l.cols == first.cols && w.power_of_two == weights.front().power_of_two));
  };
  return x.dim() >= 1 && x.is_contiguous() && std::ranges::all_of(weights, fits_as_first);
}

}  // namespace

std::vector<at::Tensor> products_together(const Fp8Tensor& x, at::ArrayRef<Fp8Tensor> weights, at::ScalarType out) {
  if (x.grid.defined() && x.grid.scalar_type() != at::kFloat)
    return products_together(in_f32(x), weights, out);  // E8M0
  if (weights.empty() || !all_fit(x.codes, weights) || !scales_fit(x, weights.front())) return {};
  const CodesReader reader(x.codes);
  kernels::GemmArgs shared;
  shared.a = x.codes.const_data_ptr();
  shared.a_type = storage_of(x.codes.scalar_type());
  shared.a_scale_inv = scales_of(x);
  shared.a_scale_stride = x.layout.one() ? 0 : 1;
  shared.power_of_two_scales = x.power_of_two;
  shared.dialect = x.dialect;
  return run(shared, x.codes, weights, out);
}

std::vector<at::Tensor> products_together(const at::Tensor& x, at::ArrayRef<Fp8Tensor> weights, at::ScalarType out) {
  if (!all_fit(x, weights)) return {};
  kernels::GemmArgs shared;
  shared.a = x.const_data_ptr();
  shared.a_type = storage_of(x.scalar_type());
  shared.power_of_two_scales = true;  // there are none
  return run(shared, x, weights, out);
}

namespace {

/// Codes [B, H, S, E] on q's device whose rows have no gaps.
bool is_read_in_place(const Fp8Tensor& x, const at::Tensor& q) {
  const at::Tensor& c = x.codes;
  return c.device() == q.device() && c.dim() == 4 && c.stride(3) == 1 && (c.size(2) == 1 || c.stride(2) == c.size(3));
}

bool is_for_few_rows(const at::Tensor& q, const Fp8Tensor& k, const Fp8Tensor& v) {
  return q.device().type() == c10::kHPU && q.dim() == 4 && q.stride(3) == 1 && !q.is_neg() && is_read_in_place(k, q) &&
         is_read_in_place(v, q) && k.codes.sizes() == v.codes.sizes() && q.size(0) == k.codes.size(0) &&
         q.size(1) == k.codes.size(1) && q.size(3) == k.codes.size(3) &&
         takes_few_rows(q.scalar_type(), q.size(2), k.codes.size(2), q.size(3));
}

kernels::AttentionCodes codes_of(const Fp8Tensor& x) {
  return {.format = format_of(x.codes.scalar_type()), .scale_inv = x.scale_inv, .dialect = x.dialect};
}

/// The addend of the scores, in q's dtype, as PyTorch makes it of a bool mask.
at::Tensor added(const at::Tensor& mask, const at::Tensor& q) {
  if (!mask.defined() || mask.scalar_type() != at::kBool) return mask;
  const at::Tensor zero = at::zeros({}, q.options());
  return at::where(mask, zero, zero - std::numeric_limits<double>::infinity());
}

at::Tensor of_few_rows(const at::Tensor& q, const Fp8Tensor& k, const Fp8Tensor& v, const at::Tensor& mask,
                       double scale) {
  OpScope leaf("fp8::attention", q, k.codes, v.codes);
  const at::Tensor y = at::empty_like(q);
  at::Tensor seen;
  if (mask.defined()) seen = mask.to(q.scalar_type()).expand({q.size(0), q.size(1), q.size(2), k.codes.size(2)});
  const at::Tensor own_q = cpu_alias(q), own_k = cpu_alias(k.codes), own_v = cpu_alias(v.codes),
                   own_mask = seen.defined() ? cpu_alias(seen) : at::Tensor();
  kernels::AttentionArgs args;
  args.type = float_type_of(q.scalar_type());
  args.batch = q.size(0), args.heads = q.size(1), args.rows = q.size(2), args.width = q.size(3);
  args.keys = k.codes.size(2);
  args.q = heads_of(q, own_q), args.k = heads_of(k.codes, own_k), args.v = heads_of(v.codes, own_v);
  args.k.row = args.v.row = args.width;
  args.k_codes = codes_of(k), args.v_codes = codes_of(v);
  if (seen.defined()) args.mask = heads_of(seen, own_mask);
  args.scale = static_cast<float>(scale);
  args.y = {cpu_alias(y).mutable_data_ptr(), y.stride(0), y.stride(1), y.stride(2)};
  kernels::attention(args);
  leaf.gives(y);
  return y;
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const Fp8Tensor& k, const Fp8Tensor& v, const at::Tensor& mask,
                     double scale) {
  TORCH_CHECK(k.layout.one() && v.layout.one(), "[attention] expected keys and values with one scale each");
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor scores = added(mask, q);
  const bool last_is_dense = !scores.defined() || scores.dim() == 0 || scores.stride(-1) == 1 || scores.size(-1) == 1;
  if (last_is_dense && is_for_few_rows(q, k, v)) return of_few_rows(q, k, v, scores, scale);
  const std::optional<at::Tensor> given = scores.defined() ? std::optional(scores) : std::nullopt;
  return at::scaled_dot_product_attention(q, dequantize(k, q.scalar_type()), dequantize(v, q.scalar_type()), given, 0.0,
                                          /*is_causal=*/false, scale);
}

}  // namespace fp8::runtime
