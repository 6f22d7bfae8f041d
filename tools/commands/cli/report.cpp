// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/report.h"

#include <numeric>

#include "fp8/quant/forms/model_source.h"
#include "fp8/tools/commands/terminal/message.h"

namespace fp8::commands {
namespace {

constexpr std::size_t kGap = 2;                     // between two columns
constexpr std::size_t kShortest = 16, kProse = 18;  // least columns of the first text, and of wrapped ones
constexpr std::size_t kNumber = 24;                 // what is right-aligned and longer than this is a text
constexpr std::string_view kCut = "..";             // in any locale

/// Bytes of the first `n` code points.
std::size_t bytes_of(std::string_view text, std::size_t n) {
  std::size_t i = 0;
  for (; i < text.size(); ++i)
    if ((text[i] & 0xC0) != 0x80 && n-- == 0) break;
  return i;
}

bool is_number(std::string_view part) {
  return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
}

/// "model.layers.10.self_attn.q_proj" as "..layers.10..q_proj": parts go until the rest fits, those in front first,
/// then those behind the layer's number. The number and the last part stay.
std::string without_parts(std::string_view name, std::size_t width) {
  std::vector<std::string_view> parts;
  for (std::string_view rest = name;;) {
    const auto dot = rest.find('.');
    parts.push_back(rest.substr(0, dot));
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  const std::size_t last = parts.size() - 1;
  const auto number = static_cast<std::size_t>(std::ranges::find_if(parts, is_number) - parts.begin());
  std::vector<std::size_t> order;  // of those that may go
  for (std::size_t i = 0; i + 1 < number && i < last; ++i) order.push_back(i);
  for (std::size_t i = number + 1; i < last; ++i) order.push_back(i);
  if (number > 0 && number < last) order.push_back(number - 1);
  std::vector<bool> gone(parts.size());
  std::string text(name);
  for (std::size_t next = 0; columns_of(text) > width && next < order.size(); ++next) {
    gone[order[next]] = true;
    text.clear();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (gone[i])
        text += i > 0 && gone[i - 1] ? "" : kCut;
      else
        text += (i > 0 && !gone[i - 1] ? "." : "") + std::string(parts[i]);
    }
  }
  return text;
}

/// Without its middle: the end of a module's name tells more than its beginning, and its layer more than both.
std::string cut(std::string_view all, std::size_t width) {
  if (columns_of(all) <= width) return std::string(all);
  std::string text(all);
  const std::size_t begin = all.substr(0, all.find('.')).rfind(' ') + 1;  // of the word that has dots
  const auto name = all.substr(begin, all.find(' ', begin) - begin);
  if (const std::size_t others = columns_of(all) - columns_of(name); others < width)
    text.replace(begin, name.size(), without_parts(name, width - others));
  const std::size_t has = columns_of(text);
  if (has <= width) return text;
  const std::size_t kept = width - kCut.size(), head = kept / 3;
  return text.substr(0, bytes_of(text, head)) + std::string(kCut) + text.substr(bytes_of(text, has - (kept - head)));
}

/// The first line of at most `width` code points, broken at a space where there is one; text: what is left.
std::string_view take_line(std::string_view& text, std::size_t width) {
  std::size_t end = bytes_of(text, width);
  if (end < text.size()) {
    const auto space = text.substr(0, end + 1).find_last_of(' ');
    if (space != std::string_view::npos && space > 0) end = space;
  }
  const auto line = text.substr(0, end);
  text.remove_prefix(end);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return line;
}

struct Line {
  const std::vector<std::size_t>& widths;
  const std::vector<bool>&right, &wraps;
  std::string& out;

