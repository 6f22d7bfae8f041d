// SPDX-License-Identifier: Apache-2.0
// The files that data comes from, by their names:
//
//   .txt .md             text
//   .jsonl .json         rows: an object or a string on each line, or an array of them
//   .safetensors         token ids
//   kStandardInput       whatever is piped in: rows where it begins with { or with an array of them, else text
//   kBuiltInText         a text that the program carries
//
// Text and rows are read only: what is packed or binary is refused with the way to make text of it.
#pragma once

#include "fp8/tools/text/chat/chat_template.h"

namespace fp8::text {

inline constexpr const char* kStandardInput = "-";
inline constexpr const char* kBuiltInText = ":built-in";

/// In their order; one file alone is written as its path.
struct DataFiles : std::vector<std::filesystem::path> {
  using vector::vector;
  DataFiles(std::filesystem::path file) : vector{std::move(file)} {}
};

enum class DataKind : std::uint8_t { text, rows, tensors };

/// How messages call it: its path, "standard input", "the built-in text".
inline std::string data_name(const std::filesystem::path& file) {
  return file == kStandardInput ? "standard input" : file == kBuiltInText ? "the built-in text" : file.string();
}
/// The first one, and how many more.
std::string data_name(const DataFiles& files);

/// Of each, data_name() without the folders that it lies in.
inline std::vector<std::string> short_names(const DataFiles& files) {
  std::vector<std::string> names;
  for (const auto& file : files) names.push_back(std::filesystem::path(data_name(file)).filename().string());
  return names;
}

/// Throws io::Error for a missing file, a folder, and a name of another kind. Reads standard input to its end.
DataKind data_kind(const std::filesystem::path& file);
/// Of all, which are of one kind or texts and rows mixed (then: rows). Throws io::Error for .safetensors beside others.
DataKind data_kind(const DataFiles& files);

struct OpenData {
  io::Descriptor file;
  std::uint64_t size = 0;
};
/// For io::read_at(). Throws io::Error where the first bytes are those of a packed or binary file.
OpenData open_data(const std::filesystem::path& file);

/// Throws io::Error if `text`, which begins at byte `offset` of the file, is not UTF-8 or holds NUL bytes. cut: its
/// last character may be there in part.
void require_text(const std::filesystem::path& file, std::string_view text, std::uint64_t offset, bool cut);

// The rows of a file of JSON, one after the other: values on a line each (blank lines are passed over), or the elements
// of one array.

class JsonRows {
 public:
  static constexpr std::uint64_t kMaxRow = std::uint64_t{64} << 20;  ///< bytes

  explicit JsonRows(std::filesystem::path path);
  /// The next row; where: "FILE:3" of a line, "FILE[2]" of an array's element, for messages. False past the last one.
  /// Throws io::Error naming the place of a row that is longer than kMaxRow or no JSON.
  bool next(io::Json& row, std::string& where);

 private:
  bool next_line(std::string& line);
  bool next_element(std::string& element);
  bool fill();
  int peek_past_spaces();
  [[noreturn]] void too_long(const std::string& place) const;

  std::filesystem::path path_;
  std::string name_;
  OpenData data_;
  std::uint64_t offset_ = 0, count_ = 0;  ///< count_: lines or elements so far
  std::string buffer_;
  std::size_t position_ = 0;
  bool array_ = false, ended_ = false;
};

// The documents of data files, one after the other and only as far as asked: of a text what "<|endoftext|>" separates,
// of rows one each (chat_template.h). Line ends \r\n and \r are read as \n. With a separator in the file, newlines
// around each document are stripped.

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
