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

#include "fp8/measure/calibration/recorder.h"
#include "fp8/runtime/modules/node.h"

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
  CalibrationSession& operator=(CalibrationSession&&) = delete;

  /// The next forward sees samples [first, first + count): names them in NonFinite and counts them. Throws io::Error if
  /// the files were due (sample_interval) and can't be written.
  void begin_samples(std::int64_t first, std::int64_t count) { recorder_.begin_samples(first, count); }

  /// How many samples there are to be: the files say it where it comes to fewer.
  void plan_samples(std::int64_t count) { recorder_.plan_samples(count); }

  MeasurementFile result() const { return recorder_.result(); }
  std::vector<NonFinite> non_finite() const { return recorder_.non_finite(); }
  std::int64_t samples() const { return recorder_.samples(); }
  /// Where the files of an earlier measurement are since the files were written; empty: there were none.
  std::filesystem::path backup() const { return recorder_.backup(); }
  /// Time spent looking at tensors so far: what measuring costs on top of the plain forward.
  double watch_seconds() const { return recorder_.watch_seconds(); }
  bool watches_ops() const { return !op_watchers_.empty(); }
  /// All that was seen so far, bit for bit, for CalibrationOptions::resume. null: the observer has no state.
  io::Json snapshot() const { return recorder_.snapshot(); }

  /// Writes the files (none without a prefix) and retires the watchers, which pass everything through from then on.
  /// Returns the paths; a second call does nothing. If writing throws, the calibration continues: mend the cause and
  /// call again.
  std::vector<std::filesystem::path> finalize();
  /// Retires the watchers and writes nothing, now and later: the run failed.
  void discard();

 protected:
  /// The weights and nodes that options.select and options.kv_cache take.
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

  bool attached_ = false;  ///< the whole model is watched: the files are written without a call of finalize() too
};

/// Of a RowParallelLinear that is calibrated: y after the all-reduce. Called by the module itself, with its weight;
/// does nothing when the weight is not watched, or not as one whose ranks add their results.
void observe_reduced(const at::Tensor& weight, const at::Tensor& y);

/// Ends the calibration of `model`: writes its measurement files and takes the watchers off. Returns the paths. Throws
/// if the model is not being calibrated.
std::vector<std::filesystem::path> finalize_calibration(const torch::nn::Module& model);
std::vector<std::filesystem::path> finalize_calibration(const torch::jit::Module& model);

// Calibration of a model whose weights are in memory one after the other.
//
//   session = StagedCalibration::plan(weights, ops, options)
//   of each layer:   session->enter(its weights)    run it on all of the data    session->leave(its weights)
//   of a weight that is too large to enter, part after part:
//                    look_at_part(weight, part, first)    observe_output_part(record, product with the part, ...)

/// Writes nothing unless finalize() is called: what is known of half the model is no measurement.
class StagedCalibration final : public CalibrationSession {
 public:
  /// The modules are selected and their order in the files is settled, but only `ops` are watched. Of the weights the
  /// sizes count; the values come with enter().
  static std::shared_ptr<StagedCalibration> plan(const std::vector<WeightModule>& weights,
                                                 const std::vector<OpNode>& ops, CalibrationOptions options);

  /// These weights are in memory now: the selected ones among them are looked at and watched, until leave(). Throws
  /// c10::Error for a weight that can't be watched.
  void enter(const std::vector<WeightModule>& weights);
  /// Takes the watchers off weights that entered.
  void leave(const std::vector<WeightModule>& weights);

  /// The record of a selected module; none: it is not selected.
  std::optional<std::size_t> record_of(const std::string& module) const;
  /// The observer can be shown parts of a tensor (observer.h).
  bool takes_parts() const { return recorder_.observers_.type.takes_parts; }
  /// All that the observers know is in their states: another process can go on from a snapshot, or join its own.
  bool keeps_states() const;

