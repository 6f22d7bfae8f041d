// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/loggers/csv_logger.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::trainer {
namespace {

constexpr char kStep[] = "step";

/// A cell as RFC 4180 writes it, on one line.
std::string quoted(std::string cell) {
  std::ranges::replace_if(cell, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  if (cell.find_first_of(",\"") == std::string::npos) return cell;
  std::string text = "\"";
  for (const char c : cell) text += c == '"' ? "\"\"" : std::string(1, c);
  return text + "\"";
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  bool inside = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      const bool twice = inside && i + 1 < line.size() && line[i + 1] == '"';
      if (twice)
        cells.back() += line[i++];
      else
        inside = !inside;
    } else if (line[i] == ',' && !inside) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  return cells;
}

std::string line_of(const std::vector<std::string>& cells) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) line += (i == 0 ? "" : ",") + quoted(cells[i]);
  return line + "\n";
}

std::string cell_of(const io::Json& value) {
  if (value.is_null()) return "";
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return io::number_text(value.get<double>());
  if (value.is_string()) return value.get<std::string>();
  return value.dump(-1, ' ', false, io::Json::error_handler_t::replace);
}

}  // namespace

CsvLogger::CsvLogger(std::filesystem::path file) : file_(std::move(file)) {
  if (!file_.writes()) return;
  std::ifstream in(file_.path());
  std::string line;
  if (!std::getline(in, line)) return;
  columns_ = cells_of(line);
  if (columns_.front() != kStep)
    io::fail(file_.path(), "line 1: found '" + io::printable(line.substr(0, 40)) +
                               "', allowed: names of columns that begin with step, as this logger writes them");
  while (std::getline(in, line)) ++lines_;
}

void CsvLogger::load_state(const io::Json& state) {
  const auto keep = state.at("lines").get<std::int64_t>();
  row_.clear();
  if (!file_.writes()) return;
  if (keep > lines_ || keep < 0)
    io::fail(file_.path(), "holds " + std::to_string(lines_) + " lines, but had " + std::to_string(keep) +
                               " when the checkpoint was written");
  std::ifstream in(file_.path());
  std::string line;
  std::uint64_t size = 0;
  for (std::int64_t i = -1; i < keep && std::getline(in, line); ++i) size += line.size() + 1;
  file_.truncate(std::min(size, file_.size()));  // a last line cut short has no end
  lines_ = keep;
}

void CsvLogger::start_over() {
  file_.truncate(0);
  columns_.clear();
  row_.clear();
  lines_ = 0;
}

/// Writes the whole file with the columns that the new row adds.
void CsvLogger::add_columns() {
  const auto before = columns_.size();
  if (columns_.empty()) columns_.push_back(kStep);
  for (const auto& [name, cell] : row_)
    if (std::ranges::find(columns_, name) == columns_.end()) columns_.push_back(name);
  if (columns_.size() == before) return;
  if (before == 0) return file_.append(line_of(columns_));
  std::ifstream in(file_.path());
  io::AtomicFile whole(file_.path());
  std::string line;
  std::getline(in, line);
  whole.append(line_of(columns_));
  while (std::getline(in, line)) whole.append(line + std::string(columns_.size() - before, ',') + "\n");
  whole.commit();
  file_.reopen();
}

void CsvLogger::flush() {
  if (row_.empty()) return;
  add_columns();
  std::vector<std::string> cells;
  for (const auto& name : columns_) cells.push_back(row_.contains(name) ? row_[name] : "");
  file_.append(line_of(cells));
  ++lines_;
  row_.clear();
}

void CsvLogger::log_metrics(const io::Json& metrics, std::int64_t step) {
  if (!file_.writes()) return;
  const auto number = std::to_string(step);
  if (!row_.empty() && row_[kStep] != number) flush();
  row_[kStep] = number;
  for (const auto& [name, value] : metrics.items())
    if (name != kStep) row_[name] = cell_of(value);
}

void CsvLogger::on_save_checkpoint(Trainer&, std::int64_t) {
  flush();
  file_.sync();
}

void CsvLogger::finalize() { flush(); }

}  // namespace fp8::trainer
