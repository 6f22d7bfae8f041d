// SPDX-License-Identifier: Apache-2.0
// The common parts of the ways to measure a model: whole (measure.cpp), one decoder layer at a time
// (measure_blocks.cpp), and decoder layers divided over processes (measure_pipeline.cpp).
#pragma once

#include "fp8/tools/commands/inputs/model_input.h"
#include "fp8/tools/commands/work/snapshots.h"
#include "fp8/tools/models/layer_stream.h"

namespace fp8::commands {

/// One `fp8 measure`.
struct MeasureRun {
  const MeasureOptions& options;
  Context& context;
  measure::CalibrationOptions calibration;  ///< which modules, what of them, and where to
  std::int64_t memory =
      0;  ///< bytes that may be used beyond `process`; 0 or less: --memory-limit does not even reach that
  std::int64_t process = 0;  ///< bytes of the program itself, which --memory-limit counts
  Snapshots& snapshots;
  SourceFiles sources;
  io::Json progress = nullptr;  ///< of the snapshot to go on from; null: from the beginning
  std::shared_ptr<measure::CalibrationSession> session = nullptr;
  double forward_seconds = 0;
  Share share = {};               ///< of several processes
  io::Shares* shares = nullptr;   ///< with --shares, while they are taken
  std::int64_t first_sample = 0;  ///< of all, that this process looks at
  std::int64_t planned = 0;       ///< samples that this process should look at
  std::string mark = "";          ///< measure_run.h
  io::Json work = nullptr;        ///< facts that processes that take shares must have in common
  io::Json ranks =
      nullptr;  ///< with --pipeline, of each: {"layers": [first, end], "forward_seconds", "peak_rss_bytes"}
  std::shared_ptr<runtime::Profiler> profiler = nullptr;  ///< null: not requested
  std::optional<KeepsWork> keeps = {};                    ///< from the first samples that are kept to their files

  /// After modules were selected: throws io::Error for a pattern of --exclude that means none. Null: there are none.
  std::function<void()> check_patterns = nullptr;

  /// What is kept when it is interrupted after so many samples, and how to go on; files: they are written too.
  std::string kept_after(std::int64_t samples, bool files) const;
  /// Throws io::Error if no module was selected, or by check_patterns; the session is discarded then.
  void require_selection();
  /// Throws UsageError with the least limit that works if --memory-limit does not leave `needed` bytes for `what`.
  void require_memory(std::int64_t needed, const std::string& what) const;
};

/// Discards a session that was not finalized when an error leaves the scope.
struct DiscardOnError {
  std::shared_ptr<measure::CalibrationSession>& session;
  ~DiscardOnError() {
    if (session != nullptr) session->discard();
  }
};

/// f(), its time added to run.forward_seconds.
template <class F>
void timed_forward(MeasureRun& run, const F& f) {
  const Stopwatch watch;
  f();
  run.forward_seconds += watch.seconds();
  if (run.profiler != nullptr) run.profiler->step();
}

/// A language model folder, one decoder layer in memory at a time; the samples are for_samples()'s.
/// Leaves a session that is ready to be finalized; the files will be those of the whole model's run, byte for byte.
void measure_blocks(MeasureRun& run);

// The identity of an `fp8 measure` run: the facts that a resumed run must share with its snapshot, and those that
// decide the numbers, by which a finished measurement and its shares are recognized.

/// Returns all facts of the run, for snapshots.
io::Json identity_of(const MeasureRun& run, bool blocks);

/// Returns the facts that decide the numbers: neither the paths nor the way to measure.
io::Json causes_of(const MeasureRun& run);
/// Returns the checksum of causes_of() as 16 hexadecimal digits; a rank's share adds the facts that decide its samples.
/// The measurement's .fingerprint holds it.
std::string mark_of(const MeasureRun& run, const Share& share);

measure::StatsName stats_name(const MeasureRun& run);

/// True if the measurement has this mark and is unchanged since it was written: its run completed.
bool has_mark(const measure::StatsName& name, const measure::MeasurementFile& file, const std::string& mark);
/// Writes the mark, if the measurement has a fingerprint to write it to.
void mark_finished(const measure::StatsName& name, const std::string& mark);
/// The text of a fingerprint with the mark in it.
std::string with_mark(const std::filesystem::path& path, const std::string& fingerprint, const std::string& mark);
/// The measurement that a run like this one finished.
std::optional<measure::MeasurementFile> finished_before(const MeasureRun& run);

// How much of the data is measured where the options leave it open: 512 chunks of 2048 tokens, as is usual for
// calibration, where the model takes chunks so long and where that is a matter of minutes. What a model of P parameters
// costs is about 2 P operations a token; of kOperations there are so many tokens, but no fewer than kLeastTokens. It is
// reckoned, not timed: a measurement is the same on every machine, and again.

/// Chunks of seq_len tokens, at least 1.
std::int64_t default_samples(std::int64_t parameters, std::int64_t seq_len);

/// How many samples are lacking where the data gave `count`, and warns of them: --samples asked for more, by over a
/// tenth. Else 0.
std::int64_t warn_of_lacking(const MeasureRun& run, std::int64_t count);

/// The options with samples, seq_len and batch filled in. Throws io::Error for a model that can't be read.
MeasureOptions sized(const MeasureOptions& options);

/// " of 512 tokens, ..." where the options left it open how much; "" of a TorchScript model.
std::string size_note(const MeasureOptions& options);

// fp8 measure on several processes. Each looks at its samples (its rank's; or those of one share of --shares after the
// other) and writes files as one process would; joining makes of them those that one process would have written.
//
//   OUT/inc_output_hooks_maxabs_0_8.*                 rank 0 of 8
//   OUT/.inc_output_hooks_maxabs.shares/3.part-0/     share 3 of --shares (io/shares); goes when all are joined

/// The part that this process has, as options and environment say; none: another does all of the work. separate_files:
/// as the config has it. Throws UsageError, and io::Error for an observer whose files can't be joined.
std::optional<Share> share_of_measuring(const MeasureOptions& options, const measure::CalibrationOptions& calibration,
                                        bool separate_files, const Context& context);

/// Calls body for the samples that this process looks at. With --shares once for each share that it gets, with a run
/// whose files are that share's; body leaves a session there that is ready to be finalized.
void for_samples(MeasureRun& run, const Forwards& forwards,
                 const std::function<void(MeasureRun& run, SampleRange samples)>& body);

/// A measurement of no samples, for a rank that there are none for. Returns the files.
std::vector<std::filesystem::path> write_empty(const MeasureRun& run);

/// Returns the folder of the shares of --shares.
std::filesystem::path shares_folder(const MeasureRun& run);

/// --join alone: of what other processes have written.
void join_measurements(MeasureRun& run);

/// --shares: takes shares, measure() looking at each of them through for_samples(), and joins them where that is asked
/// for.
void measure_in_shares(MeasureRun& run, const std::function<void(MeasureRun& run)>& measure);

/// Reports the measurement that an earlier run with the same mark finished, where this run has nothing to do.
void report_finished(const MeasureRun& run, const measure::MeasurementFile& file);

// fp8 measure --pipeline: models larger than one machine, their decoder layers divided over the processes that a
// launcher started. What comes of it is what one process would have written, byte for byte.

/// Meets the other ranks, refuses those that are about to do something else, and measures. report() runs on rank 0,
/// where run.session is ready to be finalized and run.ranks has the work of each rank, while the others wait for it.
/// The contexts of ranks above 0 are quiet from here on. Throws UsageError for more ranks than layers and where
/// --memory-limit is too little for this rank's, c10::Error naming a rank that is gone.
void measure_in_pipeline(MeasureRun& run, const std::function<void()>& report);

// The common parts of the ways to measure a checkpoint layer by layer: one layer in memory at a time
// (measure_blocks.cpp), a range of layers on each of several ranks (measure_pipeline.cpp). The batches are those of the
// whole model's run, so every operation sees the same tensors and every observer the same calls.

/// How a run opens its checkpoint.
models::LoadOptions stream_options(const MeasureRun& run);

class LayerRun {
 public:
  LayerRun(const LayerRun&) = delete;
  LayerRun& operator=(const LayerRun&) = delete;

