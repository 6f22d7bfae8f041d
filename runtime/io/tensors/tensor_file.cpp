// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/tensors/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "fp8/runtime/io/base/file.h"

namespace fp8::io {

int size_of(DType dtype) {
  for (const auto& row : enum_names<DType>)
    if (row.value == dtype) return row.bytes;
  fail<Error>("unknown dtype number {}", static_cast<int>(dtype));
}

DType dtype_from_name(const std::string& name) {
  if (const auto dtype = parse_enum<DType>(name)) return *dtype;
  fail<Error>("unknown dtype {}, expected one of {}", in_quotes(name), allowed_names<DType>());
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
    fail(path_, "tensor {} has {} bytes, asked for {} at {}", in_quotes(tensor.name), tensor.bytes(), size, offset);
  read_bytes(tensor, destination, offset, size);
}

namespace {

constexpr std::uint64_t kSpan = std::uint64_t{16} << 20;

// Counts through the indices of dimensions first, first + 1, .. in row-major order and knows the address.
class Odometer {
 public:
  Odometer(const StridedRead& view, std::size_t first, std::uint64_t start)
      : view_(view), first_(first), index_(view.sizes.size(), 0) {
    for (std::size_t d = view.sizes.size(); d-- > first;) {
      const auto size = static_cast<std::uint64_t>(view.sizes[d]);
      index_[d] = start % size;
      start /= size;
      address_ += index_[d] * static_cast<std::uint64_t>(view.strides[d]) * view.item;
    }
  }
  std::uint64_t address() const { return address_; }
  void next() {
    for (std::size_t d = index_.size(); d-- > first_;) {
      const std::uint64_t step = static_cast<std::uint64_t>(view_.strides[d]) * view_.item;
      address_ += step;
      if (++index_[d] < static_cast<std::uint64_t>(view_.sizes[d])) return;
      address_ -= index_[d] * step;
      index_[d] = 0;
    }
  }

 private:
  const StridedRead& view_;
  std::size_t first_;
  std::vector<std::uint64_t> index_;
  std::uint64_t address_ = 0;
};

}  // namespace

void simplify(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
              std::vector<std::int64_t>& simple_sizes, std::vector<std::int64_t>& simple_strides) {
  simple_sizes.clear();
  simple_strides.clear();
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    std::int64_t run = 0;
    if (!simple_sizes.empty() && !__builtin_mul_overflow(strides[d], sizes[d], &run) && run == simple_strides.back()) {
      simple_sizes.back() *= sizes[d];
      simple_strides.back() = strides[d];
      continue;
    }
    simple_sizes.push_back(sizes[d]);
    simple_strides.push_back(strides[d]);
  }
}

std::uint64_t StridedRead::inner(std::size_t dim) const {
  std::uint64_t count = 1;
  for (std::size_t d = dim + 1; d < sizes.size(); ++d) count *= static_cast<std::uint64_t>(sizes[d]);
  return count;
}

std::uint64_t StridedRead::reach(std::size_t dim) const {
  std::uint64_t bytes = item;
  for (std::size_t d = dim + 1; d < sizes.size(); ++d) bytes += (static_cast<std::uint64_t>(sizes[d]) - 1) * step(d);
  return bytes;
}

void StridedRead::bytes(std::uint64_t offset, std::uint64_t size, char* out) const {
  ensure(item >= 1 && item <= 8 && sizes.size() == strides.size(), "elements of 1 to 8 bytes, a stride per size");
  // Parts of an element at either end go through a copy of it.
  std::array<char, 16> one;
  while (size > 0) {
    const std::uint64_t first = offset / item, skip = offset % item, count = size / item;
    std::uint64_t done = 0;
    if (skip == 0 && count > 0) {
      elements(0, begin, first, first + count, out);
      done = count * item;
    } else {
      elements(0, begin, first, first + 1, one.data());
      done = std::min(item - skip, size);
      std::memcpy(out, one.data() + skip, done);
    }
    offset += done;
    size -= done;
    out += done;
  }
}