  /// Rows [first, first + part.size(0)) of a weight, part after part, each once. `weight` has its sizes.
  void look_at_part(const WeightModule& weight, const at::Tensor& part, std::int64_t first);
  /// The tensor that such a weight multiplies.
  void observe_input(std::size_t record, const at::Tensor& x) { recorder_.observe({record}, {x}, {}); }
  /// The result of the product with such a part: columns [first, ...) of a `columns` wide last dimension. False if they
  /// hold a NaN or Inf: they were not shown then, and the caller sees to it that no other part of the same output is
  /// (forget_outputs(), and again without that call). reported: whether a NonFinite is to be listed.
  bool observe_output_part(std::size_t record, const at::Tensor& y, std::int64_t first, std::int64_t columns,
                           bool reported = true) {
    return recorder_.observe_output_part(record, y, first, columns, reported);
  }
  void forget_outputs(std::size_t record) { recorder_.forget_outputs(record); }

 private:
  explicit StagedCalibration(CalibrationOptions options) : CalibrationSession(std::move(options)) {}

  std::map<std::string, std::size_t> records_;  ///< of modules with a weight, by name
};

// A program that ends while a calibration lives, by exit() or by a model that is never destroyed, keeps what was
// measured.

class CalibrationSession;

class ExitDump {
 public:
  /// Writes the session's files at the end of this process if it lives until then and was not finalized.
  static void at_exit(const std::shared_ptr<CalibrationSession>& session);

 private:
  struct List;
};

// Calibration as operators (the list of all: runtime/intercept/tag_operators.h). A session is a number; measure_end()
// ends it, and so does the end of the program, which writes its files.
//
//   s = fp8::measure_begin(weights, modules, types, biases, "stats/inc_output")    run data    fp8::measure_end(s)

using Biases = c10::List<std::optional<at::Tensor>>;

/// The model that an operator was given: weights[i] is the weight of modules[i], a types[i]. biases: none, or one (or
/// None) for each. Throws c10::Error "[fp8::op] argument: ..." for lists of other lengths, names that come twice, and
/// types of no known class.
std::vector<WeightModule> model_of(const char* op, at::TensorList weights, const std::vector<std::string>& modules,
                                   const std::vector<std::string>& types,
                                   const std::optional<Biases>& biases = std::nullopt);

using Nodes = std::optional<runtime::NodeList>;

/// The operations without a weight that an operator was given (runtime/modules/node.h), by their names in the model.
/// Throws c10::Error for lists of other lengths and names that come twice.
std::vector<OpNode> nodes_of(const char* op, const Nodes& nodes, const std::optional<std::vector<std::string>>& names);

/// Hangs watchers on the selected weights (on hpu, in high precision), and on nodes. biases: where they are added after
/// the product (x of other than two dimensions), outputs are measured with them. config: a QUANT_CONFIG as JSON or a
/// file's path; "": every Linear and Conv2d, the largest magnitude. prefix: where measure_end() writes; "": where the
/// config says, else nowhere.
std::int64_t measure_begin(at::TensorList weights, const std::vector<std::string>& modules,
                           const std::vector<std::string>& types, const std::optional<Biases>& biases,
                           const std::string& prefix, const std::string& config, const Nodes& nodes = std::nullopt,
                           const std::optional<std::vector<std::string>>& node_names = std::nullopt);

/// The next forward sees samples [first, first + count). Throws c10::Error for an unknown session, first < 0, count <
/// 1.
void measure_samples(std::int64_t session, std::int64_t first, std::int64_t count);

/// The next forward sees the samples that follow: rows of its first tensor, `input`; one of a vector, and of none.
void measure_forward(std::int64_t session, const std::optional<at::Tensor>& input);
/// It is done: files that are due (sample_interval) are written now. Throws as begin_samples() does.
void measure_forward_done(std::int64_t session);

/// JSON of all that was seen so far, amaxes as lists; non_finite: [module, tensor, sample, "nan" or "inf"].
std::string measure_result(std::int64_t session);

/// Removes the watchers. write: writes the files first and returns their paths. If writing throws, the session
/// continues.
std::vector<std::string> measure_end(std::int64_t session, bool write);

}  // namespace fp8::measure