 protected:
  /// The samples: those that are looked at, as this run's.
  LayerRun(MeasureRun& run, models::LayerStream& stream, Samples samples);
  ~LayerRun() = default;

  /// Selects modules and finds out what must run: session_ and all below it. Throws io::Error if nothing is selected,
  /// and if the files can't be written.
  void plan(measure::CalibrationOptions calibration);
  /// Calls f(first, count) for every batch; begin_samples() and Ctrl-C are seen to.
  template <class F>
  void for_batches(const F& f);
  std::int64_t batches() const;

  /// Of the hidden states of samples [first, first + count): [count, columns, H] on hpu, not filled.
  at::Tensor empty_hidden(std::int64_t first, std::int64_t count) const;
  /// Returns the peak bytes of a batch in a layer: the norm in f32 and its result, q, k, v; or gate, up and their
  /// product.
  std::int64_t batch_bytes() const;
  /// Tokens of the largest batch.
  std::int64_t batch_tokens() const;
  std::int64_t element_bytes() const;

  /// The embedding, where it is measured: all of it is looked at, though only some of its rows are needed.
  void look_at_embedding();
  /// Returns the modules that are measured at the end: the head, if there is one, and those between it and the layers.
  std::vector<measure::WeightModule> end_modules() const;

  MeasureRun& run_;
  models::LayerStream& stream_;
  Samples samples_;
  std::int64_t batch_;
  std::shared_ptr<measure::StagedCalibration> session_;  ///< run_.session
  std::int64_t layers_ = 0;                              ///< that are run
  bool head_ = false, after_ = false;                    ///< it is measured; so is something between it and the layers

 private:
  std::int64_t last_layer() const;
};

template <class F>
void LayerRun::for_batches(const F& f) {
  for (std::int64_t first = 0, count = 0; first < samples_.count(); first += count) {
    if (run_.snapshots.saved() && !run_.keeps) run_.keeps.emplace();
    if (interrupted()) throw Interrupted(run_.kept_after(first, /*files=*/false));
    count = samples_.together(first, batch_);
    session_->begin_samples(first, count);
    f(first, count);
  }
}

}  // namespace fp8::commands
