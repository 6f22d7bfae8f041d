// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/tensors/tensor_file.h"

#include <algorithm>
#include <numeric>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::io {

int size_of(DType dtype) {
  for (const auto& row : enum_names<DType>)
    if (row.value == dtype) return row.bytes;
  throw Error("unknown dtype number " + std::to_string(static_cast<int>(dtype)));
}

DType dtype_from_name(const std::string& name) {
  if (const auto dtype = parse_enum<DType>(name)) return *dtype;
  throw Error("unknown dtype " + in_quotes(name) + ", expected one of " + allowed_names<DType>());
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
