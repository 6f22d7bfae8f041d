// SPDX-License-Identifier: Apache-2.0
// Rows of numbers for TensorBoard: FOLDER/events.out.tfevents.SECONDS.HOST, an event for each row.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "fp8/runtime/trainer/loggers/log_file.h"
#include "fp8/runtime/trainer/loggers/logger.h"

namespace fp8::trainer {

class TensorBoardLogger : public Logger {
 public:
  /// Makes the folder; the file is begun by the first row. Throws io::Error.
  explicit TensorBoardLogger(std::filesystem::path folder);

  std::filesystem::path place() const override { return folder_; }
  std::string state_key() const override { return "TensorBoardLogger." + folder_.filename().string(); }
  io::Json state() const override;
  /// A resumed run goes on with the file that it was writing, without what stands there behind the checkpoint. Throws
  /// io::Error for a file that is not there.
  void load_state(const io::Json& state) override;

  /// What is no finite number is left out: TensorBoard shows nothing of it. Throws io::Error.
  void log_metrics(const io::Json& metrics, std::int64_t step) override;
  void on_save_checkpoint(Trainer& trainer, std::int64_t step) override;

 private:
  void begin(const std::string& name);

  std::filesystem::path folder_;
  bool first_rank_;
  std::unique_ptr<LogFile> file_;
};

}  // namespace fp8::trainer
