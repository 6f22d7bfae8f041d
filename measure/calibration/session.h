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
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fp8/configs/stats_path.h"
#include "fp8/measure/calibration/files.h"
#include "fp8/measure/calibration/tensor_memory.h"
#include "fp8/measure/calibration/watched_node.h"
#include "fp8/measure/files/measurement_file.h"
#include "fp8/measure/model/module_tree.h"
#include "fp8/recipes/format.h"

namespace fp8::measure {

class ModuleWatcher;
class WeightWatcher;

struct CalibrationOptions {
  /// Which modules to watch: (name, type) -> bool. Default: every Linear and Conv2d.
  std::function<bool(const std::string&, const std::string&)> select;
  /// Key-value caches that `select` leaves out and this one takes, by name: watched per head, kept aside
  /// (MeasurementFile::kv_cache).
  std::function<bool(const std::string&)> kv_cache = {};
  /// outputs: false leaves out the outputs of kinds that don't need them (configs::KindInfo::outputs_always).
  bool inputs = true, outputs = true, weights = true;
  /// Where finalize() writes, "stats/inc_output"; empty: nowhere, the caller asks for result().
  std::string prefix;
  std::string observer = "maxabs";                             ///< observer.h
  std::map<std::string, double, std::less<>> parameters = {};  ///< of the observer: percentile, bins, save_mib
  recipes::Format format = recipes::Format::E4M3;              ///< what will be cast to, for mse and kl,
  float fp8_max = 448.0f;                                      ///< and where that saturates
  std::optional<configs::Rank> rank = {};  ///< one of several processes: its own files, P_hooks_maxabs_0_8.json
  /// The files are written every so many samples too (0: at the end). Without begin_samples() a sample is one forward.
  std::int64_t sample_interval = 0;
  /// What snapshot() of an earlier calibration said, which this one goes on from; null: from the beginning.
  io::Json resume = nullptr;
};

/// A NaN or Inf seen in calibration data; its tensor was not shown to the observer in that call. The first 10000 are
/// kept.
struct NonFinite {
  std::string module, tensor;  ///< tensor: "input", "output" or "weight"; "input1" and so on where there are several
  std::int64_t sample = -1;    ///< index of the sample, -1 for weights
  bool nan = false;            ///< else infinite
};

/// One calibration of one model. Lives as long as the watchers on the model's weights and in its slots do.
class CalibrationSession : public std::enable_shared_from_this<CalibrationSession> {
 public:
  /// Watches the model's selected modules (weights all on hpu, else c10::Error naming the module). Throws
  /// std::invalid_argument for an unknown observer.
  static std::shared_ptr<CalibrationSession> attach(const torch::nn::Module& model, CalibrationOptions options);
  static std::shared_ptr<CalibrationSession> attach(const torch::jit::Module& model, CalibrationOptions options);
  static std::shared_ptr<CalibrationSession> attach(const std::vector<WeightModule>& weights,
                                                    const std::vector<OpNode>& ops, CalibrationOptions options);
  /// A calibration of a model whose weights are in memory one after the other: the modules are selected and their order
  /// in the files is settled, but only `ops` are watched. Of the weights the sizes count; the values come with enter().
  /// Such a session writes nothing unless finalize() is called.
  static std::shared_ptr<CalibrationSession> plan(const std::vector<WeightModule>& weights,
                                                  const std::vector<OpNode>& ops, CalibrationOptions options);
  /// These weights are in memory now: the selected ones among them are looked at and watched, until leave(). Throws
  /// c10::Error for a weight that can't be watched, io::Error for one whose sizes are not those of the plan.
  void enter(const std::vector<WeightModule>& weights);
  /// Takes the watchers off weights that entered.
  void leave(const std::vector<WeightModule>& weights);

  /// A weight too large to enter: rows [first, first + part.size(0)) of it, part after part, each once. `weight` has
  /// its sizes. For observers that take parts (observer.h).
  void look_at_part(const WeightModule& weight, const at::Tensor& part, std::int64_t first);
  /// What came of the product with such a part: columns [first, ...) of a `columns` wide last dimension. False if they
  /// hold a NaN or Inf: they were not shown then, and the caller sees to it that no other part of the same output is
  /// (forget_outputs(), and again without that call). reported: whether a NonFinite is to be listed.
  bool observe_output_part(std::size_t record, const at::Tensor& y, std::int64_t first, std::int64_t columns,
                           bool reported = true);
  void forget_outputs(std::size_t record);
  /// The record of a selected module; none: it is not selected.
  std::optional<std::size_t> record_of(const std::string& module) const;
  bool takes_parts() const { return observers_.type.takes_parts; }

  /// All that was seen so far, bit for bit, for CalibrationOptions::resume. null: the observer has no state.
  io::Json snapshot() const;

