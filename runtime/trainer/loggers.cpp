// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/loggers.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <fstream>
#include <system_error>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

void check_loggers(const Trainer& trainer, const char* who) {
  if (trainer.options().fast_dev_run > 0 || !trainer.loggers().empty()) return;
  io::fail<std::invalid_argument>(
      "[{}] loggers: found none among the trainer's callbacks, allowed: 1 or more (JsonlLogger)", who);
}

void log_to_all(const Trainer& trainer, const io::Json& row, std::int64_t step) {
  if (row.empty()) return;
  for (Logger* logger : trainer.loggers()) logger->log_metrics(row, step);
}

void append_line(LogFile& file, const io::Json& row) {
  file.append(row.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n");
}

void JsonlLogger::log_metrics(const io::Json& metrics, std::int64_t step) {
  if (!file_.writes()) return;
  io::Json row = {{"step", step}};
  row.update(metrics);
  append_line(file_, row);
}

LogFile::LogFile(std::filesystem::path path) : path_(std::move(path)) {
  if (io::is_first_process()) reopen();
}

void LogFile::reopen() {
  file_ = io::Descriptor(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (file_.get() < 0) io::fail_errno(path_, "open", errno);
}

void LogFile::append(std::string_view bytes) {
  if (!writes()) return;
  for (std::size_t done = 0; done < bytes.size();) {
    const auto n = write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io::fail_errno(path_, "write", errno, bytes.size());
    done += static_cast<std::size_t>(n);
  }
}

void LogFile::sync() {
  if (writes() && fsync(file_.get()) != 0) io::fail_errno(path_, "sync", errno);
}

std::uint64_t LogFile::size() const {
  struct stat now {};
  if (!writes()) return 0;
  if (fstat(file_.get(), &now) != 0) io::fail_errno(path_, "stat", errno);
  return static_cast<std::uint64_t>(now.st_size);
}

void LogFile::truncate(std::uint64_t size) {
  if (!writes()) return;
  if (const auto found = this->size(); found < size)
    io::fail(path_, "holds {} bytes, but had {} when the checkpoint was written", found, size);
  if (ftruncate(file_.get(), static_cast<off_t>(size)) != 0) io::fail_errno(path_, "truncate", errno);
}

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

constexpr std::array<std::uint32_t, 256> kCrcOfByte = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    table[byte] = crc;
  }
  return table;
}();

// Protocol buffers: a field is a key (number << 3 | wire type) and its value.
enum class Wire : std::uint8_t { varint = 0, bits64 = 1, bytes = 2, bits32 = 5 };

template <class T>
void put_fixed(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> 8 * i & 0xff);
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, int number, Wire wire) {
  put_varint(out, static_cast<std::uint64_t>(number) << 3 | static_cast<std::uint64_t>(wire));
}

void put_bytes(std::string& out, int number, std::string_view value) {
  put_key(out, number, Wire::bytes);
  put_varint(out, value.size());
  out += value;
}

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

std::string record(const std::string& event) {
  std::string out;
  put_fixed(out, static_cast<std::uint64_t>(event.size()));
  put_fixed(out, masked(crc32c(out)));
  out += event;
  put_fixed(out, masked(crc32c(event)));
  return out;
}

std::string event_at(double wall_time) {
  std::string event;
  put_key(event, 1, Wire::bits64);
  put_fixed(event, std::bit_cast<std::uint64_t>(wall_time));
  return event;
}

constexpr char kPrefix[] = "events.out.tfevents.";

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "localhost";
}

}  // namespace

CsvLogger::CsvLogger(std::filesystem::path file) : file_(std::move(file)) {
  if (!file_.writes()) return;
  std::ifstream in(file_.path());
  std::string line;
  if (!std::getline(in, line)) return;
  columns_ = cells_of(line);
  if (columns_.front() != kStep)
    io::fail(file_.path(),
             "line 1: found '{}', allowed: names of columns that begin with step, as this logger writes them",
             io::printable(line.substr(0, 40)));
  while (std::getline(in, line)) ++lines_;
}

void CsvLogger::load_state(const io::Json& state) {
  const auto keep = state.at("lines").get<std::int64_t>();
  row_.clear();
  if (!file_.writes()) return;
  if (keep > lines_ || keep < 0)
    io::fail(file_.path(), "holds {} lines, but had {} when the checkpoint was written", lines_, keep);
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

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes) crc = kCrcOfByte[(crc ^ static_cast<std::uint8_t>(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

std::string version_record(double wall_time) {
  std::string event = event_at(wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return record(event);
}

std::string scalars_record(double wall_time, std::int64_t step,
                           const std::vector<std::pair<std::string, float>>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, Wire::bits32);
    put_fixed(value, std::bit_cast<std::uint32_t>(number));
    put_bytes(summary, 1, value);
  }
  std::string event = event_at(wall_time);
  put_key(event, 2, Wire::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, 5, summary);
  return record(event);
}

TensorBoardLogger::TensorBoardLogger(std::filesystem::path folder)
    : folder_(std::move(folder)), first_rank_(io::is_first_process()) {
  std::error_code error;
  if (first_rank_ && !std::filesystem::create_directories(folder_, error) && error)
    io::fail(folder_, "can't be made: {}", error.message());
}

void TensorBoardLogger::begin(const std::string& name) { file_ = std::make_unique<LogFile>(folder_ / name); }

io::Json TensorBoardLogger::state() const {
  if (file_ == nullptr) return {{"file", nullptr}, {"bytes", 0}};
  return {{"file", file_->path().filename().string()}, {"bytes", file_->size()}};
}

void TensorBoardLogger::load_state(const io::Json& state) {
  const auto& file = state.at("file");
  const auto bytes = state.at("bytes").get<std::uint64_t>();
  if (!first_rank_) return;
  const auto kept = file.is_null() ? std::string() : file.get<std::string>();
  if (!kept.empty() && (!kept.starts_with(kPrefix) || kept.find('/') != std::string::npos))
    io::fail(folder_, "checkpoint: file '{}', allowed: {}...", io::printable(kept), kPrefix);
  file_.reset();
  if (kept.empty()) return;
  if (!std::filesystem::exists(folder_ / kept)) io::fail(folder_ / kept, "is not there, but the checkpoint names it");
  begin(kept);
  file_->truncate(bytes);
}

void TensorBoardLogger::log_metrics(const io::Json& metrics, std::int64_t step) {
  if (!first_rank_) return;
  std::vector<std::pair<std::string, float>> scalars;
  for (const auto& [name, value] : metrics.items())
    if (value.is_number()) scalars.emplace_back(name, value.get<float>());
  if (scalars.empty()) return;
  const double now = wall_time();
  if (file_ == nullptr) {
    begin(kPrefix + std::to_string(static_cast<std::int64_t>(now)) + "." + host_name());
    file_->append(version_record(now));
  }
  file_->append(scalars_record(now, step, scalars));
}

void TensorBoardLogger::on_save_checkpoint(Trainer&, std::int64_t) {
  if (file_ != nullptr) file_->sync();
}

}  // namespace fp8::trainer
