// SPDX-License-Identifier: Apache-2.0
// One way from a checkpoint to another: quantize, convert and save differ in the plan alone. No torch here.
//
//   source rows        scheme                        form                sink
//   as they are   ->   new scales and codes     ->   names, layout  ->   units, streamed into files (stream/stream.h)
//   decoded            (or the codes as they were)
//
// A plan is complete before a byte is written, and nothing changes it afterwards.
#pragma once

#include "fp8/quant/checkpoint/model_card.h"
#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/checkpoint/rounded.h"
#include "fp8/quant/checkpoint/stacked_experts.h"
#include "fp8/quant/checkpoint/stream/stream.h"

namespace fp8::quant {

/// A weight of the source and what the output has of it.
struct PlannedWeight {
  WeightSlice values;               ///< of a source in high precision
  StoredWeight from;                ///< of a source in codes
  WeightSpec to;                    ///< decoded: scheme unused
  Change change = Change::decoded;  ///< requantized: new scales and codes, of values in high precision too
  bool exact = true;
  std::string reason;                       ///< why it is in high precision though fp8 was asked for
  const RoundedCodes* rounded = nullptr;    ///< has its codes, in place of nearest ones
  RoundedPlace codes = {};                  ///< where
  std::string fuse_group;                   ///< new scales per tensor: shares its scale with its group
  const PlannedModule* measured = nullptr;  ///< whose measured amax the values must have; may be null

  bool in_codes() const { return !from.weight.empty(); }
  std::string output() const { return to.module + ".weight"; }
  /// The name that messages about its values use.
  std::string place() const { return in_codes() ? to.module : values.place(); }
};

/// A piece of the output: weights that stand together in it, or (none) a tensor that is carried.
struct PlannedPiece {
  std::vector<std::size_t> weights;  ///< indices of FolderPlan::weights
  std::string from, to;              ///< names of the tensor in source and output
};

/// The files of a folder beside the weights.
struct FolderTexts {
  io::Json edits = io::Json::object();  ///< members of config.json beside quantization_config; null removes one
  io::Json sidecar = {};                ///< fp8.json; null: none is written
  std::optional<CardFacts> card = {};   ///< README.md says so; none: the source's stays as it is
};

struct FolderPlan {
  const CheckpointForm* form = nullptr;                ///< null: to high precision
  recipes::FloatType type = recipes::FloatType::BF16;  ///< of decoded weights
  ConfigSpec config;
  std::vector<PlannedWeight> weights;
  std::vector<PlannedPiece> pieces;  ///< in the order of the file; a tensor of the source that is in none is left out
  Rescaling rescaling;
  bool cast = false;                           ///< carried floating point tensors become `type` too
  std::map<std::string, NonFinite> nonfinite;  ///< tensors of the source whose NaN and Inf are allowed
  std::vector<std::string> notes;
  FolderTexts texts;
  io::Json identity;  ///< Job::identify()
};

/// Rows of a weight in codes at a time: 256 Ki codes, so that a chunk stays in a core's cache; transposed: 1 Mi, which
/// are read or written in runs of as many bytes as there are rows. Whole blocks where new scales are made of them.
std::int64_t rows_per_chunk(const PlannedWeight& weight, bool transposed);

/// The plan's pieces as units of work. They throw io::Error naming the tensor: NaN or Inf that the plan does not allow,
/// values that leave the range of the type, a weight that is not the measured one.
class Pipeline {
 public:
  /// Both must outlive this, and this the units. Throws io::Error naming a tensor that the output would hold twice.
  Pipeline(const io::Checkpoint& source, const FolderPlan& plan);
  ~Pipeline();

  const std::vector<Unit>& units() const { return units_; }
  /// max |w - w'| / max |w| of the plan's weight number i; nothing where it is exact or was not made.
  std::optional<double> max_error(std::size_t i) const;
  /// Warnings of weights that became zero.
  std::vector<std::string> lost() const;

 private:
  class Rows;

  const FolderPlan& plan_;
  std::unique_ptr<Rows> rows_;
  std::vector<Unit> units_;
};

/// The scales of a key-value cache as a unit of this name. form, config and kv must outlive it.
Unit kv_unit(const CheckpointForm& form, const ConfigSpec& config, const KvScales& kv, const std::string& name);

/// One folder to be written, whoever planned it.
struct Job {
  /// Notes the files of `source` (may be empty) as they are before they are read; write() throws if they change.
  Job(const std::filesystem::path& source, const StreamOptions& options);
  /// All that decides the bytes; "source" in it becomes those files.
  void identify(io::Json identity);

  StreamOptions stream;
  std::vector<Unit> units;
  const CheckpointForm* form = nullptr;
  io::Json quantization;  ///< config.json's; null: it has none
  FolderTexts texts;
  bool marked = false;  ///< fp8.json says which run made it, by which options.resume knows it

  std::uint64_t weights_bytes() const;  ///< of all tensors
  /// Runs the units and writes what stands beside the weights: config.json, the form's further files, fp8.json, all
  /// that is carried through from the source, the card. left: warnings of files that are not.
  StreamResult write(const std::filesystem::path& out, bool join = false,
                     std::vector<std::string>* left = nullptr) const;

 private:
  io::Json files_;
};

/// One run of a plan: what quantizing and converting do alike.
class PlannedRun {
 public:
  /// job: of the source, from before it was read. The others must outlive this.
  PlannedRun(Job job, const io::Checkpoint& source, const FolderPlan& plan);

  const Job& job() const { return job_; }
  std::optional<double> max_error(std::size_t i) const { return pipeline_.max_error(i); }
  /// Counts, and writes unless it is a dry run. warnings: gets those of writing.
  void write(const std::filesystem::path& out, bool dry_run, bool join, WriteReport& report,
             std::vector<std::string>& warnings);

 private:
  const FolderPlan& plan_;
  Pipeline pipeline_;
  Job job_;
};

// The checkpoint that takes another form, as it was found, and what becomes of every weight, decided before anything
// is written. Internal to quant; no torch here.

/// A folder to be converted: its tensors, what of them is in fp8, its config.json, its fp8.json (or null).
struct ConvertSource {
  /// assume: as ConvertOptions has it.
  explicit ConvertSource(const std::filesystem::path& model, const std::string& assume = "");

  io::Checkpoint checkpoint;
  io::Json config, sidecar, quantization;
  StoredCheckpoint stored;
  recipes::FloatType type = recipes::FloatType::BF16;  ///< config.json's dtype, of the model in high precision
  bool high_precision() const { return stored.weights.empty(); }
  std::string form_name() const;
};

/// All of the plan but its texts and nonfinite tensors. Throws as convert_checkpoint() says.
FolderPlan plan_conversion(const ConvertSource& source, const ConvertOptions& options);

}  // namespace fp8::quant