  /// Cells of one row. narrow: those that wrap go on below themselves; what has no room loses its middle.
  void add(std::vector<std::string_view> cells, bool narrow) const {
    for (bool first = true, more = true; more; first = false) {
      more = false;
      for (std::size_t c = 0; c < cells.size(); ++c) {
        std::string cell;
        if (!narrow || !wraps[c])
          cell = first ? cut(cells[c], widths[c]) : "";
        else
          cell = take_line(cells[c], widths[c]);
        more = more || (narrow && wraps[c] && !cells[c].empty());
        const std::string padding(widths[c] - std::min(widths[c], columns_of(cell)), ' ');
        if (c > 0) out.append(kGap, ' ');
        out += right[c] ? padding + cell : cell + padding;
      }
      out.erase(out.find_last_not_of(' ') + 1);
      out += '\n';
    }
  }
};

std::string one_line_header(std::string header) {
  std::replace(header.begin(), header.end(), '\n', ' ');
  return header;
}

}  // namespace

std::string summary_line(std::string_view word, std::string_view said, std::size_t width) {
  constexpr std::size_t kIndent = 8;
  const std::size_t room = width > kIndent + kProse ? width - kIndent : width > 0 ? kProse : said.size();
  std::string text(word);
  do {
    text.append(kIndent - std::min(kIndent, columns_of(text.substr(text.rfind('\n') + 1))), ' ');
    text += take_line(said, room);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  } while (!said.empty());
  return text;
}

std::string wrapped(std::string_view lines, std::size_t width) {
  constexpr std::size_t kIndent = 2;
  if (width <= kProse) return std::string(lines);
  std::string text;
  while (!lines.empty()) {
    auto line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    text += take_line(line, width);
    while (!line.empty()) text += "\n" + std::string(kIndent, ' ') + std::string(take_line(line, width - kIndent));
    text += '\n';
  }
  return text;
}

Table::Table(std::vector<std::string> headers) : headers_(std::move(headers)), widths_(headers_.size(), 0) {
  for (auto& header : headers_) {
    right_.push_back(!header.empty() && header[0] == '>');
    if (right_.back()) header.erase(0, 1);
  }
  zeros_ = right_;
}

void Table::row(std::vector<std::string> cells) {
  io::ensure(cells.size() == right_.size(), "as many cells in a row as there are headers");
  for (std::size_t c = 0; c < cells.size(); ++c) {
    widths_[c] = std::max(widths_[c], columns_of(cells[c]));
    zeros_[c] = zeros_[c] && !cells[c].empty() && cells[c].find_first_not_of("0.") == std::string::npos;
    cells_ += cells[c];
    sizes_.push_back(static_cast<std::uint32_t>(cells[c].size()));
  }
}

bool Table::wraps(std::size_t column) const { return column > 0 && (!right_[column] || widths_[column] > kNumber); }

std::size_t Table::header_width(std::size_t column, bool two_lines) const {
  const std::string_view header = headers_[column];
  const auto end = header.find('\n');
  if (!two_lines || end == std::string_view::npos) return columns_of(header);
  return std::max(columns_of(header.substr(0, end)), columns_of(header.substr(end + 1)));
}

/// The number of columns that `width` has room for, and how wide each is then.
std::size_t Table::fit(std::size_t width, std::vector<std::size_t>& widths) const {
  for (std::size_t n = right_.size();; --n) {
    widths.assign(n, 0);
    std::vector<std::size_t> least(n);
    for (std::size_t c = 0; c < n; ++c) {
      const std::size_t header = header_width(c, true);
      widths[c] = std::max(widths_[c], header);
      const bool number = right_[c] && !wraps(c);
      least[c] = number ? widths[c] : std::min(widths[c], std::max(c > 0 ? kProse : kShortest, header));
    }
    const std::size_t gaps = kGap * (n - 1);
    const auto total = [&](const std::vector<std::size_t>& of) { return std::accumulate(of.begin(), of.end(), gaps); };
    if (n > 1 && total(least) > width) continue;
    while (total(widths) > width) {  // the widest text, but names last: others lose nothing
      std::size_t widest = n;
      for (std::size_t c = 1; c < n; ++c)
        if (widths[c] > least[c] && (widest == n || widths[c] >= widths[widest])) widest = c;
      if (widest == n) widest = 0;
      if (widths[widest] <= least[widest]) break;
      --widths[widest];
    }
    return n;
  }
}

template <class F>
void Table::each_cell(const F& visit) const {
  std::string_view rest = cells_;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    visit(i % right_.size(), rest.substr(0, sizes_[i]));
    rest.remove_prefix(sizes_[i]);
  }
}

