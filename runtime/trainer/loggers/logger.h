// SPDX-License-Identifier: Apache-2.0
// Where rows of named numbers go during fit() and the other loops: a callback that others find by Trainer::loggers().
// One to a file:
//
//   {"step": 3, "DeviceStatsMonitor.on_train_batch_start/Limit": 67396767744, ...}      a line for each row
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/trainer_callback.h"

// A file that a logger adds to. Where a launcher started several processes only rank 0 has it open.

namespace fp8::trainer {

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

}  // namespace fp8::trainer
