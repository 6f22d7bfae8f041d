// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/tensors/tensor_file.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <ranges>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::io {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  int bytes;
};
constexpr std::array<DTypeRow, 19> kDTypes{{
    {DType::BOOL, "BOOL", 1},
    {DType::U8, "U8", 1},
    {DType::I8, "I8", 1},
    {DType::U16, "U16", 2},
    {DType::I16, "I16", 2},
    {DType::U32, "U32", 4},
    {DType::I32, "I32", 4},
    {DType::U64, "U64", 8},
    {DType::I64, "I64", 8},
    {DType::F16, "F16", 2},
    {DType::BF16, "BF16", 2},
    {DType::F32, "F32", 4},
    {DType::F64, "F64", 8},
    {DType::F8_E4M3, "F8_E4M3", 1},
    {DType::F8_E5M2, "F8_E5M2", 1},
    {DType::F8_E8M0, "F8_E8M0", 1},
    {DType::F8_E4M3FNUZ, "F8_E4M3FNUZ", 1},
    {DType::F8_E5M2FNUZ, "F8_E5M2FNUZ", 1},
    {DType::C64, "C64", 8},
}};

const DTypeRow& row_of(DType dtype) {
  for (const auto& row : kDTypes)
    if (row.dtype == dtype) return row;
  throw Error("unknown dtype number " + std::to_string(static_cast<int>(dtype)));
}

}  // namespace

const char* name_of(DType dtype) { return row_of(dtype).name; }
int size_of(DType dtype) { return row_of(dtype).bytes; }

DType dtype_from_name(const std::string& name) {
  for (const auto& row : kDTypes) {
    if (name == row.name) return row.dtype;
  }
  throw Error("unknown dtype " + in_quotes(name) + ", expected one of " +
              joined(kDTypes | std::views::transform([](const auto& row) { return row.name; })));
}

std::int64_t TensorInfo::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

const TensorInfo* TensorFile::find(const std::string& name) const {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [&](std::uint32_t i, const std::string& n) { return tensors_[i].name < n; });
  return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
}

bool TensorFile::index_names() {
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  const auto less = [&](std::uint32_t a, std::uint32_t b) { return tensors_[a].name < tensors_[b].name; };
  if (!std::is_sorted(by_name_.begin(), by_name_.end(), less)) std::sort(by_name_.begin(), by_name_.end(), less);
  return std::adjacent_find(by_name_.begin(), by_name_.end(), [&](std::uint32_t a, std::uint32_t b) {
           return tensors_[a].name == tensors_[b].name;
         }) == by_name_.end();
}

void TensorFile::read(const TensorInfo& tensor, void* destination, std::uint64_t offset, std::uint64_t size) const {
  if (offset > tensor.bytes() || size > tensor.bytes() - offset)
    fail(path_, "tensor " + in_quotes(tensor.name) + " has " + std::to_string(tensor.bytes()) + " bytes, asked for " +
                    std::to_string(size) + " at " + std::to_string(offset));
  read_bytes(tensor, destination, offset, size);
}

}  // namespace fp8::io
