// SPDX-License-Identifier: Apache-2.0
// Elements of a strided tensor in a file (a transposed or sliced view, as torch.save stores them), read in row-major
// order with bounded memory. Internal to runtime/io; no torch here.
//
//   element (i, j) of sizes (n, m), strides (s, t) stands at  begin + (i s + j t) item
//
// What lies within 16 MiB is read at once and picked apart. Of a larger view whose first dimension is the fast one (a
// transposed matrix), each column's piece is read by itself; of any other, group after group of rows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace fp8::io {

/// The same view with as few dimensions as it can have: none of size 1, neighbours that run on into each other merged.
/// No size is 0. Contiguous: one dimension of stride 1, or none.
void simplify(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
              std::vector<std::int64_t>& simple_sizes, std::vector<std::int64_t>& simple_strides);

struct StridedRead {
  int fd;
  const std::filesystem::path& path;
  std::uint64_t item;                               ///< bytes of an element, at most 8
  std::uint64_t begin;                              ///< of the first element, in the file
  const std::vector<std::int64_t>&sizes, &strides;  ///< simplified; what they reach lies within the file

  /// `size` bytes from byte `offset` on of the elements in row-major order.
  void bytes(std::uint64_t offset, std::uint64_t size, char* out) const;

 private:
  void elements(std::size_t dim, std::uint64_t base, std::uint64_t from, std::uint64_t to, char* out) const;
  void whole_rows(std::size_t dim, std::uint64_t base, std::uint64_t rows, char* out) const;
  void columns(std::size_t dim, std::uint64_t base, std::uint64_t rows, char* out) const;
  void pick(std::size_t dim, std::uint64_t base, std::uint64_t from, std::uint64_t to, char* out) const;
  std::uint64_t inner(std::size_t dim) const;  // elements of one index of dimension `dim`
  std::uint64_t reach(std::size_t dim) const;  // bytes from the first of these to behind the last
  std::uint64_t step(std::size_t dim) const { return static_cast<std::uint64_t>(strides[dim]) * item; }
};

}  // namespace fp8::io
