// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/gemm.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>

#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "fp8/runtime/device/code_order.h"
#include "fp8/runtime/fp8_tensor/dtypes.h"
#include "fp8/runtime/kernels/gemm.h"

namespace fp8::runtime {
namespace {

at::Tensor swapped(const at::Tensor& t) { return t.transpose(-2, -1); }

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
  DenseCodes(const at::Tensor& t, Scratch& scratch) : DenseCodes(t, CodesReader(t), scratch) {}
  /// by_rows: of t, whose codes lie so.
  DenseCodes(const at::Tensor& t, CodesReader by_rows, Scratch& scratch)
      : reader_(std::move(by_rows)), tensor_(t.view(at::kByte)), scratch_(scratch) {
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

  CodesReader reader_;
  at::Tensor tensor_;
  Scratch& scratch_;
  const std::uint8_t* data_;
};

/// A weight of a product, packed where it lies so in its memory.
class WeightCodes {
 public:
  WeightCodes(const at::Tensor& t, bool again, Scratch& scratch) : reader_(CodesReader::for_product(t, again)) {
    if (layout() == kernels::Layout::row_major) dense_.emplace(t, std::move(reader_), scratch);
  }
  kernels::Layout layout() const { return reader_.layout(); }
  const std::uint8_t* data() const { return dense_.has_value() ? dense_->data() : reader_.packed(); }

 private:
  CodesReader reader_;
  std::optional<DenseCodes> dense_;
};

/// Matrices broadcast to `batch`.
at::Tensor expanded(const at::Tensor& t, std::vector<std::int64_t> batch) {
  batch.insert(batch.end(), {t.size(-2), t.size(-1)});
  return t.expand(batch);
}

}  // namespace

GemmShape::GemmShape(const char* op, const at::Tensor& a_codes, bool transpose_a, const at::Tensor& b_codes,
                     bool transpose_b) {
  check_fp8(op, "A", a_codes.scalar_type());
  check_fp8(op, "B", b_codes.scalar_type());
  TORCH_CHECK(a_codes.dim() >= 1 && b_codes.dim() >= 1, "[", op, "] expected A and B of at least one dimension, got ",
              a_codes.dim(), " and ", b_codes.dim());
  a = a_codes.dim() == 1 ? a_codes.unsqueeze(0) : transpose_a ? swapped(a_codes) : a_codes;
  bt = b_codes.dim() == 1 ? b_codes.unsqueeze(0) : transpose_b ? b_codes : swapped(b_codes);
  m = a.size(-2);
  k = a.size(-1);
  n = bt.size(-2);
  TORCH_CHECK(bt.size(-1) == k, "[", op, "] expected the inner dimensions to be equal, got A ", a_codes.sizes(),
              (transpose_a ? " (transposed)" : ""), " and B ", b_codes.sizes(), (transpose_b ? " (transposed)" : ""));
  batch = at::infer_size(a.sizes().slice(0, a.dim() - 2), bt.sizes().slice(0, bt.dim() - 2));
  sizes = batch;
  if (a_codes.dim() > 1) sizes.push_back(m);
  if (b_codes.dim() > 1) sizes.push_back(n);
}

std::int64_t GemmShape::all_rows() const {
  std::int64_t rows = m;
  for (auto size : batch) rows *= size;
  return rows;
}

void set_bias(kernels::GemmArgs& args, const at::Tensor& bias, const char* op) {
  if (!bias.defined()) return;
  TORCH_CHECK(is_high_precision(bias.scalar_type()) && bias.numel() == args.n, "[", op, "] expected a bias of ", args.n,
              " elements of dtype Float, BFloat16 or Half, got ", bias.numel(), " of ", bias.scalar_type());
  args.bias = bias.const_data_ptr();
  args.bias_type = float_type_of(bias.scalar_type());
}

at::Tensor gemm(const GemmShape& p, at::ScalarType out_dtype, const GemmTerms& terms) {
  at::Tensor out = at::empty(p.sizes, p.a.options().dtype(out_dtype));
  if (terms.add.defined()) out.copy_(terms.add);
  const at::Tensor bias = terms.bias.defined() ? terms.bias.contiguous() : at::Tensor();
  std::int64_t batches = 1;
  for (auto size : p.batch) batches *= size;
  const bool one_weight = p.bt.dim() == 2;  // every batch meets the same weight: one tall product
  thread_local Scratch a_scratch, w_scratch;
  const DenseCodes a_codes(one_weight || batches == 1 ? p.a : expanded(p.a, p.batch), a_scratch);
  const std::int64_t products = one_weight ? 1 : batches;
  const at::Tensor bt = one_weight ? p.bt : expanded(p.bt, p.batch).reshape({batches, p.n, p.k});
  const std::int64_t rows = one_weight ? batches * p.m : p.m;
  for (std::int64_t i = 0; i < products; ++i) {
    const WeightCodes w(one_weight ? bt : bt[i], terms.again && one_weight, w_scratch);
    kernels::GemmArgs g;
    g.m = rows;
    g.n = p.n;
    g.k = p.k;
    g.a = a_codes.data() + i * rows * p.k;
    g.a_type = storage_of(p.a.scalar_type());
    g.a_stride = p.k;
    g.w = w.data();
    g.w_layout = w.layout();
    g.w_format = format_of(p.bt.scalar_type());
    g.a_scale_inv = terms.rows.empty() ? nullptr : terms.rows.data() + (terms.rows.size() > 1 ? i * rows : 0);
    g.a_scale_stride = terms.rows.size() > 1 ? 1 : 0;
    g.w_scale_inv = terms.columns.empty() ? nullptr : terms.columns.data();
    g.w_scale_stride = terms.columns.size() > 1 ? 1 : 0;
    set_bias(g, bias, "fp8_gemm_v2");
    g.y = static_cast<char*>(out.mutable_data_ptr()) + i * rows * p.n * out.element_size();
    g.y_type = float_type_of(out_dtype);
    g.y_stride = p.n;
    g.accumulate = terms.add.defined();
    g.dialect = terms.dialect;
    kernels::gemm(g);
  }
  return out;
}

}  // namespace fp8::runtime
