// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/products_together.h"

#include <ATen/DimVector.h>
#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/fp8_tensor/block_product.h"
#include "fp8/runtime/fp8_tensor/dtypes.h"
#include "fp8/runtime/kernels/block_cast.h"
#include "fp8/runtime/kernels/gemm.h"

namespace fp8::runtime {
namespace {

constexpr std::size_t kUsual = 3;  // q, k and v

/// One scale, or one per row of `rows` that the kernel reads where they are.
bool has_plain_scales(const Fp8Tensor& x, std::int64_t rows) {
  return x.layout.one() || (x.layout == ScaleLayout::per_row() && x.grid.numel() == rows && x.grid.is_contiguous() &&
                            x.grid.scalar_type() == at::kFloat);
}

/// Whole blocks that the kernel reads where they are (GemmArgs::k_group).
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
      readers_[order[i]].emplace(CodesReader::for_product(w.codes, w.again));
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
      g.k_group = columns_of_group(w.layout, g.k);
      g.power_of_two_scales = shared.power_of_two_scales && w.power_of_two;
      grids[i] = w.grid.to(at::kFloat).contiguous();
      g.w_scale_inv = grids[i].const_data_ptr<float>();
      g.w_block_rows = std::min(w.layout.rows, g.n + 1);  // a larger block is the same
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

}  // namespace fp8::runtime
