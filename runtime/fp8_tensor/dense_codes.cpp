// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/dense_codes.h"

#include <utility>

namespace fp8::runtime {
namespace {

constexpr std::int64_t kKept = std::int64_t{32} << 20;  // bytes of scratch that a thread keeps between calls

}  // namespace

DenseCodes::DenseCodes(const at::Tensor& t, CodesReader by_rows, kernels::Scratch& scratch)
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

DenseCodes::~DenseCodes() { scratch_.shrink(kKept); }

const std::uint8_t* DenseCodes::transposed() {
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

WeightCodes::WeightCodes(const at::Tensor& t, bool again, kernels::Scratch& scratch)
    : reader_(CodesReader::for_product(t, again)) {
  if (layout() == kernels::Layout::row_major) dense_.emplace(t, std::move(reader_), scratch);
}

}  // namespace fp8::runtime
