// SPDX-License-Identifier: Apache-2.0
// One way from a checkpoint to another: quantize, convert and save differ in the plan alone. No torch here.
//
//   source rows        scheme                        form                sink
//   as they are   ->   new scales and codes     ->   names, layout  ->   units, streamed into files (stream/stream.h)
//   decoded            (or the codes as they were)
//
// A plan is complete before a byte is written, and nothing changes it afterwards.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fp8/quant/checkpoint/model_card.h"
#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/checkpoint/rounded.h"
#include "fp8/quant/checkpoint/stacked_experts.h"
#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/quant/forms/form.h"

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
  io::Json sidecar;                     ///< fp8.json; null: none is written
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
  FolderTexts texts;
  std::vector<std::string> notes;
};

/// Rows of a weight in codes at a time: 256 Ki codes, so that a chunk stays in a core's cache; transposed: 1 Mi, which
/// are read or written in runs of as many bytes as there are rows. Whole blocks where new scales are made of them.
std::int64_t rows_per_chunk(const PlannedWeight& weight, bool transposed);

/// Writes config.json with `quantization` (null: without), `texts`, the form's further files and what is carried
/// through from `source` (empty: nothing). mark: run_mark() of the run; empty: fp8.json has none. Returns warnings.
std::vector<std::string> finish_folder(OutputFolder& folder, const std::filesystem::path& source,
                                       const CheckpointForm* form, const io::Json& quantization, FolderTexts texts,
                                       const std::string& mark = "");

// The weights of a plan as units of work: rows are read in chunks (and decoded), new scales and codes are made of them
// where the plan says so, and the form writes them. Internal to quant/checkpoint. No torch here.
//
//   new scales per tensor    first the amax of all that share the scale (q, k, v), then the codes
//              per channel   one pass; large weights are cut into ranges of rows that run side by side
//              per block     the same, in whole rows of blocks
//              searched      INC's *_opt_* methods: per tensor they hold the whole weight

/// Weights in codes from this size on are made in parts of it, so that no thread is left alone with one.
inline constexpr std::int64_t kPartCodes = std::int64_t{16} << 20;

class WeightUnits {
 public:
  /// Both must outlive this.
  WeightUnits(const io::Checkpoint& source, const FolderPlan& plan);

  /// One unit of the plan's weights of these numbers. It throws io::Error naming the tensor: NaN or Inf that the plan
  /// does not allow, values that leave the range of the type, a weight that is not the measured one.
  Unit unit_of(const std::vector<std::size_t>& weights);
  std::optional<double> max_error(std::size_t i) const { return errors_[i]; }
  const UnderflowReport& lost() const { return lost_; }

 private:
  struct Work;
  struct Group {
    std::vector<const PlannedWeight*> members;
    std::mutex mutex;
    std::optional<WeightScales> scales;
  };
  /// Rows as values: as they were read, or decoded.
  struct Values {
    const void* data = nullptr;
    recipes::FloatType type = recipes::FloatType::F32;
    std::vector<float> decoded = {};
  };

  bool allowed(const std::string& tensor) const { return plan_.nonfinite.contains(tensor); }
  std::int64_t chunk_rows(const PlannedWeight& w) const;
  std::int64_t part_rows(const PlannedWeight& w) const;
  void load_scales(UnitContext& context, Work& work);
  void make_rows(UnitContext& context, Work& work, std::int64_t first, std::int64_t last);
  void read(UnitContext& context, const PlannedWeight& w, std::int64_t row, std::int64_t rows) const;
  Values values_of(const UnitContext& context, const PlannedWeight& w, const std::vector<float>& scale_inv,
                   std::int64_t row, std::int64_t rows) const;
  void decode(UnitContext& context, const Work& work, std::int64_t row, std::int64_t rows) const;
  bool overflows(const UnitContext& context, const Work& work, std::int64_t row, std::int64_t rows) const;
  static void note_deviation(Work& work, const std::vector<float>& before, const std::uint8_t* codes, std::int64_t row,
                             std::int64_t rows);
  void rescale(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const;
  void quantize(UnitContext& context, Work& work, std::int64_t row, std::int64_t rows) const;
  float make_codes(UnitContext& context, Work& work, const Values& values, std::int64_t row, std::int64_t rows) const;
  void refuse_if_nonfinite(const PlannedWeight& w, float amax) const;
  WeightScales group_scales(UnitContext& context, const PlannedWeight& of);
  template <class Visit>
  void each_chunk(UnitContext& context, const PlannedWeight& w, const Visit& visit) const;
  float weight_amax(UnitContext& context, const PlannedWeight& w) const;
  WeightScales searched(const PlannedWeight& w) const;
  void finish_weight(UnitContext& context, Work& work);

  const io::Checkpoint& source_;
  const FolderPlan& plan_;
  std::map<std::string, Group> groups_;        // by their name, or the module's
  std::vector<std::optional<double>> errors_;  // of each weight of the plan; one thread finishes it
  UnderflowReport lost_;
};

/// One run: the plan's pieces as units, and the folder that is made of them.
class Pipeline {
 public:
  /// All must outlive this. Throws io::Error naming a tensor that the output would hold twice.
  Pipeline(const io::Checkpoint& source, const FolderPlan& plan);
  ~Pipeline();

  std::size_t units() const { return units_.size(); }
  std::uint64_t weights_bytes() const;  ///< of the output's tensors
  /// stream: all but source and nonfinite. Weights that became zero are among the warnings.
  StreamResult write(const std::filesystem::path& out, StreamOptions stream, bool join) const;
  const std::vector<Unit>& all_units() const { return units_; }

  /// max |w - w'| / max |w| of the plan's weight number i; nothing where it is exact or was not made.
  std::optional<double> max_error(std::size_t i) const;

 private:
  Unit cast_unit(const io::TensorInfo& info) const;
  void cast_piece(UnitContext& context, const io::TensorInfo& info, std::int64_t first, std::int64_t n) const;

  const io::Checkpoint& source_;
  const FolderPlan& plan_;
  std::unique_ptr<WeightUnits> weights_;
  std::vector<Unit> units_;
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