std::string Table::text_without_zeros(std::size_t width) const {
  std::vector<std::string> headers, gone, cells;
  for (std::size_t c = 0; c < right_.size(); ++c) {
    if (zeros_[c])
      gone.push_back(one_line_header(headers_[c]));
    else
      headers.push_back((right_[c] ? ">" : "") + headers_[c]);
  }
  Table rest(std::move(headers));
  each_cell([&](std::size_t c, std::string_view cell) {
    if (!zeros_[c]) cells.emplace_back(cell);
    if (c + 1 == right_.size()) rest.row(std::exchange(cells, {}));
  });
  return rest.text(width) + "(0 in each row: " + io::joined(gone) + ")\n";
}

std::string Table::text() const { return text(output_width()); }

std::string Table::text(std::size_t width) const {
  std::vector<std::size_t> widths(right_.size());
  for (std::size_t c = 0; c < widths.size(); ++c) widths[c] = std::max(widths_[c], header_width(c, false));
  const bool narrow = width > 0 && std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1)) > width;
  if (narrow && rows() > 0 && std::ranges::count(zeros_, true) > 0) return text_without_zeros(width);
  const std::size_t n = narrow ? fit(width, widths) : right_.size();
  std::string text;
  std::vector<bool> wrapped(n);
  for (std::size_t c = 0; c < n; ++c) wrapped[c] = wraps(c);
  const Line line{widths, right_, wrapped, text};
  std::vector<std::string> upper(n), lower(n);
  bool two_lines = false;
  for (std::size_t c = 0; c < n; ++c) {
    const auto end = headers_[c].find('\n');
    const bool split = narrow && end != std::string::npos;
    upper[c] = split ? headers_[c].substr(0, end) : "";
    lower[c] = split ? headers_[c].substr(end + 1) : one_line_header(headers_[c]);
    two_lines = two_lines || split;
  }
  if (two_lines) line.add({upper.begin(), upper.end()}, false);
  line.add({lower.begin(), lower.end()}, false);
  std::vector<std::string_view> cells(n);
  each_cell([&](std::size_t c, std::string_view cell) {
    if (c < n) cells[c] = cell;
    if (c + 1 == right_.size()) line.add(cells, narrow);
  });
  if (n == right_.size()) return text;
  text += "(no room for:";
  for (std::size_t c = n; c < right_.size(); ++c) text += (c > n ? ", " : " ") + one_line_header(headers_[c]);
  return text + "; COLUMNS or a pipe makes room)\n";
}

namespace {

std::string cell_of(const io::Json& value, As as) {
  switch (as) {
    case As::grouped: return grouped(value.get<std::int64_t>());
    case As::bytes: return human_bytes(value.get<std::int64_t>());
    case As::seconds: return human_seconds(value.get<double>());
    case As::plain: break;
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::vector<std::string> headers_of(std::string command, const std::filesystem::path& path,
                                    const std::vector<std::string>& more) {
  std::vector<std::string> headers = {std::move(command), ">" + (path.empty() ? "" : quant::model_name(path))};
  headers.insert(headers.end(), more.begin(), more.end());
  return headers;
}

}  // namespace

Report::Report(std::string command, const std::filesystem::path& path) : Report(std::move(command), path, {}) {}

Report::Report(std::string command, const std::filesystem::path& path, const std::vector<std::string>& more)
    : table_(headers_of(std::move(command), path, more)), more_(more.size()) {}

void Report::add(const std::string& key, std::string label, io::Json value, As as) {
  std::string text = cell_of(value, as);
  add(key, std::move(label), std::move(value), std::move(text));
}

void Report::add(const std::string& key, std::string label, io::Json value, std::string text, std::string beside) {
  json[key] = std::move(value);
  std::vector<std::string> cells = {std::move(label), std::move(text)};
  cells.resize(cells.size() + more_);
  if (more_ > 0) cells[2] = std::move(beside);
  table_.row(std::move(cells));
}

void Report::add_entry(const std::string& key, io::Json entry, std::vector<std::string> cells) {
  json[key].push_back(std::move(entry));
  table_.row(std::move(cells));
}

}  // namespace fp8::commands
