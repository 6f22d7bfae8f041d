// SPDX-License-Identifier: Apache-2.0
// Measurements as Intel Neural Compressor writes and reads them: PREFIX_hooks_{observer}R.json (indent 4), the same as
// .npz, and PREFIX_hooks_{observer}R_mod_list.json, the names that were selected; R is "" or "_{rank}_{world}"
// (stats_files.h). No torch here.
//
//   {"NumSamples": n?, "PlannedSamples": n?, "GlobalRank": null, "LocalRank": null | rank | -1 (unified),
//    "Mode": "DynamicRange" | "Shape",
//    "Nodes": {module: {"inputs": [[[amax]], ...], "outputs": [[[amax]]]?, "params": {"weight": [[amax]]}?}}}
//
// PlannedSamples stands where fewer samples were measured than were to be: the run was cut short, or its data gave no
// more. INC reads neither key.
//
// An amax is float32, >= 0, of the unscaled tensor; its form is [[v]] (shape [1, 1]), per channel [C, 1]. In mode
// "Shape" the form is [[d0, d1, ...]], the tensor's sizes. Old files say "input" and "output"; an "output" that is one
// array is one output.
//
// With a model's fingerprint there is a fourth file, PREFIX_hooks_{observer}R.fingerprint:
//   {"measurement": digest of the values, "weights": {module: {"dtype", "shape", "samples"}}}
// It counts only while the digest fits: files that another tool has put in their place are judged by names and values
// alone.
//
// Keys after the rotary embedding and values, as a key-value cache would store them, stand in a file of their own with
// the same condition: INC derives scales for whatever it finds in its files, and fails for modules that its model has
// not. PREFIX_hooks_{observer}R.kv_cache:
//   {"measurement": digest of the values, "Nodes": {module: {"inputs": [[[amax of head 0], [amax of head 1], ...]]}}}
#pragma once

#include "fp8/measure/files/stats_files.h"
#include "fp8/recipes/scaling.h"
#include "fp8/runtime/io/tensors/safetensors.h"

// The backup of an earlier measurement in a folder. No torch here.

namespace fp8::measure {

/// "backup_NAME_21-11_15-04-59" in `folder` (local time; INC has colons there, which not every file system takes), or
/// with _2, _3, ... where that exists; not made.
std::filesystem::path backup_path(const std::filesystem::path& folder, const std::string& name);

// Which model a measurement is of: name, shape and 32 sampled values of every weight. Of another model, its amax values
// are worthless, and nothing in INC's files would tell. No torch here.
//
//   sample i of n elements, 32 in all: element i * (n - 1) / 31 in row-major order, as float32
//
// Values, not a checksum: a model measured in bf16 and quantized from its f32 checkpoint is still the same model.
// Weights of one dtype must agree exactly, of two to within 2^-7 of the larger.

struct WeightFingerprint {
  std::string module;  ///< "model.layers.0.mlp.up_proj"
  std::string dtype;   ///< "bf16", as kernels::name_of
  std::vector<std::int64_t> shape;
  std::vector<float> samples;  ///< at most 32
};

struct ModelFingerprint {
  std::vector<WeightFingerprint> weights;

  const WeightFingerprint* find(const std::string& module) const;
  /// 16 hex digits over all of it.
  std::string digest() const;
};

/// Element positions that are sampled of a weight with `numel` elements.
std::vector<std::int64_t> sampled_positions(std::int64_t numel);

/// Of a dense weight in memory.
WeightFingerprint fingerprint_of(const std::string& module, const void* data, kernels::FloatType type,
                                 const std::vector<std::int64_t>& shape);

/// Of a checkpoint's tensor `tensor` (F32, BF16 or F16; else io::Error).
WeightFingerprint fingerprint_of(const std::string& module, const io::Checkpoint& checkpoint,
                                 const std::string& tensor);

/// Throws io::Error "WHERE: MODULE.weight ..., a measurement of another model?" for a module of both whose shape or
/// values differ. Modules of only one of them are not looked at: a plan knows what it needs.
void require_same_model(const ModelFingerprint& measured, const ModelFingerprint& model, const std::string& where);

/// {module: {"dtype", "shape", "samples"}}.
io::Json to_json(const ModelFingerprint& model);

/// Throws io::Error naming key and module; `where` stands before.
ModelFingerprint model_from_json(const io::Json& json, const std::string& where);

/// The amax values of one tensor: one, or one per channel. In mode shape: its sizes.
using Amax = std::vector<float>;

struct Measurement {
  std::string module;
  std::vector<Amax> inputs;
  std::optional<std::vector<Amax>> outputs;  ///< absent when not measured
  std::optional<Amax> weight;                ///< params.weight
};

enum class MeasurementMode : std::uint8_t { dynamic_range, shape };
FP8_ENUM_NAMES(MeasurementMode, {dynamic_range, "DynamicRange"}, {shape, "Shape"});

struct MeasurementFile {
  std::optional<std::int64_t> num_samples;
  std::optional<std::int64_t> local_rank;  ///< -1: unified from several ranks
  std::vector<Measurement> modules;        ///< only those that were called
  std::vector<std::string> selected;       ///< mod_list
  MeasurementMode mode = MeasurementMode::dynamic_range;
  std::optional<std::int64_t> global_rank;  ///< INC writes null
  std::optional<ModelFingerprint> model;    ///< of which model, if known
  std::vector<Measurement>
      kv_cache;  ///< "...k_cache" and "...v_cache": input 0, per head. Those that `modules` has too are not here
  std::optional<std::int64_t> planned_samples = {};  ///< where they are more than num_samples
  std::string observer = {};  ///< whose values these are (reading takes it from the files' name); empty: not known

