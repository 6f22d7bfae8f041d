// SPDX-License-Identifier: Apache-2.0
// A table of text columns for people: no borders, so that awk and cut read it too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::commands {

/// "scheme  28 weights: ...\n": a word of at most six letters, and what is said of it, which goes on below itself where
/// `width` columns (0: any number) have no room.
std::string fact(std::string_view word, std::string_view said, std::size_t width);

/// Lines, each broken at spaces where it is longer than `width` columns (0: none is); the rest of one is indented.
std::string broken(std::string_view lines, std::size_t width);

class Table {
 public:
  /// A header that starts with '>' makes a right-aligned column; the mark is not printed. "weight\namax" may stand in
  /// two lines where one is too long.
  explicit Table(std::vector<std::string> headers);
  /// As many cells as headers.
  void row(std::vector<std::string> cells);
  /// Made to fit into where stdout goes: output_width().
  std::string text() const;
  /// Columns two spaces apart, no trailing spaces, a newline after each row. A table of more than `width` columns (0:
  /// any number is fine) is made to fit, as far as each of these goes: headers in two lines; texts of the first column
  /// lose their middle ("model.la..q_proj"), others go on below themselves, right-aligned ones where they are longer
  /// than numbers; columns from the right on are left out, and named in a last line.
  std::string text(std::size_t width) const;
  std::size_t rows() const { return sizes_.size() / right_.size(); }

 private:
  std::size_t fit(std::size_t width, std::vector<std::size_t>& widths) const;
  bool wraps(std::size_t column) const;
  std::size_t header_width(std::size_t column, bool two_lines) const;

  std::vector<std::string> headers_;
  std::vector<bool> right_;
  std::vector<std::size_t> widths_;   // of the cells
  std::string cells_;                 // of all rows, one after the other: a million rows are no million vectors
  std::vector<std::uint32_t> sizes_;  // bytes of each
};

}  // namespace fp8::commands
