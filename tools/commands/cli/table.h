// SPDX-License-Identifier: Apache-2.0
// A table of text columns for people: no borders, so that awk and cut read it too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fp8::commands {

class Table {
 public:
  /// A header that starts with '>' makes a right-aligned column; the mark is not printed.
  explicit Table(std::vector<std::string> headers);
  /// As many cells as headers.
  void row(std::vector<std::string> cells);
  /// Columns two spaces apart, no trailing spaces, a newline after each row.
  std::string text() const;

 private:
  std::vector<bool> right_;
  std::vector<std::size_t> widths_;
  std::string cells_;                 // of all rows, one after the other: a million rows are no million vectors
  std::vector<std::uint32_t> sizes_;  // bytes of each
};

}  // namespace fp8::commands
