// SPDX-License-Identifier: Apache-2.0
// Safetensors files and Hugging Face checkpoint folders. No torch here.
//
//   u64 little-endian n
//   n bytes JSON header   {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {..}}
//   data
//
// A reader rejects: n over 100 000 000 or past the end, a header that is not an object, duplicate names, unknown
// dtypes, negative or overflowing shapes, end - begin != product * itemsize, holes, overlaps, trailing bytes. Data is
// read by pread, never mapped: a file cut short while we read is an error, not a SIGBUS, and resident memory stays
// ours.
#pragma once
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/tensors/tensor_file.h"

namespace fp8::io {

/// One open file. The constructor reads and checks the whole header; every error is an io::Error that names file and
/// tensor.
class SafetensorsFile : public TensorFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);
  /// Of a file's bytes that lie in memory; `name` stands in messages.
  SafetensorsFile(std::filesystem::path name, std::string bytes);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::optional<Place> place(const TensorInfo& tensor) const override;

 private:
  void read_all(std::uint64_t size);
  void read_header(const std::string& text);
  void read_raw(std::uint64_t offset, void* destination, std::uint64_t size) const;
  void read_bytes(const TensorInfo& tensor, void* destination, std::uint64_t offset, std::uint64_t size) const override;

  Descriptor file_;
  std::optional<std::string> bytes_;  ///< in the file's place
  std::uint64_t data_start_ = 0;
  std::map<std::string, std::string> metadata_;
};

class Checkpoint;

/// The names of a checkpoint's tensors, as a range of const std::string&.
class TensorNames {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = std::string;
    using difference_type = std::ptrdiff_t;
    using pointer = const std::string*;
    using reference = const std::string&;

    Iterator() = default;
    Iterator(const Checkpoint* checkpoint, std::size_t i) : checkpoint_(checkpoint), i_(i) {}
    reference operator*() const;
    pointer operator->() const { return &**this; }
    Iterator& operator++() { return ++i_, *this; }
    Iterator operator++(int) { return {checkpoint_, i_++}; }
    bool operator==(const Iterator& other) const { return i_ == other.i_; }

   private:
    const Checkpoint* checkpoint_ = nullptr;
    std::size_t i_ = 0;
  };

  explicit TensorNames(const Checkpoint& checkpoint) : checkpoint_(&checkpoint) {}
  std::size_t size() const;
  bool empty() const { return size() == 0; }
  const std::string& operator[](std::size_t i) const;
  Iterator begin() const { return {checkpoint_, 0}; }
  Iterator end() const { return {checkpoint_, size()}; }
  operator std::vector<std::string>() const { return {begin(), end()}; }
  bool operator==(const std::vector<std::string>& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  const Checkpoint* checkpoint_;
};

/// All tensors of a checkpoint folder. Looked for in this order: model.safetensors.index.json (it names the shards),
/// model.safetensors, pytorch_model.bin.index.json, pytorch_model.bin. Other *.safetensors and *.bin are never read.
/// Tensors of a shard that the index does not name are read, as other readers do; of one in two shards that which the
/// index names. An index whose shards are all gone does not count beside the one file; where both are there, readers
/// differ, which is an error. A file path instead of a folder is taken as the one file: safetensors, or
/// a zip of torch.save (.bin, .pt, .pth; see torch_file.h).
class Checkpoint {
 public:
  explicit Checkpoint(std::filesystem::path folder);
  const std::filesystem::path& folder() const { return folder_; }
  TensorNames names() const { return TensorNames(*this); }  ///< shard by shard, in file order
  bool contains(const std::string& name) const;
  const TensorInfo& info(const std::string& name) const;  ///< throws io::Error naming folder and tensor
  const TensorInfo& info(std::size_t i) const;            ///< of names()[i]
  void read(const std::string& name, void* destination, std::uint64_t offset, std::uint64_t size) const;
  void read(const std::string& name, void* destination) const;
  /// Empty where the bytes of the file are not those that read() gives.
  std::optional<Place> place(const std::string& name) const;
  std::uint64_t total_bytes() const;  ///< of tensor data
  /// The files of the folder that are not read, and where the index is not followed; one line each.
  const std::vector<std::string>& notices() const { return notices_; }

 private:
  friend class TensorNames;
  struct Where {
    std::uint32_t file, tensor;
  };
  void open_file(const std::filesystem::path& path, bool is_torch);
  bool open_either(bool is_torch);
  void open_shards(const std::filesystem::path& index, bool is_torch);
  void find_unread();
  const Where* find(const std::string& name) const;
  const Where& where(const std::string& name) const;

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::vector<Where> order_;
  std::vector<std::string> notices_;
  std::vector<std::uint32_t> by_name_;  // indices of order_, sorted by name; one file: empty, it finds them itself
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

// The layout of a safetensors file to be written, decided before its first byte. No torch here.

/// Of the JSON that describes a file: what the format's own library allows.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsLayout {
  struct Slot {
    std::uint64_t begin = 0, size = 0;  ///< begin: in the file
  };

  /// Throws io::Error naming `label` (and the tensor): duplicate or bad names, sizes that overflow, a header over
  /// 100 MB.
  SafetensorsLayout(const std::vector<SafetensorsWriter::Entry>& entries, const std::filesystem::path& label,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  std::string head;  ///< the file's first bytes: length and header
  std::uint64_t file_bytes = 0;
  std::unordered_map<std::string, Slot> slots;
};

/// Throws io::Error "SHOWN: tensor 'NAME': ..." unless [offset, offset + size) lies within the tensor.
void check_within(const SafetensorsLayout::Slot& slot, const std::string& name, std::uint64_t offset,
                  std::uint64_t size, const std::filesystem::path& label);

}  // namespace fp8::io
