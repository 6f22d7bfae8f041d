// SPDX-License-Identifier: Apache-2.0
// Calibration: the model runs on real data while watchers, hung on its weights, keep the largest magnitude of every input, output
// and weight. The watched ops run as they always do: not a bit of the model's results changes.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fp8/measure/measurement_file.h"
#include "fp8/measure/module_tree.h"

namespace fp8::measure {

class WeightWatcher;

struct CalibrationOptions {
  /// Which modules to watch: (name, type) -> bool. Default: every Linear and Conv2d.
  std::function<bool(const std::string&, const std::string&)> select;
  bool inputs = true, outputs = true, weights = true;
  /// Where finalize() writes, "stats/inc_output"; empty: nowhere, the caller asks for result().
  std::string prefix;
};

/// A NaN or Inf seen in calibration data; its tensor's amax of that call was not stored. The first 10000 are kept.
struct NonFinite {
  std::string module, tensor;  ///< tensor: "input", "output" or "weight"
  std::int64_t sample = -1;    ///< index of the sample, -1 for weights
  bool nan = false;            ///< else infinite
};

/// One calibration of one model. Lives as long as the watchers on the model's weights do.
class CalibrationSession : public std::enable_shared_from_this<CalibrationSession> {
 public:
  /// Watches the model's selected weights (all on hpu, else c10::Error naming the module).
  static std::shared_ptr<CalibrationSession> attach(const torch::nn::Module& model, CalibrationOptions options);
  static std::shared_ptr<CalibrationSession> attach(const torch::jit::Module& model, CalibrationOptions options);
  /// The session whose watchers sit on the model's weights; null if none.
  static std::shared_ptr<CalibrationSession> of(const torch::nn::Module& model);
  static std::shared_ptr<CalibrationSession> of(const torch::jit::Module& model);

  /// Writes the files if a prefix was given and finalize() was not called (errors go to stderr).
  ~CalibrationSession();

  /// The next forward sees samples [first, first + count): names them in NonFinite and counts them.
  void begin_samples(std::int64_t first, std::int64_t count);

  MeasurementFile result() const;
  std::vector<NonFinite> non_finite() const;
  std::int64_t samples() const;
  /// Time spent looking at tensors so far: what measuring costs on top of the plain forward.
  double watch_seconds() const;

  /// Writes the files (none without a prefix) and retires the watchers, which pass everything through from then on. Returns the paths; a
  /// second call does nothing. If writing throws, the calibration goes on: mend the cause and call again.
  std::vector<std::filesystem::path> finalize();
  /// Retires the watchers and writes nothing, now and later: the run failed.
  void discard();

 private:
  friend class WeightWatcher;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  /// What one module showed so far.
  struct Record {
    std::string module;
    float input = 0, output = 0, weight = 0;
    bool called = false, output_seen = false, weight_seen = false;
  };

  explicit CalibrationSession(CalibrationOptions options) : options_(std::move(options)) {}
  static std::shared_ptr<CalibrationSession> attach(const std::vector<WeightModule>& modules, CalibrationOptions options);
  static std::shared_ptr<CalibrationSession> of(const std::vector<WeightModule>& modules);
  MeasurementFile result_locked() const;
  float input_amax(const at::Tensor& x);
  void observe(const std::vector<std::size_t>& records, const at::Tensor& x, const at::Tensor& y);
  void take_off(std::unique_lock<std::mutex> lock);
  bool finite(const Record& record, const char* tensor, const at::Tensor& t, float amax);

  CalibrationOptions options_;
  mutable std::mutex mutex_;
  std::vector<Record> records_;      ///< one per selected module, in order
  std::vector<std::weak_ptr<WeightWatcher>> watchers_;  ///< weak: the weights own the watchers, and they own the session
  std::vector<NonFinite> non_finite_;
  std::int64_t first_sample_ = 0, batch_ = 0, samples_ = 0;
  double watch_seconds_ = 0;
  WeakTensor last_input_{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};  ///< q, k and v read one x: its amax is taken once; weak, so that x and its graph can go
  std::uint32_t last_version_ = 0;
  float last_amax_ = 0;
  bool finalized_ = false;
};

/// Ends the calibration of `model`: writes its measurement files and takes the watchers off. Returns the paths. Throws if the model is
/// not being calibrated.
std::vector<std::filesystem::path> finalize_calibration(const torch::nn::Module& model);
std::vector<std::filesystem::path> finalize_calibration(const torch::jit::Module& model);

}  // namespace fp8::measure
