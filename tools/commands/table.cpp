// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/table.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace fp8::commands {
namespace {

/// Code points, which is columns for all we print.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

Table::Table(std::vector<std::string> headers) {
  for (auto& header : headers) {
    right_.push_back(!header.empty() && header[0] == '>');
    if (right_.back()) header.erase(0, 1);
  }
  rows_.push_back(std::move(headers));
}

void Table::row(std::vector<std::string> cells) {
  if (cells.size() != right_.size()) throw std::logic_error("[table] a row needs as many cells as there are headers");
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths(right_.size());
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - width_of(row[c]), ' ');
      line += (c > 0 ? "  " : "") + (right_[c] ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace fp8::commands
