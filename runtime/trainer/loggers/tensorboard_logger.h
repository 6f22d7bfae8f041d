// SPDX-License-Identifier: Apache-2.0
// Rows of numbers for TensorBoard: FOLDER/events.out.tfevents.SECONDS.HOST, an event for each row.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fp8/runtime/trainer/loggers/logger.h"

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

namespace fp8::trainer {

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
  /// A resumed run goes on with the file that it was writing, without what stands there behind the checkpoint. Throws
  /// io::Error for a file that is not there.
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
