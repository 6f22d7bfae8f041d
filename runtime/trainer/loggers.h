// SPDX-License-Identifier: Apache-2.0
// Callbacks that take the rows of named numbers of fit() and the other loops; others find them by Trainer::loggers().
// One to a file:
//
//   {"step": 3, "DeviceStatsMonitor.on_train_batch_start/Limit": 67396767744, ...}      a line for each row
#pragma once

#include "fp8/runtime/trainer/training_module.h"

namespace fp8::trainer {

// A file that a logger adds to. Where a launcher started several processes only rank 0 has it open.

class LogFile {
 public:
  /// Throws io::Error for a file that can't be opened.
  explicit LogFile(std::filesystem::path path);

  int descriptor() const { return file_.get(); }
  bool writes() const { return file_.get() >= 0; }
  const std::filesystem::path& path() const { return path_; }
  /// All below do nothing where this process does not write, and throw io::Error for what can't be done.
  void append(std::string_view bytes);
  void sync();
  std::uint64_t size() const;
  /// Drops what is behind `size`: what a killed run added after its checkpoint. A shorter file is an error.
  void truncate(std::uint64_t size);
  /// Of a file that was written anew under the same name.
  void reopen();

 private:
  std::filesystem::path path_;
  io::Descriptor file_;
};

class Logger : public TrainerCallback {
 public:
  bool is_logger() const override { return true; }
  /// metrics: an object, name to number. step: optimizer steps that were done.
  virtual void log_metrics(const io::Json& metrics, std::int64_t step) = 0;
  /// The file or folder that it writes: two of a trainer cannot share it.
  virtual std::filesystem::path place() const { return {}; }
  /// No row follows: fit(), or a loop outside of it, has ended, and so have all callbacks' parts in it.
  virtual void finalize() {}
};

/// The row to each of the trainer's loggers; an empty one to none.
void log_to_all(const Trainer& trainer, const io::Json& row, std::int64_t step);

/// Throws std::invalid_argument "[who] loggers: found none ..." where the trainer has none. A fast_dev_run needs none.
void check_loggers(const Trainer& trainer, const char* who);

/// `row` as a line at the end of the file. Throws io::Error for one that can't be written.
void append_line(LogFile& file, const io::Json& row);

/// A line of JSON for each row, added to the file. A resumed run drops the lines behind its checkpoint.
class JsonlLogger : public Logger {
 public:
  /// Throws io::Error for a file that can't be opened.
  explicit JsonlLogger(std::filesystem::path path) : file_(std::move(path)) {}

  std::filesystem::path place() const override { return file_.path(); }
  std::string state_key() const override { return "JsonlLogger." + file_.path().filename().string(); }
  io::Json state() const override { return {{"bytes", file_.size()}}; }
  /// Throws io::Error for a file that is shorter.
  void load_state(const io::Json& state) override { file_.truncate(state.at("bytes").get<std::uint64_t>()); }
  void start_over() override { file_.truncate(0); }
  /// Both throw io::Error for what can't be written.
  void log_metrics(const io::Json& metrics, std::int64_t step) override;
  void on_save_checkpoint(Trainer&, std::int64_t) override { file_.sync(); }

 private:
  LogFile file_;
};

// Rows of numbers as a table, metrics.csv as Lightning's CSVLogger has it:
//
//   step,epoch,loss,lr
//   1,0,5.54,1e-05
//   2,0,,2e-05              empty: the row had no such number
//
// Rows of one step are one line, written when the next step's row comes, or a checkpoint. A number that was not there
// before adds a column: the file is written again. Resuming drops the lines behind the checkpoint.

class CsvLogger : public Logger {
 public:
  /// Adds to a table that is there. Throws io::Error for a file that can't be opened or is no such table.
  explicit CsvLogger(std::filesystem::path file);

  std::filesystem::path place() const override { return file_.path(); }
  std::string state_key() const override { return "CsvLogger." + file_.path().filename().string(); }
  io::Json state() const override { return {{"lines", lines_}}; }
  /// Throws io::Error for a table with fewer lines.
  void load_state(const io::Json& state) override;
  void start_over() override;

  /// All three throw io::Error for what can't be written. Of a metric that is no number JSON's text is the cell.
  void log_metrics(const io::Json& metrics, std::int64_t step) override;
  void on_save_checkpoint(Trainer& trainer, std::int64_t step) override;
  void finalize() override;

 private:
  void add_columns();
  void flush();

  LogFile file_;
  std::vector<std::string> columns_ = {};  ///< step's first; empty: the file is
  std::int64_t lines_ = 0;                 ///< below the names
  std::map<std::string, std::string> row_ = {};
};

// Rows of numbers for TensorBoard: FOLDER/events.out.tfevents.SECONDS.HOST, an event for each row.
// TensorBoard's event files (tensorboard/compat/proto/event.proto, summary.proto; TensorFlow's record_writer):
// records one behind the other,
//
//   length  u64 little endian          data  length bytes, an Event
//   masked CRC-32C of length  u32      masked CRC-32C of data  u32          masked = rotate_right(crc, 15) + 0xa282ead8
//
//   Event    { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
//   Summary  { repeated Value value = 1; }      Value { string tag = 1; float simple_value = 2; }
//
// The first event of a file has file_version "brain.Event:2". No TensorFlow here.

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `bytes`.
std::uint32_t crc32c(std::string_view bytes);

/// An Event as a record. wall_time: seconds since 1970.
std::string version_record(double wall_time);
std::string scalars_record(double wall_time, std::int64_t step,
                           const std::vector<std::pair<std::string, float>>& scalars);

class TensorBoardLogger : public Logger {
 public:
  /// Makes the folder; the file is begun by the first row. Throws io::Error.
  explicit TensorBoardLogger(std::filesystem::path folder);

  std::filesystem::path place() const override { return folder_; }
  std::string state_key() const override { return "TensorBoardLogger." + folder_.filename().string(); }
  io::Json state() const override;
  /// Continues the file that the resumed run was writing, without the rows behind the checkpoint. Throws io::Error for
  /// a file that is not there.
  void load_state(const io::Json& state) override;

  /// Values that are not finite are left out: TensorBoard does not draw them. Throws io::Error.
  void log_metrics(const io::Json& metrics, std::int64_t step) override;
  void on_save_checkpoint(Trainer& trainer, std::int64_t step) override;

 private:
  void begin(const std::string& name);

  std::filesystem::path folder_;
  bool first_rank_;
  std::unique_ptr<LogFile> file_;
};

}  // namespace fp8::trainer
