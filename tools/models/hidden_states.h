// SPDX-License-Identifier: Apache-2.0
// The hidden states of all samples (measuring: of all their columns, one after the other) between two decoder layers:
// [samples, bytes of one], in memory or in files.
//
//   in memory   one buffer; a layer's outputs take the place of its inputs
//   in files    FOLDER/hidden-<layer>: a layer reads one and writes the next, which becomes the current one with
//               advance(). The one before is removed, unless a snapshot needs it.
//
// A snapshot is the current file, synced, with its size and checksum. No torch here.
#pragma once
#include <memory>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::models {

class HiddenStates {
 public:
  /// folder: for files, must exist; in_memory: whether the states are kept in memory (snapshots are files either way).
  HiddenStates(std::int64_t samples, std::int64_t sample_bytes, std::filesystem::path folder, bool in_memory);
  ~HiddenStates();  ///< removes files that no snapshot needs
  HiddenStates(const HiddenStates&) = delete;
  HiddenStates& operator=(const HiddenStates&) = delete;

  /// Samples [first, first + count) as they are before the current layer. Throws io::Error.
  void read(std::int64_t first, std::int64_t count, void* data) const;
  /// Samples as they are after it. In memory: a sample must have been read before it is written.
  void write(std::int64_t first, std::int64_t count, const void* data);
  /// All were written: they are what the next layer reads.
  void advance();

  /// Makes what is current durable: {"file", "bytes", "checksum"}. The file stays until keep_only() names another.
  io::Json save();
  /// The snapshot is in force: files of earlier ones go.
  void keep_only(const io::Json& saved);
  /// Resumes from a snapshot. Throws io::Error naming the file if it is missing, of another size or damaged.
  void restore(const io::Json& saved);

 private:
  struct File {
    std::filesystem::path path;
    io::Descriptor fd;
    std::unique_ptr<io::ListedTemporary> listed;  ///< until a snapshot needs it: then it must survive
  };
  std::uint64_t total() const { return static_cast<std::uint64_t>(samples_ * sample_bytes_); }
  File make_file();
  void drop(File& file);
  std::string checksum_of(const File& file) const;

  std::int64_t samples_, sample_bytes_;
  std::filesystem::path folder_;
  std::unique_ptr<char[]> memory_;
  File current_, next_;
  std::string kept_;  ///< the file that the snapshot in force needs; empty: none
  std::int64_t made_ = 0;
};

}  // namespace fp8::models