// Elements [from, to) of dimensions dim, dim + 1, .., whose first element stands at `base`.
void StridedRead::elements(std::size_t dim, std::uint64_t base, std::uint64_t from, std::uint64_t to, char* out) const {
  if (from >= to) return;
  if (dim == sizes.size()) return read_at(fd, path, base, out, item);
  const std::uint64_t in_row = inner(dim), row = from / in_row, last = (to - 1) / in_row;
  if (row == last) return elements(dim + 1, base + row * step(dim), from - row * in_row, to - row * in_row, out);
  if ((last - row) * step(dim) + reach(dim) <= kSpan) return pick(dim, base, from, to, out);
  const std::uint64_t begin_rows = (from + in_row - 1) / in_row, end_rows = to / in_row;
  if (begin_rows * in_row > from) {
    elements(dim + 1, base + row * step(dim), from - row * in_row, in_row, out);
    out += (begin_rows * in_row - from) * item;
  }
  if (end_rows > begin_rows) whole_rows(dim, base + begin_rows * step(dim), end_rows - begin_rows, out);
  out += (end_rows - begin_rows) * in_row * item;
  if (to > end_rows * in_row) elements(dim + 1, base + end_rows * step(dim), 0, to - end_rows * in_row, out);
}

void StridedRead::whole_rows(std::size_t dim, std::uint64_t base, std::uint64_t rows, char* out) const {
  const std::uint64_t in_row = inner(dim);
  const bool is_fast = std::all_of(strides.begin() + static_cast<std::ptrdiff_t>(dim) + 1, strides.end(),
                                   [&](std::int64_t stride) { return stride > strides[dim]; });
  const std::uint64_t most = std::max<std::uint64_t>(1, kSpan / std::max<std::uint64_t>(step(dim), 1));
  const std::uint64_t room = kSpan > reach(dim) ? (kSpan - reach(dim)) / std::max<std::uint64_t>(step(dim), 1) + 1 : 1;
  for (std::uint64_t done = 0; done < rows;) {
    const std::uint64_t count = std::min(rows - done, is_fast && in_row > 1 ? most : room);
    char* const target = out + done * in_row * item;
    const std::uint64_t at = base + done * step(dim);
    if (count == 1)
      elements(dim + 1, at, 0, in_row, target);
    else if (is_fast && in_row > 1)
      columns(dim, at, count, target);
    else
      pick(dim, at, 0, count * in_row, target);
    done += count;
  }
}

// `rows` rows column by column: for each index of the inner dimensions one read along dimension `dim`.
void StridedRead::columns(std::size_t dim, std::uint64_t base, std::uint64_t rows, char* out) const {
  const std::uint64_t in_row = inner(dim), along = step(dim);
  std::string column((rows - 1) * along + item, '\0');
  Odometer at(*this, dim + 1, 0);
  for (std::uint64_t j = 0; j < in_row; ++j, at.next()) {
    read_at(fd, path, base + at.address(), column.data(), column.size());
    for (std::uint64_t r = 0; r < rows; ++r)
      std::memcpy(out + (r * in_row + j) * item, column.data() + r * along, item);
  }
}

// All that lies between the first and the last element is read, then the elements are taken out of it.
void StridedRead::pick(std::size_t dim, std::uint64_t base, std::uint64_t from, std::uint64_t to, char* out) const {
  const std::uint64_t in_row = inner(dim), row = from / in_row, last = (to - 1) / in_row;
  const std::uint64_t low = row * step(dim), high = last * step(dim) + reach(dim);
  std::string all(high - low, '\0');
  read_at(fd, path, base + low, all.data(), all.size());
  Odometer at(*this, dim, from);
  for (std::uint64_t i = from; i < to; ++i, at.next()) {
    std::memcpy(out, all.data() + (at.address() - low), item);
    out += item;
  }
}

}  // namespace fp8::io