  /// The session whose watchers sit in the model; null if none.
  static std::shared_ptr<CalibrationSession> of(const torch::nn::Module& model);
  static std::shared_ptr<CalibrationSession> of(const torch::jit::Module& model);

  /// Writes the files if a prefix was given and finalize() was not called (errors go to stderr). So does the end of the
  /// program while the session lives.
  ~CalibrationSession();

  /// The next forward sees samples [first, first + count): names them in NonFinite and counts them. Throws io::Error if
  /// the files were due (sample_interval) and can't be written.
  void begin_samples(std::int64_t first, std::int64_t count);

  MeasurementFile result() const;
  std::vector<NonFinite> non_finite() const;
  std::int64_t samples() const;
  bool watches_ops() const { return !op_watchers_.empty(); }
  /// Time spent looking at tensors so far: what measuring costs on top of the plain forward.
  double watch_seconds() const;

  /// Writes the files (none without a prefix) and retires the watchers, which pass everything through from then on.
  /// Returns the paths; a second call does nothing. If writing throws, the calibration goes on: mend the cause and call
  /// again.
  std::vector<std::filesystem::path> finalize();
  /// Retires the watchers and writes nothing, now and later: the run failed.
  void discard();

  /// For watchers. Shows tensors to the observers of `records`; undefined ones are passed over.
  void observe(const std::vector<std::size_t>& records, const std::vector<at::Tensor>& inputs,
               const std::vector<at::Tensor>& outputs);
  /// One tensor, when it is known at another moment than the others.
  void observe_output(const std::vector<std::size_t>& records, std::size_t index, const at::Tensor& y);
  /// For watchers: the kind of a record.
  configs::ModuleKind kind_of(std::size_t record) const { return records_[record].kind(); }
  /// For watchers: runs f and counts its time as watching.
  template <class F>
  auto timed(const F& f) {
    const auto start = std::chrono::steady_clock::now();
    auto result = f();
    const std::lock_guard<std::mutex> lock(mutex_);
    watch_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
  }

 private:
  friend class ExitDump;

  explicit CalibrationSession(CalibrationOptions options);
  static std::shared_ptr<CalibrationSession> create(const std::vector<WeightModule>& weights,
                                                    const std::vector<OpNode>& ops, CalibrationOptions options,
                                                    bool in_stages);
  void add_weight(std::size_t index, const WeightModule& module,
                  std::map<const void*, std::shared_ptr<WeightWatcher>>& by_memory);
  void add_op(const OpNode& node, bool aside);
  void restore(const io::Json& snapshot);
  bool show_part(std::size_t record, TensorRole role, const at::Tensor& part, const PartOf& of, bool reported);
  MeasurementFile result_locked() const;
  std::vector<std::filesystem::path> write_locked();
  void write_if_unfinished(const char* of_what) noexcept;
  void show(std::size_t record, TensorRole role, std::size_t index, const at::Tensor& t);
  bool finite(const std::string& module, TensorRole role, std::size_t index, const at::Tensor& t, float amax);
  void count_forward(std::size_t record);
  void dump_if_due(std::int64_t done);
  void take_off(std::unique_lock<std::mutex> lock);

  CalibrationOptions options_;
  ObserverSettings observers_;
  CalibrationFiles files_;
  mutable std::mutex mutex_;
  std::vector<WatchedNode> records_;                  ///< one per selected module; their number is fixed after attach()
  std::map<std::string, std::size_t> by_name_;        ///< record of each module
  std::vector<bool> looked_at_;                       ///< by record: its weight was shown, whole or in parts
  std::map<std::size_t, WeightFingerprint> weights_;  ///< by record
  std::vector<std::weak_ptr<WeightWatcher>> watchers_;  ///< weak: the model owns the watchers, and they own the session
  std::vector<std::weak_ptr<ModuleWatcher>> op_watchers_;
  std::vector<NonFinite> non_finite_;
  TensorMemory memory_;
  std::int64_t first_sample_ = 0, batch_ = 0, samples_ = 0, forwards_ = 0, dumps_ = 0;
  std::optional<std::size_t> first_called_;  ///< its calls count the forwards
  double watch_seconds_ = 0;
  bool finalized_ = false, in_stages_ = false;
};

/// Of a RowParallelLinear that is calibrated: y after the all-reduce. Called by the module itself, with its weight;
/// does nothing when the weight is not watched.
void observe_reduced(const at::Tensor& weight, const at::Tensor& y);

/// Ends the calibration of `model`: writes its measurement files and takes the watchers off. Returns the paths. Throws
/// if the model is not being calibrated.
std::vector<std::filesystem::path> finalize_calibration(const torch::nn::Module& model);
std::vector<std::filesystem::path> finalize_calibration(const torch::jit::Module& model);

}  // namespace fp8::measure
