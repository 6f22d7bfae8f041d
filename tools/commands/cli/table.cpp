// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/table.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "fp8/runtime/io/base/ensure.h"

namespace fp8::commands {
namespace {

/// Code points, which is columns for all we print.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

Table::Table(std::vector<std::string> headers) : widths_(headers.size(), 0) {
  for (auto& header : headers) {
    right_.push_back(!header.empty() && header[0] == '>');
    if (right_.back()) header.erase(0, 1);
  }
  row(std::move(headers));
}

void Table::row(std::vector<std::string> cells) {
  io::ensure(cells.size() == right_.size(), "as many cells in a row as there are headers");
  for (std::size_t c = 0; c < cells.size(); ++c) {
    widths_[c] = std::max(widths_[c], width_of(cells[c]));
    cells_ += cells[c];
    sizes_.push_back(static_cast<std::uint32_t>(cells[c].size()));
  }
}

std::string Table::text() const {
  std::string text;
  std::string_view rest = cells_;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const std::size_t c = i % right_.size();
    const std::string_view cell = rest.substr(0, sizes_[i]);
    rest.remove_prefix(sizes_[i]);
    const std::string padding(widths_[c] - width_of(cell), ' ');
    if (c > 0) text += "  ";
    if (right_[c]) text += padding;
    text += cell;
    if (!right_[c]) text += padding;
    if (c + 1 < right_.size()) continue;
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace fp8::commands
