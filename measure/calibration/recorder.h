// SPDX-License-Identifier: Apache-2.0
// What a calibration has seen. Watchers show tensors to its recorder, which shows them to the observers of their
// modules, counts samples, and writes the files where that is due. A tensor with a NaN or Inf is listed instead. The
// recorder knows neither the model nor who watches it.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fp8/measure/calibration/files.h"
#include "fp8/measure/calibration/options.h"
#include "fp8/measure/calibration/tensor_memory.h"
#include "fp8/measure/calibration/watched_node.h"
#include "fp8/measure/files/measurement_file.h"
#include "fp8/measure/model/module_tree.h"

namespace fp8::measure {

class CalibrationSession;

/// A NaN or Inf seen in calibration data; its tensor was not shown to the observer in that call. The first 10000 are
/// kept.
struct NonFinite {
  std::string module, tensor;  ///< tensor: "input", "output" or "weight"; "input1" and so on where there are several
  std::int64_t sample = -1;    ///< index of the sample, -1 for weights
  bool nan = false;            ///< else infinite
};

/// Any thread may call it. What is public is the watchers'; the rest is the session's, whose part it is.
class Recorder {
 public:
  /// Throws std::invalid_argument for an unknown observer, and for parameters that it can't use.
  Recorder(CalibrationSession& session, CalibrationOptions options);

  /// Shows tensors to the observers of `records`; undefined ones are passed over.
  void observe(const std::vector<std::size_t>& records, const std::vector<at::Tensor>& inputs,
               const std::vector<at::Tensor>& outputs);
  /// One tensor, when it is known at another moment than the others.
  void observe_output(const std::vector<std::size_t>& records, std::size_t index, const at::Tensor& y);
  const configs::KindInfo& info_of(std::size_t record) const { return configs::info_of(records_[record].node.kind()); }
  /// Runs f and counts its time as watching.
  template <class F>
  auto timed(const F& f) {
    const auto start = std::chrono::steady_clock::now();
    auto result = f();
    const std::lock_guard<std::mutex> lock(mutex_);
    count_time_since(start);
    return result;
  }
  CalibrationSession& session() const { return session_; }

 private:
  friend class CalibrationSession;
  friend class StagedCalibration;

  /// A selected module.
  struct Record {
    WatchedNode node;
    bool looked_at = false;  ///< its weight was shown, whole or in parts
    std::optional<WeightFingerprint> weight = {};
  };

  /// Records are added before anything is watched, in the order of the files; then resume() puts in place what
  /// CalibrationOptions::resume says, and throws io::Error if that is none, or of another selection of modules.
  void add(const WeightModule& m);
  void add(const OpNode& node, bool aside);
  void resume();

  /// The record's weight is in memory, whole or in part (StagedCalibration): looked at once.
  void look_at(std::size_t record, const WeightModule& m);
  void look_at_part(std::size_t record, const WeightModule& m, const at::Tensor& part, std::int64_t first);
  bool observe_output_part(std::size_t record, const at::Tensor& y, std::int64_t first, std::int64_t columns,
                           bool reported);
  void forget_outputs(std::size_t record);

  void begin_samples(std::int64_t first, std::int64_t count);
  MeasurementFile result() const;
  io::Json snapshot() const;
  std::vector<NonFinite> non_finite() const;
  std::int64_t samples() const;
  double watch_seconds() const;
  /// Writes the files, unless told not to, and takes in nothing from then on. Returns their paths; none if it was
  /// finished before. If writing throws, it goes on recording.
  std::optional<std::vector<std::filesystem::path>> finish(bool write_files);

  // With mutex_ held.
  void show(std::size_t record, TensorRole role, std::size_t index, const at::Tensor& t);
  bool show_part(std::size_t record, TensorRole role, const at::Tensor& part, const PartOf& of, bool reported);
  bool finite(const std::string& module, TensorRole role, std::size_t index, const at::Tensor& t, float amax);
  void count_forward(std::size_t record);
  void count_time_since(std::chrono::steady_clock::time_point start);
  void write_if_due(std::int64_t done);
  MeasurementFile result_locked() const;
  io::Json observer_states(const MeasurementFile& file) const;
  std::vector<std::filesystem::path> write();

  CalibrationSession& session_;
  CalibrationOptions options_;
  ObserverSettings observers_;
  CalibrationFiles files_;
  mutable std::mutex mutex_;
  std::vector<Record> records_;
  std::vector<NonFinite> non_finite_;
  TensorMemory memory_;
  std::int64_t first_sample_ = 0, batch_ = 0, samples_ = 0, forwards_ = 0, writes_ = 0;
  std::optional<std::size_t> first_called_;  ///< its calls count the forwards
  double watch_seconds_ = 0;
  bool finished_ = false;
};

}  // namespace fp8::measure
