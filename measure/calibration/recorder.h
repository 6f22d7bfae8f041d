// SPDX-License-Identifier: Apache-2.0
// The record of a calibration. Watchers show tensors to its recorder, which shows them to the observers of their
// modules, counts samples, and writes the files where that is due. A tensor with a NaN or Inf is listed instead. The
// recorder knows neither the model nor who watches it.
#pragma once
#include <c10/core/UndefinedTensorImpl.h>

#include <chrono>

#include "fp8/measure/model/module_tree.h"
#include "fp8/measure/observers/observer.h"

// The options of a calibration, from its caller or a QUANT_CONFIG.

namespace fp8::measure {

// One module under calibration: an observer for each of its tensors, and the measurement that comes of them.
//
// The dimension of channels (maxabs_per_channel) is that of the features, in INC's way:
//   linear, attention, mixtures     last of inputs and outputs      first of the weight [N, K]
//   matmul a . b                    a: last, b: last but one, output: last
//   convolution [B, C, ...]         C                               first of the weight [C_out, ...]
//   embedding                                                       first of the weight [rows, D]
// A key-value cache that is kept aside is measured per head: dimension H of [B, H, S, E].

/// A tensor of a module and who observes it.
struct WatchedTensor {
  std::unique_ptr<Observer> observer;
  bool seen = false;
};

enum class TensorRole : std::uint8_t { input, output, weight };

/// Settings that all observers of a calibration share.
struct ObserverSettings {
  ObserverType type;
  ObserverContext context;  ///< module, tensor and what depends on them are filled in by WatchedNode
};

class WatchedNode {
 public:
  /// dims: of the weight, 0 for a module without one. outputs: whether outputs are observed.
  WatchedNode(std::string module, const std::string& type, std::int64_t weight_dims, bool inputs, bool outputs);

  const std::string& module() const { return module_; }
  configs::ModuleKind kind() const { return kind_; }
  bool observes(TensorRole role) const;
  /// A key-value cache whose measurement other tools do not see: per head, without its output.
  void keep_aside() { aside_ = true; }
  bool is_aside() const { return aside_; }
  /// A holder of an expert's weight, which another module multiplies with: INC shows it a 0 so that it has a node.
  bool is_holder() const { return holder_; }
  bool has_weight() const { return weight_dims_ > 0; }

  /// The observer of one tensor, made at the first call.
  WatchedTensor& tensor(TensorRole role, std::size_t index, const ObserverSettings& settings);

  /// none: it was never called, or an input was not seen whole.
  std::optional<Measurement> measurement() const;
  /// The observers' states: {"inputs": [...], "outputs": [...]?, "weight": ...?}.
  io::Json states() const;

  /// All there is to know of the node so far, bit for bit: {"inputs": [state or null, ...], "outputs": [...], "weight":
  /// state or null}; null for what was not seen. A null as the whole: an observer has no state.
  io::Json snapshot() const;
  /// Puts a snapshot in place of what was seen. Throws io::Error; `where` stands in its messages.
  void restore(const io::Json& snapshot, const ObserverSettings& settings, const std::string& where);
  /// Forgets what was seen of the outputs.
  void forget_outputs();

 private:
  ObserverContext context_for(TensorRole role, std::size_t index, const ObserverContext& base) const;

  std::string module_;
  configs::ModuleKind kind_;
  std::int64_t weight_dims_;
  bool holder_, watch_inputs_, watch_outputs_, aside_ = false;
  std::vector<WatchedTensor> inputs_, outputs_;
  WatchedTensor weight_;
};

// The amax of tensors looked at a moment ago: q, k and v read one x, and what softmax gives is what the next product
// takes. A tensor that meets several watched modules is looked at once.

/// max |t|, on the CPU's view of the memory; NaN if any is NaN, 0 for no elements.
float amax_of(const at::Tensor& t);

class TensorMemory {
 public:
  struct Entry {
    float amax = 0;
    std::any memo;  ///< results of observers about the tensor, kept for the others
  };

