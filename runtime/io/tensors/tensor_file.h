// SPDX-License-Identifier: Apache-2.0
// A file of named tensors as its readers see it, be it safetensors or torch.save's zip: names, dtypes, shapes, and
// bytes in row-major order. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::io {

using fp8::name_of;

enum class DType : std::uint8_t {
  BOOL,
  U8,
  I8,
  U16,
  I16,
  U32,
  I32,
  U64,
  I64,
  F16,
  BF16,
  F32,
  F64,
  F8_E4M3,
  F8_E5M2,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  C64
};

struct DTypeRow {
  DType value;
  const char* name;
  int bytes;
};
constexpr auto names_of(DType) {
  using enum DType;
  return std::to_array<DTypeRow>({
      {BOOL, "BOOL", 1},
      {U8, "U8", 1},
      {I8, "I8", 1},
      {U16, "U16", 2},
      {I16, "I16", 2},
      {U32, "U32", 4},
      {I32, "I32", 4},
      {U64, "U64", 8},
      {I64, "I64", 8},
      {F16, "F16", 2},
      {BF16, "BF16", 2},
      {F32, "F32", 4},
      {F64, "F64", 8},
      {F8_E4M3, "F8_E4M3", 1},
      {F8_E5M2, "F8_E5M2", 1},
      {F8_E8M0, "F8_E8M0", 1},
      {F8_E4M3FNUZ, "F8_E4M3FNUZ", 1},
      {F8_E5M2FNUZ, "F8_E5M2FNUZ", 1},
      {C64, "C64", 8},
  });
}

int size_of(DType dtype);                        ///< bytes
DType dtype_from_name(const std::string& name);  ///< throws io::Error listing the allowed names

struct TensorInfo {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< safetensors: bytes, relative to the start of the data; else 0 and the size
  std::uint64_t bytes() const { return end - begin; }
  std::int64_t numel() const;  ///< 1 for a 0-dim tensor
};

/// The place of a tensor's bytes, for a copy within the kernel: an open file and the offset in it.
struct Place {
  int fd = -1;
  std::uint64_t offset = 0;
};

/// One open file.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  ///< in file order
  const TensorInfo* find(const std::string& name) const;               ///< nullptr: no such tensor
  /// Reads `size` bytes of a tensor (one of tensors()), from `offset` within it. Thread-safe. Throws io::Error if the
  /// file is shorter by now.
  void read(const TensorInfo& tensor, void* destination, std::uint64_t offset, std::uint64_t size) const;
  void read(const TensorInfo& tensor, void* destination) const { read(tensor, destination, 0, tensor.bytes()); }
  /// Empty where the bytes of the file are not those that read() gives.
  virtual std::optional<Place> place(const TensorInfo& tensor) const = 0;

 protected:
  explicit TensorFile(std::filesystem::path path) : path_(std::move(path)) {}
  /// To be called once tensors_ is complete. False if two tensors have one name.
  bool index_names();
  /// offset + size <= tensor.bytes() is known.
  virtual void read_bytes(const TensorInfo& tensor, void* destination, std::uint64_t offset,
                          std::uint64_t size) const = 0;

  std::filesystem::path path_;
  std::vector<TensorInfo> tensors_;

 private:
  std::vector<std::uint32_t> by_name_;  // indices of tensors_, sorted by name: 4 bytes a tensor, no bad case
};

// Elements of a strided tensor in a file (a transposed or sliced view, as torch.save stores them), read in row-major
// order with bounded memory. Internal to runtime/io; no torch here.
//
//   element (i, j) of sizes (n, m), strides (s, t) stands at  begin + (i s + j t) item
//
// A view within 16 MiB is read at once and picked apart. Of a larger view whose first dimension is the fast one (a
// transposed matrix), each column's piece is read by itself; of any other, group after group of rows.

/// The view with as few dimensions as it can have: none of size 1, neighbours that run on into each other merged.
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
