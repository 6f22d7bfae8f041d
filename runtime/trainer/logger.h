// SPDX-License-Identifier: Apache-2.0
// Where rows of named numbers go during fit(), validate() and test(): a callback that others find by
// Trainer::loggers(). One to a file:
//
//   {"step": 3, "DeviceStatsMonitor.on_train_batch_start/Limit": 67396767744, ...}      a line for each row
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/trainer_callback.h"

namespace fp8::trainer {

class Logger : public TrainerCallback {
 public:
  bool is_logger() const override { return true; }
  /// metrics: an object, name to number. step: optimizer steps that were done.
  virtual void log_metrics(const io::Json& metrics, std::int64_t step) = 0;
};

/// Throws std::invalid_argument "[who] loggers: found none ..." where the trainer has none. A fast_dev_run needs none.
void check_loggers(const Trainer& trainer, const char* who);

/// `row` as a line at the end of an open file; path: what errors name. Throws io::Error for one that can't be written.
void append_line(const io::Descriptor& file, const std::filesystem::path& path, const io::Json& row);

/// A line of JSON for each row, added to the file. Where a launcher started several processes only rank 0 writes.
class JsonlLogger : public Logger {
 public:
  /// Throws io::Error for a file that can't be opened.
  explicit JsonlLogger(std::filesystem::path path);
  /// Throws io::Error for a line that can't be written.
  void log_metrics(const io::Json& metrics, std::int64_t step) override;

 private:
  std::filesystem::path path_;
  io::Descriptor file_;  ///< none on other ranks
};

}  // namespace fp8::trainer
