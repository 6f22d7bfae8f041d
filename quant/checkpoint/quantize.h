// SPDX-License-Identifier: Apache-2.0
// Checkpoint folder in, fp8 checkpoint folder out, tensor by tensor: memory is bounded by a few chunks per thread,
// whatever the model's size. No torch here.
#pragma once

#include "fp8/quant/checkpoint/modules.h"
#include "fp8/quant/checkpoint/rounded.h"
#include "fp8/quant/checkpoint/stream/stream_options.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/plan/plan.h"

namespace fp8::quant {

/// How the output is written is in StreamOptions, whose identity, source and carried files are made here.
struct CheckpointOptions : StreamOptions {
  PlanOptions plan;
  std::string form = "compressed-tensors";  ///< one of form_names()
  /// Scales of key-value caches to write, by attention module; with plan.kv_cache, or a config that selects all caches,
  /// they are made of the measurements.
  std::vector<KvScales> kv;
  /// Which modules are Linear, where the caller knows better than the table of families and the general rule.
  ModuleChoice modules;
  /// Further entries for the file's list of modules in high precision, as its form spells them.
  std::vector<std::string> ignore;
  /// Tensors with NaN or Inf are copied as they are, modules of such a weight with them in high precision, and noted in
  /// fp8.json; else refused. Reads all of the source once more.
  bool allow_nonfinite = false;
  /// Codes that were made before (quant/model/layer_rounding.h), of modules of the source; null: all are rounded to
  /// nearest.
  std::shared_ptr<const RoundedCodes> rounded;
  std::vector<std::string> costs;  ///< what was measured of the output, sentences for its card
  bool dry_run = false;            ///< plan and byte counts only; nothing is written, no data read
  bool join = false;               ///< makes `out` of the shares of world_size ranks, or of `shares`
};

/// Where a quantized module's weight lies in the source: a tensor, or expert `expert` of a stack (-1: no stack).
struct QuantizedSource {
  std::string module, tensor;
  std::int64_t expert = -1;
};

struct CheckpointReport : WriteReport {
  std::vector<std::pair<std::string, std::string>> quantized;  ///< module, scheme
  std::vector<QuantizedSource> sources;                        ///< of those, by the source's names
  std::vector<SkippedModule> skipped;
  std::vector<std::string> warnings;
  /// Of a model_type that the table does not know: what was taken for Linear, and why others were not
  /// (CheckpointModules::guesses).
  std::vector<std::pair<std::string, std::string>> guesses;
  std::size_t kv_caches = 0;  ///< attention modules with scales for their key-value cache
};

/// Reads `model` (config.json, weights), writes `out` in the form asked for, with tokenizer and generation files
/// carried through. Modules that the form's readers would misread, transposed and 3-D weights stay as they are and are
/// listed; so are the nodes of attention that a config puts into fp8 in memory, whose scales have no place in any form.
/// Throws io::Error or std::invalid_argument, naming file, tensor or key; nothing stands under `out` then.
CheckpointReport quantize_checkpoint(const std::filesystem::path& model, const std::filesystem::path& out,
                                     const CheckpointOptions& options);

/// True if `out` is what a run with these options finished: with options.resume it would be left as it is. Throws
/// io::Error if something else stands there.
bool is_quantized(const std::filesystem::path& model, const std::filesystem::path& out,
                  const CheckpointOptions& options);

}  // namespace fp8::quant