  const Measurement* find(const std::string& module) const;
  /// Of a key-value cache: kv_cache's, else that of `modules`.
  const Measurement* find_cache(const std::string& module) const;
  /// "68 of 400 samples", of a measurement of fewer than were planned; else "".
  std::string shortage() const;
  /// 16 hex digits (FNV-1a) over names and values: changes when a measurement does.
  std::string fingerprint() const;
};

/// Which of the files under one prefix.
struct MeasurementName {
  std::string observer = "maxabs";
  std::optional<configs::Rank> rank = {};
};

/// Writes the files, each atomically and none before all are on the disk; returns their paths. `prefix` as in
/// "out/stats/inc_output"; its folder is made, and taken back when writing fails. A rank is also the LocalRank, unless
/// the file has one. Throws io::Error.
std::vector<std::filesystem::path> write_measurements(const std::string& prefix, const MeasurementFile& file,
                                                      const MeasurementName& name = {});
std::vector<std::filesystem::path> write_measurements(const StatsName& name, const MeasurementFile& file);

/// The files that write_measurements() writes: to be written together with other files.
std::vector<FileBytes> measurement_bytes(const StatsName& name, const MeasurementFile& file);

/// Throws io::Error if write_measurements() could not make its files there: to be asked before a long run. Writes
/// nothing.
void check_writable(const std::string& prefix);

/// Reads the .json or the .npz, whichever is there; both must agree. `where` is a prefix (of observer maxabs, without
/// rank), one of the files, or a folder that holds one measurement. Throws io::Error naming file and module: missing,
/// malformed, negative, NaN or infinite.
MeasurementFile read_measurements(const std::string& where);
MeasurementFile read_measurements(const StatsName& name);

/// The measurement that read_measurements() would read for `where`: in a folder, and under a prefix, the one
/// measurement of `observer` without rank, else the only one.
StatsName find_measurement(const std::string& where, const std::string& observer = "maxabs");

/// The tree of a file that was read already; `name` stands in messages.
MeasurementFile measurement_from_json(const io::Json& json, const std::string& name);

// The file beside a measurement that holds what its observers know: with it the measurements of several ranks or runs
// are merged (observer.h) as if one observer had seen all of the data. (It does not end in
// .json: other tools count those.) No torch here.
//
//   P_hooks_{observer}R.observers
//   {"Observer": "percentile", "Format": "E4M3", "Fp8Max": 448, "Parameters": {"percentile": 99.99},
//    "Nodes": {module: {"inputs": [state, ...], "outputs": [state, ...]?, "weight": state?}}}

struct ObserverStates {
  std::string observer;
  recipes::Format format = recipes::Format::E4M3;
  float fp8_max = 448.0f;
  std::map<std::string, double, std::less<>> parameters = {};
  std::map<std::string, io::Json> nodes = {};  ///< by module; as WatchedNode::states() gives them
};

/// "P_hooks_percentile_0_2.observers".
std::filesystem::path observer_states_path(const StatsName& name);

io::Json to_json(const ObserverStates& states);

/// Throws io::Error naming file and key.
ObserverStates read_observer_states(const std::filesystem::path& path);

/// For Observer::restore(): throws io::Error "WHERE: expected ..., found ...".
[[noreturn]] void bad_state(const std::string& where, const std::string& expected, const io::Json& found);

}  // namespace fp8::measure
