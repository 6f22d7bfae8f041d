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
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fp8/runtime/io/json/json.h"

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

std::string_view built_in_text();

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

}  // namespace fp8::text
