// SPDX-License-Identifier: Apache-2.0
// Calibration: the model runs on real data while watchers, hung on its weights and put into the slots of modules
// without a weight, show what passes to observers. The watched ops run as they always do: not a bit of the model's
// results changes.
//
//   kind                 inputs           outputs
//   linear, convolution  x                y
//   recurrent            what this weight multiplies, at every step   the product
//   row_parallel_linear  x                y of this process without bias; y after the all-reduce (observe_reduced())
//   embedding            -                -                                              the weight alone
//   matmul               a, b             a . b
//   softmax              logits, without the -inf of masks            P
//   fused_sdpa           q, k, v          o, largest P
//   kv_cache             what is stored   what is read
//   dynamic_moe          hidden states    y, the largest activation of each held expert (0: it got no tokens)
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fp8/measure/calibration/recorder.h"

namespace fp8::measure {

class ModuleWatcher;
class WeightWatcher;

/// One calibration of one model. Lives as long as the watchers on the model's weights and in its slots do.
class CalibrationSession : public std::enable_shared_from_this<CalibrationSession> {
 public:
  /// Watches the model's selected modules (weights all on hpu, else c10::Error naming the module). Throws
  /// std::invalid_argument for an unknown observer.
  static std::shared_ptr<CalibrationSession> attach(const torch::nn::Module& model, CalibrationOptions options);
  static std::shared_ptr<CalibrationSession> attach(const torch::jit::Module& model, CalibrationOptions options);
  static std::shared_ptr<CalibrationSession> attach(const std::vector<WeightModule>& weights,
                                                    const std::vector<OpNode>& ops, CalibrationOptions options);

  /// The session whose watchers sit in the model; null if none.
  static std::shared_ptr<CalibrationSession> of(const torch::nn::Module& model);
  static std::shared_ptr<CalibrationSession> of(const torch::jit::Module& model);

  /// Writes the files if a prefix was given and finalize() was not called (errors go to stderr). So does the end of the
  /// program while the session lives.
  virtual ~CalibrationSession() { write_if_unfinished("a destroyed model"); }
  CalibrationSession(const CalibrationSession&) = delete;
  CalibrationSession& operator=(const CalibrationSession&) = delete;

  /// The next forward sees samples [first, first + count): names them in NonFinite and counts them. Throws io::Error if
  /// the files were due (sample_interval) and can't be written.
  void begin_samples(std::int64_t first, std::int64_t count) { recorder_.begin_samples(first, count); }

  MeasurementFile result() const { return recorder_.result(); }
  std::vector<NonFinite> non_finite() const { return recorder_.non_finite(); }
  std::int64_t samples() const { return recorder_.samples(); }
  /// Time spent looking at tensors so far: what measuring costs on top of the plain forward.
  double watch_seconds() const { return recorder_.watch_seconds(); }
  bool watches_ops() const { return !op_watchers_.empty(); }
  /// All that was seen so far, bit for bit, for CalibrationOptions::resume. null: the observer has no state.
  io::Json snapshot() const { return recorder_.snapshot(); }

  /// Writes the files (none without a prefix) and retires the watchers, which pass everything through from then on.
  /// Returns the paths; a second call does nothing. If writing throws, the calibration goes on: mend the cause and call
  /// again.
  std::vector<std::filesystem::path> finalize();
  /// Retires the watchers and writes nothing, now and later: the run failed.
  void discard();

 protected:
  /// What options.select and options.kv_cache take of a model.
  struct Selection {
    std::vector<const WeightModule*> weights;
    std::vector<std::pair<const OpNode*, bool>> ops;  ///< true: kept aside
  };
  using WatchersByMemory = std::map<const void*, std::shared_ptr<WeightWatcher>>;  ///< tied weights share one

  /// Throws c10::Error for a module that can't be watched. in_memory: the weights' values are there.
  static Selection select(const std::vector<WeightModule>& weights, const std::vector<OpNode>& ops,
                          const CalibrationOptions& options, bool in_memory);

  explicit CalibrationSession(CalibrationOptions options) : recorder_(*this, std::move(options)) {}
  /// Makes the records, weights first, and watches the modules without one.
  void begin(const Selection& selection);
  /// Looks at a weight that is in memory, and watches it.
  void watch(std::size_t record, const WeightModule& m, WatchersByMemory& watchers);
  /// As watchers hold it: with the session that it is a part of.
  std::shared_ptr<Recorder> recorder() { return {shared_from_this(), &recorder_}; }

  Recorder recorder_;
  std::vector<std::weak_ptr<WeightWatcher>> watchers_;  ///< weak: the model owns the watchers, and they own the session
  std::vector<std::weak_ptr<ModuleWatcher>> op_watchers_;

 private:
  friend class ExitDump;

  void write_if_unfinished(const char* of_what) noexcept;
  void retire_watchers();

  bool attached_ = false;  ///< the whole model is watched: the files are written even if nobody calls finalize()
};

/// Of a RowParallelLinear that is calibrated: y after the all-reduce. Called by the module itself, with its weight;
/// does nothing when the weight is not watched.
void observe_reduced(const at::Tensor& weight, const at::Tensor& y);

/// Ends the calibration of `model`: writes its measurement files and takes the watchers off. Returns the paths. Throws
/// if the model is not being calibrated.
std::vector<std::filesystem::path> finalize_calibration(const torch::nn::Module& model);
std::vector<std::filesystem::path> finalize_calibration(const torch::jit::Module& model);

}  // namespace fp8::measure
