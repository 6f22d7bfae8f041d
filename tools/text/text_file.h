// SPDX-License-Identifier: Apache-2.0
// The documents of a text file, read one after the other and only as far as asked.
//
//   .txt    documents separated by "<|endoftext|>"; line ends \r\n and \r are read as \n. With a separator in the
//           file, newlines around each document are stripped.
//   .jsonl  one JSON object a line, its field "text" is a document (or other fields are parts of one); blank lines are
//           passed over.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/runtime/io/base/file.h"

namespace fp8::text {

struct Document {
  std::string text;
  bool complete = true;  ///< false: cut off at the cap, more follows in the file
};

/// A plain text file.
class TextFile {
 public:
  /// Throws io::Error if the file can't be opened or is no regular file.
  explicit TextFile(std::filesystem::path path);
  /// Reads the current document, at most about `cap` > 0 bytes of it. False past the last one.
  bool read(std::uint64_t cap, Document& document);
  /// Moves on from the document that was read last; it must have been complete.
  void advance() { offset_ = next_offset_; }

 private:
  bool separator_after(std::uint64_t offset) const;
  std::string bytes(std::uint64_t offset, std::uint64_t count) const;

  std::filesystem::path path_;
  std::uint64_t size_ = 0, offset_ = 0, next_offset_ = 0;
  io::Descriptor file_;
};

/// A JSON-lines file.
class JsonLines {
 public:
  static constexpr std::uint64_t kMaxLine = std::uint64_t{64} << 20;  ///< bytes

  explicit JsonLines(std::filesystem::path path);
  /// The next line's "text". False past the last one. Throws io::Error naming file and line if a line is longer than
  /// kMaxLine, is no JSON object or has no string "text".
  bool next(std::string& text);
  /// The same of other fields: values get the strings of `fields`, in their order.
  bool next(const std::vector<std::string>& fields, std::vector<std::string>& values);

 private:
  bool next_line(std::string& line);

  std::filesystem::path path_;
  std::uint64_t size_ = 0, offset_ = 0, line_number_ = 0;
  std::string buffer_;
  std::size_t position_ = 0;
  io::Descriptor file_;
};

}  // namespace fp8::text
