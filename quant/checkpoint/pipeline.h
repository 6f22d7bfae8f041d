// SPDX-License-Identifier: Apache-2.0
// One way from a checkpoint folder to another. Converting is quantizing a source whose rows are decoded. No torch here.
//
//   1  Job            the source's files are noted as they are before they are read
//   2  SourceFolder   what stands in the folder
//   3  FolderPlan     what becomes of it, complete before a byte is written: plan_quantization(), plan_conversion()
//   4  Pipeline       source rows        scheme                        form                sink
//                     as they are   ->   new scales and codes     ->   names, layout  ->   units (stream/stream.h)
//                     decoded            (or the codes as they were)
//   5  Job::write()   the units run into files; config.json, fp8.json, the card and what is carried come last
//
// Saving a model (model/save.h) and sharing a checkpoint out to ranks (inc_ranks.cpp) make their units themselves, and
// are Jobs from there on.
#pragma once

#include "fp8/quant/checkpoint/model_card.h"
#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/checkpoint/stacked_experts.h"
#include "fp8/quant/checkpoint/stream/stream.h"

namespace fp8::quant {

/// A checkpoint folder as it was found. Throws io::Error for one that is not whole.
struct SourceFolder {
  /// In high precision (beside experts in MXFP4 where that is what `form` needs), to be quantized.
  SourceFolder(const std::filesystem::path& model, const CheckpointForm& form, const ModuleChoice& choice);
  /// Of any form, to be converted. assume: as ConvertOptions has it.
  explicit SourceFolder(const std::filesystem::path& model, const std::string& assume = "");

  io::Json config;
  io::Checkpoint checkpoint;
  CheckpointModules modules;
  std::vector<std::string> incomplete;  ///< what a family without a row seems to lack

  // To be converted: what is in codes.
  io::Json sidecar, quantization;  ///< fp8.json, quantization_config; null: none
  StoredCheckpoint stored;
  recipes::FloatType type = recipes::FloatType::BF16;  ///< config.json's dtype, of the model in high precision

  std::string folder() const { return checkpoint.folder().string(); }
  bool high_precision() const { return stored.weights.empty(); }
  std::string form_name() const;
  bool has_powers_of_two(const StoredWeight& weight) const;  ///< E8M0 holds all of its scales
};

/// A weight of the source and what the output has of it.
struct PlannedWeight {
  WeightSlice values = {};          ///< of a source in high precision
  StoredWeight from = {};           ///< of a source in codes
  WeightSpec to = {};               ///< decoded: scheme unused
  Change change = Change::decoded;  ///< requantized: new scales and codes, of values in high precision too
  bool exact = true;
  std::string reason = {};                  ///< why it is in high precision though fp8 was asked for
  const RoundedCodes* rounded = nullptr;    ///< has its codes, in place of nearest ones
  RoundedPlace codes = {};                  ///< where
  std::string fuse_group = {};              ///< new scales per tensor: shares its scale with its group
  const PlannedModule* measured = nullptr;  ///< whose measured amax the values must have; null: of a source in codes
  bool tied = false;                        ///< a head that the source does not have: the values are the embedding's

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

/// Each member is made once, of the source, the options and the members above it.
struct FolderPlan {
  const CheckpointForm* form = nullptr;                ///< null: to high precision
  recipes::FloatType type = recipes::FloatType::BF16;  ///< of decoded weights
  bool cast = false;                                   ///< carried floating point tensors become `type` too
  Rescaling rescaling;
  std::vector<PlannedWeight> weights;
  std::vector<SkippedModule> skipped;  ///< in high precision, by their names in the output
  ConfigSpec config;
  std::vector<PlannedPiece> pieces;  ///< in the order of the file; a tensor of the source that is in none is left out
  std::map<std::string, NonFinite> nonfinite;  ///< tensors of the source whose NaN and Inf are allowed
  std::vector<std::string> notes;
  FolderTexts texts;
  io::Json identity;  ///< Job::identify()

  std::string describe() const;  ///< "compressed-tensors: E4M3 channel weights, ..."; "bf16"
};

struct CheckpointPlan;  // quantize_plan.h
/// planned must outlive it. Throws as quantize_checkpoint() says.
FolderPlan plan_quantization(const CheckpointPlan& planned, const CheckpointOptions& options);
/// Throws as convert_checkpoint() says.
FolderPlan plan_conversion(const SourceFolder& source, const ConvertOptions& options);

// The members of a plan that both make alike.

struct PlannedCaches {
  std::vector<KvScales> scales;
  std::vector<std::string> notes;
};

/// In the order of the source: weights where their tensors stand, those that share a new scale with the first of them,
/// tied heads at the end. dropped: tensors that the output has not; renamed: what has another name in it.
std::vector<PlannedPiece> pieces_of(const io::Checkpoint& source, const std::vector<PlannedWeight>& weights,
                                    const std::set<std::string>& dropped, const StackedExperts& renamed);
/// fp8.json. skipped: modules that it lists beside the plan's; more: further members.
io::Json sidecar_of(const FolderPlan& plan, const std::string& measurements, std::vector<SkippedModule> skipped,
                    const io::Json& more);
/// how: "quantized", "converted from ...".
CardFacts card_of(const SourceFolder& source, const FolderPlan& plan, const std::string& how);
/// "TENSOR: copied with NaN in 3 of 64 values" of all that is allowed.
std::vector<std::string> nonfinite_notes(const SourceFolder& source, const FolderPlan& plan);

/// Rows of a weight in codes at a time: 256 Ki codes, so that a chunk stays in a core's cache; transposed: 1 Mi, which
/// are read or written in runs of as many bytes as there are rows. Whole blocks where new scales are made of them.
std::int64_t rows_per_chunk(const PlannedWeight& weight, bool transposed);

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

/// The job of a plan: its pieces as units. They throw io::Error naming the tensor: NaN or Inf that the plan does not
/// allow, values that leave the range of the type, a weight that is not the measured one.
class Pipeline : public Job {
 public:
  /// noted: of the source, from before it was read. The others must outlive this. Throws io::Error naming a tensor that
  /// the output would hold twice.
  Pipeline(Job noted, const SourceFolder& source, const FolderPlan& plan);
  ~Pipeline();

  /// Counts, and writes unless it is a dry run. warnings: gets those of writing, and of weights that became zero.
  void run(const std::filesystem::path& out, bool dry_run, bool join, WriteReport& report,
           std::vector<std::string>& warnings);
  /// max |w - w'| / max |w| of the plan's weight number i; nothing where it is exact or was not made.
  std::optional<double> max_error(std::size_t i) const;

 private:
  class Rows;

  const FolderPlan& plan_;
  std::unique_ptr<Rows> rows_;
};

}  // namespace fp8::quant
