// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/gemm/gemm.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>

#include <memory>
#include <new>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/profile/trace.h"

namespace fp8::runtime::ops {
namespace {

/// What the product looks like, 1-D operands as matrices of one row or column.
struct Plan {
  at::Tensor a, bt;  // [..., M, K] and [..., N, K], any strides
  std::int64_t m, n, k;
  std::vector<std::int64_t> batch;  // broadcast batch dimensions
  std::vector<std::int64_t> sizes;  // of the result
};

at::Tensor swapped(const at::Tensor& t) { return t.transpose(-2, -1); }

Plan plan_of(const at::Tensor& a, const at::Tensor& b, const GemmOptions& o) {
  check_fp8("fp8_gemm_v2", "A", a.scalar_type());
  check_fp8("fp8_gemm_v2", "B", b.scalar_type());
  TORCH_CHECK(is_high_precision(o.out_dtype), "[fp8_gemm_v2] expected out_dtype Float, BFloat16 or Half, got ",
              o.out_dtype);
  TORCH_CHECK(a.dim() >= 1 && b.dim() >= 1, "[fp8_gemm_v2] expected A and B of at least one dimension, got ", a.dim(),
              " and ", b.dim());
  Plan p;
  p.a = a.dim() == 1 ? a.unsqueeze(0) : o.trans_a ? swapped(a) : a;
  p.bt = b.dim() == 1 ? b.unsqueeze(0) : o.trans_b ? b : swapped(b);
  p.m = p.a.size(-2);
  p.k = p.a.size(-1);
  p.n = p.bt.size(-2);
  TORCH_CHECK(p.bt.size(-1) == p.k, "[fp8_gemm_v2] expected the inner dimensions to be equal, got A ", a.sizes(),
              (o.trans_a ? " (transposed)" : ""), " and B ", b.sizes(), (o.trans_b ? " (transposed)" : ""));
  p.batch = at::infer_size(p.a.sizes().slice(0, p.a.dim() - 2), p.bt.sizes().slice(0, p.bt.dim() - 2));
  p.sizes = p.batch;
  if (a.dim() > 1) p.sizes.push_back(p.m);
  if (b.dim() > 1) p.sizes.push_back(p.n);
  return p;
}

/// Row and column factors of the output: `col` has 1 or N values, `row` 1 or one per row of every batch; empty means 1.
struct Factors {
  std::vector<float> row, col;
};

std::int64_t all_rows(const Plan& p) {
  std::int64_t rows = p.m;
  for (auto size : p.batch) rows *= size;
  return rows;
}

void multiply_into(std::vector<float>& target, std::vector<float> values) {
  if (target.size() < values.size()) std::swap(target, values);  // empty or one value against many
  const std::size_t n = values.size();
  for (std::size_t i = 0; n > 0 && i < target.size(); ++i) target[i] *= values[n == 1 ? 0 : i];
}

/// A's scale is one value or one per row; B's is shaped against the output: [N], [1, N] per column or [M, 1] per row.
void place(const Scale& s, bool is_a, const Plan& p, Factors& f) {
  if (s.none()) return;
  const auto count = static_cast<std::int64_t>(s.values.size());
  const bool per_row = is_a || (count > 1 && s.shape.size() >= 2 && s.shape.back() == 1);
  const std::int64_t rows = all_rows(p), expected = is_a ? rows : per_row ? p.m : p.n;
  TORCH_CHECK(count == 1 || count == expected || (per_row && (count == p.m || count == rows)),
              "[fp8_gemm_v2] expected ", (is_a ? "A" : "B"), "_scale_inv of 1 or ", expected, " elements, got ", count);
  if (!per_row || count == 1 || count == rows) return multiply_into(per_row ? f.row : f.col, s.values);
  std::vector<float> tiled;  // the same M values for every batch
  tiled.reserve(static_cast<std::size_t>(rows));
  while (static_cast<std::int64_t>(tiled.size()) < rows) tiled.insert(tiled.end(), s.values.begin(), s.values.end());
  multiply_into(f.row, std::move(tiled));
}

/// Memory for a transposed operand that a thread keeps between calls: fresh pages cost more than the transpose. Above
/// kKept it is given back.
class Scratch {
 public:
  static constexpr std::int64_t kKept = std::int64_t{32} << 20;
  std::uint8_t* get(std::int64_t bytes) {
    if (bytes > size_) {
      size_ = 0;
      memory_.reset();
      memory_.reset(static_cast<std::uint8_t*>(::operator new(static_cast<std::size_t>(bytes), kLine)));
      size_ = bytes;
    }
    return memory_.get();
  }
  void release() {
    if (size_ <= kKept) return;
    memory_.reset();
    size_ = 0;
  }

 private:
  static constexpr std::align_val_t kLine{64};  // rows that start in the middle of cache lines are read at half speed
  struct Free {
    void operator()(std::uint8_t* p) const { ::operator delete(p, kLine); }
  };
  std::unique_ptr<std::uint8_t, Free> memory_;
  std::int64_t size_ = 0;
};

/// The codes of one operand as dense [..., rows, cols] bytes: where they are, turned in scratch (matrices whose columns
/// are contiguous, as transposed ones have), or copied.
class DenseCodes {
 public:
  DenseCodes(const at::Tensor& t, Scratch& scratch) : tensor_(t.view(at::kByte)), scratch_(scratch) {
    if (tensor_.is_contiguous()) {
      data_ = tensor_.const_data_ptr<std::uint8_t>();
    } else if (tensor_.numel() > 0 && tensor_.stride(-2) == 1 && tensor_.stride(-1) >= tensor_.size(-2)) {
      data_ = transposed();
    } else {
      tensor_ = tensor_.contiguous();
      data_ = tensor_.const_data_ptr<std::uint8_t>();
    }
  }
  ~DenseCodes() { scratch_.release(); }
  DenseCodes(const DenseCodes&) = delete;
  DenseCodes& operator=(const DenseCodes&) = delete;

