// SPDX-License-Identifier: Apache-2.0
// Weights of a checkpoint, chunk by chunk of their rows. Internal to quant/damage.
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fp8/quant/checkpoint/stacked_experts.h"
#include "fp8/quant/scheme/scheme.h"
#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

inline constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

inline recipes::FloatType checked_float_type(const io::TensorInfo& info, const std::filesystem::path& folder) {
  if (is_float(info.dtype)) return float_type(info.dtype);
  io::fail<io::Error>("{}: {}: expected dtype F32, BF16 or F16, found {}", folder.string(), info.name,
                      io::name_of(info.dtype));
}

/// A weight, chunk by chunk of its rows.
class RowReader {
 public:
  RowReader(const io::Checkpoint& checkpoint, WeightSlice weight)
      : checkpoint_(checkpoint),
        weight_(std::move(weight)),
        type_(checked_float_type(checkpoint.info(weight_.tensor), checkpoint.folder())) {}
  RowReader(const io::Checkpoint& checkpoint, const std::string& tensor)
      : RowReader(checkpoint, whole_weight(checkpoint.info(tensor))) {}

  recipes::FloatType type() const { return type_; }
  std::int64_t rows() const { return weight_.rows; }
  std::int64_t cols() const { return weight_.cols; }
  std::string place() const { return weight_.place(); }
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(rows()) * row_bytes(); }
  /// Rows to read at a time: a multiple of `band`.
  std::int64_t step(std::int64_t band = 1) const {
    const auto fit = static_cast<std::int64_t>(kPieceBytes / std::max<std::uint64_t>(row_bytes(), 1));
    return band >= rows() ? std::max<std::int64_t>(rows(), 1) : std::max<std::int64_t>(fit / band, 1) * band;
  }

  const void* read(std::int64_t first, std::int64_t rows) {
    buffer_.resize(static_cast<std::uint64_t>(rows) * row_bytes());
    read_rows(checkpoint_, weight_, first, rows, buffer_.data(), scratch_);
    return buffer_.data();
  }

 private:
  std::uint64_t row_bytes() const {
    return static_cast<std::uint64_t>(cols() * io::size_of(checkpoint_.info(weight_.tensor).dtype));
  }

  const io::Checkpoint& checkpoint_;
  WeightSlice weight_;
  recipes::FloatType type_;
  std::vector<std::uint8_t> buffer_, scratch_;
};

inline void check_stop(const std::function<bool()>& stop) {
  if (stop && stop()) throw io::Error("interrupted");
}

/// Rows that share scales: chunks are multiples of it.
inline std::int64_t band_of(const Scheme& scheme) {
  return scheme.weights == WeightGranularity::block ? scheme.block.rows : 1;
}

}  // namespace fp8::quant
