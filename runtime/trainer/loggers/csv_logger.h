// SPDX-License-Identifier: Apache-2.0
// Rows of numbers as a table, metrics.csv as Lightning's CSVLogger has it:
//
//   step,epoch,loss,lr
//   1,0,5.54,1e-05
//   2,0,,2e-05              empty: the row had no such number
//
// Rows of one step are one line, written when the next step's row comes, or a checkpoint. A number that was not there
// before adds a column: the file is written again. Resuming drops the lines behind the checkpoint.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "fp8/runtime/trainer/loggers/logger.h"

namespace fp8::trainer {

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

}  // namespace fp8::trainer
