// SPDX-License-Identifier: Apache-2.0
// The rows of a file of JSON, one after the other: values on a line each (blank lines are passed over), or the elements
// of one array.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/text/data/data_file.h"

namespace fp8::text {

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
