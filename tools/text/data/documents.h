// SPDX-License-Identifier: Apache-2.0
// The documents of data files, one after the other and only as far as asked: of a text its documents, of rows one each
// (chat_template.h).
#pragma once
#include <cstddef>
#include <functional>
#include <optional>

#include "fp8/tools/text/chat/chat_template.h"
#include "fp8/tools/text/data/data_file.h"

// The documents of a text file, read one after the other and only as far as asked: separated by "<|endoftext|>"; line
// ends \r\n and \r are read as \n. With a separator in the file, newlines around each document are stripped.

namespace fp8::text {

struct Document {
  std::string text;
  bool complete = true;  ///< false: cut off at the cap, more follows in the file
  bool special = true;   ///< the tokenizer adds its special tokens
};

/// A plain text file.
class TextFile {
 public:
  /// Throws io::Error if the file can't be opened, is no regular file or begins as packed and binary ones do.
  explicit TextFile(std::filesystem::path path);
  /// Reads the current document, at most about `cap` > 0 bytes of it. False past the last one. Throws io::Error for
  /// what is not UTF-8.
  bool read(std::uint64_t cap, Document& document);
  /// Moves on from the document that was read last; it must have been complete.
  void advance() { offset_ = next_offset_; }

 private:
  bool separator_after(std::uint64_t offset) const;
  std::string bytes(std::uint64_t offset, std::uint64_t count) const;

  std::filesystem::path path_;
  OpenData data_;
  std::uint64_t offset_ = 0, next_offset_ = 0;
};

class Documents {
 public:
  /// folder: of the model, whose chat template rows of messages go through. ask: called with each document and while a
  /// template runs; what it throws ends the reading.
  Documents(DataFiles files, std::filesystem::path folder, RowUse use = RowUse::text, std::function<void()> ask = {});
  /// The current document, at most about `cap` > 0 bytes of it. False past the last one.
  bool read(std::uint64_t cap, Document& document);
  /// Moves on from the document that was read last; it must have been complete.
  void advance();
  /// True if it is a row: then an empty one is a text all the same.
  bool of_rows() const { return rows_.has_value(); }

 private:
  bool open();

  DataFiles files_;
  std::size_t file_ = 0;
  std::function<void()> ask_;
  RowTexts texts_;
  std::optional<TextFile> text_;
  std::optional<JsonRows> rows_;
  std::optional<RowText> row_;  ///< the current one
};

}  // namespace fp8::text
