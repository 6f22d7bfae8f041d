// SPDX-License-Identifier: Apache-2.0
// Checksums of all files of a checkpoint, in its fp8.json: they find accidents, not forgers. No torch here.
//
//   "checksums": {"files": {"config.json": {"bytes": 812, "sums": "0123456789abcdef"},
//                           "model.safetensors": {"bytes": 1833216, "head": "...", "tensors": "... ... ..."}},
//                 "self": "..."}
//
// A sum is the XXH64 of a piece of 1 MiB or of what is left of it: of a file; in a file of weights of its header, then
// of each tensor in the order of the file, so that each piece is one tensor's. "self": of fp8.json with zeros there.
// The sums depend on nothing but the bytes.
#pragma once
#include <functional>
#include <map>
#include <optional>

#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {

inline constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

/// The sums of the pieces of some bytes, as a text: 16 hexadecimal digits each, a space between them.
class PieceSums {
 public:
  static constexpr std::size_t kStep = 17;
  /// None of them is known.
  explicit PieceSums(std::uint64_t bytes);
  /// Nothing unless `text` is one of so many bytes, all known.
  static std::optional<PieceSums> of(const io::Json& text, std::uint64_t bytes);
  static std::uint64_t count(std::uint64_t bytes) { return (bytes + kPieceBytes - 1) / kPieceBytes; }

  std::size_t size() const { return (text_.size() + 1) / kStep; }
  std::string_view operator[](std::size_t i) const { return std::string_view(text_).substr(i * kStep, kStep - 1); }
  bool has(std::size_t i) const { return text_[i * kStep] != ' '; }
  void set(std::size_t i, std::string_view sum) { text_.replace(i * kStep, sum.size(), sum); }
  /// Those that `other`, of the same bytes, knows.
  void take(const PieceSums& other);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// The sum of bytes [begin, begin + size) of a file, at most kPieceBytes.
std::string sum_of_piece(int fd, const std::filesystem::path& path, std::uint64_t begin, std::uint64_t size);

/// The PieceSums of bytes in memory.
std::string sums_of(std::string_view bytes);
/// {"bytes", "sums"} of a whole file.
io::Json sums_of_file(const std::filesystem::path& path);

/// The text of fp8.json: `value` with "checksums" of `files`.
std::string with_checksums(const std::filesystem::path& path, io::Json value, io::Json files);

/// What stands below `folder` and is no folder, without hidden ones: by its name with its folders, as JSON can have it.
std::map<std::string, std::filesystem::path> files_below(const std::filesystem::path& folder);

struct Damage {
  const char* kind = "changed";      ///< "changed", "header", "size", "missing", "extra"
  std::string file, tensor;          ///< tensor: whose bytes they are; empty: the file's
  std::uint64_t begin = 0, end = 0;  ///< changed bytes; of "size" what the file has and what was written
  std::string text() const;
};

struct Verified {
  std::size_t files = 0;
  std::uint64_t bytes = 0;
  std::vector<Damage> damage;
};

/// Reads every byte of the files of `folder`. stop: asked between pieces, ends it with an io::Error "interrupted".
/// Throws io::Error for a folder without checksums.
Verified verify_checksums(const std::filesystem::path& folder, const std::function<bool()>& stop);

}  // namespace fp8::quant
