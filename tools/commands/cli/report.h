// SPDX-License-Identifier: Apache-2.0
// The result of a command: a JSON object for programs and a table for people, whose columns have no borders, so that
// awk and cut read it too.
#pragma once

#include "fp8/tools/commands/cli/output.h"

namespace fp8::commands {

/// Returns "scheme  28 weights: ...\n": a word of at most six letters and its text, which continues on indented lines
/// where `width` columns (0: any number) have no room.
std::string summary_line(std::string_view word, std::string_view said, std::size_t width);

/// Lines, each broken at spaces where it is longer than `width` columns (0: none is); the rest of one is indented.
std::string wrapped(std::string_view lines, std::size_t width);

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
  /// any number is fine) is made to fit, as far as each of these goes: columns of zeros go; headers in two lines; texts
  /// of the first column lose their middle ("..layers.10..q_proj": never a layer's number), others go on below
  /// themselves, right-aligned ones where they are longer than numbers; columns from the right on are left out, and
  /// named in a last line.
  std::string text(std::size_t width) const;
  std::size_t rows() const { return sizes_.size() / right_.size(); }

 private:
  /// Calls visit(column, cell) for all, row by row.
  template <class F>
  void each_cell(const F& visit) const;
  /// Without the columns that have 0 in each row.
  std::string text_without_zeros(std::size_t width) const;
  std::size_t fit(std::size_t width, std::vector<std::size_t>& widths) const;
  bool wraps(std::size_t column) const;
  std::size_t header_width(std::size_t column, bool two_lines) const;

  std::vector<std::string> headers_;
  std::vector<bool> right_;
  std::vector<bool> zeros_;           // columns that have nothing but 0
  std::vector<std::size_t> widths_;   // of the cells
  std::string cells_;                 // of all rows, one after the other: a million rows are no million vectors
  std::vector<std::uint32_t> sizes_;  // bytes of each
};

/// How a table writes a number: 1234567 as 1234567, 1,234,567, 1.2 MB, 1234567.0 s.
enum class As : std::uint8_t { plain, grouped, bytes, seconds };

/// Both forms of a result. A value that both have goes to both with one add().
class Report {
 public:
  explicit Report(std::vector<std::string> headers) : table_(std::move(headers)) {}
  /// Two columns, headed by the command and the name of what it worked on, without the way to it.
  Report(std::string command, const std::filesystem::path& path);
  /// The same, and more columns of texts, which add() leaves empty where it is given none.
  Report(std::string command, const std::filesystem::path& path, const std::vector<std::string>& more);

  /// Fixes the order of the next JSON members where the table has another; they are null until they are added.
  void order(std::initializer_list<const char*> keys) {
    for (const char* key : keys) json[key] = nullptr;
  }
  /// A member of the JSON, and in a table of two columns a row with the label and the value: a number as it says.
  void add(const std::string& key, std::string label, io::Json value, As as = As::plain);
  /// The same; `text` stands for the value in the table.
  void add(const std::string& key, std::string label, io::Json value, std::string text, std::string beside = "");
  /// One more entry of the JSON's list `key`, and a row of the table.
  void add_entry(const std::string& key, io::Json entry, std::vector<std::string> cells);
  /// A row of the table alone.
  void row(std::vector<std::string> cells) { table_.row(std::move(cells)); }

  /// The table, and what stands below it.
  std::string text() const { return table_.text() + below; }
  /// To stdout, the one or the other as the options say.
  void print(const Context& context) const { context.result(json, context.json ? "" : text()); }

  io::Json json = io::Json::object();
  std::string below;

 private:
  Table table_;
  std::size_t more_ = 0;  ///< columns beside label and value
};

}  // namespace fp8::commands
