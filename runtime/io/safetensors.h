// SPDX-License-Identifier: Apache-2.0
// Safetensors files and Hugging Face checkpoint folders. No torch here.
//
//   u64 little-endian n | n bytes JSON header {"name": {"dtype", "shape", "data_offsets": [begin, end]},
//   "__metadata__": {..}} | data
//
// A reader rejects: n over 100 000 000 or past the end, a header that is not an object, duplicate names, unknown
// dtypes, negative or overflowing shapes, end - begin != product * itemsize, holes, overlaps, trailing bytes. Data is
// read by pread, never mapped: a file cut short while we read is an error, not a SIGBUS, and resident memory stays
// ours.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/io/atomic_file.h"
#include "fp8/runtime/io/error.h"
#include "fp8/runtime/io/file.h"

namespace fp8::io {

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
const char* name_of(DType dtype);                ///< "BF16"
int size_of(DType dtype);                        ///< bytes
DType dtype_from_name(const std::string& name);  ///< throws io::Error listing the allowed names

struct TensorInfo {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes, relative to the start of the data
  std::uint64_t bytes() const { return end - begin; }
  std::int64_t numel() const;  ///< 1 for a 0-dim tensor
};

/// Where a tensor's bytes stand, for a copy within the kernel: an open file and the offset in it.
struct Place {
  int fd = -1;
  std::uint64_t offset = 0;
};

/// One open file. The constructor reads and checks the whole header; every error is an io::Error that names file and
/// tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  ///< in file order
  const TensorInfo* find(const std::string& name) const;               ///< nullptr: no such tensor
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Reads `size` bytes of a tensor, from `offset` within it. Thread-safe. Throws if the file is shorter by now.
  void read(const TensorInfo& tensor, void* destination, std::uint64_t offset, std::uint64_t size) const;
  void read(const TensorInfo& tensor, void* destination) const { read(tensor, destination, 0, tensor.bytes()); }
  Place place(const TensorInfo& tensor) const { return {file_.get(), data_start_ + tensor.begin}; }

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::uint64_t data_start_ = 0;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// All tensors of a checkpoint folder: model.safetensors.index.json names the shards, else model.safetensors is the one
/// file. Other *.safetensors are never read, nor tensors that the index does not name. A file path instead of a folder
/// is taken as the one file.
class Checkpoint {
 public:
  explicit Checkpoint(std::filesystem::path folder);
  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<std::string>& names() const { return names_; }  ///< shard by shard, in file order
  bool contains(const std::string& name) const;
  const TensorInfo& info(const std::string& name) const;  ///< throws io::Error naming folder and tensor
  void read(const std::string& name, void* destination, std::uint64_t offset, std::uint64_t size) const;
  void read(const std::string& name, void* destination) const;
  /// Empty where the bytes of the file are not those that read() gives.
  std::optional<Place> place(const std::string& name) const;
  std::uint64_t total_bytes() const;  ///< of tensor data

 private:
  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::string> names_;
  std::map<std::string, std::pair<std::size_t, std::size_t>> where_;  // name -> (file, tensor)
};

/// Writes a file whose tensors and sizes are known up front, in any order, from any thread; committed atomically.
/// Tensors are laid out by descending alignment (8-byte types first, 1-byte types last), then by name; header padded
/// to 8.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<std::int64_t> shape;
  };
  /// Reserves the space for all of it, so that a full disk shows here.
  SafetensorsWriter(std::filesystem::path path, const std::vector<Entry>& entries,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  void write(const std::string& name, const void* data, std::uint64_t offset,
             std::uint64_t size);  ///< bytes within the tensor
  void write(const std::string& name, const void* data);
  void commit();  ///< throws if a tensor was not written completely

 private:
  struct Slot {
    std::uint64_t begin = 0, size = 0;               // begin: in the file
    std::map<std::uint64_t, std::uint64_t> written;  // begin -> end, disjoint, neighbours merged
  };
  std::filesystem::path path_;
  std::unique_ptr<AtomicFile> file_;
  std::unique_ptr<std::mutex> mutex_;  // guards Slot::written
  std::map<std::string, Slot> slots_;
};

}  // namespace fp8::io
