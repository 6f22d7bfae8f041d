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
  /// A header that starts with '>' makes a right-aligned column; the mark is not printed. "weight\namax" may stand in
  /// two lines where one is too long.
  explicit Table(std::vector<std::string> headers);
  /// As many cells as headers.
  void row(std::vector<std::string> cells);
  /// Columns two spaces apart, no trailing spaces, a newline after each row. A table of more than `width` columns (0:
  /// any number is fine) is made to fit, as far as each of these goes: headers in two lines; texts of the first column
  /// lose their middle ("model.la..q_proj"), others go on below themselves; columns from the right on are left out, and
  /// named in a last line.
  std::string text(std::size_t width = 0) const;
  std::size_t rows() const { return sizes_.size() / right_.size(); }

 private:
  std::size_t fit(std::size_t width, std::vector<std::size_t>& widths) const;
  std::size_t header_width(std::size_t column, bool two_lines) const;

  std::vector<std::string> headers_;
  std::vector<bool> right_;
  std::vector<std::size_t> widths_;   // of the cells
  std::string cells_;                 // of all rows, one after the other: a million rows are no million vectors
  std::vector<std::uint32_t> sizes_;  // bytes of each
};

}  // namespace fp8::commands