  /// The entry of `t`, made if it is not among the last few, or was written to since. Valid until the next call.
  /// read: false leaves amax 0, nothing is read.
  Entry& find(const at::Tensor& t, bool read);
  void clear();

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Slot {
    /// Weak, so that the tensor and its graph can go. It keeps the address from being given to another tensor, so the
    /// same address is the same tensor.
    WeakTensor tensor{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    std::uint32_t version = 0;
    Entry entry;
  };
  std::array<Slot, 4> slots_;
  std::size_t next_ = 0;
  Entry uncached_;
};

struct CalibrationOptions {
  /// Which modules to watch: (name, type) -> bool. Default: every Linear and Conv2d.
  std::function<bool(const std::string&, const std::string&)> select;
  /// Key-value caches that `select` leaves out and this one takes, by name: watched per head, kept aside
  /// (MeasurementFile::kv_cache).
  std::function<bool(const std::string&)> kv_cache = {};
  /// outputs: false leaves out the outputs of kinds that don't need them (configs::KindInfo::outputs_always).
  bool inputs = true, outputs = true, weights = true;
  /// Modules that add their ranks' results by themselves (configs::ModuleType::adds_ranks) are watched as
  /// row_parallel_linear: what each rank adds, and the sum, which they show by observe_reduced().
  bool reduced = false;
  /// The prefix of the files that finalize() writes, "stats/inc_output"; empty: none, the caller asks for result().
  std::string prefix;
  std::string observer = "maxabs";                             ///< observer_types.h
  std::map<std::string, double, std::less<>> parameters = {};  ///< of the observer
  recipes::Format format = recipes::Format::E4M3;              ///< of the later cast, for mse and kl,
  float fp8_max = 448.0f;                                      ///< and where that saturates
  std::optional<configs::Rank> rank = {};  ///< one of several processes: its own files, P_hooks_maxabs_0_8.json
  /// The files are written every so many samples too (0: at the end). Without begin_samples() a sample is one forward.
  std::int64_t sample_interval = 0;
  /// The snapshot() of an earlier calibration that this one continues; null: none.
  io::Json resume = nullptr;
};

struct ConfiguredCalibration {
  CalibrationOptions options;
  /// The filter behind options.select; after attach() it knows which entries of the lists matched nothing.
  std::shared_ptr<configs::ModuleFilter> filter;
};

/// Selects every type of configs::module_types() that INC's rule over allowlist and blocklist selects. Outputs are left
/// out by measure_exclude OUTPUT and ALL (as in INC the other values have no effect), the observer is "shape" in mode
/// SHAPE, mse and kl aim at fp8_config on device_for_scales, else on `device`. prefix: dump_stats_path (empty as it may
/// be: configs::require_stats_path). Throws io::Error for class names with a module path.
ConfiguredCalibration calibration_options(const configs::QuantConfig& config, recipes::Dialect device,
                                          const configs::Environment& environment);
/// On the device and in the environment of this process. Throws io::Error for environment variables that don't parse.
ConfiguredCalibration calibration_options(const configs::QuantConfig& config);

// The files that a calibration writes: its measurement, the observers' states beside it, and a backup of the earlier
// files.
//
//   P_hooks_{observer}R.json  .npz  _mod_list.json  .fingerprint      measurement_file.h
//   P_hooks_{observer}R.observers                                     states of observers that keep one
//   backup_{prefix}_{dd-mm_HH-MM-SS}/                                 everything P_hooks_* of an earlier run
//
// Several processes may calibrate one model together, each with its rank. At its first write a rank moves
//
//   files of this rank (or of none, if this has no rank)     backup
//   of another rank of as many                               stay: that rank moves them when it writes its own
//   of anything else (other numbers, scales, ...)            backup, unless written since this process began
//
// so that no rank touches what is another's, whether they run side by side, one after the other, or one of them again.
// The ranks of one run share a backup: who finds the newest one without its files puts them there. All under a lock of
// the folder: a run that fails before its first write has changed nothing, and where writing fails the files are put
// back.

class CalibrationFiles {
 public:
  /// prefix: "stats/inc_output"; empty: write() does nothing.
  CalibrationFiles(std::string prefix, MeasurementName name) : prefix_(std::move(prefix)), name_(std::move(name)) {}

  /// Writes the files, `states` only if it is not null; returns their paths. The first call makes the backup, later
  /// ones replace what it wrote. Throws io::Error.
  std::vector<std::filesystem::path> write(const MeasurementFile& file, const io::Json& states);
  /// Where the earlier files are now; empty: there were none, or nothing was written yet.
  const std::filesystem::path& backup() const { return backup_; }

 private:
  std::filesystem::path backup_;
  std::string prefix_;
  MeasurementName name_;
  bool written_ = false;
};

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
  void plan_samples(std::int64_t count);
  std::filesystem::path backup() const;
  double watch_seconds() const;
  /// Writes the files unless `write_files` is false, and takes in nothing from then on. Returns their paths; none if it
  /// was finished before. If writing throws, recording continues.
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
  std::int64_t first_sample_ = 0, batch_ = 0, samples_ = 0, planned_ = 0, forwards_ = 0, writes_ = 0;
  std::optional<std::size_t> first_called_;  ///< its calls count the forwards
  double watch_seconds_ = 0;
  bool finished_ = false;
};

// Snapshots of a calibration (CalibrationSession::snapshot()) of which several processes each have a part.

/// The snapshot of one process that looked at all modules, of those of several that ran the same samples through a
/// part of the model each: what is known of a module is what parts[owner(module)] knows. Throws io::Error for parts of
/// other modules or another number of samples.
io::Json join_snapshots(const std::vector<io::Json>& parts,
                        const std::function<std::size_t(const std::string&)>& owner);

}  // namespace fp8::measure