  const std::uint8_t* data() const { return data_; }

 private:
  const std::uint8_t* transposed() {
    const std::int64_t rows = tensor_.size(-2), cols = tensor_.size(-1), matrix = rows * cols;
    std::uint8_t* out = scratch_.get(tensor_.numel());
    const auto* base = tensor_.const_data_ptr<std::uint8_t>();
    for (std::int64_t i = 0; i < tensor_.numel() / matrix; ++i) {
      std::int64_t offset = 0, rest = i;
      for (std::int64_t dim = tensor_.dim() - 3; dim >= 0; --dim) {
        offset += rest % tensor_.size(dim) * tensor_.stride(dim);
        rest /= tensor_.size(dim);
      }
      kernels::transpose_bytes(base + offset, cols, rows, out + i * matrix, tensor_.stride(-1));
    }
    return out;
  }

  at::Tensor tensor_;
  Scratch& scratch_;
  const std::uint8_t* data_;
};

/// Matrices broadcast to `batch`.
at::Tensor expanded(const at::Tensor& t, std::vector<std::int64_t> batch) {
  batch.insert(batch.end(), {t.size(-2), t.size(-1)});
  return t.expand(batch);
}

kernels::ActivationType fp8_activation(at::ScalarType type) {
  return type == at::kFloat8_e5m2 ? kernels::ActivationType::E5M2 : kernels::ActivationType::E4M3;
}

void check_addends(const Plan& p, const std::optional<at::Tensor>& d, const std::optional<at::Tensor>& bias,
                   bool accumulate) {
  TORCH_CHECK(!accumulate || (d.has_value() && d->defined()), "[fp8_gemm_v2] accumulate needs D, got none");
  if (accumulate) {
    TORCH_CHECK(d->sizes() == at::IntArrayRef(p.sizes), "[fp8_gemm_v2] expected D of sizes ", at::IntArrayRef(p.sizes),
                ", got ", d->sizes());
  }
  if (bias.has_value() && bias->defined()) {
    TORCH_CHECK(bias->numel() == p.n && is_high_precision(bias->scalar_type()), "[fp8_gemm_v2] expected a bias of ",
                p.n, " elements of dtype Float, BFloat16 or Half, got ", bias->sizes(), " of ", bias->scalar_type());
  }
}

}  // namespace

at::Tensor fp8_gemm_meta(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& d,
                         const std::optional<at::Tensor>& bias, const GemmOptions& o) {
  const Plan p = plan_of(a, b, o);
  check_addends(p, d, bias, o.accumulate);
  return at::empty(p.sizes, a.options().dtype(o.out_dtype));
}

at::Tensor fp8_gemm(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& d,
                    const std::optional<at::Tensor>& bias, const GemmOptions& o) {
  trace_op("hpu::fp8_gemm_v2", {a, b});
  const kernels::Dialect device = device_dialect("fp8_gemm_v2");  // refuses the first generation
  const Plan p = plan_of(a, b, o);
  check_addends(p, d, bias, o.accumulate);
  Factors f;
  place(o.a_scale_inv, true, p, f);
  place(o.b_scale_inv, false, p, f);
  at::Tensor out = at::empty(p.sizes, a.options().dtype(o.out_dtype));
  if (o.accumulate) out.copy_(*d);
  const at::Tensor bias_row = bias.has_value() && bias->defined() ? bias->contiguous() : at::Tensor();

  std::int64_t batches = 1;
  for (auto size : p.batch) batches *= size;
  const bool one_weight = p.bt.dim() == 2;  // every batch meets the same weight: one tall product
  thread_local Scratch a_scratch, w_scratch;
  const DenseCodes a_codes(one_weight || batches == 1 ? p.a : expanded(p.a, p.batch), a_scratch);
  const std::int64_t products = one_weight ? 1 : batches;
  const at::Tensor bt = one_weight ? p.bt : expanded(p.bt, p.batch).reshape({batches, p.n, p.k});
  const std::int64_t rows = one_weight ? batches * p.m : p.m;
  for (std::int64_t i = 0; i < products; ++i) {
    const DenseCodes w(one_weight ? bt : bt[i], w_scratch);
    kernels::GemmArgs g;
    g.m = rows;
    g.n = p.n;
    g.k = p.k;
    g.a = a_codes.data() + i * rows * p.k;
    g.a_type = fp8_activation(a.scalar_type());
    g.a_stride = p.k;
    g.w = w.data();
    g.w_format = format_of(b.scalar_type());
    g.a_scale_inv = f.row.empty() ? nullptr : f.row.data() + (f.row.size() > 1 ? i * rows : 0);
    g.a_scale_stride = f.row.size() > 1 ? 1 : 0;
    g.w_scale_inv = f.col.empty() ? nullptr : f.col.data();
    g.w_scale_stride = f.col.size() > 1 ? 1 : 0;
    if (bias_row.defined()) {
      g.bias = bias_row.const_data_ptr();
      g.bias_type = float_type_of(bias_row.scalar_type());
    }
    g.y = static_cast<char*>(out.mutable_data_ptr()) + i * rows * p.n * out.element_size();
    g.y_type = float_type_of(o.out_dtype);
    g.y_stride = p.n;
    g.accumulate = o.accumulate;
    g.dialect = o.dialect.value_or(device);
    kernels::gemm(g);
  }
  return out;
}

}  // namespace fp8::runtime::ops
